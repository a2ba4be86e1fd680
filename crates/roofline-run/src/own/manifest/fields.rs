//! The fields of a manifest, read one by one, so that each is refused by its name.

use std::path::Path;

use roofline_core::{Dim, Error as Core, Range};
use toml::{Table, Value};

use super::{Default, Kind, Shape};
use crate::{Error, Result};

/// Shapes that one manifest measures at most.
const SHAPES: usize = 64;
/// Longest list of arguments or macros.
const MANY: usize = 64;

/// All that there are.
pub(super) const FIELDS: [&str; 20] = [
    "name",
    "source",
    "entry",
    "op",
    "precision",
    "m",
    "n",
    "k",
    "batch",
    "heads",
    "kv_heads",
    "head_dim",
    "queries",
    "context",
    "causal",
    "arguments",
    "block",
    "grid",
    "shared",
    "defines",
];

/// The fields of a manifest, each refused by its name.
pub(super) struct Fields<'a> {
    pub(super) table: &'a Table,
    pub(super) path: &'a Path,
}

impl Fields<'_> {
    /// That a field is what it is, and what it should be.
    pub(super) fn refused(&self, name: &str, hint: &str) -> Error {
        let reason = match self.table.get(name) {
            Some(value) => format!("`{name}` is {}", value.to_string().chars().take(80).collect::<String>()),
            None => format!("`{name}` is missing"),
        };
        Error::Manifest { path: self.path.to_owned(), reason, hint: hint.to_owned() }
    }

    pub(super) fn text(&self, name: &str) -> Result<String> {
        let about = match name {
            "source" => "the file with the kernel, relative to the manifest: a text",
            "entry" => "the kernel's name, declared extern \"C\" __global__: a text",
            "op" => "gemv, gemm or attention",
            "precision" => "a precision of `⟨roofline precisions⟩`: a text",
            _ => "a text",
        };
        self.optional(name)?.ok_or_else(|| self.refused(name, about))
    }

    pub(super) fn optional(&self, name: &str) -> Result<Option<String>> {
        match self.table.get(name) {
            None => Ok(None),
            Some(Value::String(text)) if !text.trim().is_empty() && text.len() <= 4096 => Ok(Some(text.clone())),
            Some(_) => Err(self.refused(name, "it is a text")),
        }
    }

    pub(super) fn truth(&self, name: &str, usual: bool) -> Result<bool> {
        match self.table.get(name) {
            None => Ok(usual),
            Some(Value::Boolean(truth)) => Ok(*truth),
            Some(_) => Err(self.refused(name, "it is true or false")),
        }
    }

    /// A count as an expression; nothing where it is left out.
    pub(super) fn count(&self, name: &str) -> Result<String> {
        self.table.get(name).map_or_else(|| Ok("0".to_owned()), |value| self.expression(name, value))
    }

    fn expression(&self, name: &str, value: &Value) -> Result<String> {
        match value {
            Value::Integer(count) if *count >= 0 => Ok(count.to_string()),
            Value::String(text) => Ok(text.clone()),
            _ => Err(self.refused(name, "it is a whole number from 0 on, or a text such as \"ceil_div(n, 8)\"")),
        }
    }

    /// One count for each of up to three dimensions.
    pub(super) fn counts(&self, name: &str) -> Result<Vec<String>> {
        match self.table.get(name) {
            Some(Value::Array(all)) if (1..=3).contains(&all.len()) => {
                all.iter().map(|value| self.expression(name, value)).collect()
            }
            Some(value @ (Value::Integer(_) | Value::String(_))) => Ok(vec![self.expression(name, value)?]),
            _ => Err(self.refused(name, "it is a count, or a list of one to three: whole numbers or texts")),
        }
    }

    pub(super) fn arguments(&self, kind: Kind) -> Result<Vec<String>> {
        let dims = kind.dims().iter().map(|(name, _)| *name);
        let known: Vec<&str> = kind.arrays().iter().copied().chain(["y"]).chain(dims).collect();
        let hint = format!("a list of {}, in the order of the kernel's parameters", known.join(", "));
        let Some(Value::Array(all)) = self.table.get("arguments") else { return Err(self.refused("arguments", &hint)) };
        if all.is_empty() || all.len() > MANY {
            return Err(self.refused("arguments", &hint));
        }
        let mut names: Vec<String> = Vec::new();
        for value in all {
            let name = value.as_str().unwrap_or_default();
            if !known.contains(&name) {
                let shown: String =
                    value.as_str().map_or_else(|| value.to_string(), str::to_owned).chars().take(80).collect();
                let reason = format!("`arguments`: {}", Core::unknown("argument", &shown, known.iter().copied(), ""));
                return Err(Error::Manifest { path: self.path.to_owned(), reason, hint });
            }
            names.push(name.to_owned());
        }
        if !names.iter().any(|name| name == "y") {
            return Err(self.refused("arguments", "`y`, where the result goes, is among them"));
        }
        Ok(names)
    }

    pub(super) fn defines(&self) -> Result<Vec<(String, String)>> {
        let hint = "a table of macros and whole numbers, such as ROWS = 4";
        let table = match self.table.get("defines") {
            None => return Ok(Vec::new()),
            Some(Value::Table(table)) if table.len() <= MANY => table,
            Some(_) => return Err(self.refused("defines", hint)),
        };
        let define = |(name, value): (&String, &Value)| {
            if !is_identifier(name) {
                return Err(self.refused("defines", "macros have names of C"));
            }
            Ok((name.clone(), self.expression("defines", value)?))
        };
        table.iter().map(define).collect()
    }

    /// Every combination of the dimensions.
    pub(super) fn shapes(&self, kind: Kind) -> Result<Vec<Shape>> {
        let mut shapes = vec![Shape(Vec::new())];
        for (name, default) in kind.dims() {
            let sizes = match (self.table.get(*name), default) {
                (Some(value), _) => Some(self.sizes(name, value)?),
                (None, Some(Default::One)) => Some(vec![1]),
                (None, Some(Default::Heads)) => None,
                (None, None) => return Err(self.refused(name, "a number, a list, or a range such as \"1024..8192\"")),
            };
            let mut longer = Vec::new();
            for shape in &shapes {
                let heads = shape.0.first().map_or(1, |(_, heads)| *heads);
                for size in sizes.as_deref().unwrap_or(&[heads]) {
                    longer.push(Shape([shape.0.as_slice(), &[(*name, *size)]].concat()));
                }
            }
            if longer.len() > SHAPES {
                let reason = format!("its dimensions make {} shapes and more", longer.len());
                let hint = format!("{SHAPES} at most");
                return Err(Error::Manifest { path: self.path.to_owned(), reason, hint });
            }
            shapes = longer;
        }
        Ok(shapes)
    }

    fn sizes(&self, name: &str, value: &Value) -> Result<Vec<u64>> {
        let hint = format!("whole numbers from 1 to {}: one, a list, or a range such as \"1024..8192\"", Dim::MAX);
        let refused = || self.refused(name, &hint);
        let one = |value: &Value| {
            let size = value.as_integer().and_then(|size| u64::try_from(size).ok());
            size.filter(|size| (1..=Dim::MAX).contains(size)).ok_or_else(refused)
        };
        let sizes = match value {
            Value::String(text) => text.parse::<Range>().map_err(|_| refused())?.0,
            Value::Array(all) => all.iter().take(SHAPES + 1).map(one).collect::<Result<_>>()?,
            value => vec![one(value)?],
        };
        if sizes.is_empty() { Err(refused()) } else { Ok(sizes) }
    }
}

/// Whether a text is a name in C.
pub(super) fn is_identifier(text: &str) -> bool {
    let letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.chars().all(letter)
        && !text.starts_with(|first: char| first.is_ascii_digit())
        && (1..=200).contains(&text.len())
}
