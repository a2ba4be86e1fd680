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

/// What `one` makes of every task, in the order of the tasks.
pub(crate) fn shared<T: Send, R: Send>(threads: usize, tasks: Vec<T>, one: impl Fn(T) -> R + Sync) -> Vec<R> {
    let done = Mutex::new(Vec::with_capacity(tasks.len()));
    share(threads, tasks.into_iter().enumerate().collect(), |(at, task)| {
        let made = one(task);
        done.lock().unwrap_or_else(PoisonError::into_inner).push((at, made));
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, made)| made).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_tasks() {
        let squares: Vec<usize> = (0..100).map(|at| at * at).collect();
        assert!(
            [1, 2, 7].into_iter().all(|threads| shared(threads, (0..100).collect(), |at: usize| at * at) == squares)
        );
        assert!(shared(2, Vec::<u8>::new(), |at| at).is_empty());
    }
}
