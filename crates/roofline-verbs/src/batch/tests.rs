use std::f64::consts::PI;

use serde_json::json;

use super::*;
use crate::{predict, request::from_json};

fn names(values: &[&str]) -> Names<String> {
    let distinct = values.iter().map(|value| Some((*value).to_owned())).collect();
    Names { distinct, rows: Column::Rows((0..values.len() as u32).collect()) }
}

fn asked() -> Request {
    Request {
        model: Names::one(Some("llama-3-8b".into())),
        on: Names::one(Some("h200".to_owned())),
        precision: Names::one(Some("bf16".to_owned())),
        batch: Column::One(1.0),
        context: Column::One(4096.0),
        phase: Names::one(None),
        tier: Names::one(None),
    }
}

fn told(request: &Request) -> Answer {
    batch(&Context::pure(), request).unwrap()
}

#[test]
fn a_row_is_what_predict_says() {
    // Layers of one shape, with windows that some contexts exceed, of experts, and of latent attention.
    let models = ["llama-3-8b", "gemma-2-9b", "mixtral-8x7b", "deepseek-v3"];
    let models = [models, models].concat();
    let devices = ["h200", "a100", "h100_sxm", "h200"].repeat(2);
    let plans = ["bf16", "w4a16", "fp8", "q4_k_m"].repeat(2);
    let batches = [1.0, 8.0, 64.0, 3.0].repeat(2);
    let contexts = [1.0, 4096.0, 100_000.0, 77.0, 8192.0, 4097.0, 100.0, 2.0];
    for (phase, tier) in [("decode", "ideal"), ("prefill", "expected")] {
        let answer = told(&Request {
            model: Names {
                distinct: models[..4].iter().map(|name| Some((*name).into())).collect(),
                rows: Column::Rows((0..8).map(|row| row % 4).collect()),
            },
            on: names(&devices),
            precision: names(&plans),
            batch: Column::Rows(batches.clone()),
            context: Column::Rows(contexts.to_vec()),
            phase: Names::one(Some(phase.to_owned())),
            tier: Names::one(Some(tier.to_owned())),
        });
        for row in 0..devices.len() {
            let request: predict::Request = from_json(json!({
                "subject": "model", "model": models[row], "on": devices[row], "precision": plans[row],
                "batch": batches[row] as u64, "context": contexts[row] as u64, "phase": phase, "tier": tier,
            }))
            .unwrap();
            let predict::Answer::Model(model) = predict::predict(&Context::pure(), &request).unwrap() else { panic!() };
            let estimate = &model.estimates[0];
            let figures = &estimate.figures;
            assert_eq!(answer.error[row], None);
            assert_eq!(answer.expected_time_us[row], figures.expected_time_us);
            assert_eq!((answer.lo_us[row], answer.hi_us[row]), (figures.lo_us, figures.hi_us));
            assert_eq!(answer.ideal_time_us[row], figures.ideal_time_us);
            assert_eq!(answer.tokens_per_s[row], estimate.tokens_per_s);
            assert_eq!(answer.memory_bytes[row], estimate.memory_bytes.value());
            assert_eq!(answer.fits[row], estimate.fits);
            assert_eq!(answer.basis[row], Some(figures.basis));
        }
    }
}

#[test]
fn single_values_hold_for_every_row_and_many_rows_keep_their_order() {
    let contexts: Vec<f64> = (1..=5000).map(f64::from).collect();
    let answer = told(&Request { context: Column::Rows(contexts), ..asked() });
    assert_eq!(answer.error.len(), 5000);
    assert!(answer.memory_bytes.is_sorted_by(|one, next| one < next), "longer caches are larger");
    let alone = told(&Request { context: Column::One(2500.0), ..asked() });
    assert_eq!(alone.expected_time_us, [answer.expected_time_us[2499]]);
}

#[test]
fn rows_that_differ_in_device_differ_in_time() {
    let answer = told(&Request { on: names(&["h200", "a100", "h200"]), ..asked() });
    assert_eq!(answer.ideal_time_us[0], answer.ideal_time_us[2]);
    assert!(answer.ideal_time_us[1] > answer.ideal_time_us[0]);
}

#[test]
fn a_row_that_cannot_be_predicted_says_why_and_the_others_go_on() {
    let answer = told(&Request {
        on: names(&["h200", "h20O", "a100", "h200"]),
        precision: names(&["fp8", "bf16", "fp8/fp8", "bf16,fp8"]),
        ..asked()
    });
    let error = |row: usize| answer.error[row].as_deref().unwrap_or_default();
    assert_eq!(error(0), "");
    assert_eq!(error(1), "unknown device `h20O`; did you mean `h200`?");
    assert!(error(2).contains("A100"), "{}", error(2));
    assert_eq!(error(3), "`bf16,fp8` is 2 plans, and a row has one");
    assert!(answer.expected_time_us[0] > 0.0 && answer.expected_time_us[1..].iter().all(|time| time.is_nan()));
    assert_eq!((answer.fits[1], answer.basis[1]), (None, None));
}

#[test]
fn what_is_no_dimension_is_an_error_of_its_row() {
    let wrong = [f64::NAN, -1.0, 0.0, 1e30, f64::INFINITY, PI, 2_147_483_648.0];
    let answer = told(&Request { batch: Column::Rows(wrong.to_vec()), ..asked() });
    for (error, value) in answer.error.iter().zip(wrong) {
        let error = error.as_deref().unwrap_or_default();
        assert!(error.ends_with("a dimension is a whole number from 1 to 2147483647"), "{value}: {error}");
    }
    assert_eq!(answer.error[1].as_deref(), Some("`batch` is -1: a dimension is a whole number from 1 to 2147483647"));
    // Each is a dimension, and together they are none.
    let both = Request { batch: Column::One(2e9), context: Column::One(2e9), ..asked() };
    let both = told(&Request { phase: Names::one(Some("prefill".to_owned())), ..both });
    assert!(both.error[0].is_some());
}

#[test]
fn columns_have_one_length() {
    let request = Request { batch: Column::Rows(vec![1.0]), context: Column::Rows(vec![1.0, 2.0]), ..asked() };
    let error = batch(&Context::pure(), &request).err().map(|error| error.to_string());
    assert_eq!(error.as_deref(), Some("`batch` has 1 rows, and `context` has 2"));
    assert!(told(&Request { batch: Column::Rows(Vec::new()), ..asked() }).error.is_empty());
    let broken = Names { distinct: Vec::new(), rows: Column::One(0) };
    assert!(batch(&Context::pure(), &Request { phase: broken, ..asked() }).is_err());
}

#[test]
fn what_is_left_out_is_what_predict_takes_first() {
    let left_out = told(&Request { precision: Names::one(None), ..asked() });
    assert_eq!(left_out.expected_time_us, told(&asked()).expected_time_us);
    let nameless = told(&Request { model: Names::one(None), ..asked() });
    assert_eq!(nameless.error[0].as_deref(), Some("the row names no model"));
}
