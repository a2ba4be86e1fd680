//! The user's own devices: TOML files in `devices/` of the configuration folder.

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
};

use roofline_core::{Device, Error, Registry};

use crate::{failure::Failure, report::style};

/// `$ROOFLINE_CONFIG_DIR`, else the platform's place for configuration.
pub(crate) fn folder() -> Option<PathBuf> {
    let from = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(own) = from("ROOFLINE_CONFIG_DIR") {
        return Some(own);
    }
    let base = if cfg!(windows) {
        from("APPDATA")
    } else if cfg!(target_os = "macos") {
        from("HOME").map(|home| home.join("Library/Application Support"))
    } else {
        from("XDG_CONFIG_HOME").or_else(|| from("HOME").map(|home| home.join(".config")))
    };
    base.map(|base| base.join("roofline"))
}

fn devices_folder() -> Result<PathBuf, Failure> {
    let missing =
        || Failure::usage("there is no configuration folder to keep devices in", "set ROOFLINE_CONFIG_DIR to a folder");
    folder().map(|folder| folder.join("devices")).ok_or_else(missing)
}

/// The built-in devices and the registered ones. A registered file that is broken is said and left out; one that hides
/// a built-in device is said whenever the registry is read.
pub(crate) fn registry() -> Registry {
    let Some(folder) = folder().map(|folder| folder.join("devices")) else { return Registry::builtin() };
    let Ok(entries) = fs::read_dir(&folder) else { return Registry::builtin() };
    let mut paths: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    paths.sort();
    let own: Vec<Device> = paths
        .iter()
        .filter_map(|path| match read_device(path) {
            Ok(device) => Some(device),
            Err(Failure::Input(error)) => {
                style::talk("warning", &format!("left out {error}"));
                None
            }
            Err(_) => {
                style::talk("warning", &format!("left out {}: cannot be read", path.display()));
                None
            }
        })
        .collect();
    for device in &own {
        if let Some(builtin) = Registry::shadowed(device) {
            let message = format!("your device `{}` hides the built-in {} ({})", device.key, builtin.name, builtin.key);
            style::talk("warning", &message);
        }
    }
    Registry::builtin().with(own)
}

/// A device file.
pub(crate) fn read_device(path: &Path) -> Result<Device, Failure> {
    let failed = |error| Failure::File { path: path.to_owned(), error };
    // A device file is a page of text: a path that leads to gigabytes is a mistake and is not read.
    let size = fs::metadata(path).map_err(failed)?.len();
    if size > 1 << 20 {
        let reason = format!("{size} bytes is too long for a device file");
        return Err(Error::Device { key: path.display().to_string(), reason }.into());
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    Ok(Device::from_toml(&text, &path.display().to_string())?)
}

/// Keeps `text`, which must be a valid device file, under `key`; written beside and renamed.
pub(crate) fn register(key: &str, text: &str, force: bool) -> Result<PathBuf, Failure> {
    let device = Device::from_toml(text, key)?;
    let hint = "pick another name, or say `--force` to replace it";
    if let Some(builtin) = Registry::shadowed(&device).filter(|_| !force) {
        return Err(Failure::usage(format!("`{key}` is the built-in {}", builtin.name), hint));
    }
    let folder = devices_folder()?;
    let path = folder.join(format!("{}.toml", device.key));
    if path.exists() && !force {
        return Err(Failure::usage(format!("`{}` is registered already", device.key), hint));
    }
    let beside = folder.join(format!(".{}.{}.tmp", device.key, std::process::id()));
    let write = || {
        fs::create_dir_all(&folder)?;
        let mut file = fs::File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&beside);
        Failure::File { path: path.clone(), error }
    })?;
    Ok(path)
}

/// Forgets a registered device.
pub(crate) fn remove(key: &str) -> Result<PathBuf, Failure> {
    let key = roofline_core::device::key_of(key);
    let path = devices_folder()?.join(format!("{key}.toml"));
    if !path.exists() {
        let message = format!("no device of yours is called `{key}`");
        return Err(Failure::usage(message, "`roofline devices --mine` lists them"));
    }
    fs::remove_file(&path).map_err(|error| Failure::File { path: path.clone(), error })?;
    Ok(path)
}
