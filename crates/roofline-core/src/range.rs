//! Ranges of sizes: `1,2,8`, `1..512` (doubling), `512..4096+512` (steps), and lists of those.

use std::{borrow::Cow, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::Error};

use crate::Dim;

/// Longest list.
const LONGEST: usize = 256;
/// More values than a range may have.
const MAX_VALUES: usize = 1_000_000;

/// Values in the order in which they were named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range(pub Vec<u64>);

impl Range {
    /// One value.
    pub fn one(value: u64) -> Self {
        Self(vec![value])
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none, which cannot be written.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut values = Vec::new();
        for part in text.split(',') {
            expand(part, &mut values).map_err(|reason| {
                format!("`{part}` {reason}: write numbers from 1 to {}, as 1,2,8 or 1..512 or 512..4096+512", Dim::MAX)
            })?;
        }
        Ok(Self(values))
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(Dim),
    Text(String),
    List(Vec<Dim>),
}

impl<'de> Deserialize<'de> for Range {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Number(one) => Ok(Self::one(one.get())),
            Written::Text(text) => text.parse().map_err(D::Error::custom),
            Written::List(list) if list.is_empty() => Err(D::Error::custom("a range has at least one value")),
            Written::List(list) => Ok(Self(list.into_iter().map(Dim::get).collect())),
        }
    }
}

impl JsonSchema for Range {
    fn schema_name() -> Cow<'static, str> {
        "Range".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let dim = generator.subschema_for::<Dim>();
        json_schema!({ "anyOf": [
            { "type": "string", "description": "1,2,8 or 1..512 or 512..4096+512" },
            dim,
            { "type": "array", "items": dim, "minItems": 1, "maxItems": LONGEST },
        ] })
    }
}

fn expand(part: &str, values: &mut Vec<u64>) -> Result<(), &'static str> {
    let number = |text: &str| text.trim().parse::<Dim>().map(Dim::get).map_err(|_| "is not a number or a range");
    let Some((start, end)) = part.split_once("..") else {
        values.push(number(part)?);
        return Ok(());
    };
    let (end, step) = match end.split_once('+') {
        Some((end, step)) => (number(end)?, Some(number(step)?)),
        None => (number(end)?, None),
    };
    let mut value = number(start)?;
    if value > end {
        return Err("ends before it starts");
    }
    while value <= end {
        if values.len() >= MAX_VALUES {
            return Err("has more than a million values");
        }
        values.push(value);
        value = step.map_or(value * 2, |step| value + step);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_doublings_and_steps() {
        let range = |text: &str| text.parse::<Range>().map(|range| range.0);
        assert_eq!(range("1,2,8").unwrap(), [1, 2, 8]);
        assert_eq!(range("1..9").unwrap(), [1, 2, 4, 8]);
        assert_eq!(range("3..12").unwrap(), [3, 6, 12]);
        assert_eq!(range("512..2048+512,4096").unwrap(), [512, 1024, 1536, 2048, 4096]);
        for bad in ["", "0", "-1", "8..1", "1..x", "1..9+0", "1..99999999999", "1.5", "1..2147483647+1", "..", "1.."] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_and_lists_in_json() {
        let range = |text: &str| serde_json::from_str::<Range>(text).map(|range| range.0);
        assert_eq!(range("8").unwrap(), [8]);
        assert_eq!(range("[1, 4]").unwrap(), [1, 4]);
        assert_eq!(range("\"1..4\"").unwrap(), [1, 2, 4]);
        assert!(range("[]").is_err() && range("0").is_err() && range("\"x\"").is_err());
    }
}
