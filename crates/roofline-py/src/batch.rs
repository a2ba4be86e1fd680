//! Columns of Python as columns of a request, and back.
//!
//! The stable interface of the interpreter has no buffers before 3.11, so the package hands over their bytes: one copy of a
//! column, and no object for a row.

use std::{collections::HashMap, sync::Arc};

use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict, PyList, PyString},
};
use roofline_core::{machine::Basis, wording};
use roofline_verbs::{
    batch::{Answer, Column, Names, Request, batch},
    request::ModelName,
};

use crate::{
    answer,
    failure::raised,
    question::{kind_of, text, value_of},
    work,
};

/// The forecasts of columns that the package has brought into form.
pub(crate) fn predict<'py>(py: Python<'py>, columns: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyDict>> {
    let request = Request {
        model: names(columns, "model", model)?,
        on: names(columns, "on", word)?,
        precision: names(columns, "precision", word)?,
        batch: numbers(columns, "batch")?,
        context: numbers(columns, "context")?,
        phase: names(columns, "phase", word)?,
        tier: names(columns, "tier", word)?,
    };
    told(py, &work::long(py, move |context| batch(context, &request))?)
}

fn field<'py, T: FromPyObjectOwned<'py>>(columns: &Bound<'py, PyDict>, name: &str) -> PyResult<T> {
    let missing = || raised(columns.py(), &format!("`{name}` is missing"), None, "usage");
    columns.get_item(name)?.ok_or_else(missing)?.extract().map_err(Into::into)
}

/// A column of names: those that there are, and which of them each row has; the latter is left out where there is one.
fn names<'py, T>(
    columns: &Bound<'py, PyDict>,
    name: &str,
    read: impl Fn(&Bound<'py, PyAny>, &str) -> PyResult<T>,
) -> PyResult<Names<T>> {
    let (distinct, codes): (Bound<'py, PyList>, Option<Bound<'py, PyBytes>>) = field(columns, name)?;
    let each = |value: Bound<'py, PyAny>| if value.is_none() { Ok(None) } else { read(&value, name).map(Some) };
    let distinct = distinct.iter().map(each).collect::<PyResult<_>>()?;
    let rows = match codes {
        None => Column::One(0),
        Some(codes) => Column::Rows(codes.as_bytes().as_chunks().0.iter().copied().map(u32::from_ne_bytes).collect()),
    };
    Ok(Names { distinct, rows })
}

fn word(value: &Bound<'_, PyAny>, name: &str) -> PyResult<String> {
    match value.cast::<PyString>() {
        Ok(value) => text(value, name),
        Err(_) => Err(refused(value, name, "texts")),
    }
}

/// A name, or what is in a `config.json`.
fn model(value: &Bound<'_, PyAny>, name: &str) -> PyResult<ModelName> {
    serde_json::from_value(value_of(value, name, 0)?).map_err(|_| refused(value, name, "texts"))
}

fn refused(value: &Bound<'_, PyAny>, name: &str, what: &str) -> PyErr {
    raised(value.py(), &format!("`{name}` is {}", kind_of(value)), Some(&format!("it is a column of {what}")), "usage")
}

/// A column of numbers: a letter of Python's `struct` and how wide one is, the bytes, and whether they are a column.
fn numbers(columns: &Bound<'_, PyDict>, name: &str) -> PyResult<Column<f64>> {
    let (letter, width, bytes, many): (String, usize, Bound<'_, PyBytes>, bool) = field(columns, name)?;
    let values = read(&letter, width, bytes.as_bytes()).ok_or_else(|| {
        let message = format!("`{name}` has items of type `{letter}`");
        raised(columns.py(), &message, Some("it is a number or a column of numbers"), "usage")
    })?;
    match (many, values[..].first()) {
        (true, _) => Ok(Column::Rows(values)),
        (false, Some(value)) => Ok(Column::One(*value)),
        (false, None) => Err(raised(columns.py(), &format!("`{name}` has no value"), None, "usage")),
    }
}

/// Numbers of any kind as 64 bit. What is not exact in those is far beyond every dimension, and stays so.
#[expect(clippy::cast_lossless, reason = "one way for all kinds of numbers")]
fn read(letter: &str, width: usize, bytes: &[u8]) -> Option<Vec<f64>> {
    macro_rules! of {
        ($number:ty) => {
            Some(bytes.as_chunks().0.iter().map(|chunk| <$number>::from_ne_bytes(*chunk) as f64).collect())
        };
    }
    match (letter, width) {
        ("d", 8) => of!(f64),
        ("f", 4) => of!(f32),
        ("b", 1) => of!(i8),
        ("B", 1) => of!(u8),
        ("h", 2) => of!(i16),
        ("H", 2) => of!(u16),
        ("i" | "l", 4) => of!(i32),
        ("I" | "L", 4) => of!(u32),
        ("l" | "q" | "n", 8) => of!(i64),
        ("L" | "Q" | "N", 8) => of!(u64),
        _ => None,
    }
}

/// Numbers as the bytes of an array of 64 bit; the rest as a list of what there is, and the bytes of which of it a row has.
fn told<'py>(py: Python<'py>, told: &Answer) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    for (name, values) in [
        ("expected_time_us", &told.expected_time_us),
        ("lo_us", &told.lo_us),
        ("hi_us", &told.hi_us),
        ("ideal_time_us", &told.ideal_time_us),
        ("tokens_per_s", &told.tokens_per_s),
        ("memory_bytes", &told.memory_bytes),
    ] {
        columns.set_item(name, bytes(py, values, |value| value.to_ne_bytes())?)?;
    }
    let fits = |fits: &Option<bool>| [fits.map_or(0, |fits| 1 + u8::from(fits))];
    columns.set_item("fits", ((None::<bool>, false, true), bytes(py, &told.fits, fits)?))?;
    let known = [Basis::Calibrated, Basis::Published, Basis::Transferred, Basis::Prior];
    let place = |basis: &Option<Basis>| known.iter().position(|known| Some(*known) == *basis);
    let basis = |basis: &Option<Basis>| [place(basis).map_or(0, |place| place as u8 + 1)];
    let words: Vec<Option<&str>> = [None].into_iter().chain(known.map(|basis| Some(basis.name()))).collect();
    columns.set_item("basis", (words, bytes(py, &told.basis, basis)?))?;
    let (texts, codes) = errors(&told.error);
    columns.set_item("error", (texts, bytes(py, &codes, |code| code.to_ne_bytes())?))?;
    columns.set_item("notes", answer::object(py, &told.notes)?)?;
    Ok(columns)
}

fn bytes<'py, T, const N: usize>(
    py: Python<'py>,
    values: &[T],
    each: impl Fn(&T) -> [u8; N],
) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, values.len() * N, |bytes| {
        for (place, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
            *place = each(value);
        }
        Ok(())
    })
}

/// The texts of errors, each once with none as the first, and which of them each row has.
fn errors(rows: &[Option<Arc<str>>]) -> (Vec<Option<String>>, Vec<u32>) {
    let mut texts = vec![None];
    let mut places: HashMap<&str, u32> = HashMap::new();
    let mut codes = Vec::with_capacity(rows.len());
    for row in rows {
        let Some(text) = row else {
            codes.push(0);
            continue;
        };
        codes.push(*places.entry(text).or_insert_with(|| {
            texts.push(Some(wording::arguments(text).into_owned()));
            texts.len() as u32 - 1
        }));
    }
    (texts, codes)
}
