//! A tokenizer of Hugging Face's, from the metadata of a GGUF file.

use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};

use super::kind;
use crate::gguf::{Array, Header, Value};

/// The longest word whose parts are looked for; those of real vocabularies are far shorter.
const LONGEST_WORD: usize = 256;

/// `tokenizer.json`, `tokenizer_config.json` and the template of a chat, as far as the metadata have them.
pub(crate) fn files(header: &Header) -> Vec<(String, Vec<u8>)> {
    let get = |key: &str| header.get(&format!("tokenizer.ggml.{key}"));
    let Some(Value::Array(Array::String(tokens))) = get("tokens") else { return Vec::new() };
    let kinds = if let Some(Value::Array(Array::I32(kinds))) = get("token_type") { kinds.as_slice() } else { &[] };
    let kind_of = |at: usize| kinds.get(at).copied().unwrap_or(kind::NORMAL);
    let pieces = get("model").and_then(Value::as_str) == Some("llama");
    let words: Map<String, Json> = tokens.iter().enumerate().map(|(at, text)| (text.clone(), json!(at))).collect();
    let added: Vec<Json> = tokens
        .iter()
        .enumerate()
        .filter(|(at, _)| matches!(kind_of(*at), kind::CONTROL | kind::USER | kind::UNKNOWN))
        .map(|(at, text)| {
            json!({"id": at, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                "special": kind_of(at) != kind::USER})
        })
        .collect();
    let merges = match get("merges") {
        Some(Value::Array(Array::String(merges))) => {
            merges.iter().filter_map(|pair| pair.split_once(' ')).map(|(a, b)| json!([a, b])).collect()
        }
        _ => merges(tokens, get("scores"), &kind_of),
    };
    let token = |key: &str| {
        let id = get(&format!("{key}_token_id")).and_then(Value::as_u64)?;
        tokens.get(usize::try_from(id).ok()?)
    };
    let unknown = token("unknown").filter(|_| pieces);
    let model = json!({"type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": pieces, "byte_fallback": pieces,
        "ignore_merges": get("pre").and_then(Value::as_str) == Some("llama-bpe"), "vocab": words, "merges": merges});
    let space = !matches!(get("add_space_prefix"), Some(Value::Bool(false)));
    let (normalizer, split, decoder) =
        if pieces { of_pieces(space) } else { of_bytes(get("pre").and_then(Value::as_str)) };
    let made = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": split, "post_processor": template(token("bos"), get("bos_token_id"), get("add_bos_token"), pieces),
        "decoder": decoder, "model": model});
    let mut config = Map::new();
    config.insert("tokenizer_class".to_owned(), "PreTrainedTokenizerFast".into());
    for (key, name) in [("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")] {
        if let Some(text) = token(key) {
            config.insert(format!("{name}_token"), text.as_str().into());
        }
    }
    let mut files = vec![
        ("tokenizer.json".to_owned(), serde_json::to_vec(&made).unwrap_or_default()),
        ("tokenizer_config.json".to_owned(), serde_json::to_vec_pretty(&config).unwrap_or_default()),
    ];
    if let Some(template) = header.get("tokenizer.chat_template").and_then(Value::as_str) {
        files.push(("chat_template.jinja".to_owned(), template.as_bytes().to_vec()));
    }
    files
}

/// What stands before every text, where something does. SentencePiece's models have it unless they say otherwise.
fn template(bos: Option<&String>, id: Option<&Value>, add: Option<&Value>, pieces: bool) -> Json {
    let adds = if let Some(Value::Bool(adds)) = add { *adds } else { pieces };
    let Some((bos, id)) = bos.zip(id.and_then(Value::as_u64)).filter(|_| adds) else { return Json::Null };
    let (first, text) =
        (json!({"SpecialToken": {"id": bos, "type_id": 0}}), |id: &str| json!({"Sequence": {"id": id, "type_id": 0}}));
    json!({"type": "TemplateProcessing", "single": [first, text("A")], "pair": [first, text("A"), text("B")],
        "special_tokens": {bos.as_str(): {"id": bos, "ids": [id], "tokens": [bos]}}})
}

/// Normalizer, splitting and decoder of SentencePiece.
fn of_pieces(space: bool) -> (Json, Json, Json) {
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let mut normalizers = vec![replace];
    if space {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
    }
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if space {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    (
        json!({"type": "Sequence", "normalizers": normalizers}),
        Json::Null,
        json!({"type": "Sequence", "decoders": decoders}),
    )
}

/// The same of pairs of bytes, by llama.cpp's word for the splitting.
fn of_bytes(pre: Option<&str>) -> (Json, Json, Json) {
    let bytes =
        |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
    let steps = super::pre::steps(pre.unwrap_or("default"));
    let split = match steps {
        None => bytes(true),
        Some(mut steps) => {
            let regex = steps.iter().all(|step| step["type"] != "Split");
            steps.push(bytes(regex));
            json!({"type": "Sequence", "pretokenizers": steps})
        }
    };
    (Json::Null, split, bytes(true))
}

/// The pairs of a vocabulary of SentencePiece, which keeps none: every way to cut a word into two others, the word with the
/// best score first.
fn merges(tokens: &[String], scores: Option<&Value>, kind_of: &dyn Fn(usize) -> i32) -> Vec<Json> {
    let scores = if let Some(Value::Array(Array::F32(scores))) = scores { scores.as_slice() } else { &[] };
    let normal: HashMap<&str, usize> = tokens
        .iter()
        .enumerate()
        .filter(|(at, _)| kind_of(*at) == kind::NORMAL)
        .map(|(at, text)| (text.as_str(), at))
        .collect();
    let mut cuts = Vec::new();
    for (at, text) in
        tokens.iter().enumerate().filter(|(at, text)| kind_of(*at) == kind::NORMAL && text.len() <= LONGEST_WORD)
    {
        for (cut, _) in text.char_indices().skip(1) {
            let (a, b) = text.split_at(cut);
            if normal.contains_key(a) && normal.contains_key(b) {
                cuts.push((at, a, b));
            }
        }
    }
    let score = |at: usize| scores.get(at).copied().unwrap_or(0.0);
    cuts.sort_by(|(a, left, _), (b, other, _)| {
        score(*b).total_cmp(&score(*a)).then(a.cmp(b)).then(left.len().cmp(&other.len()))
    });
    cuts.into_iter().map(|(_, a, b)| json!([a, b])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(keys: Vec<(&str, Value)>) -> Header {
        let metadata = keys.into_iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).collect();
        Header { metadata, tensors: Vec::new(), alignment: 32, data_start: 0 }
    }

    fn strings(all: &[&str]) -> Value {
        Value::Array(Array::String(all.iter().map(|text| (*text).to_owned()).collect()))
    }

    #[test]
    fn pairs_are_taken_over_and_pieces_cut() {
        let pairs = header(vec![
            ("model", "gpt2".into()),
            ("pre", "llama-bpe".into()),
            ("tokens", strings(&["a", "b", "ab", "<s>"])),
            ("token_type", Value::Array(Array::I32(vec![1, 1, 1, 3]))),
            ("merges", strings(&["a b"])),
            ("bos_token_id", Value::U32(3)),
            ("add_bos_token", Value::Bool(true)),
        ]);
        let made: Json = serde_json::from_slice(&files(&pairs)[0].1).unwrap();
        assert_eq!(made["model"]["merges"], json!([["a", "b"]]));
        assert_eq!(made["added_tokens"][0]["content"], "<s>");
        assert_eq!(made["post_processor"]["single"][0]["SpecialToken"]["id"], "<s>");
        assert_eq!(made["model"]["ignore_merges"], json!(true));
        assert_eq!(made["pre_tokenizer"]["pretokenizers"][0]["type"], "Split");
        // "abc" is ab + c or a + bc; bc has the better score, and is made first.
        let pieces = header(vec![
            ("model", "llama".into()),
            ("tokens", strings(&["a", "b", "c", "ab", "bc", "abc"])),
            ("scores", Value::Array(Array::F32(vec![0.0, 0.0, 0.0, -2.0, -1.0, -3.0]))),
        ]);
        let made: Json = serde_json::from_slice(&files(&pieces)[0].1).unwrap();
        assert_eq!(made["model"]["merges"], json!([["b", "c"], ["a", "b"], ["a", "bc"], ["ab", "c"]]));
        assert_eq!(made["normalizer"]["normalizers"][0]["type"], "Prepend");
        assert!(files(&header(Vec::new())).is_empty());
    }
}
