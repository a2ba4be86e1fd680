//! Text to tokens and back, as the checkpoint's own tokenizer.json says.
//!
//! The file comes from anywhere, and what reads it was written for files that are right: a panic in there becomes an
//! error here. Padding and truncation that a file asks for are for training in batches; neither is wanted in a prompt.

mod stream;

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;

pub use self::stream::Stream;
use crate::{
    Error, Result,
    files::{self, NamedFile},
};

const FILE: &str = "tokenizer.json";

/// The tokenizer of a checkpoint.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    ends: Vec<u32>,
    /// How many tokens the model knows, once that is known.
    limit: Option<usize>,
}

impl Tokenizer {
    /// The tokenizer among the files of a checkpoint. Without a tokenizer.json there is none, and a model speaks in
    /// token ids alone.
    pub fn from_files(files: &[NamedFile]) -> Result<Option<Self>> {
        let Some(bytes) = files::find(files, FILE)? else { return Ok(None) };
        let inner = guarded(|| {
            let mut inner = tokenizers::Tokenizer::from_bytes(bytes)?;
            inner.with_padding(None).with_truncation(None)?;
            Ok(inner)
        })
        .map_err(|reason| {
            Error::malformed_with_hint(FILE, reason, "fetch it again, or give the prompt as token ids")
        })?;
        let mut ends = declared_ends(files)?;
        if let Some(config) = files::json(files, "tokenizer_config.json")? {
            // Text that no token has cannot come out of the model, so it ends nothing.
            ends.extend(files::special_token(&config, "eos_token").and_then(|token| inner.token_to_id(token)));
            ends.sort_unstable();
            ends.dedup();
        }
        Ok(Some(Self { inner, ends, limit: None }))
    }

    /// The same tokenizer for a model that knows this many tokens.
    ///
    /// One with a larger vocabulary is of another model. Special tokens beyond the model's are let be until one is in a
    /// text: gemma-3-1b's tokenizer has one for images, 262144, and the model has 262144 tokens.
    pub fn for_vocabulary(mut self, vocabulary: usize) -> Result<Self> {
        let last = self.inner.get_vocab(false).into_values().max();
        if let Some(last) = last.filter(|&last| last as usize >= vocabulary) {
            return Err(Error::malformed_with_hint(
                FILE,
                format!(
                    "its tokens go to {last}, and the model has {vocabulary}, 0 to {}",
                    vocabulary.saturating_sub(1)
                ),
                "use the tokenizer that the model was trained with",
            ));
        }
        self.limit = Some(vocabulary);
        Ok(self)
    }

    /// The tokens of a text. `special` adds what the file puts around a text, such as a token for its beginning; a
    /// rendered chat template has that already.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let ids = guarded(|| Ok(self.inner.encode_fast(text, special)?.get_ids().to_vec()))
            .map_err(|reason| Error::Text { action: "encode the text", reason })?;
        match (self.limit, ids.iter().max()) {
            (Some(vocabulary), Some(&id)) if id as usize >= vocabulary => Err(Error::Token { id, vocabulary }),
            _ => Ok(ids),
        }
    }

    /// The tokens of a text alone, each with the byte where what it stands for begins.
    pub(crate) fn places(&self, text: &str) -> Result<Vec<(u32, usize)>> {
        let placed = guarded(|| {
            let encoding = self.inner.encode(text, false)?;
            Ok(encoding.get_ids().iter().zip(encoding.get_offsets()).map(|(id, (start, _))| (*id, *start)).collect())
        });
        let placed: Vec<(u32, usize)> = placed.map_err(|reason| Error::Text { action: "encode the text", reason })?;
        match (self.limit, placed.iter().map(|(id, _)| *id).max()) {
            (Some(vocabulary), Some(id)) if id as usize >= vocabulary => Err(Error::Token { id, vocabulary }),
            _ => Ok(placed),
        }
    }

    /// The token that the file puts before a text, if it puts one there.
    pub fn beginning(&self) -> Result<Option<u32>> {
        let (with, without) = (self.encode("a", true)?, self.encode("a", false)?);
        Ok(with.first().copied().filter(|_| with.len() > without.len() && !with.starts_with(&without)))
    }

    /// The first token that another tokenizer has another text for, and both texts. Tokens that only one of them names
    /// are let be: vocabularies are padded.
    pub fn difference(&self, other: &Self) -> Option<(u32, String, String)> {
        let last = self.vocabulary().min(other.vocabulary()) as u32;
        (0..last).find_map(|id| {
            let (own, others) = (self.inner.id_to_token(id)?, other.inner.id_to_token(id)?);
            (own != others).then_some((id, own, others))
        })
    }

    /// The text of tokens, without the special ones. Tokens that the file does not name have no text.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        guarded(|| self.inner.decode(ids, true)).map_err(|reason| Error::Text { action: "decode the tokens", reason })
    }

    /// A decoder of one token at a time, after these.
    pub fn stream(&self, before: &[u32]) -> Stream<'_> {
        Stream::new(self, before)
    }

    /// How many tokens there are: one more than the highest.
    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab(true).into_values().max().map_or(0, |last| last as usize + 1)
    }

    /// The tokens that end a text, in order.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }
}

/// The tokens that end a text as generation_config.json and config.json number them, in order. They are known without a
/// tokenizer, too.
pub fn declared_ends(files: &[NamedFile]) -> Result<Vec<u32>> {
    let mut ends = Vec::new();
    for name in ["generation_config.json", "config.json"] {
        let Some(config) = files::json(files, name)? else { continue };
        // A model of text and images keeps what concerns text in a part of its own.
        for part in [Some(&config), config.get("text_config")].into_iter().flatten() {
            collect_ends(name, part.get("eos_token_id"), &mut ends)?;
        }
    }
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}

fn collect_ends(file: &str, value: Option<&Value>, ends: &mut Vec<u32>) -> Result<()> {
    match value {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Array(list)) => list.iter().try_for_each(|one| match one {
            Value::Array(_) => Err(not_a_token(file, one)),
            _ => collect_ends(file, Some(one), ends),
        }),
        Some(one) => {
            let id = one.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| not_a_token(file, one))?;
            ends.push(id);
            Ok(())
        }
    }
}

fn not_a_token(file: &str, value: &Value) -> Error {
    Error::malformed(file, format!("eos_token_id is {value}, and must be a token's number or a list of them"))
}

/// Calls the library; its panic is an error like the others.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason was given");
            Err(format!("it contradicts itself ({said})"))
        }
    }
}

#[cfg(test)]
mod tests;
