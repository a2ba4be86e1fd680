//! What is told fits the schema that is told of it.

use std::fs;

use schemars::{JsonSchema, generate::SchemaSettings};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    Checkpoint, Dtype, Layout, Request,
    checkpoint::tests::write,
    inspect::inspect,
    layout::{Listed, Shards},
    preview::preview,
    quantize,
    scratch::Scratch,
    torchao::get_quantize_config,
    verify::tests::source,
};

/// Panics where a value is told otherwise than its schema says: another type, a field too many or one too few.
fn fits<T: Serialize + JsonSchema>(value: &T) -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    let value = serde_json::to_value(value).unwrap();
    if let Err(wrong) = check(&value, &schema) {
        panic!("{}: {wrong}", T::schema_name());
    }
    value
}

fn check(value: &Value, schema: &Value) -> Result<(), String> {
    let Value::Object(rules) = schema else { return Ok(()) };
    if let Some(choices) = rules.get("anyOf").or_else(|| rules.get("oneOf")).and_then(Value::as_array) {
        let fits = choices.iter().any(|choice| check(value, choice).is_ok());
        return if fits { Ok(()) } else { Err(format!("{value} is none of {choices:?}")) };
    }
    let known = ["type", "const", "enum", "properties", "required", "items", "prefixItems", "minimum"];
    let notes = ["$schema", "title", "description", "format", "examples", "minItems", "maxItems"];
    if let Some(other) = rules.keys().find(|key| !known.contains(&key.as_str()) && !notes.contains(&key.as_str())) {
        return Err(format!("nobody checks `{other}`"));
    }
    let types: Vec<&str> = match &rules.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_u64() && !types.contains(&"number") => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let fitting = types.is_empty() || types.contains(&is);
    let named = rules.get("const").is_none_or(|only| only == value)
        && rules.get("enum").and_then(Value::as_array).is_none_or(|all| all.contains(value));
    if !fitting || !named {
        return Err(format!("{value} is no {schema}"));
    }
    match value {
        Value::Object(fields) => {
            let Some(Value::Object(told)) = rules.get("properties") else { return Ok(()) };
            let required = rules.get("required").and_then(Value::as_array).into_iter().flatten();
            if let Some(missing) = required.filter_map(Value::as_str).find(|name| !fields.contains_key(*name)) {
                return Err(format!("there is no {missing}"));
            }
            fields.iter().try_for_each(|(name, value)| {
                let schema = told.get(name).ok_or_else(|| format!("nobody told of {name}"))?;
                check(value, schema).map_err(|wrong| format!("{name}: {wrong}"))
            })
        }
        Value::Array(items) => match rules.get("prefixItems") {
            Some(Value::Array(each)) if each.len() == items.len() => {
                items.iter().zip(each).try_for_each(|(item, schema)| check(item, schema))
            }
            Some(each) => Err(format!("{value} has not the items {each}")),
            None => items.iter().try_for_each(|item| check(item, rules.get("items").unwrap_or(&Value::Bool(true)))),
        },
        _ => Ok(()),
    }
}

/// An adapter of rank one for a product of the source.
fn merged(mut checkpoint: Checkpoint, scratch: &Scratch) -> Checkpoint {
    let folder = scratch.path().join("adapter");
    fs::create_dir(&folder).unwrap();
    let config = json!({ "peft_type": "LORA", "r": 1, "lora_alpha": 1 });
    fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    let [a, b] = ["A", "B"].map(|part| format!("base_model.model.model.layers.0.mlp.up_proj.lora_{part}.weight"));
    let factors: [(&str, Dtype, &[usize], Vec<u8>); 2] =
        [(&a, Dtype::F32, &[1, 256], vec![0; 1024]), (&b, Dtype::F32, &[256, 1], vec![0; 1024])];
    write(&folder.join("adapter_model.safetensors"), &factors);
    checkpoint.merge(&folder, 0.5).unwrap();
    checkpoint
}

/// With adapters and without, lossy or not, in codes and plain: every field has been there and been left out.
#[test]
fn answers_fit_their_schemas() {
    let scratch = Scratch::new("schemas");
    let folder = scratch.path().join("source");
    let plain = source(&folder);
    let with_adapter = merged(source(&folder), &scratch);
    for (at, (checkpoint, layout, plan)) in [
        (&plain, Layout::CompressedTensors, "w4a16,head=keep"),
        (&with_adapter, Layout::CompressedTensors, "fp8"),
        (&plain, Layout::Plain, "fp32"),
        (&plain, Layout::Gguf, "q4_k_m"),
    ]
    .into_iter()
    .enumerate()
    {
        let target = scratch.path().join(if layout == Layout::Gguf { format!("{at}.gguf") } else { at.to_string() });
        let request = Request {
            shards: Shards::AsSource,
            verify: at == 0,
            ..Request::new(plan.parse().unwrap(), layout, target.clone())
        };
        let told = fits(&preview(checkpoint, &request).unwrap());
        assert!(!told["left"].as_array().unwrap().is_empty() || layout != Layout::CompressedTensors, "{plan}");
        let told = fits(&quantize(checkpoint, &request, &|_: u64| {}).unwrap());
        assert_eq!(told.get("adapters").is_some(), plan == "fp8");
        assert_eq!(told["weights"].as_array().unwrap().is_empty(), layout == Layout::Plain);
        let told = fits(&inspect(&target).unwrap());
        assert_eq!(told["quantization"].is_null(), matches!(layout, Layout::Plain | Layout::Gguf));
    }
    fits(&Layout::ALL.into_iter().flat_map(Layout::listed).collect::<Vec<Listed>>());
    fits(&["INT4", "NF4", "INT8"].map(|precision| get_quantize_config(precision, 128)));
}

/// The check itself finds what does not fit.
#[test]
fn what_does_not_fit_is_found() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] });
    assert_eq!(check(&json!({ "a": 1 }), &schema), Ok(()));
    for wrong in [json!({ "a": 1.5 }), json!({ "a": 1, "b": 2 }), json!({}), json!([]), json!({ "a": null })] {
        assert!(check(&wrong, &schema).is_err(), "{wrong}");
    }
}
