use std::{fs, path::Path, sync::Arc};

use serde_json::json;

use super::*;
use crate::{
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
        let words: Vec<String> = (0..60).map(|at| format!("the cat number {at} sat on the mat.\n")).collect();
        self.file("text.txt", words.concat())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn ask(fields: &serde_json::Value) -> Result<Answer> {
    let mut body = json!({ "model": model(), "threads": 1, "window": 64, "backend": "cpu" });
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
    // The weights are random, and sure of what they say. transformers finds 3534.8 in BF16 with the same windows, and
    // 3517.297 in FP32, where there is little to round differently; of llama.cpp's tokens 3791.548.
    assert!((own.perplexity / 3534.8 - 1.0).abs() < 0.02, "{}", own.perplexity);
    let exact = ask(&json!({ "text": scratch.text(), "values": "fp32" })).unwrap().evaluated;
    assert!((exact.perplexity / 3517.297 - 1.0).abs() < 1e-4, "{}", exact.perplexity);
    assert!((exact.llama_cpp_perplexity.unwrap() / 3791.548 - 1.0).abs() < 1e-4, "{exact:?}");
    assert_eq!((exact.tokens, told.text.tokens), (1535, 1551));
    assert!(own.perplexity_low.unwrap() < own.perplexity && own.perplexity < own.perplexity_high.unwrap());
    assert_eq!((told.window, told.stride, told.bos), (64, 32, Some(1)));
    assert_eq!(told.windows, (told.text.tokens - 64) / 32 + 1);
    assert_eq!(own.tokens, 63 + (told.windows - 1) * 32);
    assert!(own.llama_cpp_perplexity.is_some() && own.kl_divergence.is_none() && told.original.is_none());
    let other = ask(&json!({ "text": scratch.text(), "stride": 16 })).unwrap();
    assert!(other.evaluated.llama_cpp_perplexity.is_none());
    assert_eq!(other.evaluated.positions.iter().map(|part| part.tokens).sum::<usize>(), other.evaluated.tokens);
}

/// Eight bits lose little and not nothing; the original's own figures are those that it has alone.
#[test]
fn a_model_against_its_original() {
    let scratch = Scratch::new("against");
    let text = scratch.text();
    let quantized = scratch.0.join("w8a16");
    let asked = json!({ "model": model(), "plan": "w8a16", "to": quantized, "threads": 1 });
    crate::quantize::quantize(&context(), &from_json(asked).unwrap()).unwrap();
    let told = ask(&json!({ "model": quantized, "against": model(), "text": text })).unwrap();
    answers_fit(&told);
    let own = &told.evaluated;
    let original = told.original.as_deref().unwrap();
    let alone = ask(&json!({ "text": text })).unwrap();
    assert_eq!(original.perplexity, alone.evaluated.perplexity);
    assert_eq!(original.llama_cpp_perplexity, alone.evaluated.llama_cpp_perplexity);
    assert!((own.ratio.unwrap() - own.perplexity / original.perplexity).abs() < 1e-12);
    assert!((0.98..1.02).contains(&own.ratio.unwrap()) && own.ratio_low < own.ratio && own.ratio < own.ratio_high);
    let kl = own.kl_divergence.unwrap();
    assert!(kl > 0.0 && kl < 0.05, "{kl}");
    assert!(own.kl_divergence_p99.unwrap() > kl && own.kl_divergence_max >= own.kl_divergence_p99);
    assert!((0.5..1.0).contains(&own.top1_agreement.unwrap()), "{:?}", own.top1_agreement);
    // Every layer's output has some noise, and none as much as signal.
    assert_eq!(own.layers.len(), 3);
    assert!(own.layers.iter().all(|layer| (20.0..70.0).contains(&layer.snr_db.unwrap())), "{:?}", own.layers);
    // Three layers of seven matrices in 8 bit; embedding and head as they were.
    assert_eq!(own.weights.len(), 23);
    let (coded, kept): (Vec<_>, Vec<_>) = own.weights.iter().partition(|weight| weight.bits_per_weight < 12.0);
    assert_eq!((coded.len(), kept.len()), (21, 2));
    assert!(coded.iter().all(|weight| (30.0..60.0).contains(&weight.snr_db.unwrap())));
    assert!(kept.iter().all(|weight| weight.snr_db.is_none() && weight.relative_error == 0.0));
    assert_eq!(own.worst.len(), 10);
    assert!(own.worst.windows(2).all(|pair| pair[0].kl_divergence >= pair[1].kl_divergence));
    assert_eq!(own.worst[0].kl_divergence, own.kl_divergence_max.unwrap());
    // A model against itself has lost nothing.
    let same = ask(&json!({ "against": model(), "text": text })).unwrap().evaluated;
    assert_eq!((same.ratio, same.kl_divergence, same.top1_agreement), (Some(1.0), Some(0.0), Some(1.0)));
    assert!(same.layers.iter().all(|layer| layer.snr_db.is_none()));
}

/// The card of what was quantized tells what was found, once, and keeps what it said before.
#[test]
fn a_card_tells_what_was_found() {
    let scratch = Scratch::new("card");
    let (text, quantized) = (scratch.text(), scratch.0.join("w8a16"));
    let asked = json!({ "model": model(), "plan": "w8a16", "to": quantized, "threads": 1 });
    crate::quantize::quantize(&context(), &from_json(asked).unwrap()).unwrap();
    let path = quantized.join("README.md");
    let before = fs::read_to_string(&path).unwrap();
    let asked = json!({ "model": quantized, "against": model(), "text": text, "tokens": 300, "card": true });
    let told = ask(&asked).unwrap();
    assert!(told.notes.iter().any(|note| note.text.contains("README.md")), "{:?}", told.notes);
    let after = fs::read_to_string(&path).unwrap();
    assert!(after.starts_with(before.trim_end()));
    let own = &told.evaluated;
    for figure in [format!("{:.3}", own.perplexity), format!("{:.5}", own.kl_divergence.unwrap()), told.text.hash] {
        assert!(after.contains(&figure), "{figure}: {after}");
    }
    ask(&asked).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), after);
    // There is nothing to tell without an original, and no card beside a single file.
    let (said, hint) = refused(&json!({ "text": text, "card": true }));
    assert!(said.contains("nothing that it is held against") && hint.contains("against"), "{said} {hint}");
    let file = quantized.join("model.safetensors");
    let (said, _) = refused(&json!({ "model": file, "against": model(), "text": text, "card": true }));
    assert!(said.contains("is a file"), "{said}");
}

/// Fewer bits lose more. What a plan cannot be is said and left out; the model's own figures stand at the top.
#[test]
fn plans_are_tried_and_nothing_is_left_behind() {
    let scratch = Scratch::new("plans");
    let asked =
        json!({ "text": scratch.text(), "plan": "w8a16,int8/int8,q4_0,q8_0", "method": "rtn,mse", "tokens": 300 });
    let told = ask(&asked).unwrap();
    answers_fit(&told);
    let alone = ask(&json!({ "text": scratch.text(), "tokens": 300 })).unwrap();
    assert_eq!(told.evaluated.perplexity, alone.evaluated.perplexity);
    assert!(told.original.is_none() && told.evaluated.kl_divergence.is_none());
    let names: Vec<_> =
        told.plans.iter().map(|one| (one.plan.as_deref().unwrap(), one.method.as_deref().unwrap())).collect();
    assert!(names.contains(&("w8a16", "rtn")) && names.contains(&("w8a16", "mse")), "{names:?}");
    assert!(told.plans.iter().all(|one| one.stored == Some(true) && one.checkpoint.is_none()));
    let error = ask(&json!({ "text": scratch.text(), "plan": "w8a16", "method": "hqq" })).err().unwrap();
    assert!(error.to_string().contains("hqq"), "{error}");
    let left = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let own = format!("roofline-evaluate-{}-", std::process::id());
    assert!(!left.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(&own)));
}

#[test]
fn what_cannot_be_is_said() {
    let scratch = Scratch::new("refused");
    let text = scratch.text();
    let (said, hint) = refused(&json!({}));
    assert_eq!(said, "there is no text to predict");
    assert!(hint.contains("⟨text FILE⟩"), "{hint}");
    let (said, _) = refused(&json!({ "text": scratch.file("empty.txt", "") }));
    assert_eq!(said, "empty.txt is empty");
    let (said, _) = refused(&json!({ "text": scratch.file("latin.txt", b"sil\xe9") }));
    assert!(said.ends_with("latin.txt is no UTF-8 text: byte 3 is 0xe9"), "{said}");
    let (said, hint) = refused(&json!({ "text": scratch.file("short.txt", "the cat") }));
    assert_eq!(said, "short.txt has 6 tokens, and a window 64");
    assert_eq!(hint, "give a longer text, or say `⟨window 4⟩`");
    ask(&json!({ "text": scratch.file("short.txt", "the cat"), "window": 4 })).unwrap();
    let (said, _) = refused(&json!({ "text": text, "tokens": 30 }));
    assert_eq!(said, "text.txt has 30 tokens, and a window 64");
    let (said, _) = refused(&json!({ "text": text, "stride": 65 }));
    assert_eq!(said, "a stride of 65 leaves gaps between windows of 64");
    let (said, _) = refused(&json!({ "text": text, "window": 1 }));
    assert_eq!(said, "a window of 1 token predicts nothing");
    let (said, _) = refused(&json!({ "text": text, "window": 129 }));
    assert_eq!(said, "129 tokens do not fit the 128 that llama was made for");
    let (said, _) = refused(&json!({ "text": scratch.0 }));
    assert!(said.ends_with("is no regular file"), "{said}");
    let page = scratch.file("page.html", "");
    let (said, hint) = refused(&json!({ "text": text, "html": page }));
    assert!(said.ends_with("page.html is there already") && hint.contains("⟨force⟩"), "{said}");
    let missing = ask(&json!({ "text": scratch.0.join("nowhere.txt") })).err().unwrap();
    assert!(missing.to_string().contains("nowhere.txt") && !missing.is_input());
    // Over HTTP nobody names a file.
    let asked = from_json(json!({ "model": model(), "text": text })).unwrap();
    assert!(matches!(evaluate(&Context::pure(), &asked), Err(Error::Path { what: "model", .. })));
}

/// A copy of the fixture whose files may be changed.
fn copy(scratch: &Scratch, name: &str) -> PathBuf {
    let folder = scratch.0.join(name);
    fs::create_dir_all(&folder).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(model().join(file), folder.join(file)).unwrap();
    }
    folder
}

#[test]
fn models_must_speak_of_the_same_tokens() {
    let scratch = Scratch::new("tokenizers");
    let text = scratch.text();
    let mute = copy(&scratch, "mute");
    fs::remove_file(mute.join("tokenizer.json")).unwrap();
    let (said, _) = refused(&json!({ "model": mute, "text": text }));
    assert_eq!(said, "mute has no tokenizer: there is no tokenizer.json");
    // The original's will do.
    ask(&json!({ "model": mute, "against": model(), "text": text, "tokens": 100 })).unwrap();
    let other = copy(&scratch, "other");
    let file = fs::read_to_string(other.join("tokenizer.json")).unwrap();
    let mut tokenizer: serde_json::Value = serde_json::from_str(&file).unwrap();
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let swapped: Vec<String> = ["x", "y"].map(str::to_owned).to_vec();
    let ids: Vec<_> = swapped.iter().map(|token| vocabulary[token].clone()).collect();
    vocabulary.insert(swapped[0].clone(), ids[1].clone());
    vocabulary.insert(swapped[1].clone(), ids[0].clone());
    fs::write(other.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let (said, hint) = refused(&json!({ "model": other, "against": model(), "text": text }));
    let first = ids.iter().filter_map(serde_json::Value::as_u64).min().unwrap();
    assert!(said.starts_with(&format!("other and llama have different tokenizers: token {first} is \"")), "{said}");
    assert_eq!(hint, "evaluate a model against the one that it was made of");
    let narrow = copy(&scratch, "narrow");
    let config =
        fs::read_to_string(narrow.join("config.json")).unwrap().replace("\"vocab_size\": 131", "\"vocab_size\": 140");
    fs::write(narrow.join("config.json"), config).unwrap();
    let (said, _) = refused(&json!({ "model": narrow, "against": model(), "text": text }));
    assert_eq!(said, "narrow knows 140 tokens, and llama 131: they cannot be compared");
}
