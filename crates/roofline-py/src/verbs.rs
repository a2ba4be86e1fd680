//! The table of the verbs: what each is called, whether it may take long, and what its answer looks like.

use std::sync::Arc;

use pyo3::{PyErr, PyResult, Python};
use roofline_core::Error as Core;
use roofline_verbs::{
    self as verbs, Context, Result, context::Home, evaluate, picture::Picture, pipeline, plot, predict, recommend,
    request::from_json,
};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{
    failure::raised,
    reply::{Answered, Draw, Told},
};

/// A request that was understood and is yet to be answered.
pub(crate) type Asked = Box<dyn FnOnce(&Context) -> Result<Box<dyn Told>> + Send>;

/// A question that can be asked.
pub(crate) struct Verb {
    pub(crate) name: &'static str,
    /// Whether it may measure, write or run something, and so take long.
    pub(crate) slow: bool,
    /// Reads a request.
    pub(crate) read: fn(Map<String, Value>, Arc<Home>) -> Result<Asked>,
}

/// Reads a request for a function, and says how its answer is drawn.
fn asked<Q, A>(
    fields: Map<String, Value>,
    home: Arc<Home>,
    verb: fn(&Context, &Q) -> Result<A>,
    draw: Draw<Q, A>,
) -> Result<Asked>
where
    Q: DeserializeOwned + JsonSchema + Send + Sync + 'static,
    A: Serialize + Send + Sync + 'static,
{
    let request: Q = from_json(Value::Object(fields))?;
    Ok(Box::new(move |context| {
        let answer = verb(context, &request)?;
        Ok(Box::new(Answered { home, request, answer, draw }))
    }))
}

/// Nothing to see.
fn plain<Q, A>(_context: &Context, _request: &Q, _answer: &A) -> Vec<Picture> {
    Vec::new()
}

macro_rules! verb {
    ($name:ident, $slow:literal) => {
        verb!($name, $slow, verbs::$name::$name, plain)
    };
    ($name:ident, $slow:literal, $function:expr, $draw:expr) => {
        Verb { name: stringify!($name), slow: $slow, read: |fields, home| asked(fields, home, $function, $draw) }
    };
}

pub(crate) const VERBS: &[Verb] = &[
    verb!(predict, false, predict::predict, prediction),
    verb!(measure, true),
    verb!(compare, true, verbs::compare::Answer::with_page, comparison),
    verb!(calibrate, true),
    verb!(sweep, true),
    verb!(recommend, false, recommend::recommend, advice),
    verb!(quantize, true),
    verb!(evaluate, true, evaluate::Answer::with_page, evaluation),
    verb!(generate, true),
    verb!(pipeline, true, pipeline::Answer::with_page, plain),
    verb!(analyze, false),
    verb!(analyzer, false),
    verb!(imatrix, true),
    verb!(inspect, false),
    verb!(plot, false, plot::plot, |context, request, _| plot::picture(context, request).into_iter().collect()),
    verb!(tiling, false),
    verb!(trace, true),
    verb!(region, false),
    verb!(chart, false, verbs::chart::chart, |context, request, answer| prediction(
        context,
        request,
        &answer.prediction
    )),
    verb!(devices, true),
    verb!(models, false),
    verb!(formats, false),
    verb!(precisions, false),
    verb!(monitor, false),
];

/// The verb of that name.
pub(crate) fn named(py: Python<'_>, name: &str) -> PyResult<&'static Verb> {
    let unknown = || -> PyErr {
        let names = VERBS.iter().map(|verb| verb.name);
        let short: String = name.chars().take(80).collect();
        let hint = format!("verbs: {}", names.clone().collect::<Vec<_>>().join(", "));
        raised(py, &Core::unknown("verb", &short, names, "").to_string(), Some(&hint), "usage")
    };
    VERBS.iter().find(|verb| verb.name == name).ok_or_else(unknown)
}

fn comparison(_: &Context, _: &verbs::compare::Request, answer: &verbs::compare::Answer) -> Vec<Picture> {
    vec![Picture::Roofline(answer.picture()), Picture::Times(answer.times())]
}

fn evaluation(_: &Context, _: &evaluate::Request, answer: &evaluate::Answer) -> Vec<Picture> {
    let plans = evaluate::pictures::plans(answer);
    plans.into_iter().chain(evaluate::pictures::pictures(&answer.evaluated)).collect()
}

fn advice(_: &Context, _: &recommend::Request, answer: &recommend::Answer) -> Vec<Picture> {
    match answer {
        recommend::Answer::Model(advised) => vec![recommend::pareto(advised)],
        recommend::Answer::Product(_) => Vec::new(),
    }
}

fn prediction(context: &Context, request: &predict::Request, answer: &predict::Answer) -> Vec<Picture> {
    predict::pictures(context, request, answer).unwrap_or_default()
}
