//! Functions between layers, against their definitions.

use super::*;

const FUNCTIONS: [Activation; 4] =
    [Activation::Silu, Activation::GeluTanh, Activation::Gelu, Activation::ClampedSwish { limit: 2.5, alpha: 1.702 }];

/// The function of a number, as its definition has it.
fn exact(function: Activation, x: f32) -> f64 {
    let wide = f64::from(x);
    let tanh = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044_715 * wide.powi(3));
    match function {
        Activation::Silu => reference::silu(x),
        Activation::GeluTanh => 0.5 * wide * (1.0 + tanh.tanh()),
        Activation::Gelu => 0.5 * wide * (1.0 + erf(wide * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::ClampedSwish { limit, alpha } => {
            let wide = wide.min(f64::from(limit));
            wide / (1.0 + (-f64::from(alpha) * wide).exp())
        }
    }
}

/// The same times what it gates.
fn exact_gated(function: Activation, gate: f32, up: f32) -> f64 {
    let up = match function {
        Activation::ClampedSwish { limit, .. } => f64::from(up.clamp(-limit, limit)) + 1.0,
        _ => f64::from(up),
    };
    exact(function, gate) * up
}

/// `2 / sqrt(pi) * e^(-x^2) * (x + 2 x^3 / 3 + 4 x^5 / 15 + ...)`, whose terms all have one sign.
fn erf(x: f64) -> f64 {
    let terms = (1..800).scan(x, |term, n| {
        *term *= 2.0 * x * x / f64::from(2 * n + 1);
        Some(*term)
    });
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * (x + terms.sum::<f64>())
}

#[test]
fn activations() {
    for function in FUNCTIONS {
        check(
            &SHAPES,
            |kernels, pool, x, out| kernels.activation(pool, function, x, out).unwrap(),
            |values, _| values.iter().map(|value| exact(function, *value)).collect(),
        );
        check(
            &SHAPES,
            |kernels, pool, x, out| kernels.gated(pool, function, x, x, out).unwrap(),
            |values, _| values.iter().map(|value| exact_gated(function, *value, *value)).collect(),
        );
    }
    check(
        &SHAPES,
        |kernels, pool, x, out| kernels.residual(pool, x, x, out).unwrap(),
        |values, _| values.iter().map(|value| reference::residual(*value, *value)).collect(),
    );
}

/// Every function to a millionth or to the last bits of what it returns, far beyond where it bends.
#[test]
fn activations_are_good_to_a_millionth() {
    let values: Vec<f32> = (-4000..=4000).map(|at| at as f32 / 200.0).collect();
    let codes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    for isa in Isa::restrictions() {
        for function in FUNCTIONS {
            let mut out = vec![0; codes.len()];
            let (x, target) =
                (Tensor::plain(Format::FP32, 1, values.len(), &codes), Target::plain(Format::FP32, &mut out));
            Elementwise::on(isa).activation(&mut Pool::new(1), function, x, target).unwrap();
            for (at, value) in values.iter().enumerate() {
                let (got, expected) = (f64::from(scalar(Kind::Fp32, &out, at)), exact(function, *value));
                let off = (got - expected).abs();
                assert!(off <= 1e-6_f64.max(1e-6 * expected.abs()), "{isa:?} {function:?} {value}: {got} {expected}");
            }
        }
    }
}

#[test]
fn pairs_in_one_tensor() {
    let mut pool = Pool::new(3);
    for isa in Isa::restrictions() {
        for (rows, width) in [(1, 8), (5, 37), (3, 1100), (60, 1030)] {
            for (index, format) in FORMATS.into_iter().enumerate() {
                let function = FUNCTIONS[(index + rows) % 4];
                let x = noise(format, rows, 2 * width, 3);
                let values = x.decode();
                for pairs in [Pairs::SideBySide, Pairs::InTurns] {
                    let mut out = vec![0xff; rows * width * 4];
                    let target = Target::plain(Format::FP32, &mut out);
                    Elementwise::on(isa).gated_pairs(&mut pool, function, pairs, (&x).into(), target).unwrap();
                    for at in 0..rows * width {
                        let (row, column) = (at / width * 2 * width, at % width);
                        let (gate, up) = match pairs {
                            Pairs::SideBySide => (row + column, row + width + column),
                            Pairs::InTurns => (row + 2 * column, row + 2 * column + 1),
                        };
                        let expected = exact_gated(function, values[gate], values[up]);
                        let got = f64::from(scalar(Kind::Fp32, &out, at));
                        assert!((got - expected).abs() <= 1e-4, "{isa:?} {format} {pairs:?} {at}: {got} {expected}");
                    }
                }
            }
        }
    }
}
