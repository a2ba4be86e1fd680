//! What a model goes on from: a text, a message in the model's template, or tokens.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use roofline_engine::{Chat, Message, NamedFile, Tokenizer, tokenizer::declared_ends};

use super::Request;
use crate::{Error, Result, running::Opened};

/// Longest prompt that is read, in bytes: more than any context holds.
const LONGEST: u64 = 64 << 20;

/// The tokens of a prompt, and what its model's files say of text.
pub(super) struct Prompt {
    pub(super) tokens: Vec<u32>,
    pub(super) tokenizer: Option<Tokenizer>,
    /// Tokens that end a text.
    pub(super) ends: Vec<u32>,
}

impl Prompt {
    /// `text` by the tokenizer of the model, or the tokens of the request.
    pub(super) fn of(request: &Request, text: Option<String>, opened: &Opened) -> Result<Self> {
        let files = opened.files()?;
        let tokenizer = opened.tokenizer(&files)?;
        let tokens = match (text, &tokenizer) {
            (None, _) => request.tokens.clone(),
            (Some(text), Some(tokenizer)) if request.chat => {
                tokenizer.encode(&chat(&files, request.system.as_deref(), text, opened)?, false)?
            }
            (Some(text), Some(tokenizer)) => tokenizer.encode(&text, true)?,
            (Some(_), None) => return Err(no_tokenizer(request, opened)),
        };
        if tokens.is_empty() {
            return Err(Error::request("the prompt has no tokens", "say something by `⟨prompt⟩`"));
        }
        let ends = match &tokenizer {
            Some(tokenizer) => tokenizer.ends().to_vec(),
            None => declared_ends(&files)?,
        };
        Ok(Self { tokens, tokenizer, ends })
    }
}

/// The prompt as a user's message, up to where the model is to speak.
fn chat(files: &[NamedFile], system: Option<&str>, text: String, opened: &Opened) -> Result<String> {
    let Some(chat) = Chat::from_files(files)? else {
        let message = format!("{} has no chat template", opened.model.name);
        let hint = "neither chat_template.jinja nor tokenizer_config.json has one; leave out `⟨chat⟩`";
        return Err(Error::request(message, hint));
    };
    let said = |role: &str, content: String| Message { role: role.to_owned(), content };
    let system = system.map(|system| said("system", system.to_owned()));
    let messages: Vec<Message> = system.into_iter().chain([said("user", text)]).collect();
    Ok(chat.render(&messages, true)?)
}

fn no_tokenizer(request: &Request, opened: &Opened) -> Error {
    let message = if opened.checkpoint.folder.join("tokenizer.json").exists() || !request.model.is_dir() {
        format!("{} has no tokenizer that can be used", request.model.display())
    } else {
        format!("{} has no tokenizer: there is no tokenizer.json", request.model.display())
    };
    Error::request(message, "put tokenizer.json beside the weights, or give numbers of tokens by `⟨tokens 1,2,3⟩`")
}

impl Request {
    /// The text of the prompt; none where tokens are given instead.
    pub(super) fn text(&self) -> Result<Option<String>> {
        let given = [self.prompt.is_some(), self.prompt_file.is_some(), !self.tokens.is_empty()];
        match (given.iter().filter(|given| **given).count(), &self.prompt, &self.prompt_file) {
            (1, Some(text), _) => Ok(Some(text.clone())),
            (1, None, Some(path)) => Ok(Some(read(path)?)),
            (1, None, None) if self.chat => {
                Err(Error::request("a chat template takes words, not tokens", "say `⟨prompt⟩` instead of `⟨tokens⟩`"))
            }
            (1, None, None) => Ok(None),
            (0, ..) => {
                let hint = "say `⟨prompt⟩`, or `⟨prompt_file⟩` (`-` is standard input), or `⟨tokens⟩`";
                Err(Error::request("there is no prompt", hint))
            }
            _ => Err(Error::request(
                "there are several prompts",
                "give one of `⟨prompt⟩`, `⟨prompt_file⟩` and `⟨tokens⟩`",
            )),
        }
    }
}

/// The text of a file, or of standard input.
fn read(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        io::stdin().lock().take(LONGEST + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes))
    };
    read.map_err(Error::file(path))?;
    text(path, bytes)
}

fn text(path: &Path, bytes: Vec<u8>) -> Result<String> {
    let name = if path == Path::new("-") { "standard input".into() } else { path.to_string_lossy() };
    if bytes.len() as u64 > LONGEST {
        let message = format!("{name} is longer than any prompt");
        return Err(Error::request(message, format!("{LONGEST} bytes are read at most")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let byte = error.as_bytes()[at];
        let message = format!("{name} is no UTF-8 text: byte {at} is 0x{byte:02x}");
        Error::request(message, "a prompt is text: convert the file, for example with `iconv -t utf-8`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place of the first byte that is wrong is the count of those before it.
    #[test]
    fn what_is_no_text_is_said_with_its_place() {
        let refused = |bytes: &[u8]| text(Path::new("a.txt"), bytes.to_vec()).unwrap_err().to_string();
        assert_eq!(refused(b"ab\xffcd"), "a.txt is no UTF-8 text: byte 2 is 0xff");
        // A character of three bytes that ends after two: the fault is where it begins.
        assert_eq!(refused(b"abc\xe2\x82"), "a.txt is no UTF-8 text: byte 3 is 0xe2");
        assert_eq!(text(Path::new("-"), "Grüße".into()).unwrap(), "Grüße");
    }
}
