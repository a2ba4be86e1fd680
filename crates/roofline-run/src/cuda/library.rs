//! Finding CUDA's libraries: on the loader's path, in a toolkit, in a Python environment's `nvidia` wheels.
//!
//! The driver is opened by `cudarc`, NVRTC and cuBLASLt are opened here. `cudarc` looks for those two by name on the loader's
//! path only, where a wheel never is; its bindings for CUDA 12 do not try `.so.13`; and where it finds none it panics, and
//! nobody is told what to install.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use libloading::Library;

use crate::{Error, Result};

/// Major versions whose interface is the one that is used here, newest first.
const MAJORS: [u32; 2] = [13, 12];

/// Opens `lib{name}.so` of any known version. `package` is the wheel that has it.
pub(super) fn open(name: &str, package: &str) -> Result<Library> {
    let files: Vec<String> =
        MAJORS.iter().map(|major| format!("lib{name}.so.{major}")).chain([format!("lib{name}.so")]).collect();
    let on_path = files.iter().map(PathBuf::from);
    let found =
        folders().into_iter().flat_map(|folder| files.iter().map(move |file| folder.join(file)).collect::<Vec<_>>());
    let mut refused = None;
    for path in on_path.chain(found.filter(|path| path.is_file())) {
        // SAFETY: NVIDIA's libraries have initialisers that do nothing but set themselves up.
        #[allow(unsafe_code)]
        match unsafe { Library::new(&path) } {
            Ok(library) => return Ok(library),
            // A file that is there and cannot be opened says more than names that are not.
            Err(error) if path.is_absolute() => refused = Some(format!("{}: {error}", path.display())),
            Err(_) => {}
        }
    }
    let reason = refused.unwrap_or_else(|| {
        format!("lib{name} is neither on the loader's path nor in a toolkit or a Python environment")
    });
    let hint = format!(
        "`pip install {package}` brings it (13 for drivers from 580 on, else `{package}-cu12`); or install the CUDA toolkit, \
         or name its folder in CUDA_HOME"
    );
    Err(Error::Gpu { reason, hint: Some(hint) })
}

/// Where such libraries are kept, in the order that they are believed.
fn folders() -> Vec<PathBuf> {
    let mut all = Vec::new();
    for toolkit in ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(env::var_os).chain([OsString::from("/usr/local/cuda")])
    {
        let toolkit = PathBuf::from(toolkit);
        all.extend(
            ["lib64", "lib", "targets/x86_64-linux/lib", "targets/aarch64-linux/lib"].map(|part| toolkit.join(part)),
        );
    }
    for environment in environments() {
        for packages in children(&environment.join("lib"), "python3")
            .into_iter()
            .flat_map(|python| [python.join("site-packages"), python.join("dist-packages")])
        {
            all.extend(children(&packages.join("nvidia"), "").into_iter().map(|wheel| wheel.join("lib")));
        }
    }
    all
}

/// Folders with CUDA's own headers, such as `cuda_bf16.h`; none where there are none.
pub(super) fn headers() -> Vec<PathBuf> {
    // Wheels keep them beside their libraries, toolkits one level further up.
    let beside = folders().into_iter().flat_map(|folder| {
        [folder.join("../include"), folder.join("../../../include")].into_iter().collect::<Vec<_>>()
    });
    let mut found: Vec<PathBuf> = beside
        .filter(|folder| folder.join("cuda_fp16.h").is_file())
        .filter_map(|folder| folder.canonicalize().ok())
        .collect();
    found.dedup();
    found.truncate(1);
    found
}

/// Roots of Python installations: the active one, the one on the path, the user's and the system's.
fn environments() -> Vec<PathBuf> {
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(env::var_os).map(PathBuf::from);
    let on_path = env::var_os("PATH").into_iter().flat_map(|path| env::split_paths(&path).collect::<Vec<_>>());
    let pythons = on_path
        .filter(|folder| folder.join("python3").exists())
        .filter_map(|folder| folder.parent().map(Path::to_owned));
    let user = env::var_os("HOME").map(|home| PathBuf::from(home).join(".local"));
    let mut all: Vec<PathBuf> = active.chain(pythons).chain(user).chain(["/usr/local".into(), "/usr".into()]).collect();
    let mut seen = Vec::new();
    all.retain(|root| {
        !seen.contains(root) && {
            seen.push(root.clone());
            true
        }
    });
    all
}

/// Entries of `folder` that start with `prefix`, in order; none where there is no such folder.
fn children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(std::result::Result::ok);
    let mut all: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    all.sort();
    all
}

/// A function of an opened library.
#[allow(unsafe_code)]
pub(super) fn function<F: Copy>(library: &Library, name: &str) -> Result<F> {
    // SAFETY: every caller names the type that NVIDIA's header gives this function.
    let symbol = unsafe { library.get::<F>(name.as_bytes()) };
    symbol.map(|symbol| *symbol).map_err(|_| Error::Gpu {
        reason: format!("this CUDA library has no `{name}`"),
        hint: Some("it is too old: take one of CUDA 12 or newer".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_says_where_to_get_it() {
        let error = open("nosuchlibrary", "nvidia-nosuch").err().unwrap();
        assert!(error.to_string().contains("libnosuchlibrary"), "{error}");
        assert!(error.hint().unwrap().contains("pip install nvidia-nosuch"));
    }
}
