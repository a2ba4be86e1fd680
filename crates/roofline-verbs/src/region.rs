//! A part of a program that somebody timed: where it stands under the roof, by the operations and bytes it had to do.
//!
//! Who times a block of code knows what it computes; nothing here asks how. The time is theirs, and so are the counts.

use clap::Args;
use roofline_core::{
    Device, Plan,
    units::{Bytes, FlopRate, Flops, Seconds},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Context, Error, Note, Result, text::number};

/// What was timed.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "RegionRequest")]
pub struct Request {
    /// What it is called
    pub name: String,
    /// How long it took, in seconds
    #[arg(long)]
    pub seconds: f64,
    /// Operations; a multiply-add is two
    #[arg(long)]
    pub flops: Option<f64>,
    /// Bytes between memory and the chip, both ways
    #[arg(long)]
    pub bytes: Option<f64>,
    /// The device that it ran on; without one there are rates, and no roof
    #[arg(long)]
    pub on: Option<String>,
    /// Whose unit multiplied; 16 bit when left out
    #[arg(long)]
    pub precision: Option<String>,
    /// Energy that it took, in joules, where somebody counted
    #[arg(long)]
    pub joules: Option<f64>,
}

/// A timed part against its roof.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RegionAnswer")]
pub struct Answer {
    pub name: String,
    pub device: Option<String>,
    pub device_name: Option<String>,
    pub precision: Option<String>,
    pub seconds: f64,
    pub tflops: Option<f64>,
    pub gb_s: Option<f64>,
    /// Operations per byte.
    pub intensity: Option<f64>,
    /// The least time that those counts allow.
    pub ideal_time_us: Option<f64>,
    /// Ideal over measured time: 1 is the roof.
    pub of_roof: Option<f64>,
    /// Which of the two takes longer at the roof: `memory` or `compute`.
    pub bound: Option<&'static str>,
    pub watts: Option<f64>,
    pub joules: Option<f64>,
    pub gflops_per_joule: Option<f64>,
    pub verdict: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// The shortest time, in seconds, of which a counter of energy says anything: NVML's moves every 20 to 100 ms, so that parts
/// of milliseconds would be told to have taken twice what the device can, or nothing.
const COUNTED: f64 = 1.0;

/// Where a timed part stands.
pub fn region(context: &Context, asked: &Request) -> Result<Answer> {
    let positive = |name: &str, value: f64| {
        let fits = value.is_finite() && value > 0.0;
        fits.then_some(value).ok_or_else(|| Error::request(format!("⟨{name}⟩ is {value}"), "a number above nought"))
    };
    let given = |name: &str, value: Option<f64>| value.map(|value| positive(name, value)).transpose();
    let time = Seconds::new(positive("seconds", asked.seconds)?);
    let flops = given("flops", asked.flops)?.map(Flops::new);
    let bytes = given("bytes", asked.bytes)?.map(Bytes::new);
    let joules = given("joules", asked.joules)?;
    if joules.is_some() && time.value() < COUNTED {
        context.note(format!(
            "counters of energy move some ten times a second: a power is told of parts that take {COUNTED} s and more"
        ));
    }
    let joules = joules.filter(|_| time.value() >= COUNTED);
    let roof = asked.on.as_deref().map(|on| Roof::of(context, on, asked.precision.as_deref())).transpose()?;
    let compute = flops.zip(roof.as_ref()).map(|(flops, roof)| flops / roof.peak);
    let memory = bytes.zip(roof.as_ref()).map(|(bytes, roof)| bytes / roof.device.memory.bandwidth);
    let ideal = [compute, memory].into_iter().flatten().reduce(Seconds::max);
    let of_roof = ideal.map(|ideal| ideal / time);
    let bound = ideal.map(|ideal| if memory == Some(ideal) { "memory" } else { "compute" });
    Ok(Answer {
        name: asked.name.clone(),
        device: roof.as_ref().map(|roof| roof.device.label()),
        device_name: roof.as_ref().map(|roof| roof.device.name.clone()),
        precision: roof.as_ref().map(|roof| roof.plan.to_string()),
        seconds: time.value(),
        tflops: flops.map(|flops| (flops / time).value() / 1e12),
        gb_s: bytes.map(|bytes| (bytes / time).value() / 1e9),
        intensity: flops.zip(bytes).map(|(flops, bytes)| (flops / bytes).value()),
        ideal_time_us: ideal.map(Seconds::micros),
        of_roof,
        bound,
        watts: joules.map(|joules| joules / time.value()),
        joules,
        gflops_per_joule: joules.zip(flops).map(|(joules, flops)| flops.value() / joules / 1e9),
        verdict: verdict(of_roof, bound, memory.is_none() || compute.is_none()),
        notes: context.notes(),
    })
}

/// A device and the unit that multiplied.
struct Roof {
    device: Device,
    plan: Plan,
    peak: FlopRate,
}

impl Roof {
    fn of(context: &Context, on: &str, precision: Option<&str>) -> Result<Self> {
        let device = context.device(on)?;
        let plan: Plan = precision.map_or_else(|| device.sixteen_bit().to_string(), str::to_owned).parse()?;
        let peak = device.peaks.of(plan.layers(&device)?.math).ok_or_else(|| {
            Error::request(format!("{} has no peak for {plan}", device.name), "name another by ⟨precision⟩")
        })?;
        Ok(Self { device, plan, peak })
    }
}

fn verdict(of_roof: Option<f64>, bound: Option<&str>, half: bool) -> String {
    let (Some(of_roof), Some(bound)) = (of_roof, bound) else {
        return "timed; with ⟨on⟩, and ⟨flops⟩ or ⟨bytes⟩, it has a place under the roof".to_owned();
    };
    let rest = if half { ", by the one count that was given" } else { "" };
    if of_roof > 1.0 {
        return format!(
            "{}x as fast as the roof allows{rest}: the counts, the precision or the device cannot be what ran, or a cache \
             served it",
            number(of_roof)
        );
    }
    format!("{bound}-bound, at {:.0} % of the roof{rest}", of_roof * 100.0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::request::{answers_fit, from_json};

    fn asked(fields: &Value) -> Result<Answer> {
        let mut body = json!({ "name": "prefill", "on": "h200", "seconds": 0.001 });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        region(&Context::pure(), &from_json(body)?)
    }

    /// 4.8 GB in a millisecond is all that an H200's memory moves; 98.9 TFLOP/s is a tenth of its peak.
    #[test]
    fn counts_and_a_time_have_a_place() {
        let both = asked(&json!({ "flops": 98.94e9, "bytes": 4.8e9 })).unwrap();
        answers_fit(&both);
        assert!((both.of_roof.unwrap() - 1.0).abs() < 0.01 && both.bound == Some("memory"), "{}", both.verdict);
        assert_eq!(both.tflops, Some(98.94));
        let flops = asked(&json!({ "flops": 98.94e9 })).unwrap();
        assert!((flops.of_roof.unwrap() - 0.1).abs() < 0.001 && flops.bound == Some("compute"), "{}", flops.verdict);
        assert_eq!(asked(&json!({})).unwrap().of_roof, None);
        let nowhere = asked(&json!({ "on": null, "flops": 98.94e9 })).unwrap();
        assert_eq!((nowhere.of_roof, nowhere.tflops), (None, Some(98.94)));
        assert!(asked(&json!({ "bytes": 4.8e12 })).unwrap().verdict.contains("cannot be what ran"));
    }

    /// A counter that moves ten times a second says nothing of a millisecond.
    #[test]
    fn short_parts_have_no_power() {
        let long = asked(&json!({ "seconds": 2.0, "joules": 1000.0, "flops": 1e12 })).unwrap();
        assert_eq!((long.watts, long.gflops_per_joule, long.notes.len()), (Some(500.0), Some(1.0), 0));
        let short = asked(&json!({ "joules": 1.3, "flops": 1e9 })).unwrap();
        assert_eq!((short.watts, short.joules, short.gflops_per_joule, short.notes.len()), (None, None, None, 1));
    }

    #[test]
    fn what_is_no_count_is_refused() {
        for wrong in [
            json!({ "flops": -1 }),
            json!({ "bytes": 0 }),
            json!({ "seconds": 0 }),
            json!({ "on": "h20O" }),
            json!({ "precision": "q" }),
        ] {
            assert!(asked(&wrong).is_err(), "{wrong}");
        }
    }
}
