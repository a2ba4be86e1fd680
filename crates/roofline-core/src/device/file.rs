//! A device as the text of its file: what [`Device::from_toml`] reads, written.
//!
//! The fields are those that serde knows. A file differs from an answer in JSON in two things: quantities are texts with their
//! units, and what a file may leave out is left out. Which numbers are quantities, and in which unit, the schema says.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::Device;
use crate::units;

/// No part of a file: its name is the key, and a device of a file is as its file says.
const NOT_IN_FILES: [&str; 3] = ["key", "mode", "origin"];
/// What a file must say, even where it says nothing.
const ALWAYS: [&str; 2] = ["memory", "peaks"];

impl Device {
    /// The text of a device file that reads back as this device. Key, power mode and origin are no part of a file.
    pub fn to_toml(&self) -> String {
        self.file()
            .unwrap_or_else(|error| unreachable!("a device is made of texts, numbers and tables of them: {error}"))
    }

    fn file(&self) -> Result<String, Box<dyn std::error::Error>> {
        let mut settings = SchemaSettings::draft2020_12().for_serialize();
        settings.inline_subschemas = true;
        let schema = settings.into_generator().into_root_schema_for::<Self>();
        let written = |device: &Self| serde_json::to_value(device).map(|told| as_in_file(told, schema.as_value()));
        let (own, default) = (written(self)?, written(&Self::default())?);
        let Value::Object(mut fields) = own else { return Err("a device is a table".into()) };
        let needless = |name: &str, value: &Value| *value == default[name] && !ALWAYS.contains(&name);
        fields.retain(|name, value| !NOT_IN_FILES.contains(&name.as_str()) && !needless(name, value));
        // In the file the rates stand beside `bandwidth` and `source`.
        if let Some(Value::Object(measured)) = fields.get_mut("measured")
            && let Some(Value::Object(rates)) = measured.shift_remove("rates")
        {
            measured.extend(rates);
        }
        Ok(toml::to_string(&fields)?)
    }
}

/// A told value as a file has it: quantities in words, and neither what is unknown nor what is not so.
fn as_in_file(value: Value, schema: &Value) -> Value {
    // What may be missing is a choice between a schema and null.
    let schema = schema.pointer("/anyOf/0").unwrap_or(schema);
    match value {
        Value::Number(number) => match (schema["x-unit"].as_str(), number.as_f64()) {
            (Some(unit), Some(value)) => Value::String(units::spelled(value, unit)),
            _ => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(|item| as_in_file(item, &schema["items"])).collect(),
        Value::Object(fields) => {
            let said = fields.into_iter().filter(|(_, value)| !matches!(value, Value::Null | Value::Bool(false)));
            let field = |(name, value): (String, Value)| {
                let value = as_in_file(value, &schema["properties"][&name]);
                (name, value)
            };
            Value::Object(said.map(field).collect::<Map<_, _>>())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Registry,
        device::{Memory, Origin, Peaks},
        units::{ByteRate, Bytes},
    };

    /// Whatever a file can say survives: every device of the registry, and a power mode of one.
    #[test]
    fn every_device_reads_back_as_it_was() {
        let registry = Registry::builtin();
        for device in registry.devices() {
            let text = device.to_toml();
            let again = Device::from_toml(&text, &format!("{}.toml", device.key))
                .unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(Device { origin: Origin::Builtin, ..again }, *device, "{text}");
        }
    }

    /// Every field, even those that no device of the registry has.
    #[test]
    fn what_the_system_takes_survives() {
        let device = Device::custom("x", ByteRate::new(60e9), Peaks::default(), Some(Bytes::new(8e9))).unwrap();
        let memory = Memory { system: Some(Bytes::new(1.5e9)), ..device.memory.clone() };
        let device = Device { memory, origin: Origin::User, ..device };
        let text = device.to_toml();
        assert_eq!(
            text,
            "name = \"x\"\n\n[memory]\nbandwidth = \"60 GB/s\"\ncapacity = \"8 GB\"\nsystem = \"1.5 GB\"\n\n[peaks]\n"
        );
        assert_eq!(Device::from_toml(&text, "x.toml").unwrap(), device);
    }

    proptest! {
        #[test]
        fn any_text_survives(name in "(?s).{1,40}", notes in "(?s).{0,60}") {
            prop_assume!(!name.trim().is_empty());
            let bandwidth = ByteRate::new(1.234_567_890_123e12);
            let device = Device::custom("x", bandwidth, Peaks::default(), None).unwrap();
            let device = Device { name, notes: Some(notes), origin: Origin::User, ..device };
            prop_assert_eq!(Device::from_toml(&device.to_toml(), "x.toml").unwrap(), device);
        }
    }
}
