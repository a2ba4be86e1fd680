//! How good the linear kernels are: each against the machine's own best in the same run.
//!
//! ```sh
//! cargo run --release -p roofline-run --example kernels -- [gemv|gemm|thin] [format]
//! ```
//!
//! Weights rotate over copies of more than 520 MiB together, twice what the largest of last-level caches holds.

use std::{env, time::Instant};

use roofline_core::{Dim, Format, Math, Precision, format::Encoded, op::Linear};
use roofline_run::cpu::{buffer::Buffer, linear::Product, pool::Pool, simd::Simd, tensor::Tensor, yardstick};

const COLD: usize = 640 << 20;
const REPEATS: usize = 7;
const SIDE: usize = 4096;
const WEIGHTS: [&str; 11] =
    ["fp32", "fp16", "bf16", "int8", "fp8", "int4-g32", "int4-g64", "int4-g128", "nf4", "mxfp4", "nvfp4"];

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let wants = |index: usize, name: &str| arguments.get(index).is_none_or(|argument| argument == name);
    let mut bench = Bench { pool: Pool::all(), simd: Simd::detect() };
    if let Some(level) = arguments.get(2) {
        bench.simd = *Simd::restrictions().iter().find(|simd| simd.to_string() == *level).ok_or("no such level")?;
    }
    println!("{} threads, {}", bench.pool.threads(), bench.simd);
    let formats = WEIGHTS.into_iter().filter(|name| wants(1, name));
    if wants(0, "gemv") {
        for name in formats.clone() {
            bench.gemv(name, 1)?;
        }
        if wants(1, "w8a8") {
            bench.gemv("w8a8", 1)?;
        }
        if wants(1, "cast") {
            bench.gemv("cast", 1)?;
        }
    }
    if wants(0, "thin") {
        for m in [2, 4, 8, 16] {
            for name in formats.clone() {
                bench.gemv(name, m)?;
            }
        }
    }
    if wants(0, "gemm") {
        for m in [64, 512, 4096] {
            for (name, math) in [("fp32", Math::Fp32), ("bf16", Math::Bf16), ("w8a8", Math::Int8)] {
                if wants(1, name) {
                    bench.gemm(name, math, m)?;
                }
            }
            for name in
                ["fp16", "int8", "fp8", "int4-g128", "nf4", "mxfp4", "nvfp4"].into_iter().filter(|name| wants(1, name))
            {
                bench.gemm(name, Math::Bf16, m)?;
            }
        }
    }
    Ok(())
}

struct Bench {
    pool: Pool,
    simd: Simd,
}

/// Median, smallest and largest of a few rates.
struct Rates(Vec<f64>);

impl Rates {
    fn of(mut sample: impl FnMut() -> f64) -> Self {
        let mut rates: Vec<f64> = (0..REPEATS).map(|_| sample()).collect();
        rates.sort_by(f64::total_cmp);
        Self(rates)
    }

    fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    fn spread(&self) -> f64 {
        (self.0[self.0.len() - 1] - self.0[0]) / self.median()
    }
}

/// Rows repeated from a few that were encoded.
struct Weights {
    encoded: Encoded,
    codes: Vec<Buffer>,
    scales: Vec<Buffer>,
}

impl Weights {
    fn new(format: Format, cold: usize) -> Outcome<Self> {
        const ROWS: usize = 16;
        let encoded = encode(format, ROWS, 2)?;
        let bytes = encoded.len() * SIDE / ROWS;
        let copies = cold.div_ceil(bytes).max(1);
        let repeat = |part: &[u8]| Buffer::from_bytes(&part.repeat(SIDE / ROWS)).ok_or("no memory");
        let codes = (0..copies).map(|_| repeat(&encoded.codes)).collect::<Result<_, _>>()?;
        let scales = (0..copies).map(|_| repeat(&encoded.scales)).collect::<Result<_, _>>()?;
        Ok(Self { encoded, codes, scales })
    }

    fn tensor(&self, copy: usize) -> Tensor<'_> {
        let whole = Tensor::from(&self.encoded);
        Tensor { rows: SIDE, codes: &self.codes[copy], scales: &self.scales[copy], ..whole }
    }

    fn bytes(&self) -> usize {
        self.codes[0].len() + self.scales[0].len()
    }
}

fn encode(format: Format, rows: usize, seed: u32) -> Outcome<Encoded> {
    let mut state = seed;
    let values: Vec<f32> = (0..rows * SIDE)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    Ok(format.encode(&values, Dim::new("columns", SIDE as u64)?)?)
}

fn precision(name: &str, math: Math) -> Outcome<Precision> {
    let weights = if matches!(name, "w8a8" | "cast") { Format::INT8 } else { name.parse()? };
    let activations = match name {
        "w8a8" => Format::INT8,
        "fp32" => Format::FP32,
        _ => Format::BF16,
    };
    let wide = if name == "fp32" { Format::FP32 } else { Format::BF16 };
    Ok(Precision { weights, activations, kv: wide, output: wide, query: wide, math, attention: math })
}

impl Bench {
    fn gemv(&mut self, name: &str, m: usize) -> Outcome {
        let math = if name == "w8a8" { Math::Int8 } else { Math::Bf16 };
        let precision = precision(name, math)?;
        let shape = Linear::new(m as u64, SIDE as u64, SIDE as u64)?;
        let weights = Weights::new(precision.weights, COLD)?;
        let x = encode(precision.activations, m, 1)?;
        let mut y = vec![0; m * SIDE * 4];
        let plan = if name == "cast" { Product::cast_first } else { Product::plan };
        let mut product = plan(self.simd, shape, &precision, self.pool.threads())?;
        let y_bytes = m * SIDE * (precision.output.nominal_bits() as usize / 8);
        let y = &mut y[..y_bytes];
        let total = weights.bytes() * weights.codes.len();
        let mut ratios = Vec::new();
        let mut reads = Vec::new();
        let rates = Rates::of(|| {
            // The yardstick right beside each sample, since neighbours share the memory.
            let start = Instant::now();
            for codes in &weights.codes {
                std::hint::black_box(yardstick::read(&mut self.pool, codes));
            }
            let read = (weights.codes[0].len() * weights.codes.len()) as f64 / start.elapsed().as_secs_f64();
            let start = Instant::now();
            for copy in 0..weights.codes.len() {
                product.run(&mut self.pool, (&x).into(), weights.tensor(copy), y);
            }
            let rate = total as f64 / start.elapsed().as_secs_f64();
            ratios.push(rate / read);
            reads.push(read);
            rate
        });
        ratios.sort_by(f64::total_cmp);
        reads.sort_by(f64::total_cmp);
        println!(
            "{:<28} m={m:<3} {:6.2} GB/s (spread {:4.1} %)  read {:6.2} GB/s  share {:5.1} % ({:.1} to {:.1})",
            product.kernel_name(),
            rates.median() / 1e9,
            rates.spread() * 100.0,
            reads[REPEATS / 2] / 1e9,
            ratios[REPEATS / 2] * 100.0,
            ratios[0] * 100.0,
            ratios[REPEATS - 1] * 100.0,
        );
        Ok(())
    }

    fn gemm(&mut self, name: &str, math: Math, m: usize) -> Outcome {
        let precision = precision(name, math)?;
        let shape = Linear::new(m as u64, SIDE as u64, SIDE as u64)?;
        let weights = Weights::new(precision.weights, if m > 512 { 1 } else { COLD })?;
        let x = encode(precision.activations, m, 1)?;
        let mut y = Buffer::zeroed(m * SIDE * (precision.output.nominal_bits() as usize / 8)).ok_or("no memory")?;
        let mut product = Product::plan(self.simd, shape, &precision, self.pool.threads())?;
        let flops = 2.0 * m as f64 * (SIDE * SIDE) as f64;
        let mut copy = 0;
        let mut peaks = Vec::new();
        let mut shares = Vec::new();
        let used = product.math();
        product.run(&mut self.pool, (&x).into(), weights.tensor(0), &mut y);
        let count = (1024 / m).clamp(1, weights.codes.len());
        let rates = Rates::of(|| {
            let start = Instant::now();
            let operations = yardstick::multiply(&mut self.pool, self.simd, used, 1 << 20).unwrap_or(0);
            peaks.push(operations as f64 / start.elapsed().as_secs_f64());
            let start = Instant::now();
            for _ in 0..count {
                copy = (copy + 1) % weights.codes.len();
                product.run(&mut self.pool, (&x).into(), weights.tensor(copy), &mut y);
            }
            let rate = flops * count as f64 / start.elapsed().as_secs_f64();
            shares.push(rate / peaks[peaks.len() - 1]);
            rate
        });
        shares.sort_by(f64::total_cmp);
        peaks.sort_by(f64::total_cmp);
        println!(
            "{:<28} m={m:<5} {:8.1} GFLOP/s (spread {:4.1} %)  peak {:8.1}  share {:5.1} % ({:.1} to {:.1})",
            product.kernel_name(),
            rates.median() / 1e9,
            rates.spread() * 100.0,
            peaks[REPEATS / 2] / 1e9,
            shares[REPEATS / 2] * 100.0,
            shares[0] * 100.0,
            shares[REPEATS - 1] * 100.0,
        );
        Ok(())
    }
}
