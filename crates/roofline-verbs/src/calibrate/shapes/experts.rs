//! Shapes of experts: half of them those of models, the others drawn between and around them.

use roofline_core::{
    Device, Dim, Graph,
    op::{ExpertSide, Experts},
    precision::PrecisionSpec,
    units::FlopRate,
};

use super::{LONGEST, between, multiple};
use crate::Result;

/// Experts, how many a token uses, their width, and that of the stream.
struct Mixture {
    experts: f64,
    active: f64,
    inner: f64,
    hidden: f64,
}

const fn mixture(experts: f64, active: f64, inner: f64, hidden: f64) -> Mixture {
    Mixture { experts, active, inner, hidden }
}

/// gpt-oss-20b, Mixtral 8x7B, Qwen3-30B-A3B.
const MODELS: [Mixture; 3] =
    [mixture(32.0, 4.0, 2880.0, 2880.0), mixture(8.0, 2.0, 14336.0, 4096.0), mixture(128.0, 8.0, 768.0, 2048.0)];
/// What others are drawn from.
const COUNTS: [f64; 5] = [8.0, 16.0, 32.0, 64.0, 128.0];
const ACTIVE: [f64; 5] = [1.0, 2.0, 4.0, 6.0, 8.0];
const INNER: (f64, f64) = (512.0, 8192.0);
const HIDDEN: (f64, f64) = (1024.0, 6144.0);
const TOKENS: f64 = 4096.0;
/// Columns are whole groups of weights, and whole steps of kernels.
const STEP: f64 = 128.0;
/// Most bytes of the weights of all experts: kept twice, and in several copies, they have to be quick to make.
const BYTES: f64 = 2e9;

/// One side, of `few` tokens with up to so many rows, or of more.
pub(super) fn drawn(
    [rows, kind, side, width]: [f64; 4],
    (few, visits): (bool, f64),
    spec: &PrecisionSpec,
    device: &Device,
) -> Result<Graph> {
    let precision = spec.on(device)?;
    // Later digits of a coordinate are as even as the first.
    let digits = |at: f64, places: usize| ((at * places as f64) as usize % places, (at * places as f64).fract());
    let (kind, rest) = digits(kind, 2 * MODELS.len());
    let (count, rest) = digits(rest, COUNTS.len());
    let (side, inner) = digits(side, 2);
    let other = || {
        // One of eight uses all of them at most in part: a choice is of more than are chosen.
        let (active, _) = digits(rest, if count == 0 { ACTIVE.len() - 1 } else { ACTIVE.len() });
        mixture(COUNTS[count], ACTIVE[active], between(inner, INNER), between(width, HIDDEN))
    };
    let Mixture { experts, active, inner, hidden } = MODELS.into_iter().nth(kind).unwrap_or_else(other);
    let matrices = if side == 0 { 2.0 } else { 1.0 };
    let bytes = f64::from(precision.weights.nominal_bits()) / 8.0;
    let most = BYTES / (bytes * matrices * experts * hidden);
    let whole = |value: f64| if value.rem_euclid(STEP / 2.0) == 0.0 { value as u64 } else { multiple(value, STEP) };
    let (inner, hidden) = (whole(if inner > most { (most / STEP).floor() * STEP } else { inner }), whole(hidden));
    let flops = device.peaks.of(precision.math).map_or(1e12, FlopRate::value) * LONGEST;
    let each = 2.0 * active * matrices * (inner * hidden) as f64;
    let border = (visits / active).floor();
    let (least, most) = if few { (1.0, border) } else { (border + 1.0, TOKENS) };
    let tokens = between(rows, (least, most)).min(flops / each).clamp(least, most).round();
    let dim = |name, value: u64| Dim::new(name, value);
    let (n, k, side) = if side == 0 { (inner, hidden, ExpertSide::GatedUp) } else { (hidden, inner, ExpertSide::Down) };
    Ok(Graph::experts(Experts {
        tokens: dim("tokens", tokens as u64)?,
        experts: dim("experts", experts as u64)?,
        active: dim("active", active as u64)?,
        n: dim("n", n)?,
        k: dim("k", k)?,
        side,
    }))
}
