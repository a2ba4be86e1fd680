//! Models quantized by what a text brings to their products, layer by layer.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../common/mod.rs"]
mod common;
mod demo;
mod experts;
mod gguf;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use common::{Fixture, model};
use roofline_core::Format;
use roofline_engine::{Engine, Layerwise, Settings, Wanted};
use roofline_quant::{
    Checkpoint, Error, Layout, Manner, Method, Request, Runtime,
    data::Tuning,
    observed::{Observed, Pass, Seen},
    quantize::{Report, quantize, quantize_observed},
    stream::Progress,
};

/// A place that is gone when the test ends.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("roofline-by-data-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Stops before a layer.
struct Until(AtomicUsize);

impl Progress for Until {
    fn advance(&self, _bytes: u64) {}

    fn starts(&self, at: usize, _count: usize) {
        self.0.fetch_min(if at == 1 { 0 } else { usize::MAX }, Ordering::Relaxed);
    }

    fn cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

fn order(method: Method, plan: &str, layout: Layout, target: &Path) -> Request {
    Request { method, threads: 2, verify: true, ..Request::new(plan.parse().unwrap(), layout, target.to_owned()) }
}

/// The tokens that models are observed and judged on.
fn samples(checkpoint: &Checkpoint) -> Vec<Vec<u32>> {
    let vocabulary = checkpoint.config["vocab_size"].as_u64().unwrap() as u32;
    let sample = |sample: u32| (0..24).map(|at| (at * at * 7 + at * 13 + sample * 29) % vocabulary).collect();
    (0..16).map(sample).collect()
}

fn made(checkpoint: &Checkpoint, order: &Request) -> Report {
    if !order.method.needs_data() {
        return quantize(checkpoint, order, &|_: u64| {}).unwrap();
    }
    let settings = Settings { threads: order.threads, ..Settings::with(Format::FP32) };
    let mut observed = Layerwise::new(checkpoint, samples(checkpoint), &settings).unwrap();
    quantize_observed(checkpoint, order, &mut observed, &|_: u64| {}).unwrap()
}

/// A random model whose matrices have whole groups.
fn wide(place: &Place, family: &str) -> Checkpoint {
    let folder = place.0.join("source");
    fs::create_dir(&folder).unwrap();
    model(&folder, family);
    Checkpoint::open(&folder).unwrap()
}

/// Logits of every sample's every token.
fn logits(checkpoint: &Checkpoint, samples: &[Vec<u32>]) -> Vec<f32> {
    let settings = Settings { all_logits: true, round_inputs: false, ..Settings::with(Format::FP32) };
    let engine = Engine::load(checkpoint, settings, &mut |_, _| Ok(())).unwrap();
    let mut session = engine.session(1, 24).unwrap();
    let each = samples.iter().flat_map(|sample| {
        session.clear();
        session.feed(0..1, std::slice::from_ref(sample), Wanted::All).unwrap()
    });
    each.collect()
}

/// The root of the mean squared difference, over that of the numbers.
fn distance(found: &[f32], want: &[f32]) -> f64 {
    let square = |sum: f64, number: f32| sum + f64::from(number).powi(2);
    let lost = found.iter().zip(want).map(|(a, b)| a - b).fold(0.0, square);
    (lost / want.iter().copied().fold(0.0, square)).sqrt()
}

/// Factors between tensors change nothing: with eight bits models compute what they computed, with biases, norms of one plus
/// their weights, shared heads and experts.
#[test]
fn factors_leave_models_what_they_are() {
    for family in ["llama", "llama-bias", "qwen2", "qwen3", "gemma2", "mixtral", "phi3", "phi"] {
        let (fixture, place) = (Fixture::open(family), Place::new(&format!("factors-{family}")));
        let samples = samples(&fixture.checkpoint);
        let original = logits(&fixture.checkpoint, &samples);
        let mut nearest = None;
        for method in [Method::Rtn, Method::Awq, Method::SmoothQuant, Method::Gptq] {
            let target = place.0.join(method.name());
            // Experts whose inputs are rounded are loaded by vLLM alone.
            let (plan, runtime) =
                if method == Method::SmoothQuant { ("int8", Some(Runtime::Vllm)) } else { ("w8a16", None) };
            let order = Request { runtime, ..order(method, plan, Layout::CompressedTensors, &target) };
            let report = made(&fixture.checkpoint, &order);
            assert!(!report.notes.iter().any(|note| note.contains("could go into")), "{family}: {:?}", report.notes);
            let found = logits(&Checkpoint::open(&target).unwrap(), &samples);
            let lost = distance(&found, &original);
            // A token that goes to another expert because of a last bit makes a difference, whatever the method.
            let nearest = *nearest.get_or_insert(lost);
            assert!(lost < 1.2 * nearest, "{family} by {method}: {lost}, to nearest {nearest}");
        }
    }
}

/// A norm whose readers are quantized only in part has factors all the same: what is kept is multiplied by them, too. Phi's one norm
/// feeds attention and the feed-forward block.
#[test]
fn factors_reach_what_is_kept() {
    let (fixture, place) = (Fixture::open("phi"), Place::new("factors-kept"));
    let samples = samples(&fixture.checkpoint);
    let original = logits(&fixture.checkpoint, &samples);
    for (at, kept) in ["*.mlp.fc1=keep", "*.self_attn.*=keep", "*.q_proj=keep"].into_iter().enumerate() {
        for (method, base) in [(Method::Awq, "w8a16"), (Method::SmoothQuant, "int8")] {
            let plan = format!("{base},{kept}");
            let lost = [Method::Rtn, method].map(|method| {
                let target = place.0.join(format!("{at}-{base}-{method}"));
                made(&fixture.checkpoint, &order(method, &plan, Layout::CompressedTensors, &target));
                distance(&logits(&Checkpoint::open(&target).unwrap(), &samples), &original)
            });
            assert!(lost[1] < 1.2 * lost[0], "{plan} by {method}: {} to nearest, {}", lost[0], lost[1]);
            let weights = |folder: &Path| fs::read(folder.join("model.safetensors")).unwrap();
            let source = weights(&fixture.checkpoint.folder);
            assert!(!source.is_empty() && weights(&place.0.join(format!("{at}-{base}-{method}"))) != source);
        }
    }
}

/// With four bits, models by GPTQ compute more nearly what they computed than models that were rounded to nearest.
#[test]
fn outputs_lose_less_than_by_rounding_to_nearest() {
    let mut sums = [0.0; 3];
    for family in ["llama", "mixtral"] {
        let place = Place::new(&format!("four-{family}"));
        let checkpoint = wide(&place, family);
        let samples = samples(&checkpoint);
        let original = logits(&checkpoint, &samples);
        for (sum, method) in sums.iter_mut().zip([Method::Rtn, Method::Gptq, Method::Awq]) {
            let target = place.0.join(method.name());
            let report = made(&checkpoint, &order(method, "w4a16", Layout::CompressedTensors, &target));
            assert!(report.verified);
            *sum += distance(&logits(&Checkpoint::open(&target).unwrap(), &samples), &original);
        }
    }
    let [rtn, gptq, awq] = sums;
    assert!(gptq < 0.9 * rtn && awq < rtn, "nearest {rtn}, GPTQ {gptq}, AWQ {awq}");
}

/// Every layout whose codes are integers takes choices, and models lose less by them than rounded to nearest; others say what they
/// would take.
#[test]
fn layouts_of_integers() {
    let place = Place::new("layouts");
    let checkpoint = wide(&place, "llama");
    let samples = samples(&checkpoint);
    let original = logits(&checkpoint, &samples);
    let lost = |method: Method, plan: &str, layout: Layout| {
        let target = place.0.join(format!("{layout}-{plan}-{method}"));
        let report = made(&checkpoint, &order(method, plan, layout, &target));
        assert!(report.verified && report.method == method.name(), "{layout} {plan} {method}");
        distance(&logits(&Checkpoint::open(&target).unwrap(), &samples), &original)
    };
    for (layout, plan) in [
        (Layout::Gptq, "int4-g32"),
        (Layout::Gptq, "int3-g32"),
        (Layout::Awq, "int4-g32-zp"),
        (Layout::CompressedTensors, "w4a16-asym"),
        (Layout::Mlx, "int4-g32-zp16"),
        (Layout::Mlx, "int4-g32"),
        (Layout::Torchao, "int4-g32-zp16"),
        (Layout::Torchao, "int4-g32"),
        (Layout::Torchao, "int4-g32-zp"),
        (Layout::Torchao, "w8a16"),
    ] {
        let nearest = lost(Method::Rtn, plan, layout);
        let (gptq, awq) = (lost(Method::Gptq, plan, layout), lost(Method::Awq, plan, layout));
        assert!(gptq < 0.95 * nearest && awq < nearest, "{layout} {plan}: {nearest}, GPTQ {gptq}, AWQ {awq}");
    }
    let target = place.0.join("none");
    let settings = Settings::with(Format::FP32);
    let refused = |order: &Request| {
        let mut observed = Layerwise::new(&checkpoint, samples.clone(), &settings).unwrap();
        quantize_observed(&checkpoint, order, &mut observed, &|_: u64| {}).unwrap_err().to_string()
    };
    for (plan, layout, named) in [
        ("mxfp4a16", Layout::Mlx, "mxfp4"),
        ("fp8a16", Layout::Torchao, "fp8"),
        ("mxfp4a16", Layout::Gguf, "mxfp4"),
        ("iq3_s", Layout::Gguf, "iq3_s"),
    ] {
        let error = refused(&order(Method::Awq, plan, layout, &target.with_extension("gguf")));
        assert!(error.contains(named) && error.contains("`awq`"), "{layout}: {error}");
    }
    let error = refused(&order(Method::Gptq, "fp8", Layout::CompressedTensors, &target));
    assert!(error.contains("fp8") && error.contains("gptq"), "{error}");
    let error = refused(&order(Method::SmoothQuant, "int4-g32", Layout::Gptq, &target));
    assert!(error.contains("smoothquant"), "{error}");
    let error = refused(&order(Method::SmoothQuant, "w8a16", Layout::CompressedTensors, &target));
    assert!(error.contains("rounds no inputs") && error.contains("smoothquant"), "{error}");
    let error = quantize(&checkpoint, &order(Method::Awq, "int4-g32-zp", Layout::Awq, &target), &|_: u64| {});
    assert!(error.unwrap_err().to_string().contains("goes by a text"));
}

/// All files of a folder, by name.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> =
        all.map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap())).collect();
    all.sort();
    all
}

/// A run that stops before its second layer leaves the first, and goes on to the bytes of one that did not stop; so does
/// any number of threads.
#[test]
fn interrupted_runs_and_threads_make_the_same_bytes() {
    let Fixture { checkpoint, .. } = Fixture::open("llama");
    for (method, plan) in [(Method::Gptq, "w8a16"), (Method::Awq, "w8a16"), (Method::SmoothQuant, "int8")] {
        resumed(&checkpoint, method, plan, Layout::CompressedTensors);
    }
}

/// Stops a run, and lets it go on with another number of threads.
fn resumed(checkpoint: &Checkpoint, method: Method, plan: &str, layout: Layout) {
    let place = Place::new(&format!("resumed-{layout}-{plan}-{method}"));
    let (whole, target) = (place.0.join("whole"), place.0.join("target"));
    made(checkpoint, &order(method, plan, layout, &whole));
    let mut asked = order(method, plan, layout, &target);
    let observed = || Layerwise::new(checkpoint, samples(checkpoint), &Settings::with(Format::FP32)).unwrap();
    let stopped = quantize_observed(checkpoint, &asked, &mut observed(), &Until(AtomicUsize::new(1)));
    assert_eq!(stopped.unwrap_err().kind(), "cancelled");
    let layers = place.0.join(".target.partial/layers");
    assert_eq!(fs::read_dir(&layers).unwrap().count(), 1, "{method}");
    // Not with another setting.
    asked.manner = Manner { resume: true, force: false };
    let other = Request { tuning: Tuning { damping: 0.02, ..Tuning::default() }, ..asked.clone() };
    let error = quantize_observed(checkpoint, &other, &mut observed(), &|_: u64| {}).unwrap_err();
    assert!(error.to_string().contains("tuning"), "{error}");
    asked.threads = 3;
    quantize_observed(checkpoint, &asked, &mut observed(), &|_: u64| {}).unwrap();
    assert!(files(&whole) == files(&target), "{method}");
    assert!(!layers.exists());
}

/// A model that runs to a layer, and fails there.
struct Failing<'a> {
    inner: Layerwise<'a>,
    at: usize,
    why: fn() -> Error,
}

impl Observed for Failing<'_> {
    fn layers(&self) -> usize {
        self.inner.layers()
    }

    fn samples(&self) -> Vec<usize> {
        self.inner.samples()
    }

    fn memory(&self) -> u64 {
        self.inner.memory()
    }

    fn run(
        &mut self,
        pass: Pass<'_>,
        each: &mut dyn FnMut(Seen<'_>) -> roofline_quant::Result<()>,
    ) -> roofline_quant::Result<()> {
        if pass.layer == self.at { Err((self.why)()) } else { self.inner.run(pass, each) }
    }
}

/// A disk that fills up at the second layer leaves the first; the run goes on from there, with samples that wait on disk, to the
/// bytes of one that never failed.
#[test]
fn a_full_disk_costs_no_finished_layer() {
    let Fixture { checkpoint, .. } = Fixture::open("llama");
    let place = Place::new("full");
    let (whole, target) = (place.0.join("whole"), place.0.join("target"));
    made(&checkpoint, &order(Method::Gptq, "w8a16", Layout::CompressedTensors, &whole));
    let mut asked = order(Method::Gptq, "w8a16", Layout::CompressedTensors, &target);
    let observed = || {
        let inner = Layerwise::new(&checkpoint, samples(&checkpoint), &Settings::with(Format::FP32)).unwrap();
        inner.offloaded(&place.0).unwrap()
    };
    let run = |asked: &Request, why| {
        let mut failing = Failing { inner: observed(), at: 1, why };
        quantize_observed(&checkpoint, asked, &mut failing, &|_: u64| {}).unwrap_err()
    };
    let layers = place.0.join(".target.partial/layers");
    let damaged = run(&asked, || Error::Model { reason: "NaN".to_owned(), hint: None });
    assert!(damaged.to_string() == "NaN" && !layers.exists());
    let full = run(&asked, || Error::Space { path: PathBuf::from("disk"), free: 0, needed: 1 });
    assert_eq!(full.kind(), "space");
    assert_eq!(fs::read_dir(&layers).unwrap().count(), 1);
    asked.manner = Manner { resume: true, force: false };
    quantize_observed(&checkpoint, &asked, &mut observed(), &|_: u64| {}).unwrap();
    assert!(files(&whole) == files(&target) && !layers.exists());
}
