use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::{Map, Value, json};

use super::*;
use crate::{
    Watcher,
    context::Home,
    inspect,
    request::{answers_fit, from_json},
};

#[derive(Default)]
struct Counts {
    size: AtomicU64,
    done: AtomicU64,
}

impl Watcher for Counts {
    fn size(&self, bytes: u64) {
        self.size.store(bytes, Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A Llama of one layer, every weight one.
fn checkpoint(folder: &Path) {
    let (hidden, inner, words) = (128, 256, 16);
    let config = json!({ "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": words, "tie_word_embeddings": false });
    let layer = |name: &str, shape: &[usize]| (format!("model.layers.0.{name}.weight"), shape.to_vec());
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![words, hidden]),
        layer("input_layernorm", &[hidden]),
        layer("post_attention_layernorm", &[hidden]),
        layer("mlp.gate_proj", &[inner, hidden]),
        layer("mlp.up_proj", &[inner, hidden]),
        layer("mlp.down_proj", &[hidden, inner]),
        ("model.norm.weight".to_owned(), vec![hidden]),
        ("lm_head.weight".to_owned(), vec![words, hidden]),
    ];
    tensors.extend(["q", "k", "v", "o"].map(|name| layer(&format!("self_attn.{name}_proj"), &[hidden, hidden])));
    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in tensors {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(name, json!({ "dtype": "BF16", "shape": shape, "data_offsets": [start, end] }));
    }
    let header = Value::Object(header).to_string();
    let data = [0x80, 0x3f].repeat(end / 2);
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    fs::write(folder.join("model.safetensors"), file).unwrap();
}

/// Previewed, written and looked at. Ones are as wrong as their scale, whose 8 bits of mantissa are off by half of the last.
#[test]
fn a_checkpoint_in_json() {
    let folder = std::env::temp_dir().join(format!("roofline-verbs-{}", std::process::id()));
    let (source, target) = (folder.join("source"), folder.join("target"));
    checkpoint(&source);
    let watcher = Arc::new(Counts::default());
    let context = Context::local(Arc::new(Home::none()), watcher.clone());
    let mut body = json!({ "model": source, "plan": "w8a16", "to": target, "dry_run": true, "threads": 1 });
    let answer = quantize(&context, &from_json(body.clone()).unwrap()).unwrap();
    answers_fit(&answer);
    assert!(matches!(answer, Answer::Previewed(_)) && !target.exists());
    body["dry_run"] = false.into();
    let answer = quantize(&context, &from_json(body.clone()).unwrap()).unwrap();
    answers_fit(&answer);
    let Answer::Written(report) = answer else { panic!("nothing is written") };
    assert!(report.weights.len() == 7 && report.relative_squared_error.sqrt() < 0.5 / 256.0);
    assert_eq!(watcher.done.load(Ordering::Relaxed), watcher.size.load(Ordering::Relaxed));
    assert!(context.notes()[0].text.ends_with("GB/s"));
    let request = from_json(json!({ "path": target })).unwrap();
    let held = inspect::inspect(&context, &request).unwrap();
    answers_fit(&held);
    assert_eq!(held.tensors.len(), 12);
    body["threads"] = 0.into();
    assert!(from_json::<Request>(body.clone()).is_err());
    // A caller elsewhere names no file of ours.
    body["threads"] = 1.into();
    assert!(matches!(quantize(&Context::pure(), &from_json(body).unwrap()), Err(Error::Path { .. })));
    assert!(matches!(inspect::inspect(&Context::pure(), &request), Err(Error::Path { .. })));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn plans_of_one_name() {
    let asked = |body| quantize(&Context::pure(), &from_json(body).unwrap());
    let answer = asked(json!({ "list": true })).unwrap();
    answers_fit(&answer);
    let Answer::Schemes(Schemes { schemes }) = answer else { panic!("no list") };
    assert!(schemes.iter().any(|scheme| scheme.name == "w4a16"));
    assert!(asked(json!({ "list": true, "plan": "w4a16" })).is_err());
    assert!(asked(json!({ "plan": "w4a16" })).is_err());
}

/// Parts and a join in JSON: each fits its schema, and the report is that of one machine.
#[test]
fn parts_in_json() {
    let folder = std::env::temp_dir().join(format!("roofline-verbs-parts-{}", std::process::id()));
    let (source, target) = (folder.join("source"), folder.join("target"));
    checkpoint(&source);
    let watcher = Arc::new(Counts::default());
    let context = Context::local(Arc::new(Home::none()), watcher.clone());
    let asked = |more: Value| {
        let mut body = json!({ "model": source, "plan": "w8a16", "to": target, "threads": 1 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        quantize(&context, &from_json(body).unwrap())
    };
    let whole = serde_json::to_value(asked(json!({})).unwrap()).unwrap();
    let mut tensors = 0;
    for part in ["1/2", "2/2"] {
        let before = watcher.done.swap(0, Ordering::Relaxed);
        assert!(before > 0);
        let answer = asked(json!({ "part": part, "force": true })).unwrap();
        answers_fit(&answer);
        let Answer::Part(report) = answer else { panic!("no part") };
        assert_eq!((report.part.as_str(), report.tensors_of_all), (part, 12));
        assert_eq!(watcher.done.load(Ordering::Relaxed), watcher.size.load(Ordering::Relaxed));
        tensors += report.tensors;
    }
    assert_eq!(tensors, 12);
    let joined = asked(json!({ "join": true, "force": true })).unwrap();
    answers_fit(&joined);
    assert_eq!(serde_json::to_value(joined).unwrap(), whole);
    let refused = |more: Value| asked(more).map(|_| ()).unwrap_err().to_string();
    assert!(refused(json!({ "part": "5/4" })).contains("`5/4`"));
    assert!(refused(json!({ "part": "1/2", "join": true })).contains("`⟨part 1/2⟩` is one"));
    assert!(refused(json!({ "part": "1/2", "dry_run": true })).contains("is a share of it"));
    assert!(refused(json!({ "part": "1/2", "verify": true, "force": true })).contains("read back when it is joined"));
    assert!(refused(json!({ "join": true, "dry_run": true })).contains("do not go together"));
    assert!(refused(json!({ "join": true, "force": true })).starts_with("no part of"));
    fs::remove_dir_all(folder).unwrap();
}
