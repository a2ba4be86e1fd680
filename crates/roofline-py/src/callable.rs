//! A function of Python's, measured as our kernels are.
//!
//! The package brings arrays into the form that a library has, and says how the function is called; how often, on which copy
//! and for how long is the protocol's business. It runs on the thread that asked, because the current stream of a GPU belongs
//! to a thread. What it raises is raised as it is, and so is Ctrl-C.

use std::{sync::Arc, time::Instant};

use pyo3::{
    exceptions::PyRuntimeError,
    prelude::*,
    types::{PyBytes, PyDict, PyTuple},
};
use roofline_core::{Error as Core, measurement::Measurement, units::Seconds};
use roofline_run::{
    Error, Result,
    own::{Dtype, Operands, Own, Timer, Written, shortest},
};
use roofline_verbs::{Context, measure, own, request::from_json};
use serde_json::{Map, Value};

use crate::{
    failure::{of_verb, raised},
    home,
    reply::{Answered, Reply},
    work,
};

/// Calls of nothing that tell what a call takes.
const CALLS: u32 = 200;

pub(crate) fn measure<'py>(
    py: Python<'py>,
    fields: Map<String, Value>,
    runner: &Bound<'py, PyAny>,
    ours: bool,
) -> PyResult<Reply> {
    operator(py, &fields)?;
    let request: measure::Request = from_json(Value::Object(fields)).map_err(|error| of_verb(py, &error))?;
    let prepared = work::long(py, {
        let request = request.clone();
        move |context| own::prepare(context, &request)
    })?;
    let mut callable = Callable::new(runner)?;
    let outcome = prepared.measure(&mut callable);
    let (timer, said) = (callable.timer(), callable.said()?);
    let yours: Measurement = match (outcome, callable.failure.take()) {
        (_, Some(error)) => return Err(error),
        (Err(error), None) => return Err(of_verb(py, &error)),
        (Ok(yours), None) => yours,
    };
    // Its operands are not in the way of ours.
    (callable.places, callable.named) = (Vec::new(), None);
    callable.call("release", ())?;
    let answer = work::long(py, move |context| own::told(context, &prepared, &yours, timer, ours, said))?;
    let draw = |_: &Context, _: &measure::Request, _: &measure::Answer| Vec::new();
    Ok(Reply::new(Box::new(Answered { home: Arc::clone(&home::of(py)), request, answer, draw })))
}

/// Refuses what is no operator that a function of arrays computes, in the words of the package.
fn operator(py: Python<'_>, fields: &Map<String, Value>) -> PyResult<()> {
    let known = ["gemv", "gemm", "attention"];
    let asked = fields.get("subject").and_then(Value::as_str).unwrap_or_default();
    if known.contains(&asked) {
        return Ok(());
    }
    let short: String = asked.chars().take(80).collect();
    let message = Core::unknown("`op`", &short, known, "").to_string();
    Err(raised(py, &message, Some("gemv, gemm or attention"), "unknown"))
}

/// A function with the arrays that it is called on.
struct Callable<'a, 'py> {
    /// What the package has made of it.
    runner: &'a Bound<'py, PyAny>,
    name: String,
    /// Whether a clock of the processor tells its time; a GPU's runner has its own.
    processor: bool,
    function: Bound<'py, PyAny>,
    nothing: Bound<'py, PyAny>,
    /// The arguments of each copy, and those that have a name.
    places: Vec<Bound<'py, PyTuple>>,
    named: Option<Bound<'py, PyDict>>,
    next: usize,
    graph: bool,
    /// What Python raised; it is what the caller gets to see.
    failure: Option<PyErr>,
}

impl<'a, 'py> Callable<'a, 'py> {
    fn new(runner: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        Ok(Self {
            runner,
            name: runner.getattr("name")?.extract()?,
            processor: runner.getattr("processor")?.extract()?,
            function: runner.getattr("function")?,
            nothing: runner.getattr("nothing")?,
            places: Vec::new(),
            named: None,
            next: 0,
            graph: false,
            failure: None,
        })
    }

    /// Keeps what was raised, and says to the protocol that it is over.
    fn kept<T>(&mut self, outcome: PyResult<T>) -> Result<T> {
        outcome.map_err(|error| {
            let reason = error.to_string();
            self.failure = Some(error);
            Error::Failed { kernel: self.name.clone(), reason }
        })
    }

    fn call<A: pyo3::call::PyCallArgs<'py>>(&self, method: &str, arguments: A) -> PyResult<Bound<'py, PyAny>> {
        self.runner.py().check_signals()?;
        self.runner.call_method1(method, arguments)
    }

    /// What the package has to say beside the answer.
    fn said(&self) -> PyResult<Vec<String>> {
        self.runner.getattr("said")?.extract()
    }

    fn loaded(&mut self, operands: &Operands, copies: usize) -> PyResult<()> {
        let py = self.runner.py();
        for part in operands.parts() {
            let bytes = PyBytes::new(py, &part.bytes());
            let shape = PyTuple::new(py, &part.shape)?;
            let count = if part.rotated { copies } else { 1 };
            self.call("operand", (part.name.as_str(), part.dtype.name(), shape, bytes, count))?;
        }
        let (dtype, shape) = operands.output();
        let (places, named): (Vec<Bound<'py, PyTuple>>, Option<Bound<'py, PyDict>>) =
            self.call("arguments", (copies, dtype.name(), PyTuple::new(py, shape)?))?.extract()?;
        if places.is_empty() {
            return Err(PyRuntimeError::new_err("no arguments were made"));
        }
        (self.places, self.named) = (places, named);
        Ok(())
    }

    fn result(&self, method: &str) -> PyResult<Option<Written>> {
        let told: Option<(String, Vec<usize>, Vec<u8>)> = self.call(method, ())?.extract()?;
        let Some((name, shape, bytes)) = told else { return Ok(None) };
        let unknown = || {
            let hint = "float32, float16, bfloat16 or float64";
            raised(
                self.runner.py(),
                &format!("{} returned numbers of type {name}", self.name),
                Some(hint),
                "wrong_result",
            )
        };
        Ok(Some(Written { dtype: Dtype::named(&name).ok_or_else(unknown)?, shape, bytes }))
    }

    /// One call by the processor's clock. What it returns is let go of after the clock was read.
    fn timed(&mut self) -> PyResult<Seconds> {
        self.runner.py().check_signals()?;
        self.next = (self.next + 1) % self.places.len();
        let (place, named) = (&self.places[self.next], self.named.as_ref());
        let start = Instant::now();
        let returned = self.function.call(place, named);
        let elapsed = start.elapsed();
        returned.map(|_| Seconds::new(elapsed.as_secs_f64()))
    }
}

impl Own for Callable<'_, '_> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn load(&mut self, operands: &Operands, copies: usize) -> Result<()> {
        let loaded = self.loaded(operands, copies);
        self.kept(loaded)
    }

    fn written(&mut self) -> Result<Written> {
        let written = self
            .result("written")
            .and_then(|written| written.ok_or_else(|| PyRuntimeError::new_err("the package gave no result")));
        self.kept(written)
    }

    fn gather(&mut self, calls: usize) -> Result<()> {
        if self.processor {
            return Ok(());
        }
        let graph = self.call("gather", (calls,)).and_then(|graph| graph.extract());
        self.graph = self.kept(graph)?;
        Ok(())
    }

    fn replayed(&mut self) -> Result<Option<Written>> {
        if !self.graph {
            return Ok(None);
        }
        let replayed = self.result("replayed");
        self.kept(replayed)
    }

    fn forget(&mut self, reason: &str) {
        self.graph = false;
        if let Err(error) = self.call("forget", (reason,)) {
            self.failure = Some(error);
        }
    }

    fn sample(&mut self) -> Result<Seconds> {
        let seconds = if self.processor {
            self.timed()
        } else {
            self.call("sample", ()).and_then(|seconds| seconds.extract()).map(Seconds::new)
        };
        self.kept(seconds)
    }

    fn overhead(&mut self) -> Seconds {
        let Some(place) = self.places.first() else { return Seconds::ZERO };
        shortest(CALLS, || {
            // It takes whatever there is, and gives nothing.
            let _ = self.nothing.call(place, self.named.as_ref());
        })
    }

    fn timer(&self) -> Timer {
        match (self.processor, self.graph) {
            (true, _) => Timer::Clock,
            (false, true) => Timer::CudaGraph,
            (false, false) => Timer::CudaEvents,
        }
    }
}
