//! CSV by RFC 4180: the rows of the JSON, nested objects as dotted columns; what the JSON says once stands in every row.

use std::io;

use serde::Serialize;
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
    let mut out = line(columns.iter().copied());
    for row in &rows {
        out += &line(columns.iter().map(|column| row.get(*column).map_or_else(String::new, text)));
    }
    Ok(out)
}

/// One row that stands for itself: the names of its columns, and its cells.
pub(crate) fn row(value: &impl Serialize) -> (String, String) {
    let row = flatten(&serde_json::to_value(value).unwrap_or_default(), true);
    (line(row.keys()), line(row.values().map(text)))
}

fn line(cells: impl Iterator<Item = impl AsRef<[u8]>>) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    // Nothing can go wrong with memory and one record.
    let _ = writer.write_record(cells);
    writer.into_inner().map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
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
        assert_eq!(line([text(&flat["b.c"])].iter()), "\"x, \"\"y\"\"\"\n");
        assert_eq!(text(&flat["e"]), "1; 2");
    }
}
