//! A picture that is being drawn: shapes, texts and the frame with its grid.

use super::{
    axis::{Axis, Tick},
    drawing::{Anchor, Drawing, Shape, Stroke, Text},
    font,
    theme::{Colors, Theme},
};

/// A place in a picture, in units of the SVG; y grows downwards.
pub(super) type Spot = (f64, f64);

/// A rectangle by its left upper corner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Rect {
    pub(super) fn around((x, y): Spot, width: f64, height: f64) -> Self {
        Self { x: x - width / 2.0, y: y - height / 2.0, width, height }
    }

    pub(super) fn right(&self) -> f64 {
        self.x + self.width
    }

    pub(super) fn bottom(&self) -> f64 {
        self.y + self.height
    }

    pub(super) fn center(&self) -> Spot {
        (self.x + self.width / 2.0, self.y + self.height / 2.0)
    }

    pub(super) fn grown(&self, by: f64) -> Self {
        Self { x: self.x - by, y: self.y - by, width: self.width + 2.0 * by, height: self.height + 2.0 * by }
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.x < other.right() && other.x < self.right() && self.y < other.bottom() && other.y < self.bottom()
    }

    pub(super) fn holds(&self, other: &Self) -> bool {
        other.x >= self.x && other.right() <= self.right() && other.y >= self.y && other.bottom() <= self.bottom()
    }
}

/// Sizes of text.
pub(super) const TITLE: f64 = 19.0;
pub(super) const SUBTITLE: f64 = 13.0;
pub(super) const TEXT: f64 = 12.0;
pub(super) const SMALL: f64 = 11.0;

/// The width of every picture, and the room at its left and right edge.
pub(super) const WIDTH: f64 = 960.0;
pub(super) const EDGE: f64 = 24.0;

pub(super) struct Canvas {
    pub(super) colors: &'static Colors,
    shapes: Vec<Shape>,
}

impl Canvas {
    /// A picture that begins with its title; what follows starts at the height that comes back.
    pub(super) fn titled(theme: Theme, title: &str, subtitle: &str) -> (Self, f64) {
        let mut canvas = Self { colors: theme.colors(), shapes: Vec::new() };
        let room = WIDTH - 2.0 * EDGE;
        let mut y = EDGE - 6.0;
        for (text, size, color) in [(title, TITLE, canvas.colors.ink), (subtitle, SUBTITLE, canvas.colors.muted)] {
            if !text.is_empty() {
                y += size + 7.0;
                canvas.text((EDGE, y), size, Anchor::Start, color, &font::fit(text, size, room));
            }
        }
        (canvas, y + 14.0)
    }

    /// The picture, as high as it needs to be.
    pub(super) fn finish(self, title: &str, height: f64) -> Drawing {
        let background = self.colors.background;
        Drawing { title: title.to_owned(), height: height.ceil(), background, shapes: self.shapes }
    }

    pub(super) fn shape(&mut self, shape: Shape) {
        self.shapes.push(shape);
    }

    /// A line through `spots`.
    pub(super) fn line(&mut self, spots: &[Spot], color: &'static str, width: f64, stroke: Stroke) {
        self.shape(Shape::Line { spots: spots.to_vec(), color, width, stroke });
    }

    pub(super) fn text(&mut self, spot: Spot, size: f64, anchor: Anchor, color: &'static str, text: &str) {
        self.write(Text { spot, size, anchor, color, rim: None, angle: None, words: text.to_owned() });
    }

    /// A text with a rim of the background, so that lines behind it do not disturb.
    pub(super) fn haloed(&mut self, spot: Spot, size: f64, anchor: Anchor, color: &'static str, text: &str) {
        let rim = Some(self.colors.background);
        self.write(Text { spot, size, anchor, color, rim, angle: None, words: text.to_owned() });
    }

    /// As [`Self::haloed`], turned around its middle by `angle` degrees.
    pub(super) fn turned(&mut self, spot: Spot, size: f64, color: &'static str, angle: f64, text: &str) {
        let (rim, angle) = (Some(self.colors.background), Some(angle));
        self.write(Text { spot, size, anchor: Anchor::Middle, color, rim, angle, words: text.to_owned() });
    }

    fn write(&mut self, text: Text) {
        if !text.words.is_empty() {
            self.shape(Shape::Text(text));
        }
    }
}

/// The rectangle that data are drawn in, with its axes.
pub(super) struct Frame {
    pub(super) rect: Rect,
    pub(super) x: Axis,
    pub(super) y: Axis,
}

impl Frame {
    /// Where two values meet; none outside.
    pub(super) fn spot(&self, x: f64, y: f64) -> Option<Spot> {
        self.x.position(x)?;
        self.y.position(y)?;
        Some((self.across(x), self.up(y)))
    }

    pub(super) fn across(&self, x: f64) -> f64 {
        self.rect.x + self.x.fraction(x) * self.rect.width
    }

    pub(super) fn up(&self, y: f64) -> f64 {
        self.rect.bottom() - self.y.fraction(y) * self.rect.height
    }

    /// The widest label of the y axis, for which the frame leaves room.
    pub(super) fn margin(y: &Axis) -> f64 {
        let labels = y.ticks(8).into_iter().filter_map(|tick| tick.label);
        EDGE + 8.0 + labels.map(|label| font::width(&label, TEXT)).fold(16.0, f64::max)
    }

    /// Grid, ticks and the names of the axes; the y name stands above the axis, where it can be read unturned.
    pub(super) fn draw(&self, canvas: &mut Canvas, x_label: &str, y_label: &str) {
        let (rect, colors) = (self.rect, canvas.colors);
        let (columns, rows) = (self.x.ticks(10), self.y.ticks(8));
        let color = |tick: &Tick| if tick.label.is_some() { colors.grid } else { colors.fine_grid };
        for major in [false, true] {
            for tick in columns.iter().filter(|tick| tick.label.is_some() == major) {
                let x = self.across(tick.value);
                canvas.line(&[(x, rect.y), (x, rect.bottom())], color(tick), 1.0, Stroke::default());
            }
            for tick in rows.iter().filter(|tick| tick.label.is_some() == major) {
                let y = self.up(tick.value);
                canvas.line(&[(rect.x, y), (rect.right(), y)], color(tick), 1.0, Stroke::default());
            }
        }
        let corners = [(rect.x, rect.y), (rect.x, rect.bottom()), (rect.right(), rect.bottom())];
        canvas.line(&corners, colors.frame, 1.0, Stroke::default());
        for tick in &columns {
            let spot = (self.across(tick.value), rect.bottom() + 18.0);
            canvas.text(spot, TEXT, Anchor::Middle, colors.muted, tick.label.as_deref().unwrap_or_default());
        }
        for tick in &rows {
            let spot = (rect.x - 8.0, self.up(tick.value) + 4.0);
            canvas.text(spot, TEXT, Anchor::End, colors.muted, tick.label.as_deref().unwrap_or_default());
        }
        let middle = (rect.center().0, rect.bottom() + 38.0);
        canvas.text(middle, TEXT, Anchor::Middle, colors.ink, &font::fit(x_label, TEXT, rect.width));
        canvas.text((EDGE, rect.y - 12.0), TEXT, Anchor::Start, colors.ink, &font::fit(y_label, TEXT, rect.width));
    }
}
