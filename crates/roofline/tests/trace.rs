//! `roofline compare --trace` as a user meets it, on traces that were recorded.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{fs, path::PathBuf, process::Output};

use common::{command, temporary};

/// Runs where the traces lie, so that no path of this machine is in what is shown.
fn compared(arguments: &[&str]) -> Output {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../roofline-verbs/src/trace/fixtures");
    command(&[&["compare"], arguments].concat()).current_dir(folder).output().unwrap()
}

fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (code, out, talk) = (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr));
    format!("exit code: {code}\n----- stdout -----\n{out}----- stderr -----\n{talk}")
}

#[test]
fn operators_under_the_roof() {
    insta::assert_snapshot!("gpu", shown(&compared(&["--trace", "gpu.json"])));
    insta::assert_snapshot!("gpu_all", shown(&compared(&["--trace", "gpu.json", "--on", "h200", "--all"])));
    insta::assert_snapshot!("processor", shown(&compared(&["--trace", "processor.json", "--on", "epyc_9654"])));
}

#[test]
fn what_is_no_trace() {
    insta::assert_snapshot!("without_a_device", shown(&compared(&["--trace", "processor.json"])));
    insta::assert_snapshot!(
        "two_questions",
        shown(&compared(&["--trace", "gpu.json", "gemv", "--n", "1", "--k", "1"]))
    );
    let folder = temporary("none");
    fs::write(folder.join("cut.json"), "{\"traceEvents\": [{\"ph\": \"X\"").unwrap();
    let output = command(&["compare", "--trace", "cut.json", "--on", "h200"]).current_dir(&folder).output().unwrap();
    insta::assert_snapshot!("cut_short", shown(&output));
}
