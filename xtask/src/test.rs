//! What a change must pass. Tools that a machine may lack are used when they are there; their absence is said.

use std::process::Command;

use crate::{cargo, generate, run, step, works};

const WASM: &str = "wasm32-unknown-unknown";

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
    if works(&mut cargo(&["nextest", "--version"])) {
        step("tests (nextest)");
        run(&mut cargo(&["nextest", "run", "--workspace", "--locked", "--no-fail-fast"]))?;
    } else {
        step("tests (cargo test; cargo-nextest is not installed)");
        run(&mut cargo(&["test", "--workspace", "--locked", "--all-targets"]))?;
    }
    step("documentation tests");
    run(&mut cargo(&["test", "--workspace", "--locked", "--doc"]))?;
    step("documentation");
    run(cargo(&["doc", "--workspace", "--locked", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))?;
    step("generated files");
    generate::generate(generate::Mode::Check)?;
    wasm()
}

/// The core is pure: it must build where there is no operating system.
fn wasm() -> Result<(), String> {
    let folder = Command::new("rustc").args(["--print", "target-libdir", "--target", WASM]).output();
    let installed = folder.is_ok_and(|output| {
        output.status.success() && std::path::Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir()
    });
    if !installed {
        step(&format!("SKIPPED {WASM} check of the core: the target is not installed (rustup target add {WASM})"));
        return Ok(());
    }
    step(&format!("{WASM} check of the core"));
    run(&mut cargo(&["check", "--package", "roofline-core", "--locked", "--target", WASM]))
}
