//! Types that are one text in every document: what `Display` writes and `FromStr` reads.
//!
//! Reading goes through `FromStr`, so that a slip in a request is answered with the nearest name, as on the command line.

/// `Serialize`, `Deserialize` and the schema of a type with `Display` and `FromStr`.
macro_rules! textual {
    ($type:ident, $about:literal, [$($example:literal),+]) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
                <String as serde::Deserialize>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "description": $about, "examples": [$($example),+] })
            }
        }
    };
}

/// The same for a type with `ALL` and `name()`, where the names are all the texts there are; with `Display` and `FromStr`.
macro_rules! named {
    ($type:ident, $what:literal, $several:literal, $about:literal) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = crate::Error;

            fn from_str(text: &str) -> crate::Result<Self> {
                let name = text.trim().to_ascii_lowercase();
                Self::ALL.iter().copied().find(|one| one.name() == name).ok_or_else(|| {
                    let names: Vec<&str> = Self::ALL.iter().map(|one| one.name()).collect();
                    let hint = format!(concat!($several, ": {}"), names.join(", "));
                    crate::Error::unknown($what, text, names, hint)
                })
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(|error: crate::Error| {
                    let hint = error.hint().unwrap_or_default();
                    serde::de::Error::custom(format_args!("{error}; {hint}"))
                })
            }
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let names: Vec<&str> = Self::ALL.iter().map(|one| one.name()).collect();
                schemars::json_schema!({ "type": "string", "description": $about, "enum": names })
            }
        }
    };
}

pub(crate) use {named, textual};
