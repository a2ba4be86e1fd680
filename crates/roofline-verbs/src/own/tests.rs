use roofline_core::{
    Registry,
    machine::Stack,
    measurement::{Check, Kernel as Code, Path as CodePath, Residency},
    units::Seconds,
};
use serde_json::json;

use super::*;
use crate::request::{answers_fit, from_elsewhere, from_json};

fn refused(body: serde_json::Value) -> String {
    let request: Request = from_json(body).unwrap();
    let error = prepare(&Context::pure(), &request).err().expect("refused");
    format!("{error}; {}", error.hint().unwrap_or_default())
}

fn machine_of(key: &str) -> Machine {
    Machine::new(Registry::builtin().find(key).unwrap().into_owned(), Stack::Roofline)
}

/// Takes `micros` for a product of 4096 x 4096 in BF16 on an H200, whose roof is 7 us.
fn took(micros: f64) -> Measurement {
    let machine = machine_of("h200");
    let graph = roofline_core::Graph::gemv(4096, 4096).unwrap();
    let subject = subject_of(&graph, &"bf16".parse().unwrap(), &machine.device).unwrap();
    let math = subject.formats.math;
    let kernel = Code { name: "mine".to_owned(), path: CodePath::Unknown, math };
    let check = Check::of(&[1.0], &[1.0], 1e-3).unwrap();
    let samples = vec![Seconds::from_micros(micros); 11];
    Measurement::new(subject, Residency::Cold, "cuda".to_owned(), kernel, check, samples).unwrap()
}

#[test]
fn a_kernel_stands_between_the_roof_and_ours() {
    let (machine, yours) = (machine_of("h200"), took(14.0));
    let own = OwnKernel::new(&yours, &Ok(took(10.0)), Timer::CudaGraph, &machine).unwrap();
    // 33.57 MB over 4.8 TB/s.
    assert!((own.figures.ideal_time_us - 6.995).abs() < 0.01, "{}", own.figures.ideal_time_us);
    assert!((own.of_roof - 0.4996).abs() < 1e-3 && own.bound == "memory");
    assert!((own.speedup_over_ours.unwrap() - 10.0 / 14.0).abs() < 1e-9);
    assert!(own.verdict.starts_with("14.0 us, 50 % of the memory roof (6.99 us ideal"), "{}", own.verdict);
    assert!(own.verdict.ends_with("ours is 1.40x as fast (10.0 us)"), "{}", own.verdict);
    let faster = OwnKernel::new(&took(8.0), &Ok(took(10.0)), Timer::CudaGraph, &machine).unwrap();
    assert!(faster.verdict.ends_with("1.25x as fast as ours (10.0 us)"), "{}", faster.verdict);
    let alone = OwnKernel::new(&took(3.0), &Err("no kernel".to_owned()), Timer::CudaEvents, &machine).unwrap();
    assert!(alone.verdict.contains("a cache served it") && alone.ours.is_none(), "{}", alone.verdict);
    assert_eq!(alone.ours_missing.as_deref(), Some("no kernel"));
    let told = answer(
        &Context::pure(),
        "words".to_owned(),
        &machine.device,
        BackendName::Cuda,
        &Protocol::default(),
        vec![shown(&yours, &machine.device)],
        vec![own, alone],
    );
    answers_fit(&told);
}

#[test]
fn a_function_is_one_operator_at_one_precision() {
    let gemv = |more: serde_json::Value| {
        let mut body = json!({ "subject": "gemv", "n": 64, "k": 64, "backend": "null" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    assert!(refused(json!({ "subject": "model", "model": "llama-3-8b" })).contains("gemv, gemm or attention"));
    assert!(refused(gemv(json!({ "energy": true }))).contains("not kept in a run"));
    assert!(refused(gemv(json!({ "precision": "fp32" }))).contains("null backend runs nothing"));
    assert!(refused(gemv(json!({ "bandwidth": "1TB/s" }))).contains("rates"));
    assert!(one_precision(&[]).to_string().contains("no precision"));
    let device = machine_of("h200").device;
    let ffn = roofline_core::graph::Ffn {
        tokens: roofline_core::Dim::ONE,
        hidden: roofline_core::Dim::ONE,
        inner: roofline_core::Dim::ONE,
        gated: true,
    };
    let several = subject_of(&roofline_core::Graph::ffn(ffn, true), &"bf16".parse().unwrap(), &device);
    assert!(several.unwrap_err().to_string().contains("kernels one after the other"));
}

#[test]
fn nobody_elsewhere_names_a_kernel() {
    let body = json!({ "subject": "kernel", "manifest": "gemv.toml" });
    let request: Request = from_json(body.clone()).unwrap();
    let error = from_elsewhere::<Request>(body).unwrap_err().to_string();
    assert!(error.contains("unknown subject `kernel`"), "{error}");
    let error = crate::measure::measure(&Context::pure(), &request).err().unwrap();
    assert!(matches!(error, Error::Path { what: "kernel", .. }), "{error}");
}

/// What is wrong with a manifest is said on a machine without a GPU, too; what is right needs one.
#[test]
fn a_manifest_is_looked_at_before_a_gpu_is() {
    let folder = std::env::temp_dir().join(format!("roofline-own-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    let manifest = "source = \"a.cu\"\nentry = \"a\"\nop = \"gemv\"\nprecision = \"bf16\"\nn = 64\nk = 64\nblock = 32\n\
                    grid = \"n\"\narguments = [\"x\", \"w\", \"y\", \"k\"]\n";
    write("good.toml", manifest);
    write("bad.toml", &manifest.replace("block = 32", "block = 4096"));
    write("twice.toml", &manifest.replace("\"bf16\"", "\"bf16,fp8\""));
    let home = std::sync::Arc::new(crate::context::Home::none());
    let context = Context::local(home, std::sync::Arc::new(crate::note::Nobody));
    let asked = |name: &str, more: serde_json::Value| {
        let mut body = json!({ "subject": "kernel", "manifest": folder.join(name) });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        crate::measure::measure(&context, &from_json::<Request>(body).unwrap()).err().expect("refused")
    };
    let error = asked("bad.toml", json!({}));
    assert!(error.is_input() && error.to_string().contains("`block` is 4096 in x"), "{error}");
    assert_eq!(asked("absent.toml", json!({})).kind(), "file");
    // Its program is not there.
    assert_eq!(asked("good.toml", json!({})).kind(), "file");
    write("a.cu", "extern \"C\" __global__ void a() {}");
    assert!(asked("twice.toml", json!({})).to_string().contains("more than one precision"));
    assert!(asked("good.toml", json!({ "backend": "cpu" })).to_string().contains("does not run on the cpu backend"));
    assert!(asked("good.toml", json!({ "out": "run.jsonl" })).is_input());
    if !roofline_run::cuda::present() {
        let error = asked("good.toml", json!({}));
        assert_eq!((error.kind(), error.is_input()), ("gpu", false));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
