//! Tables that fit the terminal: columns that matter least go first, and their absence is said.

use anstyle::Style;

use super::style::{bold, paint, printable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// What stands in a field.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub fn styled(text: impl Into<String>, style: Style) -> Self {
        Self { text: printable(&text.into()), style }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::styled(text, Style::new())
    }
}

struct Column {
    name: String,
    align: Align,
    /// 0 stays whatever the width; the highest goes first.
    rank: u8,
}

/// Columns and rows.
#[derive(Default)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
    splits: bool,
}

const GAP: usize = 2;

/// Sentences are not broken into less than this.
const NARROWEST: usize = 40;

impl Table {
    /// Adds a column; of several that do not fit, the one with the highest rank goes first.
    #[must_use]
    pub fn column(mut self, name: impl Into<String>, align: Align, rank: u8) -> Self {
        self.columns.push(Column { name: name.into(), align, rank });
        self
    }

    /// Continues below, under the first column again, instead of dropping columns.
    #[must_use]
    pub fn splitting(self) -> Self {
        Self { splits: true, ..self }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let cells: Vec<Cell> = cells.into_iter().collect();
        debug_assert_eq!(cells.len(), self.columns.len(), "a cell for every column");
        self.rows.push(cells);
    }

    /// Removes columns in which every cell is empty.
    #[must_use]
    pub fn without_empty_columns(mut self) -> Self {
        for at in (0..self.columns.len()).rev() {
            if self.rows.iter().all(|row| row[at].text.is_empty()) {
                self.columns.remove(at);
                self.rows.iter_mut().for_each(|row| drop(row.remove(at)));
            }
        }
        self
    }

    fn widths(&self) -> Vec<usize> {
        let cells = |at: usize| self.rows.iter().map(move |row| row[at].width());
        self.columns.iter().enumerate().map(|(at, c)| cells(at).fold(c.name.chars().count(), usize::max)).collect()
    }

    /// The columns to show in `width`.
    fn fitting(&self, widths: &[usize], width: Option<usize>) -> Vec<usize> {
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let Some(width) = width else { return shown };
        let total = |shown: &[usize]| shown.iter().map(|at| widths[*at] + GAP).sum::<usize>().saturating_sub(GAP);
        while total(&shown) > width {
            let least = shown.iter().copied().filter(|at| self.columns[*at].rank > 0);
            let Some(least) = least.max_by_key(|at| self.columns[*at].rank) else { break };
            shown.retain(|at| *at != least);
        }
        shown
    }

    pub fn text(&self, width: Option<usize>) -> String {
        let widths = self.widths();
        if self.splits {
            let parts = self.groups(&widths, width);
            return parts.iter().map(|shown| self.lines(&widths, shown)).collect::<Vec<_>>().join("\n");
        }
        let shown = self.fitting(&widths, width);
        let mut out = self.lines(&widths, &shown);
        let hidden: Vec<&str> =
            (0..self.columns.len()).filter(|at| !shown.contains(at)).map(|at| self.columns[at].name.as_str()).collect();
        if !hidden.is_empty() {
            let line = format!("(wider terminal shows: {})", hidden.join(", "));
            out += &wrap(&line, width.unwrap_or(NARROWEST).max(NARROWEST), "  ");
        }
        out
    }

    /// Groups of columns that fit, each with the first.
    fn groups(&self, widths: &[usize], width: Option<usize>) -> Vec<Vec<usize>> {
        let mut groups = vec![vec![0]];
        for at in 1..self.columns.len() {
            let last = groups.last_mut().filter(|group| {
                let used: usize = group.iter().map(|at| widths[*at] + GAP).sum();
                group.len() == 1 || width.is_none_or(|width| used + widths[at] <= width)
            });
            match last {
                Some(group) => group.push(at),
                None => groups.push(vec![0, at]),
            }
        }
        groups
    }

    fn lines(&self, widths: &[usize], shown: &[usize]) -> String {
        let line = |cell: &dyn Fn(usize) -> (String, usize)| {
            let fields = shown.iter().map(|at| {
                let (text, length) = cell(*at);
                let padding = " ".repeat(widths[*at].saturating_sub(length));
                match self.columns[*at].align {
                    Align::Left => text + &padding,
                    Align::Right => padding + &text,
                }
            });
            fields.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned() + "\n"
        };
        let mut out = line(&|at| (bold(&self.columns[at].name), self.columns[at].name.chars().count()));
        for row in &self.rows {
            out += &line(&|at| (paint(&row[at].text, row[at].style), row[at].width()));
        }
        out
    }

    /// Names of the columns, with whether they hold numbers, and the texts of the rows.
    pub(super) fn cells(&self) -> (Vec<(&str, bool)>, Vec<Vec<&str>>) {
        let names = self.columns.iter().map(|column| (column.name.as_str(), column.align == Align::Right)).collect();
        let rows = self.rows.iter().map(|row| row.iter().map(|cell| cell.text.as_str()).collect()).collect();
        (names, rows)
    }

    pub fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let escape = |text: &str| printable(text).replace('|', "\\|");
        let mut out = line(self.columns.iter().map(|column| escape(&column.name)).collect());
        let rule = |column: &Column| if column.align == Align::Right { "---:" } else { "---" }.to_owned();
        out += &line(self.columns.iter().map(rule).collect());
        for row in &self.rows {
            out += &line(row.iter().map(|cell| escape(&cell.text)).collect());
        }
        out
    }
}

/// `text` in lines of at most `width`, continued lines indented.
pub fn wrap(text: &str, width: usize, indent: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > width {
            lines.push(format!("{indent}{word}"));
        } else if let Some(line) = lines.last_mut() {
            if last > 0 {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::default().column("name", Align::Left, 0).column("time", Align::Right, 1).column(
            "why",
            Align::Left,
            2,
        );
        table.row(["bf16".into(), "7 µs".into(), "because".into()]);
        table.row(["w4a16".into(), "1.8 µs".into(), "a|b".into()]);
        table
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn all_columns_where_there_is_room() {
        let text = plain(&table().text(None));
        assert_eq!(text, "name     time  why\nbf16     7 µs  because\nw4a16  1.8 µs  a|b\n");
    }

    #[test]
    fn the_least_important_columns_go_first() {
        let text = plain(&table().text(Some(14)));
        assert_eq!(text, "name     time\nbf16     7 µs\nw4a16  1.8 µs\n(wider terminal shows: why)\n");
        assert!(plain(&table().text(Some(2))).starts_with("name\nbf16\n"));
    }

    #[test]
    fn a_splitting_table_continues_below() {
        let text = plain(&table().splitting().text(Some(16)));
        let (above, below) = text.split_once("\n\n").unwrap();
        assert!(above.starts_with("name     time\n") && below.starts_with("name   why\n"), "{text}");
    }

    #[test]
    fn paragraphs_wrap_at_words() {
        assert_eq!(wrap("one two three four", 9, "  "), "one two\n  three\n  four\n");
        assert_eq!(wrap("", 9, "  "), "\n");
    }

    #[test]
    fn markdown_escapes_its_own_bars() {
        assert!(table().markdown().ends_with("| w4a16 | 1.8 µs | a\\|b |\n"));
    }
}
