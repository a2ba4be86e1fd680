//! A look as people read it: drawn in place, as a line, as a table.

use anstyle::{AnsiColor, Style};
use roofline_core::units::{Bytes, Celsius, Hertz, Watts};
use roofline_run::telemetry::{Status, Throttle};

use super::{
    Look,
    history::{History, sparkline},
};
use crate::report::{Align, Cell, Section, Table, style};

const GIBI: f64 = 1024.0 * 1024.0 * 1024.0;
/// Columns of a bar, and of the names before it.
const BAR: usize = 20;
const NAMES: usize = 14;

/// The live view.
pub(super) struct View<'a> {
    pub(super) look: &'a Look,
    pub(super) history: &'a History,
}

impl View<'_> {
    /// Lines of at most `width` columns.
    pub(super) fn lines(&self, width: usize) -> Vec<String> {
        let (look, status) = (self.look, &self.look.status);
        let mut lines = vec![style::bold(&cut(&title(look), width))];
        let mut line = |name: &str, text: String, colour: Style| {
            let text = cut(text.trim_end(), width.saturating_sub(NAMES));
            lines.push(format!(
                "{}{}",
                style::bold(&cut(&format!("{name:NAMES$}"), width)),
                style::paint(&text, colour)
            ));
        };
        let plain = Style::new();
        let busy = status.gpu_utilization_pct.map(|percent| f64::from(percent) / 100.0);
        let memory_busy = status.mem_utilization_pct.map(|percent| f64::from(percent) / 100.0);
        line("busy", bar(busy, ""), plain);
        line("memory busy", bar(memory_busy, ""), plain);
        line("memory", bar(status.memory_share(), &memory(status).unwrap_or_default()), plain);
        line("power", bar(status.power_share(), &power(look).unwrap_or_default()), plain);
        let sm = clock(status.sm_clock, status.sm_clock_max);
        line("SM clock", bar(share(status.sm_clock, status.sm_clock_max), &sm.unwrap_or_default()), plain);
        let cells = width.saturating_sub(NAMES + 1).min(60);
        for (name, points, top) in [
            ("power, 1 min", self.history.power(), status.power_limit.map(Watts::value)),
            ("clock, 1 min", self.history.clock(), status.sm_clock_max.map(|clock| clock.value() / 1e6)),
        ] {
            let seen = points.iter().map(|point| point.1).fold(1.0, f64::max);
            line(name, sparkline(&points, cells, top.unwrap_or(seen)), plain);
        }
        let warning = Style::new().fg_color(Some(AnsiColor::Yellow.into()));
        let held = status.throttle_reasons.iter().flatten().any(|reason| reason.slows());
        line("held back by", held_back(status), if held { warning } else { plain });
        if let Some(memory) = clock(status.mem_clock, status.mem_clock_max) {
            line("memory clock", memory, plain);
        }
        for (name, text) in facts(look) {
            line(name, text, plain);
        }
        lines
    }
}

/// A look in one line, for a log.
pub(super) fn line(look: &Look) -> String {
    let status = &look.status;
    let parts = [
        Some(format!("{:8.1} s", look.elapsed_s)),
        status.gpu_utilization_pct.map(|percent| format!("busy {percent:3} %")),
        status.mem_used.map(|used| format!("memory {}", gibi(used))),
        status.power_draw.map(|power| format!("power {:.0} W", power.value())),
        status.sm_clock.map(|clock| format!("SM {}", mega(clock))),
        status.temperature.map(|temperature| temperature.to_string()),
        status.throttle_reasons.as_ref().filter(|reasons| !reasons.is_empty()).map(|_| held_back(status)),
        (!status.errors.is_empty()).then(|| format!("{} not read", status.errors.len())),
    ];
    style::printable(&parts.into_iter().flatten().collect::<Vec<_>>().join("  "))
}

/// One look as a table.
pub(super) fn sections(look: &Look) -> Vec<Section> {
    let status = &look.status;
    let mut table = Table::default()
        .column("", Align::Left, 0)
        .column("now", Align::Right, 0)
        .column("of", Align::Right, 0)
        .column("share", Align::Right, 0);
    let mut row = |name: &str, now: Option<String>, of: Option<String>, share: Option<f64>| {
        let share = share.map(percent);
        if now.is_some() || share.is_some() {
            table.row([name.into(), cell(now), cell(of), cell(share)]);
        }
    };
    let whole = |percent: Option<u32>| percent.map(|percent| f64::from(percent) / 100.0);
    row("busy", None, None, whole(status.gpu_utilization_pct));
    row("memory busy", None, None, whole(status.mem_utilization_pct));
    row("memory used", status.mem_used.map(gibi), status.mem_total.map(gibi), status.memory_share());
    row("power", status.power_draw.map(watts), status.power_limit.map(watts), status.power_share());
    if let Some(tdp) = look.tdp_w {
        row("rated power", status.power_draw.map(watts), Some(watts(Watts::new(tdp))), look.power_of_tdp);
    }
    for (name, now, max) in [
        ("SM clock", status.sm_clock, status.sm_clock_max),
        ("graphics clock", status.gpu_clock, status.gpu_clock_max),
        ("memory clock", status.mem_clock, status.mem_clock_max),
    ] {
        row(name, now.map(mega), max.map(mega), share(now, max));
    }
    row(
        "temperature",
        status.temperature.map(|value| value.to_string()),
        status.temperature_throttle.map(|value| value.to_string()),
        None,
    );
    let mut names = vec![("held back by".to_owned(), held_back(status))];
    names.extend(facts(look).into_iter().filter(|(name, _)| *name != "temperature").map(|(n, t)| (n.to_owned(), t)));
    if let Some(energy) = status.total_energy {
        names.push(("energy".to_owned(), format!("{energy} since the driver was loaded")));
    }
    vec![Section::Heading(title(look)), Section::Table(table), Section::Facts(names)]
}

fn title(look: &Look) -> String {
    let status = &look.status;
    let name = status.device_name.as_deref().unwrap_or("a GPU that does not say its name");
    let driver = status.driver_version.as_ref().map_or_else(String::new, |version| format!(", driver {version}"));
    format!("{name} (GPU {}){driver}", look.gpu_index)
}

/// What changes slowly or not at all.
fn facts(look: &Look) -> Vec<(&'static str, String)> {
    let status = &look.status;
    let mut facts = Vec::new();
    if let Some(temperature) = status.temperature {
        let limit = status.temperature_throttle.map(|limit: Celsius| format!(", slows itself down at {limit}"));
        facts.push(("temperature", format!("{temperature}{}", limit.unwrap_or_default())));
    }
    if let (Some(generation), Some(width)) = (status.pcie_gen, status.pcie_width) {
        let traffic = status.pcie_sent.zip(status.pcie_received);
        let traffic = traffic.map(|(sent, received)| format!(", {sent} sent and {received} received"));
        facts.push(("link", format!("PCIe {generation} x{width} now{}", traffic.unwrap_or_default())));
    }
    let capability = status.compute_capability.as_ref().map(|capability| format!("compute capability {capability}"));
    let registry = match (&look.device, &status.device_name) {
        (Some(key), _) => Some(format!("`{key}`")),
        (None, Some(_)) => Some("none of the registry reports this name".to_owned()),
        (None, None) => None,
    };
    let units = status.sm_count.map(|count| format!("{count} multiprocessors"));
    let fp8 = status.has_fp8.filter(|has| *has).map(|_| "FP8".to_owned());
    let device: Vec<String> = registry.into_iter().chain(capability).chain(units).chain(fp8).collect();
    if !device.is_empty() {
        facts.push(("device", device.join(", ")));
    }
    if !status.errors.is_empty() {
        let errors: Vec<String> = status.errors.iter().map(|(query, reason)| format!("{query} ({reason})")).collect();
        facts.push(("not read", errors.join(", ")));
    }
    facts
}

fn held_back(status: &Status) -> String {
    match &status.throttle_reasons {
        None => "unknown".to_owned(),
        Some(reasons) if reasons.is_empty() => "nothing".to_owned(),
        Some(reasons) => reasons.iter().copied().map(Throttle::words).collect::<Vec<_>>().join(", "),
    }
}

fn memory(status: &Status) -> Option<String> {
    let used = status.mem_used?.value() / GIBI;
    Some(format!("{used:.1} of {}", gibi(status.mem_total?)))
}

fn power(look: &Look) -> Option<String> {
    let draw = look.status.power_draw?.value();
    let limit = look.status.power_limit.map_or_else(String::new, |limit| format!(" of {:.0}", limit.value()));
    let rated = look.power_of_tdp.zip(look.tdp_w);
    let rated = rated.map_or_else(String::new, |(share, tdp)| format!(", {} of rated {tdp:.0} W", percent(share)));
    Some(format!("{draw:.0}{limit} W{rated}"))
}

fn clock(now: Option<Hertz>, max: Option<Hertz>) -> Option<String> {
    let max = max.map_or_else(String::new, |max| format!(" of {:.0}", max.value() / 1e6));
    Some(format!("{:.0}{max} MHz", now?.value() / 1e6))
}

fn share(now: Option<Hertz>, max: Option<Hertz>) -> Option<f64> {
    Some(now? / max.filter(|max| *max > Hertz::ZERO)?)
}

/// A bar, its share and more; without a share the bar is dotted.
fn bar(share: Option<f64>, more: &str) -> String {
    let Some(share) = share else { return format!("{}      -  {more}", "·".repeat(BAR)) };
    let full = (share * BAR as f64).round().clamp(0.0, BAR as f64) as usize;
    format!("{}{}  {:>5}  {more}", "█".repeat(full), "░".repeat(BAR - full), percent(share))
}

fn cell(text: Option<String>) -> Cell {
    text.unwrap_or_default().into()
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

fn watts(power: Watts) -> String {
    format!("{:.0} W", power.value())
}

fn mega(clock: Hertz) -> String {
    format!("{:.0} MHz", clock.value() / 1e6)
}

fn gibi(size: Bytes) -> String {
    format!("{:.1} GiB", size.value() / GIBI)
}

/// The first `width` letters.
fn cut(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}
