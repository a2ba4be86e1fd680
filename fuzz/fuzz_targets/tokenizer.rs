//! A tokenizer from anywhere: refused, or one that encodes and decodes, and whose stream ends.

#![no_main]

use std::{panic, sync::Once};

use libfuzzer_sys::fuzz_target;
use roofline_engine::Tokenizer;

/// A panic of the library that reads the file is caught and becomes an error, so a panic is not the end. One that nobody
/// catches still is.
static CAUGHT: Once = Once::new();

fuzz_target!(|bytes: &[u8]| {
    CAUGHT.call_once(|| panic::set_hook(Box::new(|_| {})));
    let files = ["tokenizer.json", "config.json"].map(|name| (name.to_owned(), bytes.to_vec()));
    let Ok(Some(tokenizer)) = Tokenizer::from_files(&files) else { return };
    assert!(tokenizer.ends().is_sorted());
    let vocabulary = tokenizer.vocabulary();
    let Ok(ids) = tokenizer.encode("the a€ 語\n<s></s>", true) else { return };
    let _ = tokenizer.decode(&ids);
    let mut stream = tokenizer.stream(&ids);
    for &id in ids.iter().take(100) {
        if stream.push(id).is_err() {
            return;
        }
    }
    let _ = stream.finish();
    // What a smaller model's tokenizer encodes is within that model.
    if let Ok(tokenizer) = tokenizer.for_vocabulary(vocabulary / 2)
        && let Ok(ids) = tokenizer.encode("the a€ 語\n<s></s>", true)
    {
        assert!(ids.iter().all(|&id| (id as usize) < vocabulary / 2));
    }
});
