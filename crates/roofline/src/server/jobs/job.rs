//! One job: what was asked, how far it is, and what happened.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    time::Instant,
};

use roofline_core::{Device, measurement::Measurement, wording};
use roofline_run::Skipped;
use roofline_verbs::{
    Context, Error, Watcher,
    context::Home,
    measure::{MeasuredKernel, shown},
    runner::now,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::{super::limits, store};

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "JobState")]
pub(in crate::server) enum Stage {
    Queued,
    Running,
    Done,
    Failed,
    Cancelled,
    /// The server ended while it ran; what it had measured is kept.
    Interrupted,
}

/// What `job.json` says.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Job")]
pub(in crate::server) struct Record {
    pub(in crate::server) id: String,
    /// The command: `measure`, `compare` or `sweep`.
    pub(in crate::server) verb: String,
    /// Its arguments, as they were asked for.
    pub(in crate::server) request: Map<String, Value>,
    pub(in crate::server) state: Stage,
    /// When, in UTC.
    created: String,
    started: Option<String>,
    ended: Option<String>,
    /// Kernels that are finished, and how many there are; none before it starts.
    pub(in crate::server) finished: usize,
    pub(in crate::server) count: Option<usize>,
    /// The kernel that runs.
    current: Option<String>,
    /// What went wrong, where it failed.
    pub(in crate::server) error: Option<String>,
    /// Requests that the server answered while it ran.
    #[serde(default)]
    requests: u64,
    /// Why its times may be too long, where something else ran on the same processor.
    #[serde(default)]
    disturbed: Option<String>,
}

/// Requests per second beside a job that are worth a doubt: a page that follows it asks for a few.
const BUSY: f64 = 10.0;

impl Record {
    /// Its process ended before it did; when, nobody knows better than the one who finds it.
    pub(super) fn interrupted(&mut self, finished: usize) {
        let ended = Some(now());
        *self = Self { state: Stage::Interrupted, ended, finished, current: None, ..self.clone() };
    }
}

/// Something that happened.
#[derive(Clone)]
pub(in crate::server) enum News {
    Progress(Progress),
    Point(Arc<MeasuredKernel>),
    Skipped(Arc<Skipped>),
    End(Box<Record>),
}

/// How far a job is, and what runs.
#[derive(Clone, Serialize)]
pub(in crate::server) struct Progress {
    finished: usize,
    count: usize,
    current: String,
}

impl News {
    /// The name of the event.
    pub(in crate::server) fn kind(&self) -> &'static str {
        match self {
            Self::Progress(_) => "progress",
            Self::Point(_) => "point",
            Self::Skipped(_) => "skipped",
            Self::End(_) => "end",
        }
    }

    /// What it says, in JSON.
    pub(in crate::server) fn data(&self) -> String {
        let text = match self {
            Self::Progress(progress) => serde_json::to_string(progress),
            Self::Point(point) => serde_json::to_string(&**point),
            Self::Skipped(skipped) => serde_json::to_string(&**skipped),
            Self::End(record) => serde_json::to_string(record),
        };
        wording::fields(&text.unwrap_or_default()).into_owned()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Wish {
    GoOn,
    Cancel,
    Interrupt,
}

pub(in crate::server) struct Job {
    pub(in crate::server) id: String,
    home: Arc<Home>,
    folder: PathBuf,
    inner: Mutex<Inner>,
    wish: AtomicU8,
    /// How many things happened.
    changes: watch::Sender<usize>,
}

struct Inner {
    record: Record,
    /// When it started, and how many requests there had been.
    begun: Option<(Instant, u64)>,
    /// None for a job of an earlier process: then the folder knows.
    news: Option<Vec<News>>,
}

impl Job {
    pub(super) fn new(
        home: Arc<Home>,
        id: String,
        verb: &'static str,
        request: Map<String, Value>,
        created: String,
        folder: &Path,
    ) -> Self {
        let record = Record {
            id,
            verb: verb.to_owned(),
            request,
            state: Stage::Queued,
            created,
            started: None,
            ended: None,
            finished: 0,
            count: None,
            current: None,
            error: None,
            requests: 0,
            disturbed: None,
        };
        Self::with(home, record, folder, Some(Vec::new()))
    }

    /// A job of an earlier process.
    pub(super) fn earlier(home: Arc<Home>, record: Record, folder: &Path) -> Self {
        Self::with(home, record, folder, None)
    }

    fn with(home: Arc<Home>, record: Record, folder: &Path, news: Option<Vec<News>>) -> Self {
        Self {
            home,
            folder: folder.join(&record.id),
            id: record.id.clone(),
            inner: Mutex::new(Inner { record, begun: None, news }),
            wish: AtomicU8::new(Wish::GoOn as u8),
            changes: watch::Sender::new(0),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(in crate::server) fn record(&self) -> Record {
        self.inner().record.clone()
    }

    pub(in crate::server) fn ended(&self) -> bool {
        !matches!(self.inner().record.state, Stage::Queued | Stage::Running)
    }

    /// What happened from `at` on, and whether that was all there will be.
    pub(in crate::server) fn news(&self, at: usize) -> (Vec<News>, bool) {
        let inner = self.inner();
        let ended = !matches!(inner.record.state, Stage::Queued | Stage::Running);
        let all = inner.news.clone().unwrap_or_else(|| self.told(&inner.record));
        (all.into_iter().skip(at).collect(), ended)
    }

    /// Where to begin for whoever heard everything before `at`: those who counted further, in the process before, still hear
    /// of the end.
    pub(in crate::server) fn place(&self, at: usize) -> usize {
        let (news, ended) = self.news(0);
        if ended { at.min(news.len().saturating_sub(1)) } else { at }
    }

    /// The same, of what the folder holds.
    fn told(&self, record: &Record) -> Vec<News> {
        let mut news: Vec<News> = self.points().into_iter().map(|point| News::Point(Arc::new(point))).collect();
        news.truncate(record.finished);
        if !matches!(record.state, Stage::Queued | Stage::Running) {
            news.push(News::End(Box::new(record.clone())));
        }
        news
    }

    pub(in crate::server) fn changes(&self) -> watch::Receiver<usize> {
        self.changes.subscribe()
    }

    /// The kernels that are finished, as `roofline measure --json` shows them.
    pub(in crate::server) fn points(&self) -> Vec<MeasuredKernel> {
        store::points(&Context::remote(self.home.clone()), &self.folder)
    }

    /// The answer, once it is there.
    pub(in crate::server) fn result(&self) -> Option<Value> {
        store::result(&self.folder)
    }

    /// Writes the record to its folder.
    pub(super) fn save(&self) -> Result<(), Error> {
        store::save(&self.folder, &self.record())
    }

    pub(super) fn cancel(&self) {
        self.wish.store(Wish::Cancel as u8, Ordering::Relaxed);
    }

    pub(super) fn interrupt(&self) {
        self.wish.store(Wish::Interrupt as u8, Ordering::Relaxed);
    }

    /// How a job ends that was told to stop.
    pub(super) fn stopped(&self) -> Stage {
        let interrupted = self.wish.load(Ordering::Relaxed) == Wish::Interrupt as u8;
        if interrupted { Stage::Interrupted } else { Stage::Cancelled }
    }

    pub(super) fn start(&self) -> Result<(), Error> {
        {
            let mut inner = self.inner();
            inner.record.state = Stage::Running;
            inner.record.started = Some(now());
            inner.begun = Some((Instant::now(), limits::requests()));
        }
        self.save()
    }

    /// Ends it, once: on disk first, so that nobody hears of an end that a crash could undo.
    pub(super) fn end(&self, state: Stage, error: Option<String>) -> Result<(), Error> {
        let mut record = self.record();
        if !matches!(record.state, Stage::Queued | Stage::Running) {
            return Ok(());
        }
        let (ended, current) = (Some(now()), None);
        let (requests, disturbed) = self.company();
        record = Record { state, ended, current, error, requests, disturbed, ..record };
        let saved = store::save(&self.folder, &record);
        let last = News::End(Box::new(record.clone()));
        {
            let mut inner = self.inner();
            inner.record = record;
            inner.news.iter_mut().for_each(|news| news.push(last.clone()));
        }
        self.changes.send_modify(|count| *count += 1);
        saved
    }

    /// Requests that were answered beside it, and what to think of that. A GPU does not mind, and fake times do not either.
    fn company(&self) -> (u64, Option<String>) {
        let inner = self.inner();
        let Some((begun, before)) = inner.begun else { return (0, None) };
        let requests = limits::requests().saturating_sub(before);
        let rate = requests as f64 / begun.elapsed().as_secs_f64().max(1e-3);
        let elsewhere = inner.record.request.get("backend").and_then(Value::as_str);
        let here = match elsewhere {
            Some(backend) => backend == "cpu",
            None => !roofline_run::cuda::present(),
        };
        let doubt = (here && rate > BUSY).then(|| {
            format!("{requests} requests were answered on this processor meanwhile, {rate:.0} each second: times may be too long")
        });
        (requests, doubt)
    }

    /// The surroundings of its question: it may measure, and it is followed.
    pub(super) fn context(self: &Arc<Self>) -> Context {
        Context::remote(self.home.clone()).measuring().watched(self.clone())
    }

    fn tell(&self, one: News) {
        if let Some(news) = &mut self.inner().news {
            news.push(one);
        }
        self.changes.send_modify(|count| *count += 1);
    }
}

impl Watcher for Job {
    fn starts(&self, at: usize, count: usize, words: &str) {
        let progress = {
            let Inner { record, .. } = &mut *self.inner();
            record.count = Some(count);
            record.current = Some(words.to_owned());
            Progress { finished: at, count, current: words.to_owned() }
        };
        // How many there are is known from the first on, also to whoever finds the folder later.
        if at == 0 {
            let _ = self.save();
        }
        self.tell(News::Progress(progress));
    }

    fn measured(&self, measured: &Measurement, device: &Device) {
        self.inner().record.finished += 1;
        self.tell(News::Point(Arc::new(shown(measured, device))));
    }

    fn skipped(&self, skipped: &Skipped) {
        self.tell(News::Skipped(Arc::new(skipped.clone())));
    }

    fn cancelled(&self) -> bool {
        self.wish.load(Ordering::Relaxed) != Wish::GoOn as u8
    }
}
