//! Stacked bars: which part of the time each operator takes.

use super::{
    axis::drawable,
    canvas::{Canvas, EDGE, Rect, SMALL, TEXT, WIDTH},
    cells::{Line, cut, in_columns, render, text_width},
    drawing::{Anchor, Drawing, Shape, Stroke},
    font,
    legend::{self, Entry, Key},
    theme::{Colors, Theme, contrast},
};

/// Bars of equal length, each divided into its parts.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    pub title: String,
    pub subtitle: String,
    pub bars: Vec<Bar>,
}

/// A whole and its parts in any unit; only their ratio counts.
#[derive(Clone, Debug)]
pub struct Bar {
    pub label: String,
    pub parts: Vec<(String, f64)>,
}

const BAR: f64 = 26.0;
const ROW: f64 = 38.0;
/// Longest name of a bar.
const LONGEST: f64 = 220.0;
/// The name of what is too small to have its own colour.
const OTHER: &str = "other";
/// Tells parts apart where there is no colour.
const FILLS: [char; Colors::SERIES] = ['█', '▒', '▞', '░', '▓', '▚', '◆', '·'];

impl Shares {
    /// The picture for a background.
    pub fn drawing(&self, theme: Theme) -> Drawing {
        let (mut canvas, top) = Canvas::titled(theme, &self.title, &self.subtitle);
        let colors = canvas.colors;
        let names = self.names();
        let widths = self.bars.iter().map(|bar| font::width(&font::fit(&bar.label, TEXT, LONGEST), TEXT));
        let left = EDGE + widths.fold(0.0, f64::max) + 12.0;
        let room = WIDTH - EDGE - 16.0 - left;
        let start = top + 12.0;
        let bottom = start + ROW * self.bars.len() as f64;
        for percent in [0, 25, 50, 75, 100] {
            let x = left + room * f64::from(percent) / 100.0;
            canvas.line(&[(x, start - 4.0), (x, bottom)], colors.grid, 1.0, Stroke::default());
            canvas.text((x, bottom + 18.0), TEXT, Anchor::Middle, colors.muted, &format!("{percent} %"));
        }
        for (row, bar) in self.bars.iter().enumerate() {
            let y = start + ROW * row as f64 + (ROW - BAR) / 2.0 - 2.0;
            let name = font::fit(&bar.label, TEXT, LONGEST);
            canvas.text((left - 12.0, y + BAR / 2.0 + 4.2), TEXT, Anchor::End, colors.ink, &name);
            let mut x = left;
            for (at, share) in bar.shares(&names) {
                let (width, color) = (share * room, colors.series(at));
                let tooltip = format!("{}, {}: {}", bar.label, names[at], percent(share));
                // A hairline of the background keeps neighbours apart.
                let drawn = if width > 2.0 { width - 1.0 } else { width };
                let rect = Rect { x, y, width: drawn, height: BAR };
                canvas.shape(Shape::Block { rect, rounding: 0.0, color, opacity: None, tooltip });
                let text = percent(share);
                if font::width(&text, SMALL) + 8.0 < width {
                    let middle = (x + drawn / 2.0, y + BAR / 2.0 + 3.9);
                    canvas.text(middle, SMALL, Anchor::Middle, contrast(color), &text);
                }
                x += width;
            }
        }
        let entry = |(at, name): (usize, &String)| Entry {
            key: Key::Swatch(colors.series(at)),
            text: name.clone(),
            first: false,
        };
        let entries: Vec<Entry> = names.iter().enumerate().map(entry).collect();
        let bottom = legend::draw(&mut canvas, &entries, left, bottom + 36.0);
        canvas.finish(&self.title, bottom + EDGE - 6.0)
    }

    /// The picture in characters, a row for each bar; never wider than `width`, and cut after `height` bars.
    pub fn terminal(&self, width: usize, height: usize, color: bool) -> String {
        let names = self.names();
        let mut lines: Vec<Line> = vec![vec![(self.title.clone(), None)]];
        if !self.subtitle.is_empty() {
            lines.push(vec![(self.subtitle.clone(), None)]);
        }
        lines.push(Line::new());
        let longest = self.bars.iter().map(|bar| text_width(&bar.label)).max().unwrap_or(0).min(width / 3);
        let room = width.saturating_sub(longest + 1);
        for bar in self.bars.iter().take(height) {
            let label = cut(&bar.label, longest);
            let mut line: Line = vec![(format!("{}{} ", " ".repeat(longest - text_width(&label)), label), None)];
            let (mut sum, mut drawn) = (0.0, 0);
            for (at, share) in bar.shares(&names) {
                sum += share;
                let until = ((sum * room as f64).round() as usize).min(room);
                let fill = FILLS[at % FILLS.len()].to_string();
                line.push((fill.repeat(until.saturating_sub(drawn)), Some(at)));
                drawn = until.max(drawn);
            }
            lines.push(line);
        }
        if self.bars.len() > height {
            lines.push(vec![(format!("({} more bars)", self.bars.len() - height), None)]);
        }
        lines.push(Line::new());
        let mean = |at: usize| {
            let shares = self.bars.iter().flat_map(|bar| bar.shares(&names)).filter(|(other, _)| *other == at);
            shares.map(|(_, share)| share).sum::<f64>() / self.bars.len().max(1) as f64
        };
        let entry = |(at, name): (usize, &String)| {
            let share = if self.bars.len() == 1 { format!(" {}", percent(mean(at))) } else { String::new() };
            (format!("{} {name}{share}", FILLS[at % FILLS.len()]), Some(at))
        };
        lines.extend(in_columns(names.iter().enumerate().map(entry).collect(), width));
        render(lines, width, color)
    }

    /// The parts that have a colour of their own, in the order in which they appear; the least are one part together.
    fn names(&self) -> Vec<String> {
        let mut sums: Vec<(&str, f64)> = Vec::new();
        for bar in &self.bars {
            let total = bar.total();
            for (name, value) in bar.usable() {
                match sums.iter_mut().find(|(other, _)| *other == name) {
                    Some((_, sum)) => *sum += value / total,
                    None => sums.push((name, value / total)),
                }
            }
        }
        if sums.len() <= Colors::SERIES {
            return sums.into_iter().map(|(name, _)| name.to_owned()).collect();
        }
        let mut order: Vec<f64> = sums.iter().map(|(_, sum)| *sum).collect();
        order.sort_by(|one, other| other.total_cmp(one));
        let least = order[Colors::SERIES - 2];
        let large = sums.into_iter().filter(|(name, sum)| *sum >= least && *name != OTHER);
        let mut names: Vec<String> = large.take(Colors::SERIES - 1).map(|(name, _)| name.to_owned()).collect();
        names.push(OTHER.to_owned());
        names
    }
}

impl Bar {
    fn usable(&self) -> impl Iterator<Item = (&str, f64)> {
        let parts = self.parts.iter().map(|(name, value)| (name.as_str(), *value));
        parts.filter(|(_, value)| drawable(*value))
    }

    fn total(&self) -> f64 {
        self.usable().map(|(_, value)| value).sum()
    }

    /// The share of each name that occurs, by its number.
    fn shares(&self, names: &[String]) -> Vec<(usize, f64)> {
        let total = self.total();
        let mut shares = vec![0.0; names.len()];
        for (part, value) in self.usable() {
            let at = names.iter().position(|name| name == part).unwrap_or(names.len() - 1);
            shares[at] += value / total;
        }
        shares.into_iter().enumerate().filter(|(_, share)| *share > 0.0).collect()
    }
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}
