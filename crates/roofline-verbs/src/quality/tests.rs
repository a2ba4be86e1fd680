use std::{fs, sync::Arc};

use roofline_core::{
    Format, Model, Plan,
    recommend::{Outcome, Quality},
};
use serde_json::{Map, Value, json};

use super::*;
use crate::{
    context::Home,
    note::Nobody,
    quantize,
    recommend::{self, ModelAdvice},
    request::{answers_fit, from_json},
};

/// A folder of this test, with a model in it and a home.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("roofline-quality-{name}-{}", std::process::id()));
        let place = Self(folder);
        write(&place.model(), 1, &[0, 1]);
        place
    }

    fn model(&self) -> PathBuf {
        self.0.join("model")
    }

    fn context(&self) -> Context {
        Context::local(Arc::new(Home::at(self.0.join("home"))), Arc::new(Nobody))
    }

    fn fingerprint(&self) -> String {
        fingerprint(&Checkpoint::open(&self.model()).unwrap()).unwrap()
    }

    /// The advice for one more token on an H100.
    fn advice(&self, more: &Value) -> ModelAdvice {
        let mut body = json!({ "subject": "model", "model": self.model(), "on": "h100_sxm", "context": 64 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = recommend::recommend(&self.context(), &from_json(body).unwrap()).unwrap();
        answers_fit(&answer);
        let recommend::Answer::Model(advice) = answer else { panic!("no model") };
        *advice
    }

    fn quality(&self, plan: &str) -> Quality {
        outcome(&self.advice(&json!({})), plan).candidate.losses.quality.clone()
    }

    /// What an evaluation of a plan would have found: a rise from 10 to `after`, to a percent.
    fn found(&self, plan: &str, after: f64) -> Measured {
        let anatomy = model(&self.model()).anatomy;
        Measured {
            fingerprint: self.fingerprint(),
            signature: plan.parse::<Plan>().unwrap().signature(&anatomy).unwrap(),
            plan: Some(plan.to_owned()),
            method: Some("rtn".to_owned()),
            cache: None,
            before: 10.0,
            after,
            low: after / 10.0 - 1.01,
            high: after / 10.0 - 0.99,
            kl_divergence: Some(0.1),
            top1_agreement: Some(0.9),
            tokens: 1000,
            text: "/home/somebody/book.txt".to_owned(),
            date: "2026-01-31".to_owned(),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn outcome<'a>(advice: &'a ModelAdvice, plan: &str) -> &'a Outcome {
    let all = &advice.recommendation.outcomes;
    all.iter().find(|outcome| outcome.candidate.plan.to_string() == plan).unwrap_or_else(|| panic!("no {plan}"))
}

fn model(path: &Path) -> Model {
    let checkpoint = Checkpoint::open(path).unwrap();
    Model::from_config(&checkpoint.config.to_string(), "model").unwrap()
}

/// A Llama of three layers with a tied head, of numbers from `seed`; `files` says in which of the shards a tensor lies, one
/// after the other.
fn write(folder: &Path, seed: u64, files: &[usize]) {
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../roofline-engine/tests/data/llama");
    fs::create_dir_all(folder).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(tokenizer.join(name), folder.join(name)).unwrap();
    }
    let (hidden, inner, words, layers) = (256, 512, 131, 3);
    let config = json!({ "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": words, "tie_word_embeddings": true, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128, "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2 });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![words, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    for layer in 0..layers {
        let parts = [
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![hidden, hidden]),
            ("self_attn.k_proj", vec![hidden / 2, hidden]),
            ("self_attn.v_proj", vec![hidden / 2, hidden]),
            ("self_attn.o_proj", vec![hidden, hidden]),
            ("mlp.gate_proj", vec![inner, hidden]),
            ("mlp.up_proj", vec![inner, hidden]),
            ("mlp.down_proj", vec![hidden, inner]),
        ];
        tensors.extend(parts.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape)));
    }
    let count = files.iter().max().unwrap() + 1;
    let mut shards = vec![(Map::new(), Vec::new()); count];
    let mut index = Map::new();
    for (at, (name, shape)) in tensors.iter().enumerate() {
        let file = files[at % files.len()];
        let (header, data) = &mut shards[file];
        let start = data.len();
        for number in 0..shape.iter().product::<usize>() {
            let hash = fnv1a(format!("{seed} {name} {number}").as_bytes());
            let value = (hash >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
            data.extend(((value.to_bits() >> 16) as u16).to_le_bytes());
        }
        header.insert(name.clone(), json!({ "dtype": "BF16", "shape": shape, "data_offsets": [start, data.len()] }));
        index.insert(name.clone(), format!("model-{}-of-{count}.safetensors", file + 1).into());
    }
    for (at, (header, data)) in shards.into_iter().enumerate() {
        let header = Value::Object(header).to_string();
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
        let name = match count {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{}-of-{count}.safetensors", at + 1),
        };
        fs::write(folder.join(name), file).unwrap();
    }
    if count > 1 {
        fs::write(folder.join("model.safetensors.index.json"), json!({ "weight_map": index }).to_string()).unwrap();
    }
}

/// The same weights are the same wherever they lie; others of the same shapes are not.
#[test]
fn a_fingerprint_is_of_the_weights() {
    let place = Place::new("fingerprint");
    let (single, other) = (place.0.join("single"), place.0.join("other"));
    write(&single, 1, &[0]);
    write(&other, 2, &[0]);
    let of = |path: &Path| fingerprint(&Checkpoint::open(path).unwrap()).unwrap();
    assert_eq!(place.fingerprint(), of(&single));
    assert_ne!(place.fingerprint(), of(&other));
}

/// What `quantize` makes of a plan has the plan's signature, in every layout that stores just that.
#[test]
fn checkpoints_have_the_signature_of_their_plan() {
    let place = Place::new("signature");
    let anatomy = model(&place.model()).anatomy;
    let plans =
        ["w4a16", "w8a16", "int8", "fp8", "fp8a16", "nvfp4a16", "q8_0", "q4_0", "q4_k_m", "w4a16,layers.0=bf16"];
    for plan in plans {
        let gguf = plan.starts_with('q');
        let to = place.0.join(format!("made{}", if gguf { ".gguf" } else { "" }));
        let body = json!({ "model": place.model(), "plan": plan, "to": to, "force": true, "threads": 2 });
        quantize::quantize(&place.context(), &from_json(body).unwrap()).unwrap();
        let checkpoint = Checkpoint::open(&to).unwrap();
        let expected = plan.parse::<Plan>().unwrap().signature(&anatomy).unwrap();
        assert_eq!(signature(&checkpoint, &model(&to)).unwrap(), expected, "{plan}");
    }
    let own = Checkpoint::open(&place.model()).unwrap();
    assert_eq!(Some(signature(&own, &model(&place.model())).unwrap()), Plan::sixteen().signature(&anatomy));
}

/// A record changes what a loss is, and what is chosen; another model's changes nothing.
#[test]
fn what_is_kept_is_what_advice_rests_on() {
    let place = Place::new("advice");
    let wish = json!({ "max_quality_loss": "5%", "goal": "memory", "allow": "bf16,w4a16", "explain": true });
    let before = place.advice(&wish);
    assert!(matches!(place.quality("w4a16"), Quality::Estimated(_)));
    let chosen = before.recommendation.plan.clone().unwrap().to_string();
    keep(&place.context(), &Measured { fingerprint: "0".repeat(16), ..place.found("w4a16", 10.01) }).unwrap();
    assert!(matches!(place.quality("w4a16"), Quality::Estimated(_)), "another model's");
    let path = keep(&place.context(), &place.found("w4a16", 10.01)).unwrap();
    let Quality::Measured { change, high, text, .. } = place.quality("w4a16") else { panic!("not measured") };
    assert!((change - 0.001).abs() < 1e-9 && (high - 0.011).abs() < 1e-9);
    assert_eq!(text, "book.txt", "no path is kept");
    assert_eq!(outcome(&place.advice(&json!({})), "w4a16").loss(), Some(high), "the worst is the interval's end");
    // Within 5 % four bits may be chosen now, and were not before; the plan counts with each of three caches.
    let after = place.advice(&wish);
    let told = after.explanation.unwrap().join("\n");
    assert_eq!(chosen, "bf16");
    assert_eq!(after.recommendation.plan.unwrap().to_string(), "w4a16");
    assert!(told.contains("+0.1 % measured") && told.contains("3 measured on these weights"), "{told}");
    // The same measured again replaces it.
    assert_eq!(keep(&place.context(), &place.found("w4a16", 12.0)).unwrap(), path);
    assert!(matches!(place.quality("w4a16"), Quality::Measured { change, .. } if (change - 0.2).abs() < 1e-9));
}

/// Of several methods, what the advised one gives counts, whatever another would.
#[test]
fn the_method_that_is_advised_counts_first() {
    let place = Place::new("method");
    let advised = outcome(&place.advice(&json!({})), "w4a16").candidate.algorithm;
    let by = |method: &str, after: f64| Measured { method: Some(method.to_owned()), ..place.found("w4a16", after) };
    keep(&place.context(), &Measured { tokens: 9000, ..by("gptq", 10.1) }).unwrap();
    assert!(matches!(place.quality("w4a16"), Quality::Measured { method: Some(method), .. } if method == "gptq"));
    keep(&place.context(), &by(advised, 10.5)).unwrap();
    assert!(matches!(place.quality("w4a16"), Quality::Measured { change, .. } if (change - 0.05).abs() < 1e-9));
}

/// What one format was measured to cost says what others will: a coefficient of the model's own in place of all models'.
#[test]
fn what_was_measured_narrows_what_is_estimated() {
    let place = Place::new("coefficient");
    let range = |quality: Quality| match quality {
        Quality::Estimated(change) => (change.low, change.high),
        other => panic!("{other:?}"),
    };
    let before = range(place.quality("int4-g32"));
    // INT4 in groups of 128 has t = 0.111: a factor of 30, far above all models'.
    let sharp = Measured { low: 0.44, high: 0.46, ..place.found("w4a16", 14.5) };
    keep(&place.context(), &sharp).unwrap();
    let after = range(place.quality("int4-g32"));
    assert!(after.0 > before.1, "{before:?} {after:?}");
    // Of noise nothing is learned.
    keep(&place.context(), &Measured { low: -0.01, ..sharp }).unwrap();
    assert_eq!(range(place.quality("int4-g32")), before);
}

/// A cache is told apart where the weights were measured without it, and counted in where not.
#[test]
fn caches_are_kept_apart() {
    let place = Place::new("cache");
    let losses = |plan: &str| outcome(&place.advice(&json!({})), plan).candidate.losses.clone();
    let narrow = |plan: &str, after: f64| Measured { cache: Some(Format::FP8), ..place.found(plan, after) };
    keep(&place.context(), &narrow("bf16", 10.2)).unwrap();
    let plain = losses("bf16,kv=fp8-e4m3");
    assert_eq!(plain.quality, Quality::Exact);
    assert!(matches!(plain.cache_quality, Some(Quality::Measured { change, .. }) if (change - 0.02).abs() < 1e-9));
    // What it costs beside 16 bit stands for other weights, until they are measured.
    let other = losses("fp8,kv=fp8-e4m3");
    assert!(matches!(other.cache_quality, Some(Quality::Measured { change, .. }) if (change - 0.02).abs() < 1e-9));
    keep(&place.context(), &narrow("fp8", 10.5)).unwrap();
    let both = losses("fp8,kv=fp8-e4m3");
    assert!(matches!(both.quality, Quality::Measured { cache: Some(Format::FP8), .. }) && both.cache_quality.is_none());
    assert!((both.worst.unwrap() - 0.06).abs() < 1e-9);
    keep(&place.context(), &place.found("fp8", 10.3)).unwrap();
    let both = losses("fp8,kv=fp8-e4m3");
    let Some(Quality::Measured { change, .. }) = both.cache_quality else { panic!("not apart") };
    assert!((change - (1.05 / 1.03 - 1.0)).abs() < 1e-9);
    assert!(matches!(both.quality, Quality::Measured { cache: None, .. }));
}

/// A broken record is said and left out, and takes no other with it.
#[test]
fn broken_records() {
    let place = Place::new("broken");
    let path = keep(&place.context(), &place.found("w4a16", 10.3)).unwrap();
    keep(&place.context(), &place.found("q4_k_m", 10.2)).unwrap();
    let whole = fs::read_to_string(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let context = place.context();
    let known = known(&context, &place.fingerprint());
    assert_eq!(known.iter().map(|found| found.plan.as_deref()).collect::<Vec<_>>(), [Some("q4_k_m")]);
    let notes = context.notes();
    assert!(
        notes.len() == 1 && notes[0].text.starts_with("left out") && notes[0].text.contains("quality"),
        "{notes:?}"
    );
    assert!(matches!(place.quality("w4a16"), Quality::Estimated(_)));
    // JSON that says what no evaluation finds.
    fs::write(&path, whole.replace("\"after\": 10.3", "\"after\": -1.0")).unwrap();
    let context = place.context();
    assert_eq!(super::known(&context, &place.fingerprint()).len(), 1);
    assert!(context.notes()[0].text.contains("none that an evaluation finds"));
}

/// Somebody elsewhere names no folder, and hears of no file of ours.
#[test]
fn callers_elsewhere_see_nothing_of_it() {
    let place = Place::new("remote");
    let path = keep(&place.context(), &place.found("w4a16", 10.3)).unwrap();
    fs::write(&path, "{").unwrap();
    let remote = Context::remote(Arc::new(Home::at(place.0.join("home"))));
    assert!(known(&remote, &place.fingerprint()).is_empty() && remote.notes().is_empty());
    let body = json!({ "subject": "model", "model": place.model(), "on": "h100_sxm" });
    assert!(matches!(recommend::recommend(&remote, &from_json(body).unwrap()), Err(Error::Path { .. })));
}
