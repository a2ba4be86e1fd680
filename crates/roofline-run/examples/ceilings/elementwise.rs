//! How near element-wise kernels come to the ceilings.

use std::time::Instant;

use roofline_core::Format;
use roofline_run::cpu::kernels::{
    Pool, Tensor,
    elementwise::{Activation, Elementwise, Rotations, Target},
};

/// Prints the rates over rows that lie in memory, and over the one row of a decode step.
pub(crate) fn report(pool: &mut Pool) {
    for (rows, columns) in [(32_768, 4096), (1, 4096)] {
        let bytes = vec![0x3f; rows * columns * 2];
        let mut out = vec![0u8; rows * columns * 2];
        let weight = vec![1.0; columns];
        let rotations = Rotations::new(128, 10_000.0, rows);
        let positions: Vec<usize> = (0..rows).collect();
        let kernels = Elementwise::default();
        let tensor = |columns: usize| Tensor {
            format: Format::BF16,
            rows: bytes.len() / 2 / columns,
            columns,
            codes: &bytes,
            scales: &[],
            zeros: &[],
            tensor: &[],
        };
        let x = tensor(columns);
        let mut time = |name: &str, streams: f64, run: &mut dyn FnMut(&mut Pool, Target<'_>)| {
            let trials = if rows == 1 { 200 } else { 5 };
            let mut best = f64::INFINITY;
            for _ in 0..trials {
                let start = Instant::now();
                run(pool, Target::plain(Format::BF16, &mut out));
                best = best.min(start.elapsed().as_secs_f64());
            }
            let rate = streams * (rows * columns * 2) as f64 / best / 1e9;
            println!("{name:12} bf16 {rows} x {columns}: {:.1} µs, {rate:.2} GB/s", best * 1e6);
        };
        time("norm", 2.0, &mut |pool, out| drop(kernels.norm(pool, x, &weight, 1e-5, out)));
        time("softmax", 2.0, &mut |pool, out| drop(kernels.softmax(pool, x, out)));
        time("residual", 3.0, &mut |pool, out| drop(kernels.residual(pool, x, x, out)));
        time("gated", 3.0, &mut |pool, out| drop(kernels.gated(pool, Activation::Silu, x, x, out)));
        time("activation", 2.0, &mut |pool, out| drop(kernels.activation(pool, Activation::Silu, x, out)));
        let heads = tensor(128);
        time("rope", 2.0, &mut |pool, out| drop(kernels.rope(pool, heads, columns / 128, &rotations, &positions, out)));
        time("embedding", 2.0, &mut |pool, out| drop(kernels.embedding(pool, x, &positions, out)));
        let slots: Vec<usize> = (0..heads.rows).collect();
        let (mut codes, mut scales) = (vec![0u8; rows * columns], vec![0u8; 2 * heads.rows]);
        for name in ["int8", "fp8"] {
            let Ok(format) = name.parse::<Format>() else { continue };
            time(&format!("kv {name}"), 1.5, &mut |pool, _| {
                let cache = Target { format, codes: &mut codes, scales: &mut scales };
                drop(kernels.kv_write(pool, heads, &slots, cache));
            });
        }
    }
}
