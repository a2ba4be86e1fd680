//! Checkpoints that want inputs of products rounded, against a plain FP32 model in which a plain loop rounds them.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::BTreeMap;

use common::{deviation, model};
use roofline_core::{Format, Plan};
use roofline_engine::{Engine, Settings, Wanted};
use roofline_quant::{Checkpoint, Layout, Ranges, Request, quantize, rows::Spare, stored::StoredTensor};

const HIDDEN: usize = 256;
const HEADS: usize = 4;
const WIDTH: usize = 64;
/// The range that every input is said to have: its scales have few bits.
const RANGE: f32 = 7.0;

/// The largest magnitude.
fn peak(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, one| one.abs().max(largest))
}

/// The nearest of some magnitudes, the even one of two that are as near.
fn nearest(value: f32, magnitudes: &[f32]) -> f32 {
    let off = |at: &usize| (f64::from(magnitudes[*at]) - f64::from(value.abs())).abs();
    let order = |a: &usize, b: &usize| off(a).total_cmp(&off(b)).then((a % 2).cmp(&(b % 2)));
    magnitudes[(0..magnitudes.len()).min_by(order).unwrap()].copysign(value)
}

fn e4m3() -> Vec<f32> {
    let code = |code: i32| match (code >> 3, (code & 7) as f32) {
        (0, mantissa) => mantissa / 512.0,
        (exponent, mantissa) => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    (0..127).map(code).collect()
}

const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// What a plan makes of the inputs of a product.
fn rounded(plan: &str, row: &[f32]) -> Vec<f32> {
    let (eight, four) = (e4m3(), E2M1.to_vec());
    let by = |group: usize, scale: &dyn Fn(f32) -> f32, codes: &[f32]| {
        let groups = row.chunks(group).flat_map(|group| {
            let scale = scale(peak(group));
            group.iter().map(move |one| nearest(one / scale, codes) * scale)
        });
        groups.collect::<Vec<f32>>()
    };
    let power = |largest: i32| move |peak: f32| 2f32.powi((peak * 8.0 / 7.0).log2().floor() as i32 - largest);
    match plan {
        // From -128 to 127 are 255 steps.
        "int8" | "w4a8-int8" => {
            let scale = peak(row) / 127.5;
            row.iter().map(|one| (one / scale).round_ties_even().clamp(-128.0, 127.0) * scale).collect()
        }
        "fp8" | "w4a8" => by(row.len(), &|peak| peak / 448.0, &eight),
        "fp8-static" => by(row.len(), &|_| RANGE / 448.0, &eight),
        "fp8-block" => by(128, &|peak| peak / 448.0, &eight),
        "nvfp4" => {
            let whole = 448.0 * 6.0 / RANGE;
            by(16, &|peak| nearest(whole * (peak / 6.0), &eight) / whole, &four)
        }
        "mxfp4" => by(32, &power(2), &four),
        "mxfp8" => by(32, &power(8), &eight),
        other => panic!("{other} is new"),
    }
}

/// The weights of a checkpoint, as numbers.
struct Reference<'p> {
    weights: BTreeMap<String, Vec<f32>>,
    plan: &'p str,
}

impl Reference<'_> {
    fn new<'p>(checkpoint: &Checkpoint, plan: &'p str) -> Reference<'p> {
        let mut weights = BTreeMap::new();
        for stored in StoredTensor::all(checkpoint).unwrap() {
            let (name, count) = (stored.name.clone(), stored.elements() as usize);
            let rows = stored.into_rows().unwrap();
            let mut numbers = vec![0.0; count];
            rows.read(0..rows.matrix().rows, &mut Spare::default(), &mut numbers).unwrap();
            weights.insert(name, numbers);
        }
        Reference { weights, plan }
    }

    fn times(&self, name: &str, x: &[f32]) -> Vec<f32> {
        let dot = |row: &[f32]| row.iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32;
        self.weights[&format!("{name}.weight")].chunks(x.len()).map(dot).collect()
    }

    fn normed(&self, name: &str, x: &[f32]) -> Vec<f32> {
        let mean = x.iter().map(|one| f64::from(*one).powi(2)).sum::<f64>() / x.len() as f64;
        let scale = (mean + 1e-5).sqrt().recip();
        let weight = &self.weights[&format!("{name}.weight")];
        x.iter().zip(weight).map(|(one, weight)| (f64::from(*one) * scale) as f32 * weight).collect()
    }

    /// Turns the pairs of each head by its position.
    fn turned(x: &[f32], position: usize) -> Vec<f32> {
        let half = WIDTH / 2;
        let mut out = x.to_vec();
        for (head, out) in x.chunks(WIDTH).zip(out.chunks_mut(WIDTH)) {
            for at in 0..half {
                let angle = position as f64 * 10000f64.powf(-(at as f64) / half as f64);
                let (sine, cosine) = (angle.sin() as f32, angle.cos() as f32);
                out[at] = head[at] * cosine - head[at + half] * sine;
                out[at + half] = head[at + half] * cosine + head[at] * sine;
            }
        }
        out
    }

    /// A row of logits per token.
    fn logits(&self, tokens: &[u32]) -> Vec<f32> {
        let table = &self.weights["model.embed_tokens.weight"];
        let mut stream: Vec<Vec<f32>> =
            tokens.iter().map(|token| table[*token as usize * HIDDEN..][..HIDDEN].to_vec()).collect();
        for layer in 0..2 {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for (position, x) in stream.iter_mut().enumerate() {
                let read = rounded(self.plan, &self.normed(&name("input_layernorm"), x));
                let query = Self::turned(&self.times(&name("self_attn.q_proj"), &read), position);
                keys.push(Self::turned(&self.times(&name("self_attn.k_proj"), &read), position));
                values.push(self.times(&name("self_attn.v_proj"), &read));
                let mut mixed = Vec::new();
                for (head, query) in query.chunks(WIDTH).enumerate() {
                    // Two heads share keys and values.
                    let part = head / 2 * WIDTH..(head / 2 + 1) * WIDTH;
                    let dot = |key: &Vec<f32>| {
                        key[part.clone()].iter().zip(query).map(|(a, b)| f64::from(a * b)).sum::<f64>() / 8.0
                    };
                    let scores: Vec<f64> = keys.iter().map(dot).collect();
                    let largest = scores.iter().fold(f64::MIN, |largest, one| largest.max(*one));
                    let weights: Vec<f64> = scores.iter().map(|one| (one - largest).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    mixed.extend(part.map(|at| {
                        let own = weights.iter().zip(&values).map(|(weight, value)| weight * f64::from(value[at]));
                        (own.sum::<f64>() / sum) as f32
                    }));
                }
                assert_eq!(mixed.len(), HEADS * WIDTH);
                let attended = self.times(&name("self_attn.o_proj"), &rounded(self.plan, &mixed));
                x.iter_mut().zip(attended).for_each(|(x, more)| *x += more);
                let read = rounded(self.plan, &self.normed(&name("post_attention_layernorm"), x));
                let (gate, up) = (self.times(&name("mlp.gate_proj"), &read), self.times(&name("mlp.up_proj"), &read));
                let inner: Vec<f32> = gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
                let fed = self.times(&name("mlp.down_proj"), &rounded(self.plan, &inner));
                x.iter_mut().zip(fed).for_each(|(x, more)| *x += more);
            }
        }
        // The head is kept, and so are its inputs.
        stream.iter().flat_map(|x| self.times("lm_head", &self.normed("model.norm", x))).collect()
    }
}

fn ranges() -> Ranges {
    let mut ranges = Ranges::default();
    for layer in 0..2 {
        for module in ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
            .into_iter()
            .chain(["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"])
        {
            ranges.inputs.insert(format!("model.layers.{layer}.{module}"), RANGE);
        }
    }
    ranges
}

#[test]
fn inputs_are_rounded_where_the_checkpoint_says_so() {
    let scratch = std::env::temp_dir().join(format!("roofline-engine-inputs-{}", std::process::id()));
    model(&scratch.join("source"), "llama");
    let source = Checkpoint::open(&scratch.join("source")).unwrap();
    // Short texts: a token that differs makes all after it differ.
    let tokens: Vec<Vec<u32>> = (0..8).map(|row| (0..3).map(|at| (at * 37 + row * 41 + 5) % 320).collect()).collect();
    let plans = [
        ("int8", Layout::CompressedTensors),
        ("w4a8-int8", Layout::CompressedTensors),
        ("fp8", Layout::CompressedTensors),
        ("w4a8", Layout::CompressedTensors),
        ("fp8-static", Layout::CompressedTensors),
        ("fp8-block", Layout::CompressedTensors),
        ("fp8-block", Layout::FineGrained),
        ("nvfp4", Layout::CompressedTensors),
        ("mxfp4", Layout::CompressedTensors),
        ("mxfp8", Layout::CompressedTensors),
    ];
    for (plan, layout) in plans {
        let target = scratch.join(format!("{plan}-{layout}"));
        // Names of formats are not those of schemes.
        let named = layout.schemes().iter().find(|scheme| scheme.name == plan).unwrap();
        let formats = format!("{}/{}", named.weights, named.activations.unwrap());
        let mut request = Request::new(formats.parse::<Plan>().unwrap(), layout, target.clone());
        request.ranges = named.needs_ranges().then(ranges);
        quantize(&source, &request, &|_: u64| {}).unwrap();
        let written = Checkpoint::open(&target).unwrap();
        let reference = Reference::new(&written, plan);
        let want: Vec<f32> = tokens.iter().flat_map(|text| reference.logits(text)).collect();
        let run = |settings: Settings| {
            let engine = Engine::load(&written, settings, &mut |_, _| Ok(())).unwrap();
            let logits = engine.session(8, 3).unwrap().feed(0..8, &tokens, Wanted::All).unwrap();
            (logits, engine.schemes().into_iter().next().unwrap().0)
        };
        let plain = Settings { threads: 2, all_logits: true, ..Settings::with(Format::FP32) };
        let (got, scheme) = run(plain.clone());
        assert!(scheme.contains("inputs rounded to"), "{plan}: {scheme}");
        let rows = |got: &[f32]| -> Vec<f32> {
            got.chunks(320).zip(want.chunks(320)).map(|(got, want)| deviation(got, want)).collect()
        };
        // Sums in another order differ in the last bits, and a number that lies between two codes becomes another one:
        // what follows differs a little, until then nothing does.
        let errors = rows(&got);
        let same = errors.iter().filter(|error| **error <= 1e-4).count();
        println!("{plan} {layout}: {same} of {} rows, {errors:?} ({scheme})", errors.len());
        assert!(same >= 12 && errors.iter().all(|error| *error <= 0.1), "{plan} {layout}: {errors:?}");
        // Decoded row by row, and cut into passes, it is the same model.
        let (slow, _) = run(Settings { decode: true, chunk: Some(8), threads: 1, ..plain.clone() });
        assert!(rows(&slow).iter().filter(|error| **error <= 1e-4).count() >= 12, "{plan} {layout}");
        // And without rounding another one.
        let (weights, scheme) = run(Settings { round_inputs: false, ..plain });
        assert!(rows(&weights).iter().all(|error| *error > 5e-4) && !scheme.contains("inputs"), "{plan} {layout}");
    }
    std::fs::remove_dir_all(&scratch).unwrap();
}
