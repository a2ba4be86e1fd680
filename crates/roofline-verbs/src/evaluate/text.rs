//! The text: read once, piece by piece, whatever its length.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    str,
};

use roofline_core::hash::Fnv1a;
use roofline_engine::{Tokenizer, evaluation::Pieces};

use super::{Request, TextFacts};
use crate::{Error, Result, demo};

/// Bytes that are read at once.
const BLOCK: usize = 1 << 20;

/// Where the text comes from.
pub(crate) enum Source {
    File(PathBuf),
    /// What comes with the demo.
    Own(&'static str),
}

impl Source {
    /// What a request names.
    pub(super) fn of(request: &Request) -> Result<Self> {
        match &request.text {
            Some(path) => Ok(Self::File(path.clone())),
            None if is_demo(&request.model) => Ok(Self::Own(demo::text())),
            None => Err(Error::request(
                "there is no text to predict",
                "say `⟨text FILE⟩`, any text in UTF-8; only `demo` has one of its own",
            )),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::File(path) => path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
            Self::Own(_) => "demo".to_owned(),
        }
    }

    /// Its tokens, `first` before them and `most` at most, and what is to be known of it. All of it is looked at, however
    /// few tokens are wanted.
    pub(crate) fn read(
        &self,
        tokenizer: &Tokenizer,
        first: Option<u32>,
        most: Option<usize>,
    ) -> Result<(Vec<u32>, TextFacts)> {
        let mut pieces = Pieces::new(tokenizer, first, most);
        let (mut bytes, mut letters, mut hash) = (0, 0, Fnv1a::default());
        let mut each = |text: &str| {
            bytes += text.len() as u64;
            letters += text.chars().count() as u64;
            hash.add(text.as_bytes());
            Ok(pieces.push(text)?)
        };
        match self {
            Self::Own(text) => each(text)?,
            Self::File(path) => blocks(path, &mut each)?,
        }
        if bytes == 0 {
            return Err(Error::request(format!("{} is empty", self.name()), "give a text that says something"));
        }
        let tokens = pieces.finish()?;
        let hash = format!("{:016x}", hash.value());
        Ok((tokens.clone(), TextFacts { name: self.name(), bytes, tokens: tokens.len(), hash, letters }))
    }
}

/// Letters to a token below which a tokenizer does not know a text's language: it spells what it knows, a letter or more to a
/// token, and cuts what it does not into bytes.
const SPELLED: f64 = 0.9;
/// The share of one token above which a text says next to nothing: a tokenizer without bytes has one for all that it does
/// not know.
const SAME: f64 = 0.5;

/// Why what a model makes of a text says little about the model; nothing where its tokenizer knows the text.
pub(crate) fn stranger(tokens: &[u32], facts: &TextFacts) -> Option<String> {
    let (count, name) = (tokens.len().max(1) as f64, &facts.name);
    let why = "is the text in a language that the model was made for?";
    let each = facts.letters as f64 / count;
    if each < SPELLED {
        return Some(format!(
            "the tokenizer cuts {name} into {:.1} tokens for each letter: {why}",
            1.0 / each.max(0.01)
        ));
    }
    let mut counts: HashMap<u32, usize> = HashMap::new();
    for token in tokens {
        *counts.entry(*token).or_default() += 1;
    }
    let (token, most) = counts.into_iter().max_by_key(|(token, count)| (*count, *token))?;
    let share = most as f64 / count;
    (share > SAME)
        .then(|| format!("{:.0} % of {name} are one and the same token, number {token}: {why}", 100.0 * share))
}

/// Whether a path is the word for the model that comes along.
fn is_demo(path: &Path) -> bool {
    path == Path::new("demo") && !path.exists()
}

/// Calls `each` with the text of a file, block after block.
fn blocks(path: &Path, each: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    if !fs::metadata(path).map_err(Error::file(path))?.is_file() {
        let message = format!("{} is no regular file", path.display());
        return Err(Error::request(message, "a text is gone through from a file: save it first"));
    }
    let mut file = File::open(path).map_err(Error::file(path))?;
    let (mut block, mut rest, mut done) = (vec![0; BLOCK], Vec::new(), 0u64);
    loop {
        let read = file.read(&mut block).map_err(Error::file(path))?;
        rest.extend_from_slice(&block[..read]);
        let valid = match str::from_utf8(&rest) {
            Ok(text) => text.len(),
            // A letter that the next block ends.
            Err(error) if error.error_len().is_none() && read > 0 => error.valid_up_to(),
            Err(error) => return Err(no_text(path, done, &rest, error.valid_up_to())),
        };
        let text = str::from_utf8(&rest[..valid]).map_err(|_| no_text(path, done, &rest, 0))?;
        each(text)?;
        done += valid as u64;
        rest.drain(..valid);
        if read == 0 {
            return Ok(());
        }
    }
}

fn no_text(path: &Path, done: u64, bytes: &[u8], at: usize) -> Error {
    let byte = bytes.get(at).copied().unwrap_or_default();
    let message = format!("{} is no UTF-8 text: byte {} is 0x{byte:02x}", path.display(), done + at as u64);
    Error::request(message, "convert the file, for example with `iconv -t utf-8`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected(name: &str, bytes: &[u8]) -> Result<String> {
        let path = std::env::temp_dir().join(format!("roofline-text-{name}-{}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        let mut all = String::new();
        let told = blocks(&path, &mut |text| {
            all += text;
            Ok(())
        });
        fs::remove_file(path).unwrap();
        told.map(|()| all)
    }

    /// A letter of three bytes lies across the end of the first block; a byte that is no text is counted from the start of
    /// the file, also in the second block, and so is a letter that the file cuts short.
    #[test]
    fn blocks_end_anywhere() {
        let mut text = "a".repeat(BLOCK - 1) + "漢字";
        assert_eq!(collected("whole", text.as_bytes()).unwrap(), text);
        let mut bytes = text.clone().into_bytes();
        bytes.push(0xff);
        let error = collected("wrong", &bytes).unwrap_err();
        assert!(error.to_string().ends_with(&format!("is no UTF-8 text: byte {} is 0xff", BLOCK + 5)), "{error}");
        text.push('é');
        let cut = &text.as_bytes()[..text.len() - 1];
        let error = collected("cut", cut).unwrap_err();
        assert!(error.to_string().ends_with(&format!("byte {} is 0xc3", BLOCK + 5)), "{error}");
        assert!(error.is_input() && error.hint().unwrap().contains("iconv"));
    }

    #[test]
    fn texts_that_a_tokenizer_does_not_know() {
        let of = |letters: u64, tokens: &[u32]| {
            stranger(tokens, &TextFacts { name: "a.txt".to_owned(), letters, ..TextFacts::default() })
        };
        let all: Vec<u32> = (0..100).collect();
        // Words, and letters one by one; 40 letters of three bytes each, most of them two or three tokens.
        assert_eq!((of(420, &all), of(100, &all)), (None, None));
        assert!(of(40, &all).unwrap().starts_with("the tokenizer cuts a.txt into 2.5 tokens for each letter"));
        // Nothing but what is not known, with some spaces.
        let same: Vec<u32> = (0..100).map(|at| if at % 4 == 0 { at } else { 7 }).collect();
        assert!(of(400, &same).unwrap().starts_with("75 % of a.txt are one and the same token, number 7"));
    }
}
