//! What can be wrong with an input. Every variant names the value; [`Error::hint`] says what to do about it.

use crate::nearest::nearest;

/// A rejected input.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text that is no quantity of the expected unit.
    #[error("`{text}` {reason}: expected a quantity in {unit}, for example `{example}`")]
    Quantity {
        /// What was written.
        text: String,
        /// The symbol of the expected unit.
        unit: &'static str,
        /// What is wrong with it.
        reason: String,
        /// A correct text.
        example: &'static str,
    },

    /// A name that is in no table.
    #[error("unknown {what} `{name}`{}", .nearest.as_ref().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    Unknown {
        /// The kind of thing: "device", "format", "precision", ...
        what: &'static str,
        /// What was asked for.
        name: String,
        /// The closest known name, when one is close.
        nearest: Option<String>,
        /// How to see or build the allowed values.
        hint: String,
    },

    /// A plan that cannot be read.
    #[error("plan: {reason}")]
    Plan {
        /// What is wrong.
        reason: String,
        /// What to do.
        hint: String,
    },

    /// A dimension of zero, or one past [`crate::Dim::MAX`].
    #[error("{what} is {value}, outside 1 to {max}")]
    Dimension {
        /// Which dimension.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The largest allowed value.
        max: u64,
    },

    /// A text that is no dimension.
    #[error("a dimension is a whole number from 1 to {}", crate::Dim::MAX)]
    NoDimension {
        /// What was written.
        text: String,
    },

    /// Two dimensions that contradict each other.
    #[error("{0}")]
    Shape(String),

    /// The device has no unit that multiplies these formats.
    #[error("{what} needs {math} math, which {device} does not have")]
    MissingPeak {
        /// A precision, or a kind of kernel.
        what: String,
        /// The unit it needs.
        math: String,
        /// The device's name.
        device: String,
        /// Which precision to use instead, or how to supply the peak.
        hint: String,
    },

    /// A pair of weight and activation formats that no unit multiplies.
    #[error("no hardware multiplies {weights} weights by {activations} activations")]
    NoUnit {
        /// Format of the weights.
        weights: String,
        /// Format of the activations.
        activations: String,
    },

    /// Something that may be given once.
    #[error("the {what} `{name}` is given twice")]
    Twice {
        /// What it is.
        what: &'static str,
        /// Its name.
        name: String,
    },

    /// A device description that does not parse or is out of range.
    #[error("device `{key}`: {reason}")]
    Device {
        /// The device's key, or the file it was read from.
        key: String,
        /// What is wrong.
        reason: String,
    },

    /// Measurements that no calibration can be made from, or a calibration that makes no sense.
    #[error("calibration of `{device}`: {reason}")]
    Calibration {
        /// The device's key.
        device: String,
        /// What is wrong.
        reason: String,
    },

    /// A model description that does not parse or makes no sense.
    #[error("model `{key}`: {reason}")]
    Model {
        /// The model's key, or the file it was read from.
        key: String,
        /// What is wrong.
        reason: String,
    },

    /// A power mode the device does not have.
    #[error("{device} has no power mode `{mode}`")]
    PowerMode {
        /// The device's name.
        device: String,
        /// The mode asked for.
        mode: String,
        /// The modes it has.
        modes: Vec<String>,
    },

    /// Values to encode that do not fit the shape, or are not finite.
    #[error("cannot encode as {format}: {reason}")]
    Encode {
        /// The target format.
        format: String,
        /// What is wrong.
        reason: String,
    },
}

impl Error {
    /// An [`Error::Unknown`] with the nearest of `known`, if one is near.
    pub fn unknown<'a>(
        what: &'static str,
        name: &str,
        known: impl IntoIterator<Item = &'a str>,
        hint: impl Into<String>,
    ) -> Self {
        Self::Unknown { what, name: name.to_owned(), nearest: nearest(name, known), hint: hint.into() }
    }

    /// A stable word for machine output.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Quantity { .. } => "quantity",
            Self::Unknown { .. } => "unknown",
            Self::Plan { .. } => "plan",
            Self::Dimension { .. } | Self::NoDimension { .. } => "dimension",
            Self::Shape(_) => "shape",
            Self::MissingPeak { .. } => "missing_peak",
            Self::NoUnit { .. } => "no_unit",
            Self::Twice { .. } => "twice",
            Self::Device { .. } => "device",
            Self::Calibration { .. } => "calibration",
            Self::Model { .. } => "model",
            Self::PowerMode { .. } => "power_mode",
            Self::Encode { .. } => "encode",
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown { hint, .. } | Self::Plan { hint, .. } | Self::MissingPeak { hint, .. } => {
                Some(hint.clone()).filter(|hint| !hint.is_empty())
            }
            Self::NoUnit { activations, .. } => Some(format!(
                "keep the activations at 16 bit (weights/bf16), or use a format with tensor units for both; \
                 `{activations}` is a storage format"
            )),
            Self::PowerMode { modes, .. } if modes.is_empty() => Some("it has a single mode: leave `@...` out".into()),
            Self::PowerMode { modes, .. } => Some(format!("its modes: {}", modes.join(", "))),
            _ => None,
        }
    }
}
