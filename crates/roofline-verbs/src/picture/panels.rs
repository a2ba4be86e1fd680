//! A benchmark in four panels: throughput, achieved rate under the peak, time with its spread, and where operations went.

use super::{
    axis::{Axis, figure},
    canvas::{Canvas, EDGE, Frame, Rect, SMALL, Spot, TEXT, WIDTH},
    drawing::{Anchor, Drawing, Shape, Stroke},
    font,
    legend::{self, Entry, Key},
    theme::Theme,
};

/// What the picture shows.
#[derive(Clone, Debug)]
pub struct Panels {
    pub title: String,
    pub subtitle: String,
    /// In TFLOP/s.
    pub peak: f64,
    /// The part of the peak that good kernels reach.
    pub practical: f64,
    pub runs: Vec<PanelRun>,
    /// Height over width.
    pub aspect: f64,
}

/// One run.
#[derive(Clone, Debug)]
pub struct PanelRun {
    pub label: String,
    pub tokens_per_sec: f64,
    pub tflops: f64,
    pub seconds: f64,
    pub spread: f64,
    /// In TFLOP.
    pub prefill: f64,
    pub decode: f64,
}

/// A bar: its parts from the bottom up, and how far its end may lie off.
struct Column {
    parts: Vec<(f64, &'static str)>,
    spread: f64,
    text: String,
}

/// A line across a panel.
struct Level {
    value: f64,
    label: String,
    dashed: bool,
}

const GAP: f64 = 44.0;

/// A time and its spread, to the same place.
fn spread(time: f64, spread: f64) -> String {
    let digits = if time < 0.1 { 4 } else { 2 };
    format!("{time:.digits$} ± {spread:.digits$}")
}

impl Panels {
    /// The picture for a background.
    pub fn drawing(&self, theme: Theme) -> Drawing {
        let (mut canvas, top) = Canvas::titled(theme, &self.title, &self.subtitle);
        let colors = canvas.colors;
        let height = (WIDTH * self.aspect).clamp(480.0, 2400.0);
        let (width, tall) = ((WIDTH - 2.0 * EDGE - GAP) / 2.0, (height - top - 40.0) / 2.0);
        let area = |column: f64, row: f64| Rect {
            x: EDGE + column * (width + GAP),
            y: top + row * tall,
            width,
            height: tall - 8.0,
        };
        let plain = |value: fn(&PanelRun) -> f64, color| {
            let column =
                |run: &PanelRun| Column { parts: vec![(value(run), color)], spread: 0.0, text: figure(value(run)) };
            self.runs.iter().map(column).collect::<Vec<_>>()
        };
        let throughput = plain(|run| run.tokens_per_sec, colors.series(0));
        self.panel(&mut canvas, area(0.0, 0.0), "Throughput, tokens/s", &throughput, &[]);
        let levels = [
            Level { value: self.peak, label: format!("peak {}", figure(self.peak)), dashed: false },
            Level {
                value: self.peak * self.practical,
                label: format!("{:.0} %: {}", 100.0 * self.practical, figure(self.peak * self.practical)),
                dashed: true,
            },
        ];
        let rates = plain(|run| run.tflops, colors.series(2));
        self.panel(&mut canvas, area(1.0, 0.0), "Achieved TFLOP/s", &rates, &levels);
        let time = |run: &PanelRun| Column {
            parts: vec![(run.seconds, colors.series(4))],
            spread: run.spread,
            text: spread(run.seconds, run.spread),
        };
        let times: Vec<Column> = self.runs.iter().map(time).collect();
        self.panel(&mut canvas, area(0.0, 1.0), "Time, s (± standard deviation)", &times, &[]);
        let (prefill, decode) = (colors.series(2), colors.series(1));
        let flops = |run: &PanelRun| Column {
            parts: vec![(run.prefill, prefill), (run.decode, decode)],
            spread: 0.0,
            text: figure(run.prefill + run.decode),
        };
        let flops: Vec<Column> = self.runs.iter().map(flops).collect();
        let last = area(1.0, 1.0);
        self.panel(&mut canvas, last, "TFLOP of a run", &flops, &[]);
        let keys = [(prefill, "prefill", true), (decode, "decode", false)];
        let keys = keys.map(|(color, text, first)| Entry { key: Key::Swatch(color), text: text.to_owned(), first });
        legend::draw(&mut canvas, &keys, last.right() - 150.0, last.y + 2.0);
        canvas.text((WIDTH / 2.0, height - 14.0), TEXT, Anchor::Middle, colors.ink, "prompt tokens of the run");
        canvas.finish(&self.title, height)
    }

    /// Bars over the runs' names, and lines across.
    fn panel(&self, canvas: &mut Canvas, area: Rect, title: &str, columns: &[Column], levels: &[Level]) {
        let colors = canvas.colors;
        let ends = columns.iter().map(|column| column.parts.iter().map(|part| part.0).sum::<f64>() + column.spread);
        let highest = ends.chain(levels.iter().map(|level| level.value)).fold(0.0, f64::max);
        let y = Axis::linear([0.0, highest * 1.1]);
        let labels = y.ticks(5).into_iter().filter_map(|tick| tick.label);
        let margin = labels.map(|label| font::width(&label, SMALL)).fold(14.0, f64::max) + 8.0;
        canvas.text((area.x, area.y + 14.0), TEXT, Anchor::Start, colors.ink, title);
        let rect = Rect {
            x: area.x + margin,
            y: area.y + 26.0,
            width: area.width - margin,
            height: area.height - 26.0 - 24.0,
        };
        let frame = Frame { rect, x: Axis::linear([0.0, 1.0]), y };
        for tick in frame.y.ticks(5) {
            let at = frame.up(tick.value);
            canvas.line(&[(rect.x, at), (rect.right(), at)], colors.grid, 1.0, Stroke::default());
            let text = tick.label.unwrap_or_default();
            canvas.text((rect.x - 6.0, at + 4.0), SMALL, Anchor::End, colors.muted, &text);
        }
        let step = rect.width / columns.len().max(1) as f64;
        let wide = (0.62 * step).min(64.0);
        for (at, (column, run)) in columns.iter().zip(&self.runs).enumerate() {
            let middle = rect.x + (at as f64 + 0.5) * step;
            bar(canvas, &frame, (middle, wide), column, &run.label);
            let name = font::fit(&run.label, SMALL, step - 4.0);
            canvas.text((middle, rect.bottom() + 16.0), SMALL, Anchor::Middle, colors.muted, &name);
        }
        canvas.line(&[(rect.x, rect.bottom()), (rect.right(), rect.bottom())], colors.frame, 1.0, Stroke::default());
        for level in levels {
            let height = frame.up(level.value);
            let stroke = Stroke { dashes: level.dashed.then_some([7.0, 4.0]), ..Stroke::default() };
            canvas.line(&[(rect.x, height), (rect.right(), height)], colors.series(1), 1.5, stroke);
            canvas.haloed((rect.right() - 4.0, height - 5.0), SMALL, Anchor::End, colors.series(1), &level.label);
        }
    }
}

fn bar(canvas: &mut Canvas, frame: &Frame, (middle, wide): Spot, column: &Column, name: &str) {
    let colors = canvas.colors;
    let mut end = 0.0;
    for (value, color) in column.parts.iter().filter(|part| part.0.is_finite() && part.0 > 0.0) {
        let (top, bottom) = (frame.up(end + value), frame.up(end));
        let rect = Rect { x: middle - wide / 2.0, y: top, width: wide, height: (bottom - top).max(0.5) };
        let tooltip = format!("{name}: {}", column.text);
        canvas.shape(Shape::Block { rect, rounding: 2.0, color, opacity: None, tooltip });
        end += value;
    }
    if column.spread > 0.0 {
        let (low, high) = (frame.up((end - column.spread).max(0.0)), frame.up(end + column.spread));
        canvas.line(&[(middle, low), (middle, high)], colors.ink, 1.4, Stroke::default());
        for height in [low, high] {
            canvas.line(&[(middle - 6.0, height), (middle + 6.0, height)], colors.ink, 1.4, Stroke::default());
        }
    }
    let above = frame.up(end + column.spread) - 5.0;
    if font::width(&column.text, SMALL) < 1.7 * wide {
        canvas.haloed((middle, above), SMALL, Anchor::Middle, colors.ink, &column.text);
    }
}
