//! Models over a product of ranges.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::sync_channel,
    },
    thread,
};

use schemars::JsonSchema;
use serde::Serialize;

use super::Request;
use crate::{
    Context, Error, Note, Result,
    passes::{Field, Line, ModelPoint, lines},
    request::Phase,
};

/// Points that a thread computes before it hands them over.
const CHUNK: usize = 2048;

/// All points.
#[derive(Serialize, JsonSchema)]
pub struct ModelSweep {
    pub points: Vec<ModelPoint>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// Why points were left out, and how many.
#[derive(Default)]
struct Skipped {
    reasons: Vec<String>,
    count: usize,
}

/// The points of a sweep before they are computed.
pub struct Sweep {
    lines: Vec<Line>,
    batches: Vec<u64>,
    contexts: Vec<u64>,
    skipped: Mutex<Skipped>,
}

impl Sweep {
    /// Everything that the points have in common.
    pub fn new(context: &Context, request: &Request) -> Result<Self> {
        request.check()?;
        let Request { models, lowering, setting, .. } = request;
        let phases = request.phase.map_or_else(|| vec![Phase::Prefill, Phase::Decode], |phase| vec![phase]);
        let lines = lines(context, &Field { models, phases: &phases, scales: &scales(request), lowering, setting })?;
        let (batches, contexts) = (request.batch.0.clone(), request.context.0.clone());
        Ok(Self { lines, batches, contexts, skipped: Mutex::default() })
    }

    fn len(&self) -> usize {
        self.lines.len() * self.batches.len() * self.contexts.len()
    }

    /// Every point, with what was left out among the notes.
    pub(super) fn all(&self, context: &Context) -> Result<ModelSweep> {
        let mut points = Vec::new();
        for at in 0..self.len() {
            match self.point(at) {
                Ok(point) => points.push(point),
                Err(error) => self.skip(context, &error)?,
            }
        }
        Ok(ModelSweep { points, notes: context.notes() })
    }

    /// Hands out what `show` makes of each point, in order, computed on all cores with flat memory. The queue is our own
    /// because it keeps that order while it holds the fast ones back; rayon does one or the other.
    pub fn stream<E: From<Error>>(
        &self,
        context: &Context,
        show: impl Fn(&ModelPoint) -> String + Sync,
        mut write: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let chunks = self.len().div_ceil(CHUNK);
        let next = AtomicUsize::new(0);
        let (sender, receiver) = sync_channel::<(usize, Result<String>)>(threads);
        thread::scope(|scope| {
            for _ in 0..threads {
                let (sender, next, show) = (sender.clone(), &next, &show);
                scope.spawn(move || {
                    loop {
                        let chunk = next.fetch_add(1, Ordering::Relaxed);
                        if chunk >= chunks || sender.send((chunk, self.chunk(context, chunk, show))).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(sender);
            let mut waiting: BTreeMap<usize, String> = BTreeMap::new();
            let mut expected = 0;
            for (chunk, text) in receiver {
                waiting.insert(chunk, text?);
                while let Some(text) = waiting.remove(&expected) {
                    write(&text)?;
                    expected += 1;
                }
            }
            Ok(())
        })
    }

    fn chunk(&self, context: &Context, chunk: usize, show: &(impl Fn(&ModelPoint) -> String + Sync)) -> Result<String> {
        let mut text = String::new();
        for at in chunk * CHUNK..((chunk + 1) * CHUNK).min(self.len()) {
            match self.point(at) {
                Ok(point) => text += &show(&point),
                Err(error) => self.skip(context, &error)?,
            }
        }
        Ok(text)
    }

    /// Says once why a point is left out; a sweep in which every point fails is an error.
    fn skip(&self, context: &Context, error: &roofline_core::Error) -> Result<()> {
        let mut skipped = self.skipped.lock().unwrap_or_else(PoisonError::into_inner);
        skipped.count += 1;
        if skipped.count == self.len() {
            return Err(error.clone().into());
        }
        let text = error.to_string();
        if skipped.reasons.len() < 10 && !skipped.reasons.contains(&text) {
            context.warn(format!("left out: {text}"));
            skipped.reasons.push(text);
        }
        Ok(())
    }

    /// Point `at`: contexts run fastest, then batches, then lines.
    fn point(&self, at: usize) -> roofline_core::Result<ModelPoint> {
        let context = self.contexts[at % self.contexts.len()];
        let batch = self.batches[at / self.contexts.len() % self.batches.len()];
        let line = &self.lines[at / self.contexts.len() / self.batches.len()];
        Ok(line.point(&self.lines, batch, context)?.0)
    }
}

fn scales(args: &Request) -> Vec<(f64, f64)> {
    let compute = |bandwidth: f64| args.scale_compute.iter().map(move |compute| (bandwidth, *compute));
    args.scale_bandwidth.iter().flat_map(|bandwidth| compute(*bandwidth)).collect()
}
