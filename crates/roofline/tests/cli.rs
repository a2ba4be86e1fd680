//! The program as a user meets it: arguments in; exit code, standard output and standard error out.
//!
//! After a change that is meant: `INSTA_UPDATE=always cargo test -p roofline --test cli`, then read the diff.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use common::shown;

/// Runs `roofline` with a configuration folder that does not exist, no colour and no terminal width.
fn roofline(arguments: &str) -> Output {
    run(Path::new("/nonexistent"), arguments, &[])
}

fn run(config: &Path, arguments: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roofline"));
    command
        .args(arguments.split_whitespace())
        .env_remove("COLUMNS")
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR_FORCE");
    command.env("ROOFLINE_CONFIG_DIR", config).envs(environment.iter().copied());
    command.output().unwrap()
}

fn json(arguments: &str) -> serde_json::Value {
    let output = roofline(arguments);
    assert!(output.status.success(), "{}", shown(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn temporary(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// An installed program looks at itself: everything is right, the GPU is looked at or said to be missing.
#[test]
fn the_program_checks_itself() {
    let output = run(Path::new("/nonexistent"), "check --json", &[("ROOFLINE_ISA", "portable")]);
    assert!(output.status.success(), "{}", shown(&output));
    let checked: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = checked["checks"].as_array().unwrap();
    assert_eq!(checked["failed"], 0);
    let count = |part: &str| checks.iter().filter(|check| check["part"] == part).count();
    assert!(count("numbers") > 50 && count("data") == 4 && count("kernels") >= 4 && count("faces") == 6, "{checked}");
    for check in checks {
        let absent = check["name"] == "on the GPU" && check["status"] == "skipped";
        assert!(check["status"] == "ok" || absent, "{check}");
    }
}

/// Instructions that no processor has are said before anything runs, to people and to programs.
#[test]
fn instructions_that_are_not_there_are_refused() {
    let environment = [("ROOFLINE_ISA", "avx9")];
    let output = run(Path::new("/nonexistent"), "devices h200", &environment);
    let said = shown(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("error: ROOFLINE_ISA is `avx9`; this processor can be held to portable"), "{said}");
    assert!(!said.contains("panicked") && output.stdout.is_empty(), "{said}");
    let output = run(Path::new("/nonexistent"), "devices h200 --json", &environment);
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((output.status.code(), &error["error"]["kind"]), (Some(2), &"usage".into()));
    // An empty one is none, and help needs no instructions.
    assert!(run(Path::new("/nonexistent"), "devices h200", &[("ROOFLINE_ISA", "")]).status.success());
    assert!(run(Path::new("/nonexistent"), "--help", &environment).status.success());
}

macro_rules! snapshots {
    ($($name:ident: $arguments:expr;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(stringify!($name), shown(&roofline($arguments)));
        })*
    };
}

snapshots! {

    gemv: "predict gemv --n 4096 --k 4096 --on h200";
    gemv_custom_json: "predict gemv --n 4096 --k 4096 --bandwidth 60GB/s --peak fp16=2.7TFLOP/s,int8=5.5TFLOP/s \
        --precision fp16,int8 --sizes nominal --json";
    gemv_csv: "predict gemv --n 4096 --k 4096 --on h200 --precision bf16,w4a16 --csv";
    gemv_modified: "predict gemv --n 4096 --k 4096 --on h200 --bandwidth 4.59TB/s --precision bf16";
    gemm_markdown: "predict gemm --m 512 --n 14336 --k 4096 --on h200,a100 --precision bf16,fp8,w4a16 --md";
    gemm_power_modes: "predict gemm --m 512 --n 4096 --k 4096 --on jetson_orin_nano,jetson_orin_nano@7W";
    gemm_accumulator: "predict gemm --m 64 --n 4096 --k 4096 --on h200 --precision int8 --output accumulator --csv";
    attention_decode: "predict attention --heads 32 --kv-heads 8 --head-dim 128 --context 8192 --on h200";
    attention_unfused: "predict attention --heads 32 --head-dim 128 --queries 2048 --context 2048 --on a100 \
        --precision fp16 --unfused";
    ffn: "predict ffn --hidden 4096 --ffn 14336 --tokens 1 --on h200,gb10 --precision bf16,w4a16";
    models: "models";
    models_detail: "models deepseek-v3 gemma-3-27b phi-2";
    model: "predict model llama-3-8b --on h200 --precision bf16,w4a16";
    model_kernels: "predict model llama-3-8b --on h200 --precision bf16 --context 2048 --generate 200";
    model_eager: "predict model llama-3-8b --on h200 --precision bf16 --context 2048 --phase decode --unfused";
    model_json: "predict model tinyllama-1.1b --on t4 --precision w4a16 --phase decode --context 512 --json";
    model_parallel: "predict model llama-3.1-70b --on h200 --tp 1,2,8 --phase decode --precision bf16";
    model_experts: "predict model mixtral-8x7b --on h200,l4 --phase decode --precision bf16,w4a16 --batch 4";
    sweep: "sweep llama-3-8b --on h200 --precision bf16,w4a16 --phase decode --batch 1..8 --context 1024,4096";
    sweep_csv: "sweep llama-3-8b --on h200 --precision bf16 --phase decode --scale-bandwidth 1,2 --scale-compute 1,2 --csv";
    sweep_json: "sweep smollm2-135m --on t4,a100 --precision fp8,fp16 --phase prefill --context 512..1536+512 --json";
    analyze: "analyze --model mistral-7b --on t4 --precision fp16 --prompt 512 --generate 100 --measured 12.4s --ttft 0.9s";
    analyze_above: "analyze --model mistral-7b --on t4 --precision fp16 --prompt 512 --generate 100 --measured 1s";
    plot_roofline: "plot roofline llama-3-8b --on h200 --precision bf16,w4a16";
    plot_batch: "plot batch llama-3-8b --on h200 --precision bf16,w4a16 --batch 1..64";
    plot_context: "plot context gemma-3-27b --on h200 --precision bf16 --context 1024..16384";
    plot_shares: "plot shares llama-3-8b mixtral-8x7b --on h200 --precision bf16";
    error_plot_devices: "plot roofline llama-3-8b --on h200,a100";
    error_plot_range: "plot roofline llama-3-8b --on h200 --batch 1..8";
    error_plot_file: "plot roofline llama-3-8b --on h200 --out picture.gif";
    gemv_gguf: "predict gemv --n 4096 --k 4096 --on h200 --tier ideal -p int4-g128/bf16,Q4_K/bf16,q8-0/bf16";
    tiling: "tiling --m 4096 --n 4096 --k 4096 --on h200";
    tiling_gemv: "tiling --m 1 --n 4096 --k 4096 --on h200";
    tiling_few_rows: "tiling --m 16 --n 64 --k 8192 --on gb10";
    formats: "formats";
    formats_detail: "formats nvfp4 int4-g64-zp fp6";
    formats_gguf: "formats Q4_K q6-k --shape 1x300";
    formats_shape: "formats int8 --shape 1x7";
    precisions: "precisions";
    precisions_on: "precisions --on t4";
    devices_filtered: "devices --vendor nvidia --has fp4 --min-memory 90GB --sort bandwidth";
    devices_detail: "devices jetson_orin_nano";
    devices_jetson_nano: "devices jetson_nano";
    gemv_jetson_nano: "predict gemv --n 4096 --k 4096 --on jetson_nano,jetson_nano@5W --precision fp16,w4a16";
    error_jetson_nano_int8: "predict gemv --n 4096 --k 4096 --on jetson_nano --precision int8";
    model_pasted: "models TheBloke/Mistral-7B-Instruct-v0.2-GGUF";
    error_model_pasted: "predict model Qwen/Qwen2.5-7B-VL --on h200";
    devices_compare: "devices h200 b200 mi300x";

    gemm_missing_baseline: "predict gemm --m 8 --n 4096 --k 4096 --on h200,a100 --precision fp8,bf16";
    gemm_missing_csv: "predict gemm --m 8 --n 4096 --k 4096 --on h200,a100 --precision fp8 --csv";
    ffn_mixed: "predict ffn --hidden 256 --ffn 14336 --tokens 4096 --on h200 --precision bf16,int8 --unfused";
    devices_mode: "devices jetson_orin_nano@7W";
    devices_none: "devices --has fp4 --vendor apple";
    error_block_scales: "predict gemm --m 8 --n 4096 --k 4096 --on h200 --precision mxfp8";
    error_vendor: "devices --vendor nvida";
    error_fp4: "formats fp4";
    error_output: "predict gemv --n 1 --k 1 --on h200 --output fp99";
    error_peak_twice: "predict gemv --n 1 --k 1 --bandwidth 1GB/s --peak fp16=1TFLOP/s,fp16=2TFLOP/s";
    error_usage_json: "predict gemv --n 0 --k 1 --on h200 --json";
    error_filter_and_name: "devices h200 --vendor amd";
    error_device: "predict gemv --n 1 --k 1 --on h20O";
    error_device_json: "predict gemv --n 1 --k 1 --on h20O --json";
    error_no_device: "predict gemv --n 1 --k 1";
    error_no_bandwidth: "predict gemv --n 1 --k 1 --peak fp16=1TFLOP/s";
    error_precision: "predict gemv --n 1 --k 1 --on h200 --precision w4a61";
    error_format: "formats int4-g12O";
    error_missing_peak: "predict gemv --n 1 --k 1 --on a100 --precision fp8";
    error_no_unit: "predict gemv --n 1 --k 1 --on a100 --precision int8/nf4";
    error_zero: "predict gemv --n 0 --k 1 --on h200";
    error_negative: "predict gemv --n -5 --k 1 --on h200";
    error_overflow: "predict gemv --n 99999999999999999999999999 --k 1 --on h200";
    error_unit: "predict gemv --n 1 --k 1 --bandwidth 60 --peak fp16=1TFLOP/s";
    error_bits: "predict gemv --n 1 --k 1 --bandwidth 60Gb/s --peak fp16=1TFLOP/s";
    error_rate: "predict gemv --n 1 --k 1 --bandwidth 0GB/s --peak fp16=1TFLOP/s";
    error_power_mode: "predict gemv --n 1 --k 1 --on jetson_orin_nano@70W";
    error_heads: "predict attention --heads 32 --kv-heads 5 --head-dim 128 --context 10 --on h200";
    error_context: "predict attention --heads 32 --head-dim 128 --queries 20 --context 10 --on h200";
    error_file: "predict gemv --n 1 --k 1 --on nowhere.toml";
    error_man: "man predict-gemw";
    error_model: "predict model lama-3-8b --on h200";
    error_model_file: "predict model ./nowhere/config.json --on h200";
    error_model_tp: "predict model llama-3-8b --on h200 --tp 3";
    error_model_link: "predict model llama-3-8b --on apple_m4_max --tp 2";
    error_generate: "predict model llama-3-8b --on h200 -p bf16 --generate 1000000000";
    error_range: "sweep llama-3-8b --on h200 --batch 8..1";
    error_analyze: "analyze --model mistral-7b --on t4 --prompt 512 --generate 100 --measured 1s --ttft 2s";
    error_tiling: "tiling --m 128 --n 32 --k 4096 --on h200";
}

/// The values that circulate for a 60 GB/s board: 559.51 us for FP16, 279.83 us for INT8.
#[test]
fn the_golden_gemv() {
    let answer = json(
        "predict gemv --n 4096 --k 4096 --bandwidth 60GB/s --peak fp16=2.7TFLOP/s,int8=5.5TFLOP/s \
         --precision fp16,int8 --sizes nominal --json",
    );
    let near = |row: usize, field: &str, expected: f64| {
        let value = answer["estimates"][row][field].as_f64().unwrap();
        assert!((value - expected).abs() < 0.005, "{field} is {value}");
    };
    for (row, precision, time, ai, ridge) in [(0, "fp16", 559.51, 0.9995, 45.0), (1, "int8", 279.83, 1.9985, 91.67)] {
        assert_eq!(answer["estimates"][row]["precision"], precision);
        assert_eq!(answer["estimates"][row]["bottleneck"], "memory");
        assert_eq!(answer["estimates"][row]["tier"], "ideal");
        near(row, "predicted_time_us", time);
        near(row, "ideal_time_us", time);
        near(row, "ai", ai);
        near(row, "critical_ai", ridge);
    }
}

/// The template is a device as it stands: registered, and used as a file.
#[test]
fn a_template_is_a_device() {
    let folder = temporary("template");
    let file = folder.join("my-chip.toml");
    let output = roofline("devices template");
    assert!(output.status.success() && output.stderr.is_empty());
    fs::write(&file, &output.stdout).unwrap();
    let on = |name: &str| json(&format!("predict gemv --n 4096 --k 4096 --on {name} --precision bf16 --json"));
    let estimate = on(file.to_str().unwrap())["estimates"][0].clone();
    // 4096 x 4096 weights and two vectors of 4096 in BF16 at 1.2 TB/s.
    let time = estimate["ideal_time_us"].as_f64().unwrap();
    assert!((time - (4096.0 * 4096.0 + 8192.0) * 2.0 / 1.2e6).abs() < 1e-6, "{time}");
    let added = run(&folder, &format!("devices add mine --from {}", file.display()), &[]);
    assert!(added.status.success(), "{}", shown(&added));
    let there = run(&folder, "devices mine --json", &[]);
    let device: serde_json::Value = serde_json::from_slice(&there.stdout).unwrap();
    assert_eq!(device["devices"][0]["memory"]["bandwidth_range"]["low"].as_f64(), Some(1.1e12));
    assert_eq!(json("devices template --json")["devices"][0]["name"], "My chip");
}

/// A folder with the name that was pasted comes first; a known name with an organisation needs none.
#[test]
fn a_pasted_name_is_a_path_where_there_is_one() {
    let folder = temporary("pasted");
    let inside = |arguments: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roofline"));
        let command = command.args(arguments.split_whitespace()).current_dir(&folder);
        let output = command.env("ROOFLINE_CONFIG_DIR", "/nonexistent").output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap_or_else(|_| panic!("{}", shown(&output)))
    };
    let name = "meta-llama/Llama-3.1-8B-Instruct";
    assert_eq!(inside(&format!("models {name} --json"))["models"][0]["key"], "llama-3.1-8b");
    let checkpoint = folder.join(name);
    fs::create_dir_all(&checkpoint).unwrap();
    let config = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 256}"#;
    fs::write(checkpoint.join("config.json"), config).unwrap();
    let own = inside(&format!("models {name} --json"))["models"][0].clone();
    assert_eq!((&own["key"], &own["hidden"]), (&"llama-3.1-8b-instruct".into(), &64.into()));
}

/// Every value of an 8-bit element, and in words the codes that are none.
#[test]
fn codebooks_of_eight_bits() {
    let formats = json("formats fp8 e5m2 int8 --json");
    let row = |at: usize| &formats["formats"][at];
    for (at, count, largest, special) in [(0, 253, 448.0, 2), (1, 247, 57344.0, 8), (2, 256, 127.0, 0)] {
        let book: Vec<f64> =
            row(at)["codebook"].as_array().unwrap().iter().filter_map(serde_json::Value::as_f64).collect();
        assert_eq!((book.len(), book.last()), (count, Some(&largest)), "{}", row(at)["name"]);
        assert!(book.is_sorted_by(|one, other| one < other));
        assert_eq!(row(at)["special_codes"].as_array().unwrap().len(), special);
    }
    assert_eq!(row(0)["special_codes"][0], serde_json::json!({ "code": 127, "means": "NaN" }));
    assert_eq!(row(1)["special_codes"][4], serde_json::json!({ "code": 252, "means": "-infinity" }));
}

/// A checkpoint's folder, its file, and a file that is none.
#[test]
fn a_model_by_path() {
    let folder = temporary("my-model");
    let path = folder.join("config.json");
    let text = r#"{"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "tie_word_embeddings": true, "max_position_embeddings": 40960, "dtype": "bfloat16"}"#;
    fs::write(&path, text).unwrap();
    let own = json(&format!("predict model {} --on h200 --precision bf16 --json", folder.display()));
    let known = json("predict model qwen3-0.6b --on h200 --precision bf16 --json");
    assert_eq!(own["model"], "my-model");
    assert_eq!(own["parameters"], known["parameters"]);
    assert_eq!(own["estimates"], known["estimates"]);
    assert_eq!(own, json(&format!("predict model {} --on h200 --precision bf16 --json", path.display())));
    fs::write(&path, text.replace("qwen3", "mamba2")).unwrap();
    let output = roofline(&format!("predict model {} --on h200", folder.display()));
    insta::assert_snapshot!("model_unknown", shown(&output));
    fs::write(&path, "{\"model_type\": \"llama\", \"hidden_size\": 1e999}").unwrap();
    let output = roofline(&format!("predict model {} --on h200", folder.display()));
    insta::assert_snapshot!("model_broken", shown(&output));
}

/// Llama-3 8B on an H200, decoding at 4096: 3.24 ms in BF16, 1.08 ms in W4A16.
#[test]
fn the_golden_model() {
    let answer = json(
        "predict model llama-3-8b --on h200 --precision bf16,w4a16 --phase decode --context 4096 --tier ideal --json",
    );
    let row = |at: usize, field: &str| answer["estimates"][at][field].as_f64().unwrap();
    assert!((3200.0..3300.0).contains(&row(0, "predicted_time_us")) && row(1, "predicted_time_us") < 1150.0);
    assert!((row(0, "weight_bytes") / 16.06e9 - 1.0).abs() < 1e-3 && row(0, "kv_bytes") == 536_870_912.0);
    assert_eq!((&answer["model"], &answer["device"]), (&"llama-3-8b".into(), &"h200_sxm".into()));
    assert_eq!(answer["estimates"][0]["fits"], true);
}

#[test]
fn pictures_are_written_once() {
    let folder = temporary("pictures");
    let draw = |name: &str, extra: &str| {
        let path = folder.join(name);
        roofline(&format!("plot roofline llama-3-8b --on h200 --precision bf16 --out {} {extra}", path.display()))
    };
    assert!(draw("a.svg", "").status.success() && draw("a.png", "--theme dark --scale 1").status.success());
    let svg = fs::read_to_string(folder.join("a.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("Llama 3 8B on H200") && svg.contains("@font-face"));
    assert!(fs::read(folder.join("a.png")).unwrap().starts_with(b"\x89PNG\r\n"));
    let again = draw("a.svg", "--theme dark");
    insta::assert_snapshot!("plot_again", shown(&again).replace(folder.to_str().unwrap(), "FOLDER"));
    assert_eq!(fs::read_to_string(folder.join("a.svg")).unwrap(), svg);
    assert!(draw("a.svg", "--theme dark --force").status.success());
    assert_ne!(fs::read_to_string(folder.join("a.svg")).unwrap(), svg);
    // Measured points are laid over; a bad file is refused before anything is written.
    let points = folder.join("points.csv");
    fs::write(&points, "label,precision,ai,tflops\nmy kernel,bf16,300,610\n").unwrap();
    assert!(draw("b.svg", &format!("--measured {}", points.display())).status.success());
    assert!(fs::read_to_string(folder.join("b.svg")).unwrap().contains("my kernel"));
    fs::write(&points, "label,ai,tflops\nmy kernel,0,610\n").unwrap();
    let refused = draw("c.svg", &format!("--measured {}", points.display()));
    assert_eq!(refused.status.code(), Some(2));
    assert!(!folder.join("c.svg").exists());
    let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

/// Every option changes the numbers, not only their labels.
#[test]
fn options_do_something() {
    let time = |arguments: &str| {
        let row = &json(arguments)["estimates"][0];
        (row["predicted_time_us"].clone(), row["bytes"].clone(), row["flops"].clone())
    };
    let base = "predict gemm --m 8 --n 4096 --k 4096 --on h200 --precision int8 --json";
    let changes =
        ["--sizes nominal", "--output fp32", "--output activations", "--output accumulator", "--bandwidth 1TB/s"];
    for change in changes.into_iter().chain(["--peak int8=1TOP/s"]) {
        assert_ne!(time(base), time(&format!("{base} {change}")), "{change}");
    }
    let base =
        "predict attention --heads 32 --head-dim 128 --queries 64 --context 4096 --on h200 --precision bf16 --json";
    for change in ["--kv-heads 8", "--no-causal", "--unfused", "--batch 2"] {
        assert_ne!(time(base), time(&format!("{base} {change}")), "{change}");
    }
    let base = "predict ffn --hidden 4096 --ffn 14336 --on h200 --precision bf16 --json";
    for change in ["--tokens 5", "--no-gate", "--unfused", "--output fp32"] {
        assert_ne!(time(base), time(&format!("{base} {change}")), "{change}");
    }
    let base = "predict model llama-3-8b --on h200 --precision bf16 --phase prefill --context 512 --json";
    let applied = |change: &str| match change.split_once(' ') {
        Some((flag, value)) if base.contains(flag) => base.replace(&format!("{flag} 512"), &format!("{flag} {value}")),
        _ => format!("{base} {change}"),
    };
    for change in ["--batch 2", "--context 1024", "--tp 2", "--unfused", "--all-logits"] {
        assert_ne!(time(base), time(&applied(change)), "{change}");
    }
    let base = "devices --json";
    let filters = ["--vendor amd", "--kind soc", "--arch hopper", "--has fp4", "--min-memory 90GB", "--mine"];
    for change in filters.into_iter().chain(["--sort fp8", "--reverse"]) {
        assert_ne!(json(base), json(&format!("{base} {change}")), "{change}");
    }
}

#[test]
fn a_narrow_terminal_keeps_what_matters() {
    let output = run(Path::new("/nonexistent"), "predict gemv --n 4096 --k 4096 --on h200", &[("COLUMNS", "60")]);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 62), "{text}");
    insta::assert_snapshot!("narrow", shown(&output));
}

#[test]
fn a_comparison_continues_below() {
    let output = run(Path::new("/nonexistent"), "devices h200 b200 mi300x", &[("COLUMNS", "90")]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 90), "{text}");
    assert!(text.contains("mi300x"));
}

#[test]
fn colour_follows_the_conventions() {
    let arguments = "predict gemv --n 4096 --k 4096 --on h200";
    let escapes = |environment: &[(&str, &str)], extra: &str| {
        let output = run(Path::new("/nonexistent"), &format!("{arguments} {extra}"), environment);
        output.stdout.contains(&0x1b)
    };
    assert!(!escapes(&[], ""), "not a terminal");
    assert!(escapes(&[("CLICOLOR_FORCE", "1")], ""));
    assert!(escapes(&[], "--color always"));
    assert!(!escapes(&[("CLICOLOR_FORCE", "1")], "--color never"));
    assert!(!escapes(&[("NO_COLOR", "1")], ""));
}

#[test]
fn devices_of_ones_own() {
    let config = temporary("own-devices");
    let own = |arguments: &str| run(&config, arguments, &[]);
    let text = |output: &Output| shown(output).replace(config.to_str().unwrap(), "CONFIG");

    let add = own("devices add My-Chip --bandwidth 1.2TB/s --peak bf16=300TFLOP/s,fp8=600TFLOP/s --memory 64GB");
    insta::assert_snapshot!("own_add", text(&add));
    let file = fs::read_to_string(config.join("devices/my_chip.toml")).unwrap();
    insta::assert_snapshot!("own_file", file);
    assert_eq!(fs::read_dir(config.join("devices")).unwrap().count(), 1, "nothing half-written is left");
    insta::assert_snapshot!("own_predict", text(&own("predict gemv --n 4096 --k 4096 --on my-chip")));
    insta::assert_snapshot!("own_list", text(&own("devices --mine")));
    // Neither replaced nor hidden without being told to.
    insta::assert_snapshot!("own_again", text(&own("devices add my_chip --bandwidth 1TB/s --peak bf16=1TFLOP/s")));
    assert_eq!(fs::read_to_string(config.join("devices/my_chip.toml")).unwrap(), file);
    insta::assert_snapshot!("own_builtin", text(&own("devices add h200 --bandwidth 1TB/s --peak bf16=1TFLOP/s")));
    assert!(own("devices add h200 --bandwidth 1TB/s --peak bf16=1TFLOP/s --force").status.success());
    insta::assert_snapshot!("own_hiding", text(&own("predict gemv --n 4096 --k 4096 --on h200 --precision bf16")));
    // A broken file is said and left out; the rest goes on.
    fs::write(config.join("devices/broken.toml"), "name = 1").unwrap();
    insta::assert_snapshot!("own_broken", text(&own("devices --mine")));
    // Names that could not be found again, and files that are none.
    for name in ["this", "foo.toml", "..", "日本", "a/b", "_x"] {
        let output = own(&format!("devices add {name} --bandwidth 1TB/s --peak bf16=1TFLOP/s"));
        assert!(output.status.code() == Some(2) && text(&output).contains("cannot be called"), "{}", text(&output));
    }
    let output = own("devices add zero --from /dev/zero");
    assert!(text(&output).contains("not a regular file"), "{}", text(&output));
    // A file that answers to a built-in name is refused, whatever it is called.
    let file = config.join("disguise.toml");
    fs::write(&file, "name = 'NVIDIA H200'\n[memory]\nbandwidth = '1 GB/s'\n[peaks]\n").unwrap();
    insta::assert_snapshot!("own_disguise", text(&own(&format!("devices add mine --from {}", file.display()))));
    fs::copy(&file, config.join("devices/Disguise.toml")).unwrap();
    let output = own("devices remove disguise");
    assert!(output.status.success(), "{}", text(&output));
    insta::assert_snapshot!("own_remove", text(&own("devices remove My-Chip")));
    insta::assert_snapshot!("own_removed", text(&own("devices remove My-Chip")));
}

#[test]
fn a_device_file_by_path() {
    let folder = temporary("device-file");
    let path = folder.join("Edge-Board.toml");
    fs::write(&path, "name = 'Edge board'\n[memory]\nbandwidth = '60 GB/s'\n[peaks]\nfp16 = '2.7 TFLOP/s'\n").unwrap();
    let answer = json(&format!("predict gemv --n 4096 --k 4096 --on {} --precision fp16 --json", path.display()));
    assert_eq!(answer["estimates"][0]["device"], "edge_board");
    fs::write(&path, "name = 'Edge board'\n[memory]\nbandwidth = '60 GB/s'\n[peaks]\nfp16 = '2.7 TB/s'\n").unwrap();
    let output = roofline(&format!("predict gemv --n 4096 --k 4096 --on {}", path.display()));
    insta::assert_snapshot!("file_error", shown(&output).replace(folder.to_str().unwrap(), "FOLDER"));
}

#[test]
fn completions_and_manual_pages_are_made() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let output = roofline(&format!("completions {shell}"));
        assert!(output.status.success() && output.stdout.len() > 1000, "{shell}");
    }
    let page = String::from_utf8(roofline("man predict-gemv").stdout).unwrap();
    assert!(page.contains(".TH") && page.contains("\\-\\-bandwidth"), "{page}");
    assert!(String::from_utf8(roofline("man").stdout).unwrap().contains("roofline"));
}

/// A reader that has seen enough is no failure.
#[test]
fn a_closed_pipe_is_quiet() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_roofline"));
    program.args(["devices", "--json"]).env("ROOFLINE_CONFIG_DIR", "/nonexistent");
    let mut program = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // More than a pipe holds, and nobody reads it.
    drop(program.stdout.take());
    let output = program.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", shown(&output));
}
