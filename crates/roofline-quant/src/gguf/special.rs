//! The tokens that begin, end and pad a text, whether they are added by themselves, and the template of a chat: looked
//! up where llama.cpp's converter looks, in the same order.

use serde_json::Value as Json;

use super::{Array, Value};

/// The kinds that llama.cpp knows: in the files, and in its keys. The misspelling is llama.cpp's.
const KINDS: [(&str, &str); 6] =
    [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("sep", "seperator"), ("pad", "padding"), ("mask", "mask")];

/// The text of a token: itself, or its `content`.
fn text(token: &Json) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// The tokens that a `tokenizer_config.json` gives a role.
pub(super) fn named_tokens(config: &Json) -> Vec<&str> {
    let roles = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"].map(|kind| format!("{kind}_token"));
    let more = ["additional_special_tokens", "extra_special_tokens"];
    let more = more.iter().filter_map(|key| config[*key].as_array()).flatten();
    roles.iter().map(|role| &config[role.as_str()]).chain(more).filter_map(text).collect()
}

/// Which of the kinds are added to every text.
#[derive(Default)]
struct Adding {
    bos: Option<bool>,
    eos: Option<bool>,
    sep: Option<bool>,
}

/// What the last step of a tokenizer adds. Its template is a list of `{"SpecialToken": {"id": ..}}` and
/// `{"Sequence": {"id": "A"}}`; one of a single text begins with the token that begins a text, if any does.
fn adding(post: &Json, bos: Option<&str>, eos: Option<&str>, sep: Option<&str>) -> Adding {
    let mut adding = Adding::default();
    let steps = post["processors"].as_array().map_or_else(|| vec![post], |steps| steps.iter().collect());
    for step in steps {
        match step["type"].as_str() {
            Some("ByteLevel") => {
                adding.bos.get_or_insert(false);
                adding.eos.get_or_insert(false);
            }
            Some("TemplateProcessing") => {
                let empty = Vec::new();
                let single = step["single"].as_array().unwrap_or(&empty);
                let special = |part: Option<&Json>| Some(part?["SpecialToken"]["id"].as_str()?.to_owned());
                let (first, last) =
                    if single.len() > 1 { (special(single.first()), special(single.last())) } else { (None, None) };
                if let Some(first) = &first {
                    adding.bos = Some(bos.is_none_or(|bos| bos == first));
                }
                if let Some(last) = &last {
                    adding.eos = Some(eos.is_none_or(|eos| eos == last));
                }
                // Between two texts, without what begins and ends a single one.
                let mut pair = step["pair"].as_array().map(Vec::as_slice).unwrap_or_default();
                if first.is_some() && special(pair.first()) == first {
                    pair = &pair[1..];
                }
                if last.is_some() && special(pair.last()) == last {
                    pair = &pair[..pair.len() - 1];
                }
                if let [a, between @ .., b] = pair
                    && a["Sequence"]["id"] == "A"
                    && b["Sequence"]["id"] == "B"
                    && !between.is_empty()
                {
                    let separates = |part: Option<&Json>| {
                        special(part).is_some_and(|id| Some(id.as_str()) == sep || Some(id.as_str()) == eos)
                    };
                    let one = separates(between.first()) && last.is_none();
                    adding.sep = Some(one || (between.len() == 2 && separates(between.get(1))));
                }
            }
            _ => {}
        }
    }
    adding
}

/// All of them, as keys.
pub(super) fn metadata(
    tokenizer: &Json,
    config: &Json,
    model: &Json,
    template: Option<&str>,
    tokens: usize,
    notes: &mut Vec<String>,
) -> Vec<(String, Value)> {
    let mut keys = Vec::new();
    let none = Vec::new();
    let added = tokenizer["added_tokens"].as_array().unwrap_or(&none);
    let named = |kind: &str| text(&config[format!("{kind}_token")]);
    let id_of = |text: &str| added.iter().find(|token| token["content"] == text)?["id"].as_u64();
    let mut late = Vec::new();
    for (kind, key) in KINDS {
        let key = format!("tokenizer.ggml.{key}_token_id");
        let mut push = |into: &mut Vec<(String, Value)>, id: u64| {
            if id < tokens as u64 {
                into.push((key.clone(), Value::U32(id as u32)));
            } else {
                notes.push(format!("the token `{kind}` has the number {id}, beyond the vocabulary, and is left out"));
            }
        };
        match (named(kind).and_then(id_of), model[format!("{kind}_token_id")].as_u64()) {
            (Some(id), _) => push(&mut keys, id),
            // After those that the tokenizer names itself.
            (None, Some(id)) => push(&mut late, id),
            (None, None) => {}
        }
    }
    keys.extend(late);
    let adding = adding(&tokenizer["post_processor"], named("bos"), named("eos"), named("sep"));
    for (kind, adds) in [("bos", adding.bos), ("eos", adding.eos), ("sep", adding.sep)] {
        if let Some(adds) = adds.or_else(|| config[format!("add_{kind}_token")].as_bool()) {
            keys.push((format!("tokenizer.ggml.add_{kind}_token"), Value::Bool(adds)));
        }
    }
    keys.extend(templates(config, template));
    keys
}

/// The template of a chat; where there are several, the others by name.
fn templates(config: &Json, beside: Option<&str>) -> Vec<(String, Value)> {
    let one = |template: &str| ("tokenizer.chat_template".to_owned(), Value::from(template));
    match &config["chat_template"] {
        Json::String(template) => vec![one(template)],
        Json::Array(several) => {
            let (mut keys, mut names, mut default) = (Vec::new(), Vec::new(), None);
            for choice in several {
                let (Some(name), Some(template)) = (choice["name"].as_str(), choice["template"].as_str()) else {
                    continue;
                };
                if name == "default" {
                    default = Some(one(template));
                } else {
                    let name = name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
                    keys.push((format!("tokenizer.chat_template.{name}"), Value::from(template)));
                    names.push(name);
                }
            }
            if !names.is_empty() {
                keys.push(("tokenizer.chat_templates".to_owned(), Value::Array(Array::String(names))));
            }
            keys.extend(default);
            keys
        }
        _ => beside.map(one).into_iter().collect(),
    }
}
