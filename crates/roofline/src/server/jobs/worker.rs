//! The thread that does the jobs, in the order in which they came.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError},
};

use roofline_core::wording;
use roofline_verbs::Error;

use super::{Inner, Job, Question, Stage, store};
use crate::failure::Failure;

pub(super) fn work(inner: &Inner) {
    while let Some((job, question)) = next(inner) {
        let _ = job.start();
        // A kernel that goes wrong must not take the other jobs with it.
        let answer = catch_unwind(AssertUnwindSafe(|| answer(&job, question)));
        let broken = || Err(Error::request("the job ended unexpectedly", "its finished kernels are kept").into());
        let (state, error) = match answer.unwrap_or_else(|_| broken()) {
            Ok(()) => (Stage::Done, None),
            Err(Failure::Verb(Error::Cancelled)) => (job.stopped(), None),
            // Where files are is nobody's business who asks over HTTP.
            Err(Failure::Verb(Error::File { error, .. })) => {
                (Stage::Failed, Some(format!("a file of the server could not be read or written: {error}")))
            }
            Err(Failure::Verb(error)) => (Stage::Failed, Some(wording::fields(&error.to_string()).into_owned())),
            Err(Failure::Broken(broken)) => (Stage::Failed, Some(wording::fields(&broken.sentence()).into_owned())),
            Err(failure) => (Stage::Failed, Some(failure.message())),
        };
        let _ = job.end(state, error);
    }
}

/// The first of the queue; none once the server stops.
fn next(inner: &Inner) -> Option<(Arc<Job>, Question)> {
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

fn answer(job: &Arc<Job>, question: Question) -> Result<(), Failure> {
    let (answer, broken) = question.answer(&job.context(), store::run(job.folder()))?;
    store::keep_result(job.folder(), &answer)?;
    broken.map_or(Ok(()), |broken| Err(Failure::Broken(broken)))
}
