//! What layers put out.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Fixture, deviation, floats};
use roofline_core::Format;
use roofline_engine::{Engine, LayerOutput, Settings, Wanted};
use roofline_quant::checkpoint::Shard;

fn kept(family: &str, chunk: usize, every: usize) -> (Vec<LayerOutput>, Vec<f32>) {
    let fixture = Fixture::open(family);
    let settings = Settings { threads: 2, all_logits: true, chunk: Some(chunk), ..Settings::with(Format::FP32) };
    let engine = Engine::load(&fixture.checkpoint, settings, &mut |_, _| Ok(())).unwrap();
    let mut session = engine.session(1, 24).unwrap();
    session.keep_layers(every);
    let logits = session.feed(0..1, &fixture.tokens[..1], Wanted::All).unwrap();
    let layers = session.take_layers();
    assert!(session.take_layers().is_empty());
    (layers, logits)
}

/// The last layer's output, normed and multiplied by the head, is the logits: nothing of the model comes between.
#[test]
fn the_last_layer_leads_to_the_logits() {
    let (layers, logits) = kept("llama", 7, 1);
    let fixture = Fixture::open("llama");
    let shard = Shard::open(&fixture.folder.join("model.safetensors")).unwrap();
    let (norm, head) = (floats(&shard, "model.norm.weight"), floats(&shard, "lm_head.weight"));
    let epsilon = fixture.checkpoint.config["rms_norm_eps"].as_f64().unwrap() as f32;
    assert_eq!(layers.len(), fixture.checkpoint.config["num_hidden_layers"].as_u64().unwrap() as usize);
    assert!(layers.iter().enumerate().all(|(at, own)| own.layer == at && own.values.len() == 24 * own.width));
    let last = layers.last().unwrap();
    let mut computed = Vec::new();
    for row in last.values.chunks(last.width) {
        let mean = row.iter().map(|one| one * one).sum::<f32>() / last.width as f32;
        let scale = 1.0 / (mean + epsilon).sqrt();
        let normed: Vec<f32> = row.iter().zip(&norm).map(|(one, weight)| one * scale * weight).collect();
        computed.extend(head.chunks(last.width).map(|row| row.iter().zip(&normed).map(|(a, b)| a * b).sum::<f32>()));
    }
    let error = deviation(&computed, &logits);
    assert!(error <= 1e-5, "{error:.2e}");
}

/// Which tokens are kept goes by where they stand in their sequence, however they are cut into passes.
#[test]
fn every_third_token_is_kept_however_it_came() {
    let (all, _) = kept("gemma2", 24, 1);
    for chunk in [1, 5, 24] {
        let (some, _) = kept("gemma2", chunk, 3);
        for (all, some) in all.iter().zip(&some) {
            let want: Vec<f32> = all.values.chunks(all.width).step_by(3).flatten().copied().collect();
            assert_eq!(some.values.len(), 8 * all.width);
            assert!(deviation(&some.values, &want) <= 1e-5, "layer {} in chunks of {chunk}", all.layer);
        }
    }
    assert!(kept("gemma2", 24, 0).0.is_empty());
}
