//! The pipeline as a user meets it: what it would do, what it does, what it keeps when something fails.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use common::{command, said, temporary};
use serde_json::Value;

/// A Llama of 131 tokens with a tokenizer.
const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../roofline-engine/tests/data/llama");

/// A run with a home beside its folder: tests are processes of their own, and none may take another's home away.
fn run(folder: &Path, more: &[&str]) -> Output {
    let mut asked = vec!["pipeline", LLAMA, "--plan", "w8a16", "--prompt", "8", "--generate", "2", "--quick", "--json"];
    asked.extend(more);
    command(&asked).env("ROOFLINE_CONFIG_DIR", folder.with_file_name("home")).arg("--to").arg(folder).output().unwrap()
}

fn json(output: &Output) -> Value {
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{told}", said(output));
    serde_json::from_str(&told).unwrap()
}

fn states(told: &Value) -> Vec<(&str, &str)> {
    let steps = told["steps"].as_array().unwrap().iter();
    steps.map(|step| (step["name"].as_str().unwrap(), step["state"].as_str().unwrap())).collect()
}

/// Some hundred tokens of the model.
fn text(folder: &Path) -> PathBuf {
    let path = folder.join("text.txt");
    fs::write(&path, "the cat sat on the mat and the dog saw the cat. ".repeat(40)).unwrap();
    path
}

/// Everything that it would do is said, with sizes and times, and nothing is left behind.
#[test]
fn a_dry_run_writes_nothing() {
    let folder = temporary("dry").join("out");
    let told = json(&run(&folder, &["--dry-run", "--on", "h200"]));
    assert!(!folder.exists());
    let planned: Vec<&str> =
        states(&told).into_iter().filter(|(_, state)| *state == "planned").map(|(name, _)| name).collect();
    assert_eq!(planned, ["quantize", "measure_before", "measure_after", "compare"]);
    let quantize = &told["steps"][2];
    assert!(quantize["seconds"].as_f64().unwrap() > 0.0 && quantize["words"].as_str().unwrap().contains("instead of"));
    let on = &told["predicted"]["on"];
    assert_eq!((on["device"].as_str(), told["elsewhere"].as_bool()), (Some("h200_sxm"), Some(true)));
    assert!(on["after"]["tpot_us"].as_f64().unwrap() > 0.0 && !on["basis"].as_str().unwrap().is_empty());
    assert_eq!(told["recommendation"]["method"], "rtn");
}

/// From one end to the other; then what is there is refused, gone on with, and refused again where something changed.
#[test]
fn all_of_it_and_again() {
    let base = temporary("whole");
    let (folder, text) = (base.join("out"), text(&base));
    let text = text.to_str().unwrap();
    let told = json(&run(&folder, &["--text", text, "--on", "h200"]));
    assert!(states(&told).iter().all(|(_, state)| *state == "done"), "{told}");
    for field in ["precision", "method", "reason", "predicted_speedup"] {
        assert!(!told["recommendation"][field].is_null(), "{field}");
    }
    for side in ["before", "after"] {
        for field in ["perplexity", "ttft_us", "tpot_us", "tokens_per_s", "peak_memory_bytes"] {
            assert!(told[side][field].as_f64().unwrap() > 0.0, "{side} {field}: {told}");
        }
    }
    assert!(
        told["after"]["kl_divergence"].as_f64().unwrap() >= 0.0
            && told["after"]["top1_agreement"].as_f64().unwrap() > 0.5
    );
    assert!(told["before"]["kl_divergence"].is_null());
    // Predicted there, measured here, and each says where.
    assert_eq!(told["predicted"]["on"]["device"], "h200_sxm");
    assert_eq!(told["predicted"]["here"]["device"], told["here"]);
    assert_ne!(told["here"], "h200_sxm");
    let page = fs::read_to_string(told["report"].as_str().unwrap()).unwrap();
    assert!(
        page.contains(told["verdict"]["word"].as_str().unwrap()) && !page.contains("http"),
        "nothing outside the file"
    );
    assert!(page.contains("Nothing was measured on H200 SXM5"), "{page}");

    let taken = run(&folder, &["--text", text, "--on", "h200"]);
    assert_eq!(taken.status.code(), Some(2));
    assert!(said(&taken).contains("--resume goes on with it"), "{}", said(&taken));
    let again = json(&run(&folder, &["--text", text, "--on", "h200", "--resume"]));
    let reused: Vec<&str> =
        states(&again).into_iter().filter(|(_, state)| *state == "reused").map(|(name, _)| name).collect();
    assert_eq!(reused, ["recommend", "quantize", "measure_before", "measure_after", "evaluate"]);
    assert_eq!(
        (&again["before"], &again["after"], &again["verdict"]),
        (&told["before"], &told["after"], &told["verdict"])
    );
    let changed = run(&folder, &["--text", text, "--on", "h200", "--resume", "--phase", "prefill"]);
    assert_eq!(changed.status.code(), Some(2));
    assert!(said(&changed).contains("phase was decode, and is prefill now"), "{}", said(&changed));
    let anew = json(&run(&folder, &["--force"]));
    assert_eq!(states(&anew)[2], ("quantize", "done"));
    // Nothing is praised that was not measured.
    assert!(anew["verdict"]["word"].as_str().unwrap().contains("UNKNOWN") || anew["verdict"]["tone"] == "bad");
}

/// A step that fails tells what was done and how to go on; that goes on, and does nothing twice.
#[test]
fn a_failed_step_keeps_those_before() {
    let base = temporary("failed");
    let (folder, text) = (base.join("out"), text(&base));
    let text = text.to_str().unwrap();
    let good = fs::read(text).unwrap();
    fs::write(text, b"the cat \xff\xfe sat".repeat(40)).unwrap();
    let output = run(&folder, &["--text", text]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(states(&told)[5..], [("evaluate", "failed"), ("compare", "planned")]);
    assert_eq!((told["error"]["step"].as_str(), told["verdict"].is_null()), (Some("evaluate"), true));
    let go_on = told["error"]["go_on"].as_str().unwrap();
    assert!(go_on.starts_with("roofline pipeline ") && go_on.ends_with(" --resume"), "{go_on}");
    assert!(told["report"].is_null() && !folder.join("report.html").exists());
    // A text that nothing was done with may be another one.
    fs::write(text, good).unwrap();
    let again = json(&run(&folder, &["--text", text, "--resume"]));
    assert_eq!(
        states(&again)[2..6].iter().map(|(_, state)| *state).collect::<Vec<_>>(),
        ["reused", "reused", "reused", "done"]
    );
    assert_eq!(again["before"]["ttft_us"], told["before"]["ttft_us"]);
    // What was written and is gone is written again.
    fs::remove_dir_all(folder.join("checkpoint")).unwrap();
    let again = json(&run(&folder, &["--text", text, "--resume"]));
    assert_eq!((states(&again)[2].1, states(&again)[3].1, states(&again)[4].1), ("done", "reused", "done"));
}

/// What is wrong from the start is refused before anything is made.
#[test]
fn wrong_questions_leave_nothing_behind() {
    let base = temporary("wrong");
    let folder = base.join("out");
    let empty = base.join("empty.txt");
    fs::write(&empty, "").unwrap();
    let refused = |more: &[&str], code: i32, words: &str| {
        let output = run(&folder, more);
        assert!(output.status.code() == Some(code) && said(&output).contains(words), "{}", said(&output));
        assert!(!folder.exists());
    };
    refused(&["--text", empty.to_str().unwrap()], 2, "is empty");
    refused(&["--text", "/nowhere.txt"], 1, "/nowhere.txt");
    refused(&["--on", "h20O"], 2, "did you mean");
    refused(&["--resume"], 2, "nothing to go on with");
    refused(&["--threads", "0"], 2, "threads");
    let output = command(&["pipeline", "/nowhere", "--json"]).output().unwrap();
    assert!(output.status.code() == Some(2) && said(&output).contains("there is no /nowhere"), "{}", said(&output));
}
