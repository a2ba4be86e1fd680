//! What is measured to calibrate a GPU: about seven hundred kernels, spread over everything a language model asks for.

use roofline_core::{Device, measurement::Subject, op::ElementwiseKind, precision::PrecisionSpec};

use roofline_run::thin_rows;

use super::shapes::{Draw, Points};
use crate::{Context, Result};

/// How many products of a precision: of few rows, of many in a library, of many in kernels of our own, with a gate, and of few
/// results with long sums, which alone tell whether a library lets blocks share a sum.
struct Counts {
    thin: usize,
    tiled: usize,
    packed: usize,
    gated: usize,
    deep: usize,
}

const fn counts(thin: usize, tiled: usize, packed: usize, gated: usize, deep: usize) -> Counts {
    Counts { thin, tiled, packed, gated, deep }
}

/// Products at each precision. What a library chooses kernels for has more to learn, and most where it has fewest kernels to
/// choose from: FP8 with a scale per row, INT8. Of FP8 about half of the many rows are few enough for kernels of our own.
/// Weights that are stored narrower than what they multiply never meet a library.
const PRODUCTS: [(&str, Counts); 15] = [
    ("bf16", counts(16, 32, 0, 10, 2)),
    ("fp16", counts(8, 12, 0, 0, 0)),
    ("fp8", counts(16, 46, 0, 6, 4)),
    ("int8", counts(16, 32, 0, 0, 3)),
    ("tf32", counts(4, 18, 0, 0, 3)),
    ("fp32", counts(14, 16, 0, 0, 0)),
    ("w8a16", counts(14, 0, 16, 8, 0)),
    ("fp8a16", counts(14, 0, 14, 4, 0)),
    ("w4a16", counts(20, 0, 22, 10, 2)),
    ("int4-g64/bf16", counts(10, 0, 8, 0, 0)),
    ("int4-g32/bf16", counts(10, 0, 8, 0, 0)),
    ("int4-g128-zp/bf16", counts(10, 0, 8, 0, 0)),
    ("nf4", counts(12, 0, 12, 0, 0)),
    ("mxfp4a16", counts(12, 0, 12, 0, 0)),
    ("nvfp4a16", counts(12, 0, 10, 0, 0)),
];
/// Everything else, at 16 bit.
const OTHERS: [(Draw, usize); 9] = [
    (Draw::Decode, 28),
    (Draw::Prefill, 30),
    (Draw::Elementwise(ElementwiseKind::Norm), 7),
    (Draw::Elementwise(ElementwiseKind::Residual), 6),
    (Draw::Elementwise(ElementwiseKind::GatedActivation), 6),
    (Draw::Elementwise(ElementwiseKind::Rope), 5),
    (Draw::Elementwise(ElementwiseKind::KvWrite), 5),
    (Draw::Elementwise(ElementwiseKind::Embedding), 4),
    (Draw::Elementwise(ElementwiseKind::Activation), 4),
];
/// Products of experts: of few rows, as they come, and of many, sorted. Models that are mixtures store them in four bits, or in what
/// they were trained in.
const EXPERTS: [(&str, usize, usize); 4] =
    [("bf16", 12, 16), ("mxfp4a16", 14, 18), ("w4a16", 14, 18), ("w8a16", 10, 14)];
/// Caches that are stored narrower: of single tokens, and of prompts.
const CACHES: [(&str, usize, usize); 2] = [("fp8", 10, 6), ("int8", 8, 0)];

/// Of so many shapes the quick grid has one.
const QUICK: usize = 5;

/// What is drawn at which precision, and how often.
pub(crate) fn plan(device: &Device) -> Result<Vec<(Draw, PrecisionSpec, usize)>> {
    let mut all = Vec::new();
    let packs = usize::from(thin_rows(device).packed.is_some());
    for (name, Counts { thin, tiled, packed, gated, deep }) in PRODUCTS {
        let spec: PrecisionSpec = name.parse()?;
        if spec.on(device).is_ok() {
            // Only a library has kernels for many rows where packed weights have none.
            let gated = if tiled > 0 { gated } else { packs * gated };
            let deep = if tiled > 0 { deep } else { packs * deep };
            let every = [
                (Draw::Thin, thin),
                (Draw::Tiled, tiled),
                (Draw::Packed, packs * packed),
                (Draw::Gated, gated),
                (Draw::Deep, deep),
            ];
            let some = every.into_iter().filter(|(_, count)| *count > 0);
            all.extend(some.map(|(draw, count)| (draw, spec.clone(), count)));
        }
    }
    let sixteen = if device.sixteen_bit() == roofline_core::Format::FP16 { "fp16" } else { "bf16" };
    let spec: PrecisionSpec = sixteen.parse()?;
    if spec.on(device).is_ok() {
        all.extend(OTHERS.map(|(draw, count)| (draw, spec.clone(), count)));
    }
    for (cache, decode, prefill) in CACHES {
        let spec: PrecisionSpec = format!("{sixteen}/{sixteen}/{cache}").parse()?;
        if spec.on(device).is_ok() {
            let both = [(Draw::Decode, decode), (Draw::Prefill, prefill)].into_iter().filter(|(_, count)| *count > 0);
            all.extend(both.map(|(draw, count)| (draw, spec.clone(), count)));
        }
    }
    // At the end: the points of all others are those of a GPU without such kernels.
    let sorts = thin_rows(device).visits.is_some();
    for (name, chosen, grouped) in EXPERTS.into_iter().filter(|_| sorts) {
        let spec: PrecisionSpec = name.parse()?;
        if spec.on(device).is_ok() {
            all.extend([(Draw::Chosen, spec.clone(), chosen), (Draw::Grouped, spec, grouped)]);
        }
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
    use roofline_core::{
        Dim, Op, Precision, Registry,
        op::{Attention, ExpertSide, Experts},
    };

    use super::*;

    fn device(name: &str) -> Device {
        Registry::builtin().find(name).unwrap().into_owned()
    }

    /// What is measured has to be done in a minute and a half, the quick grid in fifteen seconds; and every lane has enough.
    #[test]
    fn the_grid_is_as_large_as_its_time() {
        let device = device("h200");
        let (all, quick) =
            (gpu(&Context::pure(), &device, false).unwrap(), gpu(&Context::pure(), &device, true).unwrap());
        assert!((690..750).contains(&all.len()), "{}", all.len());
        assert!((130..185).contains(&quick.len()), "{}", quick.len());
        let experts = all.iter().filter(|subject| matches!(subject.op, Op::Experts(_))).count();
        assert_eq!(experts, EXPERTS.iter().map(|(_, chosen, grouped)| chosen + grouped).sum::<usize>());
        assert!(experts <= 120, "{experts}");
        for (name, Counts { thin, tiled, packed, .. }) in PRODUCTS {
            assert!(thin + tiled + packed >= 14 && (tiled == 0 || packed == 0), "{name}");
        }
    }

    /// Everything that a model asks of a GPU is in it: packed weights at many rows, gates, prompts in chunks and windows,
    /// narrow caches.
    #[test]
    fn the_grid_has_what_models_ask_for() {
        let all = gpu(&Context::pure(), &device("h200"), false).unwrap();
        let count = |wanted: &dyn Fn(&Subject) -> bool| all.iter().filter(|subject| wanted(subject)).count();
        let narrow =
            |subject: &Subject| subject.formats.weights.nominal_bits() < subject.formats.activations.nominal_bits();
        let rows = |subject: &Subject| match subject.op {
            Op::Linear(linear) => linear.m.get(),
            _ => 0,
        };
        assert!(count(&|one| narrow(one) && (17..=64).contains(&rows(one))) >= 15);
        assert!(count(&|one| narrow(one) && rows(one) >= 1024) >= 15);
        assert!(count(&|one| matches!(one.op, Op::ActivatedLinear(gate) if gate.gated)) >= 30);
        let attention = |wanted: fn(&Attention) -> bool| {
            count(&|one| matches!(one.op, Op::Attention(attention) if wanted(&attention)))
        };
        assert!(attention(|one| one.queries.get() > 1 && one.queries == one.context) >= 15);
        assert!(attention(|one| one.queries.get() > 1 && one.queries < one.context) >= 4);
        assert!(attention(|one| one.window.is_some()) >= 1);
        assert!(attention(|one| one.queries.get() > 1 && one.head_dim.get() == 64) >= 5);
        assert!(count(&|one| matches!(one.op, Op::Attention(_)) && one.formats.kv.nominal_bits() == 8) >= 20);
    }

    /// Experts as models have them, of one token and of thousands, on both sides; no more of them than are soon packed.
    #[test]
    fn mixtures_are_in_it() {
        let device = device("h200");
        let all = gpu(&Context::pure(), &device, false).unwrap();
        let of = |subject: &Subject| match subject.op {
            Op::Experts(own) => Some((own, subject.formats)),
            _ => None,
        };
        let all: Vec<(Experts, Precision)> = all.iter().filter_map(of).collect();
        let count = |wanted: &dyn Fn(&Experts) -> bool| all.iter().filter(|(one, _)| wanted(one)).count();
        for sizes in [[32, 4, 2880, 2880], [8, 2, 14336, 4096], [128, 8, 768, 2048]] {
            let is = |one: &Experts| {
                let back = one.side == ExpertSide::Down;
                let (n, k) = if back { (one.k, one.n) } else { (one.n, one.k) };
                [one.experts, one.active, n, k].map(Dim::get) == sizes
            };
            assert!(count(&is) >= 8, "{sizes:?}: {}", count(&is));
            assert!(count(&|one| is(one) && one.side == ExpertSide::Down) >= 3, "{sizes:?}");
        }
        assert!(count(&|one| one.tokens == Dim::ONE) >= 3 && count(&|one| one.tokens.get() > 2048) >= 5);
        let border = thin_rows(&device).visits.unwrap();
        for (name, chosen, grouped) in EXPERTS {
            let spec: PrecisionSpec = name.parse().unwrap();
            let weights = spec.on(&device).unwrap().weights;
            let few =
                all.iter().filter(|(one, formats)| formats.weights == weights && one.rows() <= border.into()).count();
            let many =
                all.iter().filter(|(one, formats)| formats.weights == weights && one.rows() > border.into()).count();
            assert_eq!((few, many), (chosen, grouped), "{name}");
        }
        for (one, formats) in &all {
            let sides = if one.side == ExpertSide::GatedUp { 2.0 } else { 1.0 };
            let numbers = sides * (one.experts.get() * one.n.get() * one.k.get()) as f64;
            let words = format!("{one:?}");
            assert!(numbers * f64::from(formats.weights.nominal_bits()) / 8.0 <= 2e9, "{words}");
            assert!(one.active < one.experts && one.active.get() <= 8 && one.tokens.get() <= 4096, "{words}");
            assert!((8..=128).contains(&one.experts.get()) && one.k.get().is_multiple_of(64), "{words}");
        }
    }

    /// A GPU that has no kernels for packed weights is not asked for them.
    #[test]
    fn older_devices_have_fewer_kernels() {
        let turing = gpu(&Context::pure(), &device("t4"), false).unwrap();
        let packed = |subject: &&Subject| {
            let narrow = subject.formats.weights.nominal_bits() < subject.formats.activations.nominal_bits();
            narrow && matches!(subject.op, Op::Linear(linear) if linear.m.get() > 16)
        };
        assert_eq!(turing.iter().filter(packed).count(), 0);
        assert!(!turing.iter().any(|subject| matches!(subject.op, Op::Experts(_))));
    }
}
