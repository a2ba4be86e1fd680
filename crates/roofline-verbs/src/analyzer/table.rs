//! Prompts and contexts of several lengths, what that means, and what to do about it.

use std::fmt::Write;

use roofline_core::{
    Dim,
    measurement::Phase,
    units::{Bytes, Flops},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    advice::{self, Advice, Finding},
    counted::NOTE,
    place::{Found, Place, lengths, one},
    roof::Standing,
};
use crate::{Context, Error, Note, Result};

/// The lengths to look at.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Table {
    /// Tokens of prompts, and in caches
    #[serde(default = "lengths")]
    pub seq_lengths: Vec<Dim>,
    /// Sequences side by side
    #[serde(default = "one")]
    pub batch_size: Dim,
    /// Another device, to say how far decode scales with bandwidth
    pub versus: Option<String>,
    #[serde(flatten)]
    pub place: Place,
}

/// The lengths, and what follows.
#[derive(Serialize, JsonSchema)]
pub struct TableAnswer {
    pub model: String,
    pub model_name: String,
    pub device: String,
    pub device_name: String,
    pub precision: String,
    pub batch_size: u64,
    pub ridge_point: f64,
    /// The shortest prompt that is compute-bound, where there is one.
    pub compute_bound_from: Option<u64>,
    pub rows: Vec<Row>,
    /// The rows as a table of text.
    pub text: String,
    pub findings: Vec<Finding>,
    /// The findings as a table in Markdown.
    pub findings_markdown: String,
    pub insights: Vec<String>,
    pub recommendations: Vec<Advice>,
    pub notes: Vec<Note>,
}

/// One length.
#[derive(Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "AnalyzerRow")]
pub struct Row {
    pub phase: Phase,
    pub seq_len: u64,
    pub flops: Flops,
    pub memory_bytes: Bytes,
    #[serde(flatten)]
    pub standing: Standing,
}

/// The most lengths that a table has.
const MOST: usize = 64;

pub(super) fn few(lengths: &[Dim]) -> Result<()> {
    if (1..=MOST).contains(&lengths.len()) {
        return Ok(());
    }
    Err(Error::request(format!("{} lengths are asked for", lengths.len()), format!("from 1 to {MOST}")))
}

impl Found {
    pub(super) fn row(&self, phase: Phase, batch: u64, tokens: u64) -> Result<Row> {
        let counted = self.counted(phase, batch, tokens)?;
        Ok(Row {
            phase,
            seq_len: tokens,
            flops: counted.flops.total,
            memory_bytes: counted.memory.total,
            standing: Standing::of(self.device(), self.math, counted.intensity())?,
        })
    }
}

impl Table {
    pub(super) fn answer(&self, context: &Context) -> Result<TableAnswer> {
        few(&self.seq_lengths)?;
        let found = self.place.find(context)?;
        let batch = self.batch_size.get();
        let mut rows = Vec::new();
        for phase in [Phase::Prefill, Phase::Decode] {
            for tokens in &self.seq_lengths {
                rows.push(found.row(phase, batch, tokens.get())?);
            }
        }
        let from = advice::compute_bound_from(&found, batch)?;
        let findings = advice::findings(&found, batch, &self.seq_lengths, from)?;
        let versus = self.versus.as_ref().map(|name| context.device(name)).transpose()?;
        let insights = advice::insights(&found, &rows, from, versus.as_ref())?;
        let longest = self.seq_lengths.iter().copied().max().unwrap_or(Dim::ONE).get();
        let recommendations = advice::recommendations(&found, longest)?;
        context.note(NOTE);
        Ok(TableAnswer {
            batch_size: batch,
            ridge_point: found.ridge()?.value(),
            compute_bound_from: from,
            text: text(&rows),
            findings_markdown: advice::markdown(&findings),
            rows,
            findings,
            insights,
            recommendations,
            device: found.device().label(),
            device_name: found.device().name.clone(),
            model: found.model.key.clone(),
            model_name: found.model.name.clone(),
            precision: found.precision.clone(),
            notes: context.notes(),
        })
    }
}

/// A table of text. A prompt takes tera, a token giga operations.
fn text(rows: &[Row]) -> String {
    let mut text =
        format!("{:<8} {:>8} {:>10} {:>11} {:>10}  {}", "Phase", "Seq Len", "FLOPs", "Memory GB", "OI (F/B)", "Bound");
    for row in rows {
        let flops = match row.phase {
            Phase::Prefill => format!("{:.2} T", row.flops.value() / 1e12),
            Phase::Decode => format!("{:.2} G", row.flops.value() / 1e9),
        };
        let (memory, standing) = (row.memory_bytes.value() / 1e9, &row.standing);
        let digits = if standing.operational_intensity < 10.0 { 3 } else { 1 };
        let line = write!(
            text,
            "\n{:<8} {:>8} {flops:>10} {memory:>11.2} {:>10.digits$}  {}",
            row.phase.name(),
            row.seq_len,
            standing.operational_intensity,
            standing.bound()
        );
        debug_assert!(line.is_ok(), "a text takes everything");
    }
    text
}
