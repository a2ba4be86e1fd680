//! How far the calibration in use is from kernels it never saw.

use roofline_core::{
    Device,
    calibration::Calibration,
    compare::{Observation, Pair, compare},
    machine::Basis,
    measurement::quantile,
    predict::Tier,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Request, draw::draw};
use crate::{Context, Error, Note, Result, machine, runner::Runner};

/// Errors on random shapes: `|predicted - measured| / measured`.
#[derive(Serialize, JsonSchema)]
pub struct Validation {
    pub device: String,
    pub device_name: String,
    pub stack: String,
    pub provenance: String,
    pub seed: u64,
    pub rows: Vec<ErrorsOf>,
    pub worst: Vec<WorstKernel>,
    /// Kernels that could not be measured.
    pub skipped: usize,
    /// Kernels that no term covers.
    pub uncovered: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// The errors of some kernels, in percent.
#[derive(Serialize, JsonSchema)]
pub struct ErrorsOf {
    pub kernels: String,
    pub precision: String,
    pub count: usize,
    pub ideal_mean_pct: f64,
    pub ideal_median_pct: f64,
    pub expected_mean_pct: f64,
    pub expected_median_pct: f64,
    pub expected_p90_pct: f64,
}

/// A kernel that is far off.
#[derive(Serialize, JsonSchema)]
pub struct WorstKernel {
    pub kernel: String,
    pub measured_us: f64,
    pub expected_us: f64,
    pub error_vs_measured_pct: f64,
}

/// WorstKernel kernels that are named.
const WORST: usize = 5;

pub(super) fn validate(context: &Context, asked: &Request, count: usize) -> Result<Validation> {
    let mut runner = Runner::start(context, &asked.run, asked.on.as_deref(), "validate")?;
    let device = runner.device().clone();
    let stack = runner.kind.stack();
    let calibration = machine::calibration(context, &device, stack).ok_or_else(|| {
        let message = format!("there is no calibration of {} ({}) to validate", device.name, device.key);
        Error::request(message, "`⟨roofline calibrate⟩` makes one")
    })?;
    if asked.run.seconds.is_none() {
        runner.protocol.stop = roofline_run::Protocol::quick().stop;
    }
    let seed = asked.seed.unwrap_or(1);
    let subjects = draw(context, &device, count, seed, |subject| runner.backend.supports(subject).is_ok())?;
    let outcome = runner.measure(&subjects)?.nonempty()?;
    let observations: Vec<Observation> = outcome.measured.iter().map(Observation::from).collect();
    let machine = machine::machine(context, device.clone(), stack);
    let compared = compare(&observations, &machine, Tier::Expected)?;
    context.note(format!("the run is in {}", runner.path().display()));
    let told = Validation::new(&device, calibration.into_owned(), seed, &compared.pairs, outcome.skipped.len());
    Ok(Validation { notes: context.notes(), ..told })
}

impl Validation {
    fn new(device: &Device, calibration: Calibration, seed: u64, pairs: &[Pair], skipped: usize) -> Self {
        let covered: Vec<&Pair> =
            pairs.iter().filter(|pair| pair.expected.is_some() && pair.basis == Basis::Calibrated).collect();
        let mut groups: Vec<(String, String)> = covered.iter().map(|pair| group(&calibration, pair)).collect();
        groups.sort();
        groups.dedup();
        let mut rows: Vec<ErrorsOf> = Vec::new();
        for (kernels, precision) in groups {
            let here: Vec<&Pair> = covered
                .iter()
                .copied()
                .filter(|pair| group(&calibration, pair) == (kernels.clone(), precision.clone()))
                .collect();
            rows.push(ErrorsOf::of(kernels, precision, &here));
        }
        rows.push(ErrorsOf::of("all".to_owned(), String::new(), &covered));
        let mut worst = covered.clone();
        worst.sort_by(|one, other| other.error_vs_measured().total_cmp(&one.error_vs_measured()));
        let worst = worst.iter().take(WORST).map(|pair| WorstKernel {
            kernel: format!("{} {}", pair.subject(), pair.label()),
            measured_us: pair.observation.time.micros(),
            expected_us: pair.predicted().micros(),
            error_vs_measured_pct: pair.error_vs_measured() * 100.0,
        });
        Self {
            device: device.label(),
            device_name: device.name.clone(),
            rows,
            worst: worst.collect(),
            seed,
            skipped,
            uncovered: pairs.len() - covered.len(),
            stack: calibration.stack,
            provenance: calibration.provenance,
            notes: Vec::new(),
        }
    }
}

/// What a kernel is counted under.
fn group(calibration: &Calibration, pair: &Pair) -> (String, String) {
    let observed = &pair.observation;
    let family = calibration.family(&observed.op, &observed.formats);
    (family.map_or_else(String::new, |family| family.to_string()), observed.precision.clone())
}

impl ErrorsOf {
    fn of(kernels: String, precision: String, pairs: &[&Pair]) -> Self {
        let sorted = |error: &dyn Fn(&Pair) -> f64| {
            let mut errors: Vec<f64> = pairs.iter().map(|pair| error(pair) * 100.0).collect();
            errors.sort_by(f64::total_cmp);
            errors
        };
        let ideal = sorted(&|pair| (pair.ideal.time().seconds() / pair.observation.time - 1.0).abs());
        let expected = sorted(&Pair::error_vs_measured);
        let mean = |errors: &[f64]| errors.iter().sum::<f64>() / errors.len().max(1) as f64;
        let at = |errors: &[f64], share: f64| if errors.is_empty() { 0.0 } else { quantile(errors, share) };
        Self {
            kernels,
            precision,
            count: pairs.len(),
            ideal_mean_pct: mean(&ideal),
            ideal_median_pct: at(&ideal, 0.5),
            expected_mean_pct: mean(&expected),
            expected_median_pct: at(&expected, 0.5),
            expected_p90_pct: at(&expected, 0.9),
        }
    }
}

#[cfg(test)]
mod tests {
    use roofline_core::{Graph, Machine, Registry, machine::Stack, measurement::Subject, precision::PrecisionSpec};
    use roofline_run::{Null, Protocol, measure};

    use super::*;

    /// The median of two errors is between them.
    #[test]
    fn errors_have_a_median() {
        let device = Registry::builtin().find("h200").unwrap().into_owned();
        let formats = "bf16".parse::<PrecisionSpec>().unwrap().on(&device).unwrap();
        let subject = Subject::new(&Graph::gemv(4096, 4096).unwrap().nodes[0], "bf16", formats);
        let measured = measure(&mut Null::new(device.clone()), &subject, &Protocol::default()).unwrap();
        let once = compare(&[Observation::from(&measured)], &Machine::new(device, Stack::Null), Tier::Ideal);
        let once = once.unwrap().pairs.remove(0);
        // Predicted 20 % and 40 % above what was measured.
        let off = [1.2, 1.4].map(|factor| {
            let mut pair = once.clone();
            pair.observation.time = pair.ideal.time().seconds() / factor;
            pair
        });
        let row = ErrorsOf::of("gemv".to_owned(), String::new(), &off.iter().collect::<Vec<_>>());
        for (said, right) in [
            (row.expected_mean_pct, 30.0),
            (row.expected_median_pct, 30.0),
            (row.ideal_median_pct, 30.0),
            (row.expected_p90_pct, 38.0),
        ] {
            assert!((said - right).abs() < 1e-9, "{said}, not {right}");
        }
        assert_eq!(ErrorsOf::of(String::new(), String::new(), &[]).expected_median_pct, 0.0);
    }
}
