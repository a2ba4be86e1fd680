//! Pictures in a terminal: lines as braille dots, points as letters, never wider than asked for.

use anstyle::{AnsiColor, Style};

use super::axis::Axis;
use crate::text;

/// A line of text in pieces, each with the number of the series that colours it.
pub(super) type Line = Vec<(String, Option<usize>)>;

/// A grid of characters; every one of them is two dots wide and four high.
pub(super) struct Cells {
    pub(super) columns: usize,
    pub(super) rows: usize,
    grid: Vec<Cell>,
}

#[derive(Clone, Copy, Default)]
struct Cell {
    dots: u8,
    letter: Option<char>,
    series: Option<usize>,
}

/// The braille dots by row and column, as Unicode numbers them.
const DOTS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

impl Cells {
    fn new(columns: usize, rows: usize) -> Self {
        Self { columns, rows, grid: vec![Cell::default(); columns * rows] }
    }

    /// The cell of a place, both parts from 0 to 1 and the second upwards.
    pub(super) fn cell(&self, (across, up): (f64, f64)) -> (usize, usize) {
        let (x, y) = self.dots((across, up));
        (x.max(0.0) as usize / 2, y.max(0.0) as usize / 4)
    }

    fn dots(&self, (across, up): (f64, f64)) -> (f64, f64) {
        ((across * (self.columns * 2 - 1) as f64).round(), ((1.0 - up) * (self.rows * 4 - 1) as f64).round())
    }

    /// A line of dots; every `step`th is drawn.
    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), series: Option<usize>, step: usize) {
        let ((x0, y0), (x1, y1)) = (self.dots(from), self.dots(to));
        let length = (x1 - x0).abs().max((y1 - y0).abs()).max(1.0) as usize;
        for at in (0..=length).step_by(step.max(1)) {
            let part = at as f64 / length as f64;
            let (x, y) = ((x0 + (x1 - x0) * part).round(), (y0 + (y1 - y0) * part).round());
            let inside = x >= 0.0 && y >= 0.0 && x < (self.columns * 2) as f64 && y < (self.rows * 4) as f64;
            if inside {
                let (x, y) = (x as usize, y as usize);
                let cell = &mut self.grid[y / 4 * self.columns + x / 2];
                cell.dots |= DOTS[y % 4][x % 2];
                if cell.letter.is_none() {
                    cell.series = series.or(cell.series);
                }
            }
        }
    }

    pub(super) fn free(&self, column: usize, row: usize) -> bool {
        column < self.columns && row < self.rows && self.grid[row * self.columns + column].letter.is_none()
    }

    pub(super) fn put(&mut self, column: usize, row: usize, letter: char, series: Option<usize>) {
        if column < self.columns && row < self.rows {
            let cell = &mut self.grid[row * self.columns + column];
            (cell.letter, cell.series) = (Some(letter), series);
        }
    }

    /// Writes a text where nothing is written yet; says whether it found room.
    pub(super) fn write(&mut self, column: usize, row: usize, text: &str) -> bool {
        // A letter that takes two columns would push the rest of the row.
        let letters: Vec<char> =
            printable(text).chars().map(|letter| if columns_of(letter) == 1 { letter } else { '?' }).collect();
        let room = (column..column + letters.len()).all(|column| self.free(column, row));
        if room {
            letters.into_iter().enumerate().for_each(|(at, letter)| self.put(column + at, row, letter, None));
        }
        room
    }

    fn row(&self, row: usize) -> Line {
        let cells = &self.grid[row * self.columns..(row + 1) * self.columns];
        let piece = |cell: &Cell| {
            let braille = if cell.dots == 0 { Some(' ') } else { char::from_u32(0x2800 + u32::from(cell.dots)) };
            (cell.letter.or(braille).unwrap_or(' ').to_string(), cell.series)
        };
        cells.iter().map(piece).collect()
    }
}

/// A frame around cells, with ticks at its axes.
pub(super) struct Panel {
    pub(super) cells: Cells,
    x: Axis,
    y: Axis,
    gutter: usize,
}

/// Fewer cells than this show nothing.
const SMALLEST: (usize, usize) = (16, 4);
/// Room above which a picture would only cost memory.
const LARGEST: (usize, usize) = (1000, 400);

impl Panel {
    /// As large as `width` and `height` allow, axes included; none where that is too small.
    pub(super) fn new(x: Axis, y: Axis, width: usize, height: usize) -> Option<Self> {
        let labels = y.ticks(height / 3).into_iter().filter_map(|tick| tick.label);
        let gutter = labels.map(|label| label.chars().count()).max().unwrap_or(0) + 2;
        let (columns, rows) = (width.checked_sub(gutter)?.min(LARGEST.0), height.checked_sub(2)?.min(LARGEST.1));
        let fits = columns >= SMALLEST.0 && rows >= SMALLEST.1;
        fits.then(|| Self { cells: Cells::new(columns, rows), x, y, gutter })
    }

    /// Where two values meet, both parts from 0 to 1; none outside.
    pub(super) fn place(&self, x: f64, y: f64) -> Option<(f64, f64)> {
        Some((self.x.position(x)?, self.y.position(y)?))
    }

    /// As [`Self::place`], for values at the edge.
    pub(super) fn edge(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (self.x.fraction(x), self.y.fraction(y))
    }

    /// The picture, the y name above it and the x name below.
    pub(super) fn lines(&self, x_label: &str, y_label: &str) -> Vec<Line> {
        let mut margin = vec![format!("{:>1$}", "│", self.gutter); self.cells.rows];
        for tick in self.y.ticks(self.cells.rows.div_ceil(3)) {
            let Some(label) = tick.label else { continue };
            let (_, row) = self.cells.cell((0.0, self.y.fraction(tick.value)));
            margin[row] = format!("{label:>0$}┤", self.gutter - 1);
        }
        let mut lines = vec![vec![(y_label.to_owned(), None)]];
        for (row, margin) in margin.into_iter().enumerate() {
            let mut line = vec![(margin, None)];
            line.extend(self.cells.row(row));
            lines.push(line);
        }
        let (axis, labels) = self.below();
        lines.push(vec![(format!("{:>1$}", "└", self.gutter) + &axis, None)]);
        lines.push(vec![(" ".repeat(self.gutter) + labels.trim_end(), None)]);
        let indent = self.gutter + self.cells.columns.saturating_sub(x_label.chars().count()) / 2;
        lines.push(vec![(" ".repeat(indent) + x_label, None)]);
        lines
    }

    /// The x axis, and the labels under it.
    fn below(&self) -> (String, String) {
        let (mut axis, mut labels) = (vec!['─'; self.cells.columns], vec![' '; self.cells.columns]);
        let mut free = 0;
        for tick in self.x.ticks(self.cells.columns / 8) {
            let (column, _) = self.cells.cell((self.x.fraction(tick.value), 0.0));
            let Some(label) = tick.label else { continue };
            axis[column] = '┬';
            let letters: Vec<char> = label.chars().collect();
            let start = column.saturating_sub(letters.len() / 2).min(labels.len().saturating_sub(letters.len()));
            if start >= free {
                free = start + letters.len() + 1;
                letters.into_iter().enumerate().for_each(|(at, letter)| labels[start + at] = letter);
            }
        }
        (axis.into_iter().collect(), labels.into_iter().collect())
    }
}

/// Entries in as many columns as fit, read downwards.
pub(super) fn in_columns(entries: Vec<(String, Option<usize>)>, width: usize) -> Vec<Line> {
    const GAP: usize = 3;
    let widest = entries.iter().map(|(text, _)| text_width(text)).max().unwrap_or(0);
    let columns = ((width + GAP) / (widest + GAP)).max(1);
    let rows = entries.len().div_ceil(columns);
    let mut lines: Vec<Line> = vec![Line::new(); rows];
    for (at, (text, series)) in entries.into_iter().enumerate() {
        let line = &mut lines[at % rows];
        if let Some((last, _)) = line.last_mut() {
            *last += &" ".repeat((widest + GAP).saturating_sub(text_width(last)));
        }
        line.push((text, series));
    }
    lines
}

/// The lines as text, each cut where it would be wider than `width`.
pub(super) fn render(lines: Vec<Line>, width: usize, color: bool) -> String {
    let mut out = String::new();
    for line in lines {
        let mut left = width;
        let end = line.iter().rposition(|(text, _)| !text.trim_end().is_empty()).map_or(0, |last| last + 1);
        for (at, (text, series)) in line.iter().take(end).enumerate() {
            let text = if at + 1 == end { text.trim_end() } else { text };
            let style = series.filter(|_| color).map_or(Style::new(), style_of);
            let shown = cut(&printable(text), left);
            left -= text_width(&shown);
            out += &format!("{style}{shown}{style:#}");
        }
        out.push('\n');
    }
    out
}

fn style_of(series: usize) -> Style {
    const COLORS: [AnsiColor; 8] = [
        AnsiColor::Blue,
        AnsiColor::Red,
        AnsiColor::Green,
        AnsiColor::Magenta,
        AnsiColor::Yellow,
        AnsiColor::Cyan,
        AnsiColor::BrightBlue,
        AnsiColor::BrightRed,
    ];
    Style::new().fg_color(Some(COLORS[series % COLORS.len()].into()))
}

/// `text` without what would drive the terminal or turn the direction of writing.
fn printable(text: &str) -> String {
    text::printable(text).replace(is_direction, "\u{fffd}")
}

/// Whether a letter, itself unseen, turns those around it: a label could pretend to be another.
pub(super) fn is_direction(letter: char) -> bool {
    matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// As much of `text` as fits, with an ellipsis where something is missing.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text_width(text) <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let kept = text.chars().take_while(|letter| {
        let fits = columns_of(*letter) <= left;
        left -= columns_of(*letter).min(left);
        fits
    });
    let kept: String = kept.collect();
    if width == 0 { kept } else { kept + "…" }
}

pub(super) fn text_width(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

/// The columns a letter takes at most: two in the scripts of East Asia and in emoji.
fn columns_of(letter: char) -> usize {
    match letter as u32 {
        0x1100..=0x11ff
        | 0x231a..=0x23f3
        | 0x25fd..=0x27bf
        | 0x2b1b..=0x2b55
        | 0x2e80..=0xd7ff
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xffe6
        | 0x1_f000.. => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_to_the_width() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("漢字漢字", 5), "漢字…");
        assert_eq!(cut("abc", 0), "");
        let line = vec![("abc".to_owned(), Some(0)), ("def\u{1b}".to_owned(), None)];
        assert_eq!(render(vec![line.clone()], 5, false), "abcd…\n");
        assert!(render(vec![line], 7, true).ends_with("def\u{fffd}\n"));
    }

    #[test]
    fn dots_follow_a_line() {
        let mut cells = Cells::new(4, 2);
        cells.line((0.0, 0.0), (1.0, 0.0), None, 1);
        let row = |cells: &Cells, row| cells.row(row).into_iter().map(|(text, _)| text).collect::<String>();
        assert_eq!((row(&cells, 0).as_str(), row(&cells, 1).as_str()), ("    ", "⣀⣀⣀⣀"));
        cells.line((-1e9, -1e9), (0.0, 0.0), None, 1 << 40);
    }

    #[test]
    fn columns_fill_the_width() {
        let entries = ["aaa", "b", "cc"].map(|text| (text.to_owned(), None)).to_vec();
        assert_eq!(render(in_columns(entries.clone(), 9), 9, false), "aaa   cc\nb\n");
        assert_eq!(render(in_columns(entries, 4), 4, false), "aaa\nb\ncc\n");
    }
}
