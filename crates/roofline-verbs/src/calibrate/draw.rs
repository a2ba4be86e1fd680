//! Random kernels that prove a calibration: of the same kinds as those it was fitted to, and in the same proportions.

use roofline_core::{
    Device, Dim, Graph, Op,
    measurement::Subject,
    op::{Attention, Elementwise},
    units::FlopRate,
};

use super::{
    cpu_grid, gpu_grid, in_blocks,
    shapes::{Points, between, multiple},
};
use crate::{Context, Result};

/// Sides of the weights that a processor is proved on, and rows of what it multiplies: those of its grid.
const NARROW: (f64, f64) = (256.0, 14336.0);
const ROWS: (f64, f64) = (2.0, 1024.0);
/// Longest time of one call at a processor's peak, in seconds: what takes longer can be no part of a short proof.
const LONGEST: f64 = 0.1;

/// `count` kernels, none of them in the grid and none that the backend has no kernel for.
pub(crate) fn draw(
    context: &Context,
    device: &Device,
    count: usize,
    seed: u64,
    runs: impl Fn(&Subject) -> bool,
) -> Result<Vec<Subject>> {
    let blocks = in_blocks(device);
    let grid = if blocks { gpu_grid::gpu(context, device, false)? } else { cpu_grid::grid(context, device, false)? };
    let known = |subject: &Subject| grid.iter().any(|one| one.op == subject.op && one.formats == subject.formats);
    let mut points = Points::Random(seed);
    let mut all = Vec::with_capacity(count);
    // A few points fall on the grid, some on what does not run; so many do not that this ends.
    for _ in 0..100 * count {
        if all.len() >= count {
            break;
        }
        let choice = points.next()[0];
        let subjects = if blocks {
            planned(context, device, choice, points.next())?
        } else {
            let like = grid.get((choice * grid.len() as f64) as usize);
            like.map(|like| reshaped(like, points.next(), device)).transpose()?.into_iter().collect()
        };
        all.extend(subjects.into_iter().filter(|subject| runs(subject) && !known(subject)));
    }
    all.truncate(count);
    Ok(all)
}

/// A kernel of a GPU's plan; `choice` says which line of it.
fn planned(context: &Context, device: &Device, choice: f64, point: [f64; 4]) -> Result<Vec<Subject>> {
    let plan = gpu_grid::plan(device)?;
    let total: usize = plan.iter().map(|(_, _, often)| often).sum();
    let mut at = (choice * total as f64) as usize;
    let chosen = plan.iter().find(|(_, _, often)| {
        let here = at < *often;
        at = at.saturating_sub(*often);
        here
    });
    chosen.map_or_else(|| Ok(Vec::new()), |(draw, spec, _)| draw.subject(context, point, spec, device))
}

/// The same kind of kernel at the same precision, of another shape.
fn reshaped(like: &Subject, [one, two, three, four]: [f64; 4], device: &Device) -> Result<Subject> {
    let graph = match like.op {
        Op::Linear(linear) => {
            // Weights in groups want a multiple of 128; some rows are odd.
            let (n, k) = (multiple(between(two, NARROW), 16.0), multiple(between(three, NARROW), 128.0));
            let flops = device.peaks.of(like.formats.math).map_or(1e11, FlopRate::value) * LONGEST;
            let rows = between(one, ROWS).min(flops / (2 * n * k) as f64).max(ROWS.0) as u64;
            Graph::gemm(if linear.m == Dim::ONE { 1 } else { rows }, n, k)?
        }
        Op::Attention(attention) => {
            let decode = attention.queries == Dim::ONE;
            let range = if decode { (512.0, 8192.0) } else { (128.0, 1024.0) };
            let context = Dim::new("context", multiple(between(one, range), 16.0))?;
            let queries = if decode { Dim::ONE } else { context };
            Graph::attention(Attention { queries, context, ..attention }.checked()?, true)
        }
        Op::Elementwise(op) => {
            let tokens = between(one, (1.0, 1024.0)).round() as u128;
            let many = op.vectors > Dim::ONE;
            let vectors = if many { Dim::new("vectors", multiple(between(four, (8.0, 64.0)), 1.0))? } else { Dim::ONE };
            let width =
                if many { op.width } else { Dim::new("width", multiple(between(two, (1024.0, 8192.0)), 64.0))? };
            Graph::elementwise(Elementwise { tokens, vectors, width, ..op })
        }
        _ => return Ok(like.clone()),
    };
    Ok(Subject::new(&graph.nodes[0], &like.precision, like.formats))
}

#[cfg(test)]
mod tests {
    use roofline_core::Registry;

    use super::*;

    #[test]
    fn as_many_are_drawn_as_asked_for_whatever_does_not_run() {
        let device = Registry::builtin().find("h200").unwrap().into_owned();
        let linear = |subject: &Subject| matches!(subject.op, Op::Linear(_));
        let drawn = draw(&Context::pure(), &device, 60, 4, linear).unwrap();
        assert_eq!(drawn.len(), 60);
        assert!(drawn.iter().all(linear));
        assert!(draw(&Context::pure(), &device, 5, 4, |_| false).unwrap().is_empty());
    }

    /// A processor is proved on what it was calibrated with: its kinds and precisions, at sizes that few cores finish.
    #[test]
    fn a_processor_has_shapes_of_its_own() {
        let device = Registry::builtin().find("ddr5_desktop_8c").unwrap().into_owned();
        let grid = cpu_grid::grid(&Context::pure(), &device, false).unwrap();
        let drawn = draw(&Context::pure(), &device, 200, 7, |_| true).unwrap();
        assert_eq!(drawn.len(), 200);
        let share = |all: &[Subject], wanted: fn(&Subject) -> bool| {
            all.iter().filter(|subject| wanted(subject)).count() as f64 / all.len() as f64
        };
        let kinds: [fn(&Subject) -> bool; 4] = [
            |one| matches!(one.op, Op::Linear(linear) if linear.m == Dim::ONE),
            |one| matches!(one.op, Op::Linear(linear) if linear.m > Dim::ONE),
            |one| matches!(one.op, Op::Attention(_)),
            |one| matches!(one.op, Op::Elementwise(_)),
        ];
        for kind in kinds {
            let (ours, theirs) = (share(&drawn, kind), share(&grid, kind));
            assert!((ours - theirs).abs() < 0.1 && ours > 0.0, "{ours} of those drawn, {theirs} of the grid");
        }
        for subject in &drawn {
            assert!(!grid.iter().any(|one| one.op == subject.op && one.formats == subject.formats));
            assert!(grid.iter().any(|one| one.precision == subject.precision), "{}", subject.words());
            let Op::Linear(linear) = subject.op else { continue };
            let (m, n, k) = (linear.m.get(), linear.n.get(), linear.k.get());
            assert!((256..=14336).contains(&n) && (256..=14336).contains(&k), "{}", subject.words());
            let peak = device.peaks.of(subject.formats.math).unwrap().value();
            assert!(m <= 2 || (2 * m * n * k) as f64 <= LONGEST * peak, "{}", subject.words());
        }
    }
}
