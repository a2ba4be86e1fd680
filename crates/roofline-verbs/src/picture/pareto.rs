//! Plans by what they need and what they give: memory across, speed up, colour for the quality lost. Those that no other
//! beats in all three are filled and named.

use super::{
    axis::{Axis, figure},
    canvas::{Canvas, EDGE, Frame, Rect, SMALL, Spot, WIDTH},
    cells::{Line, Panel, in_columns, render},
    drawing::{Anchor, Drawing, Shape, Stroke},
    font,
    labels::{Ground, Request, place},
    legend::{self, Entry, Glyph, Key, Paint},
    theme::Theme,
};

/// The picture.
#[derive(Clone, Debug, Default)]
pub struct Pareto {
    pub title: String,
    pub subtitle: String,
    pub x_label: String,
    pub y_label: String,
    /// Names of the classes that points are coloured by.
    pub classes: Vec<String>,
    pub plans: Vec<Spotted>,
    /// Memory there is.
    pub limit: Option<f64>,
}

/// A plan.
#[derive(Clone, Debug)]
pub struct Spotted {
    pub label: String,
    pub x: f64,
    pub y: f64,
    pub class: usize,
    /// Whether no other is better in everything.
    pub front: bool,
    pub chosen: bool,
}

const HEIGHT: f64 = 420.0;
const RADIUS: f64 = 4.2;
/// Longest name beside a point.
const LONGEST: f64 = 210.0;

impl Pareto {
    /// The picture for a background.
    pub fn drawing(&self, theme: Theme) -> Drawing {
        let (mut canvas, top) = Canvas::titled(theme, &self.title, &self.subtitle);
        let (x, y) = self.axes();
        let left = Frame::margin(&y);
        let rect = Rect { x: left, y: top + 24.0, width: WIDTH - left - EDGE, height: HEIGHT };
        let frame = Frame { rect, x, y };
        frame.draw(&mut canvas, &self.x_label, &self.y_label);
        let colors = canvas.colors;
        if let Some(limit) = self.limit.map(|limit| frame.across(limit)).filter(|at| *at < rect.right()) {
            let stroke = Stroke { dashes: Some([5.0, 4.0]), ..Stroke::default() };
            canvas.line(&[(limit, rect.y), (limit, rect.bottom())], colors.muted, 1.2, stroke);
            canvas.text((limit - 5.0, rect.y + 14.0), SMALL, Anchor::End, colors.muted, "what there is");
        }
        let spots: Vec<(Spot, &Spotted)> =
            self.plans.iter().filter_map(|plan| Some((frame.spot(plan.x, plan.y)?, plan))).collect();
        let ground = Ground {
            frame: rect,
            points: spots.iter().map(|(spot, _)| Rect::around(*spot, 2.0 * RADIUS, 2.0 * RADIUS)).collect(),
            texts: Vec::new(),
            lines: Vec::new(),
            radius: RADIUS,
        };
        let named: Vec<&(Spot, &Spotted)> = spots.iter().filter(|(_, plan)| plan.front).collect();
        let texts: Vec<String> = named.iter().map(|(_, plan)| font::fit(&plan.label, SMALL, LONGEST)).collect();
        let requests: Vec<Request> = named
            .iter()
            .zip(&texts)
            .map(|((spot, _), text)| Request { spot: *spot, width: font::width(text, SMALL), height: SMALL + 3.0 })
            .collect();
        let (placed, _) = place(&ground, &requests);
        for (from, to) in placed.iter().flatten().filter_map(|placed| placed.leader) {
            canvas.line(&[from, to], colors.muted, 0.8, Stroke { opacity: Some(0.7), ..Stroke::default() });
        }
        for front in [false, true] {
            for (spot, plan) in spots.iter().filter(|(_, plan)| plan.front == front) {
                let color = colors.series(plan.class);
                let paint = Paint { color, background: colors.background, hollow: !front };
                let values = format!("{}: {} at {}", plan.label, figure(plan.y), figure(plan.x));
                let tooltip = format!("{values} ({}, {})", self.y_label, self.x_label);
                let (glyph, radius) =
                    if plan.chosen { (Glyph::Diamond, 1.7 * RADIUS) } else { (Glyph::Circle, RADIUS) };
                canvas.shape(Shape::Mark { glyph, spot: *spot, radius, paint, tooltip });
            }
        }
        for (placed, text) in placed.iter().zip(&texts) {
            if let Some(placed) = placed {
                canvas.haloed((placed.rect.x, placed.rect.bottom() - 3.4), SMALL, Anchor::Start, colors.ink, text);
            }
        }
        let bottom = legend::draw(&mut canvas, &self.entries(theme), left, rect.bottom() + 44.0);
        canvas.finish(&self.title, bottom + EDGE)
    }

    fn entries(&self, theme: Theme) -> Vec<Entry> {
        let colors = theme.colors();
        let used = |class: &usize| self.plans.iter().any(|plan| plan.class == *class);
        let swatch = |class: usize| Key::Swatch(colors.series(class));
        let mut entries: Vec<Entry> = (0..self.classes.len())
            .filter(used)
            .map(|class| Entry { key: swatch(class), text: self.classes[class].clone(), first: false })
            .collect();
        let glyph =
            |glyph, hollow| Key::Glyph(glyph, Paint { color: colors.muted, background: colors.background, hollow });
        let shapes = [
            (Glyph::Diamond, false, "the choice"),
            (Glyph::Circle, false, "best of its kind"),
            (Glyph::Circle, true, "beaten"),
        ];
        for (at, (shape, hollow, text)) in shapes.into_iter().enumerate() {
            entries.push(Entry { key: glyph(shape, hollow), text: text.to_owned(), first: at == 0 });
        }
        entries
    }

    /// The picture in characters.
    pub fn terminal(&self, width: usize, height: usize, color: bool) -> String {
        let mut lines: Vec<Line> =
            vec![vec![(self.title.clone(), None)], vec![(self.subtitle.clone(), None)], Line::new()];
        let (x, y) = self.axes();
        if let Some(mut panel) = Panel::new(x, y, width, height) {
            let mut entries = Vec::new();
            let mut letters = ('a'..='z').cycle();
            let named = self.plans.iter().filter(|plan| plan.front || plan.chosen);
            for plan in named {
                let Some(place) = panel.place(plan.x, plan.y) else { continue };
                let (column, row) = panel.cells.cell(place);
                if panel.cells.free(column, row) {
                    let letter = if plan.chosen { '*' } else { letters.next().unwrap_or('?') };
                    panel.cells.put(column, row, letter, Some(plan.class));
                    entries.push((format!("{letter}: {}", plan.label), Some(plan.class)));
                }
            }
            for plan in self.plans.iter().filter(|plan| !plan.front && !plan.chosen) {
                if let Some((column, row)) = panel.place(plan.x, plan.y).map(|place| panel.cells.cell(place))
                    && panel.cells.free(column, row)
                {
                    panel.cells.put(column, row, '·', Some(plan.class));
                }
            }
            lines.extend(panel.lines(&self.x_label, &self.y_label));
            lines.push(Line::new());
            lines.extend(in_columns(entries, width));
        }
        render(lines, width, color)
    }

    fn axes(&self) -> (Axis, Axis) {
        let values = |of: fn(&Spotted) -> f64| self.plans.iter().map(of).filter(|value| value.is_finite());
        let most = values(|plan| plan.x).fold(0.0, f64::max);
        // A limit far to the right would push the plans together.
        let near = self.limit.filter(|limit| *limit < 1.5 * most);
        (Axis::linear(values(|plan| plan.x).chain(near)), Axis::linear(values(|plan| plan.y)))
    }
}
