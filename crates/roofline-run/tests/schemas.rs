//! What this crate tells fits the schema that is told of it: every field is named there, and has the type that it says.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use roofline_core::{
    Dim, Math, Op,
    op::Linear,
    units::{ByteRate, Bytes, FlopRate, Hertz, Seconds, Watts},
};
use roofline_run::{
    Ceiling, Environment, Header, Interference, Line, Skipped,
    cpu::ceilings::{Ceilings, Effort, Level, Peak, Stream, StreamKind, Way},
    jetson,
    telemetry::{self, PowerReading, Recording, Sample, Throttle},
};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::Serialize;
use serde_json::{Value, json};

/// Why `value` does not fit `schema`; nothing where it does. The part of JSON Schema that these types use.
fn misfit(value: &Value, schema: &Value, root: &Value) -> Option<String> {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        return misfit(value, root.pointer(reference.trim_start_matches('#')).unwrap(), root);
    }
    if let Some(ways) = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array) {
        let fits = ways.iter().any(|way| misfit(value, way, root).is_none());
        return (!fits).then(|| format!("{value} fits no way of {schema}"));
    }
    let types = match schema.get("type") {
        Some(Value::Array(all)) => all.clone(),
        Some(one) => vec![one.clone()],
        None => Vec::new(),
    };
    let is = |name: &str| match name {
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        _ => value.is_object(),
    };
    let known = |key: &str, value: &Value| schema.get(key).is_none_or(|all| all == value);
    let listed = schema.get("enum").and_then(Value::as_array).is_none_or(|all| all.contains(value));
    if !(types.is_empty() || types.iter().filter_map(Value::as_str).any(is)) || !known("const", value) || !listed {
        return Some(format!("{value} is not {schema}"));
    }
    match value {
        Value::Object(fields) => {
            let missing = schema.get("required").and_then(Value::as_array).into_iter().flatten();
            let mut missing = missing.filter(|name| !fields.contains_key(name.as_str().unwrap()));
            if let Some(name) = missing.next() {
                return Some(format!("no {name}"));
            }
            fields.iter().find_map(|(name, value)| {
                let known =
                    schema.pointer(&format!("/properties/{name}")).or_else(|| schema.get("additionalProperties"));
                match known {
                    Some(schema) => misfit(value, schema, root).map(|why| format!("{name}: {why}")),
                    None if types.is_empty() => None,
                    None => Some(format!("nobody told of {name}")),
                }
            })
        }
        Value::Array(items) => {
            let of = schema.get("items")?;
            items.iter().find_map(|item| misfit(item, of, root))
        }
        _ => None,
    }
}

fn fits<T: Serialize + JsonSchema>(told: &T) {
    let schema = SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>().to_value();
    let value = serde_json::to_value(told).unwrap();
    if let Some(why) = misfit(&value, &schema, &schema) {
        panic!("{}: {why}", T::schema_name());
    }
    // The check itself can fail: a value of another kind does not fit.
    assert!(misfit(&json!([1, "x"]), &schema, &schema).is_some(), "{schema}");
}

#[test]
fn runs() {
    let environment = Environment::collect();
    fits(&environment);
    let header = Header::new("2026-01-01T00:00:00Z".into(), "h200".into(), None, "cuda", json!(environment));
    fits(&Line::Header(Header { command: Some(vec!["measure".into()]), ..header }));
    let op = Op::Linear(Linear { m: Dim::ONE, n: Dim::ONE, k: Dim::ONE });
    let reason = "a test".to_owned();
    let skipped =
        Skipped { site: "gemv".into(), phase: None, precision: "bf16".into(), op, reason, hint: Some("none".into()) };
    fits(&skipped);
    fits(&Line::Skipped(skipped));
    fits(&Line::Planned(3));
    fits(&Interference { stolen: Some(Seconds::new(0.5)), preemptions: None });
    fits(&Interference::default());
}

#[test]
fn ceilings() {
    let stream = Stream {
        kind: StreamKind::Triad,
        level: Level::Memory,
        threads: 4,
        busy: 2,
        bytes: Bytes::new(1e9),
        way: Way::Streaming,
        best: ByteRate::new(2.5e10),
        median: ByteRate::new(2.25e10),
        worst: ByteRate::new(2e10),
        trials: 10,
    };
    let rate = FlopRate::new(1.5e12);
    let peak = Peak {
        math: Math::Bf16,
        unit: "AMX".into(),
        threads: 4,
        busy: 4,
        best: rate,
        median: rate,
        worst: rate,
        trials: 40,
        theory: None,
    };
    fits(&Ceilings { streams: vec![stream], peaks: vec![peak], clock: None });
    fits(&Effort::Quick);
    let moved = Bytes::new(4e9);
    fits(&Ceiling::Stream { name: "read", moved, rate: ByteRate::new(4e12) });
    fits(&Ceiling::Launch { name: "empty kernel in a graph", time: Seconds::new(2e-6) });
}

#[test]
fn telemetry_of_gpus() {
    let mut status = telemetry::Status::default();
    fits(&status);
    status.gpu_clock = Some(Hertz::new(1.98e9));
    status.mem_total = Some(Bytes::new(141e9));
    status.throttle_reasons = Some(vec![Throttle::SwPowerCap]);
    status.errors.insert("pcie_gen", "not supported".into());
    fits(&status);
    let sample = |at: f64| Sample { timestamp: Seconds::new(at), power: Some(Watts::new(350.5)), ..Sample::default() };
    let samples = vec![sample(0.0), sample(0.01)];
    let power_reading = Some(PowerReading::Instant);
    let recording = Recording { samples, power_reading, energy_counter: None, cut_off: false };
    fits(&recording);
    fits(&recording.summary().unwrap());
    // One sample has no duration, and still no number that JSON cannot write.
    let one = Recording { samples: vec![sample(0.0)], ..recording };
    fits(&one.summary().unwrap());
}

#[test]
fn boards() {
    let mut status = jetson::Status::default();
    fits(&status);
    status.emc_source = Some(jetson::EmcSource::Cap);
    status.power.insert("VDD_IN".into(), Watts::new(7.25));
    status.temperatures_c.insert("cpu".into(), 51.5);
    fits(&status);
}
