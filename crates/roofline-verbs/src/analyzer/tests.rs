use serde_json::{Value, json};

use super::*;
use crate::request::{answers_fit, from_json};

fn ask(body: Value) -> Value {
    try_ask(body).unwrap()
}

fn try_ask(body: Value) -> Result<Value> {
    let answer = analyzer(&Context::pure(), &from_json(body)?)?;
    answers_fit(&answer);
    Ok(serde_json::to_value(answer).unwrap())
}

fn pass(phase: &str, tokens: u64) -> Value {
    ask(json!({ "subject": "pass", "model": "mistral-7b", "on": "t4", "phase": phase, "seq_len": tokens }))
}

fn near(found: &Value, expected: f64, tolerance: f64) {
    let found = found.as_f64().unwrap();
    assert!((found / expected - 1.0).abs() <= tolerance, "{found} is not {expected}");
}

/// 2 operations per weight and token, 4 S^2 H per layer for attention; 14,482,931,712 bytes of weights (the table of token
/// vectors among them) and four hidden vectors per layer and token.
#[test]
fn intensities_of_a_prompt() {
    for (tokens, oi) in [(128, 125.12), (256, 249.12), (512, 493.91), (1024, 971.41), (2048, 1883.49)] {
        near(&pass("prefill", tokens)["operational_intensity"], oi, 5e-5);
    }
}

#[test]
fn intensities_of_a_token() {
    for (tokens, oi) in [(128, 0.985), (256, 0.989), (512, 0.996), (1024, 1.010), (2048, 1.037)] {
        near(&pass("decode", tokens)["operational_intensity"], oi, 6e-4);
    }
}

#[test]
fn operations_by_component() {
    let answer = pass("prefill", 512);
    let flops = &answer["flops_by_component"];
    assert_eq!(flops["q_proj"], 2_u64 * 512 * 4096 * 4096 * 32);
    assert_eq!(flops["k_proj"], 2_u64 * 512 * 4096 * 1024 * 32);
    assert_eq!(flops["v_proj"], flops["k_proj"]);
    assert_eq!(flops["o_proj"], flops["q_proj"]);
    assert_eq!(flops["attn_scores"], 2_u64 * 512 * 512 * 4096 * 32);
    assert_eq!(flops["attn_output"], flops["attn_scores"]);
    for name in ["mlp_gate", "mlp_up", "mlp_down"] {
        assert_eq!(flops[name], 2_u64 * 512 * 4096 * 14336 * 32, "{name}");
    }
    assert_eq!(flops["lm_head"], 2_u64 * 512 * 4096 * 32000);
    let names = flops.as_object().unwrap().iter().filter(|(name, _)| *name != "total");
    assert_eq!(names.map(|(_, value)| value.as_u64().unwrap()).sum::<u64>(), flops["total"].as_u64().unwrap());
    assert_eq!(answer["flops"], flops["total"]);
    let token = pass("decode", 512);
    assert_eq!(token["flops_by_component"]["attn_scores"], 2_u64 * 512 * 4096 * 32);
    assert_eq!(token["flops_by_component"]["lm_head"], 2_u64 * 4096 * 32000);
}

#[test]
fn bytes_by_purpose() {
    let memory = |phase| pass(phase, 512)["memory"].clone();
    let (prompt, token) = (memory("prefill"), memory("decode"));
    assert_eq!(prompt["weights"], 14_482_931_712_u64);
    assert_eq!(token["weights"], prompt["weights"]);
    assert_eq!((prompt["kv_cache"].as_u64(), token["kv_cache"].as_u64()), (Some(0), Some(2 * 512 * 1024 * 2 * 32)));
    assert_eq!(prompt["activations"], 4_u64 * 512 * 4096 * 2 * 32);
    assert_eq!(token["activations"], 4_u64 * 4096 * 2 * 32);
    let body = json!({ "subject": "pass", "model": "mistral-7b", "on": "t4", "phase": "decode", "seq_len": 512, "dtype_bytes": 1 });
    assert_eq!(ask(body)["memory"]["total"].as_u64().unwrap() * 2, token["total"].as_u64().unwrap());
}

/// A causal prompt whose last token alone has logits takes fewer operations, and moves more bytes than hidden vectors.
#[test]
fn kernels_stand_beside() {
    let answer = pass("prefill", 512);
    let kernels = &answer["kernels"];
    assert!(kernels["flops"].as_f64() < answer["flops"].as_f64());
    assert!(kernels["ideal_time_ms"].as_f64() <= kernels["expected_time_ms"].as_f64());
    assert!(answer["notes"][0]["text"].as_str().unwrap().contains("table of token vectors"));
}

#[test]
fn bounds() {
    let (prompt, token) = (pass("prefill", 512), pass("decode", 512));
    assert_eq!((&prompt["bottleneck"], &token["bottleneck"]), (&json!("compute-bound"), &json!("memory-bound")));
    assert_eq!((&prompt["theoretical_tflops"], &prompt["efficiency_ceiling"]), (&json!(65.0), &json!(100.0)));
    near(&token["theoretical_tflops"], 0.99575 * 0.32, 1e-4);
    near(&token["efficiency_ceiling"], 100.0 * 0.99575 / 203.125, 1e-4);
    assert_eq!(token["is_memory_bound"], true);
}

/// Dense peak over bandwidth. 990 TFLOP/s and 296 FLOP/B are often printed for an H100, whose data sheet says 989.4.
#[test]
fn ridges() {
    let devices = [
        ("t4", 203.1),
        ("v100", 138.9),
        ("a100_40gb", 200.6),
        ("a100_80gb", 153.0),
        ("h100", 295.3),
        ("l4", 403.3),
        ("rtx_4090", 163.9),
    ];
    for (device, ridge) in devices {
        near(&ask(json!({ "subject": "sheet", "on": device }))["device"]["ridge_point"], ridge, 4e-4);
    }
}

#[test]
fn roofs() {
    let roof = |oi: f64, dtype: &str| ask(json!({ "subject": "roof", "on": "t4", "oi": oi, "dtype": dtype }));
    assert_eq!(roof(100.0, "fp16")["theoretical_tflops"], 32.0);
    assert_eq!(roof(100.0, "fp32")["is_memory_bound"], false);
    near(&roof(100.0, "fp32")["theoretical_tflops"], 8.1, 1e-12);
    assert_eq!(roof(400.0, "int8")["is_memory_bound"], true);
    assert!(try_ask(json!({ "subject": "roof", "on": "v100", "oi": 1, "dtype": "int8" })).is_err());
    assert!(try_ask(json!({ "subject": "roof", "on": "t4", "oi": -1 })).is_err());
}

/// Every pass reads the weights, so a run of 42 tokens and 32 more has 2.2 FLOP/B, not the 72.6 of all operations over one
/// pass.
#[test]
fn a_run() {
    let body = json!({ "subject": "run", "model": "mistral-7b", "on": "t4", "prompt_len": 42, "gen_tokens": 32, "measured_time": 4.0 });
    let answer = ask(body);
    near(&answer["operational_intensity"], 2.24, 3e-3);
    assert_eq!(answer["bottleneck"], "memory-bound");
    assert_eq!(answer["tokens_per_sec"], 8.0);
    let (mfu, tflops) = (answer["mfu"].as_f64().unwrap(), answer["measured_tflops"].as_f64().unwrap());
    assert!((mfu - tflops / 65.0).abs() < 1e-12 && (0.3..0.4).contains(&answer["mbu"].as_f64().unwrap()));
    assert!((0.3..0.4).contains(&answer["efficiency"].as_f64().unwrap()));
    let none = json!({ "subject": "run", "on": "t4", "prompt_len": 42, "gen_tokens": 1, "measured_time": 0.0 });
    assert!(try_ask(none).is_err());
    let fast = json!({ "subject": "run", "on": "t4", "prompt_len": 42, "gen_tokens": 32, "measured_time": 0.1 });
    assert!(ask(fast)["notes"].to_string().contains("faster than its roof"));
}

#[test]
fn a_table_and_what_follows() {
    let answer = ask(json!({ "subject": "table", "model": "mistral-7b", "on": "t4", "versus": "a100_40gb" }));
    assert_eq!(answer["rows"].as_array().unwrap().len(), 10);
    assert_eq!(answer["compute_bound_from"], 209);
    let text = answer["text"].as_str().unwrap();
    assert!(text.contains("prefill       512     7.42 T       15.02      493.9  Compute"), "{text}");
    assert!(text.contains("decode        512    14.49 G       14.55      0.996  Memory"), "{text}");
    let bounds: Vec<&str> =
        answer["findings"].as_array().unwrap().iter().map(|row| row["bottleneck"].as_str().unwrap()).collect();
    assert_eq!(bounds, ["Memory", "Compute", "Memory"]);
    // 1555 / 320, not the 4.7 that a rounded 1.5 TB/s gives.
    assert!(answer["insights"].to_string().contains("4.86x"), "{}", answer["insights"]);
    let titles: Vec<&str> =
        answer["recommendations"].as_array().unwrap().iter().map(|advice| advice["title"].as_str().unwrap()).collect();
    assert_eq!(titles.len(), 6, "{titles:?}");
}

#[test]
fn batches_reuse_weights() {
    let answer = ask(json!({ "subject": "batches", "on": "t4", "batch_sizes": [1, 4], "seq_len": 128 }));
    let rows = answer["rows"].as_array().unwrap();
    let scaling = rows[1]["scaling"].as_f64().unwrap();
    assert!((3.9..4.0).contains(&scaling), "{scaling}");
    near(&rows[1]["efficiency"], 25.0 * scaling, 1e-12);
}

#[test]
fn own_devices_and_models() {
    let config = json!({ "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000 });
    let place = json!({ "model": config, "model_name": "Tiny", "device_name": "Mine", "bandwidth": "100GB/s",
        "peak": { "fp16": "10TFLOP/s" } });
    let with = |more: Value| {
        let mut body = place.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask(body)
    };
    let sheet = with(json!({ "subject": "sheet" }));
    assert_eq!((&sheet["device"]["ridge_point"], &sheet["device"]["name"]), (&json!(100.0), &json!("Mine")));
    assert_eq!((&sheet["model"]["num_kv_heads"], &sheet["model"]["head_dim"]), (&json!(4), &json!(64)));
    let table = with(json!({ "subject": "table" }));
    assert_eq!(table["recommendations"].as_array().unwrap().len(), 6);
    assert!(table["notes"].to_string().contains("no FP32 peak"));
    let chart = with(json!({ "subject": "chart", "measured_points": [{ "name": "a <b>", "oi": 50, "tflops": 2 }] }));
    assert_eq!(chart["title"], "Roofline Analysis: Tiny on Mine");
    assert_eq!((chart["practical_tflops"].as_f64(), chart["points"].as_array().unwrap().len()), (Some(7.0), 10));
    let svg = chart["svg"].as_str().unwrap();
    for text in ["Memory Bound", "Compute Bound", "practical roof (70 %)", "a &lt;b&gt;"] {
        assert!(svg.contains(text), "{text}");
    }
    roxmltree::Document::parse(svg).unwrap();
}

#[test]
fn charts_refuse_what_they_cannot_draw() {
    let chart = |more: Value| {
        let mut body = json!({ "subject": "chart", "on": "t4" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        try_ask(body)
    };
    assert!(chart(json!({ "figsize": [12] })).is_err());
    assert!(chart(json!({ "figsize": [0.0, 8] })).is_err());
    assert!(chart(json!({ "practical": 1.5 })).is_err());
    assert!(chart(json!({ "prefill_factor": 0 })).is_err());
    assert!(chart(json!({ "seq_lengths": [] })).is_err());
    assert!(chart(json!({ "save_path": "x.png" })).is_err(), "nothing is written for somebody elsewhere");
    // Points that have no place are left out.
    let points = json!([{ "oi": 0, "tflops": 1 }, { "oi": 1, "tflops": -1 }]);
    roxmltree::Document::parse(chart(json!({ "measured_points": points })).unwrap()["svg"].as_str().unwrap()).unwrap();
}

#[test]
fn benchmarks() {
    let runs = json!([
        { "prompt_len": 64, "gen_tokens": 32, "times": [2.0, 4.0] },
        { "prompt_len": 64, "gen_tokens": 32, "batch_size": 2, "times": [3.0], "memory": [1e9, 2e9, 3e9] },
        { "prompt_len": 64, "gen_tokens": 32, "batch_size": 4, "error": "out of memory" },
    ]);
    let answer = ask(json!({ "subject": "benchmark", "on": "t4", "runs": runs, "panels": true }));
    let rows = answer["rows"].as_array().unwrap();
    assert_eq!((&rows[0]["avg_time"], &rows[0]["tokens_per_sec"]), (&json!(3.0), &json!(32.0 / 3.0)));
    near(&rows[0]["std_time"], 2_f64.sqrt(), 1e-12);
    assert_eq!(
        (&rows[1]["scaling"], &rows[1]["efficiency"], &rows[1]["memory_peak_gb"]),
        (&json!(2.0), &json!(100.0), &json!(3.0))
    );
    assert_eq!((&rows[2]["tokens_per_sec"], &rows[2]["error"]), (&Value::Null, &json!("out of memory")));
    let total = rows[0]["prefill_flops"].as_u64().unwrap() + rows[0]["decode_flops"].as_u64().unwrap();
    assert_eq!(rows[0]["total_flops"], total);
    roxmltree::Document::parse(answer["svg"].as_str().unwrap()).unwrap();
}

/// Formats of as many bits, whatever else they are; FP8 and MXFP8 among them, which are often left out.
#[test]
fn torchao_has_two_formats() {
    let mapped = |name: &str| ask(json!({ "subject": "torchao", "precision": name }))["mapped"].clone();
    for name in ["INT4", "NF4", "NVFP4", "MXFP4", " int4 ", "w4a16"] {
        assert_eq!(mapped(name), "INT4", "{name}");
    }
    for name in ["INT8", "FP8_E4M3", "FP8_E5M2", "FP8", "MXFP8", "w8a16"] {
        assert_eq!(mapped(name), "INT8", "{name}");
    }
    for name in ["FP16", "BF16", "FP32", "INT2", "nonsense", ""] {
        assert_eq!(mapped(name), Value::Null, "{name}");
    }
}

/// Experts, latent attention and tied heads have their places, too.
#[test]
fn every_model_of_the_registry() {
    for model in roofline_core::Model::builtin() {
        let answer =
            ask(json!({ "subject": "pass", "model": model.key, "on": "h200", "phase": "decode", "seq_len": 1024 }));
        let flops = &answer["flops_by_component"];
        assert!(flops["mlp_down"].as_f64().unwrap() > 0.0 && flops["attn_scores"].as_f64().unwrap() > 0.0);
        assert!(answer["operational_intensity"].as_f64().unwrap() > 0.1, "{}", model.key);
    }
}

/// A PNG of 150 pixels to the inch, and nothing in the place of another file unless that is wanted.
#[test]
fn pictures_are_written() {
    let folder = std::env::temp_dir().join(format!("roofline-analyzer-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("roofline.png");
    let context =
        || Context::local(std::sync::Arc::new(crate::context::Home::none()), std::sync::Arc::new(crate::note::Nobody));
    let points =
        json!([{ "name": "My Model", "oi": 150, "tflops": 12 }, { "name": "decode", "oi": 1.1, "tflops": 0.2 }]);
    let chart = |force: bool| {
        let body = json!({ "subject": "chart", "on": "t4", "measured_points": points, "save_path": path, "force": force,
            "figsize": [3, 2] });
        analyzer(&context(), &from_json(body).unwrap())
    };
    assert!(chart(false).is_ok());
    let written = std::fs::read(&path).unwrap();
    // The first chunk of a PNG: width and height.
    let side = |at: usize| u32::from_be_bytes(written[at..at + 4].try_into().unwrap());
    assert_eq!((side(16), side(20)), (450, 300));
    assert!(chart(false).is_err() && chart(true).is_ok());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn speeds_are_over_the_baseline_or_nothing() {
    let runs = json!([{ "label": "FP16", "tokens": 10, "times": [2.0, 2.0] }, { "label": "INT4", "tokens": 10, "times": [1.0] }]);
    let rows = |baseline: &str| ask(json!({ "subject": "speed", "runs": runs, "baseline": baseline }))["rows"].clone();
    assert_eq!((&rows("FP16")[1]["speedup"], &rows("FP16")[0]["tokens_per_sec"]), (&json!(2.0), &json!(5.0)));
    assert_eq!(rows("FP32")[1]["speedup"], Value::Null);
    assert!(try_ask(json!({ "subject": "speed", "runs": [{ "label": "x", "tokens": 1, "times": [-1.0] }] })).is_err());
}

/// Decode on an Orin Nano waits for memory, so four bits are fastest; a device of 8 GB wants them for a prompt, too.
#[test]
fn a_format_for_a_product() {
    let advice = |hardware: &str, phase: &str, limit: Option<f64>| {
        ask(json!({ "subject": "quantization", "hardware": hardware, "phase": phase, "memory_limit_gb": limit }))
    };
    let edge = advice("jetson_orin_nano", "decode", Some(8.0));
    assert_eq!(
        (&edge["precision"], &edge["torchao"], &edge["memory_bound"]),
        (&json!("w4a16"), &json!("INT4"), &json!(true))
    );
    assert!(edge["predicted_speedup"].as_f64().unwrap() > 3.5);
    assert_eq!(advice("jetson_orin_nano", "prefill", Some(8.0))["torchao"], "INT4");
    let prompt = advice("jetson_orin_nano", "prefill", None);
    assert_eq!(prompt["memory_bound"], false);
    assert_ne!(prompt["torchao"], "INT4", "{prompt}");
    assert_eq!(advice("h100", "prefill", None)["precision"], "fp8", "{prompt}");
    assert!(try_ask(json!({ "subject": "quantization", "hardware": "h100", "memory_limit_gb": 0 })).is_err());
}
