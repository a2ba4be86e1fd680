//! The small files of a checkpoint, found by name and read as JSON.

use serde_json::Value;

use crate::{Error, Result};

/// Beyond this a file is not the one that its name says: a large tokenizer.json, Gemma 3's, has 33 MB.
pub(crate) const LARGEST: usize = 256 << 20;

/// A file as it lies in a checkpoint: its name, and its bytes.
pub type NamedFile = (String, Vec<u8>);

/// The bytes of the file of this name, if it is there.
pub(crate) fn find<'a>(files: &'a [NamedFile], name: &str) -> Result<Option<&'a [u8]>> {
    let Some((_, bytes)) = files.iter().find(|(other, _)| other == name) else { return Ok(None) };
    check_size(name, bytes.len())?;
    Ok(Some(bytes))
}

fn check_size(name: &str, size: usize) -> Result<()> {
    if size > LARGEST {
        return Err(Error::malformed(name, format!("it has {size} bytes, and at most {LARGEST} are read")));
    }
    Ok(())
}

/// The file of this name as JSON, if it is there.
pub(crate) fn json(files: &[NamedFile], name: &str) -> Result<Option<Value>> {
    let Some(bytes) = find(files, name)? else { return Ok(None) };
    serde_json::from_slice(bytes)
        .map(Some)
        .map_err(|error| Error::malformed_with_hint(name, error.to_string(), "fetch it again: it is no whole JSON"))
}

/// A special token of tokenizer_config.json: its text, or an object with the text as its content.
pub(crate) fn special_token<'a>(config: &'a Value, name: &str) -> Option<&'a str> {
    let token = config.get(name)?;
    token.as_str().or_else(|| token.get("content")?.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_or_not_or_too_large() {
        let files = [("a.json".to_owned(), b"{\"x\": 1}".to_vec()), ("b.json".to_owned(), b"{\"x\":".to_vec())];
        assert_eq!(json(&files, "a.json").unwrap().unwrap()["x"], 1);
        assert!(json(&files, "c.json").unwrap().is_none());
        assert!(json(&files, "b.json").unwrap_err().to_string().starts_with("`b.json` is not usable: EOF"));
        assert!(check_size("t", LARGEST).is_ok());
        let error = check_size("tokenizer.json", LARGEST + 1).unwrap_err().to_string();
        assert!(error.contains("268435457 bytes") && error.contains("at most 268435456"), "{error}");
    }
}
