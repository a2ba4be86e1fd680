//! Schemas: of requests as their bodies are checked, of answers from their types.

#![expect(clippy::unnecessary_wraps, reason = "a route of the table may have no body")]

use roofline_verbs::request::{self, Caller};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Value, json};

/// Collects what answers are made of under their names.
pub(super) fn generator() -> SchemaGenerator {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    settings.into_generator()
}

/// Every named schema.
pub(super) fn components(mut generator: SchemaGenerator) -> Value {
    Value::Object(generator.take_definitions(true).into_iter().collect())
}

/// An answer.
pub(super) fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

/// What a body may say.
pub(super) fn asked<T: JsonSchema + 'static>(_: &mut SchemaGenerator) -> Option<(Value, bool)> {
    Some((request::schema::<T>(Caller::Elsewhere).clone(), true))
}

/// A short form, or what a verb takes.
pub(super) fn either<S: JsonSchema + 'static, T: JsonSchema + 'static>(
    _: &mut SchemaGenerator,
) -> Option<(Value, bool)> {
    Some((json!({ "anyOf": [request::schema::<S>(Caller::Elsewhere), request::schema::<T>(Caller::Elsewhere)] }), true))
}

/// One of two answers.
pub(super) fn one_of<S: JsonSchema, T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    json!({ "anyOf": [of::<S>(generator), of::<T>(generator)] })
}

/// Some fields of a request as parameters of a query.
pub(super) fn query<T: JsonSchema + 'static>(names: &[&str]) -> Vec<Value> {
    let schema = request::schema::<T>(Caller::Elsewhere);
    let parameter = |name: &&str| {
        let field = &schema["properties"][*name];
        let about = field["description"].as_str().unwrap_or_default();
        json!({ "name": name, "in": "query", "required": false, "schema": field, "description": about })
    };
    names.iter().map(parameter).collect()
}
