//! What lies between the kernels of a pass.
//!
//! A kernel that is measured alone follows itself: its time has its start and its end. In a pass other kernels follow, which
//! may begin before the last has ended, or wait for what a fused kernel does on its way, and a graph starts all of them at
//! once. What that comes to is one number, by which every kernel of a pass is longer, or shorter. It is found from passes
//! that ran, and is no part of a kernel that stands alone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quality::Errors;
use crate::{
    Error, Op, Result,
    op::{ExpertSide, Experts},
    units::{ByteRate, Bytes, Seconds, number},
};

/// Seconds between two kernels of a pass, and how much they explain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "KernelGap")]
pub struct Gap {
    /// Per kernel; below zero where the next begins before the last has ended.
    #[serde(rename = "kernel_s", with = "number")]
    #[schemars(with = "f64")]
    pub kernel: Seconds,
    /// Passes it was found from, of so many models.
    pub passes: usize,
    /// Those models.
    pub models: usize,
    /// Mean error of the sum of kernels alone: `|predicted - measured| / measured`.
    pub without_mean: f64,
    /// Mean error with a gap that was found from the other models; from the other passes where there is one model.
    pub mean: f64,
    /// The median of those errors.
    pub median: f64,
    /// What nine of ten stay below.
    pub p90: f64,
    /// When, and on what.
    pub provenance: String,
    /// What prompts take beside their kernels; none where no prompt was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompts: Option<Beside>,
}

/// How fast the element-wise work of a prompt moves its numbers. A pass of few tokens has it in the gaps between kernels;
/// with many, norms, turns and activation functions are kernels of their own beside the products that they are counted with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PromptGap")]
pub struct Beside {
    /// Bytes that such work reads and writes, per second.
    #[serde(rename = "bytes_per_s", with = "number")]
    #[schemars(with = "f64")]
    pub rate: ByteRate,
    /// Prompts it was found from, of so many models.
    pub passes: usize,
    /// Those models.
    pub models: usize,
    /// Mean error of kernels and gaps alone.
    pub without_mean: f64,
    /// Mean error with a rate that was found from the other models.
    pub mean: f64,
    /// The median of those errors.
    pub median: f64,
    /// What nine of ten stay below.
    pub p90: f64,
}

/// Rows from which such work takes longer than a gap: what products of packed weights take at most, too.
const MANY: u64 = 256;

/// Bytes that element-wise work moves beside a kernel of a whole pass: what a product wrote is read, changed and written
/// again. Queries, keys and values are turned (4 bytes a number); what goes to the stream is added in FP32 and normed (12);
/// eight stand for both. A gate reads two numbers and writes one.
pub(super) fn beside(op: &Op) -> Bytes {
    match op {
        Op::Linear(linear) => moved(linear.m.get(), linear.n.get(), 8),
        Op::ActivatedLinear(own) => moved(own.linear.m.get(), own.linear.n.get(), if own.gated { 6 } else { 4 }),
        Op::Experts(own) => moved(own.tokens.get() * own.active.get(), own.n.get(), 6),
        _ => Bytes::ZERO,
    }
}

/// The same of experts whose activation function and sum were measured with them: what leads back goes to the stream, too.
pub(super) fn behind_experts(experts: &Experts) -> Bytes {
    match experts.side {
        ExpertSide::Down => moved(experts.tokens.get(), experts.n.get(), 8),
        ExpertSide::GatedUp | ExpertSide::Up => Bytes::ZERO,
    }
}

fn moved(rows: u64, numbers: u64, each: u64) -> Bytes {
    if rows > MANY { Bytes::new(rows as f64 * numbers as f64 * each as f64) } else { Bytes::ZERO }
}

/// A pass that ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Pass {
    /// Of which model.
    pub model: String,
    /// Kernels of its graph.
    pub kernels: u64,
    /// Bytes that element-wise work moves [beside](super::Calibration::moved_beside) them.
    pub beside: Bytes,
    /// What they are expected to take one by one.
    pub sum: Seconds,
    /// What the pass took.
    pub measured: Seconds,
}

/// Fewest passes that say something.
const FEWEST: usize = 3;
/// A gap that is longer than any kernel's start was not one.
const LONGEST: f64 = 1e-4;

impl Gap {
    /// The gap that explains `passes` best: the one of least mean relative error.
    pub fn of(passes: &[Pass], device: &str, provenance: String) -> Result<Self> {
        let refuse = |reason: String| Error::Calibration { device: device.to_owned(), reason };
        let real = |time: Seconds| time.value().is_finite() && time > Seconds::ZERO;
        if passes.len() < FEWEST {
            return Err(refuse(format!("{} whole passes are too few: {FEWEST} is the least", passes.len())));
        }
        if let Some(odd) = passes.iter().find(|pass| !real(pass.measured) || !real(pass.sum) || pass.kernels == 0) {
            return Err(refuse(format!("a pass of {} that took no time, or has no kernels", odd.model)));
        }
        let units = |pass: &Pass| pass.kernels as f64;
        let kernel = least(passes.iter(), &units);
        if kernel.abs() > LONGEST {
            let micros = kernel * 1e6;
            return Err(refuse(format!("{micros:.0} us between kernels: those passes spent their time elsewhere")));
        }
        let (models, without, Errors { mean, median, p90, .. }) = judged(passes, &units);
        Ok(Self {
            kernel: Seconds::new(kernel),
            passes: passes.len(),
            models,
            without_mean: without.mean,
            mean,
            median,
            p90,
            provenance,
            prompts: None,
        })
    }

    /// Whether a machine can have it.
    pub(super) fn sensible(&self) -> bool {
        let errors = [self.without_mean, self.mean, self.median, self.p90];
        let prompts = self.prompts.as_ref().is_none_or(Beside::sensible);
        prompts && self.kernel.value().abs() <= LONGEST && errors.iter().all(|error| (0.0..1e3).contains(error))
    }
}

impl Beside {
    /// The rate that explains prompts best; none where there are too few, or where they took no longer than their kernels.
    pub fn of(passes: &[Pass]) -> Option<Self> {
        let units = |pass: &Pass| pass.beside.value();
        let enough = passes.len() >= FEWEST && passes.iter().all(|pass| pass.beside > Bytes::ZERO);
        let each = if enough { least(passes.iter(), &units) } else { 0.0 };
        let (models, without, Errors { mean, median, p90, .. }) = judged(passes, &units);
        let (passes, without_mean) = (passes.len(), without.mean);
        let found = Self { rate: ByteRate::new(each.recip()), passes, models, without_mean, mean, median, p90 };
        (each > 0.0 && found.sensible()).then_some(found)
    }

    /// What such work takes.
    pub fn time(&self, moved: Bytes) -> Seconds {
        moved / self.rate
    }

    /// Between what a slow processor and a fast GPU move.
    fn sensible(&self) -> bool {
        let errors = [self.without_mean, self.mean, self.median, self.p90];
        (1e9..1e14).contains(&self.rate.value()) && errors.iter().all(|error| (0.0..1e3).contains(error))
    }
}

/// How many models passes are of, errors without what is looked for, and errors of each model by what the others say; of
/// each pass by the others where there is one model.
fn judged(passes: &[Pass], units: &dyn Fn(&Pass) -> f64) -> (usize, Errors, Errors) {
    let mut models: Vec<&str> = passes.iter().map(|pass| pass.model.as_str()).collect();
    models.sort_unstable();
    models.dedup();
    let off = |pass: &Pass, each: f64| (pass.sum.value() + each * units(pass)) / pass.measured.value();
    let without: Vec<f64> = passes.iter().map(|pass| off(pass, 0.0)).collect();
    let unseen = passes.iter().enumerate().map(|(at, pass)| {
        let other =
            |(index, other): &(usize, &Pass)| if models.len() > 1 { other.model != pass.model } else { *index != at };
        off(pass, least(passes.iter().enumerate().filter(other).map(|(_, other)| other), units))
    });
    (models.len(), Errors::of(&without), Errors::of(&unseen.collect::<Vec<_>>()))
}

/// Where `sum |sum + each * units - measured| / measured` is least: the median of what each pass says of one unit, weighted by
/// how much of its time that is.
fn least<'a>(passes: impl Iterator<Item = &'a Pass>, units: &dyn Fn(&Pass) -> f64) -> f64 {
    let told = passes.map(|pass| {
        let (units, measured) = (units(pass), pass.measured.value());
        ((measured - pass.sum.value()) / units, units / measured)
    });
    let mut told: Vec<(f64, f64)> = told.collect();
    told.sort_by(|one, other| one.0.total_cmp(&other.0));
    let half = told.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut below = 0.0;
    let middle = told.iter().find(|(_, weight)| {
        below += weight;
        below >= half
    });
    middle.map_or(0.0, |(gap, _)| *gap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Graph;

    fn pass(model: &str, kernels: u64, sum: f64, gap: f64) -> Pass {
        let (sum, measured) = (Seconds::new(sum), Seconds::new(sum + gap * kernels as f64));
        Pass { model: model.to_owned(), kernels, beside: Bytes::new(1e9), sum, measured }
    }

    #[test]
    fn what_prompts_take_beside_their_kernels_is_found() {
        let prompt = |model: &str, beside: f64, sum: f64| {
            let measured = Seconds::new(sum + beside / 2e12);
            Pass { model: model.to_owned(), kernels: 160, beside: Bytes::new(beside), sum: Seconds::new(sum), measured }
        };
        let passes =
            [prompt("a", 1e10, 0.02), prompt("b", 4e10, 0.05), prompt("b", 2e10, 0.03), prompt("c", 1e11, 0.1)];
        let found = Beside::of(&passes).unwrap();
        assert!((found.rate.value() / 2e12 - 1.0).abs() < 1e-9 && found.mean < 1e-9 && found.models == 3, "{found:?}");
        assert!(found.without_mean > 0.1 && (found.time(Bytes::new(2e12)).value() - 1.0).abs() < 1e-9);
        // Too few, and prompts that were faster than their kernels.
        assert_eq!(Beside::of(&passes[..2]), None);
        let fast = passes.map(|pass| Pass { measured: pass.sum * 0.9, ..pass });
        assert_eq!(Beside::of(&fast), None);
        // Few rows have it in their gaps.
        let linear = |m: u64| Graph::gemm(m, 4096, 4096).unwrap().nodes[0].op;
        assert_eq!((beside(&linear(256)), beside(&linear(512))), (Bytes::ZERO, Bytes::new(512.0 * 4096.0 * 8.0)));
    }

    fn gap(passes: &[Pass]) -> Result<Gap> {
        Gap::of(passes, "h200", "a test".to_owned())
    }

    #[test]
    fn what_lies_between_kernels_is_found_and_one_odd_pass_is_not_believed() {
        for truth in [1.3e-6, -0.6e-6, 0.0] {
            let mut passes: Vec<Pass> = (1..6)
                .flat_map(|at| ["one", "two"].map(|model| pass(model, 160 + 20 * at, 1e-3 * at as f64, truth)))
                .collect();
            let found = gap(&passes).unwrap();
            assert!((found.kernel.value() - truth).abs() < 1e-12 && found.mean < 1e-9, "{found:?}");
            assert_eq!((found.passes, found.models), (10, 2));
            assert!(found.without_mean >= found.mean && found.sensible());
            passes.push(pass("two", 200, 1e-3, 30e-6));
            assert!((gap(&passes).unwrap().kernel.value() - truth).abs() < 1e-9);
        }
    }

    /// A model is judged by the gap of the others.
    #[test]
    fn errors_are_of_models_left_out() {
        let own = |model: &str, gap: f64| {
            (1..4).map(move |at| pass("", 100, 1e-3, gap + 1e-12 * f64::from(at))).map({
                let model = model.to_owned();
                move |pass| Pass { model: model.clone(), ..pass }
            })
        };
        let found = gap(&own("one", 1e-6).chain(own("two", 3e-6)).collect::<Vec<_>>()).unwrap();
        // 1.1 ms foretold as 1.3, and 1.3 as 1.1.
        let expected = f64::midpoint(0.2 / 1.1, 0.2 / 1.3);
        assert!((found.mean - expected).abs() < 1e-3, "{found:?}");
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(gap(&[]).is_err());
        assert!(gap(&[pass("a", 100, 1e-3, 0.0), pass("b", 100, 1e-3, 0.0)]).is_err());
        for odd in
            [pass("a", 0, 1e-3, 0.0), pass("a", 9, f64::NAN, 0.0), pass("a", 9, 0.0, 0.0), pass("a", 9, -1.0, 0.0)]
        {
            assert!(gap(&[odd.clone(), odd.clone(), odd]).is_err());
        }
        let host = pass("a", 100, 1e-3, 2e-3);
        assert!(gap(&[host.clone(), host.clone(), host]).is_err());
        let sane = gap(&[1, 2, 3].map(|at| pass("a", 100 * at, 1e-3, 1e-6))).unwrap();
        assert!(!Gap { kernel: Seconds::new(f64::NAN), ..sane.clone() }.sensible());
        assert!(!Gap { kernel: Seconds::new(1.0), ..sane.clone() }.sensible());
        assert!(!Gap { mean: -0.1, ..sane.clone() }.sensible());
        assert!(!Gap { p90: f64::INFINITY, ..sane }.sensible());
    }
}
