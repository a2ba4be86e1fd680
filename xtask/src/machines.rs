//! Machines other than this one: what must build for them, and the processor's kernels as they would run there.
//!
//! A kernel is written once for each instruction set, and a machine runs one of them: the others rot unless they are run
//! on purpose. `ROOFLINE_ISA` takes away what this processor has and others do not, and an emulator lends what it lacks.

use std::{fs, path::Path, process::Command};

use crate::{cargo, root, run, step, works};

const ARM: &str = "aarch64-unknown-linux-gnu";
const WASM: &str = "wasm32-unknown-unknown";

/// Packages whose kernels have a form for ARM, and how the names of their tests start. What does not depend on the
/// instruction set need not be emulated.
const ARM_KERNELS: &[(&str, &str)] = &[("roofline-isa", ""), ("roofline-run", "cpu::")];

/// Debian's emulator, compiler and libraries: a file of each, and its package.
pub(crate) const EMULATOR: [(&str, &str); 3] = [
    ("/usr/bin/qemu-aarch64", "qemu-user"),
    ("/usr/bin/aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("/usr/aarch64-linux-gnu/lib/crt1.o", "libc6-dev-arm64-cross"),
];

/// Packages whose unit tests run the processor's kernels, or judge what they took.
const KERNELS: &str = "package(roofline-isa) + package(roofline-run) + package(roofline-quant) + \
                       package(roofline-engine) + package(roofline-verbs)";

/// Unit tests of kernels once more on what older processors have. They are built already.
pub(crate) fn instruction_sets() -> Result<(), String> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    for isa in ["avx2", "portable"] {
        if isa != "portable" && !flags.split_whitespace().any(|flag| flag == isa) {
            step(&format!("SKIPPED kernels with ROOFLINE_ISA={isa}: /proc/cpuinfo does not list it"));
            continue;
        }
        step(&format!("kernels with ROOFLINE_ISA={isa}"));
        // Of the whole workspace: packages by name would have other features of what they use, and be built again.
        let whole = ["--locked", "--workspace", "--lib"];
        let mut command = if works(&mut cargo(&["nextest", "--version"])) {
            let mut command = cargo(&["nextest", "run", "--status-level", "fail", "-E", KERNELS]);
            command.args(whole);
            command
        } else {
            let mut command = cargo(&["test", "--quiet"]);
            command.args(whole);
            command
        };
        run(command.env("ROOFLINE_ISA", isa))?;
    }
    Ok(())
}

/// The core is pure, and so are verbs that only compute: they must build where there is no operating system. The program
/// runs on Jetson boards.
pub(crate) fn others() -> Result<(), String> {
    check(WASM, &["--package", "roofline-core"])?;
    check(WASM, &["--package", "roofline-verbs", "--no-default-features"])?;
    if check(ARM, &["--workspace", "--exclude", "xtask"])? { emulated() } else { Ok(()) }
}

/// Checks packages for another machine; whether its target is there.
fn check(target: &str, packages: &[&str]) -> Result<bool, String> {
    if !installed(target) && works(Command::new("rustup").arg("--version")) {
        step(&format!("rustup target add {target}"));
        // Without a network it fails, which is what `installed` says next.
        let _ = run(Command::new("rustup").args(["target", "add", target]).current_dir(root()));
    }
    if !installed(target) {
        step(&format!("SKIPPED {target} check: the target is not installed (rustup target add {target})"));
        return Ok(false);
    }
    step(&format!("{target} check"));
    run(cargo(&["check", "--locked", "--target", target]).args(packages))?;
    Ok(true)
}

fn installed(target: &str) -> bool {
    let mut rustc = Command::new("rustc");
    let folder = rustc.args(["--print", "target-libdir", "--target", target]).current_dir(root()).output();
    folder.is_ok_and(|output| {
        output.status.success() && Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir()
    })
}

/// ARM's kernels in an emulator. On an ARM machine the tests have run them already.
fn emulated() -> Result<(), String> {
    if cfg!(target_arch = "aarch64") {
        return Ok(());
    }
    if let Some((_, package)) = EMULATOR.iter().find(|(file, _)| !Path::new(file).exists()) {
        step(&format!("SKIPPED ARM kernels in an emulator: {package} is not installed (apt-get install {package})"));
        return Ok(());
    }
    step("ARM kernels in an emulator");
    for (package, tests) in ARM_KERNELS {
        let mut command = cargo(&["test", "--quiet", "--locked", "--target", ARM, "--package", package, "--lib"]);
        command.args(["--", tests]);
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64 -L /usr/aarch64-linux-gnu");
        run(&mut command)?;
    }
    Ok(())
}
