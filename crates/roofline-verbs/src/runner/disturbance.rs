//! Kernels that were measured while others had the machine, measured again.
//!
//! A neighbour takes a core for seconds, and whatever is measured meanwhile is slow. It only ever makes kernels slower, so of
//! two measurements of a kernel the faster is the truer. Which are measured again is told by the signs that a measurement
//! carries of itself, never by whether it agrees with a forecast, and none is left out: a model that is wrong stays wrong.

use std::time::{Duration, Instant};

use roofline_core::measurement::Measurement;
use roofline_run::{Line, measure};

use super::{Outcome, Runner};
use crate::{Error, Result};

/// Longest time for all of them together: a machine that stays busy is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Times that each is measured again, at most.
const ROUNDS: usize = 2;

impl Runner<'_> {
    /// Measures again what was disturbed, until it is not or the time is up, and keeps the fastest, in the run as well.
    /// What was done is said, with `what` the kernels are of.
    pub(crate) fn settle(&mut self, outcome: &mut Outcome, what: &str) -> Result<()> {
        let (start, all) = (Instant::now(), &mut outcome.measured);
        let mut open: Vec<usize> = (0..all.len()).filter(|at| all[*at].is_disturbed()).collect();
        let (disturbed, mut again, mut faster) = (open.len(), vec![false; all.len()], vec![false; all.len()]);
        for _ in 0..ROUNDS {
            let mut still = Vec::new();
            for (done, at) in open.iter().copied().enumerate() {
                if self.context.watcher().cancelled() {
                    return Err(Error::Cancelled);
                }
                if start.elapsed() > PATIENCE {
                    still.extend(&open[done..]);
                    break;
                }
                let subject = all[at].subject();
                self.context.watcher().starts(done, open.len(), &format!("{} again", subject.words()));
                let Ok(second) = measure(&mut *self.backend, &subject, &self.protocol) else {
                    if let Some(lost) = self.backend.lost() {
                        return Err(lost.into());
                    }
                    still.push(at);
                    continue;
                };
                again[at] = true;
                if second.is_disturbed() {
                    still.push(at);
                }
                if second.time() < all[at].time() {
                    faster[at] = true;
                    self.replace(&second)?;
                    all[at] = second;
                }
            }
            open = still;
        }
        self.context.watcher().ends();
        if disturbed > 0 {
            let count = |of: &[bool]| of.iter().filter(|yes| **yes).count();
            self.context.note(words(what, disturbed, count(&again), count(&faster), open.len()));
        }
        Ok(())
    }

    /// Puts a measurement in the place of the one of the same kernel.
    fn replace(&mut self, measured: &Measurement) -> Result<()> {
        self.file()?.write(&Line::Measured(Box::new(measured.clone())))?;
        let subject = measured.subject();
        let earlier = self.measured.iter_mut();
        for earlier in earlier.filter(|one| one.repeats(&subject, measured.residency, &measured.backend)) {
            *earlier = measured.clone();
        }
        Ok(())
    }
}

/// What was done about kernels that were disturbed.
fn words(what: &str, disturbed: usize, again: usize, faster: usize, open: usize) -> String {
    let kernels = match disturbed {
        1 => format!("one kernel of the {what} was disturbed while it was measured"),
        _ => format!("{disturbed} kernels of the {what} were disturbed while they were measured"),
    };
    let rest = if open > 0 { format!("; still disturbed: {open}, close other programs") } else { String::new() };
    format!("{kernels}: {again} measured again, {faster} of them faster{rest}")
}
