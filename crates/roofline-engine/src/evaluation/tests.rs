use std::path::Path;

use roofline_quant::Checkpoint;

use super::*;
use crate::Settings;

fn checkpoint(name: &str) -> Checkpoint {
    Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)).unwrap()
}

fn engine(checkpoint: &Checkpoint, chunk: usize) -> Engine<'_> {
    let mut settings = Settings::for_checkpoint(checkpoint);
    (settings.threads, settings.chunk, settings.all_logits) = (2, Some(chunk), true);
    Engine::load(checkpoint, settings, &mut |_, _| Ok(())).unwrap()
}

fn scores(model: &Engine<'_>, original: Option<&Engine<'_>>, windows: &Windows<'_>) -> Vec<WindowScore> {
    let mut all = Vec::new();
    let mut each = |score| {
        all.push(score);
        Ok::<(), Error>(())
    };
    evaluate(model, original, windows, 0..windows.count(), 1, &mut each).unwrap();
    all
}

fn tokens(count: u32) -> Vec<u32> {
    (0..count).map(|at| at * 37 % 131).collect()
}

/// A window is what one pass over its tokens says, row by row; the tokens that count are the last half, and in the first
/// window all but the first.
#[test]
fn windows_are_passes() {
    let checkpoint = checkpoint("llama");
    let engine = engine(&checkpoint, 64);
    let tokens = tokens(50);
    let windows = Windows::new(&tokens, 16, 8, Some(1)).unwrap();
    let all = scores(&engine, None, &windows);
    assert_eq!(all.len(), 5);
    assert_eq!(all.iter().map(|score| score.tokens).collect::<Vec<_>>(), [15, 8, 8, 8, 8]);
    for (index, told) in all.iter().enumerate() {
        let own = windows.tokens(index);
        assert_eq!(own[0], 1);
        let logits = engine.session(1, 16).unwrap().feed(0..1, std::slice::from_ref(&own), Wanted::All).unwrap();
        let nll = |position: usize| {
            let row = &logits[(position - 1) * 131..position * 131];
            row::score(row, own[position]).unwrap().nll
        };
        let expected: f64 = windows.scored(index).map(nll).sum();
        assert!((told.nll / expected - 1.0).abs() < 1e-3, "{index}: {} {expected}", told.nll);
        let chunk: Option<f64> = index.is_multiple_of(2).then(|| (9..16).map(nll).sum());
        match (told.chunk, chunk) {
            (Some(told), Some(expected)) => {
                assert!(told.tokens == 7 && (told.nll / expected - 1.0).abs() < 1e-3);
            }
            (None, None) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(told.positions.iter().map(|part| part.tokens).sum::<usize>(), told.tokens);
    }
}

/// A model against itself: no divergence at all, always the same first token.
#[test]
fn a_model_against_itself() {
    let checkpoint = checkpoint("llama");
    let engine = engine(&checkpoint, 5);
    let tokens = tokens(40);
    let windows = Windows::new(&tokens, 16, 8, None).unwrap();
    for told in scores(&engine, Some(&engine), &windows) {
        let against = told.against.unwrap();
        assert_eq!((against.kl, against.agree, against.nll), (0.0, told.tokens, told.nll));
        assert_eq!(against.spread.largest(), 0.0);
    }
}

/// Windows one by one are windows in a row: what was done before changes nothing, so that a run can go on later.
#[test]
fn windows_stand_alone() {
    let checkpoint = checkpoint("llama");
    let engine = engine(&checkpoint, 7);
    let tokens = tokens(60);
    let windows = Windows::new(&tokens, 20, 10, Some(1)).unwrap();
    let all = scores(&engine, None, &windows);
    let mut again = Vec::new();
    let mut each = |score| {
        again.push(score);
        Ok::<(), Error>(())
    };
    evaluate(&engine, None, &windows, 3..windows.count(), 0, &mut each).unwrap();
    assert_eq!(all[3..], again);
}

/// An error of whoever listens ends it, as one of the model's does.
#[test]
fn errors_end_it() {
    let checkpoint = checkpoint("llama");
    let engine = engine(&checkpoint, 7);
    let tokens = tokens(60);
    let windows = Windows::new(&tokens, 20, 10, None).unwrap();
    let told = evaluate(&engine, None, &windows, 0..2, 0, &mut |_| Err(Error::Stopped));
    assert!(matches!(told, Err(Error::Stopped)));
    // The fixture was made for 128 tokens.
    let tokens: Vec<u32> = (0..200).map(|at| at % 131).collect();
    let windows = Windows::new(&tokens, 150, 75, None).unwrap();
    let told = evaluate::<Error>(&engine, None, &windows, 0..1, 0, &mut |_| Ok(()));
    assert!(matches!(told, Err(Error::Context { .. })));
}
