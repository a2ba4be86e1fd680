//! Kernels that work where rows lie: inside of wider ones, in place, and on each other.

use super::*;

/// Heads in rows that start with something else and end with more of it, which no kernel may touch. What `kernel` makes of
/// them where they lie is compared with `expected` of each head.
fn check_heads(
    heads: Heads,
    tokens: usize,
    kernel: impl Fn(&Elementwise, &mut Pool, Target<'_>),
    expected: impl Fn(usize, &[f32]) -> Vec<f64>,
) {
    for isa in Isa::restrictions() {
        for format in FORMATS {
            let x = noise(format, tokens, heads.pitch, 8);
            let (kind, mut out) = (Kind::of(format).unwrap(), x.codes.clone());
            kernel(&Elementwise::on(isa), &mut Pool::new(3), Target::plain(format, &mut out));
            let before = x.decode();
            let mut wanted: Vec<f64> = before.iter().map(|value| f64::from(*value)).collect();
            for row in 0..tokens * heads.count {
                let part = heads.at(row)..heads.at(row) + heads.width;
                wanted[part.clone()].copy_from_slice(&expected(row, &before[part]));
            }
            let tolerance = match format {
                Format::FP32 => 2e-5,
                Format::FP16 => 6e-3,
                _ => 5e-2,
            };
            for (at, wanted) in wanted.iter().enumerate() {
                let got = f64::from(scalar(kind, &out, at));
                let column = at % heads.pitch;
                let outside = column < heads.offset || column >= heads.offset + heads.count * heads.width;
                let allowed = if outside { 0.0 } else { tolerance };
                assert!((got - wanted).abs() <= allowed, "{isa:?} {format} {at}: {got} {wanted}");
            }
        }
    }
}

#[test]
fn heads_are_normed_where_they_lie() {
    let weight: Vec<f32> = (0..24).map(|at| 0.5 + at as f32 / 10.0).collect();
    for tokens in [1, 5, 300] {
        let heads = Heads::dense(4, 24).within(130, 11);
        check_heads(
            heads,
            tokens,
            |kernels, pool, x| kernels.norm_in_place(pool, x, heads, &weight, 1e-5).unwrap(),
            |_, head| reference::norm(head, &weight, 1e-5),
        );
    }
}

/// 16 of 24 features, by frequencies that follow no base.
#[test]
fn heads_are_turned_where_they_lie() {
    let frequencies: Vec<f64> = (0..8).map(|at| 1.0 / (1.0 + f64::from(at * at))).collect();
    let mut rotations = Rotations::with_frequencies(&frequencies, 1.25, 3);
    rotations.grow(40);
    assert_eq!((rotations.positions(), rotations.turned()), (40, 16));
    for tokens in [1, 5, 300] {
        let heads = Heads::dense(3, 24).within(90, 7);
        let positions: Vec<usize> = (0..tokens).map(|token| token * 7 % 40).collect();
        let expected =
            |row: usize, head: &[f32]| reference::rope_with(head, &frequencies, 1.25, positions[row / heads.count]);
        check_heads(
            heads,
            tokens,
            |kernels, pool, x| kernels.rope_in_place(pool, x, heads, &rotations, &positions).unwrap(),
            expected,
        );
        // The same out of place: through rows of their own, and back.
        check_heads(
            heads,
            tokens,
            |kernels, pool, x| {
                let dense = Heads::dense(heads.count, heads.width);
                let mut between = vec![0; tokens * dense.pitch * 4];
                let before = x.codes.to_vec();
                let before = (Tensor::plain(x.format, tokens, heads.pitch, &before), heads);
                let target = (Target::plain(Format::FP32, &mut between), dense);
                kernels.rope_heads(pool, before, &rotations, &positions, target).unwrap();
                let between = (Tensor::plain(Format::FP32, tokens, dense.pitch, &between), dense);
                kernels.copy_heads(pool, between, (x, heads)).unwrap();
            },
            expected,
        );
    }
}

/// Keys that lie between queries and values reach the slots that they would have reached from rows of their own.
#[test]
fn heads_are_cached_from_where_they_lie() {
    let (heads, tokens) = (Heads::dense(2, 24).within(100, 30), 3);
    let x = noise(Format::BF16, tokens, heads.pitch, 5);
    let mut dense = vec![0; tokens * 48 * 2];
    let (mut pool, kernels) = (Pool::new(2), Elementwise::default());
    let target = (Target::plain(Format::BF16, &mut dense), Heads::dense(2, 24));
    kernels.copy_heads(&mut pool, ((&x).into(), heads), target).unwrap();
    let slots = [4, 0, 5, 1, 6, 2];
    let mut cached = |x: (Tensor<'_>, Heads)| {
        let (mut codes, mut scales) = (vec![0; 8 * 24], vec![0; 8 * 2]);
        let cache = Target { format: Format::INT8, codes: &mut codes, scales: &mut scales };
        kernels.kv_write_heads(&mut pool, x, &slots, cache).unwrap();
        (codes, scales)
    };
    let whole = Tensor::plain(Format::BF16, 6, 24, &dense);
    let written = cached(((&x).into(), heads));
    assert_eq!(written, cached((whole, Heads::dense(1, 24))));
    assert!(written.0.iter().any(|code| *code != 0));
}

#[test]
#[should_panic(expected = "do not fit their rows")]
fn heads_past_the_end_of_their_rows_are_refused() {
    let heads = Heads::dense(2, 16).within(40, 9);
    let mut x = vec![0; 40 * 4];
    let target = Target::plain(Format::FP32, &mut x);
    let _ = Elementwise::default().norm_in_place(&mut Pool::new(1), target, heads, &[1.0; 16], 1e-5);
}

#[test]
fn columns_are_scaled_and_shifted_in_place() {
    let factor: Vec<f32> = (0..1500).map(|at| 1.0 - at as f32 / 1000.0).collect();
    let bias: Vec<f32> = (0..1500).map(|at| at as f32 / 500.0 - 1.0).collect();
    for (tokens, width) in [(1, 1), (7, 37), (40, 1500)] {
        let (factor, bias, heads) = (&factor[..width], &bias[..width], Heads::dense(1, width));
        let affine = |a: Option<&[f32]>, b: Option<&[f32]>| {
            let one = |at: usize, x: f32| {
                f64::from(x) * f64::from(a.map_or(1.0, |a| a[at])) + f64::from(b.map_or(0.0, |b| b[at]))
            };
            check_heads(
                heads,
                tokens,
                |kernels, pool, x| kernels.affine(pool, x, width, a, b).unwrap(),
                |_, row| row.iter().enumerate().map(|(at, x)| one(at, *x)).collect(),
            );
        };
        affine(Some(factor), Some(bias));
        affine(Some(factor), None);
        check_heads(
            heads,
            tokens,
            |kernels, pool, x| kernels.bias(pool, x, bias).unwrap(),
            |_, row| row.iter().zip(bias).map(|(x, bias)| f64::from(*x) + f64::from(*bias)).collect(),
        );
        check_heads(
            heads,
            tokens,
            |kernels, pool, x| kernels.scale(pool, x, 1.75).unwrap(),
            |_, row| row.iter().map(|x| f64::from(*x) * 1.75).collect(),
        );
        for cap in [0.5, 5.0, 30.0] {
            check_heads(
                heads,
                tokens,
                |kernels, pool, x| kernels.soft_cap(pool, x, cap).unwrap(),
                |_, row| row.iter().map(|x| f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh()).collect(),
            );
        }
        let added = noise(Format::BF16, tokens, width, 77);
        let values = added.decode();
        check_heads(
            heads,
            tokens,
            |kernels, pool, x| kernels.residual_in_place(pool, x, (&added).into()).unwrap(),
            |at, row| row.iter().zip(&values[at * width..]).map(|(x, y)| reference::residual(*x, *y)).collect(),
        );
    }
}

/// Two rows go to one place, and one place gets none.
#[test]
fn rows_are_added_to_their_places() {
    let (weights, places) = ([0.5, -2.0, 1.25, 3.0], [2, 0, 2, 3]);
    for isa in Isa::restrictions() {
        for (format, width) in [(Format::FP32, 37), (Format::BF16, 100), (Format::FP16, 9000)] {
            let (x, sums) = (noise(format, 4, width, 3), noise(Format::FP32, 5, width, 4));
            let (values, mut expected) = (x.decode(), sums.decode());
            for (row, (weight, place)) in weights.iter().zip(places).enumerate() {
                for at in 0..width {
                    expected[place * width + at] += weight * values[row * width + at];
                }
            }
            let mut out = sums.codes.clone();
            let target = Target::plain(Format::FP32, &mut out);
            Elementwise::on(isa).add_scaled(&mut Pool::new(3), target, (&x).into(), &weights, &places).unwrap();
            for (at, expected) in expected.iter().enumerate() {
                let got = scalar(Kind::Fp32, &out, at);
                assert!((got - expected).abs() <= 1e-5, "{isa:?} {format} {at}: {got} {expected}");
            }
        }
    }
    let x = noise(Format::FP32, 1, 8, 1);
    let mut sums = vec![0; 16];
    let target = Target::plain(Format::BF16, &mut sums);
    let why = Elementwise::default().add_scaled(&mut Pool::new(1), target, (&x).into(), &[1.0], &[0]).unwrap_err();
    assert!(why.0.contains("bf16"), "{why}");
}
