//! The roofline as a drawing.

use super::{
    super::{
        axis::figure,
        canvas::{Canvas, EDGE, Frame, Rect, SMALL, Spot, TEXT, WIDTH},
        drawing::{Anchor, Drawing, Gradient, Shape, Stroke},
        font,
        labels::{Segment, apart},
        legend::{self, Entry, Key, Paint},
        theme::Theme,
    },
    Class, Plan, Roof, Roofline, X_LABEL, Y_LABEL,
    layout::{Cluster, LINE_HEIGHT, Label, glyph_box, labels, twin},
};

const HEIGHT: f64 = 470.0;
/// Room between the frame and the names of the ceilings, bridged by a line where a name had to move.
const BRIDGE: f64 = 16.0;
/// Longest name of a ceiling.
const LONGEST: f64 = 150.0;

/// A picture before it is drawn.
pub(super) struct Scene<'a> {
    pub(super) plan: Plan,
    frame: Frame,
    pub(super) clusters: Vec<Cluster<'a>>,
    pub(super) radius: f64,
    /// The memory names along their diagonals.
    names: Vec<(Spot, f64, String)>,
    ridges: Vec<(Spot, String)>,
    captions: Vec<(Spot, Anchor, &'static str)>,
    pub(super) labels: Vec<Label>,
}

impl Roofline {
    /// The picture for a background.
    pub fn drawing(&self, theme: Theme) -> Drawing {
        let (mut canvas, top) = Canvas::titled(theme, &self.title, &self.subtitle);
        let scene = self.scene(top + 24.0);
        scene.tint(&mut canvas);
        scene.frame.draw(&mut canvas, X_LABEL, Y_LABEL);
        scene.roofs(&mut canvas);
        scene.texts(&mut canvas);
        scene.points(&mut canvas, &self.series());
        let left = scene.frame.rect.x;
        let bottom = legend::draw(&mut canvas, &self.legend(theme), left, scene.frame.rect.bottom() + 54.0);
        canvas.finish(&self.title, bottom + EDGE - 6.0)
    }

    pub(super) fn scene(&self, top: f64) -> Scene<'_> {
        let plan = self.plan();
        let names = plan.ceilings.iter().map(|roof| {
            font::width(&font::fit(&roof.label, TEXT, LONGEST), TEXT) + 6.0 + font::width(&figure(roof.value), TEXT)
        });
        let right = names.reduce(f64::max).map_or(EDGE, |name| EDGE + BRIDGE + name);
        let left = Frame::margin(&plan.y);
        let rect = Rect { x: left, y: top, width: WIDTH - left - right, height: HEIGHT };
        let frame = Frame { rect, x: plan.x.clone(), y: plan.y.clone() };
        let clusters = self.clusters(&frame);
        let radius = if clusters.len() > 24 { 4.4 } else { 5.4 };
        let mut scene = Scene {
            plan,
            frame,
            clusters,
            radius,
            names: Vec::new(),
            ridges: Vec::new(),
            captions: Vec::new(),
            labels: Vec::new(),
        };
        scene.settle();
        scene
    }

    fn legend(&self, theme: Theme) -> Vec<Entry> {
        let colors = theme.colors();
        let drawn: Vec<_> = self.points.iter().collect();
        let swatch = |(at, name): (usize, &&str)| Entry {
            key: Key::Swatch(colors.series(at)),
            text: (*name).to_owned(),
            first: at == 0,
        };
        let mut entries: Vec<Entry> =
            self.series().iter().enumerate().filter(|(_, name)| !name.is_empty()).map(swatch).collect();
        let neutral = |hollow| Paint { color: colors.muted, background: colors.background, hollow };
        let used: Vec<Class> =
            Class::ALL.into_iter().filter(|class| drawn.iter().any(|point| point.class == *class)).collect();
        for (at, class) in used.iter().enumerate() {
            let key = Key::Glyph(class.glyph(), neutral(false));
            entries.push(Entry { key, text: class.name().to_owned(), first: at == 0 });
        }
        let shape = used.first().map_or(Class::Elementwise, |class| *class).glyph();
        for (hollow, text) in [(false, "predicted (filled)"), (true, "measured (hollow)")] {
            if drawn.iter().any(|point| point.measured == hollow) {
                let first = !hollow || drawn.iter().all(|point| point.measured);
                entries.push(Entry { key: Key::Glyph(shape, neutral(hollow)), text: text.to_owned(), first });
            }
        }
        entries
    }
}

impl Scene<'_> {
    /// Gives the texts their places: first those of the roof, then the labels of the points around them.
    fn settle(&mut self) {
        let marks = self.clusters.iter().flat_map(|cluster| &cluster.marks);
        let glyphs: Vec<Rect> = marks.map(|mark| glyph_box(mark.spot, self.radius)).collect();
        let mut taken: Vec<Rect> = Vec::new();
        self.settle_ridges(&glyphs, &mut taken);
        self.settle_captions(&mut taken);
        let line = |roof: &Roof| {
            let (from, to) = self.segment(roof);
            Rect { x: from.0, y: from.1 - 1.0, width: to.0 - from.0, height: 2.0 }
        };
        let crossed: Vec<Rect> = glyphs.into_iter().chain(self.plan.ceilings.iter().map(line)).collect();
        for roof in &self.plan.memories {
            if let Some((spot, boxes)) = self.along(roof, &crossed, &taken) {
                let (from, to) = self.segment(roof);
                let angle = (to.1 - from.1).atan2(to.0 - from.0).to_degrees();
                self.names.push((spot, angle, roof.label.clone()));
                taken.extend(boxes);
            }
        }
        let roofs = self.plan.memories.iter().chain(&self.plan.ceilings);
        let mut lines: Vec<Segment> = roofs.map(|roof| self.segment(roof)).collect();
        lines.extend(self.plan.ridges.iter().map(|ridge| self.drop_line(*ridge)));
        self.labels = labels(&self.clusters, self.frame.rect.grown(-3.0), taken, lines, self.radius);
    }

    /// The values of the ridges, at the foot of their lines.
    fn settle_ridges(&mut self, glyphs: &[Rect], taken: &mut Vec<Rect>) {
        let y = self.frame.rect.bottom() - 8.0;
        for (at, (intensity, _)) in self.plan.ridges.iter().enumerate().rev() {
            let value = figure(*intensity);
            let long = format!("ridge {value}");
            let text = if at + 1 == self.plan.ridges.len() { long } else { value };
            let width = font::width(&text, SMALL);
            let x = self.frame.across(*intensity) + 4.0;
            let rect = Rect { x, y: y - 11.0, width, height: LINE_HEIGHT };
            let free = |other: &Rect| !other.overlaps(&rect);
            if rect.right() < self.frame.rect.right() && taken.iter().all(free) && glyphs.iter().all(free) {
                taken.push(rect);
                self.ridges.push(((x, y), text));
            }
        }
    }

    /// What it means to stand left and right of the ridges.
    fn settle_captions(&mut self, taken: &mut Vec<Rect>) {
        let (Some(first), Some(last)) = (self.plan.ridges.first(), self.plan.ridges.last()) else { return };
        let frame = self.frame.rect;
        let y = frame.y + 17.0;
        let sides = [
            (Anchor::End, self.frame.across(first.0) - 10.0, "← memory-bound"),
            (Anchor::Start, self.frame.across(last.0) + 10.0, "compute-bound →"),
        ];
        for (anchor, x, text) in sides {
            let width = font::width(text, TEXT);
            let left = if matches!(anchor, Anchor::End) { x - width } else { x };
            let rect = Rect { x: left, y: y - 12.0, width, height: 16.0 };
            if frame.holds(&rect) {
                taken.push(rect);
                self.captions.push(((x, y), anchor, text));
            }
        }
    }

    /// The place above a diagonal where its name covers the fewest points and lines, and the boxes it fills there.
    fn along(&self, roof: &Roof, crossed: &[Rect], taken: &[Rect]) -> Option<(Spot, Vec<Rect>)> {
        let (from, to) = self.segment(roof);
        let length = (to.0 - from.0).hypot(to.1 - from.1);
        let (cos, sin) = ((to.0 - from.0) / length, (to.1 - from.1) / length);
        let width = font::width(&roof.label, TEXT);
        let fit = (length - width) / 2.0 - 12.0;
        let place = |step: i32| {
            let middle = length / 2.0 + f64::from(step) / 20.0 * fit;
            let base = (from.0 + cos * middle + sin * 8.0, from.1 + sin * middle - cos * 8.0);
            let boxes = (0..=16).map(|part| {
                let off = (f64::from(part) / 16.0 - 0.5) * width;
                Rect::around((base.0 + cos * off + sin * 4.0, base.1 + sin * off - cos * 4.0), 12.0, 12.0)
            });
            (base, boxes.collect::<Vec<Rect>>())
        };
        let covered = |boxes: &[Rect]| {
            let hits = |others: &[Rect]| others.iter().filter(|other| boxes.iter().any(|b| b.overlaps(other))).count();
            hits(crossed) + 100 * hits(taken)
        };
        // From the upper end down, where the diagonals of several memories are furthest from the axis.
        let steps = (-20..=14).rev().map(place);
        (fit > 0.0).then(|| steps.min_by_key(|(_, boxes)| covered(boxes)))?
    }

    pub(super) fn segment(&self, roof: &Roof) -> Segment {
        let spot = |(x, y): (f64, f64)| (self.frame.across(x), self.frame.up(y));
        (spot(roof.from), spot(roof.to))
    }

    /// From a ridge down to the axis.
    pub(super) fn drop_line(&self, (intensity, peak): (f64, f64)) -> Segment {
        let x = self.frame.across(intensity);
        ((x, self.frame.up(peak)), (x, self.frame.rect.bottom()))
    }

    /// A breath of colour under the roof: cool before the first ridge, warm behind the last.
    fn tint(&self, canvas: &mut Canvas) {
        let (Some(first), Some(last)) = (self.plan.ridges.first(), self.plan.ridges.last()) else { return };
        let rect = self.frame.rect;
        let Some(slowest) = self.plan.memories.iter().min_by(|one, other| one.value.total_cmp(&other.value)) else {
            return;
        };
        let (start, ridge) = (self.segment(slowest).0, (self.frame.across(last.0), self.frame.up(last.1)));
        let (near, far) = (self.frame.x.fraction(first.0), self.frame.x.fraction(last.0));
        let gradient = Gradient {
            across: (rect.x, rect.right()),
            stops: [(near, canvas.colors.memory), (far, canvas.colors.compute)],
            opacity: 0.09,
        };
        let corners = [(rect.x, rect.bottom()), start, ridge, (rect.right(), ridge.1), (rect.right(), rect.bottom())];
        canvas.shape(Shape::Area { corners: corners.into(), gradient });
    }

    fn roofs(&self, canvas: &mut Canvas) {
        let colors = canvas.colors;
        for ridge in &self.plan.ridges {
            let (top, foot) = self.drop_line(*ridge);
            let dotted = Stroke { dashes: Some([1.5, 4.0]), round_caps: true, ..Stroke::default() };
            canvas.line(&[top, foot], colors.muted, 1.1, dotted);
        }
        for roof in self.plan.memories.iter().chain(&self.plan.ceilings) {
            let (from, to) = self.segment(roof);
            canvas.line(&[from, to], colors.ink, 1.7, Stroke { round_caps: true, ..Stroke::default() });
        }
        self.ceiling_names(canvas);
    }

    fn ceiling_names(&self, canvas: &mut Canvas) {
        let (rect, colors) = (self.frame.rect, canvas.colors);
        let mut roofs: Vec<&Roof> = self.plan.ceilings.iter().collect();
        roofs.sort_by(|one, other| other.value.total_cmp(&one.value));
        roofs.truncate((rect.height / LINE_HEIGHT) as usize);
        let wanted: Vec<f64> = roofs.iter().map(|roof| self.segment(roof).1.1).collect();
        let heights = apart(&wanted, LINE_HEIGHT + 1.0, rect.y + 4.0, rect.bottom() - 4.0);
        for ((roof, wanted), height) in roofs.into_iter().zip(wanted).zip(heights) {
            let right = rect.right();
            if (height - wanted).abs() > 0.5 {
                let bend = [(right, wanted), (right + 4.0, wanted), (right + BRIDGE - 6.0, height)];
                canvas.line(&bend, colors.frame, 1.0, Stroke::default());
            }
            let (x, y) = (right + BRIDGE - 4.0, height + 4.2);
            let name = font::fit(&roof.label, TEXT, LONGEST);
            canvas.text((x, y), TEXT, Anchor::Start, colors.ink, &name);
            let after = x + font::width(&name, TEXT) + 6.0;
            canvas.text((after, y), TEXT, Anchor::Start, colors.muted, &figure(roof.value));
        }
    }

    fn texts(&self, canvas: &mut Canvas) {
        let colors = canvas.colors;
        for (spot, anchor, text) in &self.captions {
            canvas.text(*spot, TEXT, *anchor, colors.muted, text);
        }
        for (spot, text) in &self.ridges {
            canvas.haloed(*spot, SMALL, Anchor::Start, colors.muted, text);
        }
        for (spot, angle, name) in &self.names {
            canvas.turned(*spot, TEXT, colors.ink, *angle, name);
        }
    }

    fn points(&self, canvas: &mut Canvas, series: &[&str]) {
        let colors = canvas.colors;
        let color = |name: &str| colors.series(series.iter().position(|other| *other == name).unwrap_or(0));
        for mark in self.clusters.iter().flat_map(|cluster| &cluster.marks) {
            if let Some(predicted) = twin(mark, &self.clusters) {
                let stroke = Stroke { opacity: Some(0.55), dashes: Some([3.0, 2.5]), ..Stroke::default() };
                canvas.line(&[predicted.spot, mark.spot], color(&mark.point.series), 1.2, stroke);
            }
        }
        for (from, to) in self.labels.iter().filter_map(|label| label.placed.leader) {
            canvas.line(&[from, to], colors.muted, 0.8, Stroke { opacity: Some(0.7), ..Stroke::default() });
        }
        for cluster in &self.clusters {
            for (at, mark) in cluster.marks.iter().enumerate() {
                // The last one covers the others, so it speaks for all of them.
                let last = at + 1 == cluster.marks.len();
                let tooltip = if last { cluster.summary() } else { mark.point.summary() };
                let hollow = mark.point.measured;
                let paint = Paint { color: color(&mark.point.series), background: colors.background, hollow };
                let glyph = mark.point.class.glyph();
                canvas.shape(Shape::Mark { glyph, spot: mark.spot, radius: self.radius, paint, tooltip });
            }
        }
        for label in &self.labels {
            let rect = label.placed.rect;
            canvas.haloed((rect.x, rect.bottom() - 3.4), SMALL, Anchor::Start, colors.ink, &label.text);
        }
    }
}
