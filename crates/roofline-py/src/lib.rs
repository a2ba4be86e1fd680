//! `roofline._native`: the verbs for Python.
//!
//! A dictionary becomes a request, one function answers, and the answer becomes dictionaries, lists, texts and numbers. What
//! is made of those - keyword arguments, attributes, tables, pictures in a notebook - is the package in `python/roofline`,
//! which computes nothing.

#![forbid(unsafe_code)]

mod answer;
mod batch;
mod callable;
mod failure;
mod home;
mod question;
mod reply;
mod verbs;
mod work;

/// The native part of the package `roofline`.
#[pyo3::pymodule]
mod _native {
    use pyo3::{prelude::*, types::PyDict};

    #[pymodule_export]
    use super::reply::Reply;
    use super::{batch, callable, question, verbs, work};

    /// The version of the program that answers.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name that Python gives it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    /// The names of the verbs.
    #[pyfunction]
    fn verbs_known() -> Vec<&'static str> {
        verbs::VERBS.iter().map(|verb| verb.name).collect()
    }

    /// Asks `verb` and gives the answer as plain objects. `progress` is called now and then, from the thread that asks, with
    /// what happened since.
    #[pyfunction]
    #[pyo3(signature = (verb, request, progress = None))]
    fn call<'py>(
        py: Python<'py>,
        verb: &str,
        request: &Bound<'py, PyDict>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        ask(py, verb, request, progress)?.fields(py)
    }

    /// The same, with an answer that can be drawn.
    #[pyfunction]
    #[pyo3(signature = (verb, request, progress = None))]
    fn ask<'py>(
        py: Python<'py>,
        verb: &str,
        request: &Bound<'py, PyDict>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Reply> {
        let verb = verbs::named(py, verb)?;
        let fields = question::fields(request)?;
        work::answer(py, verb, fields, progress)
    }

    /// Checks and times a function that `runner` calls, beside the roof and, where `ours` asks for it, beside our kernel.
    #[pyfunction]
    fn measure_callable<'py>(
        py: Python<'py>,
        request: &Bound<'py, PyDict>,
        runner: &Bound<'py, PyAny>,
        ours: bool,
    ) -> PyResult<Reply> {
        callable::measure(py, question::fields(request)?, runner, ours)
    }

    /// A whole-model forecast for each row of columns. Numbers come and go as bytes, names as a list of those that there are
    /// and the bytes of which of them each row has; nothing is made for a row.
    #[pyfunction]
    fn predict_batch<'py>(py: Python<'py>, columns: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyDict>> {
        batch::predict(py, columns)
    }
}
