//! What templates take from Python: methods of strings and of maps, and the date.

use jiff::{Timestamp, fmt::strtime, tz::TimeZone};
use minijinja::{
    Error, ErrorKind, State, Value,
    value::{ValueKind, from_args},
};

/// A method that Jinja for Rust does not know.
pub(super) fn call_method(_: &State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => string_method(text, method, args),
        (None, ValueKind::Map) => map_method(value, method, args),
        _ => Err(unknown(method, value.kind())),
    }
}

fn unknown(method: &str, kind: ValueKind) -> Error {
    Error::new(ErrorKind::UnknownMethod, format!("a {kind} has no method `{method}`"))
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let none = |value: Value| from_args::<()>(args).map(|()| value);
    Ok(match method {
        "strip" => strip(text, args, true, true)?,
        "lstrip" => strip(text, args, true, false)?,
        "rstrip" => strip(text, args, false, true)?,
        "upper" => none(text.to_uppercase().into())?,
        "lower" => none(text.to_lowercase().into())?,
        "capitalize" => none(capitalize(text).into())?,
        "title" => none(title(text).into())?,
        "splitlines" => none(text.lines().map(Value::from).collect())?,
        "startswith" => any_affix(args, |affix| text.starts_with(affix))?,
        "endswith" => any_affix(args, |affix| text.ends_with(affix))?,
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "split" | "rsplit" => split(text, args, method == "rsplit")?,
        "replace" => {
            let (from, to, count): (&str, &str, Option<usize>) = from_args(args)?;
            count.map_or_else(|| text.replace(from, to), |count| text.replacen(from, to, count)).into()
        }
        "join" => {
            let (parts,): (Value,) = from_args(args)?;
            let parts: Vec<String> = parts.try_iter()?.map(|part| part.to_string()).collect();
            parts.join(text).into()
        }
        "find" => {
            let (part,): (&str,) = from_args(args)?;
            text.find(part).map_or(Value::from(-1), |at| text[..at].chars().count().into())
        }
        "count" => {
            let (part,): (&str,) = from_args(args)?;
            text.matches(part).count().into()
        }
        _ => return Err(unknown(method, ValueKind::String)),
    })
}

fn strip(text: &str, args: &[Value], left: bool, right: bool) -> Result<Value, Error> {
    let (characters,): (Option<&str>,) = from_args(args)?;
    let goes = |c: char| characters.map_or(c.is_whitespace(), |characters| characters.contains(c));
    let text = if left { text.trim_start_matches(goes) } else { text };
    Ok(if right { text.trim_end_matches(goes) } else { text }.into())
}

/// Whether any of the affixes is there: one, or a tuple of them.
fn any_affix(args: &[Value], has: impl Fn(&str) -> bool) -> Result<Value, Error> {
    let (affix,): (Value,) = from_args(args)?;
    if let Some(affix) = affix.as_str() {
        return Ok(has(affix).into());
    }
    Ok(affix.try_iter()?.any(|affix| affix.as_str().is_some_and(&has)).into())
}

fn split(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
    // Python's -1 splits everywhere.
    let parts = most.and_then(|most| usize::try_from(most).ok()).map_or(usize::MAX, |most| most.saturating_add(1));
    let parts: Vec<&str> = match separator {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "an empty separator splits nothing")),
        Some(separator) if from_right => {
            let mut parts: Vec<_> = text.rsplitn(parts, separator).collect();
            parts.reverse();
            parts
        }
        Some(separator) => text.splitn(parts, separator).collect(),
        None if parts == usize::MAX => text.split_whitespace().collect(),
        None => {
            return Err(Error::new(ErrorKind::InvalidOperation, "a limited split needs a separator here"));
        }
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn capitalize(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    first + &characters.as_str().to_lowercase()
}

/// Every run of letters with its first one large.
fn title(text: &str) -> String {
    text.split_inclusive(|c: char| !c.is_alphabetic()).map(capitalize).collect()
}

fn map_method(map: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let pairs = || -> Result<Vec<(Value, Value)>, Error> {
        map.try_iter()?.map(|key| map.get_item(&key).map(|value| (key, value))).collect()
    };
    match method {
        "items" => {
            let () = from_args(args)?;
            Ok(pairs()?.into_iter().map(|(key, value)| Value::from(vec![key, value])).collect())
        }
        "keys" => {
            let () = from_args(args)?;
            Ok(map.try_iter()?.collect())
        }
        "values" => {
            let () = from_args(args)?;
            Ok(pairs()?.into_iter().map(|(_, value)| value).collect())
        }
        "get" => {
            let (key, default): (Value, Option<Value>) = from_args(args)?;
            let found = map.get_item(&key)?;
            Ok(if found.is_undefined() { default.unwrap_or(Value::from(())) } else { found })
        }
        _ => Err(unknown(method, ValueKind::Map)),
    }
}

/// The test `iterable`: not of what is none, though a loop over it is empty here.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && (value.as_str().is_some() || value.try_iter().is_ok())
}

/// The moment in a format of C's `strftime`.
pub(super) fn strftime(format: &str, now: Timestamp) -> Result<String, Error> {
    strtime::format(format, &now.to_zoned(TimeZone::UTC))
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now(`{format}`): {error}")))
}
