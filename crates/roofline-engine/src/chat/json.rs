//! JSON as Python writes it: a space after each comma and colon, and nothing escaped for HTML.

use std::io::{self, Write};

use minijinja::{Error, ErrorKind, Value, value::Kwargs};
use serde_json::{
    Serializer,
    ser::{Formatter, PrettyFormatter},
};

/// Spaces that an indent may have.
const WIDEST: usize = 16;

/// The filter `tojson`.
#[expect(clippy::needless_pass_by_value, reason = "a filter is given its options")]
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Python can also escape what is not ASCII; templates turn that off, and here it is never on.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut out = Vec::new();
    let written = match indent {
        None => serialize(value, &mut Serializer::with_formatter(&mut out, Spaced)),
        Some(width) => {
            let indent = " ".repeat(width.min(WIDEST));
            let formatter = PrettyFormatter::with_indent(indent.as_bytes());
            serialize(value, &mut Serializer::with_formatter(&mut out, formatter))
        }
    };
    let failed = |reason: String| Error::new(ErrorKind::BadSerialization, reason);
    written.map_err(|error| failed(error.to_string()))?;
    String::from_utf8(out).map_err(|error| failed(error.to_string()))
}

fn serialize<W: Write, F: Formatter>(value: &Value, serializer: &mut Serializer<W, F>) -> serde_json::Result<()> {
    serde::Serialize::serialize(value, serializer)
}

/// Commas and colons with a space after them.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
