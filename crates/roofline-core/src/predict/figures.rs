//! The numbers of an estimate as every face tells them: one set of fields, made in one place.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Forecast, Predicted, Prediction, Tier};
use crate::{
    machine::{Basis, Machine},
    op::Class,
    units::{Bytes, Flops},
};

/// An estimate in JSON, whoever asks. `tier` says which of the two times `predicted_time_us`, `bottleneck`,
/// `predicted_tflops` and `speedup` speak of; the other is there all the same.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Figures {
    /// Which time is spoken of.
    pub tier: Tier,
    /// The program whose kernels the expected time is of.
    pub stack: &'static str,
    /// Where the expected time comes from: the weakest of its kernels'.
    pub basis: Basis,
    /// The time that is spoken of.
    pub predicted_time_us: f64,
    /// The least time: the ideal roofline.
    pub ideal_time_us: f64,
    /// The time that is likely.
    pub expected_time_us: f64,
    /// The lower end of the range that nine of ten measurements should lie in.
    pub lo_us: f64,
    /// The upper end of that range.
    pub hi_us: f64,
    /// What takes longest.
    pub bottleneck: String,
    /// Operations, a multiply-add being two.
    pub flops: Flops,
    /// Bytes that must move.
    pub bytes: Bytes,
    /// Operations per byte.
    pub ai: f64,
    /// Where memory and compute take the same time; null where nothing is computed and the device lacks the unit.
    #[schemars(with = "Option<f64>")]
    pub critical_ai: f64,
    /// Operations per second at the time that is spoken of, in 10^12.
    pub predicted_tflops: f64,
}

impl Figures {
    /// Of one prediction on a machine.
    pub fn of(prediction: &Prediction, basis: Basis, tier: Tier, machine: &Machine) -> Self {
        let Prediction { ideal, expected } = prediction;
        Self {
            tier,
            stack: machine.stack.name(),
            basis,
            predicted_time_us: prediction.time(tier).micros(),
            ideal_time_us: ideal.time().micros(),
            expected_time_us: expected.time.micros(),
            lo_us: expected.low.micros(),
            hi_us: expected.high.micros(),
            bottleneck: prediction.bound(tier).to_string(),
            flops: ideal.work.flops,
            bytes: ideal.work.bytes(),
            ai: ideal.intensity().value(),
            critical_ai: ideal.critical.value(),
            predicted_tflops: (ideal.work.flops / prediction.time(tier)).value() / 1e12,
        }
    }

    /// Of a whole graph.
    pub fn of_forecast(forecast: &Forecast, tier: Tier, machine: &Machine) -> Self {
        Self::of(&forecast.total, forecast.basis, tier, machine)
    }
}

/// How an estimate stands to the first of its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Ratios {
    /// Times as fast, in the tier that is spoken of; none where the first has no estimate.
    pub speedup: Option<f64>,
    /// Times as fast by the ideal roofline.
    pub ideal_speedup: Option<f64>,
}

impl Ratios {
    /// Of a prediction over a baseline.
    pub fn of(own: &Prediction, baseline: Option<&Prediction>, tier: Tier) -> Self {
        let ratio = |tier: Tier| baseline.map(|baseline| own.speedup(baseline, tier));
        Self { speedup: ratio(tier), ideal_speedup: ratio(Tier::Ideal) }
    }
}

/// The kernels of one site.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct KernelFigures {
    /// Where the kernels belong in the model: `q_proj`, `attention`, ...
    pub site: &'static str,
    /// What kind of work they are.
    pub class: Class,
    /// How often they run.
    pub count: u64,
    /// The part of the whole time, in the tier that is spoken of.
    pub share: f64,
    /// The unit that multiplies.
    pub math: &'static str,
    /// Their numbers.
    #[serde(flatten)]
    pub figures: Figures,
    /// Operations per second at the floor, in 10^12.
    pub ideal_tflops: f64,
    /// Both times.
    #[serde(skip)]
    pub prediction: Prediction,
}

impl Forecast {
    /// The kernels of each site, summed: sliding and global layers may differ in shape, and layers in what they store.
    pub fn by_site(&self, tier: Tier, machine: &Machine) -> Vec<KernelFigures> {
        let mut sites: Vec<(&'static str, Class, u64, Prediction, Basis)> = Vec::new();
        for Predicted { node, prediction, basis, .. } in &self.kernels {
            match sites.iter_mut().find(|known| known.0 == node.site) {
                Some((.., count, sum, weakest)) => {
                    *count += node.count;
                    *sum = sum.then(*prediction);
                    *weakest = (*weakest).max(*basis);
                }
                None => sites.push((node.site, node.op.class(), node.count, *prediction, *basis)),
            }
        }
        let told = |(site, class, count, prediction, basis): (_, _, _, Prediction, _)| KernelFigures {
            site,
            class,
            count,
            share: prediction.share(&self.total, tier),
            math: prediction.ideal.math.key(),
            figures: Figures::of(&prediction, basis, tier, machine),
            ideal_tflops: prediction.ideal.rate().value() / 1e12,
            prediction,
        };
        sites.into_iter().map(told).collect()
    }
}
