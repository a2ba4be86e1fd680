//! Every kernel at every restriction of this machine's instructions, against FP64 on decoded values.

use roofline_core::{Dim, Format, Math, Precision, format::Encoded, op::Linear};

use super::*;
use crate::reference::{deviation::Deviation, linear::linear};

pub(super) const WEIGHTS: [&str; 29] = [
    "fp32",
    "fp16",
    "bf16",
    "int8",
    "fp8",
    "int4-g32",
    "int4-g64",
    "int4-g128",
    "int4-g32-zp",
    "int4-g64-zp",
    "int4-g128-zp",
    "int4-g32-zp16",
    "int4-g64-zp16",
    "int4-g128-zp16",
    "int3-g64",
    "int2-g64",
    "nf4",
    "mxfp4",
    "nvfp4",
    "q8_0",
    "q5_0",
    "q4_0",
    "q4_k",
    "q5_k",
    "q6_k",
    "q5_1",
    "q4_1",
    "q3_k",
    "q2_k",
];

fn format(name: &str) -> Format {
    name.parse().unwrap()
}

fn precision(weights: Format, activations: Format, math: Math) -> Precision {
    let wide = Format::FP32;
    Precision { weights, activations, kv: wide, output: wide, query: wide, math, attention: math }
}

/// Numbers that look random, mostly within two, so that sums of products neither cancel nor grow.
fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b1) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next() + next()).collect()
}

fn encode(format: Format, rows: usize, columns: usize, seed: u32) -> Encoded {
    format.encode(&noise(rows * columns, seed), Dim::new("columns", columns as u64).unwrap()).unwrap()
}

fn run(product: &mut Product, pool: &mut Pool, x: &Encoded, w: &Encoded) -> Vec<f32> {
    let mut y = vec![0xff; x.rows() * w.rows() * product.output.bytes()];
    product.run(pool, x.into(), w.into(), &mut y);
    let words = || y.as_chunks::<2>().0.iter().map(|code| u16::from_le_bytes(*code));
    match product.output {
        Wide::Fp32 => y.as_chunks::<4>().0.iter().map(|code| f32::from_le_bytes(*code)).collect(),
        Wide::Fp16 => words().map(roofline_isa::number::from_fp16).collect(),
        Wide::Bf16 => words().map(roofline_isa::number::from_bf16).collect(),
    }
}

fn reference(x: &Encoded, w: &Encoded) -> Vec<f64> {
    let all = |count: usize| (0..count).collect::<Vec<_>>();
    linear(&x.decode(), &w.decode(), x.columns(), &all(x.rows()), &all(w.rows()))
}

/// What rounding may cost, as a relative root mean square and for the worst element: FP32 sums in any order, operands
/// rounded to BF16 (2^-9 each, independently), or a 16-bit `x` in fixed point (at most 2^-14 of a block's largest).
fn tolerance(product: &Product) -> (f64, f64) {
    match (product.math(), product.path()) {
        (Math::Bf16, Path::FusedDequant) => (4e-3, 2e-2),
        // NF4's quantiles are words of 15 bits.
        (Math::Int16, _) if product.weights == Format::NF4 => (1.5e-4, 4e-4),
        (Math::Int16, _) if product.activations != Format::FP32 => (3e-5, 1e-4),
        _ => (1e-6, 1e-5),
    }
}

fn check(shape: (usize, usize, usize), weights: &str, activations: Format, math: Math, pool: &mut Pool) {
    let (m, n, k) = shape;
    let x = encode(activations, m, k, 1);
    let w = encode(format(weights), n, k, 2);
    let want = reference(&x, &w);
    for isa in Isa::restrictions() {
        let shape = Linear::new(m as u64, n as u64, k as u64).unwrap();
        let precision = precision(format(weights), activations, math);
        let mut product = Product::plan(isa, shape, &precision, pool.threads()).unwrap();
        let off = Deviation::between(&run(&mut product, pool, &x, &w), &want);
        let (rms, worst) = tolerance(&product);
        assert!(off.within(rms, worst), "{product:?} {isa} {activations}: {off:?}");
    }
}

fn shapes(weights: &str) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
    let format = format(weights);
    let whole =
        format.gguf().map_or(if format == Format::NF4 { 64 } else { 1 }, roofline_core::format::GgufBlock::elements);
    let list = [
        (1, 37, 256),
        (1, 7, 200),
        (2, 21, 384),
        (3, 1, 128),
        (4, 5, 8448),
        (5, 7, 200),
        (7, 3, 640),
        (16, 18, 2600),
        (17, 21, 256),
        (33, 35, 200),
    ];
    list.into_iter().map(move |(m, n, k): (usize, usize, usize)| (m, n, k.next_multiple_of(whole)))
}

#[test]
fn every_weight_format_multiplies_in_fp32() {
    let mut pool = Pool::new(2);
    for weights in WEIGHTS {
        for shape in shapes(weights) {
            check(shape, weights, Format::FP32, Math::Fp32, &mut pool);
        }
    }
}

#[test]
fn every_weight_format_multiplies_in_bf16() {
    let mut pool = Pool::new(2);
    for weights in WEIGHTS {
        for shape in shapes(weights) {
            check(shape, weights, Format::BF16, Math::Bf16, &mut pool);
        }
    }
}

/// More than one block along every side, none of them whole: 14 and 32 rows to a call, 512 rows of `x` and 256 of `W` to a
/// block, 128 to 1536 elements along `k`.
#[test]
fn blocks_meet_at_their_edges() {
    let mut pool = Pool::new(2);
    for (weights, activations, math) in
        [("fp32", Format::FP32, Math::Fp32), ("bf16", Format::BF16, Math::Bf16), ("int8", Format::BF16, Math::Bf16)]
    {
        let (m, n, k) = (547, 531, 840);
        let (x, w) = (encode(activations, m, k, 1), encode(format(weights), n, k, 2));
        let want = reference(&x, &w);
        let shape = Linear::new(m as u64, n as u64, k as u64).unwrap();
        for isa in Isa::restrictions() {
            let precision = precision(format(weights), activations, math);
            let mut product = Product::plan(isa, shape, &precision, pool.threads()).unwrap();
            let off = Deviation::between(&run(&mut product, &mut pool, &x, &w), &want);
            let (rms, worst) = tolerance(&product);
            assert!(off.within(rms, 4.0 * worst), "{product:?} {isa}: {off:?}");
        }
    }
}

/// Long enough for whole blocks of tiles, which have a way of their own to be packed, and a part of one.
#[test]
fn whole_blocks_of_every_format_are_packed_to_tiles() {
    let mut pool = Pool::new(2);
    for weights in WEIGHTS {
        check(
            (20, 45, if weights.ends_with("_k") { 1792 } else { 1728 }),
            weights,
            Format::BF16,
            Math::Bf16,
            &mut pool,
        );
    }
}

#[test]
fn fp16_activations_and_outputs() {
    let mut pool = Pool::new(1);
    check((2, 7, 200), "fp16", Format::FP16, Math::Fp16, &mut pool);
    check((33, 61, 200), "fp16", Format::FP16, Math::Fp16, &mut pool);
    let (x, w) = (encode(Format::FP16, 3, 128, 1), encode(Format::FP16, 5, 128, 2));
    for output in [Format::FP16, Format::BF16] {
        let precision = Precision { output, ..precision(Format::FP16, Format::FP16, Math::Fp16) };
        let mut product = Product::plan(Isa::detect(), Linear::new(3, 5, 128).unwrap(), &precision, 1).unwrap();
        let off = Deviation::between(&run(&mut product, &mut pool, &x, &w), &reference(&x, &w));
        assert!(off.within(4e-3, 1e-2), "{output}: {off:?}");
    }
}

/// One plan for many rows, run with fewer: the first run leaves its rows where the others would see them.
#[test]
fn a_plan_serves_fewer_rows() {
    let mut pool = Pool::new(3);
    let cases = [
        ("fp32", Format::FP32, Math::Fp32),
        ("bf16", Format::BF16, Math::Bf16),
        ("q4_k", Format::BF16, Math::Bf16),
        ("int8", Format::FP32, Math::Fp32),
        ("int8", Format::INT8, Math::Int8),
    ];
    for (weights, activations, math) in cases {
        for (planned, rows) in [(16, [16, 3, 5, 1]), (70, [70, 33, 17, 1])] {
            let w = encode(format(weights), 45, 512, 2);
            let shape = Linear::new(planned, 45, 512).unwrap();
            for isa in Isa::restrictions() {
                let precision = precision(format(weights), activations, math);
                let mut product = Product::plan(isa, shape, &precision, pool.threads()).unwrap();
                for rows in rows {
                    let x = encode(activations, rows, 512, rows as u32);
                    let off = Deviation::between(&run(&mut product, &mut pool, &x, &w), &reference(&x, &w));
                    let (rms, worst) = tolerance(&product);
                    assert!(off.within(rms, worst), "{product:?} {isa} {activations} {rows} rows: {off:?}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "x has 4 rows, and 3 were planned for")]
fn more_rows_than_planned_are_refused() {
    let (x, w) = (encode(Format::FP32, 4, 64, 1), encode(Format::FP32, 5, 64, 2));
    let precision = precision(Format::FP32, Format::FP32, Math::Fp32);
    let mut product = Product::plan(Isa::detect(), Linear::new(3, 5, 64).unwrap(), &precision, 1).unwrap();
    run(&mut product, &mut Pool::new(1), &x, &w);
}

/// Rows that are decoded on the way, in one block and in several for each thread, for fewer rows of `x` than planned, too.
#[test]
fn rows_that_somebody_else_decodes() {
    for (m, n, k) in [(1, 37, 256), (5, 100, 200), (40, 70, 640), (3, 130, 9000), (20, 100, 4500)] {
        for (activations, threads) in [(Format::FP32, 1), (Format::BF16, 3), (Format::FP16, 2)] {
            let mut pool = Pool::new(threads);
            let w = encode(Format::FP32, n, k, 2);
            let values = w.decode();
            let decode = |thread: usize, rows: std::ops::Range<usize>, out: &mut [f32]| {
                assert!(thread < threads);
                out.copy_from_slice(&values[rows.start * k..rows.end * k]);
            };
            let shape = Linear::new(m, n as u64, k as u64).unwrap();
            let runs = [m as usize, 1].map(|rows| {
                let x = encode(activations, rows, k, 1);
                let want = reference(&x, &w);
                (x, want)
            });
            for isa in Isa::restrictions() {
                let mut product = ByRows::plan(isa, shape, activations, Format::FP32, threads).unwrap();
                for (x, want) in &runs {
                    let mut y = vec![0xff; want.len() * 4];
                    product.run(&mut pool, x.into(), &decode, &mut y);
                    let got: Vec<f32> = y.as_chunks::<4>().0.iter().map(|code| f32::from_le_bytes(*code)).collect();
                    let off = Deviation::between(&got, want);
                    assert!(off.within(1e-6, 1e-5), "{} {n} {k} {isa} {activations}: {off:?}", x.rows());
                }
            }
        }
    }
    let shape = Linear::new(1, 8, 64).unwrap();
    let why = ByRows::plan(Isa::detect(), shape, Format::FP8, Format::FP32, 1).err().unwrap().to_string();
    assert_eq!(why, "no processor kernel reads activations stored as fp8-e4m3");
}

#[test]
fn integers_sum_exactly() {
    let mut pool = Pool::new(2);
    for (m, n, k) in
        [(1, 130, 256), (2, 7, 200), (5, 61, 384), (17, 1, 200), (33, 61, 200), (40, 130, 1200), (35, 47, 3200)]
    {
        let (x, w) = (encode(Format::INT8, m, k, 1), encode(Format::INT8, n, k, 2));
        let shape = Linear::new(m as u64, n as u64, k as u64).unwrap();
        let precision = precision(Format::INT8, Format::INT8, Math::Int8);
        let scale = |encoded: &Encoded, row: usize| {
            roofline_isa::number::from_bf16(u16::from_le_bytes([encoded.scales[2 * row], encoded.scales[2 * row + 1]]))
        };
        let want: Vec<f32> = (0..m * n)
            .map(|at| {
                let (row, column) = (at / n, at % n);
                let pairs = x.codes[row * k..][..k].iter().zip(&w.codes[column * k..][..k]);
                let sum: i32 = pairs.map(|(x, w)| i32::from(*x as i8) * i32::from(*w as i8)).sum();
                sum as f32 * (scale(&x, row) * scale(&w, column))
            })
            .collect();
        for isa in Isa::restrictions() {
            let mut product = Product::plan(isa, shape, &precision, 2).unwrap();
            assert_eq!(run(&mut product, &mut pool, &x, &w), want, "{product:?}");
            assert_eq!((product.math(), product.path()), (Math::Int8, Path::Native));
        }
    }
}

#[test]
fn casting_first_gives_the_same_within_bf16() {
    let mut pool = Pool::new(2);
    let (x, w) = (encode(Format::BF16, 2, 200, 1), encode(Format::INT8, 61, 200, 2));
    let precision = precision(Format::INT8, Format::BF16, Math::Bf16);
    for isa in Isa::restrictions() {
        let mut product = Product::cast_first(isa, Linear::new(2, 61, 200).unwrap(), &precision, 2).unwrap();
        let off = Deviation::between(&run(&mut product, &mut pool, &x, &w), &reference(&x, &w));
        assert!(off.within(4e-3, 2e-2), "{product:?}: {off:?}");
        assert_eq!(product.path(), Path::CastEmulated);
        assert!(product.kernel_name().starts_with("cast, then gemv int8 "));
    }
    let many = Linear::new(17, 61, 200).unwrap();
    assert!(Product::cast_first(Isa::detect(), many, &precision, 2).is_err());
}

#[test]
fn what_has_no_kernel_is_refused_in_words() {
    let shape = Linear::new(1, 8, 200).unwrap();
    let why = |weights: &str, activations: &str| {
        let precision = precision(format(weights), format(activations), Math::Fp32);
        Product::plan(Isa::detect(), shape, &precision, 1).unwrap_err().to_string()
    };
    assert_eq!(why("int4-g256", "bf16"), "no processor kernel reads weights stored as int4-g256");
    assert_eq!(why("q4_k", "bf16"), "rows of 200 elements are no whole q4_k blocks of 256");
    assert_eq!(why("nf4", "bf16"), "nf4 blocks of 64 straddle rows of 200 elements");
    assert_eq!(why("bf16", "fp8"), "no processor kernel reads activations stored as fp8-e4m3");
    assert_eq!(why("nf4", "int8"), "nf4 blocks of 64 straddle rows of 200 elements");
    assert_eq!(why("fp8", "int8"), "no processor kernel multiplies fp8-e4m3 weights with int8 activations");
}

/// What `recommend` may propose for a processor is what its kernels read.
#[test]
fn formats_that_are_read_as_they_are_stored() {
    let known = |name: &str| reads(name.parse().unwrap());
    assert!(
        ["bf16", "int8", "int4-g128", "int4-g32-zp", "nf4", "nvfp4", "q4_k", "q6_k", "int3-g64"].into_iter().all(known)
    );
    assert!(!known("int8-g128") && !known("fp8-e5m2"));
}
