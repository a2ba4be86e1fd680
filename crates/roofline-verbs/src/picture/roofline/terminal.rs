//! The roofline in a terminal.

use super::{
    super::axis::figure,
    super::cells::{Line, Panel, cut, in_columns, render},
    Plan, Point, Roofline, X_LABEL, Y_LABEL,
};

/// Longest list of names of points that share a letter.
const LONGEST: usize = 28;

/// A kernel's points, each with its cell. A name may come more than once; its first prediction goes with its first
/// measurement, and so on.
#[derive(Default)]
struct Kernel<'a> {
    predicted: Option<Placed<'a>>,
    measured: Option<Placed<'a>>,
}

#[derive(Clone, Copy)]
struct Placed<'a> {
    point: &'a Point,
    cell: (usize, usize),
}

/// What is written in a cell: points that look the same, of one kernel or more.
struct Mark<'a> {
    placed: Placed<'a>,
    /// None where the alphabet has ended.
    letters: Vec<char>,
    names: Vec<&'a str>,
}

impl Roofline {
    /// The picture in characters: `height` rows for the plot and its axes, then the legend; never wider than `width`.
    pub fn terminal(&self, width: usize, height: usize, color: bool) -> String {
        let mut lines: Vec<Line> = vec![vec![(self.title.clone(), None)]];
        if !self.subtitle.is_empty() {
            lines.push(vec![(self.subtitle.clone(), None)]);
        }
        lines.push(Line::new());
        let plan = self.plan();
        if let Some(mut panel) = Panel::new(plan.x.clone(), plan.y.clone(), width, height) {
            draw_roofs(&mut panel, &plan);
            let entries = self.draw_points(&mut panel);
            write_names(&mut panel, &plan);
            lines.extend(panel.lines(X_LABEL, Y_LABEL));
            lines.push(Line::new());
            let ridges: Vec<String> = plan.ridges.iter().map(|ridge| figure(ridge.0)).collect();
            if !ridges.is_empty() {
                lines.push(vec![(format!("ridge at {} FLOP/B; left of it memory-bound", ridges.join(", ")), None)]);
            }
            if !entries.is_empty() {
                let told =
                    if self.brief { "points: small letters are predicted" } else { "points, with FLOP/B and TFLOP/s" };
                let end = if self.brief { ", capitals measured" } else { "; capitals are measured:" };
                lines.push(vec![(format!("{told}{end}"), None)]);
            }
            lines.extend(in_columns(entries, width));
        }
        render(lines, width, color)
    }

    /// Puts the letters; what they mean comes back. A kernel has one letter, small where it is predicted and a capital
    /// where it is measured. Kernels that share all their cells share their letter; of those that share one, the first is
    /// shown there.
    fn draw_points(&self, panel: &mut Panel) -> Vec<(String, Option<usize>)> {
        let mut groups: Vec<Vec<Kernel<'_>>> = Vec::new();
        for kernel in self.kernels(panel) {
            match groups.iter_mut().find(|group| group[0].looks_like(&kernel)) {
                Some(group) => group.push(kernel),
                None => groups.push(vec![kernel]),
            }
        }
        let lettered = ('a'..='z').map(Some).chain(std::iter::repeat(None)).zip(&groups);
        let mut marks: Vec<Mark<'_>> = Vec::new();
        for (letter, group) in lettered {
            for placed in [group[0].predicted, group[0].measured].into_iter().flatten() {
                match marks.iter_mut().find(|mark| mark.placed.looks_like(&placed)) {
                    Some(mark) => mark.add(letter, group),
                    None => marks.push(Mark::new(placed, letter, group)),
                }
            }
        }
        let series = self.series();
        let mut entries = Vec::new();
        for mark in &marks {
            let number = series.iter().position(|name| *name == mark.placed.point.series);
            let (column, row) = free_cell(panel, mark.placed.cell);
            panel.cells.put(column, row, mark.letters.first().copied().unwrap_or('•'), number);
            if !mark.letters.is_empty() {
                entries.push((mark.entry(series.len() > 1), number));
            }
        }
        if self.brief {
            return brief_entries(&groups, &series);
        }
        let nameless = marks.len() - entries.len();
        if nameless > 0 {
            entries.push((format!("• {nameless} more"), None));
        }
        entries
    }

    /// The points that are in the picture, by kernel.
    fn kernels(&self, panel: &Panel) -> Vec<Kernel<'_>> {
        let mut kernels: Vec<Kernel<'_>> = Vec::new();
        for point in &self.points {
            let (intensity, rate) = point.values();
            let Some(place) = panel.place(intensity, rate) else { continue };
            let placed = Some(Placed { point, cell: panel.cells.cell(place) });
            match partner(&kernels, point) {
                Some(at) if point.measured => kernels[at].measured = placed,
                Some(at) => kernels[at].predicted = placed,
                None if point.measured => kernels.push(Kernel { measured: placed, ..Kernel::default() }),
                None => kernels.push(Kernel { predicted: placed, ..Kernel::default() }),
            }
        }
        kernels
    }
}

/// A letter and its names for each kernel, predicted and measured together.
fn brief_entries(groups: &[Vec<Kernel<'_>>], series: &[&str]) -> Vec<(String, Option<usize>)> {
    let entry = |(letter, group): (char, &Vec<Kernel<'_>>)| {
        let mut names: Vec<&str> = group.iter().map(Kernel::name).collect();
        names.dedup();
        let point = group[0].predicted.or(group[0].measured).map(|placed| placed.point);
        let number = point.and_then(|point| series.iter().position(|name| *name == point.series));
        let kind = point.map(|point| point.series.as_str()).filter(|kind| !kind.is_empty());
        let names = kind.map(|kind| format!("{kind} ")).unwrap_or_default() + &names.join(", ");
        (format!("{letter} {}", cut(&names, LONGEST)), number)
    };
    let mut entries: Vec<(String, Option<usize>)> = ('a'..='z').zip(groups).map(entry).collect();
    if groups.len() > entries.len() {
        entries.push((format!("• {} more", groups.len() - entries.len()), None));
    }
    entries
}

/// The kernel that `point` is the other half of: of its series, or the only one of its name, since who measures need not
/// say in which precision.
fn partner<'a>(kernels: &[Kernel<'a>], point: &Point) -> Option<usize> {
    let named = |(at, kernel): (usize, &Kernel<'a>)| {
        let other = kernel.lacks(point.measured).filter(|other| other.label == point.label)?;
        Some((at, other))
    };
    let named: Vec<(usize, &Point)> = kernels.iter().enumerate().filter_map(named).collect();
    let own = named.iter().find(|(_, other)| other.series == point.series);
    own.or(if let [only] = &named[..] { Some(only) } else { None }).map(|(at, _)| *at)
}

impl<'a> Kernel<'a> {
    /// Its only point, where a measured or a predicted one could join it.
    fn lacks(&self, measured: bool) -> Option<&'a Point> {
        match (self.predicted, self.measured) {
            (Some(only), None) if measured => Some(only.point),
            (None, Some(only)) if !measured => Some(only.point),
            _ => None,
        }
    }

    fn name(&self) -> &'a str {
        self.predicted.or(self.measured).map_or("", |placed| &placed.point.label)
    }

    /// Whether both are in the same cells, in the same colours.
    fn looks_like(&self, other: &Self) -> bool {
        let same = |one: Option<Placed<'_>>, other: Option<Placed<'_>>| match (one, other) {
            (Some(one), Some(other)) => one.looks_like(&other),
            (one, other) => one.is_none() && other.is_none(),
        };
        same(self.predicted, other.predicted) && same(self.measured, other.measured)
    }
}

impl Placed<'_> {
    fn looks_like(&self, other: &Self) -> bool {
        let (one, two) = (self.point, other.point);
        self.cell == other.cell && one.series == two.series && one.measured == two.measured
    }
}

impl<'a> Mark<'a> {
    fn new(placed: Placed<'a>, letter: Option<char>, group: &[Kernel<'a>]) -> Self {
        let mut mark = Self { placed, letters: Vec::new(), names: Vec::new() };
        mark.add(letter, group);
        mark
    }

    fn add(&mut self, letter: Option<char>, group: &[Kernel<'a>]) {
        let measured = self.placed.point.measured;
        self.letters.extend(letter.map(|letter| if measured { letter.to_ascii_uppercase() } else { letter }));
        for name in group.iter().map(Kernel::name) {
            if !self.names.contains(&name) {
                self.names.push(name);
            }
        }
    }

    fn entry(&self, several: bool) -> String {
        let letters: Vec<String> = self.letters.iter().map(char::to_string).collect();
        let (intensity, rate) = self.placed.point.values();
        let series = if several { format!(" [{}]", self.placed.point.series) } else { String::new() };
        let names = cut(&self.names.join(", "), LONGEST);
        format!("{}: {names}{series} {}, {}", letters.join(", "), figure(intensity), figure(rate))
    }
}

/// The cell itself, or the nearest one without a letter.
fn free_cell(panel: &Panel, (column, row): (usize, usize)) -> (usize, usize) {
    let around = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (1, -1), (-1, 1), (2, 0), (-2, 0)];
    let mut near = around
        .into_iter()
        .filter_map(|(right, down)| Some((column.checked_add_signed(right)?, row.checked_add_signed(down)?)));
    near.find(|(column, row)| panel.cells.free(*column, *row)).unwrap_or((column, row))
}

fn draw_roofs(panel: &mut Panel, plan: &Plan) {
    for (intensity, peak) in &plan.ridges {
        let (top, foot) = (panel.edge((*intensity, *peak)), panel.edge((*intensity, plan.y.low())));
        panel.cells.line(top, foot, None, 4);
    }
    for roof in plan.memories.iter().chain(&plan.ceilings) {
        let (from, to) = (panel.edge(roof.from), panel.edge(roof.to));
        panel.cells.line(from, to, None, 1);
    }
}

/// The names of the roofs, at their right ends and beside the diagonals, where nothing is in the way.
fn write_names(panel: &mut Panel, plan: &Plan) {
    for roof in &plan.ceilings {
        let name = format!(" {} {} ", cut(&roof.label, 20), figure(roof.value));
        let Some(last) = panel.cells.columns.checked_sub(name.chars().count()) else { continue };
        let (_, row) = panel.cells.cell(panel.edge(roof.to));
        let _found = (last / 2..=last).rev().any(|column| panel.cells.write(column, row, &name));
    }
    for roof in &plan.memories {
        let name = format!("{} ", cut(&roof.label, 28));
        let (from, to) = (panel.edge(roof.from), panel.edge(roof.to));
        let _found = [0.6, 0.7, 0.5, 0.4, 0.8, 0.3].into_iter().any(|part| {
            let middle = (from.0 + (to.0 - from.0) * part, from.1 + (to.1 - from.1) * part);
            let (column, row) = panel.cells.cell(middle);
            column.checked_sub(name.chars().count() + 1).is_some_and(|column| panel.cells.write(column, row, &name))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::{Class, samples};

    /// Letters and the names behind them, less the numbers.
    fn legend(roofline: &Roofline) -> Vec<String> {
        let plan = roofline.plan();
        let mut panel = Panel::new(plan.x, plan.y, 80, 22).unwrap();
        let entries = roofline.draw_points(&mut panel);
        entries.iter().map(|(text, _)| text.rsplitn(3, ' ').last().unwrap().to_owned()).collect()
    }

    fn point(label: &str, intensity: f64, efficiency: f64) -> Point {
        samples::point(label, Class::Product, "bf16", intensity, efficiency)
    }

    #[test]
    fn a_capital_is_the_same_kernel_as_its_small_letter() {
        // Predicted in one cell, measured in two; then one that is measured only, and one more that is both.
        let points = vec![
            point("k_proj", 600.0, 1.0),
            point("v_proj", 600.0, 1.0),
            point("other", 2.0, 0.5),
            point("k_proj", 600.0, 0.8),
            point("v_proj", 600.0, 0.2),
            point("q_proj", 1.0, 1.0),
            Point { series: "measured".to_owned(), ..point("q_proj", 1.0, 0.3) },
        ];
        let said = legend(&Roofline { points, ..samples::h200() });
        let expected = [
            "a, b: k_proj, v_proj [bf16]",
            "A: k_proj [bf16]",
            "B: v_proj [bf16]",
            "C: other [bf16]",
            "d: q_proj [bf16]",
            "D: q_proj [measured]",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn kernels_that_share_their_cells_share_their_letter() {
        let points = ["k", "v"].into_iter().flat_map(|name| [point(name, 600.0, 1.0), point(name, 600.0, 0.5)]);
        let said = legend(&Roofline { points: points.collect(), ..samples::h200() });
        assert_eq!(said, ["a: k, v", "A: k, v"]);
    }
}
