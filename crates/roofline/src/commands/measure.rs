//! `roofline measure`.

use roofline_core::measurement::Path;
use roofline_run::Ceiling;
use roofline_verbs::{
    Context,
    measure::{Answer, BestRate, Request, Saturation, measure},
    own::OwnKernel,
    request::BackendName,
};

use serde::Serialize;

use crate::{
    failure::Failure,
    report::{Align, Format, Report, Section, Shown, Table, emit, number, of_passes},
};

pub(crate) fn run(context: &Context, request: &Request, form: Format) -> Result<(), Failure> {
    let answer = measure(context, request)?;
    if form == Format::Csv && !answer.passes.is_empty() {
        emit(&Whole(&answer), form)?;
    } else {
        emit(&Shown::all(&answer), form)?;
    }
    match answer.broken {
        Some(broken) => Err(Failure::Broken(broken)),
        None if answer.stopped => Err(Failure::Interrupted),
        None => Ok(()),
    }
}

/// An answer whose rows are whole passes.
#[derive(Serialize)]
#[serde(transparent)]
struct Whole<'a>(&'a Answer);

impl Report for Whole<'_> {
    const ROWS: &'static str = "passes";

    fn sections(&self) -> Vec<Section> {
        Shown::all(self.0).sections()
    }
}

impl Report for Shown<'_, Answer> {
    const ROWS: &'static str = "measurements";

    fn sections(&self) -> Vec<Section> {
        if !self.passes.is_empty() {
            return self.whole();
        }
        let fake = if self.backend == BackendName::Null { ", fake times" } else { "" };
        let heading = format!(
            "{} on {} ({} backend{fake}, {})",
            self.subject,
            self.device_name,
            self.backend.name(),
            self.residency
        );
        let mut sections = vec![Section::Heading(heading), Section::Table(self.table())];
        sections.extend(self.own.iter().map(|own| {
            let OwnKernel { kernel, shape, verdict, timer, .. } = own;
            Section::Paragraph(format!("{kernel}, {shape}: {verdict}. Timed by {}.", timer.words()))
        }));
        sections.extend(self.energy().map(Section::Table));
        sections.extend(self.saturation.iter().map(|saturation| Section::Table(saturated(saturation))));
        sections.extend(self.doubts().into_iter().map(Section::Paragraph));
        sections.extend(self.run.iter().map(|run| Section::Line(format!("The run is kept in {}.", run.display()))));
        sections.extend(self.written_device.iter().map(|path| {
            let path = path.display();
            Section::Line(format!("What was measured is a device now: {path}, for `--on {path}`."))
        }));
        sections
    }

    fn warnings(&self) -> Vec<String> {
        self.doubts()
    }
}

impl Shown<'_, Answer> {
    /// Models that ran.
    fn whole(&self) -> Vec<Section> {
        let mut sections = vec![Section::Heading(format!("{} on {}", self.subject, self.device_name))];
        sections.extend(of_passes(&self.passes));
        sections.extend(self.run.iter().map(|run| Section::Line(format!("The passes are kept in {}.", run.display()))));
        sections
    }

    /// What calls cost, where power was watched.
    fn energy(&self) -> Option<Table> {
        let mut table = Table::default()
            .column("energy of", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("mJ by power", Align::Right, 0)
            .column("mJ by counter", Align::Right, 0)
            .column("W", Align::Right, 0)
            .column("MHz", Align::Right, 0)
            .column("GFLOP/s/W", Align::Right, 0);
        let watched = self.measurements.iter().filter_map(|row| Some((row, row.energy?)));
        let mut any = false;
        for (row, energy) in watched {
            any = true;
            let optional = |value: Option<f64>| value.map_or_else(String::new, number);
            table.row([
                row.shape.as_str().into(),
                row.precision.as_str().into(),
                number(energy.integrated.value() * 1e3).into(),
                optional(energy.counted_j.map(|energy| energy * 1e3)).into(),
                number(energy.power.value()).into(),
                optional(energy.clock_mhz).into(),
                optional(row.gflops_per_w).into(),
            ]);
        }
        any.then_some(table)
    }

    /// The worst case of each doubt, and what could not be measured.
    fn doubts(&self) -> Vec<String> {
        let mut kinds: Vec<(&str, usize, String)> = Vec::new();
        for (row, warning) in self.measurements.iter().flat_map(|row| row.warnings.iter().map(move |one| (row, one))) {
            if let Some((_, count, _)) = kinds.iter_mut().find(|(name, ..)| *name == warning.name()) {
                *count += 1;
            } else {
                let first = format!("{} {}: {}", row.shape, row.precision, warning.sentence());
                kinds.push((warning.name(), 1, first));
            }
        }
        let paragraph = |(name, count, first): (&str, usize, String)| {
            let more = if count > 1 { format!(" ({count} kernels)") } else { String::new() };
            format!("{name}{more}: {first}")
        };
        let skipped = self.skipped.iter().map(|skipped| {
            let phase = skipped.phase.map(|phase| format!("{phase} ")).unwrap_or_default();
            format!("{phase}{} {}: {}", skipped.op.words(&skipped.site), skipped.precision, skipped.reason)
        });
        kinds.into_iter().map(paragraph).chain(skipped).collect()
    }

    fn table(&self) -> Table {
        let mut table = Table::default()
            .column("phase", Align::Left, 0)
            .column("kernel", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("time us", Align::Right, 0)
            .column("p5-p95", Align::Right, 3)
            .column("n", Align::Right, 6)
            .column("GB/s", Align::Right, 1)
            .column("GFLOP/s", Align::Right, 2)
            .column("of roof", Align::Right, 1)
            .column("off ref", Align::Right, 5)
            .column("code", Align::Left, 4);
        for row in &self.measurements {
            table.row([
                row.phase.map_or_else(String::new, |phase| phase.to_string()).into(),
                row.shape.as_str().into(),
                row.precision.as_str().into(),
                number(row.measured_time_us).into(),
                format!("{}-{}", number(row.p5_us), number(row.p95_us)).into(),
                row.samples.to_string().into(),
                number(row.measured_bandwidth_gb_s).into(),
                number(row.measured_tflops * 1e3).into(),
                row.roof_share.map_or_else(String::new, |share| format!("{:.0} %", share * 100.0)).into(),
                number(row.check_error).into(),
                match row.kernel_path {
                    Path::Unknown => row.kernel.as_str().into(),
                    path => format!("{} ({path})", row.kernel).into(),
                },
            ]);
        }
        table.without_empty_columns()
    }
}

/// The highest rates, and what memory does when nothing is computed.
fn saturated(told: &Saturation) -> Table {
    let mut table = Table::default()
        .column("best", Align::Left, 0)
        .column("shape", Align::Left, 0)
        .column("precision", Align::Left, 0)
        .column("GFLOP/s", Align::Right, 0)
        .column("GB/s", Align::Right, 0)
        .column("of peak", Align::Right, 0);
    let named = |what: &'static str| move |best: &BestRate| (what, best.clone());
    let rows = told
        .product
        .iter()
        .map(named("product"))
        .chain(told.per_precision.iter().map(named("product in")))
        .chain(told.stream.iter().map(named("stream")));
    for (what, best) in rows {
        table.row([
            what.into(),
            best.shape.into(),
            best.precision.into(),
            number(best.tflops * 1e3).into(),
            number(best.bandwidth_gb_s).into(),
            best.share.map_or_else(String::new, |share| format!("{:.0} %", share * 100.0)).into(),
        ]);
    }
    for ceiling in &told.ceilings {
        let (name, time, rate) = match ceiling {
            Ceiling::Stream { name, rate, .. } => (*name, String::new(), number(rate.value() / 1e9)),
            Ceiling::Launch { name, time } => (*name, format!("{} us", number(time.micros())), String::new()),
        };
        table.row(["memory".into(), name.into(), time.into(), String::new().into(), rate.into(), String::new().into()]);
    }
    table
}
