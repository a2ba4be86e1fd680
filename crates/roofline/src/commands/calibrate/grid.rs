//! What is measured to calibrate a GPU: few hundred kernels, spread over everything a language model asks for.

use roofline_core::{Device, measurement::Subject, op::ElementwiseKind, precision::PrecisionSpec};

use super::shapes::{Draw, Points};
use crate::failure::Failure;

/// Products at each precision: thin ones, and tiled ones. What libraries choose kernels for has more to learn.
const PRODUCTS: [(&str, usize, usize); 12] = [
    ("bf16", 10, 26),
    ("fp16", 8, 14),
    ("fp8", 8, 24),
    ("int8", 8, 24),
    ("tf32", 6, 14),
    ("fp32", 6, 12),
    ("w8a16", 8, 8),
    ("fp8a16", 8, 8),
    ("w4a16", 10, 8),
    ("nf4", 8, 6),
    ("mxfp4a16", 8, 6),
    ("nvfp4a16", 8, 6),
];
/// Everything else, at 16 bit.
const OTHERS: [(Draw, usize); 9] = [
    (Draw::Decode, 32),
    (Draw::Prefill, 10),
    (Draw::Elementwise(ElementwiseKind::Norm), 7),
    (Draw::Elementwise(ElementwiseKind::Residual), 6),
    (Draw::Elementwise(ElementwiseKind::GatedActivation), 6),
    (Draw::Elementwise(ElementwiseKind::Rope), 5),
    (Draw::Elementwise(ElementwiseKind::KvWrite), 5),
    (Draw::Elementwise(ElementwiseKind::Embedding), 4),
    (Draw::Elementwise(ElementwiseKind::Activation), 4),
];

/// What is drawn at which precision, and how often.
pub(super) fn plan(device: &Device) -> Result<Vec<(Draw, PrecisionSpec, usize)>, Failure> {
    let mut all = Vec::new();
    for (name, thin, tiled) in PRODUCTS {
        let spec: PrecisionSpec = name.parse()?;
        if spec.on(device).is_ok() {
            all.extend([(Draw::Thin, spec.clone(), thin), (Draw::Tiled, spec, tiled)]);
        }
    }
    let spec: PrecisionSpec =
        if device.sixteen_bit() == roofline_core::Format::FP16 { "fp16" } else { "bf16" }.parse()?;
    if spec.on(device).is_ok() {
        all.extend(OTHERS.map(|(draw, count)| (draw, spec.clone(), count)));
    }
    Ok(all)
}

/// The grid; half of it where that has to do.
pub(super) fn gpu(device: &Device, quick: bool) -> Result<Vec<Subject>, Failure> {
    let mut all = Vec::new();
    let mut points = Points::Even(0);
    for (draw, spec, count) in plan(device)? {
        for _ in 0..if quick { count.div_ceil(2) } else { count } {
            all.extend(draw.subject(points.next(), &spec, device)?);
        }
    }
    Ok(all)
}
