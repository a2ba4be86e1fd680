//! `roofline jetson` on trees of files that were made after real boards: what a user sees, and that nothing is changed.
//!
//! After a change that is meant: `INSTA_UPDATE=always cargo nextest run -p roofline --test jetson`, then read the diff.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

use common::shown;

const TREES: [&str; 5] = ["orin-nano-8gb", "orin-nano-super", "orin-nx-16gb", "agx-orin-64gb", "thor"];

/// Runs `roofline`; `@NAME` stands for `--root` and the tree of that name.
fn roofline(arguments: &str) -> Output {
    run(arguments, None)
}

fn run(arguments: &str, path: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roofline"));
    for argument in arguments.split_whitespace() {
        match argument.strip_prefix('@') {
            Some(name) => command.args(["--root".to_owned(), tree(name).display().to_string()]),
            None => command.arg(argument),
        };
    }
    command.env("ROOFLINE_CONFIG_DIR", "/nonexistent").env_remove("COLUMNS").env_remove("CLICOLOR_FORCE");
    path.map(|path| command.env("PATH", path));
    command.output().unwrap()
}

fn tree(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../roofline-run/tests/jetson/synthetic-{name}"))
}

fn json(arguments: &str) -> serde_json::Value {
    let output = roofline(&format!("{arguments} --json"));
    assert!(output.status.success(), "{}", shown(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_tree() {
    for name in TREES {
        for (command, part) in [
            ("status", "status"),
            ("modes", "modes"),
            ("setup", "setup"),
            ("schedule --goal latency --model llama-3.2-1b", "latency"),
            ("schedule --goal throughput --model llama-3.2-1b", "throughput"),
            ("schedule --goal power --model llama-3.2-1b", "power"),
            ("validate --predict-only", "validate"),
            ("power-bench --predict-only", "power_bench"),
        ] {
            let output = roofline(&format!("jetson {command} @{name}"));
            insta::assert_snapshot!(format!("{}_{part}", name.replace('-', "_")), shown(&output));
        }
    }
}

#[test]
fn status_in_every_form() {
    let status = json("jetson status @orin-nano-8gb");
    insta::assert_snapshot!("status_json", serde_json::to_string_pretty(&status).unwrap());
    insta::assert_snapshot!("status_csv", shown(&roofline("jetson status @orin-nano-8gb --csv")));
    insta::assert_snapshot!("status_md", shown(&roofline("jetson status @orin-nano-8gb --md")));
}

/// One look at a folder that is no Jetson: an answer, not a failure.
#[test]
fn not_a_jetson() {
    let output = roofline("jetson status --root /nonexistent");
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("Not a Jetson\n"), "{}", shown(&output));
    let status = json("jetson status --root /nonexistent");
    assert_eq!((status["is_jetson"].as_bool(), status["errors"].as_array().unwrap().len()), (Some(false), 1));
    for command in ["modes", "schedule", "set-mode 15W", "validate --predict-only", "power-bench --predict-only"] {
        let output = roofline(&format!("jetson {command} --root /nonexistent"));
        assert_eq!(output.status.code(), Some(1), "{command}");
        assert!(shown(&output).contains("not a Jetson") && shown(&output).contains("hint: "), "{}", shown(&output));
    }
}

/// Seven watts on the board without Super: all of the bandwidth, a third of the compute; 0.65 is right for neither.
#[test]
fn bandwidth_and_compute_scale_apart() {
    let modes = json("jetson modes @orin-nano-8gb");
    let low = &modes["modes"][1];
    assert_eq!((low["name"].as_str(), low["sm"].as_u64(), low["tpcs"].as_u64()), (Some("7W"), Some(4), Some(2)));
    assert!((low["bandwidth_scale"].as_f64().unwrap() - 1.0).abs() < 1e-3);
    assert!((low["compute_scale"].as_f64().unwrap() - 0.3264).abs() < 1e-3);
    assert_eq!(low["circulating_factor"].as_f64(), Some(0.65));
    for name in TREES {
        for mode in json(&format!("jetson modes @{name}"))["modes"].as_array().unwrap() {
            assert_eq!(mode["registry_agrees"].as_bool(), Some(true), "{name} {}", mode["name"]);
        }
    }
}

/// The ratio of two modes is the slower one's time over the faster one's, never below 1.
#[test]
fn ratios_are_the_right_way_round() {
    let bench = json("jetson power-bench --predict-only @orin-nx-16gb");
    let ratios = bench["ratios"].as_array().unwrap();
    assert!(!ratios.is_empty());
    for ratio in ratios {
        assert_eq!(ratio["faster"], "25W");
        assert!(ratio["time_ratio"].as_f64().unwrap() >= 0.999, "{ratio}");
    }
    let ten = ratios.iter().find(|ratio| ratio["slower"] == "10W" && ratio["precision"] == "fp16").unwrap();
    // 102.4 GB/s over 68.256 GB/s.
    assert!((ten["time_ratio"].as_f64().unwrap() - 1.5002).abs() < 1e-3, "{ten}");
}

/// Mode 1 is 7 W on one image and 25 W on another: a name finds the right id on both, and an id is no name.
#[test]
fn modes_are_found_by_name() {
    let id = |tree: &str, name: &str| json(&format!("jetson set-mode {name} @{tree}"))["power_mode_id"].as_u64();
    assert_eq!((id("orin-nano-8gb", "7W"), id("orin-nano-super", "25W")), (Some(1), Some(1)));
    assert_eq!((id("agx-orin-64gb", "50w"), id("orin-nano-super", "maxn-super")), (Some(3), Some(2)));
    insta::assert_snapshot!("set_mode", shown(&roofline("jetson set-mode 15W --clocks @orin-nano-8gb")));
    insta::assert_snapshot!("set_mode_raises", shown(&roofline("jetson set-mode MAXN_SUPER @orin-nano-super")));
    insta::assert_snapshot!("set_mode_unknown", shown(&roofline("jetson set-mode 1 @orin-nano-super")));
    assert_eq!(roofline("jetson set-mode 7W @orin-nano-super").status.code(), Some(2), "its table has no such mode");
}

/// Nothing is run without `--apply`, and nothing at all of a copied tree: tools on the path leave no trace.
#[cfg(unix)]
#[test]
fn nothing_is_run() {
    use std::os::unix::fs::PermissionsExt;
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("jetson-tools");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let trace = folder.join("trace");
    for tool in ["nvpmodel", "jetson_clocks", "sudo"] {
        let place = folder.join(tool);
        fs::write(&place, format!("#!/bin/sh\necho {tool} >> '{}'\n", trace.display())).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:/usr/bin:/bin", folder.display());
    for command in ["set-mode 15W --clocks", "status", "setup", "modes", "schedule", "power-bench", "validate"] {
        run(&format!("jetson {command} @orin-nano-8gb"), Some(&path));
        assert!(!trace.exists(), "{command} ran {}", fs::read_to_string(&trace).unwrap());
    }
    let output = run("jetson set-mode 15W --apply @orin-nano-8gb", Some(&path));
    assert_eq!(output.status.code(), Some(2), "{}", shown(&output));
    assert!(shown(&output).contains("cannot be changed") && !trace.exists());
    let output = run("jetson schedule --apply @orin-nano-8gb", Some(&path));
    assert_eq!(output.status.code(), Some(2), "{}", shown(&output));
    assert!(shown(&output).contains("cannot be changed") && !trace.exists());
}

#[test]
fn what_cannot_be_measured_is_said() {
    for command in ["validate", "power-bench"] {
        let output = roofline(&format!("jetson {command} @orin-nano-8gb"));
        assert_eq!(output.status.code(), Some(1), "{}", shown(&output));
        assert!(output.stdout.is_empty() && shown(&output).contains("--predict-only"), "{}", shown(&output));
    }
    let output = roofline("jetson validate --on jetson_orin_nano");
    assert_eq!(output.status.code(), Some(2), "{}", shown(&output));
}

/// Other tools read these columns.
#[test]
fn the_columns_of_validate() {
    let output = roofline("jetson validate --predict-only --on jetson_orin_nano@7W --csv");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("config,N,K,dtype,predicted_us,measured_us,error_pct,tflops,bw_gb_s"));
    let first: Vec<&str> = lines.next().unwrap().split(',').collect();
    assert_eq!(first[..4], ["Small", "2048", "2048", "fp16"]);
    assert_eq!((lines.count(), first[5]), (3, ""));
}

#[test]
fn a_board_of_the_registry_needs_no_files() {
    let modes = json("jetson modes --on jetson_thor");
    assert_eq!((modes["device"].as_str(), modes["source"].as_str()), (Some("jetson_thor_t5000"), Some("registry")));
    for (arguments, code) in [
        ("jetson modes --on h200", 2),
        ("jetson modes --on jetson_orin_nano@90W", 2),
        ("jetson schedule --on jetson_orin_nano --model llama-3.1-70b", 2),
        ("jetson schedule --on jetson_orin_nano --memory-limit 1MB --model llama-3.2-1b", 2),
        ("jetson schedule --on jetson_orin_nano --goal speed", 2),
        ("jetson", 2),
        ("jetson modes --on jetson_orin_nano --root /tmp", 2),
    ] {
        let output = roofline(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments}: {}", shown(&output));
    }
}

/// The choice follows the numbers: seven watts are enough for what memory bounds, and cost less energy.
#[test]
fn schedules_follow_the_numbers() {
    let of = |goal: &str| json(&format!("jetson schedule --goal {goal} --on jetson_orin_nano"));
    let power = of("power");
    assert_eq!((power["power_mode_name"].as_str(), power["batch_size"].as_u64()), (Some("7W"), Some(1)));
    let latency = of("latency");
    assert_eq!(latency["power_mode_name"].as_str(), Some("15W"), "the same time, more compute");
    for name in ["power_mode_id", "power_mode_name", "precision", "method", "batch_size", "target", "reason"] {
        assert!(!latency[name].is_null(), "{name}");
    }
    assert!(latency["reason"].as_str().unwrap().contains("7W predicts the same"), "{}", latency["reason"]);
    assert!(of("throughput")["batch_size"].as_u64().unwrap() > 1);
    // The most that any precision is predicted to do, and that is INT8: at 7 W its units do twice what those of 16 bit do.
    let throughput = of("throughput");
    for row in throughput["candidates"].as_array().unwrap() {
        let mode = row["power_mode_name"].as_str().unwrap();
        assert_eq!(row["precision"], "int8", "{row}");
        let on = format!("jetson_orin_nano@{mode}");
        for (batch, precision) in [(64, "int8"), (512, "int8"), (4096, "nf4"), (4096, "fp16")] {
            let question = format!("predict gemm --m {batch} --n 4096 --k 4096 --on {on} -p {precision}");
            let rate = f64::from(batch) / json(&question)["estimates"][0]["predicted_time_us"].as_f64().unwrap() * 1e6;
            // Within a hundredth the smaller batch is taken.
            assert!(row["tokens_per_s"].as_f64().unwrap() * 1.011 >= rate, "{mode} {precision} {batch}: {row}");
        }
    }
    // Where one row of operands is all that fits, no batch is looked at.
    let tight = json("jetson schedule --goal throughput --on jetson_orin_nano --memory-limit 17MB");
    assert!(tight["candidates"].as_array().unwrap().iter().all(|row| row["memory_bytes"].as_f64().unwrap() < 17e6));
    assert!(tight["batch_size"].as_u64() < throughput["batch_size"].as_u64(), "{tight}");
    // A decision is a command, and it is not run.
    assert_eq!(latency["apply"]["command"], "roofline jetson set-mode 15W --apply");
    assert_eq!(latency["apply"]["applied"], false);
    assert_eq!(roofline("jetson schedule --on jetson_orin_nano --apply").status.code(), Some(2));
    // A smaller limit leaves narrower numbers or nothing.
    let tight = json("jetson schedule --on jetson_orin_nano --memory-limit 2GB --model llama-3.2-1b");
    assert!(tight["candidates"].as_array().unwrap().iter().all(|row| row["memory_bytes"].as_f64().unwrap() <= 2e9));
}
