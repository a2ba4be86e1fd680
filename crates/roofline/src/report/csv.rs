//! CSV by RFC 4180: the rows of the JSON, nested objects as dotted columns, units in the names as in the JSON.

use std::io;

use serde_json::{Map, Value};

use super::Report;

pub(super) fn render<R: Report>(report: &R) -> io::Result<String> {
    let value = serde_json::to_value(report)?;
    let rows = value.get(R::ROWS).and_then(Value::as_array).cloned().unwrap_or_default();
    let rows: Vec<Map<String, Value>> = rows.iter().map(flatten).collect();
    let mut columns: Vec<&String> = Vec::new();
    for key in rows.iter().flat_map(Map::keys) {
        if !columns.contains(&key) {
            columns.push(key);
        }
    }
    // An object that is missing in one row is no column beside its own fields in another.
    let names = columns.clone();
    columns.retain(|column| !names.iter().any(|name| name.starts_with(&format!("{column}."))));
    let mut out = line(columns.iter().map(|column| (*column).clone()));
    for row in &rows {
        out += &line(columns.iter().map(|column| row.get(*column).map_or_else(String::new, text)));
    }
    Ok(out)
}

fn line(cells: impl Iterator<Item = String>) -> String {
    cells.map(|cell| quoted(&cell)).collect::<Vec<_>>().join(",") + "\n"
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

/// Objects become columns; a list of objects is a table of its own and has no place in a row.
fn flatten(row: &Value) -> Map<String, Value> {
    let mut flat = Map::new();
    let mut pending: Vec<(String, Value)> = vec![(String::new(), row.clone())];
    while let Some((name, value)) = pending.pop() {
        match value {
            Value::Object(object) => pending.extend(object.into_iter().rev().map(|(key, value)| {
                let name = if name.is_empty() { key } else { format!("{name}.{key}") };
                (name, value)
            })),
            Value::Array(items) if items.iter().any(Value::is_object) => {}
            other => {
                flat.insert(name, other);
            }
        }
    }
    flat
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join("; "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nested_objects_are_dotted_and_commas_quoted() {
        let row = json!({ "a": 1, "b": { "c": "x, \"y\"", "d": null }, "e": [1, 2], "f": [{ "g": 1 }] });
        let flat = flatten(&row);
        assert_eq!(flat.keys().collect::<Vec<_>>(), ["a", "b.c", "b.d", "e"]);
        assert_eq!(quoted(&text(&flat["b.c"])), "\"x, \"\"y\"\"\"");
        assert_eq!(text(&flat["e"]), "1; 2");
    }
}
