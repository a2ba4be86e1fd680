//! How near attention comes to the ceilings.

use std::time::Instant;

use roofline_core::{
    Dim, Format, Math, Precision,
    op::{self, Cache},
};
use roofline_run::cpu::kernels::{Buffer, Pool, Tensor, attention::Attention};

/// A cache of stored zeros with scales of one: speed does not depend on values.
struct Stored {
    format: Format,
    rows: usize,
    columns: usize,
    codes: Buffer,
    scales: Vec<u8>,
}

impl Stored {
    fn new(format: Format, rows: usize, columns: usize) -> Option<Self> {
        let mut codes = Buffer::zeroed(rows * columns * format.nominal_bits() as usize / 8)?;
        codes.fill(0x3d);
        let scales = if format.nominal_bits() == 8 { [0x80, 0x3f].repeat(rows) } else { Vec::new() };
        Some(Self { format, rows, columns, codes, scales })
    }

    fn tensor(&self) -> Tensor<'_> {
        let Self { format, rows, columns, codes, scales } = self;
        Tensor { format: *format, rows: *rows, columns: *columns, codes, scales, zeros: &[], tensor: &[] }
    }
}

/// Prints the rates of decode over caches beyond every cache, and of prefill.
pub(crate) fn report(pool: &mut Pool, bandwidth: f64, fp32: f64) {
    // The shape of an 8B model: 32 query heads on 8 KV heads of 128; then one that shares nothing.
    for (heads, kv_heads) in [(32, 8), (64, 8), (16, 16)] {
        for (name, context) in
            [("fp32", 65_536), ("bf16", 131_072), ("fp16", 131_072), ("int8", 262_144), ("fp8", 262_144)]
        {
            run(pool, (heads, kv_heads), name, 1, context * 8 / kv_heads, bandwidth, fp32);
        }
    }
    // A cache that fits the second level: what the arithmetic alone takes.
    for heads in [(16, 16), (32, 8), (64, 8)] {
        for name in ["bf16", "int8", "fp8"] {
            run(pool, heads, name, 1, 4096 / heads.1, bandwidth, fp32);
        }
    }
    for (queries, context) in [(512, 512), (1024, 1024), (2048, 2048)] {
        run(pool, (8, 2), "bf16", queries, context, bandwidth, fp32);
    }
    run(pool, (8, 2), "int8", 1024, 1024, bandwidth, fp32);
    run(pool, (8, 8), "fp32", 1024, 1024, bandwidth, fp32);
}

fn run(pool: &mut Pool, heads: (u64, u64), kv: &str, queries: u64, context: u64, bandwidth: f64, fp32: f64) {
    let dim = |value: u64| Dim::new("dimension", value).unwrap_or(Dim::ONE);
    let op = op::Attention {
        batch: Dim::ONE,
        heads: dim(heads.0),
        kv_heads: dim(heads.1),
        head_dim: dim(128),
        value_dim: dim(128),
        queries: dim(queries),
        context: dim(context),
        causal: true,
        window: None,
        cache: Cache::Separate,
    };
    let query = Format::BF16;
    let Ok(format) = kv.parse::<Format>() else { return };
    let precision = Precision {
        weights: query,
        activations: query,
        kv: format,
        output: query,
        query,
        math: Math::Fp32,
        attention: Math::Fp32,
    };
    let mut plan = match Attention::plan(&op, &precision, pool.threads()) {
        Ok(plan) => plan,
        Err(why) => return println!("{why}"),
    };
    let (rows, keys) = ((heads.0 * queries) as usize, (heads.1 * context) as usize);
    let tensors = (Stored::new(query, rows, 128), Stored::new(format, keys, 128), Stored::new(format, keys, 128));
    let (Some(q), Some(k), Some(v)) = tensors else { return println!("no memory") };
    let mut out = vec![0; rows * 128 * 2];
    let mut times: Vec<f64> = (0..if context < 10_000 { 50 } else { 7 })
        .map(|_| {
            let start = Instant::now();
            plan.run(pool, q.tensor(), k.tensor(), v.tensor(), &mut out);
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let work = roofline_core::Op::Attention(op).work(&precision, roofline_core::format::Sizes::Exact);
    let (bytes, flops) = (work.bytes().value(), work.flops.value());
    println!(
        "{:32} {}/{} heads, {queries} x {context}: {:.3} ms (worst {:.3}), {:.2} GB/s = {:.0} %, {:.1} GFLOP/s = {:.0} %",
        plan.kernel_name(),
        heads.0,
        heads.1,
        times[0] * 1e3,
        times[times.len() - 1] * 1e3,
        bytes / times[0] / 1e9,
        100.0 * bytes / times[0] / bandwidth,
        flops / times[0] / 1e9,
        100.0 * flops / times[0] / fp32,
    );
}
