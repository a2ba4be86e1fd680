//! Work that threads take from one list, each piece by one of them, so that results do not depend on how many there are.

use std::{
    sync::{Mutex, PoisonError},
    thread,
};

/// Calls `body` with every task, on that many threads.
pub(crate) fn share<T: Send>(threads: usize, tasks: Vec<T>, body: impl Fn(T) + Sync) {
    let threads = threads.clamp(1, tasks.len().max(1));
    let queue = Mutex::new(tasks.into_iter());
    let work = || loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some(task) = next else { return };
        body(task);
    };
    thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
}
