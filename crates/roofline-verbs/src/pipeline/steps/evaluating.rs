//! What it costs in quality: the new model against the original, on a text.

use std::path::PathBuf;

use roofline_core::Dim;

use super::{
    super::{
        asked::Text,
        lost::{Evaluation, Quality},
    },
    Work,
};
use crate::{
    Error, Result,
    context::files::replace,
    demo,
    evaluate::{self, evaluate},
    running::Numbers,
    text::number,
};

/// Tokens that are enough for a first look.
pub(super) const FEW: u64 = 8192;

impl Work<'_, '_> {
    /// Evaluates both in one go. An evaluation that was interrupted is gone on with.
    pub(super) fn evaluate(&mut self) -> Result<String> {
        let asked = self.asked.request;
        let made = self.state.found.quantized.as_ref().map(|made| made.checkpoint.clone());
        let few = asked.quick || self.asked.demo;
        let text = self.text()?;
        let made = made.ok_or_else(|| Error::request("nothing was written", ""))?;
        let request = evaluate::Request {
            // A single file has no card.
            card: made.is_dir(),
            model: made,
            against: Some(self.asked.path.clone()),
            text,
            tokens: asked.tokens.or(if few { Some(Dim::new("tokens", FEW)?) } else { None }),
            resume: asked.resume,
            numbers: Numbers { kv: self.cache(true), threads: asked.threads, ..Numbers::default() },
            execution: asked.execution.clone(),
            ..evaluate::Request::default()
        };
        let mut told = evaluate(self.context, &request)?;
        self.notes.append(&mut told.notes);
        let found = &mut self.state.found;
        if let (Some(before), Some(original)) = (&mut found.before, &told.original) {
            before.quality = Some(Quality::from(&**original));
        }
        let quality = Quality::from(&told.evaluated);
        let words = format!(
            "perplexity {} after {} before, top-1 agreement {} %, on {} tokens of {}",
            number(quality.perplexity),
            told.original.as_ref().map_or_else(String::new, |original| number(original.perplexity)),
            quality.top1_agreement.map_or_else(String::new, |share| format!("{:.1}", 100.0 * share)),
            told.evaluated.tokens,
            told.text.name
        );
        if let Some(after) = &mut found.after {
            after.quality = Some(quality);
        }
        found.evaluation = Some(Evaluation::from(told));
        Ok(words)
    }

    /// The file of the text; that of the demo is put beside the report, so that everything can be done again with it.
    fn text(&self) -> Result<Option<PathBuf>> {
        let Some(text) = &self.asked.text else { return Ok(None) };
        let path = text.path(&self.folder);
        if *text == Text::Own {
            replace(&path, demo::text().as_bytes())?;
        }
        Ok(Some(path))
    }
}
