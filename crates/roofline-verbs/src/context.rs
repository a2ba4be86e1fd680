//! Where a verb is asked: what it may look up, where it keeps things, who watches, and what is said beside the answer.

mod devices;
pub mod files;
mod home;
mod models;

pub use devices::Registered;
pub use home::Home;

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use crate::note::{Nobody, Note, NoteKind, Watcher};

/// What a caller may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Files, too.
    Local,
    /// Names of the registry only.
    Remote,
}

/// One question's surroundings. What questions share - folders, the registry as it was read - is in its [`Home`].
pub struct Context {
    home: Arc<Home>,
    reach: Reach,
    /// Whether this machine may be measured where that is needed.
    measures: bool,
    watcher: Arc<dyn Watcher>,
    notes: Mutex<Vec<Note>>,
    command: Vec<String>,
}

impl Context {
    /// For somebody at this machine.
    pub fn local(home: Arc<Home>, watcher: Arc<dyn Watcher>) -> Self {
        Self { home, reach: Reach::Local, measures: true, watcher, notes: Mutex::default(), command: Vec::new() }
    }

    /// For somebody elsewhere, who can name what the registry has and no file.
    pub fn remote(home: Arc<Home>) -> Self {
        Self { reach: Reach::Remote, measures: false, ..Self::local(home, Arc::new(Nobody)) }
    }

    /// For a caller who keeps nothing: the built-in devices, models and calibrations, no file.
    pub fn pure() -> Self {
        Self::remote(Arc::new(Home::none()))
    }

    /// The same for somebody who may have this machine measured.
    #[must_use]
    pub fn measuring(self) -> Self {
        Self { measures: true, ..self }
    }

    /// The same with somebody who follows.
    #[must_use]
    pub fn watched(self, watcher: Arc<dyn Watcher>) -> Self {
        Self { watcher, ..self }
    }

    /// The same with the words that were typed, which a run keeps so that it can be repeated.
    #[must_use]
    pub fn typed(self, command: Vec<String>) -> Self {
        Self { command, ..self }
    }

    /// The words that were typed, where somebody typed.
    pub fn command(&self) -> Option<&[String]> {
        Some(self.command.as_slice()).filter(|command| !command.is_empty())
    }

    /// Where things are kept.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Whether files may be named.
    pub fn is_local(&self) -> bool {
        self.reach == Reach::Local
    }

    /// Whether this machine may be measured where that is needed.
    pub fn may_measure(&self) -> bool {
        self.measures
    }

    /// Who follows.
    pub fn watcher(&self) -> &dyn Watcher {
        &*self.watcher
    }

    /// The same for those who ask on their own whether to stop.
    pub fn shared_watcher(&self) -> Arc<dyn Watcher> {
        Arc::clone(&self.watcher)
    }

    /// Says something that is good to know.
    pub fn note(&self, text: impl Into<String>) {
        self.say(NoteKind::Note, text.into());
    }

    /// Says what the answer lacks.
    pub fn warn(&self, text: impl Into<String>) {
        self.say(NoteKind::Warning, text.into());
    }

    /// The same thing is said once.
    fn say(&self, kind: NoteKind, text: String) {
        let note = Note { kind, text };
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if !notes.contains(&note) {
            self.watcher.note(&note);
            notes.push(note);
        }
    }

    /// Everything that was said, for the answer.
    pub fn notes(&self) -> Vec<Note> {
        mem::take(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
