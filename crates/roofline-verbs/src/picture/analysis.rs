//! The roofline of a model's passes: the roof, what of it is reached in practice, prompts, tokens, and what was measured.

use super::{
    axis::{Axis, drawable, figure},
    canvas::{Canvas, EDGE, Frame, Rect, SMALL, Spot, TEXT, WIDTH},
    drawing::{Anchor, Drawing, Gradient, Shape, Stroke},
    font,
    labels::{Ground, Request, place},
    legend::{Glyph, Paint},
    theme::Theme,
};

/// What the picture shows; rates are in TFLOP/s, intensities in FLOP/B.
#[derive(Clone, Debug)]
pub struct Analysis {
    pub title: String,
    pub subtitle: String,
    pub peak: f64,
    pub ridge: f64,
    /// The part of the roof that good kernels reach.
    pub practical: f64,
    pub passes: Vec<Pass>,
    /// Height over width.
    pub aspect: f64,
}

/// A point.
#[derive(Clone, Debug)]
pub struct Pass {
    pub kind: PassKind,
    pub label: String,
    pub intensity: f64,
    pub rate: f64,
}

/// What a point is, which decides its shape and colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassKind {
    Prefill,
    Decode,
    Measured,
}

/// From light to dark, as prompts and contexts grow.
const GREENS: [&str; 5] = ["#8fce9b", "#5fb877", "#2f9e55", "#177a3c", "#0a5327"];
const ORANGES: [&str; 5] = ["#fdbe85", "#fd9a4e", "#f0741b", "#c9530c", "#8f3707"];
const RED: &str = "#d62728";

const RADIUS: f64 = 5.6;
const ROW: f64 = 17.0;
const KEY: f64 = 26.0;
/// Rows of a column of the legend, at most.
const ROWS: usize = 8;

impl PassKind {
    fn glyph(self) -> Glyph {
        match self {
            Self::Prefill => Glyph::Square,
            Self::Decode => Glyph::Triangle,
            Self::Measured => Glyph::Star,
        }
    }

    /// The colour of the one at `at` among `count`.
    fn color(self, at: usize, count: usize) -> &'static str {
        let shades = match self {
            Self::Prefill => GREENS,
            Self::Decode => ORANGES,
            Self::Measured => return RED,
        };
        let last = shades.len() - 1;
        shades[if count < 2 { last / 2 } else { (at * last).div_ceil(count - 1).min(last) }]
    }
}

/// An entry of the legend.
enum Key {
    Line(&'static str, f64, Stroke),
    Mark(Glyph, &'static str),
}

const DASHED: Stroke = Stroke { opacity: None, dashes: Some([8.0, 5.0]), round_joins: true, round_caps: false };
const DOTTED: Stroke = Stroke { opacity: None, dashes: Some([1.5, 4.0]), round_joins: false, round_caps: true };
const SOLID: Stroke = Stroke { opacity: None, dashes: None, round_joins: true, round_caps: true };

impl Analysis {
    /// The picture for a background.
    pub fn drawing(&self, theme: Theme) -> Drawing {
        let (mut canvas, top) = Canvas::titled(theme, &self.title, &self.subtitle);
        let (x, y) = self.axes();
        let left = Frame::margin(&y);
        let height = (WIDTH * self.aspect).clamp(360.0, 2400.0);
        let rect = Rect { x: left, y: top + 24.0, width: WIDTH - left - EDGE, height: height - top - 86.0 };
        let frame = Frame { rect, x, y };
        self.tint(&mut canvas, &frame);
        frame.draw(&mut canvas, "operational intensity, FLOP/B", "TFLOP/s");
        self.roofs(&mut canvas, &frame);
        let legend = self.legend(&mut canvas, &frame);
        self.points(&mut canvas, &frame, legend);
        canvas.finish(&self.title, height)
    }

    /// From 0.1 to 10,000 FLOP/B and from 0.1 TFLOP/s to twice the peak, and further where a point is.
    fn axes(&self) -> (Axis, Axis) {
        let inside = |pass: &&Pass| drawable(pass.intensity) && drawable(pass.rate);
        let points = || self.passes.iter().filter(inside);
        let x = Axis::log(points().map(|pass| pass.intensity).chain([0.1, 1e4, self.ridge * 4.0]), 1.0);
        let foot = (self.peak / 50.0).min(0.1);
        let y = Axis::log(points().map(|pass| pass.rate).chain([foot, 2.0 * self.peak]), 1.0);
        (x, y)
    }

    /// The roof at a part of its height, from the left edge to the right.
    fn roof(&self, frame: &Frame, part: f64) -> Vec<Spot> {
        let (low, high) = (frame.x.low(), frame.x.high());
        let slope = self.peak / self.ridge;
        // Where the diagonal comes in from the left or from below.
        let start = low.max(frame.y.low() / (slope * part));
        let corners = [(start, start * slope), (self.ridge, self.peak), (high, self.peak)];
        corners.into_iter().map(|(x, y)| (frame.across(x), frame.up(y * part))).collect()
    }

    fn tint(&self, canvas: &mut Canvas, frame: &Frame) {
        let rect = frame.rect;
        let ridge = frame.x.fraction(self.ridge);
        let gradient = Gradient {
            across: (rect.x, rect.right()),
            stops: [(ridge, canvas.colors.memory), (ridge, canvas.colors.compute)],
            opacity: 0.08,
        };
        let mut corners = self.roof(frame, 1.0);
        corners.extend([(rect.right(), rect.bottom()), (rect.x, rect.bottom())]);
        canvas.shape(Shape::Area { corners, gradient });
    }

    fn roofs(&self, canvas: &mut Canvas, frame: &Frame) {
        let (rect, colors) = (frame.rect, canvas.colors);
        let ridge = frame.across(self.ridge);
        canvas.line(&[(ridge, rect.y), (ridge, rect.bottom())], colors.muted, 1.2, DOTTED);
        canvas.line(&self.roof(frame, self.practical), colors.memory, 1.6, DASHED);
        canvas.line(&self.roof(frame, 1.0), colors.ink, 2.2, SOLID);
        let text = format!("ridge {:.1} FLOP/B", self.ridge);
        canvas.haloed((ridge + 6.0, rect.bottom() - 10.0), SMALL, Anchor::Start, colors.muted, &text);
        let y = rect.y + 19.0;
        for (from, to, text) in [(rect.x, ridge, "Memory Bound"), (ridge, rect.right(), "Compute Bound")] {
            if to - from > font::width(text, TEXT) + 16.0 {
                canvas.haloed((from.midpoint(to), y), TEXT, Anchor::Middle, colors.muted, text);
            }
        }
    }

    /// Every kind's points in order, with the colour of each.
    fn painted(&self) -> Vec<(&Pass, &'static str)> {
        let mut all = Vec::new();
        for kind in [PassKind::Prefill, PassKind::Decode, PassKind::Measured] {
            let of: Vec<&Pass> = self.passes.iter().filter(|pass| pass.kind == kind).collect();
            all.extend(of.iter().enumerate().map(|(at, pass)| (*pass, kind.color(at, of.len()))));
        }
        all
    }

    /// Keys in the lower right, where no roof is; the room they take comes back.
    fn legend(&self, canvas: &mut Canvas, frame: &Frame) -> Rect {
        let colors = canvas.colors;
        let mut entries = vec![
            (Key::Line(colors.ink, 2.2, SOLID), format!("roof, peak {} TFLOP/s", figure(self.peak))),
            (Key::Line(colors.memory, 1.6, DASHED), format!("practical roof ({:.0} %)", 100.0 * self.practical)),
            (Key::Line(colors.muted, 1.2, DOTTED), format!("ridge ({:.1} FLOP/B)", self.ridge)),
        ];
        for (pass, color) in self.painted() {
            let text = format!("{} ({} FLOP/B)", pass.label, figure(pass.intensity));
            entries.push((Key::Mark(pass.kind.glyph(), color), font::fit(&text, SMALL, 190.0)));
        }
        entries.truncate(3 * ROWS);
        let columns = entries.len().div_ceil(ROWS);
        let rows = entries.len().div_ceil(columns);
        let wide =
            |column: &[(Key, String)]| column.iter().map(|(_, text)| font::width(text, SMALL)).fold(0.0, f64::max);
        let widths: Vec<f64> = entries.chunks(rows).map(|column| KEY + 12.0 + wide(column)).collect();
        let (width, height) = (widths.iter().sum::<f64>() + 8.0, rows as f64 * ROW + 12.0);
        let rect = frame.rect;
        let area = Rect { x: rect.right() - width - 10.0, y: rect.bottom() - height - 28.0, width, height };
        canvas.shape(Shape::Block {
            rect: area,
            rounding: 4.0,
            color: colors.background,
            opacity: Some(0.88),
            tooltip: String::new(),
        });
        let mut x = area.x + 10.0;
        for (column, width) in entries.chunks(rows).zip(&widths) {
            for (at, (key, text)) in column.iter().enumerate() {
                let y = area.y + 6.0 + (at as f64 + 0.5) * ROW;
                match key {
                    Key::Line(color, width, stroke) => {
                        canvas.line(&[(x, y), (x + KEY - 7.0, y)], color, *width, *stroke);
                    }
                    Key::Mark(glyph, color) => {
                        let paint = Paint { color, background: colors.background, hollow: false };
                        let (spot, radius) = ((x + (KEY - 7.0) / 2.0, y), 4.6);
                        canvas.shape(Shape::Mark { glyph: *glyph, spot, radius, paint, tooltip: String::new() });
                    }
                }
                canvas.text((x + KEY, y + 4.0), SMALL, Anchor::Start, colors.ink, text);
            }
            x += width;
        }
        area
    }

    fn points(&self, canvas: &mut Canvas, frame: &Frame, legend: Rect) {
        let colors = canvas.colors;
        let spotted: Vec<(&Pass, &'static str, Spot)> = self
            .painted()
            .into_iter()
            .filter_map(|(pass, color)| Some((pass, color, frame.spot(pass.intensity, pass.rate)?)))
            .collect();
        for (pass, color, spot) in &spotted {
            let paint = Paint { color, background: colors.background, hollow: false };
            let values = format!("{} FLOP/B, {} TFLOP/s", figure(pass.intensity), figure(pass.rate));
            let tooltip = format!("{}: {values}", pass.label);
            let radius = if pass.kind == PassKind::Measured { 1.25 * RADIUS } else { RADIUS };
            canvas.shape(Shape::Mark { glyph: pass.kind.glyph(), spot: *spot, radius, paint, tooltip });
        }
        // Predicted points are named by the legend; measured ones are what somebody looks for.
        let measured: Vec<_> = spotted.iter().filter(|(pass, ..)| pass.kind == PassKind::Measured).collect();
        let lines = [1.0, self.practical].into_iter().flat_map(|part| {
            let spots = self.roof(frame, part);
            spots.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>()
        });
        let ground = Ground {
            frame: frame.rect.grown(-3.0),
            points: spotted.iter().map(|(_, _, spot)| Rect::around(*spot, 3.0 * RADIUS, 3.0 * RADIUS)).collect(),
            texts: vec![legend],
            lines: lines.collect(),
            radius: 1.5 * RADIUS,
        };
        let texts: Vec<String> = measured.iter().map(|(pass, ..)| font::fit(&pass.label, SMALL, 180.0)).collect();
        let requests: Vec<Request> = texts
            .iter()
            .zip(&measured)
            .map(|(text, (_, _, spot))| Request { spot: *spot, width: font::width(text, SMALL), height: 14.0 })
            .collect();
        for (text, placed) in texts.iter().zip(place(&ground, &requests).0) {
            let Some(placed) = placed else { continue };
            if let Some((from, to)) = placed.leader {
                canvas.line(&[from, to], colors.muted, 0.8, Stroke { opacity: Some(0.7), ..Stroke::default() });
            }
            let corner = (placed.rect.x, placed.rect.bottom() - 3.4);
            canvas.haloed(corner, SMALL, Anchor::Start, colors.ink, text);
        }
    }
}
