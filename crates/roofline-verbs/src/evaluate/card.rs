//! What was found, in the checkpoint's model card: for whoever finds the folder later.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
};

use super::Answer;
use crate::{
    Error, Result,
    context::files::{read_card, replace},
};

/// What stands between these is ours, and is replaced by the next evaluation.
const BEGIN: &str = "<!-- roofline evaluate -->";
const END: &str = "<!-- end of roofline evaluate -->";

/// The card of a checkpoint.
pub(super) struct Card {
    path: PathBuf,
    text: String,
}

impl Card {
    /// The card of a model, which need not have one yet.
    pub(super) fn open(model: &Path) -> Result<Self> {
        if !model.is_dir() {
            let what = format!("{} is a file, and a model card lies in a checkpoint's folder", model.display());
            return Err(Error::request(what, "leave `⟨card⟩` out"));
        }
        let path = model.join("README.md");
        let text = if path.exists() { read_card(&path)? } else { String::new() };
        Ok(Self { path, text })
    }

    /// Writes what was found, in the place of what an earlier evaluation has. Returns where.
    pub(super) fn tell(&self, answer: &Answer) -> Result<&Path> {
        replace(&self.path, with(&self.text, &section(answer)).as_bytes())?;
        Ok(&self.path)
    }
}

/// A card with a section in its place: that of the one before, or the end.
fn with(card: &str, section: &str) -> String {
    let before = card.find(BEGIN).and_then(|from| Some((from, from + card[from..].find(END)? + END.len())));
    match before {
        Some((from, until)) => format!("{}{section}{}", &card[..from], &card[until..]),
        None if card.trim().is_empty() => format!("{section}\n"),
        None => format!("{}\n\n{section}\n", card.trim_end()),
    }
}

/// A name as it may stand in a table between backquotes.
fn plain(name: &str) -> String {
    name.replace(['`', '|', '\n', '<', '>'], "")
}

/// What was found, in Markdown.
fn section(answer: &Answer) -> String {
    let (own, text) = (&answer.evaluated, &answer.text);
    let original = answer.original.as_deref().map_or_else(String::new, |original| plain(&original.model));
    let mut told = format!(
        "{BEGIN}\n## Measured\n\n\
         By `roofline evaluate` {version}, beside `{original}`, on `{name}` (FNV-1a {hash}): {tokens} tokens, in windows of {window}, \
         {stride} from one to the next, with {values} between kernels.\n\n| | |\n|---|---|\n",
        version = env!("CARGO_PKG_VERSION"),
        name = plain(&text.name),
        hash = text.hash,
        tokens = own.tokens,
        window = answer.window,
        stride = answer.stride,
        values = own.values,
    );
    let interval = |low: Option<f64>, high: Option<f64>, of: &dyn Fn(f64) -> String| match (low, high) {
        (Some(low), Some(high)) => format!(" ({} to {} at 95 %)", of(low), of(high)),
        _ => String::new(),
    };
    let perplexity = |value: f64| format!("{value:.3}");
    let mut row = |name: &str, value: String| {
        let _ = writeln!(told, "| {name} | {value} |");
    };
    row("perplexity", perplexity(own.perplexity) + &interval(own.perplexity_low, own.perplexity_high, &perplexity));
    if let Some(original) = &answer.original {
        row("perplexity of the original", perplexity(original.perplexity));
    }
    if let Some(ratio) = own.ratio {
        let change = |ratio: f64| format!("{:+.2} %", 100.0 * (ratio - 1.0));
        row("change", change(ratio) + &interval(own.ratio_low, own.ratio_high, &change));
    }
    if let Some(kl) = own.kl_divergence {
        let nats = |value: f64| format!("{value:.5}");
        let range = interval(own.kl_divergence_low, own.kl_divergence_high, &nats);
        row("divergence (KL) from the original, nats for each token", nats(kl) + &range);
    }
    if let Some(same) = own.top1_agreement {
        row("the same first choice as the original", format!("{:.1} % of tokens", 100.0 * same));
    }
    told + END
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_has_one_place() {
        let first = with("---\nlicense: mit\n---\n\n# A model\n", &format!("{BEGIN}\none\n{END}"));
        assert_eq!(first, format!("---\nlicense: mit\n---\n\n# A model\n\n{BEGIN}\none\n{END}\n"));
        let more = first.clone() + "\n## By hand\n";
        let second = with(&more, &format!("{BEGIN}\ntwo\n{END}"));
        assert_eq!(second, more.replace("one", "two"));
        assert_eq!(with("", "new"), "new\n");
        // A mark that was cut off is no place: nothing of the card is lost.
        let cut = format!("# A\n{BEGIN}\nhalf");
        assert!(with(&cut, "new").starts_with(&cut));
    }

    #[test]
    fn names_cannot_leave_their_cell() {
        assert_eq!(plain("a|b`c\n<!-- d -->"), "abc!-- d --");
    }
}
