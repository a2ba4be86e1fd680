//! Products of many shapes, for reading.

use roofline_verbs::{
    request::BackendName,
    sweep::{Doubt, ShapeSweep},
};

use crate::{
    commands::basis,
    report::{Align, Report, Section, Shown, Table, number},
};

impl Report for Shown<'_, ShapeSweep> {
    const ROWS: &'static str = "points";

    fn sections(&self) -> Vec<Section> {
        let tier = basis::words(self.points.iter().map(|point| (point.figures.tier, point.figures.basis, &[][..])));
        let measured = match (self.backend, self.residency) {
            (Some(BackendName::Null), _) => ", against fake times of the null backend".to_owned(),
            (Some(backend), Some(residency)) => format!(", measured by the {} backend, {residency}", backend.name()),
            _ => ", nothing measured".to_owned(),
        };
        let heading = format!("Products on {}: {tier}{measured}", self.device_name);
        let mut sections =
            vec![Section::Heading(heading), Section::Table(self.table()), Section::Table(self.best_table())];
        sections.extend(self.warnings().into_iter().map(Section::Paragraph));
        let kept = self.run.iter().map(|path| Section::Line(format!("The run is kept in {}.", path.display())));
        sections.extend(kept);
        sections
    }

    /// The first doubt of each kind, and what could not be measured; the records have all.
    fn warnings(&self) -> Vec<String> {
        let mut kinds: Vec<&str> = Vec::new();
        let mut said: Vec<String> = Vec::new();
        for Doubt { kind, text: doubt } in &self.doubts {
            if !kinds.contains(kind) {
                kinds.push(kind);
                said.push(format!("{kind}: {doubt}"));
            }
        }
        said.into_iter().chain(self.skipped.iter().cloned()).collect()
    }
}

impl Shown<'_, ShapeSweep> {
    fn table(&self) -> Table {
        let mut table = Table::default()
            .column("shape", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("FLOP/B", Align::Right, 3)
            .column("sim TFLOP/s", Align::Right, 2)
            .column("sim us", Align::Right, 0)
            .column("bound", Align::Left, 1)
            .column("meas TFLOP/s", Align::Right, 2)
            .column("meas us", Align::Right, 0)
            .column("gap", Align::Right, 0)
            .column("W", Align::Right, 1)
            .column("mJ", Align::Right, 1);
        let some = |value: Option<f64>| value.map_or_else(String::new, number);
        for point in &self.points {
            table.row([
                format!("{} x {} x {}", point.m, point.n, point.k).into(),
                point.precision.as_str().into(),
                number(point.sim_ai).into(),
                number(point.sim_tflops).into(),
                number(point.sim_time_us).into(),
                point.sim_bottleneck.as_str().into(),
                some(point.meas_tflops).into(),
                some(point.meas_time_us).into(),
                point.gap_pct.map_or_else(String::new, |gap| format!("{gap:.0} %")).into(),
                some(point.power_w).into(),
                some(point.energy_j.map(|energy| energy * 1e3)).into(),
            ]);
        }
        table.without_empty_columns()
    }

    fn best_table(&self) -> Table {
        let mut table = Table::default()
            .column("shape", Align::Left, 0)
            .column("fastest", Align::Left, 0)
            .column("speed-up", Align::Right, 0)
            .column("over", Align::Left, 0);
        for best in &self.best {
            table.row([
                best.shape.as_str().into(),
                best.precision.as_str().into(),
                format!("{:.2}x", best.speedup).into(),
                best.over.as_str().into(),
            ]);
        }
        table
    }
}
