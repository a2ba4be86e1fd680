//! Python's objects as the fields of a request.
//!
//! Only plain things are taken: what a file of JSON could hold, with tuples, ranges and arrays for lists, paths for texts, and
//! whatever says by `__index__` or `__float__` which number it is. Everything else is refused by name and type.

use std::borrow::Cow;

use pyo3::{
    exceptions::PyUnicodeEncodeError,
    prelude::*,
    types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyRange, PyString, PyTuple},
};
use serde_json::{Map, Number, Value};

use crate::failure::raised;

/// The deepest nesting of what a request holds; whatever holds itself ends here.
const DEEPEST: usize = 64;

/// The fields of a request.
pub(crate) fn fields(request: &Bound<'_, PyDict>) -> PyResult<Map<String, Value>> {
    object(request, "", 0)
}

fn object(dictionary: &Bound<'_, PyDict>, within: &str, depth: usize) -> PyResult<Map<String, Value>> {
    let mut fields = Map::new();
    for (name, value) in dictionary {
        let Ok(name) = name.cast::<PyString>() else {
            let place = if within.is_empty() { "the request".to_owned() } else { format!("`{within}`") };
            let message = format!("{place} has a key that is {}", kind_of(&name));
            return Err(raised(dictionary.py(), &message, Some("keys are texts"), "usage"));
        };
        let name = text(name, within)?;
        let place = if within.is_empty() { name.clone() } else { within.to_owned() };
        let value = value_of(&value, &place, depth + 1)?;
        fields.insert(name, value);
    }
    Ok(fields)
}

/// `name` is the field of the request that holds it.
pub(crate) fn value_of(value: &Bound<'_, PyAny>, name: &str, depth: usize) -> PyResult<Value> {
    if depth > DEEPEST {
        let message = format!("`{name}` is nested too deeply, or holds itself");
        return Err(raised(value.py(), &message, Some(&format!("{DEEPEST} levels at most")), "usage"));
    }
    if value.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(text_) = value.cast::<PyString>() {
        return text(text_, name).map(Value::String);
    }
    if let Ok(truth) = value.cast::<PyBool>() {
        return Ok(Value::Bool(truth.is_true()));
    }
    if let Ok(whole) = value.cast::<PyInt>() {
        return integer(whole.as_any(), name);
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        return float(number.as_any(), number.value(), name);
    }
    if let Ok(dictionary) = value.cast::<PyDict>() {
        return object(dictionary, name, depth).map(Value::Object);
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() || value.is_instance_of::<PyRange>() {
        return value
            .try_iter()?
            .map(|item| value_of(&item?, name, depth + 1))
            .collect::<PyResult<_>>()
            .map(Value::Array);
    }
    other(value, name, depth)
}

/// What only says what it is: arrays, numbers of NumPy, paths, answers.
fn other(value: &Bound<'_, PyAny>, name: &str, depth: usize) -> PyResult<Value> {
    let py = value.py();
    for method in ["tolist", "to_pylist", "to_dict"] {
        if value.hasattr(method)? {
            return value_of(&value.call_method0(method)?, name, depth + 1);
        }
    }
    if value.hasattr("__fspath__")? {
        return value_of(&value.call_method0("__fspath__")?, name, depth + 1);
    }
    if value.hasattr("__index__")? {
        return integer(&value.call_method0("__index__")?, name);
    }
    if value.hasattr("__float__")? {
        return float(value, value.call_method0("__float__")?.extract()?, name);
    }
    let message = format!("`{name}` is {}", kind_of(value));
    Err(raised(py, &message, Some("give a number, a text, a truth value, a list or a dictionary"), "usage"))
}

/// Beyond 64 bit it is what JSON would make of it; the form of the request says which numbers a field takes.
fn integer(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Value> {
    if let Ok(whole) = value.extract::<i64>() {
        return Ok(whole.into());
    }
    if let Ok(whole) = value.extract::<u64>() {
        return Ok(whole.into());
    }
    match value.extract::<f64>() {
        Ok(number) => float(value, number, name),
        Err(_) => Err(raised(value.py(), &format!("`{name}` is a number of thousands of bits"), None, "usage")),
    }
}

fn float(value: &Bound<'_, PyAny>, number: f64, name: &str) -> PyResult<Value> {
    Number::from_f64(number)
        .map(Value::Number)
        .ok_or_else(|| raised(value.py(), &format!("`{name}` is {number}"), Some("it is a finite number"), "usage"))
}

/// A text that UTF-8 can hold.
pub(crate) fn text(text: &Bound<'_, PyString>, name: &str) -> PyResult<String> {
    text.to_cow().map(Cow::into_owned).map_err(|error| {
        if !error.is_instance_of::<PyUnicodeEncodeError>(text.py()) {
            return error;
        }
        let place = if name.is_empty() { "the name of a field".to_owned() } else { format!("`{name}`") };
        let hint = "it has a lone surrogate, which no file and no terminal can hold";
        raised(text.py(), &format!("{place} is no text in Unicode"), Some(hint), "usage")
    })
}

/// The type of an object, in words.
pub(crate) fn kind_of(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "of an unknown type".to_owned(), |name| format!("of type {name}"))
}
