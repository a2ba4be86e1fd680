//! `roofline calibrate --validate`: how far the calibration in use is from kernels it never saw.

mod draw;

use roofline_core::{
    Device,
    calibration::Calibration,
    compare::{Observation, Pair, compare},
    machine::Basis,
    measurement::quantile,
    predict::Tier,
};
use serde::Serialize;

use self::draw::draw;
use super::{stack, stored};
use crate::{
    cli::CalibrateArgs,
    commands::runner::Runner,
    failure::Failure,
    report::{Align, Format, Report, Section, Table, emit, number, style},
};

/// Errors on random shapes: `|predicted - measured| / measured`.
#[derive(Serialize)]
struct Validation {
    device: String,
    device_name: String,
    stack: String,
    provenance: String,
    seed: u64,
    rows: Vec<Row>,
    worst: Vec<Worst>,
    /// Kernels that could not be measured.
    skipped: usize,
    /// Kernels that no term covers.
    uncovered: usize,
}

/// The errors of some kernels, in percent.
#[derive(Serialize)]
struct Row {
    kernels: String,
    precision: String,
    count: usize,
    ideal_mean_pct: f64,
    ideal_median_pct: f64,
    expected_mean_pct: f64,
    expected_median_pct: f64,
    expected_p90_pct: f64,
}

#[derive(Serialize)]
struct Worst {
    kernel: String,
    measured_us: f64,
    expected_us: f64,
    error_vs_measured_pct: f64,
}

/// Worst kernels that are named.
const WORST: usize = 5;

pub(super) fn validate(args: &CalibrateArgs, count: usize, form: Format) -> Result<(), Failure> {
    let mut runner = Runner::start(&args.run, args.on.as_deref(), "validate")?;
    let device = runner.device().clone();
    let stack = stack(runner.backend.name());
    let calibration = stored(&device, stack).ok_or_else(|| {
        let message = format!("there is no calibration of {} ({}) to validate", device.name, device.key);
        Failure::usage(message, "`roofline calibrate` makes one")
    })?;
    if args.run.seconds.is_none() {
        runner.protocol.stop = roofline_run::Protocol::quick().stop;
    }
    let subjects = draw(&device, count, args.seed, |subject| runner.backend.supports(subject).is_ok())?;
    let outcome = runner.measure(&subjects)?.nonempty()?;
    let observations: Vec<Observation> = outcome.measured.iter().map(Observation::from).collect();
    let machine = super::machine(device.clone(), runner.backend.name());
    let compared = compare(&observations, &machine, Tier::Expected)?;
    style::talk("note", &format!("the run is in {}", runner.path().display()));
    let report = Validation::new(&device, calibration.into_owned(), args.seed, &compared.pairs, outcome.skipped.len());
    Ok(emit(&report, form)?)
}

impl Validation {
    fn new(device: &Device, calibration: Calibration, seed: u64, pairs: &[Pair], skipped: usize) -> Self {
        let covered: Vec<&Pair> =
            pairs.iter().filter(|pair| pair.expected.is_some() && pair.basis == Basis::Calibrated).collect();
        let mut groups: Vec<(String, String)> = covered.iter().map(|pair| group(&calibration, pair)).collect();
        groups.sort();
        groups.dedup();
        let mut rows: Vec<Row> = Vec::new();
        for (kernels, precision) in groups {
            let here: Vec<&Pair> = covered
                .iter()
                .copied()
                .filter(|pair| group(&calibration, pair) == (kernels.clone(), precision.clone()))
                .collect();
            rows.push(Row::of(kernels, precision, &here));
        }
        rows.push(Row::of("all".to_owned(), String::new(), &covered));
        let mut worst = covered.clone();
        worst.sort_by(|one, other| other.error_vs_measured().total_cmp(&one.error_vs_measured()));
        let worst = worst.iter().take(WORST).map(|pair| Worst {
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
        }
    }
}

/// What a kernel is counted under.
fn group(calibration: &Calibration, pair: &Pair) -> (String, String) {
    let observed = &pair.observation;
    let family = calibration.family(&observed.op, &observed.formats);
    (family.map_or_else(String::new, |family| family.to_string()), observed.precision.clone())
}

impl Row {
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

impl Report for Validation {
    const ROWS: &'static str = "rows";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default().column("kernels", Align::Left, 0).column("precision", Align::Left, 0).column(
            "count",
            Align::Right,
            0,
        );
        for name in ["ideal mean %", "ideal median %", "mean %", "median %", "p90 %"] {
            table = table.column(name, Align::Right, 0);
        }
        for row in &self.rows {
            let errors = [
                row.ideal_mean_pct,
                row.ideal_median_pct,
                row.expected_mean_pct,
                row.expected_median_pct,
                row.expected_p90_pct,
            ];
            let first = [row.kernels.clone(), row.precision.clone(), row.count.to_string()];
            table.row(first.into_iter().chain(errors.map(|error| format!("{error:.1}"))).map(Into::into));
        }
        let mut worst = Table::default().column("worst", Align::Left, 0);
        for name in ["measured us", "expected us", "error %"] {
            worst = worst.column(name, Align::Right, 0);
        }
        for row in &self.worst {
            let numbers = [row.measured_us, row.expected_us, row.error_vs_measured_pct].map(number);
            worst.row(std::iter::once(row.kernel.clone()).chain(numbers).map(Into::into));
        }
        let mut sections = vec![
            Section::Heading(format!(
                "Expected against measured on {}: random shapes of seed {}",
                self.device_name, self.seed
            )),
            Section::Table(table),
            Section::Table(worst),
            Section::Paragraph(format!("Errors are relative to the measured time. Calibration: {}.", self.provenance)),
        ];
        if self.skipped + self.uncovered > 0 {
            let (skipped, uncovered) = (self.skipped, self.uncovered);
            let text = format!("{skipped} kernels could not be measured; {uncovered} have no expected time.");
            sections.push(Section::Paragraph(text));
        }
        sections
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
        let row = Row::of("gemv".to_owned(), String::new(), &off.iter().collect::<Vec<_>>());
        for (said, right) in [
            (row.expected_mean_pct, 30.0),
            (row.expected_median_pct, 30.0),
            (row.ideal_median_pct, 30.0),
            (row.expected_p90_pct, 38.0),
        ] {
            assert!((said - right).abs() < 1e-9, "{said}, not {right}");
        }
        assert_eq!(Row::of(String::new(), String::new(), &[]).expected_median_pct, 0.0);
    }
}
