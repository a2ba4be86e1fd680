//! A core for each thread while something is timed: a scheduler that wakes a worker on its caller's core leaves the other
//! core idle for tens of milliseconds, and halves whatever is measured meanwhile.

#![allow(unsafe_code)]

use super::pool::Pool;

/// Runs `job` with every thread of `pool` bound to a processor of its own, where the system can do that and has enough of
/// them, and lets them run anywhere again afterwards.
pub fn bound<T>(pool: &mut Pool, job: impl FnOnce(&mut Pool) -> T) -> T {
    let binding = Binding::new(pool);
    let result = job(pool);
    binding.release(pool);
    result
}

/// What the threads of a pool were allowed before each was bound to a processor of its own; nothing where they were not.
pub struct Binding(Option<Processors>);

impl Binding {
    /// Binds the threads of `pool`.
    pub fn new(pool: &mut Pool) -> Self {
        // Fewer threads than processors means a quota: which processors are idle is for the scheduler to know.
        let before = Processors::allowed().filter(|allowed| allowed.list().len() == pool.threads());
        if let Some(before) = &before {
            let list = before.list();
            pool.run(|index| Processors::one(list[index]).bind());
        }
        Self(before)
    }

    /// Lets them run anywhere again.
    pub fn release(&self, pool: &mut Pool) {
        if let Some(before) = &self.0 {
            pool.run(|_| before.bind());
        }
    }
}

#[cfg(target_os = "linux")]
struct Processors(libc::cpu_set_t);

#[cfg(target_os = "linux")]
impl Processors {
    /// Those that the calling thread may use.
    fn allowed() -> Option<Self> {
        // SAFETY: a set of bits, for which zero is empty.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: writes at most the size it is given.
        let failed = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } != 0;
        (!failed).then_some(Self(set))
    }

    fn one(processor: usize) -> Self {
        // SAFETY: as above; `processor` came out of such a set.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(processor, &mut set);
            Self(set)
        }
    }

    fn list(&self) -> Vec<usize> {
        // SAFETY: indices within the set.
        (0..libc::CPU_SETSIZE as usize).filter(|processor| unsafe { libc::CPU_ISSET(*processor, &self.0) }).collect()
    }

    /// Binds the calling thread; where that is refused it stays free.
    fn bind(&self) {
        // SAFETY: reads the set it is given.
        let _ = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.0) };
    }
}

#[cfg(not(target_os = "linux"))]
struct Processors;

#[cfg(not(target_os = "linux"))]
impl Processors {
    fn allowed() -> Option<Self> {
        None
    }

    fn one(_processor: usize) -> Self {
        Self
    }

    fn list(&self) -> Vec<usize> {
        Vec::new()
    }

    fn bind(&self) {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn threads_get_cores_of_their_own_and_their_freedom_back() {
        let before = Processors::allowed().unwrap().list();
        let mut pool = Pool::new(before.len());
        let seen = Mutex::new(Vec::new());
        bound(&mut pool, |pool| pool.run(|_| seen.lock().unwrap().push(Processors::allowed().unwrap().list())));
        let mut seen = seen.into_inner().unwrap();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), before.len());
        assert!(seen.iter().all(|list| list.len() == 1));
        pool.run(|_| assert_eq!(Processors::allowed().unwrap().list(), before));
    }
}
