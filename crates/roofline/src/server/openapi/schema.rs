//! Schemas: of requests from the definitions of arguments, of answers from their types.

use roofline_core::Dim;
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::super::{
    catalogue, hardware, imports, jobs, products, refusal,
    request::{self, Field, Kind},
    wish, work,
};
use crate::commands::question::Verb;

/// Which precision for a product, in short.
#[derive(JsonSchema)]
#[schemars(rename = "RecommendationResult")]
#[expect(dead_code, reason = "the shape of a type of the library, which knows no schemas")]
pub(in crate::server) struct Recommendation {
    precision: String,
    method: String,
    reason: String,
    predicted_speedup: f64,
    memory_bound: bool,
    memory_savings_pct: f64,
}

/// Every named schema.
pub(super) fn components() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut generator = settings.into_generator();
    add::<refusal::Body>(&mut generator);
    add::<catalogue::Health>(&mut generator);
    add::<products::GEMMSpec>(&mut generator);
    add::<wish::RecommendSpec>(&mut generator);
    add::<products::AnalyzeResponse>(&mut generator);
    add::<products::SweepResponse>(&mut generator);
    add::<hardware::HardwareListItem>(&mut generator);
    add::<hardware::HardwareSpecInput>(&mut generator);
    add::<hardware::Registered>(&mut generator);
    add::<imports::FlexibleImportRequest>(&mut generator);
    add::<imports::ImportBenchmarkResponse>(&mut generator);
    add::<imports::ValidateRequest>(&mut generator);
    add::<jobs::Record>(&mut generator);
    add::<work::Detail>(&mut generator);
    add::<work::List>(&mut generator);
    Value::Object(generator.take_definitions(true).into_iter().collect())
}

fn add<T: JsonSchema>(generator: &mut SchemaGenerator) {
    generator.subschema_for::<T>();
}

pub(super) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// What a body may say to `verb`.
pub(super) fn request(verb: &str) -> Value {
    let Some(form) = Verb::named(verb).and_then(|verb| request::form(verb).ok()) else { return json!({}) };
    let own: Vec<&Field> = form.own.iter().collect();
    if form.subjects.is_empty() {
        return object(&own, None);
    }
    let of_subject = |(name, about, fields): &(String, String, Vec<Field>)| {
        let inherited = own.iter().copied().filter(|field| fields.iter().all(|theirs| theirs.name != field.name));
        let fields: Vec<&Field> = fields.iter().chain(inherited).collect();
        object(&fields, Some((name, about)))
    };
    let mut alternatives: Vec<Value> = form.subjects.iter().map(of_subject).collect();
    if !form.needs_subject {
        alternatives.push(object(&own, None));
    }
    json!({ "oneOf": alternatives })
}

fn object(fields: &[&Field], subject: Option<(&str, &str)>) -> Value {
    let mut properties = Map::new();
    let mut required: Vec<&str> = Vec::new();
    if let Some((name, about)) = subject {
        properties.insert("subject".to_owned(), json!({ "const": name, "description": about }));
        required.push("subject");
    }
    for field in fields {
        properties.insert(field.name.clone(), property(field));
        required.extend(field.required.then_some(field.name.as_str()));
    }
    let title = subject.map(|(name, _)| name);
    let mut object = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    if let Some(title) = title {
        object["title"] = json!(title);
    }
    object
}

fn one(kind: &Kind) -> Value {
    match kind {
        Kind::Whole(0) => json!({ "type": "integer", "minimum": 0 }),
        Kind::Whole(least) => json!({ "type": "integer", "minimum": least, "maximum": Dim::MAX }),
        Kind::Number => json!({ "type": "number" }),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Text | Kind::Pairs => json!({ "type": "string" }),
        Kind::OneOf(values) => json!({ "type": "string", "enum": values }),
    }
}

fn property(field: &Field) -> Value {
    let one = one(&field.kind);
    let mut forms = vec![one.clone()];
    if field.many {
        forms.push(json!({ "type": "array", "items": one, "maxItems": 256 }));
    }
    if field.kind == Kind::Pairs {
        forms.push(json!({ "type": "object", "additionalProperties": { "type": "string" } }));
    }
    if !field.required {
        forms.push(json!({ "type": "null" }));
    }
    let mut schema = if forms.len() == 1 { one } else { json!({ "anyOf": forms }) };
    schema["description"] = json!(field.help);
    if let Some(default) = &field.default {
        let plain = match field.kind {
            Kind::Whole(_) | Kind::Number => serde_json::from_str(default).unwrap_or(Value::Null),
            _ => json!(default),
        };
        schema["default"] = plain;
    }
    schema
}

/// Some fields of `verb` as parameters of a query.
pub(super) fn query(verb: &str, names: &[&str]) -> Vec<Value> {
    let Some(form) = Verb::named(verb).and_then(|verb| request::form(verb).ok()) else { return Vec::new() };
    let chosen = form.own.iter().filter(|field| names.contains(&field.name.as_str()));
    let parameter = |field: &Field| {
        let one = one(&field.kind);
        let schema = if field.many { json!({ "type": "array", "items": one, "maxItems": 16 }) } else { one };
        json!({ "name": field.name, "in": "query", "required": false, "schema": schema, "description": field.help })
    };
    chosen.map(parameter).collect()
}

/// An object that has at least these fields.
pub(super) fn having(required: &[&str]) -> Value {
    json!({ "type": "object", "required": required })
}
