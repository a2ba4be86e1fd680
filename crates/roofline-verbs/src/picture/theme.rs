//! Colours. The series are told apart by the palette of Okabe and Ito, which people with any kind of colour vision can
//! read; for a dark background it is lightened, for a light one its yellow gives way to a darker tone.

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Deserialize;

/// The background a picture is made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Theme {
    #[default]
    Light,
    Dark,
}

/// The colours of a theme.
pub(super) struct Colors {
    pub(super) background: &'static str,
    /// Titles, roofs and labels.
    pub(super) ink: &'static str,
    /// Ticks, captions and whatever explains.
    pub(super) muted: &'static str,
    pub(super) frame: &'static str,
    pub(super) grid: &'static str,
    pub(super) fine_grid: &'static str,
    /// The sides of a ridge: waiting for memory is cool, computing is warm.
    pub(super) memory: &'static str,
    pub(super) compute: &'static str,
    series: [&'static str; 8],
}

const LIGHT: Colors = Colors {
    background: "#ffffff",
    ink: "#1f2933",
    muted: "#5f6c7b",
    frame: "#b8c1cc",
    grid: "#dfe4ea",
    fine_grid: "#f1f3f6",
    memory: "#0072b2",
    compute: "#e69f00",
    series: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a6500", "#525c68"],
};

const DARK: Colors = Colors {
    background: "#12161c",
    ink: "#e7ebf0",
    muted: "#9ba7b4",
    frame: "#46505c",
    grid: "#2a323c",
    fine_grid: "#1b2129",
    memory: "#56b4e9",
    compute: "#e69f00",
    series: ["#56b4e9", "#ff8a47", "#2bc79b", "#e49ac5", "#f0b429", "#8c9eff", "#f0e442", "#c3ccd6"],
};

impl Theme {
    pub(super) fn colors(self) -> &'static Colors {
        match self {
            Self::Light => &LIGHT,
            Self::Dark => &DARK,
        }
    }
}

impl Colors {
    /// How many series can be told apart by colour.
    pub(super) const SERIES: usize = LIGHT.series.len();

    pub(super) fn series(&self, at: usize) -> &'static str {
        self.series[at % Self::SERIES]
    }
}

/// Black or white, whichever reads better on `color`.
pub(super) fn contrast(color: &str) -> &'static str {
    let channel = |at: usize| color.get(at..at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).unwrap_or(0);
    let linear = |value: u8| (f64::from(value) / 255.0).powf(2.2);
    let luminance = 0.2126 * linear(channel(1)) + 0.7152 * linear(channel(3)) + 0.0722 * linear(channel(5));
    // Where the contrast ratios of WCAG to white and to black are equal, moved a little: thin white text reads badly.
    if luminance > 0.22 { "#10151b" } else { "#ffffff" }
}
