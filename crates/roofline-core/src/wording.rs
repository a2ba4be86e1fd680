//! Words that every face writes in its own way.
//!
//! A library does not know whether its reader typed `--on h200`, sent `{"on": "h200"}` or called with `on="h200"`. Its texts
//! therefore name a field of a request, or another verb, in brackets of their own, and the face that shows a text spells
//! them: `⟨on⟩` and `⟨on h200⟩` are a field without and with a value, `⟨roofline devices this⟩` is another question.

use std::borrow::Cow;

/// What stands between the brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word<'a> {
    /// A field of a request, and the value to give it.
    Field(&'a str, Option<&'a str>),
    /// Another question: a verb and what follows it.
    Verb(&'a str),
}

/// `text` with every word in brackets as `spell` writes it.
pub fn spelled(text: &str, spell: impl Fn(Word<'_>) -> String) -> Cow<'_, str> {
    if !text.contains('⟨') {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('⟨') {
        shown.push_str(before);
        let Some((word, after)) = after.split_once('⟩') else {
            shown.push('⟨');
            rest = after;
            continue;
        };
        shown.push_str(&spell(match (word.strip_prefix("roofline "), word.split_once(' ')) {
            (Some(verb), _) => Word::Verb(verb),
            (None, Some((name, value))) => Word::Field(name, Some(value)),
            (None, None) => Word::Field(word, None),
        }));
        rest = after;
    }
    Cow::Owned(shown + rest)
}

/// As the command line writes it.
pub fn flags(text: &str) -> Cow<'_, str> {
    spelled(text, |word| match word {
        Word::Field(name, None) => format!("--{}", name.replace('_', "-")),
        Word::Field(name, Some(value)) => format!("--{} {value}", name.replace('_', "-")),
        Word::Verb(verb) => format!("roofline {verb}"),
    })
}

/// As a body in JSON has it; without quotes of its own, so that it can stand within a text in JSON.
pub fn fields(text: &str) -> Cow<'_, str> {
    spelled(text, |word| match word {
        Word::Field(name, None) => name.to_owned(),
        Word::Field(name, Some(value)) => format!("{name}: {value}"),
        Word::Verb(verb) => format!("roofline {verb}"),
    })
}

/// As a call in Python has it: `on="h200"`, and `roofline.devices("this", measure=True)` for another question.
pub fn arguments(text: &str) -> Cow<'_, str> {
    spelled(text, |word| match word {
        Word::Field(name, None) => argument(name),
        Word::Field(name, Some(value)) => format!("{}={}", argument(name), literal(value)),
        Word::Verb(verb) => call(verb),
    })
}

/// The name of an argument in Python, where some words are taken.
pub fn argument(name: &str) -> String {
    let name = name.replace('-', "_");
    if matches!(name.as_str(), "as" | "from" | "in" | "is" | "with" | "for") { name + "_" } else { name }
}

/// A number stays one, and so does a word that only stands for what is to be written.
fn literal(value: &str) -> String {
    let stands = value.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_');
    if stands || value.parse::<f64>().is_ok() { value.to_owned() } else { format!("\"{value}\"") }
}

/// A line of the command line as a call. What only the command line can do stays one.
fn call(line: &str) -> String {
    let mut words = line.split_whitespace().peekable();
    let Some(verb) = words.next() else { return "roofline".to_owned() };
    if (verb, words.peek()) == ("devices", Some(&"add")) {
        return format!("roofline {line}");
    }
    let mut arguments = Vec::new();
    while let Some(word) = words.next() {
        arguments.push(match word.strip_prefix("--") {
            None => literal(word),
            Some(flag) => match words.next_if(|next| !next.starts_with("--")) {
                Some(value) => format!("{}={}", argument(flag), literal(value)),
                None => format!("{}=True", argument(flag)),
            },
        });
    }
    format!("roofline.{verb}({})", arguments.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_face_writes_a_field_its_own_way() {
        let text = "choose another place with `⟨to⟩`, or use `⟨as gguf⟩`; `⟨roofline quantize --list⟩` has more";
        assert_eq!(
            flags(text),
            "choose another place with `--to`, or use `--as gguf`; `roofline quantize --list` has more"
        );
        assert!(fields("leave `⟨max_shard_size⟩` out").contains("`max_shard_size`"));
        assert_eq!(flags("⟨max_shard_size 5GB⟩"), "--max-shard-size 5GB");
        assert_eq!(fields("⟨as gguf⟩"), "as: gguf");
        assert_eq!(
            arguments("⟨as gguf⟩, ⟨window 4⟩, ⟨to FOLDER⟩ or ⟨from⟩"),
            "as_=\"gguf\", window=4, to=FOLDER or from_"
        );
    }

    #[test]
    fn python_calls() {
        assert_eq!(arguments("see `⟨roofline devices⟩`"), "see `roofline.devices()`");
        assert_eq!(arguments("⟨roofline devices this --measure⟩"), "roofline.devices(\"this\", measure=True)");
        assert_eq!(
            arguments("⟨roofline measure gemv --n 4096 --k 4096 --on h200⟩"),
            "roofline.measure(\"gemv\", n=4096, k=4096, on=\"h200\")"
        );
        assert_eq!(arguments("⟨roofline devices add FILE⟩"), "roofline devices add FILE");
    }

    /// Texts hold what users wrote, which may be anything.
    #[test]
    fn what_is_no_word_stays() {
        assert_eq!(flags("a ⟨b"), "a ⟨b");
        assert!(matches!(flags("plain <x>"), Cow::Borrowed("plain <x>")));
    }
}
