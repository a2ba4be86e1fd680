//! What a GPU does now: clocks, power, temperature, memory, and what holds it back.

use std::{borrow::Cow, time::Instant};

use clap::Args;
use roofline_core::{Device, units::Watts};
use roofline_run::telemetry::{Gpu, Source, Status};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Context, Note, Result, runner::now};

/// Which GPU.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "MonitorRequest")]
pub struct Request {
    /// Which GPU, in the order of `nvidia-smi`
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    pub gpu: u32,
}

/// What was seen at one moment.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "MonitorAnswer")]
pub struct Answer {
    pub gpu_index: u32,
    /// When, in UTC.
    pub time: String,
    /// Since the first look.
    pub elapsed_s: f64,
    #[serde(flatten)]
    pub status: Status,
    /// Key of the registry's device that reports exactly this name.
    pub device: Option<String>,
    /// Its rated power.
    pub tdp_w: Option<f64>,
    /// Power over rated power.
    pub power_of_tdp: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// One look at a GPU.
pub fn monitor(context: &Context, request: &Request) -> Result<Answer> {
    let look = Watched::open(context, request)?.look();
    Ok(Answer { notes: context.notes(), ..look })
}

/// A GPU for as many looks as somebody wants, and the device of the registry that reports its name.
pub struct Watched {
    source: Box<dyn Source>,
    index: u32,
    device: Option<Device>,
    started: Instant,
}

impl Watched {
    /// A GPU of this machine.
    pub fn open(context: &Context, request: &Request) -> Result<Self> {
        Ok(Self::new(context, Box::new(Gpu::open(request.gpu)?), request.gpu))
    }

    /// Whatever answers like one.
    pub fn new(context: &Context, source: Box<dyn Source>, index: u32) -> Self {
        let name = source.device_name().ok();
        let device = name.and_then(|name| context.registry().reported(&name).map(Cow::into_owned));
        Self { source, index, device, started: Instant::now() }
    }

    /// When the first look was taken.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// What it says now.
    pub fn look(&self) -> Answer {
        let status = Status::read(&*self.source);
        let tdp = self.device.as_ref().and_then(|device| device.tdp);
        Answer {
            gpu_index: self.index,
            time: now(),
            elapsed_s: (self.started.elapsed().as_secs_f64() * 1e3).round() / 1e3,
            device: self.device.as_ref().map(Device::label),
            tdp_w: tdp.map(Watts::value),
            power_of_tdp: status.power_draw.zip(tdp).map(|(power, tdp)| power / tdp),
            status,
            notes: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::request::{answers_fit, from_json};

    /// A machine without a driver says so; one with a GPU has more to say.
    #[test]
    fn a_look_fits_its_schema() {
        let request: Request = from_json(json!({ "gpu": 0 })).unwrap();
        match monitor(&Context::pure(), &request) {
            Ok(answer) => answers_fit(&answer),
            Err(error) => assert!(["no_driver", "no_gpu"].contains(&error.kind()), "{error}"),
        }
        let (device, tdp_w, power_of_tdp) = (Some("h200_sxm".to_owned()), Some(700.0), None);
        let (time, status) = (now(), Status::default());
        answers_fit(&Answer {
            gpu_index: 0,
            time,
            elapsed_s: 0.0,
            status,
            device,
            tdp_w,
            power_of_tdp,
            notes: Vec::new(),
        });
    }
}
