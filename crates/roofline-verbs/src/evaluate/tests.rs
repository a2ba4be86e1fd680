use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::json;

use super::*;
use crate::{
    Watcher,
    context::Home,
    note::Nobody,
    request::{answers_fit, from_json},
};

/// A Llama of 131 tokens with a tokenizer of its own, made for 128 tokens.
fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../roofline-engine/tests/data/llama")
}

fn context() -> Context {
    Context::local(Arc::new(Home::none()), Arc::new(Nobody))
}

/// A folder that is removed when it is done with.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("roofline-evaluate-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Words that the tokenizer of the fixtures knows.
    fn text(&self) -> PathBuf {
        let words: String = (0..60).map(|at| format!("the cat number {at} sat on the mat.\n")).collect();
        self.file("text.txt", words)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn ask(fields: &serde_json::Value) -> Result<Answer> {
    let mut body = json!({ "model": model(), "threads": 1, "window": 64 });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    evaluate(&context(), &from_json(body).unwrap())
}

fn refused(fields: &serde_json::Value) -> (String, String) {
    let error = ask(fields).err().unwrap();
    assert!(error.is_input(), "{error:?}");
    (error.to_string(), error.hint().unwrap_or_default())
}

#[test]
fn a_model_alone() {
    let scratch = Scratch::new("alone");
    let told = ask(&json!({ "text": scratch.text() })).unwrap();
    answers_fit(&told);
    let own = &told.evaluated;
    // Random weights know nothing: about as many tokens are possible as there are.
    assert!((100.0..200.0).contains(&own.perplexity), "{}", own.perplexity);
    assert!(own.perplexity_low.unwrap() < own.perplexity && own.perplexity < own.perplexity_high.unwrap());
    assert_eq!((told.window, told.stride, told.bos), (64, 32, Some(1)));
    assert_eq!(told.windows, (told.text.tokens - 64) / 32 + 1);
    assert_eq!(own.tokens, 63 + (told.windows - 1) * 32);
    assert!(own.llama_cpp_perplexity.is_some() && own.kl_divergence.is_none() && told.original.is_none());
    let other = ask(&json!({ "text": scratch.text(), "stride": 16 })).unwrap();
    assert!(other.evaluated.llama_cpp_perplexity.is_none());
    assert_eq!(other.evaluated.positions.iter().map(|part| part.tokens).sum::<usize>(), other.evaluated.tokens);
}
