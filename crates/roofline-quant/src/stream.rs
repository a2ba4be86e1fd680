//! From source to output: blocks of rows read, coded and written by every core, in bounded memory.
//!
//! Items go in waves of at most about 128 MB, so that what fused weights share (the largest magnitude) is found while their
//! bytes are still in the page cache. While a wave is coded, the one before is brought to disk and noted in the journal.
//!
//! The queue of a wave is our own, for tasks start in the order of the files, every thread keeps one set of buffers, and the
//! bound on memory says how many threads there are: a work-stealing pool starts halves of the list, with a fixed number.

mod crew;
mod files;

pub(crate) use crew::{Crew, Task};
pub(crate) use files::{Files, create};

use std::{sync::mpsc, thread};

use crate::{
    ErrorStats, Result, Workspace,
    coding::Placing,
    job::{Place, QuantizeJob, part_bytes},
    part::Share,
};

/// Input bytes of a wave: a sixteenth of all, within these bounds, so that a small run can be resumed too.
const WAVE: std::ops::RangeInclusive<u64> = 2 << 20..=128 << 20;

/// What became of each item, in the order of the job; nothing for what was copied.
pub type Outcome = Vec<Option<ErrorStats>>;

/// Somebody who follows a run, and may end it.
pub trait Progress: Sync {
    /// There are so many input bytes to go through.
    fn size(&self, _bytes: u64) {}
    /// So many of them more are done.
    fn advance(&self, bytes: u64);
    /// Layer `at` of `count` is about to run through a text.
    fn starts(&self, _at: usize, _count: usize) {}
    /// Whether to stop before the next block of rows.
    fn cancelled(&self) -> bool {
        false
    }
}

/// A function hears of bytes, and ends nothing.
impl<F: Fn(u64) + Sync> Progress for F {
    fn advance(&self, bytes: u64) {
        self(bytes);
    }
}

/// Writes a share into the workspace, with that many threads. What is not in it has no outcome.
pub fn run(
    job: &QuantizeJob<'_>,
    share: &Share,
    space: &Workspace,
    threads: usize,
    watch: &dyn Progress,
) -> Result<Outcome> {
    let files = Files::create(job, share, space)?;
    let mut outcome: Outcome = (0..job.items.len()).map(|item| space.done.get(&item).copied().flatten()).collect();
    let pending: Vec<usize> = share.items.iter().copied().filter(|item| !space.done.contains_key(item)).collect();
    space.done.keys().filter_map(|item| job.items.get(*item)).for_each(|item| watch.advance(item.input()));
    let mut peaks = vec![None; job.items.len()];
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel::<Vec<(usize, Option<ErrorStats>)>>();
        let keeper = scope.spawn(|| {
            receiver.into_iter().try_for_each(|finished| {
                files.sync()?;
                space.note(&finished)
            })
        });
        for wave in waves(job, share, &pending) {
            let crew = Crew { job, files: &files, threads, watch };
            crew.find_peaks(&wave, &mut peaks)?;
            let finished = crew.work(&wave, &peaks)?;
            for (item, stats) in &finished {
                outcome[*item] = *stats;
            }
            if sender.send(finished).is_err() {
                break;
            }
        }
        drop(sender);
        keeper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    files.sync()?;
    Ok(outcome)
}

/// About how many bytes of memory a run holds: what every thread works on, what is put together in memory before it is
/// written, and the largest head of a file.
pub(crate) fn memory(job: &QuantizeJob<'_>, threads: usize) -> u64 {
    let crew = Crew { job, files: &Files::NOWHERE, threads, watch: &|_: u64| {} };
    let whole = Share::whole(job);
    let mut most = 0;
    for wave in waves(job, &whole, &whole.items) {
        let mut tasks = Vec::new();
        let mut lines = 0;
        for item in &wave {
            crew.rows_of(*item, &mut tasks);
            crew.bytes_of(*item, &mut tasks);
            let Some(code) = crew.code(*item) else { continue };
            let of = |(part, _): &(crate::coding::Part, Place)| match part.placing {
                Placing::Columns { .. } => part_bytes(part, code.matrix().rows),
                _ => 0,
            };
            lines += code.parts.iter().map(of).sum::<usize>();
        }
        let (threads, largest) = crew.hands(&tasks);
        most = most.max(threads * largest + lines);
    }
    let heads = job.files.iter().map(|file| file.head.bytes().len()).max().unwrap_or(0);
    (most + 2 * heads) as u64
}

/// Runs of items with about as many bytes each.
fn waves(job: &QuantizeJob<'_>, share: &Share, pending: &[usize]) -> Vec<Vec<usize>> {
    let all = share.input(job);
    let enough = (all / 16).clamp(*WAVE.start(), *WAVE.end());
    let mut waves = Vec::new();
    let (mut wave, mut bytes) = (Vec::new(), 0);
    for item in pending {
        wave.push(*item);
        bytes += job.items[*item].input();
        if bytes >= enough {
            waves.push(std::mem::take(&mut wave));
            bytes = 0;
        }
    }
    waves.push(wave);
    waves
}
