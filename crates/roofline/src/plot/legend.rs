//! Legends: keys and their meaning, in as many rows as they need.

use super::{
    canvas::{Anchor, Canvas, EDGE, Spot, TEXT, WIDTH, px},
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
}

/// How a point is painted.
#[derive(Clone, Copy)]
pub(super) struct Paint {
    pub(super) color: &'static str,
    pub(super) background: &'static str,
    pub(super) hollow: bool,
}

impl Glyph {
    /// The shape with a radius, and what it says when pointed at.
    pub(super) fn svg(self, (x, y): Spot, radius: f64, paint: Paint, title: &str) -> String {
        let style = if paint.hollow {
            format!("fill=\"{}\" stroke=\"{}\" stroke-width=\"1.8\"", paint.background, paint.color)
        } else {
            format!("fill=\"{}\" stroke=\"{}\" stroke-width=\"0.8\"", paint.color, paint.background)
        };
        let title = if title.is_empty() { String::new() } else { format!("<title>{title}</title>") };
        // Shapes of about the same area.
        let corners = |corners: &[(f64, f64)]| {
            let spot = |(across, up): &(f64, f64)| format!("{} {}", px(x + across * radius), px(y - up * radius));
            let data = corners.iter().map(spot).collect::<Vec<_>>().join("L");
            format!("<path d=\"M{data}Z\" {style} stroke-linejoin=\"round\">{title}</path>")
        };
        match self {
            Self::Square => corners(&[(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)]),
            Self::Triangle => corners(&[(-1.12, -0.8), (1.12, -0.8), (0.0, 1.15)]),
            Self::Diamond => corners(&[(-1.3, 0.0), (0.0, -1.3), (1.3, 0.0), (0.0, 1.3)]),
            Self::Circle => {
                format!("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" {style}>{title}</circle>", px(x), px(y), px(radius))
            }
        }
    }
}

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
            Key::Swatch(color) => swatch(canvas, (x, y), color, ""),
            Key::Faint(color) => swatch(canvas, (x, y), color, " fill-opacity=\"0.3\""),
            Key::Tick(color) => canvas.path(&[(x + 7.0, y - 7.0), (x + 7.0, y + 7.0)], color, 2.0, ""),
            Key::Glyph(glyph, paint) => canvas.element(&glyph.svg((x + 7.0, y), 5.0, paint, "")),
        }
        canvas.text((x + KEY, y + 4.2), TEXT, Anchor::Start, canvas.colors.ink, &text);
        x += width + BETWEEN;
    }
    if entries.is_empty() { top } else { y + ROW / 2.0 }
}

fn swatch(canvas: &mut Canvas, (x, y): Spot, color: &str, style: &str) {
    let (x, y) = (px(x), px(y - 5.0));
    canvas
        .element(&format!("<rect x=\"{x}\" y=\"{y}\" width=\"13\" height=\"10\" rx=\"2.5\" fill=\"{color}\"{style}/>"));
}
