//! Where things are kept, shared by the questions of one process.

use std::{
    process,
    sync::{Arc, Mutex, PoisonError},
};

use pyo3::Python;
use roofline_verbs::context::Home;

/// The home of this process, and which process that is.
static HOME: Mutex<Option<(u32, Arc<Home>)>> = Mutex::new(None);

/// The user's. A child that was forked gets one of its own: what another thread of its parent held when it was made, nobody
/// will ever let go of there. The lock is only held by whoever holds the interpreter, too, so that no child can find it held.
pub(crate) fn of(_py: Python<'_>) -> Arc<Home> {
    let own = process::id();
    let mut kept = HOME.lock().unwrap_or_else(PoisonError::into_inner);
    match &*kept {
        Some((process, home)) if *process == own => Arc::clone(home),
        _ => Arc::clone(&kept.insert((own, Arc::new(Home::of_user()))).1),
    }
}
