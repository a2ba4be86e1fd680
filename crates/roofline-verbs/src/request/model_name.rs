//! What a request calls a model.

use std::{borrow::Cow, convert::Infallible, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value};

/// A name, a path, or a model's own `config.json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum ModelName {
    /// A name of the registry, a Hugging Face id, or a path.
    Name(String),
    /// The content of a `config.json`.
    Config(ConfigJson),
}

/// The fields of a `config.json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct ConfigJson(Map<String, Value>);

impl fmt::Display for ConfigJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Value::Object(self.0.clone()))
    }
}

impl ModelName {
    /// The name, where it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Config(_) => None,
        }
    }
}

impl FromStr for ModelName {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self::Name(text.to_owned()))
    }
}

impl From<&str> for ModelName {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl JsonSchema for ModelName {
    fn schema_name() -> Cow<'static, str> {
        "ModelName".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [
            { "type": "string", "description": "A name of the registry or a Hugging Face id" },
            { "type": "object", "description": "The content of a config.json" },
        ] })
    }
}
