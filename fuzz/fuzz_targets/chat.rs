//! A chat template from anywhere: refused, or one that ends.

#![no_main]

use libfuzzer_sys::fuzz_target;
use roofline_engine::{Chat, Message};

fuzz_target!(|bytes: &[u8]| {
    let messages = [("system", "Be kind."), ("user", " Hi\n<b>é "), ("assistant", "<think>hm</think>\nHello")]
        .map(|(role, content)| Message { role: role.to_owned(), content: content.to_owned() });
    // As a template, and as a configuration that may have one.
    for name in ["chat_template.jinja", "tokenizer_config.json"] {
        if let Ok(Some(chat)) = Chat::from_files(&[(name.to_owned(), bytes.to_vec())]) {
            let _ = chat.render(&messages, true);
        }
    }
});
