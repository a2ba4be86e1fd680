//! How good the linear kernels are: each against the machine's own best at the same moment.
//!
//! ```sh
//! cargo run --release -p roofline-run --example kernels -- [gemv|thin|gemm|warm|all] [format|all] [rows|all] [side]
//! ```
//!
//! `warm` is one thread with weights that stay in the second cache: what a kernel could do if memory were no limit.
//!
//! A product takes at least as long as its weights take to read and as its operations take to multiply. Every sample
//! times all three one after the other, on threads bound to their cores: neighbours share the memory and the clock, and
//! what a moment takes away from one it takes away from all. Weights rotate over copies of more than 520 MiB together,
//! twice what the largest of last-level caches holds; with many rows of `x`, where they are read once for hours of
//! multiplying, over fewer.

use std::{env, time::Instant};

use roofline_core::{Dim, Format, Math, Precision, format::Encoded, op::Linear};
use roofline_isa::Isa;
use roofline_run::cpu::{
    ceilings,
    kernels::{Binding, Buffer, Pool, Tensor, linear::Product},
};

const COLD: usize = 640 << 20;
/// How long each kernel is sampled for, in seconds.
const SECONDS: f64 = 1.0;
/// Weights, then INT8 times INT8, and the naive way.
const NAMES: [&str; 23] = [
    "fp32",
    "fp16",
    "bf16",
    "int8",
    "fp8",
    "int4-g32",
    "int4-g64",
    "int4-g128",
    "int4-g128-zp",
    "int4-g128-zp16",
    "int3-g64",
    "int2-g64",
    "q8_0",
    "q6_k",
    "q5_0",
    "q5_k",
    "q4_0",
    "q4_k",
    "nf4",
    "mxfp4",
    "nvfp4",
    "w8a8",
    "cast",
];

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let wants = |index: usize, name: &str| {
        arguments.get(index).is_none_or(|argument| argument == "all" || argument.split(',').any(|part| part == name))
    };
    let side = arguments.get(3).map_or(Ok(4096), |side| side.parse())?;
    let mut bench = Bench { pool: Pool::all(), isa: Isa::from_environment()?, side };
    let barrier = bench.pool.barrier().as_secs_f64() * 1e6;
    println!("{} threads, {}, {barrier:.2} us to start and join them", bench.pool.threads(), bench.isa);
    println!("{:<28} {:>6} {:>9} {:>9} {:>9} {:>9}  share of the larger", "", "", "best", "median", "read", "multiply");
    for (kind, rows) in [("gemv", &[1][..]), ("thin", &[2, 4, 8, 16]), ("gemm", &[32, 64, 128, 512, 1024, 4096])] {
        for m in rows.iter().filter(|m| wants(0, kind) && wants(2, &m.to_string())) {
            for name in NAMES.into_iter().filter(|name| wants(1, name) && (*m == 1 || *name != "cast")) {
                bench.measure(name, *m)?;
            }
        }
    }
    if arguments.first().is_some_and(|kind| kind == "warm") {
        bench.pool = Pool::new(1);
        for m in (1..=16).filter(|m| wants(2, &m.to_string())) {
            for name in NAMES.into_iter().filter(|name| wants(1, name) && *name != "cast") {
                bench.warm(name, m)?;
            }
        }
    }
    Ok(())
}

struct Bench {
    pool: Pool,
    isa: Isa,
    /// Rows and columns of the weights.
    side: usize,
}

/// Rows repeated from a few that were encoded.
struct Weights {
    rows: usize,
    encoded: Encoded,
    codes: Vec<Buffer>,
    scales: Vec<Buffer>,
    zeros: Vec<Buffer>,
}

impl Weights {
    fn new(format: Format, rows: usize, side: usize, cold: usize) -> Outcome<Self> {
        const ROWS: usize = 16;
        let encoded = encode(format, (ROWS, side), 2)?;
        let bytes = encoded.len() * rows / ROWS;
        let copies = cold.div_ceil(bytes).max(1);
        let repeat = |part: &[u8]| Buffer::from_bytes(&part.repeat(rows / ROWS)).ok_or("no memory");
        let codes = (0..copies).map(|_| repeat(&encoded.codes)).collect::<Result<_, _>>()?;
        let scales = (0..copies).map(|_| repeat(&encoded.scales)).collect::<Result<_, _>>()?;
        let zeros = (0..copies).map(|_| repeat(&encoded.zeros)).collect::<Result<_, _>>()?;
        Ok(Self { rows, encoded, codes, scales, zeros })
    }

    fn tensor(&self, copy: usize) -> Tensor<'_> {
        let whole = Tensor::from(&self.encoded);
        let (codes, scales, zeros) = (&self.codes[copy], &self.scales[copy], &self.zeros[copy]);
        Tensor { rows: self.rows, codes, scales, zeros, ..whole }
    }

    fn bytes(&self) -> usize {
        self.codes[0].len() + self.scales[0].len() + self.zeros[0].len()
    }
}

fn encode(format: Format, (rows, columns): (usize, usize), seed: u32) -> Outcome<Encoded> {
    let mut state = seed;
    let values: Vec<f32> = (0..rows * columns)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    Ok(format.encode(&values, Dim::new("columns", columns as u64)?)?)
}

fn precision(name: &str) -> Outcome<Precision> {
    let weights = if matches!(name, "w8a8" | "cast") { Format::INT8 } else { name.parse()? };
    let (activations, math) = match name {
        "w8a8" => (Format::INT8, Math::Int8),
        "fp32" => (Format::FP32, Math::Fp32),
        _ => (Format::BF16, Math::Bf16),
    };
    let wide = if name == "fp32" { Format::FP32 } else { Format::BF16 };
    Ok(Precision { weights, activations, kv: wide, output: wide, query: wide, math, attention: math })
}

/// One moment: seconds that a product took, that reading its weights takes, and that multiplying takes.
struct Sample {
    product: f64,
    read: f64,
    multiply: f64,
}

impl Sample {
    fn share(&self) -> f64 {
        self.read.max(self.multiply) / self.product
    }
}

fn seconds(job: impl FnOnce()) -> f64 {
    let start = Instant::now();
    job();
    start.elapsed().as_secs_f64()
}

impl Bench {
    /// The best of many runs on one thread, over weights of four megabytes.
    fn warm(&mut self, name: &str, m: usize) -> Outcome {
        let precision = precision(name)?;
        let one = Weights::new(precision.weights, 16, self.side, 1)?;
        let rows = ((4 << 20) / (one.bytes() / 16)).next_multiple_of(16);
        let weights = Weights::new(precision.weights, rows, self.side, 1)?;
        let shape = Linear::new(m as u64, rows as u64, self.side as u64)?;
        let x = encode(precision.activations, (m, self.side), 1)?;
        let mut y = Buffer::zeroed(m * rows * (precision.output.nominal_bits() as usize / 8)).ok_or("no memory")?;
        let mut product = Product::plan(self.isa, shape, &precision, 1)?;
        let pool = &mut self.pool;
        let times = (0..400).map(|_| seconds(|| product.run(pool, (&x).into(), weights.tensor(0), &mut y)));
        let best = times.fold(f64::INFINITY, f64::min);
        let operations = 2.0 * (m * rows * self.side) as f64;
        let peak = ceilings::multiply(pool, self.isa, product.math(), 1e-3).unwrap_or(f64::INFINITY);
        let (rate, part) = (weights.bytes() as f64 / best / 1e9, operations / best / peak * 100.0);
        println!(
            "{:<28} m={m:<4} {rate:9.1} GB/s {:9.1} Gop/s {part:5.1} % of {}",
            product.kernel_name(),
            operations / best / 1e9,
            product.math()
        );
        Ok(())
    }

    fn measure(&mut self, name: &str, m: usize) -> Outcome {
        let precision = precision(name)?;
        let side = self.side;
        let shape = Linear::new(m as u64, side as u64, side as u64)?;
        let weights = Weights::new(precision.weights, side, side, if m > 1024 { 1 } else { COLD })?;
        let copies = weights.codes.len();

        let x = encode(precision.activations, (m, side), 1)?;
        let mut y = Buffer::zeroed(m * side * (precision.output.nominal_bits() as usize / 8)).ok_or("no memory")?;
        let plan = if name == "cast" { Product::cast_first } else { Product::plan };
        let mut product = plan(self.isa, shape, &precision, self.pool.threads())?;
        let flops = 2.0 * m as f64 * (side * side) as f64;
        let math = product.math();
        let (isa, pool) = (self.isa, &mut self.pool);
        let binding = Binding::new(pool);
        let mut between: Vec<Buffer> =
            (0..copies).map(|_| Buffer::zeroed(product.between()).ok_or("no memory")).collect::<Result<_, &str>>()?;
        for between in &mut between {
            product.run_through(pool, (&x).into(), weights.tensor(0), between, &mut y);
        }
        // As many products as there are copies, where that takes no longer than a few of their largest.
        let count = (4096 / m).clamp(1, copies);
        let mut samples = Vec::new();
        let mut copy = 0;
        let mut turn = || {
            copy = (copy + 1) % copies;
            copy
        };
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < SECONDS || samples.len() < 5 {
            let multiply = ceilings::multiply(pool, isa, math, 1e-3).map_or(0.0, |rate| flops / rate);
            let read = seconds(|| {
                for _ in 0..count {
                    ceilings::read(pool, &weights.codes[turn()]);
                }
            });
            let read = read * weights.bytes() as f64 / weights.codes[0].len() as f64;
            let product = seconds(|| {
                for _ in 0..count {
                    let copy = turn();
                    product.run_through(pool, (&x).into(), weights.tensor(copy), &mut between[copy], &mut y);
                }
            });
            samples.push(Sample { product: product / count as f64, read: read / count as f64, multiply });
        }
        binding.release(pool);
        report(&product.kernel_name(), m, flops, weights.bytes() as f64, &samples);
        Ok(())
    }
}

/// Rates in GFLOP/s, or with few rows of `x`, where reading is what takes time, in GB/s.
fn report(name: &str, m: usize, flops: f64, bytes: f64, samples: &[Sample]) {
    let sorted = |of: fn(&Sample) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let (product, shares) = (sorted(|sample| sample.product), sorted(Sample::share));
    let middle = samples.len() / 2;
    let (work, unit) = if m > 16 { (flops, "GFLOP/s") } else { (bytes, "GB/s") };
    let rate = |seconds: f64| if seconds > 0.0 { work / seconds / 1e9 } else { 0.0 };
    let best = sorted(|sample| sample.read)[0].max(sorted(|sample| sample.multiply)[0]);
    println!(
        "{name:<28} m={m:<4} {:9.1} {:9.1} {:9.1} {:9.1}  best {:5.1} %, median {:5.1} % ({:.1} to {:.1})  {unit}",
        rate(product[0]),
        rate(product[middle]),
        rate(sorted(|sample| sample.read)[middle]),
        rate(sorted(|sample| sample.multiply)[middle]),
        best / product[0] * 100.0,
        shares[middle] * 100.0,
        shares[0] * 100.0,
        shares[samples.len() - 1] * 100.0,
    );
}
