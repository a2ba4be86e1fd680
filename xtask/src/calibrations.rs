//! The calibrations of serving stacks and runtimes, from the timings and the published speeds in the repository: fitted, compared with what ships, and told on a page.

use std::{fs, path::Path, process::Command};

use crate::{cargo, root, run, step};

/// Whether files are written or compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Write,
    Check,
}

const DATA: &str = "docs/results/timings";
const SHIPPED: &str = "crates/roofline-core/data/calibrations";
const SOURCE: &str = "aiconfigurator-core 0.12.0, ai-dynamo/aiconfigurator";
const SPEEDS: &str = "docs/results/published/speeds.csv";
const TERMS: &str = "crates/roofline-core/data/published";
const FILES: [&str; 3] = ["context_attention", "gemm", "generation_attention"];

/// Fits every kernel to all timings. Written: the calibrations that ship, then figures and tables of the page. Checked: what is
/// written must be what ships, to the last digit.
pub(crate) fn calibrations(mode: Mode) -> Result<(), String> {
    let folder = root().join("target/calibrations");
    let rows = folder.join("rows.csv");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    build()?;
    step("fit");
    let written = if mode == Mode::Write { root().join(SHIPPED) } else { folder.clone() };
    let mut fit = program();
    fit.arg("calibrate").arg("--from").args(FILES.map(file));
    fit.args(["--source", SOURCE, "--licence", "Apache-2.0"]);
    run(fit.arg("--write").arg(&written).arg("--rows").arg(&rows).arg("--json").stdout(std::process::Stdio::null()))?;
    if mode == Mode::Check {
        compare(&folder)?;
        return speeds(&folder, mode);
    }
    // What ships is part of the program.
    build()?;
    speeds(&folder, mode)?;
    build()?;
    step("each device by what was timed on another");
    let mut report = Command::new("python3");
    report.arg(root().join(DATA).join("report.py")).arg(&rows).arg(root().join(SHIPPED));
    for name in FILES {
        let output = program().args(["calibrate", "--check", &file(name), "--transfer", "--json"]).output();
        let output = output.map_err(|error| format!("calibrate --check: {error}"))?;
        let path = folder.join(format!("{name}.json"));
        fs::write(&path, output.stdout).map_err(|error| format!("{}: {error}", path.display()))?;
        report.arg(path);
    }
    step("figures and tables");
    run(report.current_dir(root()))
}

/// Fits what runtimes reach of their devices to published speeds, for which kernels that were timed are known already.
fn speeds(place: &Path, mode: Mode) -> Result<(), String> {
    step("published speeds");
    let shipped = root().join(TERMS);
    let folder = if mode == Mode::Write { shipped.clone() } else { place.join("published") };
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    run(program()
        .args(["calibrate", "--published", SPEEDS, "--source", "docs/results/published"])
        .arg("--write")
        .arg(&folder))?;
    let read = |folder: &Path| {
        let path = folder.join("terms.toml");
        fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    if read(&folder)? == read(&shipped)? {
        return Ok(());
    }
    Err(format!("{TERMS}/terms.toml is not what the figures give: `cargo xtask calibrations` writes it"))
}

fn build() -> Result<(), String> {
    step("program");
    run(&mut cargo(&["build", "--quiet", "--release", "--locked", "--package", "roofline"]))
}

fn program() -> Command {
    let mut program = Command::new(root().join("target/release/roofline"));
    program.current_dir(root()).env("ROOFLINE_CONFIG_DIR", "/nonexistent");
    program
}

fn file(name: &str) -> String {
    format!("{DATA}/{name}.csv.gz")
}

/// Every file that ships for a serving stack, and no other, was made, and is the same.
fn compare(made: &Path) -> Result<(), String> {
    let names = |folder: &Path| -> Result<Vec<String>, String> {
        let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let mut names: Vec<String> = entries.flatten().map(name).collect();
        names.retain(|name| {
            Path::new(name).extension().is_some_and(|end| end == "toml") && !name.contains(".roofline.")
        });
        names.sort();
        Ok(names)
    };
    let shipped = root().join(SHIPPED);
    let (made_names, shipped_names) = (names(made)?, names(&shipped)?);
    if made_names != shipped_names {
        return Err(format!("made are {made_names:?}, and {shipped_names:?} ship"));
    }
    let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    for name in &made_names {
        if read(&made.join(name))? != read(&shipped.join(name))? {
            return Err(format!("{SHIPPED}/{name} is not what the timings give: `cargo xtask calibrations` writes it"));
        }
    }
    println!("{} calibrations are what the timings give", made_names.len());
    Ok(())
}
