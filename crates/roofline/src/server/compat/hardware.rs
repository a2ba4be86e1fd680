//! Devices in the form that tools of this field exchange: listed, and described by callers.

use std::collections::BTreeMap;

use axum::{extract::State, http::StatusCode, response::Response};
use roofline_core::{
    Device, Math,
    device::Peaks,
    units::{ByteRate, Bytes, FlopRate},
};
use roofline_verbs::Error;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    super::{
        answers::json,
        extract::{Fields, Params},
        refusal::Refusal,
        state::Shared,
    },
    points::units,
};

/// A device in a list.
#[derive(Serialize, JsonSchema)]
pub(in crate::server) struct HardwareListItem {
    key: String,
    name: String,
    bandwidth_gb_s: f64,
    /// What it multiplies.
    precisions: Vec<&'static str>,
}

/// A device that is in no list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::server) struct HardwareSpecInput {
    name: String,
    bandwidth_gb_s: f64,
    /// Dense peaks in TFLOP/s, by precision.
    flops_by_precision: BTreeMap<String, f64>,
    #[serde(default)]
    memory_gb: Option<f64>,
}

/// What a described device is called from then on.
#[derive(Serialize, JsonSchema)]
pub(in crate::server) struct Registered {
    status: &'static str,
    name: String,
    key: String,
}

/// `GET /api/hardware`.
pub(in crate::server) async fn list(State(state): State<Shared>, query: Params) -> Result<Response, Refusal> {
    query.only(&[])?;
    let item = |device: &Device| HardwareListItem {
        key: device.key.clone(),
        name: device.name.clone(),
        bandwidth_gb_s: device.memory.bandwidth.value() / 1e9,
        precisions: units(device).map(|(name, ..)| name).collect(),
    };
    json(&state.context().registry().devices().map(item).collect::<Vec<_>>())
}

/// `POST /api/hardware`: the device is there until the server stops.
pub(in crate::server) async fn describe(
    State(state): State<Shared>,
    Fields(body): Fields,
) -> Result<Response, Refusal> {
    let input: HardwareSpecInput = serde_json::from_value(Value::Object(body)).map_err(|error| {
        Refusal::body(error.to_string(), "fields: name, bandwidth_gb_s, flops_by_precision, memory_gb")
    })?;
    let mut peaks = BTreeMap::new();
    for (precision, tera) in &input.flops_by_precision {
        let math: Math = precision.parse::<Math>().map_err(|error| wrong(&error))?;
        // Zero is how some tools write that there is none.
        if *tera != 0.0 {
            let fastest: &mut f64 = peaks.entry(math).or_insert(0.0);
            *fastest = fastest.max(*tera);
        }
    }
    let peaks = Peaks::distinct(peaks.into_iter().map(|(math, tera)| (math, FlopRate::new(tera * 1e12))));
    let bandwidth = ByteRate::new(input.bandwidth_gb_s * 1e9);
    let memory = input.memory_gb.map(|memory| Bytes::new(memory * 1e9));
    let device = peaks.and_then(|peaks| Device::custom(&input.name, bandwidth, peaks, memory));
    let device = device.map_err(|error| wrong(&error))?;
    let key = state.context().lend(&input.name, device).map_err(|error| taken(&error))?;
    json(&Registered { status: "registered", name: input.name, key })
}

fn wrong(error: &roofline_core::Error) -> Refusal {
    Refusal::body(error.to_string(), "rates are positive, in GB/s and TFLOP/s")
}

fn taken(error: &Error) -> Refusal {
    Refusal::new(StatusCode::CONFLICT, error.to_string(), "choose another name, of up to 64 letters and digits")
}
