//! Messages to a prompt, as the checkpoint's own template says.
//!
//! Templates are written for Jinja in Python, as `transformers` sets it up: blocks take their line with them, strings
//! have Python's methods, and JSON is written as Python writes it. A template comes from anywhere: it runs for a bounded
//! number of steps, writes a bounded text, and reads nothing but the messages and the date. What is not bounded is the
//! memory of a string that a template doubles again and again without writing it.

mod json;
mod python;

use std::io::{self, Write};

use jiff::Timestamp;
use minijinja::{AutoEscape, Environment, ErrorKind, Value, context};

use crate::{
    Error, Result,
    files::{self, NamedFile},
};

/// Instructions that a template may take: for each of a thousand messages a thousand.
const STEPS: u64 = 1_000_000;

/// Bytes that a rendered prompt may have: more than any context holds.
const LARGEST_PROMPT: usize = 64 << 20;

/// Bytes that a template may have: a long one, gpt-oss's, has 17 kB.
const LARGEST_TEMPLATE: usize = 1 << 20;

/// The names of special tokens that templates ask for.
const SPECIAL_TOKENS: [&str; 6] = ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token"];

/// What someone said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// "system", "user", "assistant", or what else the template knows.
    pub role: String,
    /// The words.
    pub content: String,
}

/// The chat template of a checkpoint.
#[derive(Debug)]
pub struct Chat {
    environment: Environment<'static>,
    special_tokens: Vec<(&'static str, String)>,
}

/// The name of the only template there is.
const NAME: &str = "chat";

impl Chat {
    /// The template among the files of a checkpoint: chat_template.jinja, or tokenizer_config.json's. Without either
    /// there is none, and a model only continues text.
    pub fn from_files(files: &[NamedFile]) -> Result<Option<Self>> {
        let config = files::json(files, "tokenizer_config.json")?.unwrap_or_default();
        let (file, source) = match files::find(files, "chat_template.jinja")? {
            Some(bytes) => {
                let file = "chat_template.jinja";
                let text = str::from_utf8(bytes).map_err(|error| Error::malformed(file, error.to_string()))?;
                (file, text.to_owned())
            }
            None => match configured(&config)? {
                Some(source) => ("tokenizer_config.json", source),
                None => return Ok(None),
            },
        };
        if source.len() > LARGEST_TEMPLATE {
            let reason = format!("its template has {} bytes, and at most {LARGEST_TEMPLATE} are read", source.len());
            return Err(Error::malformed(file, reason));
        }
        let mut environment = environment();
        environment
            .add_template_owned(NAME, without_generation_marks(&source))
            .map_err(|error| Error::malformed(file, format!("its template is no Jinja: {}", reason(&error))))?;
        let token = |name| files::special_token(&config, name).map(|token| (name, token.to_owned()));
        Ok(Some(Self { environment, special_tokens: SPECIAL_TOKENS.into_iter().filter_map(token).collect() }))
    }

    /// The text of these messages; `answer` goes on to where the model is to speak. Its special tokens are written out,
    /// so it is encoded without adding any.
    pub fn render(&self, messages: &[Message], answer: bool) -> Result<String> {
        self.render_at(messages, answer, Timestamp::now())
    }

    /// The text at a moment, in UTC: some templates tell the model the date.
    fn render_at(&self, messages: &[Message], answer: bool, now: Timestamp) -> Result<String> {
        let failed = |error: &minijinja::Error| Error::Template { reason: reason(error) };
        let template = self.environment.get_template(NAME).map_err(|error| failed(&error))?;
        let mut values =
            self.special_tokens.iter().map(|(name, token)| (*name, Value::from(token))).collect::<Vec<_>>();
        let messages = messages.iter().map(|Message { role, content }| context! { role, content });
        values.extend([
            ("messages", messages.collect()),
            ("add_generation_prompt", Value::from(answer)),
            // Python passes these where there are none, and templates ask whether they are.
            ("tools", Value::from(())),
            ("documents", Value::from(())),
            ("strftime_now", Value::from_function(move |format: &str| python::strftime(format, now))),
        ]);
        let mut prompt = Bounded(Vec::new());
        let context: Value = values.into_iter().collect();
        template.render_captured_to(context, &mut prompt).map_err(|error| failed(&error))?;
        String::from_utf8(prompt.0).map_err(|error| Error::Template { reason: error.to_string() })
    }
}

/// The template of tokenizer_config.json: a text, or a list of named ones of which the default is meant.
fn configured(config: &serde_json::Value) -> Result<Option<String>> {
    use serde_json::Value;
    let refused = |reason: &str| Err(Error::malformed("tokenizer_config.json", reason));
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(template)) => Ok(Some(template.clone())),
        Some(Value::Array(list)) => {
            let default = list.iter().find(|one| one["name"] == "default");
            match default.map(|one| &one["template"]) {
                Some(Value::String(template)) => Ok(Some(template.clone())),
                _ => refused("none of the templates in its list `chat_template` is a text of the name `default`"),
            }
        }
        Some(_) => refused("`chat_template` must be a text, or a list of templates with names"),
    }
}

/// Jinja as `transformers` sets it up.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(STEPS));
    environment.set_unknown_method_callback(python::call_method);
    environment.add_filter("tojson", json::to_json);
    environment.add_test("iterable", python::is_iterable);
    environment.add_function("raise_exception", |message: String| -> Result<(), minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    environment
}

/// The template without the marks around what a model says, `{% generation %}`, which are for training.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let tag = &rest[start + 2..start + length];
        let word = tag.trim_matches(['-', '+']).trim();
        out.push_str(&rest[..start + 2]);
        out.push_str(&match word {
            "generation" => tag.replace(word, "if true"),
            "endgeneration" => tag.replace(word, "endif"),
            _ => tag.to_owned(),
        });
        rest = &rest[start + length..];
    }
    out + rest
}

/// What went wrong, and in which line.
fn reason(error: &minijinja::Error) -> String {
    let said = match error.kind() {
        ErrorKind::OutOfFuel => format!("it takes more than {STEPS} steps"),
        ErrorKind::WriteFailure => format!("it writes more than {LARGEST_PROMPT} bytes"),
        kind => error.detail().map_or_else(|| kind.to_string(), str::to_owned),
    };
    error.line().map_or(said.clone(), |line| format!("{said} (line {line})"))
}

/// A text of bounded length.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > LARGEST_PROMPT {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
