//! A verb at work: the interpreter is free meanwhile, whoever waits is told how far it is, and may stop it.
//!
//! What may take long runs on a thread of its own, which never touches Python. The thread that asked comes by many times a
//! second: it hears of signals, hands on what happened, and asks the work to stop where somebody had enough. The work then
//! ends before its next kernel, with everything that was finished on disk. Whoever interrupts once more does not wait for
//! that.

use std::{
    any::Any,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{RecvTimeoutError, sync_channel},
    },
    thread,
    time::Duration,
};

use pyo3::{prelude::*, types::PyDict};
use roofline_core::wording;
use roofline_verbs::{Context, Error, Note, Result as VerbResult, Watcher, context::Home, note::Nobody};
use serde_json::{Map, Value};

use crate::{
    failure::{of_panic, of_verb, raised},
    home,
    reply::Reply,
    verbs::Verb,
};

/// How often whoever waits looks up.
const LOOK: Duration = Duration::from_millis(50);

type Panic = Box<dyn Any + Send>;
/// What became of work: it answered, it refused, or it failed.
type Outcome<T> = Result<VerbResult<T>, Panic>;

/// The answer of a verb.
pub(crate) fn answer(
    py: Python<'_>,
    verb: &Verb,
    fields: Map<String, Value>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Reply> {
    roofline_isa::Isa::from_environment().map_err(|error| raised(py, &error.to_string(), None, "usage"))?;
    let slow = verb.slow || names_this(&fields);
    let home = home::of(py);
    let read = catch_unwind(AssertUnwindSafe(|| (verb.read)(fields, Arc::clone(&home))));
    let asked = read.map_err(|panic| of_panic(py, &*panic))?.map_err(|error| of_verb(py, &error))?;
    let outcome = if slow {
        beside(py, asked, home, progress)?
    } else {
        let context = Context::local(home, Arc::new(Nobody));
        py.detach(|| attempt(asked, &context))
    };
    told(py, outcome).map(Reply::new)
}

/// The answer of work that may take long and tells nothing on its way.
pub(crate) fn long<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Context) -> VerbResult<T> + Send + 'static,
) -> PyResult<T> {
    let outcome = beside(py, work, home::of(py), None)?;
    told(py, outcome)
}

fn told<T>(py: Python<'_>, outcome: Outcome<T>) -> PyResult<T> {
    match outcome {
        Ok(Ok(told)) => Ok(told),
        Ok(Err(error)) => Err(of_verb(py, &error)),
        Err(panic) => Err(of_panic(py, &*panic)),
    }
}

/// Whether this machine is asked about, which may have to be measured first.
fn names_this(fields: &Map<String, Value>) -> bool {
    let this = |value: &Value| value.as_str().is_some_and(|text| text.split(',').any(|name| name.trim() == "this"));
    fields.values().any(|value| this(value) || value.as_array().is_some_and(|items| items.iter().any(this)))
        || !fields.contains_key("on")
}

fn attempt<T>(asked: impl FnOnce(&Context) -> VerbResult<T>, context: &Context) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(|| asked(context)))
}

/// Waits for work on another thread.
fn beside<T: Send + 'static>(
    py: Python<'_>,
    asked: impl FnOnce(&Context) -> VerbResult<T> + Send + 'static,
    home: Arc<Home>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Outcome<T>> {
    let events = Arc::new(Events::default());
    let context = Context::local(home, Arc::clone(&events) as Arc<dyn Watcher>);
    let (sender, receiver) = sync_channel::<Outcome<T>>(1);
    let work = move || {
        // Nobody hears it where whoever asked has gone.
        let _ = sender.send(attempt(asked, &context));
    };
    let started = thread::Builder::new().name("roofline".to_owned()).spawn(work);
    started.map_err(|error| raised(py, &format!("no thread for the work: {error}"), None, "thread"))?;
    let mut stopped: Option<PyErr> = None;
    let mut receiver = receiver;
    loop {
        let (back, outcome) = py.detach(move || {
            let outcome = receiver.recv_timeout(LOOK);
            (receiver, outcome)
        });
        receiver = back;
        let told = progress.map_or(Ok(()), |progress| events.tell(py, progress));
        match outcome {
            Ok(outcome) => {
                return match stopped.or_else(|| told.err()) {
                    Some(error) => Err(error),
                    None => Ok(outcome),
                };
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(Ok(Err(Error::Cancelled)));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(error) = py.check_signals().and(told) {
            if stopped.is_some() {
                return Err(error);
            }
            events.enough.store(true, Ordering::Relaxed);
            stopped = Some(error);
        }
    }
}

/// What happened since somebody last looked.
#[derive(Default)]
struct Events {
    enough: AtomicBool,
    news: Mutex<News>,
}

#[derive(Default)]
struct News {
    notes: Vec<(&'static str, String)>,
    pieces: String,
    /// The kernel that runs: which one, of how many, and what it is.
    kernel: Option<(usize, usize, String)>,
    /// Bytes in all, and those that are done since.
    size: Option<u64>,
    bytes: u64,
    ended: bool,
}

impl News {
    fn is_empty(&self) -> bool {
        let Self { notes, pieces, kernel, size, bytes, ended } = self;
        notes.is_empty() && pieces.is_empty() && kernel.is_none() && size.is_none() && *bytes == 0 && !ended
    }
}

impl Events {
    fn add(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.news.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Hands the news on, where there are any.
    fn tell(&self, py: Python<'_>, progress: &Bound<'_, PyAny>) -> PyResult<()> {
        let news = mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner));
        if news.is_empty() {
            return Ok(());
        }
        let told = PyDict::new(py);
        told.set_item("notes", news.notes)?;
        told.set_item("text", news.pieces)?;
        told.set_item("kernel", news.kernel)?;
        told.set_item("size", news.size)?;
        told.set_item("bytes", news.bytes)?;
        told.set_item("ended", news.ended)?;
        progress.call1((told,)).map(|_| ())
    }
}

impl Watcher for Events {
    fn note(&self, note: &Note) {
        self.add(|news| news.notes.push((note.kind.name(), wording::arguments(&note.text).into_owned())));
    }

    fn size(&self, bytes: u64) {
        self.add(|news| news.size = Some(bytes));
    }

    fn advance(&self, bytes: u64) {
        self.add(|news| news.bytes += bytes);
    }

    fn starts(&self, at: usize, count: usize, words: &str) {
        self.add(|news| news.kernel = Some((at, count, words.to_owned())));
    }

    fn ends(&self) {
        self.add(|news| news.ended = true);
    }

    fn piece(&self, text: &str) {
        self.add(|news| news.pieces.push_str(text));
    }

    fn cancelled(&self) -> bool {
        self.enough.load(Ordering::Relaxed)
    }
}
