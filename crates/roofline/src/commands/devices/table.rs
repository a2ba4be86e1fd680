//! The three views of devices.

use roofline_core::{
    Device, Math,
    units::{Bytes, FlopRate},
};

use crate::report::{Align, Cell, Section, Table, number};

fn tera(rate: Option<FlopRate>) -> String {
    rate.map_or_else(String::new, |rate| number(rate.value() / 1e12))
}

fn gibibytes(size: Option<Bytes>) -> String {
    size.map_or_else(String::new, |size| number(size.value() / (1u64 << 30) as f64).trim_end_matches(".0").to_owned())
}

/// The faster 16-bit unit.
fn sixteen(device: &Device) -> Option<Math> {
    device.fastest(&[Math::Bf16, Math::Fp16])
}

pub(super) fn list(devices: &[&Device]) -> Vec<Section> {
    let mut table = Table::default()
        .column("device", Align::Left, 0)
        .column("name", Align::Left, 6)
        .column("GiB", Align::Right, 1)
        .column("GB/s", Align::Right, 0)
        .column("16 bit", Align::Right, 0)
        .column("FP8", Align::Right, 2)
        .column("INT8", Align::Right, 3)
        .column("FP4", Align::Right, 4)
        .column("ridge", Align::Right, 5)
        .column("W", Align::Right, 8)
        .column("year", Align::Right, 9)
        .column("figures", Align::Left, 7);
    for device in devices {
        let ridge = sixteen(device).and_then(|math| device.critical_intensity(math));
        table.row([
            device.key.as_str().into(),
            device.name.as_str().into(),
            gibibytes(device.memory.capacity).into(),
            number(device.memory.bandwidth.value() / 1e9).into(),
            tera(sixteen(device).and_then(|math| device.peaks.of(math))).into(),
            tera(device.peaks.of(Math::Fp8)).into(),
            tera(device.peaks.of(Math::Int8)).into(),
            tera(device.peaks.of(Math::Fp4)).into(),
            ridge.map_or_else(String::new, |ridge| number(ridge.value())).into(),
            device.tdp.map_or_else(String::new, |tdp| format!("{:.0}", tdp.value())).into(),
            device.year.map_or_else(String::new, |year| year.to_string()).into(),
            device.confidence.to_string().into(),
        ]);
    }
    if devices.is_empty() {
        return vec![Section::Paragraph("No device matches. `roofline devices` lists all of them.".to_owned())];
    }
    let plural = if devices.len() == 1 { "" } else { "s" };
    vec![
        Section::Heading(format!(
            "{} device{plural}: dense peaks in TFLOP/s, ridge in FLOP/B at 16 bit",
            devices.len()
        )),
        Section::Table(table),
        Section::Paragraph(
            "Dense peaks only: figures with structured sparsity are half of what vendors print first. \
             `roofline devices NAME` shows sources, measured rates and power modes."
                .to_owned(),
        ),
    ]
}

pub(super) fn detail(device: &Device) -> Vec<Section> {
    let mut sections = vec![Section::Heading(format!("{} ({})", device.name, device.label()))];
    sections.push(Section::Facts(facts(device)));
    sections.push(Section::Table(rates(device)));
    if !device.power_modes.is_empty() {
        sections.push(Section::Table(modes(device)));
    }
    let said = [("source", &device.source), ("notes", &device.notes)];
    for (label, text) in said {
        if let Some(text) = text {
            sections.push(Section::Paragraph(format!("{label}: {text}")));
        }
    }
    if let Some(range) = &device.memory.bandwidth_range {
        sections.push(Section::Paragraph(format!("bandwidth range: {}", range.source)));
    }
    if let Some(measured) = &device.measured {
        sections.push(Section::Paragraph(format!("measured by: {}", measured.source)));
    }
    if !device.verified_in.is_empty() {
        sections.push(Section::Paragraph(format!("agrees with: {}", device.verified_in.join("; "))));
    }
    sections
}

/// A name and a value for everything that is known, in the order people ask.
fn properties(device: &Device) -> Vec<(&'static str, String)> {
    let link = |link: &Option<roofline_core::device::Link>| {
        let link = link.as_ref();
        link.map_or_else(String::new, |link| {
            let one_way = link.per_direction.map(|rate| format!(", {rate} each way"));
            let rate = one_way.or_else(|| link.total.map(|rate| format!(", {rate} in all")));
            format!("{}{}", link.kind, rate.unwrap_or_default())
        })
    };
    let shown = |value: Option<String>| value.unwrap_or_default();
    let units = &device.units;
    let count = [
        (units.sm, "multiprocessors"),
        (units.cu, "compute units"),
        (units.xe_cores, "Xe cores"),
        (units.gpu_cores, "GPU cores"),
        (units.cores, "cores"),
    ];
    let one = |count: u32, what: &str| if count == 1 { what.trim_end_matches('s').to_owned() } else { what.to_owned() };
    let count = count.into_iter().find_map(|(count, what)| Some(format!("{} {}", count?, one(count?, what))));
    let clock = &device.clock;
    let clocks = [(clock.boost, "boost"), (clock.tensor, "tensor"), (clock.base, "base")];
    let clocks: Vec<String> =
        clocks.into_iter().filter_map(|(clock, what)| Some(format!("{} {what}", clock?))).collect();
    let cache = &device.cache;
    let caches = [
        (cache.l2, "L2"),
        (cache.l3, "L3"),
        (cache.infinity, "Infinity Cache"),
        (cache.sram, "SRAM"),
        (cache.shared_per_sm, "shared per SM"),
        (cache.lds_per_cu, "LDS per CU"),
    ];
    let caches: Vec<String> =
        caches.into_iter().filter_map(|(size, what)| Some(format!("{} {what}", binary(size?)))).collect();
    let memory = device.memory.kind.as_ref().map_or_else(String::new, |kind| format!(" {kind}"));
    vec![
        ("vendor", device.vendor.clone()),
        ("architecture", device.architecture.clone()),
        ("compute capability", shown(device.compute_capability.clone())),
        ("year", shown(device.year.map(|year| year.to_string()))),
        ("memory", device.memory.capacity.map_or_else(String::new, |size| format!("{}{memory}", binary(size)))),
        ("bandwidth", bandwidth(device)),
        ("units", shown(count)),
        ("clock", clocks.join(", ")),
        ("on chip", caches.join(", ")),
        ("interconnect", link(&device.interconnect)),
        ("host link", link(&device.host_link)),
        ("power", device.tdp.map_or_else(String::new, |tdp| tdp.to_string())),
        ("figures", device.confidence.to_string()),
    ]
}

/// What it is rated at, and the range where there is one.
fn bandwidth(device: &Device) -> String {
    let range = device.memory.bandwidth_range.as_ref();
    let range = range.map_or_else(String::new, |range| format!(" (published range {} to {})", range.low, range.high));
    format!("{}{range}", device.memory.bandwidth)
}

/// Memories are binary: 60 MiB, not 62.91 MB.
fn binary(size: Bytes) -> String {
    const KIB: f64 = 1024.0;
    let size = size.value();
    if size >= KIB * KIB * KIB {
        format!("{} GiB", number(size / KIB / KIB / KIB).trim_end_matches(".0"))
    } else if size >= KIB * KIB {
        format!("{} MiB", size / KIB / KIB)
    } else {
        format!("{} KiB", size / KIB)
    }
}

fn facts(device: &Device) -> Vec<(String, String)> {
    let aliases = [("also called", device.aliases.join(", "))];
    let facts = aliases.into_iter().chain(properties(device)).filter(|(_, value)| !value.is_empty());
    facts.map(|(name, value)| (name.to_owned(), value)).collect()
}

fn rates(device: &Device) -> Table {
    let mut table = Table::default()
        .column("unit", Align::Left, 0)
        .column("dense TFLOP/s", Align::Right, 0)
        .column("ridge FLOP/B", Align::Right, 0)
        .column("measured", Align::Right, 1)
        .column("of peak", Align::Right, 1);
    for (math, peak) in device.peaks.iter() {
        let measured = device.measured.as_ref().and_then(|measured| measured.rates.of(math));
        table.row([
            math.key().into(),
            number(peak.value() / 1e12).into(),
            device.critical_intensity(math).map_or_else(String::new, |ridge| number(ridge.value())).into(),
            tera(measured).into(),
            measured.map_or_else(String::new, |rate| format!("{:.0} %", 100.0 * (rate / peak))).into(),
        ]);
    }
    if let Some(bandwidth) = device.measured.as_ref().and_then(|measured| measured.bandwidth) {
        table.row([
            "memory".into(),
            device.memory.bandwidth.to_string().into(),
            Cell::from(""),
            bandwidth.to_string().into(),
            format!("{:.0} %", 100.0 * (bandwidth / device.memory.bandwidth)).into(),
        ]);
    }
    table.without_empty_columns()
}

fn modes(device: &Device) -> Table {
    let mut table = Table::default()
        .column("power mode", Align::Left, 0)
        .column("W", Align::Right, 0)
        .column("GPU clock", Align::Right, 1)
        .column("SMs", Align::Right, 1)
        .column("GB/s", Align::Right, 0)
        .column("FP16", Align::Right, 0)
        .column("INT8", Align::Right, 0)
        .column("", Align::Left, 2);
    for mode in &device.power_modes {
        let remark = match (mode.default, mode.unverified) {
            (true, _) => "default",
            (_, true) => "unverified",
            _ => "",
        };
        table.row([
            mode.name.as_str().into(),
            mode.power.map_or_else(String::new, |power| format!("{:.0}", power.value())).into(),
            mode.gpu_clock.to_string().into(),
            mode.sm.to_string().into(),
            number(mode.bandwidth.value() / 1e9).into(),
            tera(Some(mode.fp16)).into(),
            tera(mode.int8).into(),
            remark.into(),
        ]);
    }
    table.without_empty_columns()
}

pub(super) fn compare(devices: &[&Device]) -> Vec<Section> {
    let mut table = Table::default().splitting().column("", Align::Left, 0);
    for device in devices {
        table = table.column(device.label(), Align::Left, 0);
    }
    let columns: Vec<Vec<(&str, String)>> = devices.iter().map(|device| properties(device)).collect();
    for at in 0..columns[0].len() {
        let values: Vec<String> = columns.iter().map(|column| column[at].1.clone()).collect();
        if values.iter().any(|value| !value.is_empty()) {
            table.row(std::iter::once(columns[0][at].0.into()).chain(values.into_iter().map(Cell::from)));
        }
    }
    let first = devices[0];
    let against = |value: Option<f64>, base: Option<f64>| match (value, base) {
        (Some(value), Some(base)) => format!(" ({:.2}x)", value / base),
        _ => String::new(),
    };
    let ratio = |device: &Device| device.memory.bandwidth / first.memory.bandwidth;
    table.row(
        std::iter::once("bandwidth ratio".into())
            .chain(devices.iter().map(|device| format!("{:.2}x", ratio(device)).into())),
    );
    for math in Math::ALL {
        let peak = |device: &Device| device.peaks.of(*math).map(FlopRate::value);
        if devices.iter().any(|device| peak(device).is_some()) {
            let cells = devices.iter().map(|device| {
                let rate = peak(device).map_or_else(|| "-".to_owned(), |rate| number(rate / 1e12));
                Cell::from(format!("{rate}{}", against(peak(device), peak(first))))
            });
            table.row(std::iter::once(format!("{} TFLOP/s", math.key()).into()).chain(cells));
        }
    }
    vec![Section::Heading("Side by side, ratios to the first".to_owned()), Section::Table(table)]
}
