//! The roofline of passes and measured points, as a picture.

use std::path::PathBuf;

use roofline_core::{Dim, measurement::Phase};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    place::{Place, lengths, one},
    roof::tera,
    table::few,
};
use crate::{
    Context, Error, Note, Result,
    picture::{self, Analysis, Drawing, PassKind, Theme},
};

/// What to draw.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Chart {
    /// Tokens of prompts, and in caches
    #[serde(default = "lengths")]
    pub seq_lengths: Vec<Dim>,
    /// Sequences side by side
    #[serde(default = "one")]
    pub batch_size: Dim,
    /// What somebody measured
    #[serde(default)]
    pub measured_points: Vec<MeasuredPoint>,
    /// The part of the roof at which prompts are drawn: 1 is the roof
    #[serde(default = "whole")]
    pub prefill_factor: f64,
    /// The same for tokens
    #[serde(default = "whole")]
    pub decode_factor: f64,
    #[serde(flatten)]
    pub paper: Paper,
    #[serde(flatten)]
    pub place: Place,
}

/// How a picture is made, and where it goes.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Paper {
    /// The part of the roof that good kernels reach
    pub practical: f64,
    /// Width and height in inches, of which a PNG has 150 pixels each
    #[schemars(length(max = 2))]
    pub figsize: Vec<f64>,
    /// The background
    pub theme: Theme,
    /// Where it is written, as .svg or .png
    #[schemars(extend("x-local" = true))]
    pub save_path: Option<PathBuf>,
    /// Replace a file that is there
    #[schemars(extend("x-local" = true))]
    pub force: bool,
}

impl Default for Paper {
    fn default() -> Self {
        Self { practical: 0.7, figsize: vec![12.0, 8.0], theme: Theme::Light, save_path: None, force: false }
    }
}

fn whole() -> f64 {
    1.0
}

/// A measured point.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct MeasuredPoint {
    #[serde(default)]
    pub name: String,
    /// Operations per byte
    pub oi: f64,
    pub tflops: f64,
}

/// The picture, and what is on it.
#[derive(Serialize, JsonSchema)]
pub struct ChartAnswer {
    pub title: String,
    pub peak_tflops: f64,
    pub ridge_point: f64,
    /// The height of the practical roof.
    pub practical_tflops: f64,
    pub points: Vec<TheoryPoint>,
    pub svg: String,
    pub path: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// A pass on the picture.
#[derive(Clone, Copy, Serialize, JsonSchema)]
pub struct TheoryPoint {
    pub phase: Phase,
    pub seq_len: u64,
    pub oi: f64,
    pub tflops: f64,
}

/// Pixels to an inch.
const DPI: f64 = 150.0;
/// The width of a picture in units of its drawing.
const UNITS: f64 = 960.0;

impl Paper {
    /// Height over width.
    pub(super) fn aspect(&self) -> Result<f64> {
        match self.figsize[..] {
            [width, height] if (1.0..=60.0).contains(&width) && (1.0..=60.0).contains(&height) => Ok(height / width),
            _ => Err(Error::request("a picture has a width and a height from 1 to 60 inches", "such as [12, 8]")),
        }
    }

    pub(super) fn practical(&self) -> Result<f64> {
        if self.practical > 0.0 && self.practical <= 1.0 {
            return Ok(self.practical);
        }
        Err(Error::request(format!("{} is no part of a roof", self.practical), "more than 0 and at most 1"))
    }

    /// Writes a picture where that is wanted; its path comes back.
    pub(super) fn save(&self, context: &Context, drawing: &Drawing) -> Result<Option<String>> {
        let Some(path) = &self.save_path else { return Ok(None) };
        if !context.is_local() {
            return Err(Error::request("`⟨save_path⟩` names a file", "no file is written for this caller"));
        }
        let inches = self.figsize.first().copied().unwrap_or(12.0);
        picture::write(context, drawing, path, DPI * inches / UNITS, self.force)?;
        Ok(Some(path.display().to_string()))
    }
}

impl Chart {
    pub(super) fn answer(&self, context: &Context) -> Result<ChartAnswer> {
        few(&self.seq_lengths)?;
        let found = self.place.find(context)?;
        let mut points = Vec::new();
        for (phase, factor) in [(Phase::Prefill, self.prefill_factor), (Phase::Decode, self.decode_factor)] {
            if !(factor > 0.0 && factor <= 1.0) {
                return Err(Error::request(format!("{factor} is no part of a roof"), "more than 0 and at most 1"));
            }
            for tokens in &self.seq_lengths {
                let standing = found.row(phase, self.batch_size.get(), tokens.get())?.standing;
                points.push(TheoryPoint {
                    phase,
                    seq_len: tokens.get(),
                    oi: standing.operational_intensity,
                    tflops: standing.theoretical_tflops * factor,
                });
            }
        }
        let (device, ridge) = (found.device(), found.ridge()?);
        let (peak, practical) = (tera(ridge * device.memory.bandwidth), self.paper.practical()?);
        let title = format!("Roofline Analysis: {} on {}", found.model.name, device.name);
        let batch = self.batch_size.get();
        let analysis = Analysis {
            subtitle: format!(
                "{}, batch {batch}; {peak} TFLOP/s {}, {}",
                found.precision,
                found.math.label(),
                device.memory.bandwidth
            ),
            peak,
            ridge: ridge.value(),
            practical,
            passes: points.iter().map(passed).chain(self.measured_points.iter().map(measured)).collect(),
            aspect: self.paper.aspect()?,
            title: title.clone(),
        };
        let drawing = analysis.drawing(self.paper.theme);
        Ok(ChartAnswer {
            title,
            peak_tflops: peak,
            ridge_point: ridge.value(),
            practical_tflops: peak * practical,
            points,
            path: self.paper.save(context, &drawing)?,
            svg: drawing.svg(),
            notes: context.notes(),
        })
    }
}

fn passed(point: &TheoryPoint) -> picture::Pass {
    let (kind, word) = match point.phase {
        Phase::Prefill => (PassKind::Prefill, "Prefill"),
        Phase::Decode => (PassKind::Decode, "Decode"),
    };
    picture::Pass { kind, label: format!("{word} {}", point.seq_len), intensity: point.oi, rate: point.tflops }
}

fn measured(point: &MeasuredPoint) -> picture::Pass {
    let label = if point.name.is_empty() { "measured".to_owned() } else { point.name.clone() };
    picture::Pass { kind: PassKind::Measured, label, intensity: point.oi, rate: point.tflops }
}
