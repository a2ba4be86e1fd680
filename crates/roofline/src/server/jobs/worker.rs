//! The thread that does the jobs, in the order in which they came.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError},
};

use super::{Inner, Job, Stage, store};
use crate::{commands::question::Question, failure::Failure};

pub(super) fn work(inner: &Inner) {
    while let Some((job, question)) = next(inner) {
        let _ = job.start();
        // A kernel that goes wrong must not take the other jobs with it.
        let answer = catch_unwind(AssertUnwindSafe(|| answer(&job, *question)));
        let broken = || Err(Failure::usage("the job ended unexpectedly", "its finished kernels are kept"));
        let (state, error) = match answer.unwrap_or_else(|_| broken()) {
            Ok(()) => (Stage::Done, None),
            Err(Failure::Cancelled) => (job.stopped(), None),
            // Where files are is nobody's business who asks over HTTP.
            Err(Failure::File { error, .. }) => {
                (Stage::Failed, Some(format!("a file of the server could not be read or written: {error}")))
            }
            Err(failure) => (Stage::Failed, Some(failure.message())),
        };
        let _ = job.end(state, error);
    }
}

/// The first of the queue; none once the server stops.
fn next(inner: &Inner) -> Option<(Arc<Job>, Box<Question>)> {
    let mut table = inner.table();
    loop {
        if table.stopped {
            return None;
        }
        if let Some(first) = table.queue.pop_front() {
            return Some(first);
        }
        table = inner.wake.wait(table).unwrap_or_else(PoisonError::into_inner);
    }
}

fn answer(job: &Arc<Job>, mut question: Question) -> Result<(), Failure> {
    if let Some(run) = question.run() {
        run.out = Some(store::run(job.folder()));
        run.watcher = Some(job.clone());
    }
    let answer = question.answer()?;
    store::keep_result(job.folder(), &without_path(answer))
}

/// An answer without the place of its run, which is the server's own.
fn without_path(answer: String) -> String {
    match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&answer) {
        Ok(mut fields) if fields.contains_key("run") => {
            fields.remove("run");
            serde_json::Value::Object(fields).to_string()
        }
        _ => answer,
    }
}
