//! `roofline monitor` as a user meets it, with a GPU or, as on most machines that test this, without.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Command, Output};

fn roofline(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_roofline"))
        .args(arguments.split_whitespace())
        .env("ROOFLINE_CONFIG_DIR", "/nonexistent")
        .env_remove("COLUMNS")
        .env_remove("CLICOLOR_FORCE")
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_gpu_or_what_is_missing() {
    let output = roofline("monitor --once --json");
    if output.status.success() {
        let look: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(look["device_name"].is_string() && look["mem_total_mb"].is_number(), "{look}");
        let ticks = roofline("monitor --json --interval 0.05 --seconds 0.2");
        let lines = String::from_utf8(ticks.stdout).unwrap();
        assert!(lines.lines().count() >= 2, "{lines}");
        assert!(lines.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{lines}");
        assert!(said(&roofline("monitor --once --gpu 4000000000")).contains("by --gpu"));
        return;
    }
    eprintln!("NOT TESTED with a GPU: there is none here");
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let error: serde_json::Value = serde_json::from_str(&said(&output)).unwrap();
    assert_eq!(error["error"]["kind"], "no_driver");
    for arguments in ["monitor", "monitor --once", "monitor --seconds 1 --csv"] {
        let output = roofline(arguments);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments}");
        assert!(output.stdout.is_empty() && said.starts_with("error: no NVIDIA driver answers here: "), "{said}");
        assert!(said.contains("\nhint: ") && said.contains("nvidia-smi"), "{said}");
        assert!(!cfg!(target_os = "linux") || said.contains("libnvidia-ml.so.1"), "{said}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_a_gpu_is_looked_for() {
    for (arguments, reason) in [
        ("monitor --md", "no Markdown form"),
        ("monitor --once --seconds 3", "cannot be used with"),
        ("monitor --interval 0", "between 0.01 and 3600 seconds"),
        ("monitor --gpu first", "invalid value"),
    ] {
        let output = roofline(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(said(&output).contains(reason), "{}", said(&output));
    }
}
