//! Traces under the roof: one of a processor that torch.profiler wrote, one of a GPU by hand, and files that are not.

use std::io::Cursor;

use serde_json::{Value, json};

use super::*;
use crate::request::answers_fit;

fn asked(bytes: &[u8], on: Option<&str>) -> Result<Answer> {
    let source = Source::new(Cursor::new(bytes.to_vec()), 1 << 20).unwrap();
    analyse(&Context::pure(), "trace".to_owned(), source, on)
}

fn refusal(bytes: &[u8]) -> String {
    asked(bytes, Some("h200")).err().expect("it is refused").to_string()
}

fn row<'a>(answer: &'a Answer, name: &str) -> &'a TracedOperator {
    answer.operators.iter().find(|row| row.operator == name).unwrap()
}

/// A block of a transformer of width 64 over 2 x 32 tokens, recorded by torch 2.10.
#[test]
fn a_processor_by_its_operators() {
    let bytes = include_bytes!("fixtures/processor.json");
    let answer = asked(bytes, Some("h200")).unwrap();
    answers_fit(&answer);
    assert_eq!(answer.source, Profiler::Processor);
    assert!(answer.occupations.is_empty());
    assert_eq!((answer.unattributed.kernels, answer.unattributed.time_us.to_bits()), (0, 0));
    let shares: f64 = answer.operators.iter().map(|row| row.share).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    // Three products with a bias and one without; `linear` around them has no work of its own.
    let (addmm, mm, linear) = (row(&answer, "aten::addmm"), row(&answer, "aten::mm"), row(&answer, "aten::linear"));
    assert_eq!((addmm.calls, addmm.shapes.len(), mm.calls, linear.calls), (3, 3, 1, 4));
    assert_eq!((mm.shapes[0].shape.as_str(), mm.shapes[0].precision.as_str()), ("aten::mm 64 x 64 x 64", "fp32"));
    assert!(linear.shapes.is_empty() && linear.of_roof.is_none());
    // 2 * 64^3 operations in what the product took itself.
    let rate = 2.0 * 64f64.powi(3) / (mm.known_time_us * 1e-6) / 1e12;
    assert!((mm.tflops.unwrap() - rate).abs() < 1e-12, "{:?} is not {rate}", mm.tflops);
    // GELU reads and writes 2 x 32 x 256 numbers of four bytes.
    let gelu = row(&answer, "aten::gelu");
    let bytes = gelu.gb_s.unwrap() * 1e9 * gelu.known_time_us * 1e-6;
    assert!((bytes - 2.0 * 4.0 * 2.0 * 32.0 * 256.0).abs() < 1.0, "{bytes}");
    let attention = row(&answer, "aten::_scaled_dot_product_flash_attention_for_cpu");
    assert_eq!((attention.shapes.len(), attention.bound.is_some()), (1, true));
    assert!(row(&answer, "aten::scaled_dot_product_attention").shapes.is_empty());
    assert!(!answer.first.is_empty());
    assert_eq!(answer.observations.len(), answer.operators.iter().map(|row| row.shapes.len()).sum::<usize>());
}

/// A layer of 4096 x 4096 over one row and causal attention, in BF16 on an H200, recorded by torch 2.11: cuBLASLt splits
/// the product into two kernels, and cuDNN clears memory for its attention. All of it belongs to an operator.
#[test]
fn a_gpu_that_was_recorded() {
    let answer = asked(include_bytes!("fixtures/gpu.json"), None).unwrap();
    assert_eq!((answer.source, answer.unattributed.kernels), (Profiler::Torch, 0));
    let (addmm, attention) = (row(&answer, "aten::addmm"), row(&answer, "aten::_cudnn_attention_forward"));
    assert_eq!((addmm.calls, addmm.kernels, addmm.bound), (1, 2, Some(Bound::Memory)));
    assert!(addmm.kernel_names[0].starts_with("nvjet_sm90_tst"), "{:?}", addmm.kernel_names);
    // 33.6 MB in the time of both kernels.
    let bytes = addmm.gb_s.unwrap() * 1e3 * addmm.time_us;
    assert!((bytes - 33.57e6).abs() < 0.01e6, "{bytes}");
    assert_eq!((attention.calls, attention.kernels, attention.shapes[0].precision.as_str()), (1, 4, "bf16"));
    assert_eq!(answer.operators.len(), 2);
    assert!(answer.occupations[0].idle_share > 0.9);
    assert!(answer.first[0].starts_with("GPU 0 waits"), "{:?}", answer.first);
}

fn event(cat: &str, name: &str, ts: f64, dur: f64, args: &Value) -> Value {
    json!({ "ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args })
}

/// A product of 4096 x 4096 in BF16, a copy within an operator without a shape, a kernel that nobody started, and one that
/// only its number leads from.
fn gpu_trace() -> Value {
    let shapes = json!({
        "External id": 7,
        "Input Dims": [[4096, 4096], [4096, 4096]],
        "Input type": ["c10::BFloat16", "c10::BFloat16"],
        "Concrete Inputs": ["", ""],
    });
    json!({
        "deviceProperties": [{ "id": 0, "name": "NVIDIA H200" }],
        "traceEvents": [
            { "ph": "M", "name": "process_name", "pid": 1, "args": { "name": "python" } },
            event("cpu_op", "aten::matmul", 0.0, 60.0, &json!({ "External id": 6 })),
            event("cpu_op", "aten::mm", 10.0, 40.0, &shapes),
            event("cuda_runtime", "cudaLaunchKernel", 20.0, 5.0, &json!({ "correlation": 100 })),
            event("cpu_op", "aten::copy_", 70.0, 10.0, &json!({ "External id": 8 })),
            event("cpu_op", "aten::mm", 90.0, 5.0, &shapes.as_object().map(|shapes| {
                let mut shapes = shapes.clone();
                shapes["External id"] = json!(9);
                Value::Object(shapes)
            }).unwrap()),
            event("kernel", "nvjet_tst_256x128", 100.0, 200.0, &json!({ "correlation": 100, "device": 0 })),
            event("gpu_memcpy", "Memcpy DtoD", 400.0, 10.0, &json!({ "External id": 8, "device": 0 })),
            event("kernel", "nvjet_tst_256x128", 410.0, 300.0, &json!({ "External id": 9, "device": 0 })),
            event("kernel", "lonely_kernel(float*)", 710.0, 90.0, &json!({ "correlation": 5, "device": 0 })),
        ],
    })
}

/// 2 * 4096^3 operations are 137.4 GFLOP: 139 us on 989.5 TFLOP/s.
#[test]
fn a_gpu_by_its_kernels() {
    let answer = asked(gpu_trace().to_string().as_bytes(), None).unwrap();
    answers_fit(&answer);
    assert_eq!((answer.source, answer.device.as_str(), answer.time_us), (Profiler::Torch, "h200_sxm", 600.0));
    let mm = row(&answer, "aten::mm");
    assert_eq!((mm.calls, mm.kernels, mm.time_us), (2, 2, 500.0));
    assert_eq!((mm.bound, mm.shapes[0].median_us, mm.shapes[0].calls), (Some(Bound::Compute), 250.0, 2));
    let of_roof = mm.of_roof.unwrap();
    assert!((of_roof - 2.0 * 138.9 / 500.0).abs() < 0.005, "{of_roof}");
    assert_eq!(mm.kernel_names, ["nvjet_tst_256x128"]);
    let copy = row(&answer, "aten::copy_");
    assert_eq!((copy.calls, copy.of_roof, copy.attributed), (1, None, true));
    assert_eq!((answer.unattributed.kernels, answer.unattributed.time_us), (1, 90.0));
    assert_eq!(answer.unattributed.names, ["lonely_kernel(float*)"]);
    let gpu = &answer.occupations[0];
    assert_eq!((gpu.span_us, gpu.busy_us, gpu.idle_us, gpu.gaps, gpu.longest_gap_us), (700.0, 600.0, 100.0, 1, 100.0));
    // The product loses 222 us, the gap 100.
    assert!(answer.first[0].contains("`aten::mm` takes 83 % of the time at 56 % of its roof"), "{}", answer.first[0]);
    assert!(answer.first[1].contains("GPU 0 waits for 0.100 of 0.700 ms"), "{}", answer.first[1]);
}

/// What one graph starts at once is nobody's.
#[test]
fn kernels_of_a_recorded_graph_keep_their_names() {
    let mut trace = gpu_trace();
    trace["traceEvents"][3]["name"] = json!("cudaGraphLaunch");
    let answer = asked(trace.to_string().as_bytes(), None).unwrap();
    assert_eq!((answer.unattributed.kernels, answer.unattributed.time_us), (2, 290.0));
}

#[test]
fn fp32_on_tensor_cores_is_tf32() {
    let mut trace = gpu_trace();
    trace["traceEvents"][2]["args"]["Input type"] = json!(["float", "float"]);
    trace["traceEvents"][6]["name"] = json!("cutlass_80_tensorop_s1688gemm_128x128");
    let answer = asked(trace.to_string().as_bytes(), None).unwrap();
    let precisions: Vec<&str> = row(&answer, "aten::mm").shapes.iter().map(|shape| shape.precision.as_str()).collect();
    assert_eq!(precisions, ["bf16", "tf32"]);
}

#[test]
fn a_trace_without_shapes_has_times_and_says_what_is_missing() {
    let text = json!([event("cpu_op", "aten::mm", 0.0, 5.0, &json!({}))]).to_string();
    let answer = asked(text.as_bytes(), Some("h200")).unwrap();
    assert_eq!((answer.operators[0].share, answer.known_share), (1.0, 0.0));
    assert!(answer.first[0].contains("record_shapes=True"), "{:?}", answer.first);
    let nobody = asked(text.as_bytes(), None).err().unwrap().to_string();
    assert!(nobody.contains("nobody said which device"), "{nobody}");
}

#[test]
fn counters_of_nsight_compute() {
    let table = "\"ID\",\"Kernel Name\",\"gpu__time_duration.sum\",\"dram__bytes.sum\"\n\"\",\"\",\"us\",\"Mbyte\"\n\
        \"0\",\"copy\",\"100\",\"460\"\n\"1\",\"gemm\",\"300\",\"30\"\n";
    let answer = asked(table.as_bytes(), Some("h200")).unwrap();
    answers_fit(&answer);
    let copy = row(&answer, "copy");
    // 4.6 of 4.8 TB/s.
    assert!((copy.of_bandwidth.unwrap() - 4600.0 / 4800.0).abs() < 0.01, "{:?}", copy.of_bandwidth);
    assert!((copy.share - 0.25).abs() < 1e-9, "{}", copy.share);
    assert_eq!((answer.source, copy.attributed), (Profiler::Ncu, false));
    assert!(answer.first[0].contains("`gemm` takes 75 % of the time"), "{:?}", answer.first);
}

#[test]
fn files_that_are_wrong_are_named_with_what_is() {
    let whole = gpu_trace().to_string();
    let one = |field: &str, value: Value| {
        let mut event = event("kernel", "k", 1.0, 2.0, &json!({}));
        event[field] = value;
        json!({ "traceEvents": [event] }).to_string()
    };
    let long = format!("{{\"traceEvents\":[{{\"name\":\"{}\"}}]}}", "x".repeat((1 << 20) - 100));
    for (text, why) in [
        ("", "it is empty"),
        (&whole[..whole.len() / 2], "it ends in the middle"),
        ("{}", "no list `traceEvents`"),
        ("{\"traceEvents\": 5}", "a list of events"),
        ("[]", "no operator and no kernel"),
        ("[5]", "expected an event"),
        (&one("dur", json!(-3.0)), "event 1: `k` has a `dur` of -3"),
        (&one("dur", json!("x")), "expected f64"),
        (&one("dur", Value::Null), "`k` has no `dur`"),
        (&one("ts", json!(1e300)), "`k` has a `ts` of"),
        (&one("name", Value::Null), "an event of `kernel` has no `name`"),
        (&one("args", json!(7)), "expected the `args` of an event"),
        ("{\"traceEvents\":[{\"dur\":1e999}]}", "number out of range"),
        (&"[".repeat(100_000), "invalid type: sequence"),
        (&format!("[{{\"args\":{{\"device\":{}", "[".repeat(100_000)), "recursion limit"),
        ("{\"traceEvents\":[]} x", "trailing characters"),
        (&long, "no operator and no kernel"),
    ] {
        let said = refusal(text.as_bytes());
        assert!(said.contains(why), "{said} should say {why}");
    }
}

/// An event as long as the file is not taken into memory.
#[test]
fn an_event_has_a_longest_length() {
    let long = format!("[{{\"name\":\"{}\"}}]", "x".repeat((1 << 20) + 10));
    let source = Source::new(Cursor::new(long.into_bytes()), 4 << 20).unwrap();
    let said = analyse(&Context::pure(), "trace".to_owned(), source, Some("h200")).err().unwrap().to_string();
    assert!(said.contains("an event is longer than 1024 KiB"), "{said}");
}
