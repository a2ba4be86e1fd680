//! A model in a thread of its own. A session binds the thread that it is made in to a processor, and threads that such a
//! thread starts inherit that: two sessions in one thread would share a processor.

use std::{
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::Scope,
};

use crate::{Engine, Error, LayerOutput, Result, Wanted};

/// Tokens to feed.
struct Ask {
    tokens: Vec<u32>,
    wanted: Wanted,
    /// Whether a window begins with them.
    first: bool,
}

/// What came of it.
pub(super) struct Fed {
    pub(super) logits: Vec<f32>,
    /// What each layer handed on, of the tokens that are looked at.
    pub(super) layers: Vec<LayerOutput>,
}

/// A model that waits for tokens.
pub(super) struct Runner {
    asks: SyncSender<Ask>,
    answers: Receiver<Result<Fed>>,
}

impl Runner {
    /// Starts a session for windows of `context` tokens. It ends with the runner.
    pub(super) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        engine: &'scope Engine<'_>,
        context: usize,
        sample: usize,
    ) -> Self {
        let (asks, asked) = sync_channel::<Ask>(1);
        let (told, answers) = sync_channel(1);
        scope.spawn(move || {
            let mut session = match engine.session(1, context) {
                Ok(session) => session,
                Err(error) => {
                    let _ = told.send(Err(error));
                    return;
                }
            };
            session.keep_layers(sample);
            for Ask { tokens, wanted, first } in asked {
                if first {
                    session.clear();
                }
                let logits = session.feed(0..1, &[tokens], wanted);
                session.take_ran();
                let layers = session.take_layers();
                let fed = logits.map(|logits| Fed { logits, layers });
                if told.send(fed).is_err() {
                    return;
                }
            }
        });
        Self { asks, answers }
    }

    /// Feeds tokens.
    pub(super) fn ask(&self, tokens: Vec<u32>, wanted: Wanted, first: bool) -> Result<()> {
        // A runner that ended has said why.
        match self.asks.send(Ask { tokens, wanted, first }) {
            Ok(()) => Ok(()),
            Err(_) => self.told().map(|_| ()),
        }
    }

    /// What came of what was asked.
    pub(super) fn told(&self) -> Result<Fed> {
        self.answers.recv().unwrap_or(Err(Error::Stopped))
    }
}
