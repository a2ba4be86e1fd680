//! Names as people paste them: `meta-llama/Llama-3.1-8B-Instruct`, `TheBloke/Mistral-7B-Instruct-v0.2-GGUF`.
//!
//! The organisation, and endings that say how a checkpoint was tuned or stored, do not change what a model is made of, and
//! are dropped one after the other until the registry knows the rest. Nothing else is: a size, a generation (`-v0.2`,
//! `3.1`) or a word in the middle (`-VL-`, `-Coder-`) belongs to the name, and an unknown one stays unknown.

use super::key_of;

/// Endings that say how a checkpoint was tuned. `-v0.1` is the first of its kind, which the registry calls by no number;
/// `-2507` is a month in which Qwen tuned the same models again.
const TUNED: &[&str] =
    &["-instruct", "-chat", "-chat-v1.0", "-it", "-pt", "-hf", "-base", "-thinking", "-2507", "-v0.1"];

/// Endings that say how its weights are stored. What is predicted is said by a precision all the same.
const STORED: &[&str] = &[
    "-gguf",
    "-awq",
    "-awq-int4",
    "-gptq",
    "-gptq-int4",
    "-gptq-int8",
    "-fp8",
    "-fp8-dynamic",
    "-nvfp4",
    "-bnb-4bit",
    "-4bit",
    "-8bit",
];

/// A shorter spelling of a name, and what was dropped that says how its weights are stored.
pub(super) struct Spelling {
    pub(super) key: String,
    pub(super) stored: Option<&'static str>,
}

/// `name` and what is left of it, the longest first.
pub(super) fn spellings(name: &str) -> Vec<Spelling> {
    let whole = key_of(name);
    let mut key = without_organisation(&whole).to_owned();
    let mut stored = None;
    let mut all = vec![Spelling { key: whole, stored }];
    loop {
        all.push(Spelling { key: key.clone(), stored });
        if let Some(rest) = key.strip_prefix("meta-").filter(|rest| rest.starts_with("llama")) {
            all.push(Spelling { key: rest.to_owned(), stored });
        }
        let Some(ending) = ending(&key) else { return all };
        if STORED.contains(&ending) {
            stored = stored.or(Some(ending));
        }
        key.truncate(key.len() - ending.len());
    }
}

/// The longest known ending of a key that leaves something of it.
fn ending(key: &str) -> Option<&'static str> {
    let fits = |ending: &&&str| key.len() > ending.len() && key.ends_with(**ending);
    TUNED.iter().chain(STORED).filter(fits).max_by_key(|ending| ending.len()).copied()
}

/// The part behind the slash of `organisation/name`; a path with another form keeps what it has.
fn without_organisation(key: &str) -> &str {
    let plain = |part: &str| !part.is_empty() && !part.starts_with(['.', '~']) && !part.contains(['/', '\\', ':']);
    match key.split_once('/') {
        Some((organisation, name)) if plain(organisation) && plain(name) => name,
        _ => key,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Model;

    /// Without the error of what is unknown: which name is nearest takes longer than all the rest.
    fn found(name: &str) -> Option<String> {
        Model::by_any_spelling(name).map(|(model, _)| model.key)
    }

    #[test]
    fn names_of_checkpoints() {
        for (name, key) in [
            ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
            ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
            ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
            ("meta-llama/Llama-3.2-1B", "llama-3.2-1b"),
            ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
            ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b-v0.2"),
            ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
            ("mistralai/Mixtral-8x22B-v0.1", "mixtral-8x22b"),
            ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"),
            ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
            ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b"),
            ("Qwen/Qwen3-30B-A3B-Thinking-2507-FP8", "qwen3-30b-a3b"),
            ("Qwen/Qwen3-8B-Base", "qwen3-8b"),
            ("google/gemma-2-9b-it", "gemma-2-9b"),
            ("microsoft/Phi-3-mini-4k-instruct", "phi-3-mini"),
            ("openai/gpt-oss-20b", "gpt-oss-20b"),
            ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"),
            ("TheBloke/Mistral-7B-Instruct-v0.2-GGUF", "mistral-7b-v0.2"),
            ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b"),
            ("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b"),
            ("unsloth/Llama-3.2-3B-Instruct-bnb-4bit", "llama-3.2-3b"),
            ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
            ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4-scout"),
            ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
            ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-30b-a3b"),
            ("mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo-12b"),
            ("microsoft/Phi-3.5-mini-instruct", "phi-3-mini-128k"),
            ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
            ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-7b"),
            // The head of the smallest is a matrix of its own.
            ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "deepseek-r1-distill-qwen-1.5b"),
            ("lmsys/vicuna-13b-v1.5", "llama-2-13b"),
            ("codellama/CodeLlama-34b-Instruct-hf", "codellama-34b"),
        ] {
            assert_eq!(found(name).as_deref(), Some(key), "{name}");
        }
    }

    /// Another size, generation or kind is another model, and so is a path.
    #[test]
    fn names_that_stay_unknown() {
        for name in [
            "llama-3.1-9b",
            "meta-llama/Llama-3.4-70B-Instruct",
            "meta-llama/Llama-3.2-11B-Vision-Instruct",
            "meta-llama/Llama-4-8B",
            "Qwen/Qwen2.5-7B-VL",
            "Qwen/Qwen2.5-VL-7B-Instruct",
            "Qwen/Qwen2.5-Audio-7B-Instruct",
            "Qwen/Qwen2.5-7B-Instruct-1M",
            "mistralai/Mistral-7B-Instruct-v0.4",
            "mistralai/Mistral-Nemo-Instruct-2512",
            "microsoft/Phi-3-mini-256k-instruct",
            "microsoft/Phi-4-multimodal-instruct",
            "google/gemma-3n-E4B-it",
            "google/gemma-1.2-7b-it",
            "deepseek-ai/DeepSeek-V3.2",
            "deepseek-ai/DeepSeek-R1-Distill-Qwen-8B",
            "Meta-Qwen2.5-7B",
            "./llama-3-8b",
            "~/llama-3-8b",
            "/models/llama-3-8b",
            "a/b/llama-3-8b",
            "meta-llama/",
            "/llama-3-8b",
            "-instruct",
            "",
        ] {
            assert_eq!(found(name), None, "{name}");
        }
    }

    /// Every name of the registry with every ending, prefix and organisation is still that model, and with another letter or
    /// number at its end it is not.
    #[test]
    fn endings_never_lead_to_another_model() {
        Model::preload();
        for model in Model::builtin() {
            for name in model.aliases.iter().chain([&model.key]) {
                for ending in TUNED.iter().chain(STORED) {
                    let pasted = format!("Some-Org/{}{}", name.to_uppercase(), ending.to_uppercase());
                    let (found, stored) = Model::named(&pasted).unwrap();
                    assert_eq!(found.key, model.key, "{pasted}");
                    assert_eq!(stored.is_some(), STORED.contains(ending), "{pasted}");
                    assert_eq!(super::tests::found(&format!("{pasted}-vl")), None);
                }
                for other in ["-9b", "0", "b", "-vl", "-coder", "-v0.9", ".1", "x"] {
                    let key = found(&format!("org/{name}{other}-Instruct"));
                    assert!(
                        key.is_none_or(|key| Model::find(&format!("{name}{other}")).unwrap().key == key),
                        "{name}{other}"
                    );
                }
            }
        }
    }

    proptest! {
        /// Whatever is found has a name that the text contains: nothing is found by resemblance.
        #[test]
        fn what_is_found_is_in_the_text(text in "([a-z]{0,6}/)?[A-Za-z0-9.]{1,8}(-[A-Za-z0-9.]{1,6}){0,4}") {
            if let Some((model, _)) = Model::by_any_spelling(&text) {
                let text = key_of(&text);
                let names: Vec<String> = model.aliases.iter().chain([&model.key]).map(|name| key_of(name)).collect();
                prop_assert!(names.iter().any(|name| text.contains(name.as_str())), "{text} became {}", model.key);
            }
        }
    }
}
