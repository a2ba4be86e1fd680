//! Kernels that a calibration does not cover, by those beside them that it does.
//!
//! A kernel of another format moves other bytes and does the same otherwise: it starts as its sibling does, and what it
//! takes after that stands to its floor as the sibling's does. A cache of FP8 is then never more than twice as fast as one
//! of BF16, and four-bit weights that wait for the multipliers gain nothing.

use super::Machine;
use crate::{
    Format, Math, Op, Precision,
    calibration::{Calibration, Stands},
    op::{ActivatedLinear, ExpertSide, Experts, Linear},
    precision::PrecisionSpec,
    predict::{Causes, Estimate},
    units::Seconds,
};

/// How much less sure one is of a kernel that was not measured: its interval has twice the width, in logarithms.
const WIDER: f64 = 2.0;

impl Machine {
    /// Times of a kernel by those of the nearest one that was measured; none where there is none.
    pub(super) fn sibling(
        &self,
        calibration: &Calibration,
        op: &Op,
        precision: &Precision,
        ideal: &Estimate,
        stands: Stands,
    ) -> Option<(Causes, f64)> {
        let Op::Experts(experts) = op else {
            return self.nearest(calibration, (op, op), precision, ideal, stands);
        };
        // Kernels of experts that store their weights otherwise are nearer than products of one matrix.
        let own = self.nearest(calibration, (op, op), precision, ideal, stands);
        own.or_else(|| self.nearest(calibration, (op, &together(experts)?), precision, ideal, stands))
    }

    /// The same by `alike` in the nearest precision that was measured.
    fn nearest(
        &self,
        calibration: &Calibration,
        (op, alike): (&Op, &Op),
        precision: &Precision,
        ideal: &Estimate,
        stands: Stands,
    ) -> Option<(Causes, f64)> {
        let nearest = [
            Some(*precision),
            Some(twin(precision)),
            self.widened(precision),
            of_unit(precision),
            PrecisionSpec::sixteen().on(&self.device).ok(),
        ];
        nearest.iter().flatten().find_map(|other| {
            let (causes, interval) = calibration.expect(alike, other, self.sizes, stands)?;
            let floor = Estimate::likely(alike, other, self.sizes, &self.device).ok()?.time();
            // Experts are expected to be chosen evenly, which their floor does not count on.
            let likely = Estimate::likely(op, precision, self.sizes, &self.device).ok()?.time();
            let factor = likely / floor;
            let body = (causes.time - causes.launch).max(Seconds::ZERO) * factor;
            let (memory, compute) = (causes.memory * factor, causes.compute.max(ideal.compute));
            let (time, network) = (causes.launch + body, Seconds::ZERO);
            let causes = Causes { time, launch: causes.launch, memory, compute, network };
            Some((causes, WIDER * interval))
        })
    }

    /// Weights of about as many bits that are widened to 16, for those that are narrower than what they meet: widening takes
    /// its time, whatever the format.
    fn widened(&self, precision: &Precision) -> Option<Precision> {
        let bits = precision.weights.nominal_bits();
        let narrow = bits < precision.activations.nominal_bits();
        let weights = if bits <= 5 { Format::INT4_G128 } else { Format::INT8 };
        if narrow { PrecisionSpec::weights_only(weights).on(&self.device).ok() } else { None }
    }
}

/// The same with the formats that a narrow unit is measured with.
fn of_unit(precision: &Precision) -> Option<Precision> {
    let format = match precision.math {
        Math::Fp8 => Format::FP8,
        Math::Int8 => Format::INT8,
        _ => return None,
    };
    Some(Precision { weights: format, activations: format, ..*precision })
}

/// The same in the other 16-bit format, which moves as many bytes at the same rates.
fn twin(precision: &Precision) -> Precision {
    let format = |format: Format| match format {
        Format::FP16 => Format::BF16,
        Format::BF16 => Format::FP16,
        other => other,
    };
    let math = |math: Math| match math {
        Math::Fp16 => Math::Bf16,
        Math::Bf16 => Math::Fp16,
        other => other,
    };
    let Precision { weights, activations, kv, output, query, math: own, attention } = *precision;
    Precision {
        weights: format(weights),
        activations: format(activations),
        kv: format(kv),
        output: format(output),
        query: format(query),
        math: math(own),
        attention: math(attention),
    }
}

/// The products of all experts that are likely to be chosen, as one: the same weights, with the rows of each. Kernels cut rows into
/// tiles of one size, which experts with more rows than others decide.
fn together(experts: &Experts) -> Option<Op> {
    let (mean, spread) = experts.rows_each();
    let rows = (mean + spread).ceil() as u64;
    let n = (experts.n.float() * experts.distinct()).round() as u64;
    let linear = Linear::new(rows.max(1), n, experts.k.get()).ok()?;
    Some(match experts.side {
        ExpertSide::GatedUp => Op::ActivatedLinear(ActivatedLinear { linear, gated: true }),
        ExpertSide::Up | ExpertSide::Down => Op::Linear(linear),
    })
}
