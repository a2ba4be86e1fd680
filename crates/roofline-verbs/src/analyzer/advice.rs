//! What the numbers mean, and what to do about it: every sentence with the figures of this model on this device.

use roofline_core::{
    Device, Dim, Plan,
    format::Sizes,
    measurement::Phase,
    model::{Lowering, Workload},
    plan::Assignment,
    predict::forecast,
    units::{Bytes, Seconds},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{place::Found, table::Row};
use crate::{Result, text::number};

/// What a range of lengths has in common.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "AnalyzerFinding")]
pub struct Finding {
    pub phase: &'static str,
    pub from_tokens: u64,
    pub to_tokens: u64,
    pub lowest_oi: f64,
    pub highest_oi: f64,
    pub bottleneck: &'static str,
    pub optimization: &'static str,
}

/// Something to do.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "AnalyzerAdvice")]
pub struct Advice {
    pub title: &'static str,
    pub text: String,
}

/// The longest prompt that is looked at for the place where computing takes over.
const LONGEST: u64 = 65_536;
/// What a short prompt is at most.
const SHORT: u64 = 64;
/// A batch that a server reaches easily.
const BATCH: u64 = 8;
/// Tokens that a draft proposes.
const DRAFT: u64 = 4;

/// The shortest prompt that reaches the ridge; intensity grows with the prompt.
pub(super) fn compute_bound_from(found: &Found, batch: u64) -> Result<Option<u64>> {
    let ridge = found.ridge()?;
    let reaches =
        |tokens: u64| Ok::<_, crate::Error>(found.counted(Phase::Prefill, batch, tokens)?.intensity() >= ridge);
    if !reaches(LONGEST)? {
        return Ok(None);
    }
    let (mut low, mut high) = (1, LONGEST);
    while low < high {
        let middle = u64::midpoint(low, high);
        if reaches(middle)? { high = middle } else { low = middle + 1 }
    }
    Ok(Some(low))
}

pub(super) fn findings(found: &Found, batch: u64, lengths: &[Dim], from: Option<u64>) -> Result<Vec<Finding>> {
    let shortest = lengths.iter().copied().min().unwrap_or(Dim::ONE).get();
    let longest = lengths.iter().copied().max().unwrap_or(Dim::ONE).get();
    let finding = |(label, phase, from, to): (&'static str, Phase, u64, u64), optimization| {
        let (low, high) = (found.row(phase, batch, from)?.standing, found.row(phase, batch, to)?.standing);
        // Cut where computing takes over, a range stands on one side; the longest speaks for it.
        Ok::<_, crate::Error>(Finding {
            phase: label,
            from_tokens: from,
            to_tokens: to,
            lowest_oi: low.operational_intensity.min(high.operational_intensity),
            highest_oi: high.operational_intensity.max(low.operational_intensity),
            bottleneck: high.bound(),
            optimization,
        })
    };
    let mut findings = Vec::new();
    let last = from.map_or(longest, |from| from - 1);
    if last > 0 {
        let short = ("Prefill (short)", Phase::Prefill, SHORT.min(shortest).min(last), last);
        findings.push(finding(short, "Batching, quantization")?);
    }
    if let Some(from) = from {
        let long = ("Prefill (long)", Phase::Prefill, from, longest.max(from));
        findings.push(finding(long, "Flash Attention, Tensor Cores")?);
    }
    findings.push(finding(("Decode", Phase::Decode, shortest, longest), "Quantization, speculative decoding")?);
    Ok(findings)
}

pub(super) fn markdown(findings: &[Finding]) -> String {
    let rows = findings.iter().map(|finding| {
        let Finding { phase, from_tokens, to_tokens, bottleneck, optimization, .. } = finding;
        let (low, high) = (number(finding.lowest_oi), number(finding.highest_oi));
        format!("| {phase} | {from_tokens} to {to_tokens} | {low} to {high} F/B | {bottleneck} | {optimization} |\n")
    });
    let head = "| Phase | Tokens | Operational Intensity | Bottleneck | Optimization |\n|---|---|---|---|---|\n";
    head.to_owned() + &rows.collect::<String>()
}

pub(super) fn insights(found: &Found, rows: &[Row], from: Option<u64>, versus: Option<&Device>) -> Result<Vec<String>> {
    let device = found.device();
    let mut all = vec![format!(
        "{} has its ridge at {:.1} FLOP/B: below it work waits for memory, above it for {}",
        device.name,
        found.ridge()?.value(),
        found.math.label()
    )];
    all.push(match from {
        Some(from) => format!("prompts of {from} tokens and more are compute-bound"),
        None => format!("no prompt up to {LONGEST} tokens is compute-bound"),
    });
    for phase in [Phase::Prefill, Phase::Decode] {
        if let Some(row) = rows.iter().rev().find(|row| row.phase == phase) {
            let standing = &row.standing;
            all.push(format!(
                "{phase} at {} tokens: {} FLOP/B, {}, at most {} TFLOP/s ({} % of the peak)",
                row.seq_len,
                number(standing.operational_intensity),
                standing.bottleneck,
                number(standing.theoretical_tflops),
                number(standing.efficiency_ceiling)
            ));
        }
    }
    if let Some(other) = versus {
        let (own, theirs) = (device.memory.bandwidth, other.memory.bandwidth);
        all.push(format!(
            "memory-bound decode scales with bandwidth: {} ({theirs}) is {:.2}x {} ({own})",
            other.name,
            theirs / own,
            device.name
        ));
    }
    Ok(all)
}

/// The six usual remedies, with what each would bring here by the ideal times of the kernels.
pub(super) fn recommendations(found: &Found, context: u64) -> Result<Vec<Advice>> {
    let Found { model, machine, plan, .. } = found;
    let pass = |workload, lowering, plan: &Assignment| {
        let total = forecast(&model.graph(workload, lowering)?, plan, machine)?.total;
        Ok::<(Seconds, Bytes), crate::Error>((total.ideal.time().seconds(), total.ideal.work.bytes()))
    };
    let usual = Lowering::default();
    let step = |batch| pass(Workload::decode(batch, context)?, usual, plan);
    let (one, read) = step(1)?;
    let rate = |batch: u64, time: Seconds| batch as f64 / time.value();
    let (alone, together, without) = (rate(1, one), rate(BATCH, step(BATCH)?.0), rate(BATCH - 1, step(BATCH - 1)?.0));
    let advice = |title, text| Advice { title, text };
    let mut all = vec![advice(
        "Batching",
        format!(
            "weights are read once for all sequences: {BATCH} at a time make {} tokens/s instead of {} at {context} tokens",
            number(together),
            number(alone)
        ),
    )];
    let narrow = ["w4a16", "w8a16"].into_iter().find_map(|name| {
        let plan = name.parse::<Plan>().ok()?.on(&machine.device, Some(&model.anatomy)).ok()?;
        Some((name, plan))
    });
    if let Some((name, narrow)) = narrow {
        let (time, bytes) = pass(Workload::decode(1, context)?, usual, &narrow)?;
        let (faster, fewer) = (one / time, 100.0 * (1.0 - bytes / read));
        let text = format!("{name} moves {fewer:.0} % fewer bytes for a token: {faster:.2}x as fast");
        all.push(advice("Quantization", text));
    }
    let prompt = Workload::prefill(1, context)?;
    let (fused, eager) = (pass(prompt, usual, plan)?.1, pass(prompt, Lowering { fused: false, ..usual }, plan)?.1);
    all.push(advice(
        "Flash Attention",
        format!("scores that stay on the chip: a prompt of {context} tokens moves {fused} instead of {eager}"),
    ));
    all.push(advice(
        "Continuous batching",
        format!(
            "a place among {BATCH} that stands empty until the longest answer is done costs {} tokens/s",
            number(together - without)
        ),
    ));
    let cache =
        model.kv_bytes(Dim::new("batch", BATCH)?, Dim::new("context", context)?, Dim::ONE, plan.kv(), Sizes::Exact);
    let share = 100.0 * (cache / step(BATCH)?.1);
    all.push(advice(
        "KV-cache formats",
        format!("{BATCH} sequences of {context} tokens keep {cache}, {share:.0} % of what a step reads; FP8 halves it"),
    ));
    let checked = pass(Workload::chunk(1, DRAFT + 1, context.max(DRAFT + 1))?, usual, plan)?.0;
    all.push(advice(
        "Speculative decoding",
        format!("checking {DRAFT} drafted tokens takes {:.2}x as long as making one", checked / one),
    ));
    Ok(all)
}
