//! The roofline in a terminal.

use super::{
    super::axis::figure,
    super::cells::{Line, Panel, cut, in_columns, render},
    Plan, Point, Roofline, X_LABEL, Y_LABEL,
};

/// Longest list of names of points that share a letter.
const LONGEST: usize = 28;

/// Points in one cell that look the same, under one letter.
struct Group<'a> {
    cell: (usize, usize),
    points: Vec<&'a Point>,
}

impl Roofline {
    /// The picture in characters: `height` rows for the plot and its axes, then the legend; never wider than `width`.
    pub(crate) fn terminal(&self, width: usize, height: usize, color: bool) -> String {
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
                lines.push(vec![("points, with FLOP/B and TFLOP/s; capitals are measured:".to_owned(), None)]);
            }
            lines.extend(in_columns(entries, width));
        }
        render(lines, width, color)
    }

    /// Puts the letters; what they mean comes back.
    fn draw_points(&self, panel: &mut Panel) -> Vec<(String, Option<usize>)> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        for point in &self.points {
            let (intensity, rate) = point.values();
            let Some(place) = panel.place(intensity, rate) else { continue };
            let cell = panel.cells.cell(place);
            let same = |group: &&mut Group<'_>| {
                let first = group.points[0];
                group.cell == cell && first.series == point.series && first.measured == point.measured
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.points.push(point),
                None => groups.push(Group { cell, points: vec![point] }),
            }
        }
        let series = self.series();
        let several = series.len() > 1;
        // Predicted points have small letters, measured ones capitals.
        let mut letters = [('a'..='z'), ('A'..='Z')];
        let mut entries = Vec::new();
        for group in &groups {
            let first = group.points[0];
            let number = series.iter().position(|name| *name == first.series);
            let letter = letters[usize::from(first.measured)].next();
            let (column, row) = free_cell(panel, group.cell);
            panel.cells.put(column, row, letter.unwrap_or('•'), number);
            if let Some(letter) = letter {
                entries.push((entry(letter, group, several), number));
            }
        }
        let nameless = groups.len() - entries.len();
        if nameless > 0 {
            entries.push((format!("• {nameless} more"), None));
        }
        entries
    }
}

fn entry(letter: char, group: &Group<'_>, several: bool) -> String {
    let mut names: Vec<&str> = Vec::new();
    for point in &group.points {
        if !names.contains(&point.label.as_str()) {
            names.push(&point.label);
        }
    }
    let first = group.points[0];
    let (intensity, rate) = first.values();
    let series = if several { format!(" [{}]", first.series) } else { String::new() };
    let names = cut(&names.join(", "), LONGEST);
    format!("{letter}: {names}{series} {}, {}", figure(intensity), figure(rate))
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
