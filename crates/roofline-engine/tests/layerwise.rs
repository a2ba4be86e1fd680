//! A text on its way through a model, layer by layer.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use common::{Fixture, deviation};
use roofline_core::{Format, Model};
use roofline_engine::{
    Engine, Layerwise, Settings, Substitution, Wanted,
    evaluation::{self, WindowScore, Windows},
};
use roofline_quant::{
    observed::{Observed, Pass, Replaced},
    rows::{InMemory, Rows},
    stored::StoredTensor,
};

/// What products of every layer were given, by the first module of each, and what left the last layer.
fn observed(fixture: &Fixture, threads: usize, folder: Option<&Path>) -> (BTreeMap<String, Vec<f32>>, Vec<f32>) {
    let settings = Settings { threads, ..Settings::with(Format::FP32) };
    let mut samples = Layerwise::new(&fixture.checkpoint, fixture.tokens.clone(), &settings).unwrap();
    if let Some(folder) = folder {
        samples = samples.offloaded(folder).unwrap();
    }
    let mut all: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for layer in 0..samples.layers() {
        let pass = Pass { layer, replaced: &Replaced::new(), moves_on: true };
        let told = samples.run(pass, &mut |seen| {
            assert_eq!(seen.values.len(), seen.tokens.len() * seen.columns);
            all.entry(seen.modules[0].clone()).or_default().extend(seen.values);
            Ok(())
        });
        told.unwrap();
    }
    let stream = samples.stream(0).unwrap();
    (all, stream)
}

/// The same as when the whole model runs at once, in every family.
#[test]
fn layers_one_by_one_are_the_model() {
    for family in ["llama", "gemma2", "mixtral", "gpt-oss", "phi3", "qwen3"] {
        let fixture = Fixture::open(family);
        let settings = Settings { threads: 2, chunk: Some(24), ..Settings::with(Format::FP32) };
        let engine = Engine::load(&fixture.checkpoint, settings, &mut |_, _| Ok(())).unwrap();
        let mut session = engine.session(1, 24).unwrap();
        session.keep_layers(1);
        session.feed(0..1, &fixture.tokens[..1], Wanted::Last).unwrap();
        let whole = session.take_layers();
        drop(session);
        let (_, stream) = observed(&fixture, 2, None);
        let error = deviation(&stream, &whole.last().unwrap().values);
        assert!(error <= 1e-6, "{family}: {error:.2e}");
    }
}

/// Whatever the number of threads, and wherever samples wait, the same bits.
#[test]
fn threads_change_nothing() {
    for family in ["llama", "mixtral"] {
        let fixture = Fixture::open(family);
        let one = observed(&fixture, 1, None);
        for threads in [2, 3, 5] {
            assert!(observed(&fixture, threads, None) == one, "{family} with {threads} threads");
        }
        assert!(observed(&fixture, 2, Some(&std::env::temp_dir())) == one, "{family} with samples on disk");
    }
}

/// Every token goes to as many experts as the model says, and an expert hears of its own.
#[test]
fn experts_see_their_own_tokens() {
    let fixture = Fixture::open("mixtral");
    let mut samples =
        Layerwise::new(&fixture.checkpoint, fixture.tokens[..1].to_vec(), &Settings::with(Format::FP32)).unwrap();
    let active = fixture.checkpoint.config["num_experts_per_tok"].as_u64().unwrap() as usize;
    let mut visits = vec![0; fixture.tokens[0].len()];
    let pass = Pass { layer: 0, replaced: &Replaced::new(), moves_on: false };
    let told = samples.run(pass, &mut |seen| {
        if let Some(expert) = seen.expert.filter(|_| seen.modules[0].ends_with("w1")) {
            assert_eq!(seen.modules[0], format!("model.layers.0.block_sparse_moe.experts.{expert}.w1"));
            assert!(seen.modules[1].ends_with("w3"));
            seen.tokens.iter().for_each(|token| visits[*token] += 1);
        }
        Ok(())
    });
    told.unwrap();
    assert!(visits.iter().all(|count| *count == active), "{visits:?}");
}

/// Numbers in the place of a layer's weights are what runs: with nothing added to the stream, it stays as it was.
#[test]
fn replaced_weights_run() {
    let fixture = Fixture::open("llama");
    let all = StoredTensor::all(&fixture.checkpoint).unwrap();
    let mut silent = Replaced::new();
    for stored in all.into_iter().filter(|stored| stored.name.starts_with("model.layers.0.")) {
        if stored.name.ends_with("o_proj.weight") || stored.name.ends_with("down_proj.weight") {
            let (name, matrix) = (stored.name.clone(), stored.into_rows().unwrap().matrix());
            silent.insert(name, Arc::new(InMemory::new(matrix, vec![0.0; matrix.rows * matrix.columns])));
        }
    }
    assert_eq!(silent.len(), 2);
    let settings = Settings::with(Format::FP32);
    let mut samples = Layerwise::new(&fixture.checkpoint, fixture.tokens[..1].to_vec(), &settings).unwrap();
    let looks = Pass { layer: 0, replaced: &Replaced::new(), moves_on: false };
    samples.run(looks, &mut |_| Ok(())).unwrap();
    let before = samples.stream(0).unwrap();
    samples.run(looks, &mut |_| Ok(())).unwrap();
    assert!(samples.stream(0).unwrap() == before, "it only looked");
    samples.run(Pass { layer: 0, replaced: &silent, moves_on: true }, &mut |_| Ok(())).unwrap();
    assert!(samples.stream(0).unwrap() == before);
    let error =
        samples.run(Pass { layer: 0, replaced: &Replaced::new(), moves_on: true }, &mut |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("reached layer 1"), "{error}");
    // The whole model runs with them as well.
    let engine = |replaced: &Replaced| {
        let settings = Settings::with(Format::FP32);
        let engine = Engine::load_replacing(&fixture.checkpoint, settings, replaced, &mut |_, _| Ok(())).unwrap();
        let mut session = engine.session(1, 24).unwrap();
        session.feed(0..1, &fixture.tokens[..1], Wanted::Last).unwrap()
    };
    assert!(deviation(&engine(&silent), &engine(&Replaced::new())) > 1e-3);
    let unknown = Replaced::from([("model.nothing".to_owned(), silent.values().next().unwrap().clone())]);
    let settings = Settings::with(Format::FP32);
    assert!(Engine::load_replacing(&fixture.checkpoint, settings, &unknown, &mut |_, _| Ok(())).is_err());
}

/// Every tensor whose name ends so, with its numbers rounded to quarters.
fn rounded(fixture: &Fixture, end: &str) -> Replaced {
    let all = StoredTensor::all(&fixture.checkpoint).unwrap();
    let wanted = all.into_iter().filter(|stored| stored.name.ends_with(end) && stored.shape.len() == 2);
    wanted
        .map(|stored| {
            let name = stored.name.clone();
            let own = InMemory::of(&*stored.into_rows().unwrap()).unwrap();
            let numbers = own.numbers().iter().map(|number| (number * 4.0).round() / 4.0).collect();
            (name, Arc::new(InMemory::new(own.matrix(), numbers)))
        })
        .collect()
}

/// The divergence of a whole model that was loaded with other weights, which is how it is defined.
fn loaded(fixture: &Fixture, replaced: &Replaced) -> f64 {
    let settings = Settings { all_logits: true, chunk: Some(24), ..Settings::with(Format::FP32) };
    let load = |replaced: &Replaced| {
        Engine::load_replacing(&fixture.checkpoint, settings.clone(), replaced, &mut |_, _| Ok(())).unwrap()
    };
    // One more token, so that the prediction of the last that is fed counts, too.
    let tokens: Vec<u32> = fixture.tokens[0].iter().copied().chain([1]).collect();
    let windows = Windows::new(&tokens, tokens.len(), tokens.len(), None).unwrap();
    let mut sum = 0.0;
    evaluation::evaluate(
        &load(replaced),
        Some(&load(&Replaced::new())),
        &windows,
        0..1,
        0,
        &mut |score: WindowScore| {
            sum += score.against.unwrap().kl / score.tokens as f64;
            Ok::<(), roofline_engine::Error>(())
        },
    )
    .unwrap();
    sum
}

/// What is tried on a model in memory does what it does to one that is loaded with it: wherever it lies, in whatever order, and
/// after something else was tried; and with the same bits whatever the number of threads.
#[test]
fn substitutes_are_models_of_their_own() {
    for family in ["llama", "gemma2", "mixtral", "qwen3"] {
        let fixture = Fixture::open(family);
        let ends = [
            "layers.0.self_attn.q_proj.weight",
            "layers.1.self_attn.v_proj.weight",
            "layers.0.mlp.down_proj.weight",
            "embed_tokens.weight",
            "layers.1.block_sparse_moe.experts.2.w1.weight",
            "lm_head.weight",
        ];
        let open = |threads| {
            let settings = Settings { threads, ..Settings::with(Format::FP32) };
            Substitution::new(&fixture.checkpoint, fixture.tokens[..1].to_vec(), &settings).unwrap()
        };
        let model = Model::from_config(&fixture.checkpoint.config.to_string(), family).unwrap();
        let (tokens, vocabulary) = (fixture.tokens[0].len() as u64, model.vocabulary.get());
        let (held, transient) = Substitution::needs(&fixture.checkpoint, &model, &fixture.tokens[..1], 2);
        // The weights, and a prediction of each token; and the logits of the one sample that runs, whatever the threads.
        assert_eq!(held, fixture.checkpoint.bytes() + tokens * (4 * vocabulary + 8 * model.hidden.get()), "{family}");
        assert_eq!(transient, 4 * tokens * vocabulary, "{family}");
        let (mut one, mut two) = (open(1), open(2));
        assert_eq!(one.divergence(&Replaced::new()).unwrap(), 0.0);
        let mut tried = 0;
        for end in ends {
            let replaced = rounded(&fixture, end);
            if replaced.is_empty() {
                continue;
            }
            tried += 1;
            let (found, wanted) = (one.divergence(&replaced).unwrap(), loaded(&fixture, &replaced));
            assert!(
                wanted > 1e-9 && (found - wanted).abs() <= 1e-3 * wanted + 1e-9,
                "{family} {end}: {found} {wanted}"
            );
            assert_eq!(two.divergence(&replaced).unwrap(), found, "{family} {end}");
            assert_eq!(one.divergence(&replaced).unwrap(), found, "{family} {end}, again");
        }
        assert!(tried >= 3, "{family}");
        let unknown =
            Replaced::from([("nothing".to_owned(), rounded(&fixture, ".weight").values().next().unwrap().clone())]);
        assert!(one.divergence(&unknown).is_err());
    }
}
