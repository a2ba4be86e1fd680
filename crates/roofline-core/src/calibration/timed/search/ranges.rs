//! Where a search looks: choices that stacks make, and first guesses and bounds of terms.

use super::{
    super::{
        attention::AttentionChoice,
        kernel::TimedOp,
        spec::{COUNT, at, terms_of},
    },
    Place,
};

/// First guess, least and most of a term.
#[derive(Clone, Copy)]
pub(super) struct Range(pub(super) f64, pub(super) f64, pub(super) f64);

/// Choices that stacks are known to make.
pub(super) fn choices(op: TimedOp) -> Vec<AttentionChoice> {
    let mut all = Vec::new();
    if op == TimedOp::ContextAttention {
        for packs in [true, false] {
            for tile in [64, 128, 256] {
                all.push(AttentionChoice { tile, packs, pack_limit: 1024, packs_windows: true, splits: 1 });
            }
        }
        return all;
    }
    let packing = [(true, 16, 1024), (true, 64, 1024), (true, 16, 32), (true, 16, 16), (true, 64, 32), (false, 1, 1)];
    for (packs, tile, pack_limit) in packing {
        for splits in [1, 8, 16, 32, 256] {
            for packs_windows in if packs { &[true, false][..] } else { &[true] } {
                let packs_windows = *packs_windows;
                all.push(AttentionChoice { tile, packs, pack_limit, packs_windows, splits });
            }
        }
    }
    all
}

/// Where each term of an operator may lie.
pub(super) fn ranges(op: TimedOp, least: f64, place: &Place) -> [Option<Range>; COUNT] {
    let Place { units, bandwidth, peak, cache } = *place;
    let product = op == TimedOp::Gemm;
    let host = Range(0.5 * least, 0.1 * least, (3.0 * least).max(4e-4));
    let width = Range(1.0, 0.1, 2.0);
    let room = Range(0.1 * cache, 1e4, 2.0 * cache);
    let of = |term: usize| match term {
        at::LAUNCH if product => Range(0.6 * least, 0.05 * least, least),
        at::LAUNCH => Range(0.8 * least, 0.1 * least, 1.3 * least),
        at::READ => Range(0.85 * bandwidth, 0.2 * bandwidth, bandwidth),
        at::RATE if product => Range(0.8 * peak, 0.1 * peak, peak),
        at::RATE => Range(0.5 * peak, 0.01 * peak, peak),
        at::WRITE if product => Range(2.0 * bandwidth, 0.2 * bandwidth, 30.0 * bandwidth),
        at::WRITE => Range(bandwidth, 0.05 * bandwidth, 30.0 * bandwidth),
        at::WAVE => Range(0.4, 0.01, 1.0),
        at::STREAM => Range(3.0 * bandwidth / units, 0.1 * bandwidth / units, 30.0 * bandwidth / units),
        at::BLOCK => Range(0.3e-6, 1e-9, 5e-5),
        at::SPLIT => Range(1.5e-6, 1e-9, 5e-5),
        at::THROTTLE => Range(0.1, 0.001, 0.6),
        at::STEP => Range(if product { 20e-9 } else { 50e-9 }, 1e-10, 5e-6),
        at::ROW => Range(1e-10, 1e-12, 1e-7),
        at::ELEMENT => Range(1e-13, 1e-16, 1e-10),
        at::WARM_OUTPUT => Range(0.5 * cache, 1e5, 20.0 * cache),
        at::HOST | at::HOST_THIN | at::HOST_ODD => host,
        at::SINGLE => Range(1e-8, 1e-9, 1e-4),
        at::SEQUENCE => Range(1e-9, 1e-12, 1e-6),
        at::PAIR => Range(10.0 / peak, 0.1 / peak, 2e4 / peak),
        at::VECTOR => Range(0.03 * peak, 0.0005 * peak, peak),
        at::BEYOND => Range(0.01, 0.0005, 1.0),
        at::WIDTH_64 | at::WIDTH_192 | at::WIDTH_256 | at::WIDTH_512 => width,
        _ => room,
    };
    let known = terms_of(op);
    std::array::from_fn(|term| known.contains(&term).then(|| of(term)))
}
