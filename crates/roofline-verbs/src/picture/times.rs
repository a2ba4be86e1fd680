//! Bars of time: the least that a kernel could take, what it was expected to take and what it took, a group of bars for
//! each operator, so that formats of one operator can be compared by eye.

use super::{
    axis::{drawable, figure},
    canvas::{Canvas, EDGE, Rect, SMALL, TEXT, WIDTH},
    cells::{Line, cut, render, text_width},
    drawing::{Anchor, Drawing, Shape, Stroke},
    font,
    legend::{self, Entry, FAINT, Key},
    theme::Theme,
};

/// Times in any unit, which the subtitle should say; the longest of a group fills its width.
#[derive(Clone, Debug, Default)]
pub struct Times {
    pub title: String,
    pub subtitle: String,
    pub unit: String,
    pub groups: Vec<Group>,
}

/// An operator.
#[derive(Clone, Debug)]
pub struct Group {
    pub label: String,
    pub bars: Vec<Time>,
}

/// One kernel.
#[derive(Clone, Debug)]
pub struct Time {
    pub label: String,
    pub ideal: f64,
    pub expected: Option<f64>,
    pub measured: f64,
    /// The share of the roof that it reached.
    pub of_roof: f64,
    /// A word on it.
    pub note: &'static str,
    /// Whether that word is a reproach.
    pub bad: bool,
}

const BAR: f64 = 15.0;
const ROW: f64 = 22.0;
const HEADING: f64 = 30.0;
/// Longest name of a bar, and the narrowest column of numbers.
const LONGEST: f64 = 150.0;
const COLUMN: f64 = 74.0;
/// Fewest cells in which a bar says anything.
const SHORTEST: usize = 12;
/// The colours of a bar in a terminal: blue, and red for one that is slow.
const FINE: usize = 0;
const SLOW: usize = 1;

impl Group {
    fn longest(&self) -> f64 {
        let times = self.bars.iter().flat_map(|bar| [Some(bar.ideal), bar.expected, Some(bar.measured)]).flatten();
        times.filter(|time| drawable(*time)).fold(0.0, f64::max)
    }
}

impl Time {
    /// Where its ideal, expected and measured time end, as parts of `whole`.
    fn ends(&self, whole: f64) -> (f64, Option<f64>, f64) {
        let part = |time: f64| if drawable(time) && whole > 0.0 { (time / whole).min(1.0) } else { 0.0 };
        (part(self.ideal), self.expected.filter(|time| drawable(*time)).map(part), part(self.measured))
    }

    /// The numbers beside it; expected ones only where the picture has any.
    fn numbers(&self, expected: bool) -> Vec<String> {
        let mut numbers = vec![figure(self.ideal)];
        if expected {
            numbers.push(self.expected.map(figure).unwrap_or_default());
        }
        numbers.push(figure(self.measured));
        numbers.push(percent(self.of_roof));
        numbers
    }

    fn summary(&self, group: &str, unit: &str) -> String {
        let expected = self.expected.map(|time| format!(", expected {}", figure(time))).unwrap_or_default();
        let (ideal, measured, roof) = (figure(self.ideal), figure(self.measured), percent(self.of_roof));
        format!("{group} {}: ideal {ideal}{expected}, measured {measured} {unit}; {roof} of the roof", self.label)
    }
}

impl Times {
    /// The picture for a background.
    pub fn drawing(&self, theme: Theme) -> Drawing {
        let (mut canvas, top) = Canvas::titled(theme, &self.title, &self.subtitle);
        let colors = canvas.colors;
        let names = self.bars().map(|(_, bar)| font::width(&font::fit(&bar.label, TEXT, LONGEST), TEXT));
        let left = EDGE + names.fold(40.0, f64::max) + 12.0;
        let notes = self.bars().map(|(_, bar)| font::width(bar.note, SMALL)).fold(0.0, f64::max);
        let headings = self.headings();
        let right = WIDTH - EDGE - notes - if notes > 0.0 { 10.0 } else { 0.0 };
        let end = |column: usize| right - COLUMN * (headings.len() - 1 - column) as f64;
        let room = end(0) - COLUMN - left;
        for (column, heading) in headings.iter().enumerate() {
            canvas.text((end(column), top + 4.0), SMALL, Anchor::End, colors.muted, heading);
        }
        let mut y = top - 4.0;
        for group in &self.groups {
            if !group.label.is_empty() {
                y += HEADING;
                let label = font::fit(&group.label, TEXT, end(0) - COLUMN - EDGE);
                canvas.text((EDGE, y - 8.0), TEXT, Anchor::Start, colors.ink, &label);
            } else if y < top + 10.0 {
                y = top + 14.0;
            }
            let whole = group.longest();
            for bar in &group.bars {
                let base = y + ROW / 2.0 + 4.2;
                canvas.text(
                    (left - 10.0, base),
                    TEXT,
                    Anchor::End,
                    colors.muted,
                    &font::fit(&bar.label, TEXT, LONGEST),
                );
                let color = if bar.bad { colors.series(1) } else { colors.memory };
                let (ideal, expected, measured) = bar.ends(whole);
                let from = y + (ROW - BAR) / 2.0;
                let strip = |length: f64, opacity, tooltip| {
                    let rect = Rect { x: left, y: from, width: (length * room).max(1.0), height: BAR };
                    Shape::Block { rect, rounding: 2.0, color, opacity, tooltip }
                };
                canvas.shape(strip(ideal.min(measured), None, String::new()));
                // A colour on itself stays what it is, and the strip on top is the one that answers when pointed at.
                canvas.shape(strip(measured, Some(FAINT), bar.summary(&group.label, &self.unit)));
                if let Some(expected) = expected {
                    let at = left + expected * room;
                    canvas.line(&[(at, from - 2.5), (at, from + BAR + 2.5)], colors.ink, 2.0, Stroke::default());
                }
                for (column, number) in bar.numbers(self.expects()).iter().enumerate() {
                    let strong = column + 2 >= headings.len();
                    let ink = if strong { colors.ink } else { colors.muted };
                    canvas.text((end(column), base), TEXT, Anchor::End, ink, number);
                }
                let ink = if bar.bad { color } else { colors.muted };
                canvas.text((right + 10.0, base), SMALL, Anchor::Start, ink, bar.note);
                y += ROW;
            }
        }
        let bottom = legend::draw(&mut canvas, &self.legend(theme), left, y + 10.0);
        canvas.finish(&self.title, bottom + EDGE - 6.0)
    }

    fn legend(&self, theme: Theme) -> Vec<Entry> {
        let colors = theme.colors();
        let entry = |key, text: &str, first| Entry { key, text: text.to_owned(), first };
        let mut entries = vec![
            entry(Key::Swatch(colors.memory), "ideal: no kernel can be faster", true),
            entry(Key::Faint(colors.memory), "measured", false),
        ];
        if self.expects() {
            entries.push(entry(Key::Tick(colors.ink), "expected", false));
        }
        if self.bars().any(|(_, bar)| bar.bad) {
            entries.push(entry(Key::Swatch(colors.series(1)), "slow: below a third of its roof", true));
        }
        entries
    }

    /// The picture in characters, a row for each bar; never wider than `width`, whatever it takes in height.
    pub fn terminal(&self, width: usize, color: bool) -> String {
        let mut lines: Vec<Line> = vec![vec![(self.title.clone(), None)]];
        if !self.subtitle.is_empty() {
            lines.push(vec![(self.subtitle.clone(), None)]);
        }
        lines.push(Line::new());
        let longest = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0);
        let name = longest(&mut self.bars().map(|(_, bar)| text_width(&bar.label))).min(width / 3);
        let headings = self.headings();
        let all: Vec<Vec<String>> = self.bars().map(|(_, bar)| bar.numbers(self.expects())).collect();
        let wide = |column: usize| {
            let cells = all.iter().map(|numbers| numbers[column].chars().count());
            longest(&mut cells.chain([headings[column].chars().count()])) + 2
        };
        let notes = longest(&mut self.bars().map(|(_, bar)| bar.note.len() + 2));
        // The first columns go where there is no room for a bar beside all of them.
        let mut first = 0;
        let taken = |first: usize| name + 3 + notes + (first..headings.len()).map(wide).sum::<usize>();
        while first < headings.len() && taken(first) + SHORTEST > width {
            first += 1;
        }
        let room = width.saturating_sub(taken(first));
        let field = |cells: &[String], at: usize| format!("{:>1$}", cells[at], wide(at));
        let fields = |cells: &[String]| (first..headings.len()).map(|at| field(cells, at)).collect::<String>();
        let heading = fields(&headings);
        lines.push(vec![(" ".repeat(name + 3 + room) + &heading, None)]);
        let mut numbers = all.iter();
        for group in &self.groups {
            if !group.label.is_empty() {
                lines.push(vec![(group.label.clone(), None)]);
            }
            let whole = group.longest();
            for (bar, numbers) in group.bars.iter().zip(&mut numbers) {
                let label = cut(&bar.label, name);
                let mut line: Line = vec![(format!("  {label}{} ", " ".repeat(name - text_width(&label))), None)];
                line.extend(bar.cells(whole, room));
                line.push((fields(numbers), None));
                line.push((format!("  {}", bar.note), bar.bad.then_some(SLOW)));
                lines.push(line);
            }
        }
        lines.push(Line::new());
        let expected = if self.expects() { ", ┃ expected" } else { "" };
        lines.push(vec![(format!("█ ideal, ░ what it took beyond{expected}"), None)]);
        render(lines, width, color)
    }

    fn bars(&self) -> impl Iterator<Item = (&Group, &Time)> {
        self.groups.iter().flat_map(|group| group.bars.iter().map(move |bar| (group, bar)))
    }

    /// Whether anything was expected.
    fn expects(&self) -> bool {
        self.bars().any(|(_, bar)| bar.expected.is_some())
    }

    fn headings(&self) -> Vec<String> {
        let expected = self.expects().then(|| "expected".to_owned());
        let last = ["measured".to_owned(), "of roof".to_owned()];
        ["ideal".to_owned()].into_iter().chain(expected).chain(last).collect()
    }
}

impl Time {
    /// The bar in `room` characters.
    fn cells(&self, whole: f64, room: usize) -> Line {
        let (ideal, expected, measured) = self.ends(whole);
        let cells = |part: f64| ((part * room as f64).round() as usize).clamp(usize::from(part > 0.0).min(room), room);
        let (ideal, measured) = (cells(ideal.min(measured)), cells(measured));
        // Behind the cell it ends in, so that a short bar is still seen.
        let tick = expected.map(|part| cells(part).min(room.saturating_sub(1)));
        let series = Some(if self.bad { SLOW } else { FINE });
        let cell = |at: usize| match at {
            at if tick == Some(at) => ('┃', None),
            at if at < ideal => ('█', series),
            at if at < measured => ('░', series),
            _ => (' ', None),
        };
        let mut line = Line::new();
        for (letter, series) in (0..room).map(cell) {
            match line.last_mut() {
                Some((text, same)) if *same == series => text.push(letter),
                _ => line.push((letter.to_string(), series)),
            }
        }
        line
    }
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent < 0.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}
