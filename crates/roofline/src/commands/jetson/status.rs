//! `roofline jetson status`.

use roofline_core::units::{Bytes, Hertz, Watts};
use roofline_verbs::jetson::{EmcSource, Status};
use serde::Serialize;

use super::watts;
use crate::report::{Align, Report, Section, Shown, Table};

/// A look as the one row of a table.
#[derive(Serialize)]
pub(super) struct Line<'a> {
    pub(super) status: [&'a Status; 1],
}

impl Report for Line<'_> {
    const ROWS: &'static str = "status";

    fn sections(&self) -> Vec<Section> {
        Vec::new()
    }
}

impl Report for Shown<'_, Status> {
    const ROWS: &'static str = "status";

    fn sections(&self) -> Vec<Section> {
        let status: &Status = self;
        if !status.is_jetson {
            return vec![Section::Heading("Not a Jetson".to_owned()), Section::Paragraph(status.errors.join("; "))];
        }
        let heading = status.model.as_deref().or(status.part_number.as_deref()).unwrap_or("A Jetson");
        let mut sections = vec![Section::Heading(heading.to_owned()), Section::Facts(facts(status))];
        let mut rails = Table::default().column("rail", Align::Left, 0).column("power", Align::Right, 0);
        for (name, power) in &status.power {
            rails.row([name.as_str().into(), format!("{:.2} W", power.value()).into()]);
        }
        if let Some(total) = status.power_total {
            rails.row(["module".into(), format!("{:.2} W", total.value()).into()]);
        }
        let mut zones = Table::default().column("zone", Align::Left, 0).column("temperature", Align::Right, 0);
        for (name, degrees) in &status.temperatures_c {
            zones.row([name.as_str().into(), format!("{degrees:.1} °C").into()]);
        }
        if !status.power.is_empty() {
            sections.push(Section::Table(rails));
        }
        if !status.temperatures_c.is_empty() {
            sections.push(Section::Table(zones));
        }
        if !status.errors.is_empty() {
            sections.push(Section::Heading("Not read".to_owned()));
            sections.extend(status.errors.iter().cloned().map(Section::Paragraph));
        }
        sections
    }
}

fn facts(status: &Status) -> Vec<(String, String)> {
    let unknown = || "unknown".to_owned();
    let mode = status.power_mode_name.as_ref().map(|name| {
        let id = status.power_mode_id.map_or_else(String::new, |id| format!(", id {id}"));
        let budget = status
            .power_budget
            .map_or_else(String::new, |_| format!(", {}", watts(status.power_budget.map(Watts::value))));
        format!("{name}{id}{budget}")
    });
    let of = |now: Option<String>, most: Option<String>| {
        now.map(|now| format!("{now}{}", most.map_or_else(String::new, |most| format!(" of {most}"))))
    };
    let emc = status.emc_clock.map(|clock| match status.emc_source {
        Some(EmcSource::Cap) => {
            format!("at most {} (the mode's limit; the clock itself is for root only)", megahertz(clock))
        }
        _ => megahertz(clock),
    });
    let jetpack = status.jetpack.map_or_else(String::new, |jetpack| format!(" (JetPack {jetpack})"));
    let clocks = status.jetson_clocks_active.map(|held| if held { "held at their maximum" } else { "follow the load" });
    let memory = status.memory_used.map(gibi).zip(status.memory.map(gibi));
    let all = [
        ("device", status.device.clone()),
        ("Jetson Linux", status.l4t_version.as_ref().map(|version| format!("{version}{jetpack}"))),
        ("power mode", mode),
        ("GPU clock", of(status.gpu_clock.map(megahertz), status.gpu_clock_max.map(megahertz))),
        ("memory clock", emc),
        ("CPU clock", status.cpu_clock.map(megahertz)),
        ("clocks", clocks.map(str::to_owned)),
        ("memory", memory.map(|(used, all)| format!("{used} of {all} in use"))),
        ("swap", status.swap.map(gibi)),
        ("CUDA device", status.cuda_device_name.clone()),
    ];
    // Files have no CUDA; on the board its absence is among what was not read.
    let shown = all.into_iter().filter(|(name, value)| value.is_some() || *name != "CUDA device");
    shown.map(|(name, value)| (name.to_owned(), value.unwrap_or_else(unknown))).collect()
}

fn gibi(size: Bytes) -> String {
    format!("{:.1} GiB", size.value() / 1024f64.powi(3))
}

fn megahertz(clock: Hertz) -> String {
    super::megahertz(clock.value() / 1e6)
}
