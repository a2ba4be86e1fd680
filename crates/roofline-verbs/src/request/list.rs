//! Lists: one value stands for a list of one.

use std::{fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};

use super::Peak;

/// Longest list of a request.
pub const LONGEST: usize = 256;

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

/// Reads one value or a list of them.
pub fn read<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(one) => vec![one],
        OneOrMany::Many(many) => many,
    })
}

/// The same of what is written with commas between, as on a command line.
pub fn split<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    let texts: Vec<String> = read(deserializer)?;
    let items = texts.iter().flat_map(|text| text.split(','));
    items.map(|item| item.trim().parse().map_err(de::Error::custom)).collect()
}

/// The schema of that.
pub fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let one = generator.subschema_for::<T>();
    json_schema!({ "anyOf": [one, { "type": "array", "items": one, "maxItems": LONGEST }] })
}

/// Reads `{"fp16": "2.7TFLOP/s"}`, `"fp16=2.7TFLOP/s"` or a list of such texts.
pub fn pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Peak>, D::Error> {
    struct Pairs;

    impl<'de> de::Visitor<'de> for Pairs {
        type Value = Vec<Peak>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("units and rates, such as {\"bf16\": \"300TFLOP/s\"}")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<Peak>, E> {
            text.split(',').map(|pair| pair.parse().map_err(E::custom)).collect()
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Vec<Peak>, A::Error> {
            let mut peaks = Vec::new();
            while let Some(text) = items.next_element::<String>()? {
                peaks.push(text.parse().map_err(de::Error::custom)?);
            }
            Ok(peaks)
        }

        fn visit_map<A: de::MapAccess<'de>>(self, mut fields: A) -> Result<Vec<Peak>, A::Error> {
            let mut peaks = Vec::new();
            while let Some((unit, rate)) = fields.next_entry::<String, String>()? {
                peaks.push(format!("{unit}={rate}").parse().map_err(de::Error::custom)?);
            }
            Ok(peaks)
        }
    }

    deserializer.deserialize_any(Pairs)
}

/// The schema of that.
pub fn pairs_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [
        { "type": "string" },
        { "type": "array", "items": { "type": "string" }, "maxItems": LONGEST },
        { "type": "object", "additionalProperties": { "type": "string" } },
    ] })
}
