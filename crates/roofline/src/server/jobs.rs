//! Measuring, one job at a time.
//!
//! A job is a folder: `job.json` says what was asked and how far it is, `run.jsonl` gains a line with every finished kernel,
//! `result.json` is the answer. Whatever happens to the process, what was measured is there when it starts again; a job
//! that was under way is then `interrupted`.

mod job;
mod question;
pub(super) mod routes;
mod store;
mod worker;

pub(super) use job::{Job, News, Record, Stage};
pub(super) use question::Question;

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use axum::http::StatusCode;
use roofline_verbs::{Error, context::Home, runner::now};
use serde_json::{Map, Value};

use super::refusal::Refusal;

/// Jobs that may wait.
const QUEUE: usize = 64;
/// Jobs that are kept.
const KEPT: usize = 2000;
/// How long a kernel that is being timed may take to notice that the server stops.
const LAST_KERNEL: Duration = Duration::from_secs(20);

/// All jobs, and who does them.
pub(super) struct Jobs {
    inner: Arc<Inner>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

struct Inner {
    home: Arc<Home>,
    folder: PathBuf,
    /// Held as long as this process lives, so that no other takes its jobs for interrupted ones.
    lock: Option<File>,
    table: Mutex<Table>,
    wake: Condvar,
}

#[derive(Default)]
struct Table {
    /// By identifier, which sorts by time.
    jobs: BTreeMap<String, Arc<Job>>,
    queue: VecDeque<(Arc<Job>, Question)>,
    stopped: bool,
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Jobs {
    /// The jobs of a folder; the usual one where none was named. Only one server at a time may add to it.
    pub(super) fn open(home: Arc<Home>, folder: Option<&Path>, adds: bool) -> Result<Self, Error> {
        let folder = match folder {
            Some(folder) => folder.to_owned(),
            None => home.required_folder("jobs")?,
        };
        let lock = if adds || folder.is_dir() { store::lock(&folder)? } else { None };
        let alone = lock.is_some();
        if adds && !alone {
            let hint = "stop it, or name another folder by `--state`";
            return Err(Error::request(format!("another server keeps its jobs in {}", folder.display()), hint));
        }
        let jobs = store::load(&home, &folder, alone)?;
        // Whoever only looks lets another add.
        let lock = lock.filter(|_| adds);
        let table = Mutex::new(Table { jobs, ..Table::default() });
        Ok(Self {
            inner: Arc::new(Inner { home, folder, lock, table, wake: Condvar::new() }),
            worker: Mutex::default(),
        })
    }

    /// Queues a question that measures.
    pub(super) fn create(
        &self,
        verb: &'static str,
        request: Map<String, Value>,
        question: Question,
    ) -> Result<Arc<Job>, Refusal> {
        let mut table = self.inner.table();
        if table.stopped || self.inner.lock.is_none() {
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the server stops", "ask again later"));
        }
        if table.queue.len() >= QUEUE {
            let hint = "wait for some of them, or cancel one: DELETE /api/jobs/ID";
            return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, format!("{QUEUE} jobs wait already"), hint));
        }
        if table.jobs.len() >= KEPT {
            let hint = "forget some that have ended: DELETE /api/jobs/ID";
            return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, format!("{KEPT} jobs are kept already"), hint));
        }
        let created = now();
        let stem = created.replace([':', '-'], "");
        let free = |number: &u32| !table.jobs.contains_key(&format!("{stem}-{number:04}"));
        let number = (1..10_000).find(free).unwrap_or(10_000);
        let id = format!("{stem}-{number:04}");
        let job = Arc::new(Job::new(self.inner.home.clone(), id.clone(), verb, request, created, &self.inner.folder));
        job.save()?;
        table.jobs.insert(id, job.clone());
        table.queue.push_back((job.clone(), question));
        drop(table);
        self.start();
        self.inner.wake.notify_all();
        Ok(job)
    }

    /// Somebody to do them, from the first on.
    fn start(&self) {
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.is_none() {
            let inner = self.inner.clone();
            *worker = std::thread::Builder::new().name("jobs".to_owned()).spawn(move || worker::work(&inner)).ok();
        }
    }

    /// Looks again at a folder that others add to.
    fn look(&self) {
        if self.inner.lock.is_none()
            && let Ok(jobs) = store::load(&self.inner.home, &self.inner.folder, false)
        {
            self.inner.table().jobs = jobs;
        }
    }

    /// All, the latest first.
    pub(super) fn list(&self) -> Vec<Arc<Job>> {
        self.look();
        self.inner.table().jobs.values().rev().cloned().collect()
    }

    pub(super) fn find(&self, id: &str) -> Result<Arc<Job>, Refusal> {
        self.look();
        self.inner.table().jobs.get(id).cloned().ok_or_else(|| {
            let shown: String = id.chars().take(80).collect();
            Refusal::new(StatusCode::NOT_FOUND, format!("there is no job `{shown}`"), "GET /api/jobs lists them")
        })
    }

    /// How many would go first.
    pub(super) fn ahead(&self, job: &Job) -> Option<usize> {
        self.inner.table().queue.iter().position(|(queued, _)| queued.id == job.id)
    }

    /// Only the server that does the jobs may change them.
    fn own(&self) -> Result<(), Refusal> {
        if self.inner.lock.is_some() {
            return Ok(());
        }
        let hint = "ask the server that measures; `roofline serve --allow-measure` is one";
        Err(Refusal::new(StatusCode::CONFLICT, "this server only looks at jobs", hint))
    }

    /// Cancels a job; one that has ended is left as it is.
    pub(super) fn cancel(&self, id: &str) -> Result<Arc<Job>, Refusal> {
        self.own()?;
        let job = self.find(id)?;
        let mut table = self.inner.table();
        if let Some(at) = table.queue.iter().position(|(queued, _)| queued.id == job.id) {
            table.queue.remove(at);
            job.end(Stage::Cancelled, None)?;
        } else if job.ended() {
            return Err(Refusal::new(
                StatusCode::CONFLICT,
                "the job has ended",
                "DELETE forgets it, with what it measured",
            ));
        } else {
            job.cancel();
        }
        Ok(job)
    }

    /// Cancels a job that has not ended; forgets one that has.
    pub(super) fn remove(&self, id: &str) -> Result<Arc<Job>, Refusal> {
        self.own()?;
        let job = self.find(id)?;
        if !job.ended() {
            return self.cancel(id);
        }
        self.inner.table().jobs.remove(id);
        store::forget(job.folder())?;
        Ok(job)
    }

    /// Takes no more, and waits for the kernel that is being timed.
    pub(super) fn stop(&self) {
        let mut table = self.inner.table();
        table.stopped = true;
        if self.inner.lock.is_none() {
            return;
        }
        for (job, _) in table.queue.drain(..) {
            let _ = job.end(Stage::Interrupted, None);
        }
        let running: Vec<Arc<Job>> = table.jobs.values().filter(|job| !job.ended()).cloned().collect();
        drop(table);
        for job in &running {
            job.interrupt();
        }
        self.inner.wake.notify_all();
        let deadline = Instant::now() + LAST_KERNEL;
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        while worker.as_ref().is_some_and(|worker| !worker.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        for job in running {
            let _ = job.end(Stage::Interrupted, None);
        }
    }
}
