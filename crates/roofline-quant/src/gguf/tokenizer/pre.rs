//! llama.cpp's word for how text is split before pairs are merged. Its converter encodes a long text and looks the result up in a
//! list; here the patterns themselves are looked at, since they are what llama.cpp has to split by.

use serde_json::Value as Json;

use super::super::family::Family;

/// What most patterns end with.
const TAIL: &str = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// What they begin with.
const WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|";
/// Mistral's.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// That of GPT-4o, gpt-oss and Llama 4.
const OMNI: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The word for a `tokenizer.json`.
pub(super) fn of(tokenizer: &Json, family: &Family, notes: &mut Vec<String>) -> &'static str {
    let json = &tokenizer["pre_tokenizer"];
    let steps = json["pretokenizers"].as_array().map_or_else(|| vec![json], |steps| steps.iter().collect());
    let patterns: Vec<&str> = steps.iter().filter_map(|step| step["pattern"]["Regex"].as_str()).collect();
    let first = patterns.first().copied();
    let numbers = first.and_then(|pattern| pattern.strip_prefix(WORDS)).and_then(|rest| rest.strip_suffix(TAIL));
    let digits = steps.iter().any(|step| step["type"] == "Digits" && step["individual_digits"] == Json::Bool(true));
    // Without a pattern of its own, the byte level splits as GPT-2 did.
    let gpt2 = steps.iter().any(|step| step["type"] == "ByteLevel" && step["use_regex"] != Json::Bool(false));
    let kinds: Vec<&str> = steps.iter().filter_map(|step| step["type"].as_str()).collect();
    match (numbers, first) {
        (Some(r"\p{N}{1,3}"), _) if family.arch == "glm4" => "glm4",
        // Llama 3 takes a word that is a token as it is; others with the same pattern merge it from its parts.
        (Some(r"\p{N}{1,3}"), _) if tokenizer["model"]["ignore_merges"] == Json::Bool(false) => "dbrx",
        (Some(r"\p{N}{1,3}"), _) => "llama-bpe",
        (Some(r"\p{N}"), _) => "qwen2",
        (_, Some(TEKKEN)) => "tekken",
        (_, Some(OMNI)) if family.arch == "llama4" => "llama4",
        (_, Some(OMNI)) => "gpt-4o",
        (_, Some(r"\p{N}{1,3}")) if patterns.get(1).is_some_and(|pattern| pattern.starts_with("[一-龥")) => {
            "deepseek-v3"
        }
        (_, Some("[\r\n]")) if patterns.len() >= 4 && digits => {
            if patterns[1] == r"\s?\p{L}+" {
                "deepseek-coder"
            } else {
                "deepseek-llm"
            }
        }
        (_, Some("[0-9][0-9][0-9]")) if kinds.contains(&"Punctuation") && gpt2 => "falcon",
        (_, None) if gpt2 && digits && steps.len() == 2 => {
            if family.arch == "starcoder2" {
                "starcoder"
            } else {
                "smollm"
            }
        }
        (_, None) if gpt2 && steps.len() == 1 => "gpt-2",
        _ => {
            notes.push(
                "how the tokenizer splits text is not known, so `tokenizer.ggml.pre` is `default`: check the tokens \
                 that llama.cpp makes of a text"
                    .to_owned(),
            );
            "default"
        }
    }
}

/// The steps before the byte level that a word of llama.cpp's stands for; none where the byte level splits by itself, or the word
/// is not known.
pub(super) fn steps(pre: &str) -> Option<Vec<Json>> {
    let split = |pattern: &str| serde_json::json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let digits = |single: bool| serde_json::json!({"type": "Digits", "individual_digits": single});
    Some(match pre {
        "llama-bpe" | "dbrx" | "glm4" | "chatglm-bpe" => vec![split(&format!(r"{WORDS}\p{{N}}{{1,3}}{TAIL}"))],
        "qwen2" => vec![split(&format!(r"{WORDS}\p{{N}}{TAIL}"))],
        "tekken" => vec![split(TEKKEN)],
        "gpt-4o" | "llama4" => vec![split(OMNI)],
        "smollm" | "starcoder" | "refact" | "command-r" => vec![digits(true)],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The steps as the released files have them.
    #[test]
    fn steps_are_known_by_their_patterns() {
        let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}});
        let bytes = |regex: bool| json!({"type": "ByteLevel", "use_regex": regex});
        let digits = |single: bool| json!({"type": "Digits", "individual_digits": single});
        let three = format!(r"{WORDS}\p{{N}}{{1,3}}{TAIL}");
        for (class, steps, ignore, expected) in [
            ("LlamaForCausalLM", vec![split(&three), bytes(false)], json!(true), "llama-bpe"),
            ("Olmo2ForCausalLM", vec![split(&three), bytes(false)], json!(false), "dbrx"),
            ("Glm4ForCausalLM", vec![split(&three), bytes(false)], json!(null), "glm4"),
            ("GptOssForCausalLM", vec![split(OMNI), bytes(false)], json!(true), "gpt-4o"),
            ("Llama4ForCausalLM", vec![split(OMNI), bytes(false)], json!(true), "llama4"),
            ("Starcoder2ForCausalLM", vec![digits(true), bytes(true)], json!(null), "starcoder"),
            ("LlamaForCausalLM", vec![digits(true), bytes(true)], json!(null), "smollm"),
            (
                "FalconForCausalLM",
                vec![json!({"type": "Punctuation"}), bytes(true), digits(false), split("[0-9][0-9][0-9]")],
                json!(null),
                "falcon",
            ),
            (
                "DeepseekV3ForCausalLM",
                vec![split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split("x"), bytes(false)],
                json!(null),
                "deepseek-v3",
            ),
            (
                "DeepseekV2ForCausalLM",
                vec![split("[\r\n]"), split("\\s?[A-Za-z]+"), split("a"), split("b"), digits(true), bytes(false)],
                json!(null),
                "deepseek-llm",
            ),
            ("GPTNeoXForCausalLM", vec![bytes(true)], json!(null), "gpt-2"),
        ] {
            let tokenizer = json!({"model": {"ignore_merges": ignore}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}});
            let mut notes = Vec::new();
            let family = Family::of_class(class).unwrap();
            assert_eq!(of(&tokenizer, family, &mut notes), expected, "{class}");
            assert!(notes.is_empty());
        }
        let mut notes = Vec::new();
        let unknown = json!({"pre_tokenizer": split("a+")});
        assert_eq!(of(&unknown, Family::of_class("Qwen2ForCausalLM").unwrap(), &mut notes), "default");
        assert!(notes[0].contains("`tokenizer.ggml.pre` is `default`"));
    }
}
