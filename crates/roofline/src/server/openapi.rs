//! The description of every route, made from the types of its request and its answer.

mod operation;
mod schema;

use std::sync::LazyLock;

use axum::response::Response;
use schemars::SchemaGenerator;
use serde_json::{Map, Value, json};

pub(super) use self::operation::OPERATIONS;
use self::operation::Operation;
use super::{answers::typed, refusal::Body as Refused};

static DOCUMENT: LazyLock<Value> = LazyLock::new(build);
static TEXT: LazyLock<String> = LazyLock::new(|| DOCUMENT.to_string());

pub(super) async fn document() -> Response {
    typed("application/json", TEXT.clone())
}

/// The document, for the page that shows it.
pub(super) fn value() -> &'static Value {
    &DOCUMENT
}

/// References that lead nowhere.
pub(super) fn dangling() -> Vec<String> {
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    references(value(), &mut found);
    let nowhere = |reference: &&str| value().pointer(reference.trim_start_matches('#')).is_none();
    found.into_iter().filter(nowhere).map(str::to_owned).collect()
}

fn build() -> Value {
    let mut schemas = schema::generator();
    schemas.subschema_for::<Refused>();
    let mut paths: Map<String, Value> = Map::new();
    for operation in OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = describe(operation, &mut schemas);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "roofline",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "How fast a language model can run, how fast it does run, and which number format to use. \
                Requests and answers are those of the command line: a field is a long flag in snake case, and an answer is \
                what `--json` prints.",
        },
        "paths": paths,
        "components": {
            "schemas": schema::components(schemas),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
        "security": [{}, { "token": [] }],
    })
}

fn describe(operation: &Operation, schemas: &mut SchemaGenerator) -> Value {
    let (status, kind, schema) = (operation.status, operation.kind, (operation.answer)(schemas));
    let content = if schema.is_null() { json!({}) } else { json!({ kind: { "schema": schema } }) };
    let error = |description: &str| {
        let schema = json!({ "$ref": "#/components/schemas/Error" });
        json!({ "description": description, "content": { "application/json": { "schema": schema } } })
    };
    let mut described = json!({
        "operationId": operation.id(),
        "summary": operation.summary,
        "responses": {
            status: { "description": "The answer", "content": content },
            "4XX": error("The request is wrong: `detail` says how, `hint` what to do"),
            "503": error("Not now, or not on this machine"),
        },
    });
    let mut parameters = operation.path_parameters();
    parameters.extend((operation.query)());
    if !parameters.is_empty() {
        described["parameters"] = Value::Array(parameters);
    }
    if let Some((schema, required)) = (operation.body)(schemas) {
        let example = operation.example.and_then(|text| serde_json::from_str::<Value>(text).ok());
        let mut content = json!({ "schema": schema });
        if let Some(example) = example {
            content["example"] = example;
        }
        let mut kinds = json!({ "application/json": content });
        for kind in operation.also.iter().filter(|kind| **kind != "application/json") {
            kinds[*kind] = json!({ "schema": { "type": "string", "format": "binary" } });
        }
        described["requestBody"] = json!({ "required": required, "content": kinds });
    }
    described
}
