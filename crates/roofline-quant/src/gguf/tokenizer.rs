//! A tokenizer in llama.cpp's words, from the files of a Hugging Face checkpoint.
//!
//! There are three kinds: byte-level pairs (`tokenizer.json`, Llama 3 and Qwen), SentencePiece (`tokenizer.model`,
//! Llama 2 and Mistral), and SentencePiece of which only the `tokenizer.json` is left.

mod back;
mod pre;

pub(crate) use back::files;

use std::path::Path;

use serde_json::Value as Json;

use super::{
    Array, Value,
    family::{Family, Tokens},
    special,
};
use crate::{Error, Result};

/// llama.cpp's kinds of tokens.
mod kind {
    pub(super) const NORMAL: i32 = 1;
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER: i32 = 4;
    pub(super) const UNUSED: i32 = 5;
    pub(super) const BYTE: i32 = 6;
}

/// The most tokens that are believed; real vocabularies have a few hundred thousand, and each takes some hundred bytes.
const MOST_TOKENS: usize = 1 << 22;

/// The contents of a tokenizer's files, those that are there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Files<'a> {
    /// `tokenizer.json`.
    pub tokenizer: Option<&'a [u8]>,
    /// `tokenizer_config.json`.
    pub config: Option<&'a [u8]>,
    /// `tokenizer.model`, SentencePiece's own.
    pub sentencepiece: Option<&'a [u8]>,
    /// `added_tokens.json`, beside SentencePiece's.
    pub added: Option<&'a [u8]>,
    /// `chat_template.jinja`.
    pub chat_template: Option<&'a str>,
}

/// The keys of a tokenizer.
#[derive(Clone, Debug)]
pub(super) struct Tokenizer {
    metadata: Vec<(String, Value)>,
    tokens: usize,
    pub(super) notes: Vec<String>,
}

/// Tokens by their number.
struct Vocabulary(Vec<Option<Token>>);

struct Token {
    text: String,
    kind: i32,
    score: f32,
}

impl Vocabulary {
    /// Room for as many tokens as the model has, or for those that are named where it does not say.
    fn new(size: Option<usize>) -> Self {
        Self((0..size.unwrap_or(0)).map(|_| None).collect())
    }

    fn put(&mut self, id: u64, token: Token, fixed: bool, file: &'static str) -> Result<()> {
        let at = id as usize;
        if id >= MOST_TOKENS as u64 || (fixed && at >= self.0.len()) {
            let size = self.0.len();
            let reason = format!("the token `{}` has the number {id}, and the vocabulary {size}", token.text);
            return Err(wrong(file, reason));
        }
        if at >= self.0.len() {
            self.0.resize_with(at + 1, || None);
        }
        self.0[at] = Some(token);
        Ok(())
    }

    /// The three columns; numbers without a token are padding.
    fn columns(self) -> (Array, Array, Array) {
        let padding = |at| Token { text: format!("[PAD{at}]"), kind: kind::UNUSED, score: -10000.0 };
        let tokens = self.0.into_iter().enumerate().map(|(at, token)| token.unwrap_or_else(|| padding(at)));
        let (mut texts, mut scores, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
        for token in tokens {
            texts.push(token.text);
            scores.push(token.score);
            kinds.push(token.kind);
        }
        (Array::String(texts), Array::F32(scores), Array::I32(kinds))
    }
}

pub(super) fn wrong(file: &'static str, reason: impl Into<String>) -> Error {
    Error::malformed(Path::new(file), "tokenizer", reason)
}

pub(super) fn json(bytes: Option<&[u8]>, file: &'static str) -> Result<Json> {
    bytes.map_or(Ok(Json::Null), |bytes| serde_json::from_slice(bytes).map_err(|error| wrong(file, error.to_string())))
}

/// Some tokens are markers although the tokenizer does not say so.
fn looks_special(text: &str) -> bool {
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || (text.starts_with("<|") && text.ends_with("|>"))
        || (text.starts_with("<｜") && text.ends_with("｜>"))
        || (text.starts_with("<unused") && text.ends_with('>'))
}

/// A token that was added to a vocabulary: a marker, or a word of its own.
fn added(text: &str, special: bool) -> Token {
    if special || looks_special(text) {
        Token { text: text.to_owned(), kind: kind::CONTROL, score: -1000.0 }
    } else {
        Token { text: text.replace('▁', " "), kind: kind::USER, score: -1000.0 }
    }
}

impl Tokenizer {
    /// What the files say of a model with that `config.json`.
    pub(super) fn new(files: &Files<'_>, model: &Json, family: &Family) -> Result<Self> {
        let llama = family.tokens == Tokens::Llama;
        let tokenizer = json(files.tokenizer, "tokenizer.json")?;
        let config = json(files.config, "tokenizer_config.json")?;
        let size = model["vocab_size"].as_u64().map(|size| size as usize);
        if size.is_some_and(|size| size > MOST_TOKENS) {
            return Err(wrong("config.json", "it has a vocabulary of more than 2^22 tokens"));
        }
        let mut notes = Vec::new();
        let mut keys = Vec::new();
        if let Some(prefix) = config["add_prefix_space"].as_bool().filter(|_| llama) {
            keys.push(("tokenizer.ggml.add_space_prefix".to_owned(), Value::Bool(prefix)));
        }
        let pairs = files.sentencepiece.is_none() && tokenizer["model"]["byte_fallback"] != Json::Bool(true);
        let vocabulary = if let Some(pieces) = files.sentencepiece {
            let late = (family.tokens == Tokens::Phi).then_some(&tokenizer);
            sentencepiece(pieces, &json(files.added, "added_tokens.json")?, &config, late, size)?
        } else if tokenizer["model"]["type"] == "BPE" {
            if pairs { byte_pairs(&tokenizer, size)? } else { pieces(&tokenizer, &config, size)? }
        } else {
            return Err(wrong(
                "tokenizer.json",
                "there is neither a `tokenizer.model` nor a `tokenizer.json` with a model of the type BPE",
            ));
        };
        let (texts, scores, kinds) = vocabulary.columns();
        let tokens = texts.len();
        let mut push = |key: &str, value: Value| keys.push((format!("tokenizer.ggml.{key}"), value));
        push("model", if pairs { "gpt2" } else { "llama" }.into());
        push("pre", if pairs { pre::of(&tokenizer, family, &mut notes) } else { "default" }.into());
        push("tokens", Value::Array(texts));
        if !pairs {
            push("scores", Value::Array(scores));
        }
        push("token_type", Value::Array(kinds));
        if pairs {
            push("merges", Value::Array(Array::String(merges(&tokenizer["model"]["merges"])?)));
        }
        keys.extend(special::metadata(&tokenizer, &config, model, files.chat_template, tokens, &mut notes));
        if family.tokens == Tokens::Glm {
            let user = added_tokens(&tokenizer).filter_map(Result::ok).find(|(_, text, _)| *text == "<|user|>");
            keys.extend(user.map(|(id, ..)| ("tokenizer.ggml.eot_token_id".to_owned(), Value::U32(id as u32))));
        }
        if family.tokens == Tokens::Gemma && !pairs {
            keys.push(("tokenizer.ggml.add_space_prefix".to_owned(), Value::Bool(false)));
        }
        if llama && tokens == 49152 {
            // llama.cpp's converter does this for the small Granite models, and so for all of that size.
            keys.retain(|(key, _)| key != "tokenizer.ggml.add_bos_token");
            keys.push(("tokenizer.ggml.add_bos_token".to_owned(), Value::Bool(false)));
        }
        Ok(Self { metadata: keys, tokens, notes })
    }

    pub(super) fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    /// How many tokens there are, padding included.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }
}

/// The numbered words of a `tokenizer.json`.
fn words(tokenizer: &Json) -> Result<impl Iterator<Item = (&str, Option<u64>)>> {
    let vocabulary = tokenizer["model"]["vocab"].as_object();
    let vocabulary = vocabulary.ok_or_else(|| wrong("tokenizer.json", "its model has no vocabulary"))?;
    Ok(vocabulary.iter().map(|(text, id)| (text.as_str(), id.as_u64())))
}

/// The added tokens of a `tokenizer.json`: number, text, and whether it is special.
fn added_tokens(tokenizer: &Json) -> impl Iterator<Item = Result<(u64, &str, bool)>> {
    tokenizer["added_tokens"].as_array().into_iter().flatten().map(|token| {
        match (token["id"].as_u64(), token["content"].as_str()) {
            (Some(id), Some(text)) => Ok((id, text, token["special"].as_bool().unwrap_or(false))),
            _ => Err(wrong("tokenizer.json", format!("{token} is no added token"))),
        }
    })
}

/// Words of a `tokenizer.json`, and tokens added to them.
fn byte_pairs(tokenizer: &Json, size: Option<usize>) -> Result<Vocabulary> {
    let mut vocabulary = Vocabulary::new(size);
    for (text, id) in words(tokenizer)? {
        let id = id.ok_or_else(|| wrong("tokenizer.json", format!("the token `{text}` has no number")))?;
        if let Some(Some(other)) = vocabulary.0.get(id as usize) {
            return Err(wrong(
                "tokenizer.json",
                format!("the tokens `{}` and `{text}` have the number {id}", other.text),
            ));
        }
        let token = Token { text: text.to_owned(), kind: kind::NORMAL, score: 0.0 };
        vocabulary.put(id, token, size.is_some(), "tokenizer.json")?;
    }
    for token in added_tokens(tokenizer) {
        let (id, text, special) = token?;
        vocabulary.put(id, added(text, special), size.is_some(), "tokenizer.json")?;
    }
    Ok(vocabulary)
}

/// SentencePiece's tokens in a `tokenizer.json`, which has kept their order and lost their scores.
fn pieces(tokenizer: &Json, config: &Json, size: Option<usize>) -> Result<Vocabulary> {
    let mut vocabulary = byte_pairs(tokenizer, size)?;
    let base = words(tokenizer)?.count();
    let named: Vec<&str> = special::named_tokens(config);
    for (at, token) in vocabulary.0.iter_mut().enumerate() {
        let Some(token) = token else { continue };
        token.score = -1000.0;
        let hex = token.text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        token.kind = if hex.is_some_and(|hex| hex.len() == 2 && u8::from_str_radix(hex, 16).is_ok()) {
            kind::BYTE
        } else if named.contains(&token.text.as_str()) {
            kind::CONTROL
        } else if at < base {
            kind::NORMAL
        } else {
            kind::USER
        };
    }
    Ok(vocabulary)
}

/// Pieces of a `tokenizer.model`, and tokens added beside it.
fn sentencepiece(
    model: &[u8],
    beside: &Json,
    config: &Json,
    late: Option<&Json>,
    size: Option<usize>,
) -> Result<Vocabulary> {
    const FILE: &str = "tokenizer.model";
    let mut vocabulary = Vocabulary::new(size);
    for (id, piece) in super::protobuf::pieces(model).map_err(|reason| wrong(FILE, reason))?.into_iter().enumerate() {
        // What lies beyond the model's vocabulary cannot come out of it.
        if size.is_some_and(|size| id >= size) {
            break;
        }
        let kind = match piece.kind {
            2 => kind::UNKNOWN,
            3 => kind::CONTROL,
            5 => kind::UNUSED,
            6 => kind::BYTE,
            _ => kind::NORMAL,
        };
        vocabulary.put(id as u64, Token { text: piece.text, kind, score: piece.score }, size.is_some(), FILE)?;
    }
    let inside = |id: &u64| size.is_none_or(|size| *id < size as u64);
    for (text, id) in beside.as_object().into_iter().flatten() {
        if let Some(id) = id.as_u64().filter(inside) {
            let token = Token { text: text.clone(), kind: kind::USER, score: -1000.0 };
            vocabulary.put(id, token, size.is_some(), "added_tokens.json")?;
        }
    }
    for (id, token) in config["added_tokens_decoder"].as_object().into_iter().flatten() {
        let (Ok(id), Some(text)) = (id.parse::<u64>(), token["content"].as_str()) else {
            return Err(wrong("tokenizer_config.json", format!("{token} is no added token")));
        };
        if inside(&id) {
            let token = added(text, token["special"].as_bool().unwrap_or(false));
            vocabulary.put(id, token, size.is_some(), "tokenizer_config.json")?;
        }
    }
    // Phi-3's markers are in neither of those two.
    for token in late.into_iter().flat_map(added_tokens) {
        let (id, text, special) = token?;
        let kind = if special { kind::CONTROL } else { kind::USER };
        if inside(&id) {
            let token = Token { text: text.to_owned(), kind, score: -1000.0 };
            vocabulary.put(id, token, size.is_some(), "tokenizer.json")?;
        }
    }
    Ok(vocabulary)
}

/// The pairs, as `a b`. Since transformers 4.45 they are lists, so that a part may have a space, which then is written
/// as byte-level tokens write one.
fn merges(merges: &Json) -> Result<Vec<String>> {
    let one = |merge: &Json| match merge {
        Json::String(pair) => Some(pair.clone()),
        Json::Array(pair) => {
            let part = |at: usize| Some(pair.get(at)?.as_str()?.replace(' ', "Ġ"));
            (pair.len() == 2).then(|| Some(format!("{} {}", part(0)?, part(1)?)))?
        }
        _ => None,
    };
    let pairs = merges.as_array().map(Vec::as_slice).unwrap_or_default().iter();
    pairs.map(|pair| one(pair).ok_or_else(|| wrong("tokenizer.json", format!("{pair} is no pair to merge")))).collect()
}
