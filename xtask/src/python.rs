//! The Python package: a wheel of the debug build, installed as a stranger would, and its tests.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use crate::{cargo, root, run, step};

/// Names the cargo that does the work, where this program stands in for it.
const CARGO: &str = "XTASK_CARGO";
/// What builds and tests the package. Newer ones may find more, and then no change of ours would have broken it.
const TOOLS: &str = "maturin==1.16.0 mypy==1.18.2 pytest==8.4.2 tqdm==4.67.1";
/// What the package meets where it is installed, and does without where it is not.
const GUESTS: &str = "numpy pandas pyarrow polars duckdb nbclient ipykernel";
/// What the examples for clusters run on. It has wheels for fewer systems and versions of Python than the others.
const CLUSTER: &str = "ray==2.60.0";

/// Builds the wheel, installs it into an empty environment and tests it there.
pub(crate) fn python() -> Result<(), String> {
    let folder = target().join("python");
    let tools = match environment(&folder.join("tools"), TOOLS) {
        Ok(tools) => tools,
        Err(message) => {
            step(&format!("SKIPPED the Python package: its tools cannot be had ({message})"));
            return Ok(());
        }
    };
    step("the Python package: a wheel");
    let wheel = wheel(&folder, &tools)?;
    step("the Python package: tests");
    let (installed, cluster) = installed(&folder)?;
    let mut pip = Command::new(&installed);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]);
    run(pip.arg("--force-reinstall").arg(&wheel))?;
    // From a folder of its own, so that what is imported is what was installed.
    let place = folder.join("place");
    fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    let program = target().join("debug").join(format!("roofline{}", env::consts::EXE_SUFFIX));
    let mut pytest = Command::new(&installed);
    pytest.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider", "--import-mode=importlib"]);
    pytest.arg(root().join("python/tests")).env("ROOFLINE_BIN", program).env("ROOFLINE_ROOT", root());
    run(pytest.current_dir(&place))?;
    step("the Python package: types, its own and those of the examples");
    let mypy = || {
        let mut mypy = Command::new(&installed);
        mypy.args(["-m", "mypy", "--strict", "--cache-dir"]).arg(folder.join("mypy")).current_dir(&place);
        mypy
    };
    run(mypy().args(["--package", "roofline"]))?;
    run(mypy().args(examples(cluster)?))
}

/// An environment with as many of the guests as can be had, and whether what clusters need is among them.
fn installed(folder: &Path) -> Result<(PathBuf, bool), String> {
    match environment(&folder.join("installed"), &format!("{TOOLS} {GUESTS} {CLUSTER}")) {
        Ok(installed) => return Ok((installed, true)),
        Err(message) => step(&format!("SKIPPED the examples for clusters: {CLUSTER} cannot be had ({message})")),
    }
    match environment(&folder.join("apart"), &format!("{TOOLS} {GUESTS}")) {
        Ok(installed) => return Ok((installed, false)),
        Err(message) => {
            step(&format!("without {GUESTS}, which cannot be had ({message}): what meets them is not tested"));
        }
    }
    environment(&folder.join("alone"), TOOLS).map(|installed| (installed, false))
}

/// The examples of the package; those for clusters where there is what they need.
fn examples(cluster: bool) -> Result<Vec<PathBuf>, String> {
    let folder = root().join("examples");
    let files = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<PathBuf> = files.filter_map(|file| Some(file.ok()?.path())).collect();
    let of_cluster = |file: &PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ray_"));
    files.retain(|file| file.extension() == Some(OsStr::new("py")) && (cluster || !of_cluster(file)));
    files.sort();
    if files.is_empty() { Err(format!("{} has no examples", folder.display())) } else { Ok(files) }
}

/// The wheel of the debug build. maturin asks this program instead of cargo, so that what the other tests built is used.
fn wheel(folder: &Path, tools: &Path) -> Result<PathBuf, String> {
    let wheels = folder.join("wheels");
    let _ = fs::remove_dir_all(&wheels);
    let stand_in = env::current_exe().map_err(|error| format!("xtask: {error}"))?;
    let mut maturin = Command::new(tools);
    maturin.args(["-m", "maturin", "build", "--quiet", "--locked", "--profile", "dev", "--out"]).arg(&wheels);
    maturin.arg("--interpreter").arg(tools).current_dir(root());
    maturin.env(CARGO, env::var_os("CARGO").unwrap_or_else(|| "cargo".into())).env("CARGO", stand_in);
    run(&mut maturin)?;
    let made = fs::read_dir(&wheels).map_err(|error| format!("{}: {error}", wheels.display()))?;
    let mut made = made.filter_map(|file| Some(file.ok()?.path()));
    made.find(|path| path.extension() == Some(OsStr::new("whl"))).ok_or_else(|| "maturin made no wheel".to_owned())
}

/// Does what cargo was asked for, where this program stands in for it. A package by name would have other features of what it
/// uses than the program has, and be built again, all of it; so the two are built together. The module needs nothing of the
/// interpreter that maturin tells of.
pub(crate) fn in_place_of_cargo(arguments: &[&str]) -> Option<ExitCode> {
    let real = env::var_os(CARGO)?;
    let mut command = Command::new(&real);
    command.env("CARGO", &real).env_remove(CARGO);
    if arguments.first() == Some(&"rustc") {
        command.args(["build", "--locked", "--package", "roofline", "--package", "roofline-py"]);
        command.args(["--message-format", "json-render-diagnostics"]);
        for name in ["PYO3_CONFIG_FILE", "PYO3_PYTHON", "PYO3_ENVIRONMENT_SIGNATURE", "PYO3_BUILD_EXTENSION_MODULE"] {
            command.env_remove(name);
        }
    } else {
        command.args(arguments);
    }
    let code = command.status().ok().and_then(|status| u8::try_from(status.code()?).ok());
    Some(ExitCode::from(code.unwrap_or(1)))
}

/// The Python of an environment with `packages`, made if need be.
fn environment(folder: &Path, packages: &str) -> Result<PathBuf, String> {
    let python =
        if cfg!(windows) { folder.join("Scripts").join("python.exe") } else { folder.join("bin").join("python") };
    let note = folder.join("installed.txt");
    if fs::read_to_string(&note).is_ok_and(|installed| installed == packages) && python.is_file() {
        return Ok(python);
    }
    step(&format!("installing {packages} under {}", folder.display()));
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages.split(' '));
    run(&mut pip)?;
    fs::write(&note, packages).map_err(|error| format!("{}: {error}", note.display()))?;
    Ok(python)
}

/// Where cargo builds.
fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |folder| root().join(folder))
}

/// Builds the program as the wheel does, so that one build serves both.
pub(crate) fn program() -> Command {
    cargo(&["build", "--quiet", "--locked", "--package", "roofline", "--package", "roofline-py"])
}
