//! Compiling GPU kernels, for which no GPU is needed.

use std::{path::PathBuf, process::Command};

use crate::{cargo, root, run, step};

/// Compiles every kernel for every architecture: minutes, which is why `cargo xtask test` compiles for some of them.
pub(crate) fn kernels() -> Result<(), String> {
    let folder = nvrtc().ok_or("NVRTC is not here and pip cannot install it: pip install nvidia-cuda-nvrtc")?;
    step("every GPU kernel for every architecture");
    let mut command = cargo(&["test", "--locked", "--package", "roofline-run", "--test", "kernels"]);
    command.args(["--", "--ignored", "--nocapture"]);
    run(&mut with(command, Some(&folder)))
}

/// `command` with the compiler in `folder`, which must then work.
pub(crate) fn with(mut command: Command, folder: Option<&PathBuf>) -> Command {
    if let Some(folder) = folder {
        command.env("CUDA_HOME", folder).env("ROOFLINE_NEEDS_NVRTC", "1");
    }
    command
}

/// Where NVIDIA's run-time compiler is, installed from PyPI if need be.
pub(crate) fn nvrtc() -> Option<PathBuf> {
    const PACKAGE: &str = "nvidia-cuda-nvrtc>=13.0,<14";
    let folder = root().join("target").join("nvrtc");
    let library = folder.join("nvidia/cu13");
    if !library.join("lib").is_dir() {
        step(&format!("installing {PACKAGE} under target/ to compile GPU kernels with"));
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"]);
        pip.arg(&folder).arg(PACKAGE);
        if run(&mut pip).is_err() || !library.join("lib").is_dir() {
            step("SKIPPED compiling GPU kernels: NVRTC is not here and pip cannot install it");
            return None;
        }
    }
    Some(library)
}
