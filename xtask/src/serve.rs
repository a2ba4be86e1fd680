//! From a clone to the page in one command: builds the page, then a server that has it inside, and starts it.

use std::{fs, process::Command};

use crate::{cargo, root, run, step, works};

pub(crate) fn serve(arguments: &[&str]) -> Result<(), String> {
    let web = root().join("web");
    if !web.join("package.json").exists() {
        return Err(format!("{} has no package.json: there is no page to build", web.display()));
    }
    if !works(Command::new("npm").arg("--version")) {
        return Err(
            "npm is not installed, and the page is built with it: see https://nodejs.org, or start the server \
                    without the page: `cargo run --release -- serve`"
                .to_owned(),
        );
    }
    if stale(&web) {
        step("npm ci");
        run(Command::new("npm").arg("ci").current_dir(&web))?;
    }
    step("npm run build");
    run(Command::new("npm").args(["run", "build"]).current_dir(&web))?;
    step("roofline serve");
    run(&mut cargo(&[&["run", "--release", "--locked", "--package", "roofline", "--", "serve"], arguments].concat()))
}

/// Whether what is installed is not what the lock file says.
fn stale(web: &std::path::Path) -> bool {
    let changed = |name: &str| fs::metadata(web.join(name)).and_then(|file| file.modified()).ok();
    match (changed("package-lock.json"), changed("node_modules/.package-lock.json")) {
        (Some(locked), Some(installed)) => locked > installed,
        _ => true,
    }
}
