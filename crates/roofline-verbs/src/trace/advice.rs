//! What to do first: the largest losses of a trace in sentences, each with what it costs.

use roofline_core::predict::Bound;

use super::{Answer, Profiler, TracedOperator};
use crate::text::number;

/// Sentences that are told.
const MOST: usize = 4;
/// A loss below this share of the time is not worth a sentence.
const LEAST: f64 = 0.02;
/// Above this share of the roof a kernel is as good as kernels get.
const GOOD: f64 = 0.7;

/// Where time is lost, the most first.
pub(super) fn first(answer: &Answer) -> Vec<String> {
    // What is lost between kernels is lost beside the time of kernels.
    let whole = answer.time_us + answer.occupations.iter().map(|gpu| gpu.idle_us).sum::<f64>();
    let idle = answer.occupations.iter().map(|gpu| {
        let text = format!(
            "GPU {} waits for {} of {} ms between its kernels ({:.0} %; {} gaps, the longest of {} us): the processor \
             starts them too slowly. Larger batches, `torch.compile` or CUDA graphs close the gaps; no faster kernel does.",
            gpu.gpu,
            number(gpu.idle_us / 1e3),
            number(gpu.span_us / 1e3),
            gpu.idle_share * 100.0,
            gpu.gaps,
            number(gpu.longest_gap_us)
        );
        (gpu.idle_us, text)
    });
    let slow = answer.operators.iter().filter_map(|row| match answer.source {
        Profiler::Ncu => counted(row),
        _ => Some((row.beyond_roof_us?, beyond(row)?)),
    });
    let mut losses: Vec<(f64, String)> = idle.chain(slow).filter(|(lost, _)| *lost > LEAST * whole).collect();
    losses.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut told: Vec<String> = losses.into_iter().take(MOST).map(|(_, text)| text).collect();
    told.extend(unknown(answer));
    told
}

/// An operator that is slower than its roof.
fn beyond(row: &TracedOperator) -> Option<String> {
    let (of_roof, bound, beyond) = (row.of_roof?, row.bound?, row.beyond_roof_us?);
    let worst = row.shapes.first()?;
    let standing = format!(
        "`{}` takes {:.0} % of the time at {} % of its roof, {} ms beyond it; most of it is {} in {}",
        row.operator,
        row.share * 100.0,
        if of_roof < 0.095 { number(of_roof * 100.0) } else { format!("{:.0}", of_roof * 100.0) },
        number(beyond / 1e3),
        worst.shape,
        worst.precision
    );
    let launch = worst.ideal_time_us < 5.0 && worst.median_us < 30.0 && of_roof < GOOD;
    let remedy = match bound {
        _ if of_roof > 1.02 => {
            return Some(format!(
                "{standing}. That is faster than memory and units of this device allow: its operands stayed in a cache, \
                 or the device is not the one that was named."
            ));
        }
        _ if launch => {
            "a call has less than 5 us of work, so starting it counts most: batch it, or fuse it with its neighbours"
        }
        Bound::Memory if of_roof >= GOOD => {
            "it waits for memory and reads it nearly as fast as that goes: only fewer bytes help, by narrower weights \
             (⟨roofline recommend⟩) or more rows for each read"
        }
        Bound::Compute if of_roof >= GOOD => {
            "the units are nearly full: only a narrower precision with faster units, or less work, helps"
        }
        Bound::Memory => {
            "it waits for memory, and not at its full rate: contiguous operands, a fused kernel or another library first, \
             then fewer bytes"
        }
        Bound::Compute if worst.precision == "fp32" => {
            "it multiplies in FP32: bf16, or TF32 by `torch.set_float32_matmul_precision`, has much faster units"
        }
        _ => "the units could do more: sides that are multiples of the tiles, another library or a compiled kernel",
    };
    Some(format!("{standing}: {remedy}."))
}

/// A kernel that Nsight Compute counted the bytes of.
fn counted(row: &TracedOperator) -> Option<(f64, String)> {
    let of_bandwidth = row.of_bandwidth?;
    let standing = format!(
        "`{}` takes {:.0} % of the time and moves {} GB/s, {:.0} % of the bandwidth",
        row.operator,
        row.share * 100.0,
        number(row.gb_s?),
        of_bandwidth * 100.0
    );
    let text = if of_bandwidth >= GOOD {
        "it waits for memory, which is nearly full: only fewer bytes help"
    } else {
        "memory is not what it waits for: it computes, or waits for single answers; see its units in Nsight Compute"
    };
    Some((row.time_us * (1.0 - of_bandwidth).max(0.05), format!("{standing}: {text}.")))
}

/// What cannot be judged, and how it could be.
fn unknown(answer: &Answer) -> Option<String> {
    let missing = 1.0 - answer.known_share;
    let any = answer.operators.iter().any(|row| row.known_time_us > 0.0);
    match answer.source {
        Profiler::Ncu => None,
        _ if !any => Some(
            "No operator of the trace has a shape that a roof follows from: record it with `record_shapes=True`."
                .to_owned(),
        ),
        _ if missing > 0.25 => Some(format!(
            "{:.0} % of the time is in operators or kernels whose work does not follow from the trace; they have no roof here.",
            missing * 100.0
        )),
        _ => None,
    }
}
