//! Schemas as types of Python.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::{Map, Value};

/// Words that no attribute can be called by; such fields are reached by `answer["from"]`.
const TAKEN: [&str; 8] = ["as", "class", "for", "from", "global", "in", "is", "with"];

/// The type of a value that is told.
pub(super) fn kind(schema: &Value, prefix: &str) -> String {
    if let Some(name) = reference(schema) {
        return format!("{prefix}{name}");
    }
    if let Some(forms) = alternatives(schema) {
        return union(forms.iter().map(|form| kind(form, prefix)));
    }
    if let Some(literal) = literal(schema) {
        return literal;
    }
    union(names(schema).into_iter().map(|name| match name {
        "array" => format!("List[{}]", kind(&schema["items"], prefix)),
        "object" => "Answer".to_owned(),
        name => plain(name).to_owned(),
    }))
}

/// The type of a field that is asked for.
pub(super) fn asked(schema: &Value) -> String {
    if let Some(forms) = alternatives(schema) {
        return union(forms.iter().map(asked));
    }
    if let Some(literal) = literal(schema) {
        return literal;
    }
    union(names(schema).into_iter().map(|name| match name {
        "array" => format!("Sequence[{}]", asked(&schema["items"])),
        "object" => "Mapping[str, Any]".to_owned(),
        // A field of a request that names a file is marked so.
        "string" if schema["x-local"] == true => "Path".to_owned(),
        name => plain(name).to_owned(),
    }))
}

/// The type of one of a list's values.
pub(super) fn item(schema: &Value) -> String {
    alternatives(schema).and_then(|forms| forms.first()).map_or_else(|| "str".to_owned(), asked)
}

fn plain(name: &str) -> &str {
    match name {
        "integer" => "int",
        "number" => "float",
        "string" => "str",
        "boolean" => "bool",
        "null" => "None",
        _ => "Any",
    }
}

fn names(schema: &Value) -> Vec<&str> {
    match &schema["type"] {
        Value::String(name) => vec![name],
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        _ => vec!["any"],
    }
}

fn reference(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

fn alternatives(schema: &Value) -> Option<&Vec<Value>> {
    schema["anyOf"].as_array().or(schema["oneOf"].as_array())
}

/// One of some texts.
fn literal(schema: &Value) -> Option<String> {
    let one = schema.get("const").map(|value| vec![value]);
    let values = one.or_else(|| Some(schema["enum"].as_array()?.iter().collect()))?;
    let texts: Vec<String> = values.iter().filter(|value| !value.is_null()).map(ToString::to_string).collect();
    let literal = format!("Literal[{}]", texts.join(", "));
    Some(if values.iter().any(|value| value.is_null()) { format!("Optional[{literal}]") } else { literal })
}

/// One of some types, each of them once; texts that are spelled out together.
fn union(kinds: impl Iterator<Item = String>) -> String {
    let (mut all, mut texts): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for kind in kinds {
        match kind.strip_prefix("Literal[").and_then(|rest| rest.strip_suffix(']')) {
            Some(spelled) => texts.push(spelled.to_owned()),
            None if all.contains(&kind) => {}
            None => all.push(kind),
        }
    }
    if !texts.is_empty() {
        all.push(format!("Literal[{}]", texts.join(", ")));
    }
    if all.iter().any(|kind| kind == "Any") {
        return "Any".to_owned();
    }
    let nothing = all.iter().position(|kind| kind == "None").map(|at| all.remove(at));
    let some = match &all[..] {
        [] => "None".to_owned(),
        [one] => one.clone(),
        several => format!("Union[{}]", several.join(", ")),
    };
    if nothing.is_some() && some != "None" { format!("Optional[{some}]") } else { some }
}

/// A class for each kind of object, and a name for everything else.
pub(super) fn classes(known: &Map<String, Value>) -> String {
    let mut text = String::new();
    for (name, schema) in known {
        let mut fields = BTreeMap::new();
        if gathered(schema, known, &mut fields) {
            let _ = writeln!(text, "class {name}(Answer):");
            let nameable = |name: &&String| !TAKEN.contains(&name.as_str()) && !name.contains(['-', '.']);
            let shown: Vec<&String> = fields.keys().filter(nameable).collect();
            if shown.is_empty() {
                text += "    ...\n";
            }
            for field in shown {
                let _ = writeln!(text, "    {field}: {}", union(fields[field].iter().cloned()));
            }
            text += "\n";
        }
    }
    // What is only another name stands after what it names.
    for (name, schema) in known {
        if !gathered(schema, known, &mut BTreeMap::new()) {
            let _ = writeln!(text, "{name} = {}", kind(schema, ""));
        }
    }
    text
}

/// The fields of an object with all of its forms; false where a schema is of something else.
fn gathered(schema: &Value, known: &Map<String, Value>, fields: &mut BTreeMap<String, Vec<String>>) -> bool {
    let mut object = schema["properties"].is_object();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        fields.entry(name.clone()).or_default().push(kind(field, ""));
    }
    // A reference beside other fields, or among the forms of a tagged value, is a part of it.
    if let (Some(target), true) = (reference(schema).and_then(|name| known.get(name)), object) {
        gathered(target, known, fields);
    }
    // Forms that are all objects make one class: whoever asks knows which of them is told.
    if let Some(forms) = alternatives(schema) {
        let found = forms.iter().map(|form| resolved(form, known)).collect::<Vec<_>>();
        if object || found.iter().all(|form| gathered(form, known, &mut BTreeMap::new())) {
            object = true;
            for form in found {
                gathered(form, known, fields);
            }
        }
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        object |= gathered(resolved(part, known), known, fields);
    }
    object
}

/// What a schema refers to, where it is nothing but a reference.
fn resolved<'s>(schema: &'s Value, known: &'s Map<String, Value>) -> &'s Value {
    let target = reference(schema).filter(|_| schema.get("properties").is_none()).and_then(|name| known.get(name));
    target.unwrap_or(schema)
}
