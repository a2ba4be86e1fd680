//! The checkpoints that `roofline quantize` writes, compared byte by byte with an independent reference in Python.

use std::{
    env::consts::EXE_SUFFIX,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{python, root, run, step};

/// Runs `tools/oracle/cheap.py` on the debug build.
pub(crate) fn oracle() -> Result<(), String> {
    let folder = root().join("tools").join("oracle");
    let python = match environment(&folder, "oracle", "requirements-cheap.txt") {
        Ok(python) => python,
        Err(message) => {
            step(&format!("SKIPPED checkpoints against a reference in Python: {message}"));
            return Ok(());
        }
    };
    step("checkpoints against a reference in Python");
    run(Command::new(python).arg(folder.join("cheap.py")).arg(program()?))
}

/// Runs what loads checkpoints in the libraries themselves. Nothing is skipped: whoever asks for it wants it.
pub(crate) fn heavy() -> Result<(), String> {
    let folder = root().join("tools").join("oracle");
    let python = environment(&folder, "oracle-heavy", "requirements-families.txt")?;
    let (program, work) = (program()?, target().join("oracle-families"));
    fs::create_dir_all(&work).map_err(|error| format!("{}: {error}", work.display()))?;
    let script = |name: &str| {
        step(name);
        let mut command = Command::new(&python);
        command.current_dir(folder.join("heavy")).arg(name).arg(&program).arg(&work);
        command
    };
    let table = work.join("table.md");
    let layouts = "compressed-tensors,torchao,safetensors,bitsandbytes,fp8";
    run(script("family_matrix.py").args(["--layouts", layouts, "--table"]).arg(&table))?;
    ["lora.py", "sources.py", "bitsandbytes_checkpoints.py", "mlx_checkpoints.py"]
        .into_iter()
        .try_for_each(|name| run(&mut script(name)))?;
    println!("\nThe matrix of families is in {}.", table.display());
    Ok(())
}

/// The debug build of the program.
fn program() -> Result<PathBuf, String> {
    run(&mut python::program())?;
    Ok(target().join("debug").join(format!("roofline{EXE_SUFFIX}")))
}

/// Where cargo builds.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |folder| root().join(folder))
}

/// The Python of an environment under target/ with what an oracle needs, installed if need be.
fn environment(oracle: &Path, name: &str, requirements: &str) -> Result<PathBuf, String> {
    let folder = target().join(name);
    let requirements = oracle.join(requirements);
    let python =
        if cfg!(windows) { folder.join("Scripts").join("python.exe") } else { folder.join("bin").join("python") };
    // What is installed is noted, so that other requirements are installed anew.
    let note = folder.join("installed.txt");
    let wanted = fs::read_to_string(&requirements).unwrap_or_default();
    if fs::read_to_string(&note).is_ok_and(|installed| installed == wanted) && python.is_file() {
        return Ok(python);
    }
    step(&format!("installing what the oracle needs under {}", folder.display()));
    let made = run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder)).and_then(|()| {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
        run(pip.arg(&requirements))
    });
    let noted = made.and_then(|()| fs::write(&note, wanted).map_err(|error| format!("{}: {error}", note.display())));
    noted.map_err(|message| format!("its environment cannot be made ({message})"))?;
    Ok(python)
}
