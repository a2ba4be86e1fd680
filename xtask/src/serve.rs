//! From a clone to the page in one command: builds the page, then a server that has it inside, and starts it.

use std::{fs, process::Command};

use crate::{cargo, root, run, step, works};

pub(crate) fn serve(arguments: &[&str]) -> Result<(), String> {
    if !works(Command::new("npm").arg("--version")) {
        return Err(
            "npm is not installed, and the page is built with it: see https://nodejs.org, or start the server \
             without the page: `cargo run --release -- serve`"
                .to_owned(),
        );
    }
    page()?;
    step("roofline serve");
    run(&mut cargo(&[&["run", "--release", "--locked", "--package", "roofline", "--", "serve"], arguments].concat()))
}

/// Builds the page into `web/dist`, which the next build of the program takes in.
pub(crate) fn page() -> Result<(), String> {
    let web = root().join("web");
    if stale(&web) {
        step("npm ci");
        run(&mut npm(&["ci", "--no-audit", "--no-fund"]))?;
    }
    step("npm run build");
    run(&mut npm(&["run", "build"]))
}

/// npm in the folder of the page.
pub(crate) fn npm(arguments: &[&str]) -> Command {
    let mut command = Command::new("npm");
    command.args(arguments).current_dir(root().join("web"));
    command
}

/// Whether what is installed is not what the lock file says.
fn stale(web: &std::path::Path) -> bool {
    let changed = |name: &str| fs::metadata(web.join(name)).and_then(|file| file.modified()).ok();
    match (changed("package-lock.json"), changed("node_modules/.package-lock.json")) {
        (Some(locked), Some(installed)) => locked > installed,
        _ => true,
    }
}
