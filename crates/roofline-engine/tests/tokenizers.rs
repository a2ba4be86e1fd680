//! Small tokenizers of every family, and what `transformers` makes of texts and chats with them.

#![expect(clippy::unwrap_used, reason = "a fixture that is not as it was made fails the test")]

use std::{fs, path::Path};

use roofline_engine::{Chat, Message, NamedFile, Tokenizer};
use serde_json::Value;

/// The files of each tokenizer, and what is expected of it.
fn fixtures() -> Vec<(String, Vec<NamedFile>, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizers");
    let mut all = Vec::new();
    for entry in fs::read_dir(&folder).expect("the fixtures are there") {
        let folder = entry.unwrap().path();
        let read = |name: &str| {
            fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{} {name}: {error}", folder.display()))
        };
        let files = ["tokenizer.json", "tokenizer_config.json"].map(|name| (name.to_owned(), read(name)));
        let expected = serde_json::from_slice(&read("tokenizer_expected.json")).unwrap();
        all.push((folder.file_name().unwrap().to_string_lossy().into_owned(), files.to_vec(), expected));
    }
    assert!(all.len() >= 7, "Llama 2 and 3, Mistral, Qwen2, SmolLM2, Gemma, gpt-oss");
    all
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

#[test]
fn texts_become_the_same_tokens_and_come_back() {
    for (family, files, expected) in fixtures() {
        let tokenizer = Tokenizer::from_files(&files).unwrap().unwrap();
        for case in expected["texts"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let tokens = tokenizer.encode(text, true).unwrap();
            assert_eq!(tokens, ids(&case["ids"]), "{family}: {text:?}");
            assert_eq!(tokenizer.encode(text, false).unwrap(), ids(&case["ids_without_special"]), "{family}: {text:?}");
            assert_eq!(tokenizer.decode(&tokens).unwrap(), case["decoded"], "{family}: {text:?}");
            let mut stream = tokenizer.stream(&[]);
            let mut streamed: String = tokens.iter().map(|&token| stream.push(token).unwrap()).collect();
            streamed += &stream.finish().unwrap();
            assert_eq!(streamed, case["decoded"], "{family}: {text:?}");
        }
    }
}

#[test]
fn chats_become_the_same_text_and_tokens() {
    for (family, files, expected) in fixtures() {
        let tokenizer = Tokenizer::from_files(&files).unwrap().unwrap();
        let chat = Chat::from_files(&files).unwrap().unwrap();
        for case in expected["chats"].as_array().unwrap() {
            let word = |message: &Value, key: &str| message[key].as_str().unwrap().to_owned();
            let messages = case["messages"].as_array().unwrap().iter();
            let messages: Vec<_> = messages
                .map(|message| Message { role: word(message, "role"), content: word(message, "content") })
                .collect();
            let text = chat.render(&messages, case["add_generation_prompt"].as_bool().unwrap()).unwrap();
            assert_eq!(text, case["text"], "{family}");
            assert_eq!(tokenizer.encode(&text, false).unwrap(), ids(&case["ids"]), "{family}");
        }
    }
}
