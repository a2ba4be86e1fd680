use std::{
    fs,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use roofline_engine::Settings;
use serde_json::json;

use super::*;
use crate::{
    context::Home,
    request::{answers_fit, from_json},
    running::Need,
};

/// A Llama of 131 tokens with a tokenizer of its own.
fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../roofline-engine/tests/data/llama")
}

/// Somebody who keeps what came, and has enough after so many questions.
struct Listener {
    pieces: Mutex<Vec<String>>,
    patience: AtomicUsize,
}

impl Listener {
    fn new(patience: usize) -> Arc<Self> {
        Arc::new(Self { pieces: Mutex::default(), patience: AtomicUsize::new(patience) })
    }
}

impl Watcher for Listener {
    fn piece(&self, text: &str) {
        self.pieces.lock().unwrap().push(text.to_owned());
    }

    fn cancelled(&self) -> bool {
        self.patience.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err()
    }
}

fn context(listener: &Arc<Listener>) -> Context {
    Context::local(Arc::new(Home::none()), listener.clone())
}

fn request(fields: &serde_json::Value) -> Request {
    let mut body = json!({ "model": model(), "threads": 1, "backend": "cpu" });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    from_json(body).unwrap()
}

fn ask(fields: &serde_json::Value) -> Result<Answer> {
    generate(&context(&Listener::new(usize::MAX)), &request(fields))
}

fn refused(fields: &serde_json::Value) -> (String, String) {
    let error = ask(fields).err().unwrap();
    assert!(error.is_input(), "{error:?}");
    (error.to_string(), error.hint().unwrap_or_default())
}

#[test]
fn text_comes_in_pieces_and_as_a_whole() {
    let listener = Listener::new(usize::MAX);
    let asked = request(&json!({ "prompt": "the cat", "max_tokens": 12, "ignore_end": true }));
    let told = generate(&context(&listener), &asked).unwrap();
    assert_eq!((told.generated_tokens, told.tokens.len(), told.end), (12, 12, End::Length));
    assert_eq!(told.text.as_deref(), Some(listener.pieces.lock().unwrap().concat().as_str()));
    assert!(told.tpot_us.unwrap() > 0.0 && told.tpot_p95_us >= told.tpot_us && told.ttft_us.unwrap() > 0.0);
    // Three layers of one head of 20 features, keys and values in BF16: 240 bytes for each token and no less.
    assert!(told.cache_bytes.value() >= 240.0 * (told.prompt_tokens + 12) as f64);
    assert_eq!((told.format.as_str(), told.values.as_str()), ("bf16", "bf16"));
    answers_fit(&told);
}

/// The same seed is the same text; greedy takes the tokens that the logits of a whole pass say.
#[test]
fn the_tokens_are_those_of_the_model() {
    let free = json!({ "prompt": "the cat", "max_tokens": 8, "temperature": 2.0, "seed": 5, "ignore_end": true });
    assert_eq!(ask(&free).unwrap().tokens, ask(&free).unwrap().tokens);
    let greedy = ask(&json!({ "tokens": [1, 17, 42], "max_tokens": 4, "ignore_end": true })).unwrap();
    let opened = Opened::open(&context(&Listener::new(usize::MAX)), &model()).unwrap();
    let mut settings = Settings::for_checkpoint(&opened.checkpoint);
    settings.threads = 1;
    let engine = Engine::load(&opened.checkpoint, settings, &mut |_, _| Ok(())).unwrap();
    let mut so_far = vec![1, 17, 42];
    for token in &greedy.tokens {
        let logits = engine.session(1, 16).unwrap().feed(0..1, &[so_far.clone()], Wanted::Last).unwrap();
        assert_eq!(*token, Sampler::new(Sampling::GREEDY).unwrap().sample(&logits).unwrap(), "after {so_far:?}");
        so_far.push(*token);
    }
    assert!(greedy.text.is_some());
}

/// The model of these weights never says its own end, so a token that it does say is declared one.
#[test]
fn the_models_end_is_the_end() {
    let folder = std::env::temp_dir().join(format!("roofline-generate-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(model().join(file), folder.join(file)).unwrap();
    }
    let asked = |more: serde_json::Value| {
        let mut asked = request(&json!({ "model": folder, "max_tokens": 6 }));
        asked.tokens = vec![1, 17, 42];
        asked.ignore_end = more == "ignore";
        generate(&context(&Listener::new(usize::MAX)), &asked).unwrap()
    };
    let all = asked("ignore".into());
    assert_eq!((all.end, all.text.as_ref(), all.generated_tokens), (End::Length, None, 6));
    let third = all.tokens[2];
    let first = all.tokens.iter().position(|token| *token == third).unwrap();
    fs::write(folder.join("generation_config.json"), json!({ "eos_token_id": [third] }).to_string()).unwrap();
    let ended = asked("heed".into());
    assert_eq!((ended.end, ended.tokens.as_slice()), (End::EndOfText, &all.tokens[..=first]));
    assert_eq!(asked("ignore".into()).tokens, all.tokens);
    // Words need a tokenizer, and the one that is missing is named.
    let error =
        generate(&context(&Listener::new(usize::MAX)), &request(&json!({ "model": folder, "prompt": "the cat" })));
    let error = error.err().unwrap();
    assert!(error.to_string().ends_with("has no tokenizer: there is no tokenizer.json"), "{error}");
    assert!(error.hint().unwrap().contains("⟨tokens"), "{error:?}");
    fs::remove_dir_all(folder).unwrap();
}

/// Every prefix of patience ends somewhere: while reading, within the prompt, or between tokens. What was said stays.
#[test]
fn whoever_has_enough_keeps_what_there_is() {
    let asked = request(&json!({ "prompt": "the cat", "max_tokens": 20, "ignore_end": true }));
    let whole = generate(&context(&Listener::new(usize::MAX)), &asked).unwrap();
    let mut ends = (0, 0);
    for patience in (0..320).step_by(11) {
        let listener = Listener::new(patience);
        match generate(&context(&listener), &asked) {
            Err(Error::Cancelled) => ends.0 += 1,
            Ok(told) => {
                assert_eq!(told.end, End::Stopped, "{patience}");
                assert!(whole.tokens.starts_with(&told.tokens) && told.tokens.len() < 20);
                assert_eq!(told.text.unwrap(), listener.pieces.lock().unwrap().concat());
                ends.1 += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(ends.0 > 0 && ends.1 > 10, "{ends:?}");
}

#[test]
fn a_chat_is_a_template_around_the_words() {
    let plain = ask(&json!({ "prompt": "the cat", "max_tokens": 1 })).unwrap();
    let chat = ask(&json!({ "prompt": "the cat", "chat": true, "max_tokens": 1 })).unwrap();
    let system = ask(&json!({ "prompt": "the cat", "chat": true, "system": "a dog", "max_tokens": 1 })).unwrap();
    assert!(plain.prompt_tokens < chat.prompt_tokens && chat.prompt_tokens < system.prompt_tokens);
}

#[test]
fn what_cannot_be_is_said_before_anything_is_read() {
    let (said, _) = refused(&json!({}));
    assert_eq!(said, "there is no prompt");
    let (said, _) = refused(&json!({ "prompt": "a", "tokens": [1] }));
    assert_eq!(said, "there are several prompts");
    let (said, _) = refused(&json!({ "prompt": "a", "temperature": -1.0 }));
    assert!(said.starts_with("the temperature is -1, and must be"), "{said}");
    let (said, _) = refused(&json!({ "tokens": [1, 131] }));
    assert_eq!(said, "token 131 is beyond the model's vocabulary of 131 tokens");
    // The fixture was made for 128 tokens.
    let (said, _) = refused(&json!({ "tokens": [1], "max_tokens": 128 }));
    assert_eq!(said, "129 tokens do not fit the 128 that llama was made for");
    let (said, _) = refused(&json!({ "tokens": [1], "context": 129 }));
    assert_eq!(said, "129 tokens do not fit the 128 that llama was made for");
    let (said, _) = refused(&json!({ "tokens": [1, 2, 3], "context": 8, "max_tokens": 6 }));
    assert_eq!(said, "9 tokens do not fit the context of 8: 3 of the prompt and 6 to come");
    // Nobody said how many: as many as there is room for.
    let told = ask(&json!({ "tokens": [1, 2, 3], "context": 8, "ignore_end": true })).unwrap();
    assert_eq!((told.generated_tokens, told.end), (5, End::Length));
    let error = ask(&json!({ "prompt": "a", "model": "/nonexistent" })).err().unwrap();
    assert!(error.to_string().contains("/nonexistent"), "{error}");
    let elsewhere = generate(&Context::pure(), &request(&json!({ "prompt": "a" })));
    assert!(matches!(elsewhere, Err(Error::Path { what: "model", .. })));
}

/// Without a driver the GPU is refused in the words of every other verb, before weights are read.
#[test]
fn a_gpu_that_is_not_there_is_said() {
    assert_eq!(ask(&json!({ "tokens": [1], "max_tokens": 1 })).unwrap().backend, BackendName::Cpu);
    if !roofline_run::cuda::present() {
        let error = ask(&json!({ "tokens": [1], "backend": "cuda" })).err().unwrap();
        assert!(!error.is_input() && error.hint().is_some(), "{error:?}");
    }
    assert!(from_json::<Request>(json!({ "model": model(), "backend": "null" })).is_err());
}

/// An exabyte is more than any machine holds; the sum names both parts. Of 16 tokens three layers keep 240 bytes each.
#[test]
fn what_does_not_fit_is_said_with_the_sum() {
    let opened = Opened::open(&context(&Listener::new(usize::MAX)), &model()).unwrap();
    let settings = Settings::for_checkpoint(&opened.checkpoint);
    let need = Need::of(&opened.model, Bytes::new(1e18), 2, 16, &settings).unwrap();
    let error = Executor::cpu().has_room(&need).unwrap_err();
    let hint = error.hint().unwrap();
    assert!(hint.contains(" of weights + 7.68 kB of cache (2 x 16 tokens in bf16) = "), "{hint}");
    assert!(!error.is_input());
}
