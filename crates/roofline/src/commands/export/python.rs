//! The products of a run as a program that needs PyTorch and nothing of ours.

use roofline_core::{
    Device, Format, Math, Op, Precision,
    device::Peaks,
    format::Sizes,
    measurement::Residency,
    precision::PrecisionSpec,
    units::{ByteRate, Bytes, FlopRate, Flops},
};
use roofline_run::Run;
use roofline_verbs::Context;
use serde::Serialize;

use super::{Exported, standard};
use crate::{cli::ExportArgs, failure::Failure};

const PROGRAM: &str = include_str!("../../../assets/products.py");
/// Precisions that PyTorch multiplies, as tools of this field write them.
const TORCH: [(&str, &str); 6] =
    [("fp16", "FP16"), ("bf16", "BF16"), ("tf32", "TF32"), ("fp32", "FP32"), ("fp8", "FP8_E4M3"), ("int8", "INT8")];
/// A product with what the core knows of it.
#[derive(PartialEq, Serialize)]
struct Case {
    kernel_type: &'static str,
    m: u64,
    n: u64,
    k: u64,
    precision: &'static str,
    flops: Flops,
    bytes: Bytes,
    /// Whether its weights are read from the cache.
    warm: bool,
}

pub(super) fn python(context: &Context, args: &ExportArgs, run: Option<&Run>) -> Result<Exported, Failure> {
    let (cases, left_out) = match run {
        Some(run) => of_run(run),
        None => of_standard(&args.precision)?,
    };
    let named = args.on.as_deref().map(|name| context.device(name)).transpose()?;
    // A run on a GPU says which one it was; one on a processor is repeated on whatever GPU there is.
    let own = run.filter(|run| run.header.backend == "cuda").and_then(|run| context.device(&run.header.device).ok());
    let device = named.or(own);
    let reported = device.as_ref().map(|device| device.reported_names.clone()).unwrap_or_default();
    let script = PROGRAM
        .replace("@KEY@", &text(&device.map(|device| device.label()))?)
        .replace("@REPORTED@", &text(&reported)?)
        .replace("@CASES@", &text(&cases)?);
    Ok(Exported { language: "python", script, count: cases.len(), left_out })
}

/// JSON between Python's quotes, which nothing in it may end.
fn text(value: &impl Serialize) -> Result<String, Failure> {
    let json = serde_json::to_string_pretty(value).map_err(|error| Failure::Output(error.into()))?;
    Ok(json.replace('\'', "\\u0027"))
}

fn of_run(run: &Run) -> (Vec<Case>, Vec<String>) {
    let (mut cases, mut left_out) = (Vec::new(), Vec::new());
    for measured in &run.measurements {
        let words = format!("{} {}", measured.op.words(&measured.site), measured.precision);
        let warm = measured.residency == Residency::Warm;
        match case(&measured.op, &measured.precision, &measured.formats, warm) {
            Ok(case) if cases.contains(&case) => {}
            Ok(case) => cases.push(case),
            Err(why) => left_out.push(format!("{words}: {why}")),
        }
    }
    (cases, left_out)
}

fn of_standard(names: &[String]) -> Result<(Vec<Case>, Vec<String>), Failure> {
    let names: Vec<&str> = match names {
        [] => TORCH.iter().map(|(name, _)| *name).filter(|name| *name != "fp32").collect(),
        names => names.iter().map(String::as_str).collect(),
    };
    let device = everything()?;
    let (mut cases, mut left_out) = (Vec::new(), Vec::new());
    for node in standard()? {
        for name in &names {
            let formats = name.parse::<PrecisionSpec>()?.on(&device)?;
            match case(&node.op, name, &formats, false) {
                Ok(case) => cases.push(case),
                Err(why) => left_out.push(format!("{} {name}: {why}", node.op.words(node.site))),
            }
        }
    }
    Ok((cases, left_out))
}

/// A device that multiplies whatever PyTorch does: bytes and operations do not depend on how fast.
fn everything() -> Result<Device, Failure> {
    let units = [Math::Fp32, Math::Tf32, Math::Fp16, Math::Bf16, Math::Fp8, Math::Int8];
    let peaks = Peaks::distinct(units.map(|math| (math, FlopRate::new(1e15))))?;
    Ok(Device::custom("any", ByteRate::new(1e12), peaks, None)?)
}

/// The product as PyTorch multiplies it, or why it does not.
fn case(op: &Op, precision: &str, formats: &Precision, warm: bool) -> Result<Case, String> {
    let Op::Linear(shape) = op else { return Err("no matrix product".to_owned()) };
    let Some((_, label)) = TORCH.iter().find(|(name, _)| *name == precision) else {
        let known: Vec<&str> = TORCH.iter().map(|(name, _)| *name).collect();
        return Err(format!("PyTorch alone has no product in {precision}; it has {}", known.join(", ")));
    };
    // Its INT8 product writes sums of 32 bits.
    let wide = if precision == "int8" { Precision { output: Format::FP32, ..*formats } } else { *formats };
    let work = op.work(&wide, Sizes::Exact);
    let (m, n, k) = (shape.m.get(), shape.n.get(), shape.k.get());
    let kernel_type = if m == 1 { "gemv" } else { "gemm" };
    Ok(Case { kernel_type, m, n, k, precision: label, flops: work.flops, bytes: work.bytes(), warm })
}
