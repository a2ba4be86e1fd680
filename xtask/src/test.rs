//! What a change must pass. Tools that a machine may lack are used when they are there; their absence is said.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{cargo, generate, kernels, machines, oracle, python, root, run, serve, step, works};

pub(crate) fn test() -> Result<(), String> {
    if works(&mut cargo(&["fmt", "--version"])) {
        step("format");
        run(&mut cargo(&["fmt", "--all", "--check"]))?;
    } else {
        step("SKIPPED format: rustfmt is not installed (rustup component add rustfmt)");
    }
    if works(&mut cargo(&["clippy", "--version"])) {
        step("lints");
        run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    } else {
        step("SKIPPED lints: clippy is not installed (rustup component add clippy)");
    }
    spelling()?;
    dependencies()?;
    fuzz_targets()?;
    let page = page()?;
    packages();
    let compiler = kernels::nvrtc();
    let with_compiler = |command: Command| run(&mut kernels::with(command, compiler.as_ref()));
    if works(&mut cargo(&["nextest", "--version"])) {
        step("tests (nextest)");
        with_compiler(cargo(&["nextest", "run", "--workspace", "--locked", "--no-fail-fast"]))?;
    } else {
        step("tests (cargo test; cargo-nextest is not installed)");
        with_compiler(cargo(&["test", "--workspace", "--locked", "--all-targets"]))?;
    }
    on_a_gpu(&with_compiler)?;
    machines::instruction_sets()?;
    oracle::oracle()?;
    python::python()?;
    step("documentation tests");
    run(&mut cargo(&["test", "--workspace", "--locked", "--doc"]))?;
    step("documentation");
    run(cargo(&["doc", "--workspace", "--locked", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))?;
    if page {
        browser()?;
    }
    step("generated files");
    generate::generate(generate::Mode::Check)?;
    machines::others()
}

/// Tests that are ignored because they need a GPU, where there is one.
fn on_a_gpu(run: &dyn Fn(Command) -> Result<(), String>) -> Result<(), String> {
    if !works(Command::new("nvidia-smi").arg("--list-gpus")) {
        step("SKIPPED kernels on a GPU: there is none (nvidia-smi --list-gpus)");
        return Ok(());
    }
    step("kernels on a GPU");
    // One after the other: each takes all of it.
    let tests = ["on_a_gpu", "--ignored", "--test-threads", "1"];
    let mut command = cargo(&["test", "--locked", "--package", "roofline-run", "--test", "operators", "--"]);
    command.args(tests);
    run(command)?;
    step("models on a GPU");
    let mut command = cargo(&["test", "--locked", "--package", "roofline-engine", "--test", "gpu", "--"]);
    command.arg("--ignored");
    run(command)
}

/// Words as they are spelled, by `typos` from PyPI.
fn spelling() -> Result<(), String> {
    let folder = root().join("target/typos");
    let program = folder.join("bin/typos");
    if !program.exists() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]).arg(&folder);
        let _ = run(pip.arg("typos==1.51.1"));
    }
    if !works(Command::new(&program).arg("--version")) {
        step("SKIPPED spelling: typos cannot be installed (pip install typos)");
        return Ok(());
    }
    step("spelling");
    run(Command::new(&program).current_dir(root()))
}

/// Licences and origins of what we stand on. Building the tool takes longer than all tests, so it is used where it is.
fn dependencies() -> Result<(), String> {
    if !works(&mut cargo(&["deny", "--version"])) {
        step("SKIPPED dependencies: cargo-deny is not installed (cargo install cargo-deny)");
        return Ok(());
    }
    step("dependencies");
    run(&mut cargo(&["deny", "check", "bans", "licenses", "sources"]))
}

/// The targets of the fuzzer still compile. They are a workspace of their own, whose one dependency more may not be on a
/// machine that has no network.
fn fuzz_targets() -> Result<(), String> {
    let fuzz = |arguments: &[&str]| {
        let mut command = cargo(arguments);
        command.args(["--locked", "--manifest-path", "fuzz/Cargo.toml"]);
        command
    };
    let fetched = fuzz(&["fetch"]).output().map_err(|error| format!("cargo fetch: {error}"))?;
    if String::from_utf8_lossy(&fetched.stderr).contains("cannot update the lock file") {
        return Err(
            "fuzz/Cargo.lock is behind the workspace: cargo update --workspace --manifest-path fuzz/Cargo.toml".into(),
        );
    }
    if !fetched.status.success() {
        step(
            "SKIPPED the fuzz targets: their dependencies cannot be had (cargo fetch --manifest-path fuzz/Cargo.toml)",
        );
        return Ok(());
    }
    step("the fuzz targets compile");
    run(&mut fuzz(&["check", "--quiet", "--bins"]))
}

/// Builds the page and tests its pure parts; whether there is one to drive.
fn page() -> Result<bool, String> {
    if !works(Command::new("npm").arg("--version")) {
        step("SKIPPED the page: npm is not installed (https://nodejs.org)");
        return Ok(false);
    }
    serve::page()?;
    step("the page: types, lints, tests");
    run(&mut serve::npm(&["run", "check"]))?;
    run(&mut serve::npm(&["test"]))?;
    Ok(true)
}

/// Installs what tests use besides Rust, Node and Python, where this is Debian and nobody can be asked: a browser, an
/// sshd for loopback, and an emulator of ARM.
fn packages() {
    let wanted = [(CHROMIUM, "chromium"), ("/usr/sbin/sshd", "openssh-server"), ("/usr/bin/ssh", "openssh-client")];
    let emulator = machines::EMULATOR.iter().filter(|_| !cfg!(target_arch = "aarch64"));
    let missing: Vec<&str> =
        wanted.iter().chain(emulator).filter(|(file, _)| !Path::new(file).exists()).map(|(_, name)| *name).collect();
    let root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.starts_with(b"0"));
    if missing.is_empty() || !root || !works(Command::new("apt-get").arg("--version")) {
        return;
    }
    step(&format!("installing {}", missing.join(", ")));
    let mut apt = Command::new("apt-get");
    apt.args(["install", "--yes", "--quiet", "--no-install-recommends"]).args(&missing);
    if run(apt.env("DEBIAN_FRONTEND", "noninteractive")).is_err() {
        let _ = run(Command::new("apt-get").args(["update", "--quiet"]));
        if run(apt.env("DEBIAN_FRONTEND", "noninteractive")).is_err() {
            step(&format!("{} cannot be installed; what needs them is skipped", missing.join(", ")));
        }
    }
}

/// Debian's browser.
const CHROMIUM: &str = "/usr/bin/chromium";

/// Drives every tab of the page in a browser, with the program that the tests were built with.
fn browser() -> Result<(), String> {
    if !Path::new(CHROMIUM).exists() {
        step("SKIPPED the page in a browser: there is no chromium (apt-get install chromium)");
        return Ok(());
    }
    step("the page in a browser");
    run(&mut python::program())?;
    let program = root().join("target/debug/roofline");
    let program =
        std::env::var_os("CARGO_TARGET_DIR").map_or(program, |folder| PathBuf::from(folder).join("debug/roofline"));
    run(serve::npm(&["run", "e2e"]).env("ROOFLINE_BIN", program))
}
