//! Whole passes of models that ran, for `roofline measure` and `roofline compare`.

use roofline_core::measurement::Phase;

use super::{Align, Section, Table};
use crate::{
    measure::{MeasuredOperator, MeasuredPass, PassClock},
    text::number,
};

/// A table of passes, then one of operators for each of them.
pub fn sections(passes: &[MeasuredPass]) -> Vec<Section> {
    if passes.is_empty() {
        return Vec::new();
    }
    let operators = passes.iter().map(|pass| Section::Folded(name(pass), vec![Section::Table(operators(pass))]));
    let by_device = passes.iter().any(|pass| pass.clock == PassClock::Device);
    [Section::Table(speeds(passes)), Section::Table(memory(passes))]
        .into_iter()
        .chain(power(passes).map(Section::Table))
        .chain(by_device.then(|| Section::Paragraph(BY_DEVICE.to_owned())))
        .chain(operators)
        .collect()
}

/// What has to be known of times that a GPU took itself.
const BY_DEVICE: &str = "Times are by the GPU's clock. Those of operators are of passes of their own, with a clock between \
                         kernels: they say where the time goes, and their sum is more than a pass takes.";

/// What tells a pass from the others.
fn name(pass: &MeasuredPass) -> String {
    format!("{} {}, batch {}, prompt {}", pass.model, pass.precision, pass.batch, pass.prompt)
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(String::new, number)
}

fn millis(micros: Option<f64>) -> String {
    optional(micros.map(|time| time / 1e3))
}

fn percent(error: Option<f64>) -> String {
    error.map_or_else(String::new, |error| format!("{} %", number(error)))
}

fn speeds(passes: &[MeasuredPass]) -> Table {
    let mut table = Table::default()
        .column("model", Align::Left, 0)
        .column("weights", Align::Left, 0)
        .column("batch", Align::Right, 0)
        .column("prompt", Align::Right, 0)
        .column("first ms", Align::Right, 0)
        .column("predicted", Align::Right, 2)
        .column("off", Align::Right, 1)
        .column("token ms", Align::Right, 0)
        .column("p95", Align::Right, 4)
        .column("predicted", Align::Right, 2)
        .column("off", Align::Right, 1)
        .column("tokens/s", Align::Right, 0)
        .column("prompt tokens/s", Align::Right, 3);
    for pass in passes {
        table.row([
            pass.model.as_str().into(),
            pass.precision.as_str().into(),
            pass.batch.to_string().into(),
            pass.prompt.to_string().into(),
            millis(Some(pass.ttft_us)).into(),
            millis(pass.predicted_ttft_us).into(),
            percent(pass.ttft_error_pct).into(),
            millis(pass.tpot_us).into(),
            millis(pass.tpot_p95_us).into(),
            millis(pass.predicted_tpot_us).into(),
            percent(pass.tpot_error_pct).into(),
            optional(pass.tokens_per_s).into(),
            number(pass.prefill_tokens_per_s).into(),
        ]);
    }
    table.without_empty_columns()
}

/// What each phase drew, and how long its passes took for whoever waited, where they ran on a GPU.
fn power(passes: &[MeasuredPass]) -> Option<Table> {
    let mut table = Table::default()
        .column("on the GPU", Align::Left, 0)
        .column("first ms, waited", Align::Right, 2)
        .column("token ms, waited", Align::Right, 2)
        .column("prompt W", Align::Right, 1)
        .column("prompt tokens/J", Align::Right, 0)
        .column("token W", Align::Right, 1)
        .column("tokens/J", Align::Right, 0);
    let mut any = false;
    for pass in passes.iter().filter(|pass| pass.clock == PassClock::Device || pass.decode_power_w.is_some()) {
        any = true;
        table.row([
            name(pass).into(),
            millis(pass.host_ttft_us).into(),
            millis(pass.host_tpot_us).into(),
            optional(pass.prefill_power_w).into(),
            optional(pass.prefill_tokens_per_joule).into(),
            optional(pass.decode_power_w).into(),
            optional(pass.decode_tokens_per_joule).into(),
        ]);
    }
    any.then(|| table.without_empty_columns())
}

fn memory(passes: &[MeasuredPass]) -> Table {
    let mut table = Table::default()
        .column("memory of", Align::Left, 0)
        .column("weights", Align::Right, 0)
        .column("cache", Align::Right, 0)
        .column("predicted", Align::Right, 0)
        .column("peak", Align::Right, 0)
        .column("loaded in s", Align::Right, 1);
    for pass in passes {
        table.row([
            name(pass).into(),
            pass.weights_bytes.to_string().into(),
            pass.cache_bytes.to_string().into(),
            pass.predicted_memory_bytes.map_or_else(String::new, |bytes| bytes.to_string()).into(),
            pass.peak_memory_bytes.map_or_else(String::new, |bytes| bytes.to_string()).into(),
            number(pass.load_s).into(),
        ]);
    }
    table.without_empty_columns()
}

/// Each site of a pass, in the order in which it runs.
fn operators(pass: &MeasuredPass) -> Table {
    let mut table = Table::default()
        .column("phase", Align::Left, 0)
        .column("operator", Align::Left, 0)
        .column("runs", Align::Right, 1)
        .column("measured us", Align::Right, 0)
        .column("of pass", Align::Right, 2)
        .column("predicted us", Align::Right, 0)
        .column("ratio", Align::Right, 0)
        .column("ideal us", Align::Right, 3);
    let all = |phase: Phase| -> f64 {
        let own = pass.operators.iter().filter(|operator| operator.phase == phase);
        own.map(|operator| operator.measured_time_us).sum()
    };
    for operator in &pass.operators {
        let MeasuredOperator { phase, site, count, measured_time_us, predicted_time_us, ideal_time_us, ratio } =
            operator;
        table.row([
            phase.to_string().into(),
            (*site).into(),
            count.to_string().into(),
            number(*measured_time_us).into(),
            format!("{:.0} %", 100.0 * measured_time_us / all(*phase)).into(),
            optional(*predicted_time_us).into(),
            optional(*ratio).into(),
            optional(*ideal_time_us).into(),
        ]);
    }
    table.without_empty_columns()
}
