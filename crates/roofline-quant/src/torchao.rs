//! Which of torchao's configurations stands for a precision: an export mapping, not a dependency.
//!
//! `map_precision_to_torchao` knows two words, INT4 and INT8, for everything of that width. torchao itself has more
//! today, and its functions (`int4_weight_only`) have become classes (`Int4WeightOnlyConfig`): what is returned names the
//! class, and says where the format that is stored differs from the one that was asked for.

use schemars::JsonSchema;
use serde::Serialize;

/// What `quantize_` of torchao is called with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "TorchaoConfig")]
pub struct QuantizeConfig {
    /// The Python expression: `Int4WeightOnlyConfig(group_size=128)`.
    pub expression: String,
    /// What the same was called before torchao 0.10: `int4_weight_only(group_size=128)`.
    pub formerly: String,
    /// Where the stored format is not the one asked for, what to know about it.
    pub differs: Option<String>,
}

/// The word for a precision: `INT4` for every 4-bit weight format, `INT8` for every 8-bit one, nothing for the rest.
pub fn map_precision_to_torchao(precision: &str) -> Option<&'static str> {
    match precision.trim().to_uppercase().as_str() {
        "INT4" | "NF4" | "NVFP4" | "MXFP4" => Some("INT4"),
        "INT8" | "FP8" | "FP8_E4M3" | "FP8_E5M2" | "MXFP8" => Some("INT8"),
        _ => None,
    }
}

/// The configuration for a precision, by the same mapping; nothing where there is none.
pub fn get_quantize_config(precision: &str, group_size: u32) -> Option<QuantizeConfig> {
    let word = map_precision_to_torchao(precision)?;
    let asked = precision.trim().to_uppercase();
    let own = match asked.as_str() {
        "FP8" | "FP8_E4M3" => Some("Float8WeightOnlyConfig()"),
        "NVFP4" => Some("NVFP4WeightOnlyConfig(), a prototype"),
        _ => None,
    };
    let differs = (asked != word).then(|| match own {
        Some(own) => format!("{asked} is not {word}: torchao stores it as it is with {own}"),
        None => format!("{asked} is not {word}: torchao has no weight-only configuration for it"),
    });
    let (expression, formerly) = if word == "INT4" {
        (format!("Int4WeightOnlyConfig(group_size={group_size})"), format!("int4_weight_only(group_size={group_size})"))
    } else {
        ("Int8WeightOnlyConfig()".to_owned(), "int8_weight_only()".to_owned())
    };
    Some(QuantizeConfig { expression, formerly, differs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bits_are_int4_and_eight_are_int8() {
        for four in ["INT4", "NF4", "nvfp4", " MXFP4 "] {
            assert_eq!(map_precision_to_torchao(four), Some("INT4"), "{four}");
        }
        for eight in ["int8", "FP8_E4M3", "FP8_E5M2", "FP8", "MXFP8"] {
            assert_eq!(map_precision_to_torchao(eight), Some("INT8"), "{eight}");
        }
        for none in ["FP16", "BF16", "FP32", "", "INT2"] {
            assert_eq!(map_precision_to_torchao(none), None, "{none}");
            assert_eq!(get_quantize_config(none, 128), None);
        }
    }

    #[test]
    fn what_differs_is_said() {
        let int4 = get_quantize_config("int4", 64).unwrap();
        assert_eq!(int4.expression, "Int4WeightOnlyConfig(group_size=64)");
        assert_eq!((int4.formerly.as_str(), int4.differs), ("int4_weight_only(group_size=64)", None));
        let nf4 = get_quantize_config("NF4", 128).unwrap();
        assert_eq!(nf4.expression, "Int4WeightOnlyConfig(group_size=128)");
        assert_eq!(nf4.differs.unwrap(), "NF4 is not INT4: torchao has no weight-only configuration for it");
        let fp8 = get_quantize_config("FP8_E4M3", 128).unwrap();
        assert_eq!(fp8.expression, "Int8WeightOnlyConfig()");
        assert!(fp8.differs.unwrap().ends_with("Float8WeightOnlyConfig()"));
    }
}
