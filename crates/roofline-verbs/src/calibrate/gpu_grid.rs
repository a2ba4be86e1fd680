//! What is measured to calibrate a GPU: about five hundred kernels, spread over everything a language model asks for.

use roofline_core::{Device, measurement::Subject, op::ElementwiseKind, precision::PrecisionSpec};

use super::shapes::{Draw, Points};
use crate::{Context, Result};

/// Products at each precision: of few rows, and of many. What a library chooses kernels for has more to learn, and most
/// where it has fewest kernels to choose from: FP8 with a scale per row, INT8, FP32. Weights that are stored narrower than
/// what they multiply have kernels for few rows only.
const PRODUCTS: [(&str, usize, usize); 14] = [
    ("bf16", 16, 36),
    ("fp16", 14, 18),
    ("fp8", 16, 46),
    ("int8", 16, 38),
    ("tf32", 6, 22),
    ("fp32", 20, 34),
    ("w8a16", 14, 0),
    ("fp8a16", 14, 0),
    ("w4a16", 22, 0),
    ("int4-g64/bf16", 14, 0),
    ("int4-g32/bf16", 14, 0),
    ("nf4", 14, 0),
    ("mxfp4a16", 16, 0),
    ("nvfp4a16", 14, 0),
];
/// Everything else, at 16 bit.
const OTHERS: [(Draw, usize); 9] = [
    (Draw::Decode, 32),
    (Draw::Prefill, 14),
    (Draw::Elementwise(ElementwiseKind::Norm), 7),
    (Draw::Elementwise(ElementwiseKind::Residual), 6),
    (Draw::Elementwise(ElementwiseKind::GatedActivation), 6),
    (Draw::Elementwise(ElementwiseKind::Rope), 5),
    (Draw::Elementwise(ElementwiseKind::KvWrite), 5),
    (Draw::Elementwise(ElementwiseKind::Embedding), 4),
    (Draw::Elementwise(ElementwiseKind::Activation), 4),
];

/// Of so many shapes the quick grid has one.
const QUICK: usize = 5;

/// What is drawn at which precision, and how often.
pub(crate) fn plan(device: &Device) -> Result<Vec<(Draw, PrecisionSpec, usize)>> {
    let mut all = Vec::new();
    for (name, thin, tiled) in PRODUCTS {
        let spec: PrecisionSpec = name.parse()?;
        if spec.on(device).is_ok() {
            let both = [(Draw::Thin, spec.clone(), thin), (Draw::Tiled, spec, tiled)];
            all.extend(both.into_iter().filter(|(_, _, count)| *count > 0));
        }
    }
    let spec: PrecisionSpec =
        if device.sixteen_bit() == roofline_core::Format::FP16 { "fp16" } else { "bf16" }.parse()?;
    if spec.on(device).is_ok() {
        all.extend(OTHERS.map(|(draw, count)| (draw, spec.clone(), count)));
    }
    Ok(all)
}

/// The grid; a fifth of it where that has to do.
pub(crate) fn gpu(context: &Context, device: &Device, quick: bool) -> Result<Vec<Subject>> {
    let mut all = Vec::new();
    let mut points = Points::Even(0);
    for (draw, spec, count) in plan(device)? {
        for _ in 0..if quick { count.div_ceil(QUICK) } else { count } {
            all.extend(draw.subject(context, points.next(), &spec, device)?);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use roofline_core::{Op, Registry};

    use super::*;

    /// What is measured has to be done in a minute and a half, the quick grid in ten seconds; and every lane has enough.
    #[test]
    fn the_grid_is_as_large_as_its_time() {
        let device = Registry::builtin().find("h200").unwrap().into_owned();
        let (all, quick) =
            (gpu(&Context::pure(), &device, false).unwrap(), gpu(&Context::pure(), &device, true).unwrap());
        assert!((460..520).contains(&all.len()), "{}", all.len());
        assert!((90..130).contains(&quick.len()), "{}", quick.len());
        for (name, few, many) in PRODUCTS {
            assert!(few + many >= 14, "{name}");
        }
        let narrow =
            |subject: &&Subject| subject.formats.weights.nominal_bits() < subject.formats.activations.nominal_bits();
        for subject in all.iter().filter(narrow) {
            let Op::Linear(linear) = subject.op else { continue };
            assert!(linear.m.get() <= roofline_run::thin_rows(&device).widened, "{}", subject.words());
        }
    }
}
