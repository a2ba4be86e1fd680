//! An answer that Python holds.

use std::sync::Arc;

use pyo3::{prelude::*, sync::PyOnceLock};
use roofline_verbs::{
    Context,
    context::Home,
    note::Nobody,
    picture::{Picture, Theme},
};
use serde::Serialize;

use crate::answer;

/// Whatever a verb tells: it can be written down, and perhaps drawn.
pub(crate) trait Told: Send + Sync {
    /// As plain objects.
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>>;
    /// What there is to see.
    fn pictures(&self) -> Vec<Picture>;
}

/// The pictures of an answer to a request.
pub(crate) type Draw<Q, A> = fn(&Context, &Q, &A) -> Vec<Picture>;

/// An answer with its question.
pub(crate) struct Answered<Q, A> {
    pub(crate) home: Arc<Home>,
    pub(crate) request: Q,
    pub(crate) answer: A,
    pub(crate) draw: Draw<Q, A>,
}

impl<Q: Send + Sync, A: Serialize + Send + Sync> Told for Answered<Q, A> {
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        answer::object(py, &self.answer)
    }

    fn pictures(&self) -> Vec<Picture> {
        let context = Context::local(Arc::clone(&self.home), Arc::new(Nobody));
        (self.draw)(&context, &self.request, &self.answer)
    }
}

/// The answer of a verb.
#[pyclass(frozen, module = "roofline._native")]
pub(crate) struct Reply {
    told: Box<dyn Told>,
    fields: PyOnceLock<Py<PyAny>>,
}

impl Reply {
    pub(crate) fn new(told: Box<dyn Told>) -> Self {
        Self { told, fields: PyOnceLock::new() }
    }
}

#[pymethods]
impl Reply {
    /// Everything that was told, as plain objects.
    pub(crate) fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let made = self.fields.get_or_try_init(py, || self.told.fields(py).map(Bound::unbind))?;
        Ok(made.bind(py).clone())
    }

    /// Its pictures as SVG; none where there is nothing to see.
    #[pyo3(signature = (dark = false))]
    fn pictures(&self, py: Python<'_>, dark: bool) -> Vec<String> {
        let theme = if dark { Theme::Dark } else { Theme::Light };
        py.detach(|| self.told.pictures().iter().map(|picture| picture.svg(theme)).collect())
    }
}
