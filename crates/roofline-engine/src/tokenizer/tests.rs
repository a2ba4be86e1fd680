//! Two small tokenizers of the two kinds that models have: bytes as characters (GPT-2, Llama 3, Qwen) and sentencepiece
//! with a token for each byte (Llama 2, Mistral, Gemma).

use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::*;

/// Every byte a token, "th" and "the" merged, and two special tokens at the end.
fn byte_level() -> Value {
    let mut alphabet: Vec<String> = ByteLevel::alphabet().into_iter().map(String::from).collect();
    alphabet.sort();
    alphabet.extend(["th".to_owned(), "the".to_owned()]);
    let vocabulary: serde_json::Map<_, _> = alphabet.into_iter().zip(0_u32..).map(|(t, i)| (t, i.into())).collect();
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 1_000_000_000_u64}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "!"},
        "added_tokens": [special(258, "<|begin|>"), special(259, "<|end|>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [258], "tokens": ["<|begin|>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [["t", "h"], ["th", "e"]]},
    })
}

fn special(id: u32, content: &str) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true})
}

/// Words with their space before them as "▁", and bytes for what has no token.
fn sentencepiece() -> Value {
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let tokens = ["<unk>", "<s>", "</s>"].into_iter().map(String::from).chain(bytes);
    let tokens = tokens.chain(["▁", "a", "b", "▁a", "▁b"].map(String::from));
    let vocabulary: serde_json::Map<_, _> = tokens.zip(0_u32..).map(|(t, i)| (t, i.into())).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": vocabulary, "merges": [["▁", "a"], ["▁", "b"]]},
    })
}

fn named(files: &[(&str, &Value)]) -> Vec<NamedFile> {
    files.iter().map(|(name, json)| ((*name).to_owned(), json.to_string().into_bytes())).collect()
}

fn read(json: &Value) -> Result<Tokenizer> {
    Tokenizer::from_files(&named(&[(FILE, json)])).map(|tokenizer| tokenizer.expect("a tokenizer.json is there"))
}

/// All that a stream gives out for these tokens, piece by piece.
fn pieces(tokenizer: &Tokenizer, before: &[u32], ids: &[u32]) -> Vec<String> {
    let mut stream = tokenizer.stream(before);
    let mut pieces: Vec<_> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    pieces.push(stream.finish().unwrap());
    pieces
}

#[test]
fn text_goes_in_and_comes_out() {
    let tokenizer = read(&byte_level()).unwrap();
    // Truncated to two tokens and padded to a billion if the file had its way.
    let ids = tokenizer.encode("the thé", true).unwrap();
    assert_eq!(ids.len(), 1 + 1 + 1 + 1 + 2);
    assert_eq!(ids[..2], [258, 257]);
    assert_eq!(tokenizer.encode("the thé", false).unwrap(), ids[1..]);
    assert_eq!(tokenizer.decode(&ids).unwrap(), "the thé");
    // A special token that is written out is that token, and has no text.
    assert_eq!(tokenizer.encode("<|end|>", false).unwrap(), [259]);
    assert_eq!(tokenizer.decode(&[257, 259]).unwrap(), "the");
    // A model has often more tokens than its tokenizer names.
    assert_eq!(tokenizer.decode(&[257, 9_999, u32::MAX]).unwrap(), "the");
    assert_eq!(tokenizer.vocabulary(), 260);
    assert!(tokenizer.encode("", false).unwrap().is_empty());
}

#[test]
fn without_the_file_there_is_none() {
    assert!(Tokenizer::from_files(&[]).unwrap().is_none());
    assert!(Tokenizer::from_files(&named(&[("config.json", &json!({}))])).unwrap().is_none());
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let error = read(&byte_level()).unwrap().for_vocabulary(200).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`tokenizer.json` is not usable: its tokens go to 257, and the model has 200, 0 to 199"
    );
    // All but the special ones fit: text without them can be encoded.
    let tokenizer = read(&byte_level()).unwrap().for_vocabulary(258).unwrap();
    assert_eq!(tokenizer.encode("the", false).unwrap(), [257]);
    let error = tokenizer.encode("the<|end|>", false).unwrap_err();
    assert_eq!(error.to_string(), "token 259 is beyond the model's vocabulary of 258 tokens");
    assert!(error.hint().is_some());
}

#[test]
fn the_ends_are_gathered_from_wherever_they_are_named() {
    let tokenizer = byte_level();
    let ends = |files: &[(&str, &Value)]| {
        let files: Vec<_> = files.iter().copied().chain([(FILE, &tokenizer)]).collect();
        Tokenizer::from_files(&named(&files)).map(|tokenizer| tokenizer.unwrap().ends().to_vec())
    };
    assert_eq!(ends(&[]).unwrap(), [0_u32; 0]);
    assert_eq!(ends(&[("config.json", &json!({"eos_token_id": null}))]).unwrap(), [0_u32; 0]);
    let (list, part) =
        (json!({"eos_token_id": [9, 3]}), json!({"text_config": {"eos_token_id": 5}, "eos_token_id": 9}));
    let config = json!({"eos_token": {"content": "<|end|>", "lstrip": false}});
    let all = [("generation_config.json", &list), ("config.json", &part), ("tokenizer_config.json", &config)];
    assert_eq!(ends(&all).unwrap(), [3, 5, 9, 259]);
    assert_eq!(declared_ends(&named(&all)).unwrap(), [3, 5, 9]);
    assert_eq!(ends(&[("tokenizer_config.json", &json!({"eos_token": "<|end|>"}))]).unwrap(), [259]);
    assert_eq!(ends(&[("tokenizer_config.json", &json!({"eos_token": "not a token"}))]).unwrap(), [0_u32; 0]);
    for wrong in [json!(-1), json!("2"), json!([[2]]), json!(1_u64 << 40), json!({})] {
        let error = ends(&[("config.json", &json!({"eos_token_id": wrong}))]).unwrap_err().to_string();
        assert!(error.starts_with("`config.json` is not usable: eos_token_id is "), "{error}");
    }
}

#[test]
fn a_character_waits_until_it_is_whole() {
    let tokenizer = read(&byte_level()).unwrap();
    // The euro sign has three bytes, so three tokens.
    let ids = tokenizer.encode("a€b", false).unwrap();
    assert_eq!(pieces(&tokenizer, &[], &ids), ["a", "", "", "€", "b", ""]);
    // What never becomes one is shown as such at the end.
    assert_eq!(pieces(&tokenizer, &[], &ids[..3]), ["a", "", "", "\u{fffd}"]);
    // A prompt that ends within a character is finished by the answer.
    assert_eq!(pieces(&tokenizer, &ids[..2], &ids[2..]), ["", "€", "b", ""]);
    let llama = read(&sentencepiece()).unwrap();
    let ids = llama.encode("a€b", false).unwrap();
    assert_eq!(pieces(&llama, &[], &ids), ["a", "", "", "€", "b", ""]);
    // The last tokens of this prompt begin within a character: all bytes after that would be none.
    let ids = llama.encode("語語語語語€", false).unwrap();
    assert_eq!(pieces(&llama, &ids[..ids.len() - 3], &ids[ids.len() - 3..]), ["", "", "€", ""]);
    assert_eq!(pieces(&llama, &ids[..ids.len() - 1], &ids[ids.len() - 1..]), ["€", ""]);
}

#[test]
fn spaces_between_words_are_kept() {
    let tokenizer = read(&sentencepiece()).unwrap();
    let ids = tokenizer.encode("a b a", false).unwrap();
    assert_eq!(ids.len(), 3);
    assert_eq!(pieces(&tokenizer, &[], &ids), ["a", " b", " a", ""]);
    // After a prompt the first word has a space before it, also where special tokens stand between.
    assert_eq!(pieces(&tokenizer, &ids[..1], &ids[1..]), [" b", " a", ""]);
    assert_eq!(pieces(&tokenizer, &[ids[0], 2, 1], &ids[1..]), [" b", " a", ""]);
    assert_eq!(pieces(&tokenizer, &[], &[ids[0], 2, 1, ids[1]]), ["a", "", "", " b", ""]);
}

#[test]
fn what_is_never_whole_does_not_wait_for_ever() {
    let tokenizer = read(&byte_level()).unwrap();
    let half = tokenizer.encode("€", false).unwrap()[0];
    let mut stream = tokenizer.stream(&[]);
    let said: String = (0..1000).map(|_| stream.push(half).unwrap()).collect();
    assert!(said.chars().count() > 990, "{} characters", said.chars().count());
    for _ in 0..1000 {
        assert_eq!(stream.push(259).unwrap(), "");
    }
    assert_eq!(stream.push(257).unwrap(), "the");
}

#[test]
fn a_broken_file_is_an_error() {
    let text = byte_level().to_string();
    for end in (0..text.len()).step_by(97).filter(|&end| text.is_char_boundary(end)) {
        let files = [(FILE.to_owned(), text.as_bytes()[..end].to_vec())];
        let error = Tokenizer::from_files(&files).unwrap_err();
        assert!(error.to_string().starts_with("`tokenizer.json` is not usable: ") && error.hint().is_some(), "{error}");
    }
    // Pieces of no length are asked for, over which the library panics.
    let mut json = byte_level();
    json["pre_tokenizer"] = json!({"type": "FixedLength", "length": 0});
    let error = read(&json).unwrap().encode("the", false).unwrap_err().to_string();
    assert!(error.starts_with("the tokenizer cannot encode the text: it contradicts itself (chunk size"), "{error}");
}

/// The places of all values within a value.
fn places(value: &Value, here: &str, all: &mut Vec<String>) {
    all.push(here.to_owned());
    match value {
        Value::Array(list) => list.iter().enumerate().for_each(|(i, v)| places(v, &format!("{here}/{i}"), all)),
        Value::Object(map) if map.len() < 50 => map.iter().for_each(|(k, v)| places(v, &format!("{here}/{k}"), all)),
        _ => {}
    }
}

#[test]
fn a_file_with_anything_replaced_is_an_error_or_works() {
    let others = [json!(null), json!(-1), json!(u64::MAX), json!(""), json!("▁"), json!([]), json!({}), json!([[]])];
    for whole in [byte_level(), sentencepiece()] {
        let mut all = Vec::new();
        places(&whole, "", &mut all);
        assert!(all.len() > 40);
        for place in all {
            for other in &others {
                let mut mutated = whole.clone();
                *mutated.pointer_mut(&place).unwrap() = other.clone();
                let Ok(tokenizer) = read(&mutated) else { continue };
                if let Ok(ids) = tokenizer.encode("the a€ <|end|></s>", true) {
                    let _ = tokenizer.decode(&ids);
                }
                let _ = tokenizer.for_vocabulary(100);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_stream_says_what_decoding_all_says(text in "[ab €é語🦀▁ ]{0,12}", cut in 0_usize..12) {
        for json in [byte_level(), sentencepiece()] {
            let tokenizer = read(&json).unwrap();
            let ids = tokenizer.encode(&text, false).unwrap();
            let whole = tokenizer.decode(&ids).unwrap();
            prop_assert_eq!(pieces(&tokenizer, &[], &ids).concat(), whole.clone());
            // After any prompt that ends with a character, the two parts are the whole.
            let (before, after) = ids.split_at(cut.min(ids.len()));
            let said = tokenizer.decode(before).unwrap();
            if !said.is_empty() && !said.ends_with('\u{fffd}') {
                prop_assert_eq!(said + &pieces(&tokenizer, before, after).concat(), whole);
            }
        }
    }
}
