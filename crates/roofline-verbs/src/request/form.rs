//! Requests in JSON: their schema, and what is wrong with a body that does not fit it.
//!
//! serde says that a value is wrong, but not which field of a flattened request held it. So a body is looked at by the
//! schema first, which knows every field, its kind and its limits; what passes is read by serde.

use std::{
    any::TypeId,
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

use roofline_core::Error as Core;
#[cfg(feature = "hardware")]
use schemars::Schema;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::{Error, Result};

/// Whose request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// Somebody at this machine, who may name its files.
    Here,
    /// Somebody elsewhere: fields that name files are none of theirs.
    Elsewhere,
}

/// The schema of a request, with nothing to look up elsewhere and no room for fields that nobody reads.
pub fn schema<T: JsonSchema + 'static>(caller: Caller) -> &'static Value {
    static KNOWN: RwLock<Option<HashMap<(TypeId, Caller), &'static Value>>> = RwLock::new(None);
    let id = (TypeId::of::<T>(), caller);
    if let Some(known) = KNOWN.read().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(|known| known.get(&id))
    {
        return known;
    }
    let mut schema = inlined::<T>();
    close(&mut schema, caller);
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    // A schema lives as long as the program: there are as many as there are verbs.
    known.get_or_insert_default().entry(id).or_insert_with(|| Box::leak(Box::new(schema)))
}

fn inlined<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// Every object of a request has the fields that its caller may name, and no others.
fn close(schema: &mut Value, caller: Caller) {
    if let Some(forms) = schema.get_mut("oneOf").and_then(Value::as_array_mut) {
        // A whole form may be about a file.
        forms.retain(|form| caller == Caller::Here || form["x-local"] != true);
        for form in forms {
            close(form, caller);
        }
    }
    let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    if caller == Caller::Elsewhere {
        fields.retain(|_, field| field["x-local"] != true);
    }
    schema["additionalProperties"] = false.into();
}

/// Gives a request that may have a subject the fields of each of them: for `#[schemars(transform = ...)]`. Fields that both
/// have are the subject's; `x-own` names those that are left to the request itself.
#[cfg(feature = "hardware")]
pub(crate) fn with_subjects<S: JsonSchema>(schema: &mut Schema) {
    let own = schema.clone().to_value();
    let merged = |subject: &Value| {
        let (mut form, mut left) = (subject.clone(), Vec::new());
        for (name, field) in own["properties"].as_object().into_iter().flatten() {
            if form["properties"][name].is_null() {
                form["properties"][name] = field.clone();
                left.push(name.clone());
            }
        }
        form["x-own"] = left.into();
        form
    };
    let mut forms: Vec<Value> = inlined::<S>()["oneOf"].as_array().into_iter().flatten().map(merged).collect();
    forms.push(own);
    *schema = schemars::json_schema!({ "oneOf": forms });
}

/// The request that a body asks. A field of `null` is one that is left out.
pub fn from_json<T: DeserializeOwned + JsonSchema + 'static>(body: Value) -> Result<T> {
    read(body, Caller::Here)
}

/// The same of somebody elsewhere.
pub fn from_elsewhere<T: DeserializeOwned + JsonSchema + 'static>(body: Value) -> Result<T> {
    read(body, Caller::Elsewhere)
}

fn read<T: DeserializeOwned + JsonSchema + 'static>(body: Value, caller: Caller) -> Result<T> {
    let Value::Object(mut fields) = body else {
        return Err(form("the request is no object", "send an object with the fields of the question"));
    };
    fields.retain(|_, value| !value.is_null());
    let form_of = fits(&fields, schema::<T>(caller))?;
    // What serde cannot read is a text: a rate, a plan, a time. The field is the one that holds it.
    let holder = |message: &str| {
        let held = |value: &Value| value.as_str().is_some_and(|text| message.contains(&format!("`{text}`")));
        fields.iter().find(|(_, value)| held(value)).map(|(name, value)| format!("`{name}` is {}: ", shown(value)))
    };
    serde_json::from_value(nested(fields.clone(), &form_of["x-own"])).map_err(|error| {
        let message = error.to_string();
        form(holder(&message).unwrap_or_default() + &message, "")
    })
}

/// The fields of a subject that a request may have, put together under its name.
fn nested(fields: Map<String, Value>, own: &Value) -> Value {
    let Some(own) = own.as_array() else { return Value::Object(fields) };
    let (mut request, subject): (Map<_, _>, Map<_, _>) =
        fields.into_iter().partition(|(name, _)| own.iter().any(|own| own == name));
    request.insert("subject".to_owned(), Value::Object(subject));
    Value::Object(request)
}

fn form(message: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::Form { message: message.into(), hint: hint.into() }
}

/// The form of a schema that a body has.
fn fits<'s>(body: &Map<String, Value>, schema: &'s Value) -> Result<&'s Value> {
    let Some(forms) = schema["oneOf"].as_array() else { return fields(body, schema) };
    let names: Vec<&str> = forms.iter().filter_map(|form| form["properties"]["subject"]["const"].as_str()).collect();
    let of = |name: &str| forms.iter().find(|form| form["properties"]["subject"]["const"] == name);
    let hint = format!("one of {}", names.join(", "));
    match body.get("subject") {
        Some(Value::String(name)) => {
            let shown: String = name.chars().take(80).collect();
            let unknown = || form(Core::unknown("subject", &shown, names.iter().copied(), "").to_string(), hint);
            fields(body, of(name).ok_or_else(unknown)?)
        }
        None => {
            let own = forms.iter().find(|form| form["properties"]["subject"].is_null());
            fields(body, own.ok_or_else(|| form("`subject` is missing", hint))?)
        }
        Some(other) => Err(form(format!("`subject` is {}", shown(other)), hint)),
    }
}

fn fields<'s>(body: &Map<String, Value>, schema: &'s Value) -> Result<&'s Value> {
    let known = schema["properties"].as_object();
    let names = || known.into_iter().flatten().map(|(name, _)| name.as_str());
    for (name, value) in body {
        let Some(field) = known.and_then(|known| known.get(name)) else {
            let short: String = name.chars().take(80).collect();
            let unknown = Core::unknown("field", &short, names(), "");
            return Err(form(unknown.to_string(), format!("fields: {}", names().collect::<Vec<_>>().join(", "))));
        };
        if !holds(value, field) {
            return Err(form(format!("`{name}` is {}", shown(value)), format!("it is {}", words(field))));
        }
    }
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    match required.into_iter().find(|name| !body.contains_key(*name)) {
        Some(name) => {
            let about = known.and_then(|known| known[name]["description"].as_str()).unwrap_or_default();
            Err(form(format!("`{name}` is missing"), about))
        }
        None => Ok(schema),
    }
}

/// A value as it was sent, cut where it is long.
fn shown(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}

/// Whether a value is of the kind, and within the limits, that a field has.
pub(crate) fn holds(value: &Value, schema: &Value) -> bool {
    if let Some(forms) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        return forms.iter().any(|form| holds(value, form));
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.contains(value);
    }
    if let Some(only) = schema.get("const") {
        return only == value;
    }
    let kinds = match &schema["type"] {
        Value::String(kind) => vec![kind.as_str()],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => return true,
    };
    kinds.into_iter().any(|kind| match kind {
        "integer" => (value.is_u64() || value.is_i64()) && within(value, schema),
        "number" => value.is_number() && within(value, schema),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.as_array().is_some_and(|items| {
            let most = schema["maxItems"].as_u64().unwrap_or(u64::MAX);
            items.len() as u64 <= most && items.iter().all(|item| holds(item, &schema["items"]))
        }),
        "object" => value.as_object().is_some_and(|fields| {
            let of = |name: &str| schema["properties"].get(name).or(schema.get("additionalProperties"));
            fields.iter().all(|(name, value)| of(name).is_none_or(|field| holds(value, field)))
        }),
        _ => true,
    })
}

fn within(value: &Value, schema: &Value) -> bool {
    let number = value.as_f64().unwrap_or(f64::NAN);
    let least = schema["minimum"].as_f64().unwrap_or(f64::NEG_INFINITY);
    let most = schema["maximum"].as_f64().unwrap_or(f64::INFINITY);
    (least..=most).contains(&number)
}

/// What a field holds, in words.
fn words(schema: &Value) -> String {
    if let Some(forms) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        let forms: Vec<String> = forms.iter().filter(|form| form["type"] != "null").map(words).collect();
        return forms.join(", or ");
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
        return format!("one of {}", values.join(", "));
    }
    if let Some(only) = schema["const"].as_str() {
        return format!("\"{only}\"");
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null"),
        kind => kind.as_str(),
    };
    match kind.unwrap_or_default() {
        kind @ ("integer" | "number") => {
            let kind = if kind == "integer" { "a whole number" } else { "a number" };
            match (schema["minimum"].as_f64(), schema["maximum"].as_f64()) {
                (Some(least), Some(most)) => format!("{kind} from {least} to {most}"),
                (Some(least), None) => format!("{kind} from {least} on"),
                _ => kind.to_owned(),
            }
        }
        "boolean" => "true or false".to_owned(),
        "string" => "a string".to_owned(),
        "array" => match schema["maxItems"].as_u64() {
            Some(most) => format!("a list of at most {most} such"),
            None => "a list of such".to_owned(),
        },
        "object" if schema["additionalProperties"]["type"] == json!("string") => {
            "an object of units and rates, such as {\"bf16\": \"300TFLOP/s\"}".to_owned()
        }
        "object" => "an object".to_owned(),
        other => other.to_owned(),
    }
}

/// Panics where an answer is told otherwise than its schema says: a value of another kind, a field too many or too few.
#[cfg(test)]
pub(crate) fn answers_fit<T: serde::Serialize + JsonSchema>(answer: &T) {
    let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    assert!(!schema.to_string().contains("$ref"), "nobody looks at what a schema refers to");
    if let Some(why) = misfit(&serde_json::to_value(answer).unwrap(), &schema, true) {
        panic!("{}{why}", T::schema_name());
    }
    assert!(misfit(&json!([1, "x"]), &schema, true).is_some(), "everything fits {schema}");
}

/// Where a value does not fit; `whole` where no other schema tells of its fields.
#[cfg(test)]
fn misfit(value: &Value, schema: &Value, whole: bool) -> Option<String> {
    let forms = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    let whole = whole && !(forms.is_some() && schema.get("properties").is_some());
    if forms.is_some_and(|forms| forms.iter().all(|form| misfit(value, form, whole).is_some())) {
        return Some(format!(": {value} fits no form"));
    }
    let own = ["type", "enum", "const", "minimum", "maximum"];
    let own: Map<String, Value> =
        own.iter().filter_map(|key| Some(((*key).to_owned(), schema.get(key)?.clone()))).collect();
    if !holds(value, &Value::Object(own)) {
        return Some(format!(": {value} is not {}", words(schema)));
    }
    match value {
        Value::Array(items) => {
            let of = |at: usize| schema["prefixItems"].get(at).unwrap_or(&schema["items"]);
            items.iter().enumerate().find_map(|(at, item)| Some(format!("/{at}{}", misfit(item, of(at), true)?)))
        }
        Value::Object(fields) => {
            let mut required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let missing = required.find(|name| !fields.contains_key(*name)).map(|name| format!("/{name} is missing"));
            let field = |(name, value): (&String, &Value)| match schema["properties"]
                .get(name)
                .or(schema.get("additionalProperties"))
            {
                Some(schema) => misfit(value, schema, true).map(|why| format!("/{name}{why}")),
                None => (whole && schema.get("properties").is_some()).then(|| format!("/{name} is told of nowhere")),
            };
            missing.or_else(|| fields.iter().find_map(field))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict;

    fn refused(body: Value) -> (String, String) {
        match from_json::<predict::Request>(body) {
            Err(Error::Form { message, hint }) => (message, hint),
            Err(other) => panic!("{other:?}"),
            Ok(request) => panic!("{request:?}"),
        }
    }

    /// serde alone would say that something somewhere is no number.
    #[test]
    fn what_is_wrong_is_named() {
        let (message, hint) = refused(json!({ "subject": "gemv", "n": "x", "k": 4096 }));
        assert_eq!((message.as_str(), hint.as_str()), ("`n` is \"x\"", "it is a whole number from 1 to 2147483647"));
        assert!(refused(json!({ "subject": "gemv", "n": 0, "k": 4096 })).1.contains("from 1"));
        let (message, hint) = refused(json!({ "subject": "gemv", "n": 1, "k": 1, "precison": "bf16" }));
        assert_eq!(message, "unknown field `precison`; did you mean `precision`?");
        assert!(hint.starts_with("fields: ") && hint.contains("bandwidth"), "{hint}");
        assert_eq!(refused(json!({ "subject": "gemv", "n": 1 })).0, "`k` is missing");
        assert!(refused(json!({ "subject": "gemw" })).0.contains("did you mean `gemv`?"));
        assert_eq!(
            refused(json!({ "n": 1 })),
            ("`subject` is missing".into(), "one of gemv, gemm, attention, ffn, model".into())
        );
        assert!(
            refused(json!({ "subject": "gemv", "n": 1, "k": 1, "tier": "best" })).1.contains("one of ideal, expected")
        );
        assert!(refused(json!([1])).0.contains("no object"));
        let (message, _) = refused(json!({ "subject": "gemv", "n": 1, "k": 1, "bandwidth": "soon" }));
        assert!(message.starts_with("`bandwidth` is \"soon\": "), "{message}");
    }

    #[test]
    fn one_value_is_a_list_and_null_is_nothing() {
        let body = json!({ "subject": "gemv", "n": 1, "k": 1, "on": "h200", "tier": null,
            "precision": ["bf16", "fp8"], "peak": { "fp16": "1TFLOP/s" }, "bandwidth": "1TB/s", "stack": "llama.cpp" });
        let predict::Request::Gemv(asked) = from_json(body).unwrap() else { panic!("no gemv") };
        assert_eq!((asked.setting.on.len(), asked.setting.precision.len(), asked.setting.rates.peak.len()), (1, 2, 1));
        assert_eq!(asked.setting.stack.map(roofline_core::machine::Stack::name), Some("llama.cpp"));
        let body = json!({ "subject": "gemv", "n": 1, "k": 1, "on": "h200,a100" });
        assert_eq!(from_json::<predict::Request>(body).unwrap().setting().on, ["h200", "a100"]);
    }

    /// A config.json stands where a name stands.
    #[test]
    fn a_model_may_come_with_the_request() {
        let config = json!({ "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32,
            "num_key_value_heads": 4, "num_hidden_layers": 22, "vocab_size": 32000 });
        let body = json!({ "subject": "model", "model": config, "on": "h200", "phase": "decode", "precision": "bf16" });
        let request: predict::Request = from_json(body).unwrap();
        let predict::Answer::Model(answer) = predict::predict(&crate::Context::pure(), &request).unwrap() else {
            panic!("no model")
        };
        assert_eq!(answer.parameters, 1_100_048_384.0);
    }
}
