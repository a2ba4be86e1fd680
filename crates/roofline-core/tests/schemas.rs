//! What is told fits the schema that is told of it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use roofline_core::{
    Device, Dim, Format, Graph, Machine, Model, Op, Plan, Precision, Registry,
    advice::{self, Step},
    calibration::Calibration,
    compare::{Diagnosis, Gains, Pass, SlowKernel, SpeedupPair, Totals},
    energy::{Energy, EnergyModel},
    format::Sizes,
    machine::{Class, Stack},
    measurement::{Check, Kernel, Measurement, Path, Phase, Residency, Subject, Warning},
    model::{Footprint, Lowering, Shortfall, Workload},
    op::Linear,
    predict::{Figures, KernelFigures, Tier, Weaker, predict},
    recommend::{
        Demand, Goal, Need, OperatorAdvice, OperatorNeed, Recommendation, Variation, recommend, recommend_operator,
        sensitivity,
    },
    tiling::{self, Thin, Tile, Tiling},
    units::{ByteRate, Bytes, FlopRate, Seconds},
};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde::Serialize;
use serde_json::{Map, Value, json};

fn told() -> SchemaGenerator {
    SchemaSettings::draft2020_12().for_serialize().into_generator()
}

fn asked() -> SchemaGenerator {
    SchemaSettings::draft2020_12().for_deserialize().into_generator()
}

/// What of a schema a value breaks, with the place; the part of JSON Schema that our types use.
struct Rules<'a> {
    root: &'a Value,
}

impl Rules<'_> {
    /// `strict` where the schema must name every field, because no other schema speaks of the same value.
    fn broken(&self, value: &Value, schema: &Value, strict: bool, place: &str) -> Vec<String> {
        let Value::Object(schema) = schema else {
            return if schema == &json!(false) { vec![format!("{place}: nothing may be here")] } else { Vec::new() };
        };
        let mut wrong = Self::broken_itself(value, schema, place);
        let has = |name: &str| schema.contains_key(name);
        let part = strict && !(has("properties") && ["$ref", "anyOf", "oneOf", "allOf"].iter().any(|name| has(name)));
        if let Some(Value::String(reference)) = schema.get("$ref") {
            let target = self.root.pointer(reference.trim_start_matches('#'));
            wrong.extend(self.broken(value, target.expect(reference), part, place));
        }
        if let Some(Value::Array(alternatives)) = schema.get("anyOf").or_else(|| schema.get("oneOf")) {
            let each: Vec<_> = alternatives.iter().map(|one| self.broken(value, one, part, place)).collect();
            if each.iter().all(|wrong| !wrong.is_empty()) {
                wrong.push(format!("{place}: {value} fits none: {each:?}"));
            }
        }
        for one in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            wrong.extend(self.broken(value, one, false, place));
        }
        match value {
            Value::Object(fields) => wrong.extend(self.broken_fields(fields, schema, part, place)),
            Value::Array(items) => {
                let of = schema.get("items").unwrap_or(&Value::Bool(true));
                let each = items.iter().enumerate();
                wrong.extend(each.flat_map(|(at, item)| self.broken(item, of, true, &format!("{place}/{at}"))));
            }
            _ => {}
        }
        wrong
    }

    fn broken_itself(value: &Value, schema: &Map<String, Value>, place: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        if let Some(types) = schema.get("type") {
            let types = types.as_array().cloned().unwrap_or_else(|| vec![types.clone()]);
            if !types.iter().filter_map(Value::as_str).any(|name| is(value, name)) {
                wrong.push(format!("{place}: {value} is no {types:?}"));
            }
        }
        if schema.get("const").is_some_and(|only| only != value) {
            wrong.push(format!("{place}: {value} is not {}", schema["const"]));
        }
        if schema.get("enum").and_then(Value::as_array).is_some_and(|all| !all.contains(value)) {
            wrong.push(format!("{place}: {value} is not one of {}", schema["enum"]));
        }
        for (limit, past) in [("minimum", f64::lt as fn(&f64, &f64) -> bool), ("maximum", f64::gt)] {
            let (value, limit) = (value.as_f64(), schema.get(limit).and_then(Value::as_f64));
            if value.zip(limit).is_some_and(|(value, limit)| past(&value, &limit)) {
                wrong.push(format!("{place}: {value:?} is past {limit:?}"));
            }
        }
        wrong
    }

    fn broken_fields(
        &self,
        fields: &Map<String, Value>,
        schema: &Map<String, Value>,
        strict: bool,
        place: &str,
    ) -> Vec<String> {
        let none = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let missing = required.filter(|name| !fields.contains_key(*name)).map(|name| format!("{place}: no {name}"));
        let mut wrong: Vec<String> = missing.collect();
        for (name, value) in fields {
            let place = format!("{place}/{name}");
            match (properties.get(name), schema.get("additionalProperties")) {
                (Some(schema), _) | (None, Some(schema)) => wrong.extend(self.broken(value, schema, true, &place)),
                (None, None) if strict && !properties.is_empty() => wrong.push(format!("{place}: nobody told of it")),
                (None, None) => {}
            }
        }
        wrong
    }
}

fn is(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|value| value.fract() == 0.0),
        other => panic!("no type {other}"),
    }
}

/// Panics where a value is told otherwise than its schema says; the value as it is told.
fn fits<T: Serialize + JsonSchema>(value: &T) -> Value {
    let schema = told().into_root_schema_for::<T>().to_value();
    let value = serde_json::to_value(value).unwrap();
    let wrong = Rules { root: &schema }.broken(&value, &schema, true, "");
    assert!(wrong.is_empty(), "{}: {} faults, first {}", T::schema_name(), wrong.len(), wrong[0]);
    value
}

fn machine(device: &str) -> Machine {
    Machine::new(Registry::builtin().find(device).unwrap().into_owned(), Stack::Roofline)
}

#[test]
fn devices_and_models() {
    for device in Registry::builtin().devices() {
        fits(device);
        if let Some(energy) = EnergyModel::builtin(device) {
            fits(energy);
        }
    }
    for model in Model::builtin() {
        fits(model);
    }
    Calibration::shipped().for_each(|calibration| _ = fits(&calibration.unwrap()));
}

#[test]
fn forecasts() {
    let model = Model::find("llama-3.1-8b").unwrap();
    for (device, plan) in [("h200", "w4a16"), ("t4", "q4_k_m"), ("m2_max", "fp16"), ("jetson_nano", "fp16")] {
        let machine = machine(device);
        let graph = model.graph(Workload::decode(4, 4096).unwrap(), Lowering::default()).unwrap();
        let forecast = predict(&graph, &plan.parse().unwrap(), &machine).unwrap();
        for tier in Tier::ALL {
            fits(&Figures::of_forecast(&forecast, *tier, &machine));
            fits(&forecast.by_site(*tier, &machine));
        }
        fits(&forecast.weaker());
    }
}

/// A device without FP32 has no ridge for kernels that only move bytes: infinity, which JSON writes as null.
#[test]
fn a_ridge_nowhere_is_null() {
    let device =
        Device::from_toml("name = \"Chip\"\n[memory]\nbandwidth = \"60 GB/s\"\n[peaks]\nint8 = \"5 TOPS\"\n", "chip");
    let machine = Machine::new(device.unwrap(), Stack::Roofline);
    let embedding = roofline_core::op::Elementwise {
        kind: roofline_core::op::ElementwiseKind::Embedding,
        tokens: 1,
        vectors: Dim::ONE,
        width: Dim::ONE,
    };
    let formats: Precision =
        "int8".parse::<roofline_core::precision::PrecisionSpec>().unwrap().on(&machine.device).unwrap();
    let (prediction, basis) = machine.prediction(&Op::Elementwise(embedding), &formats).unwrap();
    let told = fits(&Figures::of(&prediction, basis, Tier::Ideal, &machine));
    assert!(told["critical_ai"].is_null());
}

#[test]
fn recommendations() {
    let model = Model::find("llama-3.1-8b").unwrap();
    for (device, goal, demand) in [
        ("h200", Goal::Latency, Demand::Decode { context: 4096 }),
        ("t4", Goal::Energy, Demand::Request { prompt: 512, generate: 128 }),
        ("jetson_nano", Goal::Memory, Demand::Prefill { prompt: 512 }),
    ] {
        let machine = machine(device);
        let need = Need { demand, goal, dollars_per_hour: Some(2.0), ..Need::new(&model, &machine) };
        let answer = recommend(&need).unwrap();
        let told = fits(&answer);
        assert!(told["outcomes"].as_array().is_some_and(|all| all.len() > 3));
        fits(&sensitivity(&need, &answer).unwrap());
    }
}

#[test]
fn measurements() {
    let graph = Graph::gemv(4096, 4096).unwrap();
    let device = machine("h200").device;
    let formats = "int4".parse::<roofline_core::precision::PrecisionSpec>().unwrap().on(&device).unwrap();
    let subject = Subject::new(&graph.nodes[0], "int4", formats).of(Phase::Decode);
    let kernel = Kernel { name: "gemv".to_owned(), path: Path::FusedDequant, math: formats.math };
    let check = Check::of(&[1.0, 2.0], &[1.0, 2.0], 1e-3).unwrap();
    let samples = vec![Seconds::new(1e-5); 7];
    let measured = Measurement::new(subject, Residency::Cold, "cuda".to_owned(), kernel, check, samples).unwrap();
    fits(&measured);
    let mut doubted = measured;
    doubted.warnings = vec![Warning::FewSamples { samples: 7 }, Warning::AboveRoofline { ratio: 1.2 }];
    let told = fits(&doubted);
    // What is told may be asked for: the file of a measurement is a measurement.
    let schema = asked().into_root_schema_for::<Measurement>().to_value();
    // Bytes and the summary, which are made anew, are told and not asked for.
    assert_eq!(Rules { root: &schema }.broken(&told, &schema, false, ""), Vec::<String>::new());
}

#[test]
fn quantities_are_told_as_numbers_and_asked_for_as_texts() {
    fn kind<T: JsonSchema>(mut generator: SchemaGenerator) -> Value {
        generator.subschema_for::<T>().to_value()["type"].clone()
    }
    assert_eq!((kind::<Bytes>(told()), kind::<Bytes>(asked())), (json!("number"), json!("string")));
    assert_eq!((kind::<ByteRate>(told()), kind::<FlopRate>(asked())), (json!("number"), json!("string")));
    assert_eq!(serde_json::from_str::<ByteRate>("\"60GB/s\"").unwrap(), ByteRate::new(60e9));
    assert_eq!(kind::<Dim>(asked()), json!("integer"));
}

#[test]
fn names_are_asked_for_as_they_are_told() {
    assert_eq!(fits(&Stack::LlamaCpp), json!("llama.cpp"));
    assert_eq!(serde_json::from_str::<Stack>("\"llama.cpp\"").unwrap(), Stack::LlamaCpp);
    assert_eq!((fits(&Tier::Ideal), fits(&Sizes::Nominal)), (json!("ideal"), json!("nominal")));
    let why = serde_json::from_str::<Tier>("\"idael\"").unwrap_err().to_string();
    assert!(why.starts_with("unknown tier `idael`; did you mean `ideal`?; tiers: ideal, expected"), "{why}");
    let plan: Plan = serde_json::from_str("\"w4a16,head=q8_0\"").unwrap();
    assert_eq!(fits(&plan), json!("w4a16,head=q8_0"));
    assert_eq!(fits(&Format::BF16), json!("bf16"));
    assert!(serde_json::from_str::<Plan>("\"w4a61\"").is_err());
}

/// Two types of one name get a number behind the second, and nobody can tell which is which.
#[test]
fn every_type_has_a_name_of_its_own() {
    let mut generator = told();
    macro_rules! all {
        ($($type:ty),* $(,)?) => { $(generator.subschema_for::<$type>();)* };
    }
    all![
        Calibration,
        Class,
        Device,
        Diagnosis,
        Energy,
        EnergyModel,
        Footprint,
        Gains,
        KernelFigures,
        Linear,
        Lowering,
        Measurement,
        Model,
        OperatorAdvice,
        Pass,
        Recommendation,
        Shortfall,
        SlowKernel,
        SpeedupPair,
        Step,
        Thin,
        Tile,
        Tiling,
        Totals,
        Variation,
        Weaker,
        Workload,
        advice::Advice,
        tiling::Machine,
        roofline_core::recommend::Published,
    ];
    let names: Vec<String> = generator.take_definitions(false).keys().cloned().collect();
    assert!(names.len() > 80, "{}", names.len());
    let numbered = |name: &&String| name.ends_with(|last: char| last.is_ascii_digit());
    assert_eq!(names.iter().filter(numbered).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn tilings_and_products() {
    let (product, device) = (Linear::new(512, 4096, 4096).unwrap(), machine("h200").device);
    let cut = tiling::Machine::of(&device).unwrap();
    fits(&cut);
    fits(&Tiling::sweep(product, Format::BF16, cut).unwrap());
    fits(&Thin::of(Linear::new(1, 4096, 4096).unwrap(), Format::BF16, &device).unwrap());
    let machine = machine("h200");
    let need = OperatorNeed { machine: &machine, tier: Tier::Expected, memory: None, any_quality: false };
    fits(&recommend_operator((1, 4096, 4096), &need).unwrap());
}

/// The check itself: each of these breaks one rule.
#[test]
fn what_does_not_fit_is_found() {
    let schema = told().into_root_schema_for::<Figures>().to_value();
    let machine = machine("h200");
    let forecast = predict(&Graph::gemv(64, 64).unwrap(), &"bf16".parse().unwrap(), &machine).unwrap();
    let right = serde_json::to_value(Figures::of_forecast(&forecast, Tier::Ideal, &machine)).unwrap();
    let faults = |change: fn(&mut Map<String, Value>)| {
        let mut wrong = right.clone();
        change(wrong.as_object_mut().unwrap());
        Rules { root: &schema }.broken(&wrong, &schema, true, "").len()
    };
    assert_eq!(faults(|_| ()), 0);
    assert_eq!(faults(|fields| _ = fields.remove("flops")), 1);
    assert_eq!(faults(|fields| _ = fields.insert("more".to_owned(), json!(1))), 1);
    assert_eq!(faults(|fields| _ = fields.insert("bytes".to_owned(), json!(null))), 1);
    assert_eq!(faults(|fields| _ = fields.insert("tier".to_owned(), json!("likely"))), 1);
    assert_eq!(faults(|fields| _ = fields.insert("basis".to_owned(), json!("guessed"))), 1);
}
