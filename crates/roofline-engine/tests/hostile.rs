//! Configurations and files that contradict each other: an error that says what, never a panic.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::{fs, path::PathBuf};

use common::Fixture;
use roofline_core::Format;
use roofline_engine::{Engine, Error, Result, Settings, Wanted};
use roofline_quant::Checkpoint;
use serde_json::{Value, json};

/// A copy of a small model that may be changed.
struct Copy(PathBuf);

impl Copy {
    fn of(family: &str, name: &str) -> Self {
        let from = Fixture::open(family).folder;
        let to = std::env::temp_dir().join(format!("roofline-engine-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&to);
        fs::create_dir_all(&to).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(from.join(file), to.join(file)).unwrap();
        }
        Self(to)
    }

    fn config(&self) -> Value {
        serde_json::from_slice(&fs::read(self.0.join("config.json")).unwrap()).unwrap()
    }

    fn set_config(&self, config: &Value) {
        fs::write(self.0.join("config.json"), config.to_string()).unwrap();
    }

    /// Loads it and runs a few tokens, many and one at a time.
    fn run(&self) -> Result<Vec<f32>> {
        let checkpoint = Checkpoint::open(&self.0)?;
        let settings = Settings { threads: 1, chunk: Some(16), ..Settings::with(Format::FP32) };
        let engine = Engine::load(&checkpoint, settings, &mut |_, _| Ok(()))?;
        let mut session = engine.session(1, 20)?;
        session.feed(0..1, &[(0..18).collect()], Wanted::Last)?;
        session.feed(0..1, &[vec![5]], Wanted::Last)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Every number and switch of a configuration, changed to others. Most contradict the weights; a few change what is computed,
/// or nothing.
#[test]
fn contradictory_configurations_are_errors() {
    let (mut refused, mut ran) = (0, 0);
    for family in ["llama", "qwen3-moe", "gemma2", "gpt-oss-mxfp4", "phi3-longrope", "phi"] {
        let copy = Copy::of(family, &format!("contradictory-{family}"));
        let config = copy.config();
        for (key, value) in config.as_object().unwrap() {
            let others: Vec<Value> = match value {
                Value::Number(number) => {
                    let number = number.as_f64().unwrap();
                    let near = [0.0, 1.0, 2.0, 3.0, 7.0, 300.0, number + 1.0, number * 2.0, number / 2.0];
                    near.iter().map(|one| if one.fract() == 0.0 { json!(*one as u64) } else { json!(one) }).collect()
                }
                Value::Bool(yes) => vec![json!(!yes)],
                Value::String(_) => vec![json!("gelu"), json!("llama"), json!("phi3"), json!(""), json!(3)],
                Value::Null => vec![json!(2), json!({})],
                Value::Array(list) => vec![json!([]), json!(&list[..list.len().saturating_sub(1)])],
                Value::Object(_) => {
                    vec![json!({}), json!(null), json!({"rope_type": "yarn"}), json!({"rope_type": "su"})]
                }
            };
            for other in others.into_iter().chain([json!(-1), json!([1]), json!("x")]) {
                let mut changed = config.clone();
                changed[key] = other.clone();
                copy.set_config(&changed);
                match copy.run() {
                    Ok(_) => ran += 1,
                    Err(error) => {
                        assert!(!error.to_string().is_empty(), "{family} with {key} = {other}");
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(refused > 300 && ran > 100, "{refused} were refused and {ran} ran");
}

#[test]
fn what_is_wrong_is_named() {
    let why = |copy: &Copy| copy.run().unwrap_err();
    let copy = Copy::of("llama", "named");
    assert_eq!(copy.run().unwrap().len(), 131);
    let config = copy.config();
    let with = |key: &str, value: Value| {
        let mut changed = config.clone();
        changed[key] = value;
        copy.set_config(&changed);
        copy.run()
    };
    let said = with("intermediate_size", json!(64)).unwrap_err().to_string();
    assert!(said.contains("gate_up_proj") && said.contains("128"), "{said}");
    let said = with("hidden_act", json!("relu2")).unwrap_err().to_string();
    assert!(said.contains("`relu2`"), "{said}");
    // The same shapes, and other arithmetic: predicted, but not run as if it were Llama's.
    let said = with("model_type", json!("granite")).unwrap_err().to_string();
    assert!(said.contains("constants of its own"), "{said}");
    let said = with("rope_scaling", json!({"rope_type": "dynamic", "factor": 2.0})).unwrap_err().to_string();
    assert!(said.contains("dynamic"), "{said}");
    let said = with("num_hidden_layers", json!(9)).unwrap_err().to_string();
    assert!(said.contains("layers.3.") && said.contains("the checkpoint has no tensor"), "{said}");
    let said = with("max_position_embeddings", json!(8)).unwrap_err();
    assert!(matches!(said, Error::Context { asked: 20, .. }) && said.to_string().contains("the 8 that"), "{said}");
    let said = with("vocab_size", json!(100_000)).unwrap_err().to_string();
    assert!(said.contains("131") && said.contains("100000"), "{said}");
    copy.set_config(&json!({"model_type": "mamba", "hidden_size": 64}));
    assert!(why(&copy).to_string().contains("unknown architecture `mamba`"));
    copy.set_config(&config);
    let weights = copy.0.join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    for length in [0, 7, 100, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&weights, &bytes[..length]).unwrap();
        assert!(matches!(why(&copy), Error::Checkpoint(_)), "cut to {length}");
    }
}

/// More tokens than the cache has room for, tokens that do not exist, and an order to stop.
#[test]
fn limits_of_a_session() {
    let fixture = Fixture::open("llama");
    let load = |settings| Engine::load(&fixture.checkpoint, settings, &mut |_, _| Ok(()));
    let engine = load(Settings { threads: 1, ..Settings::with(Format::FP32) }).unwrap();
    let mut session = engine.session(1, 8).unwrap();
    session.feed(0..1, &[vec![1, 2, 3, 4, 5, 6]], Wanted::Last).unwrap();
    let said = session.feed(0..1, &[vec![1, 2, 3]], Wanted::Last).unwrap_err().to_string();
    assert_eq!(said, "9 tokens do not fit the cache's 8");
    let said = session.feed(0..1, &[vec![131]], Wanted::Last).unwrap_err().to_string();
    assert_eq!(said, "token 131 is beyond the model's vocabulary of 131 tokens");
    // What was refused left nothing behind.
    assert_eq!(session.lengths(), [6]);
    assert!(session.feed(0..1, &[vec![]], Wanted::Last).is_err());
    assert!(engine.session(1, usize::MAX).is_err());
    assert!(
        load(Settings { stop: std::sync::Arc::new(|| Err(Error::Stopped)), ..Settings::with(Format::FP32) })
            .unwrap()
            .session(1, 8)
            .unwrap()
            .feed(0..1, &[vec![1]], Wanted::Last)
            .is_err()
    );
    let stopped = Engine::load(&fixture.checkpoint, Settings::with(Format::FP32), &mut |_, _| Err(Error::Stopped));
    assert!(matches!(stopped.err(), Some(Error::Stopped)));
}
