//! Legends: keys and their meaning, in as many rows as they need.

use super::{
    canvas::{Canvas, EDGE, Rect, Spot, TEXT, WIDTH},
    drawing::{Anchor, Shape, Stroke},
    font,
};

/// One entry.
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) text: String,
    /// Whether a new group starts here.
    pub(super) first: bool,
}

/// What stands before the text.
pub(super) enum Key {
    /// A colour.
    Swatch(&'static str),
    /// A colour that lets the background through.
    Faint(&'static str),
    /// A mark on a bar.
    Tick(&'static str),
    /// The shape of a point.
    Glyph(Glyph, Paint),
}

/// The shape of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Glyph {
    Square,
    Triangle,
    Circle,
    Diamond,
    Star,
}

/// How a point is painted.
#[derive(Clone, Copy)]
pub(super) struct Paint {
    pub(super) color: &'static str,
    pub(super) background: &'static str,
    pub(super) hollow: bool,
}

impl Glyph {
    /// Corners of the shape with a radius; a circle has none. Shapes are of about the same area.
    pub(super) fn corners(self, (x, y): Spot, radius: f64) -> Option<Vec<Spot>> {
        let corners: &[Spot] = match self {
            Self::Square => &[(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)],
            Self::Triangle => &[(-1.12, -0.8), (1.12, -0.8), (0.0, 1.15)],
            Self::Diamond => &[(-1.3, 0.0), (0.0, -1.3), (1.3, 0.0), (0.0, 1.3)],
            Self::Star => &STAR,
            Self::Circle => return None,
        };
        Some(corners.iter().map(|(across, up)| (x + across * radius, y - up * radius)).collect())
    }
}

impl Paint {
    /// Colours of the inside and of the rim, and how wide the rim is.
    pub(super) fn inside_and_rim(self) -> (&'static str, &'static str, f64) {
        if self.hollow { (self.background, self.color, 1.8) } else { (self.color, self.background, 0.8) }
    }
}

/// A star of five points, which needs to be larger than the others to weigh as much.
const STAR: [Spot; 10] = [
    (0.0, 1.7),
    (0.38, 0.53),
    (1.62, 0.53),
    (0.62, -0.2),
    (1.0, -1.38),
    (0.0, -0.65),
    (-1.0, -1.38),
    (-0.62, -0.2),
    (-1.62, 0.53),
    (-0.38, 0.53),
];

/// The opacity of what lets the background through.
pub(super) const FAINT: f64 = 0.3;

const KEY: f64 = 20.0;
const BETWEEN: f64 = 18.0;
const GROUPS: f64 = 20.0;
const ROW: f64 = 20.0;
/// Longest text of an entry.
const LONGEST: f64 = 260.0;

/// Draws the entries from `left` on, below `top`; the bottom comes back.
pub(super) fn draw(canvas: &mut Canvas, entries: &[Entry], left: f64, top: f64) -> f64 {
    let (mut x, mut y) = (left, top + ROW / 2.0);
    for entry in entries {
        let text = font::fit(&entry.text, TEXT, LONGEST);
        let width = KEY + font::width(&text, TEXT);
        if entry.first && x > left {
            x += GROUPS;
        }
        if x > left && x + width > WIDTH - EDGE {
            (x, y) = (left, y + ROW);
        }
        match entry.key {
            Key::Swatch(color) => canvas.shape(swatch((x, y), color, None)),
            Key::Faint(color) => canvas.shape(swatch((x, y), color, Some(FAINT))),
            Key::Tick(color) => {
                canvas.line(&[(x + 7.0, y - 7.0), (x + 7.0, y + 7.0)], color, 2.0, Stroke::default());
            }
            Key::Glyph(glyph, paint) => {
                canvas.shape(Shape::Mark { glyph, spot: (x + 7.0, y), radius: 5.0, paint, tooltip: String::new() });
            }
        }
        canvas.text((x + KEY, y + 4.2), TEXT, Anchor::Start, canvas.colors.ink, &text);
        x += width + BETWEEN;
    }
    if entries.is_empty() { top } else { y + ROW / 2.0 }
}

fn swatch((x, y): Spot, color: &'static str, opacity: Option<f64>) -> Shape {
    let rect = Rect { x, y: y - 5.0, width: 13.0, height: 10.0 };
    Shape::Block { rect, rounding: 2.5, color, opacity, tooltip: String::new() }
}
