//! CSV by RFC 4180: the rows of the JSON, nested objects as dotted columns; what the JSON says once stands in every row.

use std::io;

use serde_json::{Map, Value};

use super::Report;

pub(super) fn render<R: Report>(report: &R) -> io::Result<String> {
    let mut value = serde_json::to_value(report)?;
    // Of the run, not of a row; the run file and JSON have it.
    value.as_object_mut().and_then(|fields| fields.remove("environment"));
    let rows = value.get_mut(R::ROWS).map(Value::take).and_then(|rows| rows.as_array().cloned()).unwrap_or_default();
    let common = flatten(&value, false);
    let rows: Vec<Map<String, Value>> =
        rows.iter().map(|row| common.clone().into_iter().chain(flatten(row, true)).collect()).collect();
    let mut columns: Vec<&String> = Vec::new();
    for key in rows.iter().flat_map(Map::keys) {
        if !columns.contains(&key) {
            columns.push(key);
        }
    }
    // An object that is missing in one row is no column beside its own fields in another.
    let names = columns.clone();
    columns.retain(|column| !names.iter().any(|name| name.starts_with(&format!("{column}."))));
    if columns.is_empty() {
        return Ok(String::new());
    }
    let mut out = line(columns.iter().map(|column| (*column).clone()));
    for row in &rows {
        out += &line(columns.iter().map(|column| row.get(*column).map_or_else(String::new, text)));
    }
    Ok(out)
}

fn line(cells: impl Iterator<Item = String>) -> String {
    cells.map(|cell| quoted(&cell)).collect::<Vec<_>>().join(",") + "\n"
}

/// A field, in quotes where it needs them.
pub(crate) fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

/// Objects become columns; a list of objects is a table of its own and has no place in a row.
fn flatten(row: &Value, nulls: bool) -> Map<String, Value> {
    let mut flat = Map::new();
    let mut pending: Vec<(String, Value)> = vec![(String::new(), row.clone())];
    while let Some((name, value)) = pending.pop() {
        match value {
            Value::Object(object) => pending.extend(object.into_iter().rev().map(|(key, value)| {
                let name = if name.is_empty() { key } else { format!("{name}.{key}") };
                (name, value)
            })),
            Value::Array(items) if items.is_empty() && !nulls || items.iter().any(Value::is_object) => {}
            Value::Null if !nulls => {}
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
        let flat = flatten(&row, true);
        assert_eq!(flat.keys().collect::<Vec<_>>(), ["a", "b.c", "b.d", "e"]);
        assert_eq!(quoted(&text(&flat["b.c"])), "\"x, \"\"y\"\"\"");
        assert_eq!(text(&flat["e"]), "1; 2");
    }
}
