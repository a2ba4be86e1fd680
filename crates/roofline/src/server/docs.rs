//! The document as a page: no script, nothing from elsewhere.

use std::sync::LazyLock;

use axum::response::Response;
use serde_json::Value;

use super::{answers::typed, openapi};

static PAGE: LazyLock<String> = LazyLock::new(|| render(openapi::value()));

pub(super) async fn page() -> Response {
    typed("text/html; charset=utf-8", PAGE.clone())
}

pub(super) async fn style() -> Response {
    typed("text/css; charset=utf-8", include_str!("docs/style.css").to_owned())
}

fn render(document: &Value) -> String {
    let mut page = String::from(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>roofline: HTTP interface</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><link rel=\"stylesheet\" href=\"/docs/style.css\"></head>\
         <body><main><h1>roofline over HTTP</h1>",
    );
    page += &format!("<p>{}</p>", escaped(text(&document["info"]["description"])));
    page += "<p><a href=\"/api/openapi.json\">openapi.json</a> describes the same for programs.</p><nav><ul>";
    let routes: Vec<(&String, &String, &Value)> = document["paths"]
        .as_object()
        .into_iter()
        .flatten()
        .flat_map(|(path, methods)| {
            methods.as_object().into_iter().flatten().map(move |(method, one)| (path, method, one))
        })
        .collect();
    for (path, method, route) in &routes {
        let (id, summary) = (text(&route["operationId"]), escaped(text(&route["summary"])));
        page += &format!("<li><a href=\"#{id}\"><code>{} {path}</code></a> {summary}</li>", method.to_uppercase());
    }
    page += "</ul></nav>";
    for (path, method, route) in &routes {
        page += &section(path, method, route);
    }
    page + "</main></body></html>"
}

fn section(path: &str, method: &str, route: &Value) -> String {
    let upper = method.to_uppercase();
    let mut out = format!("<section id=\"{}\"><h2><code>{upper} {path}</code></h2>", text(&route["operationId"]));
    out += &format!("<p>{}</p>", escaped(text(&route["summary"])));
    let content = &route["requestBody"]["content"]["application/json"];
    let parameters = route["parameters"].as_array().into_iter().flatten();
    let parameters: String = parameters.map(parameter).collect();
    if !parameters.is_empty() {
        out += &format!("<table><tr><th>parameter</th><th>is</th><th></th></tr>{parameters}</table>");
    }
    let example = &content["example"];
    if !example.is_null() {
        let command =
            format!("curl -X {upper} localhost:8000{path} -H 'Content-Type: application/json' \\\n  -d '{example}'");
        out += &format!("<pre>{}</pre>", escaped(&command));
    }
    let schema = &content["schema"];
    let alternatives = schema["oneOf"].as_array().cloned().unwrap_or_else(|| vec![schema.clone()]);
    out += &alternatives.iter().map(fields).collect::<String>();
    out + "</section>"
}

fn parameter(parameter: &Value) -> String {
    let name = escaped(text(&parameter["name"]));
    let (kind, about) = (kind(&parameter["schema"]), escaped(text(&parameter["description"])));
    format!("<tr><td><code>{name}</code></td><td>{kind}</td><td>{about}</td></tr>")
}

fn fields(schema: &Value) -> String {
    let Some(properties) = schema["properties"].as_object() else { return String::new() };
    let title = schema["title"].as_str().map_or_else(
        || "<h3>Fields</h3>".to_owned(),
        |title| format!("<h3><code>\"subject\": \"{title}\"</code></h3>"),
    );
    let required = |name: &str| schema["required"].as_array().into_iter().flatten().any(|one| one == name);
    let mut rows = String::new();
    for (name, field) in properties.iter().filter(|(name, _)| *name != "subject") {
        let default = match &field["default"] {
            Value::Null => String::new(),
            default => format!("; {} when left out", escaped(&default.to_string())),
        };
        let needed = if required(name) { "; required" } else { "" };
        let about = escaped(text(&field["description"]));
        rows +=
            &format!("<tr><td><code>{name}</code></td><td>{}{default}{needed}</td><td>{about}</td></tr>", kind(field));
    }
    format!(
        "<details><summary>{title}</summary><table><tr><th>field</th><th>is</th><th></th></tr>{rows}</table></details>"
    )
}

/// A schema in a few words.
fn kind(schema: &Value) -> String {
    if let Some(forms) = schema["anyOf"].as_array() {
        let forms = forms.iter().filter(|form| form["type"] != "null");
        return forms.map(kind).collect::<Vec<_>>().join(" or ");
    }
    match (schema["type"].as_str(), schema["enum"].as_array()) {
        (_, Some(values)) => values.iter().map(|value| escaped(text(value))).collect::<Vec<_>>().join(", "),
        (Some("array"), _) => "list".to_owned(),
        (Some(kind), _) => escaped(kind),
        _ => String::new(),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
