//! The checkpoints that `roofline quantize` writes, compared byte by byte with an independent reference in Python.

use std::{
    env::consts::EXE_SUFFIX,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{cargo, root, run, step};

/// Runs `tools/oracle/cheap.py` on the debug build.
pub(crate) fn oracle() -> Result<(), String> {
    let folder = root().join("tools").join("oracle");
    let Some(python) = environment(&folder) else { return Ok(()) };
    step("checkpoints against a reference in Python");
    run(&mut cargo(&["build", "--package", "roofline", "--locked"]))?;
    let program = target().join("debug").join(format!("roofline{EXE_SUFFIX}"));
    run(Command::new(python).arg(folder.join("cheap.py")).arg(program))
}

/// Where cargo builds.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |folder| root().join(folder))
}

/// The Python of an environment under target/ with what the oracle needs, installed if need be.
fn environment(oracle: &Path) -> Option<PathBuf> {
    let folder = target().join("oracle");
    let requirements = oracle.join("requirements-cheap.txt");
    let python =
        if cfg!(windows) { folder.join("Scripts").join("python.exe") } else { folder.join("bin").join("python") };
    // What is installed is noted, so that other requirements are installed anew.
    let note = folder.join("installed.txt");
    let wanted = fs::read_to_string(&requirements).unwrap_or_default();
    if fs::read_to_string(&note).is_ok_and(|installed| installed == wanted) && python.is_file() {
        return Some(python);
    }
    step(&format!("installing what the oracle needs under {}", folder.display()));
    let made = run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder)).and_then(|()| {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
        run(pip.arg(&requirements))
    });
    let noted = made.and_then(|()| fs::write(&note, wanted).map_err(|error| format!("{}: {error}", note.display())));
    if let Err(message) = noted {
        step(&format!("SKIPPED checkpoints against a reference in Python: its environment cannot be made ({message})"));
        return None;
    }
    Some(python)
}
