//! Models that run, as a user meets them: text as it comes, and what is said beside it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{io::Write, process::Stdio};

use common::{answer, command, roofline, said, temporary};
use serde_json::Value;

/// A Llama of 131 tokens with a tokenizer, and a Qwen without.
const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../roofline-engine/tests/data/llama");
const QWEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../roofline-engine/tests/data/qwen2");

/// Its configuration alone.
const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../roofline-engine/tests/data/llama/config.json");

/// The text is standard output, what is said of it is not, and JSON is the answer alone.
#[test]
fn text_is_data_and_speed_is_talk() {
    let asked = ["generate", LLAMA, "--prompt", "the cat", "--max-tokens", "9", "--ignore-end"];
    let output = roofline(&asked);
    assert!(output.status.success(), "{}", said(&output));
    let talk = said(&output);
    assert!(
        talk.starts_with("note: 6 tokens in, 9 out (as many as asked for); ") && talk.contains(" tokens/s"),
        "{talk}"
    );
    let told = answer(&roofline(&[&asked[..], &["--json"]].concat()));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{}\n", told["text"].as_str().unwrap()));
    assert_eq!(told["tokens"].as_array().unwrap().len(), 9);
    for field in ["load_s", "ttft_us", "tpot_us", "tpot_p95_us", "tokens_per_s", "peak_memory_bytes", "weights_bytes"] {
        assert!(told[field].as_f64().unwrap() > 0.0, "{field}: {told}");
    }
    // Numbers stand for words where there is no tokenizer.
    let output = roofline(&["generate", QWEN, "--tokens", "1,2,3", "-n", "3", "--ignore-end"]);
    let numbers = String::from_utf8(output.stdout).unwrap();
    assert_eq!(numbers.split_whitespace().filter_map(|id| id.parse::<u32>().ok()).count(), 3, "{numbers}");
}

#[test]
fn a_prompt_comes_from_standard_input_too() {
    let fed = |bytes: &[u8]| {
        let mut command = command(&["generate", LLAMA, "--prompt-file", "-", "--max-tokens", "3", "--json"]);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        child.stdin.take().unwrap().write_all(bytes).unwrap();
        child.wait_with_output().unwrap()
    };
    assert_eq!(answer(&fed(b"the cat"))["prompt_tokens"], 6);
    let output = fed(b"the c\xe4t");
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("standard input is no UTF-8 text: byte 5 is 0xe4"), "{}", said(&output));
}

#[test]
fn what_is_wrong_is_named_with_what_to_do() {
    for (arguments, wanted) in [
        (&["generate", QWEN, "--prompt", "hi"][..], "there is no tokenizer.json"),
        (&["generate", LLAMA], "there is no prompt"),
        (&["generate", LLAMA, "--prompt", "x", "--temperature", "-1"], "the temperature is -1, and must be"),
        (&["generate", LLAMA, "--prompt", "x", "--context", "500"], "500 tokens do not fit the 128"),
        (&["generate", LLAMA, "--prompt", "x", "--kv", "int4"], "[possible values: bf16, fp16, fp32, fp8, int8]"),
        (&["generate", LLAMA, "--tokens", "1,x"], "invalid value 'x'"),
        (&["generate", LLAMA, "--prompt", "x", "--backend", "null"], "[possible values: cpu, cuda]"),
    ] {
        let output = roofline(arguments);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(wanted) && output.stdout.is_empty(), "{}", said(&output));
    }
}

/// The first Ctrl-C ends the text where it is: what came is there, the summary too, and the exit code is a shell's for it.
#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_was_said() {
    use std::io::Read;

    // Slow enough to be met while it speaks: every thread of a hundred waits for the others on a machine of few cores.
    let asked = ["generate", LLAMA, "--prompt", "the cat", "--max-tokens", "120", "--ignore-end", "--threads", "100"];
    let mut command = command(&asked);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut first).unwrap();
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    let talk = said(&output);
    assert_eq!(output.status.code(), Some(130), "{talk}");
    assert!(rest.ends_with(b"\n") && talk.contains(" out (stopped); "), "{talk}");
}

/// Passes on the real processor: both tables, every operator, rows for spreadsheets; and a comparison of the same steps.
#[test]
fn whole_models_are_measured_and_compared() {
    let home = temporary("passes");
    let run = |arguments: &[&str]| {
        let output = command(arguments).env("ROOFLINE_CONFIG_DIR", &home).current_dir(&home).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let asked = ["measure", "model", LLAMA, "--prompt", "8,24", "--generate", "3", "--quick"];
    let with = |more: &str| run(&[&asked[..], &[more]].concat());
    let told: Value = serde_json::from_str(&with("--json")).unwrap();
    let passes = told["passes"].as_array().unwrap();
    assert_eq!(passes.iter().map(|pass| pass["prompt"].as_u64().unwrap()).collect::<Vec<_>>(), [8, 24]);
    for field in ["ttft_us", "predicted_ttft_us", "ideal_ttft_us", "tpot_us", "predicted_tpot_us", "peak_memory_bytes"]
    {
        assert!(passes[0][field].as_f64().unwrap() > 0.0, "{field}: {}", passes[0]);
    }
    let operators = passes[0]["operators"].as_array().unwrap();
    assert!(operators.iter().any(|one| one["site"] == "attention" && one["phase"] == "decode" && one["count"] == 3));
    let text = with("--md");
    for column in ["first ms", "token ms", "tokens/s", "memory of", "operator", "measured us", "ratio"] {
        assert!(text.contains(column), "{column}: {text}");
    }
    // A heading and two rows.
    assert_eq!(with("--csv").lines().count(), 3);
    let random =
        ["measure", "model", CONFIG, "--random", "--precision", "bf16,w8a16", "--prompt", "8", "--quick", "--json"];
    let told: Value = serde_json::from_str(&run(&random)).unwrap();
    let plans: Vec<&str> =
        told["passes"].as_array().unwrap().iter().filter_map(|pass| pass["precision"].as_str()).collect();
    assert_eq!(plans, ["bf16", "w8a16"]);
}

/// Where there is no GPU, every verb that runs models says so in the same words, exits with 1 and leaves nothing behind.
#[test]
fn a_gpu_that_is_missing_is_said_by_every_verb() {
    let home = temporary("gpu");
    for arguments in [
        &["generate", LLAMA, "--prompt", "the cat"][..],
        &["measure", "model", LLAMA, "--quick", "--out", "passes.jsonl"],
        &["compare", "model", LLAMA, "--quick"],
        &["evaluate", "demo", "--tokens", "512"],
        &["pipeline", LLAMA, "--plan", "w8a16", "--quick", "--to", "out"],
    ] {
        let mut command = command(&[arguments, &["--backend", "cuda"]].concat());
        let output = command.env("ROOFLINE_CONFIG_DIR", &home).current_dir(&home).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", said(&output));
        let talk = said(&output);
        assert!(talk.contains("NVIDIA driver") || talk.contains("there is no GPU 0"), "{arguments:?}: {talk}");
        assert!(talk.contains("hint: ") && output.stdout.is_empty(), "{arguments:?}: {talk}");
    }
    assert!(!home.join("passes.jsonl").exists() && !home.join("out").exists());
}

#[test]
fn what_only_whole_models_heed_is_refused_elsewhere() {
    for (arguments, wanted) in [
        (&["measure", "gemv", "--n", "64", "--k", "64", "--random"][..], "--random is of whole models"),
        (&["measure", "model", "llama-3.2-1b", "--prompt", "8"], "--prompt is of models that run"),
        (&["measure", "model", LLAMA, "--context", "8"], "--context is of single kernels"),
        (&["compare", "model", LLAMA, "--phase", "decode"], "--phase is of single kernels"),
    ] {
        let home = temporary("refused");
        let output = command(arguments).env("ROOFLINE_CONFIG_DIR", &home).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(wanted), "{}", said(&output));
    }
}
