//! Why a verb did not answer, as an exception.

use std::any::Any;

use pyo3::{prelude::*, sync::PyOnceLock, types::PyType};
use roofline_core::wording;
use roofline_verbs::Error;

/// `roofline.RooflineError`, with the message and the hint that every other face shows.
pub(crate) fn raised(py: Python<'_>, message: &str, hint: Option<&str>, kind: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let message = shortened(&wording::arguments(message));
    let hint = hint.map(|hint| shortened(&wording::arguments(hint)));
    let made =
        CLASS.import(py, "roofline.errors", "RooflineError").and_then(|class| class.call1((message, hint, kind)));
    match made {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// The longest text of an error. Texts hold what was asked, and that may be of any size.
const LONGEST: usize = 4000;

fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// What a verb found wrong.
pub(crate) fn of_verb(py: Python<'_>, error: &Error) -> PyErr {
    raised(py, &error.to_string(), error.hint().as_deref(), error.kind())
}

/// A defect of this program. It must not end the interpreter, in which the work of others lies.
pub(crate) fn of_panic(py: Python<'_>, panic: &(dyn Any + Send)) -> PyErr {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let message = format!("roofline failed: {}", text.unwrap_or("for a reason that it does not tell"));
    raised(py, &message, Some("this is a defect; report it with what you asked"), "internal")
}
