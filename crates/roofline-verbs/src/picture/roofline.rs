//! The roofline: how fast work of an arithmetic intensity can go, and where operators stand below that.

mod layout;
mod scene;
mod terminal;

use roofline_core::units::{ByteRate, FlopRate, Intensity};

use super::{
    axis::{Axis, drawable, figure},
    legend::Glyph,
};

/// What a roofline picture shows; everything is data, and only the meeting points of lines are computed.
#[derive(Clone, Debug, Default)]
pub struct Roofline {
    pub title: String,
    pub subtitle: String,
    /// The diagonals; the slowest decides where the ridges are.
    pub memories: Vec<Memory>,
    /// The horizontal roofs, one for each math unit.
    pub ceilings: Vec<Ceiling>,
    pub points: Vec<Point>,
    /// Whether the legend of a terminal has names alone, since the numbers stand beside the picture.
    pub brief: bool,
}

/// A memory that work waits for.
#[derive(Clone, Debug)]
pub struct Memory {
    pub label: String,
    pub bandwidth: ByteRate,
}

/// A unit that computes.
#[derive(Clone, Debug)]
pub struct Ceiling {
    pub label: String,
    pub peak: FlopRate,
}

/// An operator, or a sum of them.
#[derive(Clone, Debug)]
pub struct Point {
    pub label: String,
    pub intensity: Intensity,
    pub rate: FlopRate,
    pub class: Class,
    /// What decides the colour: a precision, a device.
    pub series: String,
    /// Measured points are hollow, predicted ones filled.
    pub measured: bool,
}

/// What kind of work a point is, which decides its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Product,
    Attention,
    Elementwise,
    Total,
}

const X_LABEL: &str = "arithmetic intensity, FLOP/B";
const Y_LABEL: &str = "TFLOP/s";
const TERA: f64 = 1e12;

impl Class {
    const ALL: [Self; 4] = [Self::Product, Self::Attention, Self::Elementwise, Self::Total];

    fn name(self) -> &'static str {
        match self {
            Self::Product => "matrix product",
            Self::Attention => "attention",
            Self::Elementwise => "elementwise",
            Self::Total => "total",
        }
    }

    fn glyph(self) -> Glyph {
        match self {
            Self::Product => Glyph::Square,
            Self::Attention => Glyph::Triangle,
            Self::Elementwise => Glyph::Circle,
            Self::Total => Glyph::Diamond,
        }
    }
}

impl Point {
    /// Intensity and TFLOP/s.
    fn values(&self) -> (f64, f64) {
        (self.intensity.value(), self.rate.value() / TERA)
    }

    fn summary(&self) -> String {
        let (intensity, rate) = self.values();
        let kind = if self.measured { ", measured" } else { "" };
        let series = if self.series.is_empty() { String::new() } else { format!(" {}", self.series) };
        format!("{}{series}: {} FLOP/B, {} TFLOP/s{kind}", self.label, figure(intensity), figure(rate))
    }

    /// Whether two points look the same but for their place.
    fn resembles(&self, other: &Self) -> bool {
        self.series == other.series && self.measured == other.measured && self.class == other.class
    }
}

/// A line of the roof, in FLOP/B and TFLOP/s.
struct Roof {
    label: String,
    value: f64,
    from: (f64, f64),
    to: (f64, f64),
}

/// The axes and what is drawn on them besides the points.
struct Plan {
    x: Axis,
    y: Axis,
    memories: Vec<Roof>,
    ceilings: Vec<Roof>,
    /// Where the slowest memory meets the ceilings, from left to right.
    ridges: Vec<(f64, f64)>,
}

impl Roofline {
    fn plan(&self) -> Plan {
        let bandwidths: Vec<f64> = self.memories.iter().map(|memory| memory.bandwidth.value() / TERA).collect();
        let peaks: Vec<f64> = self.ceilings.iter().map(|ceiling| ceiling.peak.value() / TERA).collect();
        let slowest = extreme(&bandwidths, f64::min);
        let fastest = extreme(&bandwidths, f64::max);
        let top = extreme(&peaks, f64::max);
        let mut ridges: Vec<(f64, f64)> = slowest
            .map(|slowest| peaks.iter().map(|peak| (peak / slowest, *peak)).filter(|ridge| drawable(ridge.0)).collect())
            .unwrap_or_default();
        ridges.sort_by(|one, other| one.0.total_cmp(&other.0));
        ridges.dedup();

        let points: Vec<(f64, f64)> =
            self.points.iter().map(Point::values).filter(|(x, y)| drawable(*x) && drawable(*y)).collect();
        // Enough of both slopes to see them, even where no point is.
        let slopes =
            ridges.first().map(|ridge| ridge.0 / 12.0).into_iter().chain(ridges.last().map(|last| last.0 * 8.0));
        let x = Axis::log(points.iter().map(|point| point.0).chain(slopes), 1.8);
        let foot = slowest.map(|slowest| slowest * x.low() * 1.8);
        let roofs = top.map(|top| top * 1.35).into_iter().chain(peaks.iter().copied()).chain(foot);
        let y = Axis::log(points.iter().map(|point| point.1).chain(roofs), 1.7);

        let ridge_of = |peak: f64| fastest.map_or(x.low(), |fastest| peak / fastest).max(x.low());
        let diagonal = |(memory, bandwidth): (&Memory, &f64)| {
            let (from, to) =
                (x.low().max(y.low() / bandwidth), x.high().min(top.unwrap_or(y.high()).min(y.high()) / bandwidth));
            (drawable(*bandwidth) && from < to).then(|| Roof {
                label: format!("{} {}", memory.label, memory.bandwidth),
                value: *bandwidth,
                from: (from, from * bandwidth),
                to: (to, to * bandwidth),
            })
        };
        let ceiling = |(ceiling, peak): (&Ceiling, &f64)| {
            let visible = y.position(*peak).is_some() && ridge_of(*peak) < x.high();
            visible.then(|| Roof {
                label: ceiling.label.clone(),
                value: *peak,
                from: (ridge_of(*peak), *peak),
                to: (x.high(), *peak),
            })
        };
        let memories = self.memories.iter().zip(&bandwidths).filter_map(diagonal).collect();
        let ceilings = self.ceilings.iter().zip(&peaks).filter_map(ceiling).collect();
        ridges.retain(|(intensity, peak)| x.position(*intensity).is_some() && y.position(*peak).is_some());
        Plan { x, y, memories, ceilings, ridges }
    }

    /// The names of the series, in the order in which they appear.
    fn series(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for point in &self.points {
            if !names.contains(&point.series.as_str()) {
                names.push(&point.series);
            }
        }
        names
    }
}

fn extreme(values: &[f64], choose: impl Fn(f64, f64) -> f64) -> Option<f64> {
    values.iter().copied().filter(|value| drawable(*value)).reduce(choose)
}

#[cfg(test)]
mod tests;
