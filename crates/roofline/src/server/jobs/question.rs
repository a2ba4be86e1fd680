//! What a job is asked: a request of a verb that measures.

use std::path::PathBuf;

use roofline_verbs::{Context, Error, broken::Broken, compare, measure, sweep};
use serde::Serialize;
use serde_json::{Map, Value};

use super::super::{answers::read, refusal::Refusal};
use crate::failure::Failure;

/// A request, by its verb.
pub(in crate::server) enum Question {
    Measure(Box<measure::Request>),
    Compare(Box<compare::Request>),
    Sweep(Box<sweep::Request>),
}

impl Question {
    /// The verbs that measure.
    pub(in crate::server) const VERBS: [&str; 3] = ["measure", "compare", "sweep"];

    /// What a body asks of a verb.
    pub(in crate::server) fn read(verb: &str, body: Map<String, Value>) -> Result<Self, Refusal> {
        Ok(match verb {
            "measure" => Self::Measure(Box::new(read(body)?)),
            "compare" => Self::Compare(Box::new(read(body)?)),
            "sweep" => Self::sweep(read(body)?)?,
            _ => {
                let hint = format!("one of {}", Self::VERBS.join(", "));
                return Err(Refusal::body("`verb` is missing or unknown", hint));
            }
        })
    }

    pub(in crate::server) fn sweep(request: sweep::Request) -> Result<Self, Refusal> {
        if request.measure {
            return Ok(Self::Sweep(Box::new(request)));
        }
        let hint = "say `\"measure\": true`; POST /api/sweep answers what is only predicted";
        Err(Refusal::body("this sweep measures nothing", hint))
    }

    /// The name of its verb.
    pub(in crate::server) fn verb(&self) -> &'static str {
        match self {
            Self::Measure(_) => "measure",
            Self::Compare(_) => "compare",
            Self::Sweep(_) => "sweep",
        }
    }

    /// Refuses to measure what would fill the memory of the machine, and what names nothing that is there.
    pub(in crate::server) fn check(&self, context: &Context) -> Result<(), Error> {
        match self {
            Self::Measure(request) => request.refuse_giants(context),
            Self::Compare(request) => request.refuse_giants(context),
            Self::Sweep(request) => request.refuse_giants(),
        }?;
        self.devices().iter().try_for_each(|name| context.device(name).map(|_| ()))
    }

    /// The devices that it names.
    fn devices(&self) -> Vec<&str> {
        let (setting, on) = match self {
            Self::Measure(request) => {
                (request.subject.as_ref().and_then(measure::Subject::setting), request.on.as_deref())
            }
            Self::Compare(request) => (request.setting(), request.on.as_deref()),
            Self::Sweep(request) => (Some(&request.setting), None),
        };
        setting.into_iter().flat_map(|setting| &setting.on).map(String::as_str).chain(on).collect()
    }

    /// Measures, with the run in `out`. The answer does not say where that is: files are the server's own. Beside it is
    /// what ended it before all was done.
    pub(in crate::server) fn answer(self, context: &Context, out: PathBuf) -> Result<(Value, Option<Broken>), Failure> {
        match self {
            Self::Measure(mut request) => {
                request.run.out = Some(out);
                let answer = measure::measure(context, &request)?;
                let broken = answer.broken.map(without_places);
                let answer = measure::Answer { run: None, broken, ..answer };
                Ok((told(&answer)?, answer.broken))
            }
            Self::Compare(mut request) => {
                request.run.out = Some(out);
                let answer = compare::Answer::with_page(context, &request)?;
                let broken = answer.broken.map(without_places);
                let answer = compare::Answer { run: None, report: None, broken, ..answer };
                Ok((told(&answer)?, answer.broken))
            }
            Self::Sweep(mut request) => {
                request.run.out = Some(out);
                let answer = match sweep::sweep(context, &request)? {
                    sweep::Answer::Shapes(swept) => told(sweep::ShapeSweep { run: None, ..*swept }),
                    sweep::Answer::Models(swept) => told(swept),
                };
                Ok((answer?, None))
            }
        }
    }
}

/// Where files are is nobody's business who asks over HTTP.
fn without_places(broken: Broken) -> Broken {
    if broken.kind != "file" {
        return broken;
    }
    Broken { message: "a file of the server could not be read or written".to_owned(), ..broken }
}

fn told(answer: impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(answer).map_err(|error| Failure::Output(error.into()))
}
