//! The demo model, which was trained on English: what methods lose is what they lose in use.

use roofline_engine::{
    Tokenizer,
    evaluation::{self, WindowScore, Windows},
    samples as cut,
};
use roofline_quant::{gguf::model::Names, imatrix::collect};

use super::*;

/// Tokens of a window that is judged.
const WINDOW: usize = 256;
/// Windows that are judged: methods differ by more than these do.
const WINDOWS: usize = 10;

/// How far predictions of a text are from the original's, in nats for each token, as `roofline evaluate` has it.
fn divergence(model: &Checkpoint, original: &Checkpoint, tokens: &[u32], first: Option<u32>) -> f64 {
    let settings = Settings { threads: 2, all_logits: true, ..Settings::with(Format::FP32) };
    let load = |checkpoint| Engine::load(checkpoint, settings.clone(), &mut |_, _| Ok(())).unwrap();
    let windows = Windows::new(tokens, WINDOW, WINDOW, first).unwrap();
    let (mut sum, mut count) = (0.0, 0);
    let (model, original) = (load(model), load(original));
    evaluation::evaluate(&model, Some(&original), &windows, 0..windows.count(), 0, &mut |score: WindowScore| {
        sum += score.against.unwrap().kl;
        count += score.tokens;
        Ok::<(), roofline_engine::Error>(())
    })
    .unwrap();
    sum / f64::from(u32::try_from(count).unwrap())
}

/// Half of its text decides how weights are rounded, the other half judges it. GPTQ loses less than rounding to nearest and than an
/// importance matrix of the same half alone.
#[test]
fn gguf_by_gptq_is_nearer_to_the_demo() {
    let place = Place::new("demo");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../roofline-verbs/data/demo");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let tokenizer = Tokenizer::from_files(&checkpoint.tokenizer_files().unwrap()).unwrap().unwrap();
    let text = fs::read_to_string(folder.join("evaluation.txt")).unwrap();
    let (tokens, first) = (tokenizer.encode(&text, false).unwrap(), tokenizer.beginning().unwrap());
    let (seen, unseen) = tokens.split_at(tokens.len() / 2);
    let pieces = cut(seen, first, 64, 128, 0);
    let settings = Settings { threads: 2, ..Settings::with(Format::FP32) };
    let observed = || Layerwise::new(&checkpoint, pieces.clone(), &settings).unwrap();
    let names = Names::new(&checkpoint.config, true).unwrap();
    let imatrix = collect(&mut observed(), &names, "half", &mut |_, _| {}).unwrap();
    for plan in ["q4_0", "q4_k_s"] {
        let lost = [(Method::Rtn, false), (Method::Rtn, true), (Method::Gptq, false), (Method::Awq, false)].map(
            |(method, weighed)| {
                let target = place.0.join(format!("{plan}-{method}-{weighed}.gguf"));
                let imatrix = weighed.then(|| imatrix.clone());
                let asked = Request { imatrix, ..order(method, plan, Layout::Gguf, &target) };
                if method.needs_data() {
                    quantize_observed(&checkpoint, &asked, &mut observed(), &|_: u64| {}).unwrap();
                } else {
                    quantize(&checkpoint, &asked, &|_: u64| {}).unwrap();
                }
                divergence(&Checkpoint::open(&target).unwrap(), &checkpoint, &unseen[..WINDOWS * WINDOW], first)
            },
        );
        let [nearest, weighed, gptq, awq] = lost;
        println!("{plan}: to nearest {nearest:.5}, with importance {weighed:.5}, GPTQ {gptq:.5}, AWQ {awq:.5}");
        assert!(gptq < 0.9 * nearest && gptq < weighed, "{plan}: {lost:?}");
        assert!(awq < nearest, "{plan}: {lost:?}");
    }
}
