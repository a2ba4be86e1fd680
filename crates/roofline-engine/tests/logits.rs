//! Logits of small models of every family against those that transformers computed (`tools/oracle/heavy/engine_fixtures.py`).

mod common;

use common::{Fixture, deviation};
use roofline_core::Format;
use roofline_engine::{Engine, Settings, Wanted};

/// The families, and whether a cache beyond the trained context needs its own list.
const FAMILIES: [&str; 16] = [
    "gemma",
    "gemma2",
    "gemma3-text",
    "gpt-oss",
    "gpt-oss-mxfp4",
    "llama",
    "llama-bias",
    "llama-tied",
    "mistral",
    "mixtral",
    "phi",
    "phi3",
    "phi3-longrope",
    "qwen2",
    "qwen3",
    "qwen3-moe",
];

fn settings(values: Format) -> Settings {
    Settings { threads: 2, all_logits: true, ..Settings::with(values) }
}

/// FP32 numbers between kernels: what is left is the order of sums.
#[test]
fn fp32_agrees_to_rounding() {
    for family in FAMILIES {
        let fixture = Fixture::open(family);
        let engine = Engine::load(&fixture.checkpoint, settings(Format::FP32), &mut |_, _| Ok(())).unwrap();
        let mut session = engine.session(2, 24).unwrap();
        let logits = session.feed(0..2, &fixture.tokens, Wanted::All).unwrap();
        let error = deviation(&logits, &fixture.logits);
        assert!(error <= 1e-4, "{family}: {error:.2e}");
        println!("{family:16} {error:.2e}");
    }
}

/// BF16 between kernels, as transformers runs such models: no further from FP32 than transformers itself is, by half.
#[test]
fn bf16_is_as_close_as_transformers() {
    for family in FAMILIES {
        let fixture = Fixture::open(family);
        let engine = Engine::load(&fixture.checkpoint, settings(Format::BF16), &mut |_, _| Ok(())).unwrap();
        let mut session = engine.session(2, 24).unwrap();
        let logits = session.feed(0..2, &fixture.tokens, Wanted::All).unwrap();
        let (ours, theirs) = (deviation(&logits, &fixture.logits), deviation(&fixture.logits_bf16, &fixture.logits));
        assert!(ours <= 1.5 * theirs, "{family}: {ours:.2e}, transformers {theirs:.2e}");
        println!("{family:16} {ours:.2e} {theirs:.2e} {:.2}", ours / theirs);
    }
}

/// Tokens after those that were forgotten find what the first ones found; where a window has lost that, nothing is forgotten.
#[test]
fn tokens_can_be_taken_back() {
    let (mut taken, mut refused) = (0, 0);
    for family in FAMILIES {
        let fixture = Fixture::open(family);
        // Short chunks need little room beside a window.
        let settings = Settings { chunk: Some(2), ..settings(Format::FP32) };
        let engine = Engine::load(&fixture.checkpoint, settings, &mut |_, _| Ok(())).unwrap();
        let windowed = engine.model.layers.iter().any(|layer| {
            matches!(layer.attention, roofline_core::model::AttentionLayer::Grouped { window: Some(_), .. })
        });
        for back in [1, 7, 16, 23] {
            let mut session = engine.session(2, 24).unwrap();
            let parts =
                |range: std::ops::Range<usize>| fixture.tokens.iter().map(move |own| own[range.clone()].to_vec());
            let feed = |session: &mut roofline_engine::Session<'_, '_>, range| {
                session.feed(0..2, &parts(range).collect::<Vec<_>>(), Wanted::Last).unwrap()
            };
            feed(&mut session, 0..back);
            let first = feed(&mut session, back..back + 1);
            for at in back + 1..24 {
                feed(&mut session, at..at + 1);
            }
            if session.rewind(back) {
                assert_eq!(session.lengths(), [back, back], "{family}");
                assert_eq!(feed(&mut session, back..back + 1), first, "{family}, back to {back}");
                taken += 1;
            } else {
                assert!(windowed, "{family} has no window");
                assert_eq!(session.lengths(), [24, 24], "{family}");
                refused += 1;
            }
        }
    }
    assert!(taken > 40 && refused > 8, "{taken} taken back, {refused} refused");
}

/// However tokens come - one by one, in chunks that cut windows, one sequence before the other - their logits are the same.
#[test]
fn chunks_and_batches_change_nothing() {
    for family in FAMILIES {
        let fixture = Fixture::open(family);
        let vocabulary = fixture.logits.len() / 48;
        for chunk in [1, 3, 5, 7, 16] {
            let settings = Settings { chunk: Some(chunk), ..settings(Format::FP32) };
            let engine = Engine::load(&fixture.checkpoint, settings, &mut |_, _| Ok(())).unwrap();
            let mut session = engine.session(2, 24).unwrap();
            // Chunks are of tokens of all sequences, so several passes of a few tokens each.
            let logits = session.feed(0..2, &fixture.tokens, Wanted::All).unwrap();
            let error = deviation(&logits, &fixture.logits);
            assert!(error <= 1e-4, "{family} in chunks of {chunk}: {error:.2e}");
        }
        let engine = Engine::load(&fixture.checkpoint, settings(Format::FP32), &mut |_, _| Ok(())).unwrap();
        let mut session = engine.session(2, 24).unwrap();
        // The second sequence begins first, so that both have different lengths when they run together.
        session.feed(1..2, &[fixture.tokens[1][..9].to_vec()], Wanted::Last).unwrap();
        session.feed(0..1, &[fixture.tokens[0][..4].to_vec()], Wanted::Last).unwrap();
        for step in 0..15 {
            let next = vec![vec![fixture.tokens[0][4 + step]], vec![fixture.tokens[1][9 + step]]];
            let logits = session.feed(0..2, &next, Wanted::Last).unwrap();
            let row =
                |sequence: usize, token: usize| &fixture.logits[(24 * sequence + token) * vocabulary..][..vocabulary];
            let want = [row(0, 4 + step), row(1, 9 + step)].concat();
            let error = deviation(&logits, &want);
            assert!(error <= 1e-4, "{family}, step {step}: {error:.2e}");
        }
        assert_eq!(session.lengths(), [19, 24]);
    }
}

/// The same tokens that transformers chooses, with a cache in FP32 and in 16 bit.
#[test]
fn greedy_continues_as_transformers_does() {
    for family in FAMILIES {
        // Its short and long contexts have different rotations; transformers starts over when a text grows long.
        if family == "phi3-longrope" {
            continue;
        }
        let fixture = Fixture::open(family);
        let engine = Engine::load(&fixture.checkpoint, settings(Format::FP32), &mut |_, _| Ok(())).unwrap();
        let mut session = engine.session(1, 24).unwrap();
        let mut logits = session.feed(0..1, &[fixture.tokens[0][..10].to_vec()], Wanted::Last).unwrap();
        let mut chosen = Vec::new();
        for _ in 0..fixture.greedy.len() {
            let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32;
            chosen.push(best);
            logits = session.feed(0..1, &[vec![best]], Wanted::Last).unwrap();
        }
        assert_eq!(chosen, fixture.greedy, "{family}");
    }
}

/// Narrow caches are near what wide ones give, in the mean: numbers are rounded by up to 2^-9, 2^-12, 2^-8 of a row's
/// largest and 2^-4, and three or four layers of random weights make a few times as much of it.
#[test]
fn caches_of_sixteen_and_eight_bits() {
    for family in FAMILIES {
        let fixture = Fixture::open(family);
        for (kv, limit) in [(Format::BF16, 0.01), (Format::FP16, 0.002), (Format::INT8, 0.03), (Format::FP8, 0.15)] {
            let settings = Settings { kv, ..settings(Format::FP32) };
            let engine = Engine::load(&fixture.checkpoint, settings, &mut |_, _| Ok(())).unwrap();
            let mut session = engine.session(2, 24).unwrap();
            let logits = session.feed(0..2, &fixture.tokens, Wanted::All).unwrap();
            let squares =
                |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|one| f64::from(one).powi(2)).sum::<f64>();
            let off = squares(&mut logits.iter().zip(&fixture.logits).map(|(a, b)| a - b));
            let error = (off / squares(&mut fixture.logits.iter().copied())).sqrt();
            println!("{family:16} {kv:10} {error:.2e}");
            assert!(error <= limit, "{family} with a cache of {kv}: {error:.2e}");
            // The numbers it keeps are not those that were computed.
            assert!(error > 1e-5, "{family}: a cache of {kv} cannot be exact: {error:.2e}");
        }
    }
}
