//! Threads that wait by spinning, so that starting a kernel costs a microsecond and not a trip through the scheduler.
//!
//! A kernel of a decode step takes tens of microseconds; waking a sleeping thread takes as long. Workers therefore spin
//! for a while after each job before they sleep. The caller is worker 0.

#![allow(unsafe_code)]

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

/// Turns of the waiting loop before a worker sleeps: a few milliseconds.
const SPINS: u32 = 1 << 16;

/// As many threads as the machine has, or as were asked for.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Handles to wake sleeping workers by.
    wake: Vec<Thread>,
}

struct Shared {
    /// The job, as a thin pointer to a fat one on the caller's stack; valid while `running` is above zero.
    job: AtomicPtr<Job<'static>>,
    /// Counts jobs; a worker runs each new value once. Workers look at it while they wait, so nothing that changes during
    /// a job shares its line.
    turn: Line<AtomicUsize>,
    /// Workers that have not finished the current job; the caller looks at it while it waits.
    running: Line<AtomicUsize>,
    stop: AtomicBool,
    panicked: AtomicBool,
}

/// A value on a cache line of its own: two, where lines are fetched in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

type Job<'a> = &'a (dyn Fn(usize) + Sync);

impl Pool {
    /// One thread per core that this process may use.
    pub fn all() -> Self {
        Self::new(thread::available_parallelism().map_or(1, usize::from))
    }

    /// `threads` of them, the caller included.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            job: AtomicPtr::new(std::ptr::null_mut()),
            turn: Line::default(),
            running: Line::default(),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        });
        let worker = |index: usize| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(format!("kernel-{index}")).spawn(move || shared.work(index))
        };
        // A machine that gives fewer threads than cores still gets its kernels run.
        let workers: Vec<JoinHandle<()>> = (1..threads.max(1)).map_while(|index| worker(index).ok()).collect();
        let wake = workers.iter().map(|worker| worker.thread().clone()).collect();
        Self { shared, workers, wake }
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job(index)` once on each thread and returns when all are done. It takes `&mut self` because jobs do not nest.
    ///
    /// # Panics
    ///
    /// When a job panics.
    pub fn run(&mut self, job: impl Fn(usize) + Sync) {
        let job: Job<'_> = &job;
        let shared = &*self.shared;
        shared.running.0.store(self.workers.len(), Ordering::Relaxed);
        // Only the lifetime is forgotten: nobody looks once `running` is zero, and `Wait` sees to that.
        shared.job.store(std::ptr::from_ref(&job).cast_mut().cast::<Job<'static>>(), Ordering::Relaxed);
        shared.turn.0.fetch_add(1, Ordering::Release);
        self.wake.iter().for_each(Thread::unpark);
        let wait = Wait(shared);
        job(0);
        drop(wait);
        assert!(!shared.panicked.swap(false, Ordering::Relaxed), "a kernel panicked");
    }

    /// What starting all threads and waiting for the last of them costs: the median of many jobs that do nothing. Every
    /// kernel pays it once or twice.
    pub fn barrier(&mut self) -> Duration {
        let mut times: Vec<Duration> = (0..501)
            .map(|_| {
                let start = Instant::now();
                self.run(|_| {});
                start.elapsed()
            })
            .collect();
        times.sort();
        times[times.len() / 2]
    }

    /// Runs `job` on each thread with its share of `items`, cut at multiples of `step`.
    pub fn split(&mut self, items: usize, step: usize, job: impl Fn(usize, Range<usize>) + Sync) {
        let threads = self.threads();
        self.run(|index| {
            let part = share(items, step, index, threads);
            if !part.is_empty() {
                job(index, part);
            }
        });
    }

    /// As [`Pool::split`], with a thread's share in pieces of `piece` items, a multiple of `step`: who is done takes over
    /// pieces of others. Cores are not equally fast where some are small, or shared with somebody else.
    pub fn deal(&mut self, items: usize, step: usize, piece: usize, job: impl Fn(usize, Range<usize>) + Sync) {
        let threads = self.threads();
        let fronts: Vec<Front> = (0..threads).map(|_| Line::default()).collect();
        self.run(|index| {
            for owner in (index..threads).chain(0..index) {
                let part = share(items, step, owner, threads);
                loop {
                    let start = part.start + fronts[owner].0.fetch_add(piece, Ordering::Relaxed);
                    if start >= part.end {
                        break;
                    }
                    job(index, start..(start + piece).min(part.end));
                }
            }
        });
    }
}

/// Where a part of some work is taken from next; others look only when theirs is done.
type Front = Line<AtomicUsize>;

/// The part of `items` that thread `index` of `threads` gets: as even as multiples of `step` allow.
pub(super) fn share(items: usize, step: usize, index: usize, threads: usize) -> Range<usize> {
    let steps = items.div_ceil(step);
    let cut = |index: usize| (steps * index / threads * step).min(items);
    cut(index)..cut(index + 1)
}

/// Waits for the workers, also when the caller's own part panics: they hold a pointer to its stack.
struct Wait<'a>(&'a Shared);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut spins = 0u32;
        while self.0.running.0.load(Ordering::Acquire) > 0 {
            spins += 1;
            if spins > SPINS { thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

impl Shared {
    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            let mut spins = 0;
            while self.turn.0.load(Ordering::Acquire) == seen {
                if spins < SPINS {
                    spins += 1;
                    std::hint::spin_loop();
                } else {
                    thread::park(); // `run` unparks after it has raised `turn`; a token left over costs one more turn
                }
            }
            seen += 1;
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            // SAFETY: `run` put the address of a `Job` on its stack here and waits until `running` is zero.
            let job = unsafe { *self.job.load(Ordering::Relaxed) };
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(index)));
            if result.is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.running.0.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.turn.0.fetch_add(1, Ordering::Release);
        self.wake.iter().for_each(Thread::unpark);
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn every_item_runs_once() {
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads);
            for (items, step) in [(0, 1), (1, 4), (7, 4), (1000, 16)] {
                let counts: Vec<AtomicU64> = (0..items).map(|_| AtomicU64::new(0)).collect();
                pool.split(items, step, |_, part| {
                    assert!(part.start.is_multiple_of(step));
                    part.for_each(|item| {
                        counts[item].fetch_add(1, Ordering::Relaxed);
                    });
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
                pool.deal(items, step, 3 * step, |_, part| {
                    assert!(part.start.is_multiple_of(step) && part.len() <= 3 * step);
                    part.for_each(|item| {
                        counts[item].fetch_add(1, Ordering::Relaxed);
                    });
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 2));
            }
        }
    }

    /// The second thread stays with its first piece until the other has done all the rest, however long that takes.
    #[test]
    fn who_is_done_takes_over() {
        let done: Vec<AtomicU64> = (0..2).map(|_| AtomicU64::new(0)).collect();
        let by = |index: usize| done[index].load(Ordering::Relaxed);
        let start = std::time::Instant::now();
        Pool::new(2).deal(64, 1, 1, |index, part| {
            while index == 1 && by(0) < 63 && start.elapsed() < Duration::from_mins(1) {
                thread::yield_now();
            }
            done[index].fetch_add(part.len() as u64, Ordering::Relaxed);
        });
        assert_eq!(by(0) + by(1), 64);
        assert!(by(0) >= 63, "the thread that never waited did {} of 64", by(0));
    }

    #[test]
    fn workers_wake_from_sleep() {
        let mut pool = Pool::new(3);
        for pause in [0, 50, 0] {
            thread::sleep(Duration::from_millis(pause));
            let count = AtomicU64::new(0);
            pool.run(|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 3);
        }
    }

    /// More than nothing, and far less than a trip through the scheduler would take for each of five hundred jobs.
    #[test]
    fn a_barrier_has_a_price() {
        let price = Pool::new(2).barrier();
        assert!(price > Duration::ZERO && price < Duration::from_millis(100), "{price:?}");
    }

    #[test]
    #[should_panic(expected = "a kernel panicked")]
    fn a_panic_reaches_the_caller() {
        Pool::new(2).run(|index| assert_eq!(index, 0));
    }
}
