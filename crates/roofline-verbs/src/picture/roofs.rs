//! The roofs of a device, and how operators are told apart under them.

use roofline_core::{Device, Math, Op};

use super::{Ceiling, Class};

/// Whether a unit's roof is drawn: no language model uses FP64, and the 16-bit accumulators are too coarse for most.
pub fn shown(math: Math) -> bool {
    !matches!(math, Math::Fp64 | Math::Fp64Tensor | Math::Fp16Acc16 | Math::Fp8Acc16)
}

/// A roof per unit, units of equal peak together.
pub fn ceilings(device: &Device) -> Vec<Ceiling> {
    let mut ceilings: Vec<Ceiling> = Vec::new();
    for (math, peak) in device.peaks.iter().filter(|(math, _)| shown(*math)) {
        match ceilings.iter_mut().find(|ceiling| ceiling.peak == peak) {
            Some(ceiling) => ceiling.label += &format!(", {}", math.label()),
            None => ceilings.push(Ceiling { label: math.label().to_owned(), peak }),
        }
    }
    ceilings
}

impl Class {
    /// The class of an operator.
    pub fn of(op: &Op) -> Self {
        match op {
            Op::Linear(_) | Op::ActivatedLinear(_) | Op::Experts(_) => Self::Product,
            Op::Attention(_) | Op::Scores(_) | Op::Values(_) => Self::Attention,
            Op::Softmax(_) | Op::Elementwise(_) | Op::AllReduce(_) => Self::Elementwise,
        }
    }
}
