//! Records what the program is built from, for the environment of a result. Whatever cannot be found out stays unset.

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let compiler = env::var("RUSTC").ok().and_then(|rustc| output(&rustc, &["--version"]));
    if let Some(compiler) = compiler {
        println!("cargo::rustc-env=ROOFLINE_COMPILER={compiler}");
    }
    // A copy inside somebody else's repository must not take that one's commit for ours.
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().ok();
    let top = output("git", &["rev-parse", "--show-toplevel"]).and_then(|top| Path::new(&top).canonicalize().ok());
    if top.is_none() || top != ours {
        return;
    }
    if let Some(commit) = output("git", &["rev-parse", "--short=12", "HEAD"]) {
        println!("cargo::rustc-env=ROOFLINE_COMMIT={commit}");
    }
    // Only files that exist: a missing one would rebuild the crate each time.
    for name in ["HEAD", "logs/HEAD"] {
        let path = output("git", &["rev-parse", "--git-path", name]).filter(|path| Path::new(path).exists());
        if let Some(path) = path {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.lines().next()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
