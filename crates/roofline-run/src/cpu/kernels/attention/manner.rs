//! What models do differently with scores, and how much room their caches have.

#![allow(unsafe_code, clippy::inline_always)]

use roofline_isa::Vector;

use super::BLOCK;
use crate::cpu::{kernels::cap::capped, unsupported::Unsupported};

/// How scores become weights, and where the cache's rows are. The default is what most models do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manner {
    /// What products of queries and keys are multiplied by; `1 / sqrt(d)` where nothing is said.
    pub scale: Option<f32>,
    /// Scores become `cap * tanh(score / cap)` before the mask (Gemma 2, arXiv 2408.00118).
    pub soft_cap: Option<f32>,
    /// A learned score per query head that takes part in the sum of the softmax and has no value (gpt-oss, arXiv
    /// 2508.10925): a head may attend to nothing.
    pub sinks: Option<Vec<f32>>,
    /// Rows that the cache has for each KV head; as many as the planned context where nothing is said.
    pub capacity: Option<usize>,
}

impl Manner {
    /// Refuses what cannot be meant for `heads` query heads over `context` keys.
    pub(super) fn check(&self, heads: usize, context: usize) -> Result<(), Unsupported> {
        let refuse = |why: String| Err(Unsupported(why));
        if let Some(cap) = self.soft_cap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
            return refuse(format!("scores cannot be capped at {cap}: use a number above zero"));
        }
        if let Some(scale) = self.scale.filter(|scale| !scale.is_finite()) {
            return refuse(format!("scores cannot be scaled by {scale}: use a finite number"));
        }
        if let Some(sinks) = self.sinks.as_ref().filter(|sinks| sinks.len() != heads) {
            return refuse(format!("{} sinks are not one for each of {heads} query heads", sinks.len()));
        }
        if let Some(capacity) = self.capacity.filter(|capacity| *capacity < context) {
            return refuse(format!("a cache of {capacity} rows has no room for a context of {context}"));
        }
        Ok(())
    }
}

/// Bounds a block of scores; both they and the cap are powers of two.
///
/// # Safety
///
/// The processor has `V`'s instruction set, and `line` has `BLOCK` scores.
#[inline(always)]
pub(super) unsafe fn soften_tops<V: Vector>(line: *mut f32, cap: f32) {
    unsafe {
        let mut at = 0;
        while at < BLOCK {
            capped(V::load(line.add(at)), cap).store(line.add(at));
            at += V::LANES;
        }
    }
}
