//! Lines: how a quantity grows, such as the time of a token with the batch or the context.

use super::{
    axis::{Axis, drawable, figure},
    canvas::{Canvas, EDGE, Frame, Rect, Spot, TEXT, WIDTH},
    cells::{Line, Panel, in_columns, render},
    drawing::{Anchor, Drawing, Shape, Stroke},
    font,
    labels::apart,
    legend::{Glyph, Paint},
    theme::{Colors, Theme},
};

/// A line chart.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    pub title: String,
    pub subtitle: String,
    pub x_label: String,
    pub y_label: String,
    pub log_x: bool,
    pub log_y: bool,
    pub series: Vec<Series>,
}

/// One line, its points from left to right.
#[derive(Clone, Debug)]
pub struct Series {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

const HEIGHT: f64 = 420.0;
/// Longest name at the end of a line.
const LONGEST: f64 = 180.0;
/// Up to so many points each one is marked.
const MARKED: usize = 40;
const ROW: f64 = 15.0;

impl Lines {
    /// The picture for a background.
    pub fn drawing(&self, theme: Theme) -> Drawing {
        let (mut canvas, top) = Canvas::titled(theme, &self.title, &self.subtitle);
        let (x, y) = self.axes();
        let names = self.series.iter().map(|series| font::width(&font::fit(&series.label, TEXT, LONGEST), TEXT));
        let right = names.reduce(f64::max).map_or(EDGE, |name| EDGE + 14.0 + name);
        let left = Frame::margin(&y);
        let rect = Rect { x: left, y: top + 24.0, width: WIDTH - left - right, height: HEIGHT };
        let frame = Frame { rect, x, y };
        frame.draw(&mut canvas, &self.x_label, &self.y_label);
        for (at, series) in self.series.iter().enumerate() {
            self.draw(&mut canvas, &frame, at, series);
        }
        self.names(&mut canvas, &frame);
        canvas.finish(&self.title, rect.bottom() + 38.0 + EDGE)
    }

    fn draw(&self, canvas: &mut Canvas, frame: &Frame, at: usize, series: &Series) {
        let spots: Vec<(Spot, (f64, f64))> =
            series.points.iter().filter_map(|(x, y)| Some((frame.spot(*x, *y)?, (*x, *y)))).collect();
        let color = canvas.colors.series(at);
        // Beyond the palette, dashes tell lines of one colour apart.
        let dashes = [None, Some([7.0, 4.0]), Some([2.0, 3.0])][at / Colors::SERIES % 3];
        let stroke = Stroke { dashes, round_joins: true, round_caps: true, opacity: None };
        if spots.len() > 1 {
            canvas.line(&spots.iter().map(|(spot, _)| *spot).collect::<Vec<_>>(), color, 2.0, stroke);
        }
        if spots.len() <= MARKED {
            let paint = Paint { color, background: canvas.colors.background, hollow: false };
            for (spot, (x, y)) in spots {
                let values = format!("{}: {} at {}", series.label, figure(y), figure(x));
                let tooltip = format!("{values} ({}, {})", self.y_label, self.x_label);
                canvas.shape(Shape::Mark { glyph: Glyph::Circle, spot, radius: 3.6, paint, tooltip });
            }
        }
    }

    /// Names at the right ends, which need no legend to be looked up.
    fn names(&self, canvas: &mut Canvas, frame: &Frame) {
        let rect = frame.rect;
        let last = |series: &Series| series.points.iter().rev().find_map(|(x, y)| frame.spot(*x, *y));
        let mut ends: Vec<(usize, Spot)> =
            self.series.iter().enumerate().filter_map(|(at, series)| Some((at, last(series)?))).collect();
        ends.truncate((rect.height / ROW) as usize);
        let wanted: Vec<f64> = ends.iter().map(|(_, spot)| spot.1).collect();
        let heights = apart(&wanted, ROW, rect.y + 4.0, rect.bottom() - 4.0);
        for ((at, (x, y)), height) in ends.into_iter().zip(heights) {
            let color = canvas.colors.series(at);
            let start = rect.right() + 10.0;
            if (height - y).abs() > 2.0 || start - x > 24.0 {
                let stroke = Stroke { opacity: Some(0.5), ..Stroke::default() };
                canvas.line(&[(x + 5.0, y), (start - 3.0, height)], color, 0.9, stroke);
            }
            let name = font::fit(&self.series[at].label, TEXT, LONGEST);
            canvas.text((start, height + 4.2), TEXT, Anchor::Start, color, &name);
        }
    }

    /// The picture in characters: `height` rows for the plot and its axes, then the legend; never wider than `width`.
    pub fn terminal(&self, width: usize, height: usize, color: bool) -> String {
        let mut lines: Vec<Line> = vec![vec![(self.title.clone(), None)]];
        if !self.subtitle.is_empty() {
            lines.push(vec![(self.subtitle.clone(), None)]);
        }
        lines.push(Line::new());
        let (x, y) = self.axes();
        if let Some(mut panel) = Panel::new(x, y, width, height) {
            let mut entries = Vec::new();
            for (at, (series, letter)) in self.series.iter().zip(('a'..='z').cycle()).enumerate() {
                let places: Vec<(f64, f64)> = series.points.iter().filter_map(|(x, y)| panel.place(*x, *y)).collect();
                for pair in places.windows(2) {
                    panel.cells.line(pair[0], pair[1], Some(at), 1);
                }
                // At the right end, or from the left on where lines meet there.
                let mut ends = places.last().into_iter().chain(&places).map(|place| panel.cells.cell(*place));
                let end = ends.find(|(column, row)| panel.cells.free(*column, *row));
                if let Some((column, row)) = end {
                    panel.cells.put(column, row, letter, Some(at));
                }
                if !places.is_empty() {
                    entries.push((format!("{letter}: {}", series.label), Some(at)));
                }
            }
            lines.extend(panel.lines(&self.x_label, &self.y_label));
            lines.push(Line::new());
            lines.extend(in_columns(entries, width));
        }
        render(lines, width, color)
    }

    fn axes(&self) -> (Axis, Axis) {
        // A point counts where both of its values have a place.
        let fits = |value: f64, log: bool| if log { drawable(value) } else { value.is_finite() };
        let points: Vec<(f64, f64)> = self.series.iter().flat_map(|series| series.points.iter().copied()).collect();
        let usable = || points.iter().filter(|(x, y)| fits(*x, self.log_x) && fits(*y, self.log_y));
        let axis = |log: bool, values: Vec<f64>, margin: f64| {
            if log { Axis::log(values, margin) } else { Axis::linear(values) }
        };
        let x = axis(self.log_x, usable().map(|point| point.0).collect(), 1.15);
        let x = if self.log_x { x.marked(usable().map(|point| point.0)) } else { x };
        let y = axis(self.log_y, usable().map(|point| point.1).collect(), 1.4);
        (x, y)
    }
}
