//! Where the points of a roofline and their labels go.

use super::{
    super::{
        canvas::{Frame, Rect, SMALL, Spot},
        font,
        labels::{Ground, Placed, Request, Segment, place},
    },
    Class, Point, Roofline,
};

/// A point with its place.
pub(super) struct Mark<'a> {
    pub(super) point: &'a Point,
    pub(super) spot: Spot,
}

/// Points that lie on each other, which share one label.
pub(super) struct Cluster<'a> {
    pub(super) marks: Vec<Mark<'a>>,
}

/// A label with its place.
pub(super) struct Label {
    pub(super) text: String,
    pub(super) placed: Placed,
}

/// Nearer than this, points are one to the eye.
const TOGETHER: f64 = 3.0;
/// The widest label; names that do not fit are counted.
const LONGEST: f64 = 150.0;
pub(super) const LINE_HEIGHT: f64 = 14.0;

impl Roofline {
    /// The points that can be drawn, those that coincide together.
    pub(super) fn clusters(&self, frame: &Frame) -> Vec<Cluster<'_>> {
        let mut clusters: Vec<Cluster<'_>> = Vec::new();
        for point in &self.points {
            let (intensity, rate) = point.values();
            let Some(spot) = frame.spot(intensity, rate) else { continue };
            let near = clusters.iter_mut().find(|cluster| cluster.takes(point, spot));
            let mark = Mark { point, spot };
            match near {
                Some(cluster) => cluster.marks.push(mark),
                None => clusters.push(Cluster { marks: vec![mark] }),
            }
        }
        clusters
    }
}

impl Cluster<'_> {
    fn takes(&self, point: &Point, (x, y): Spot) -> bool {
        self.marks
            .first()
            .is_some_and(|first| first.point.resembles(point) && (first.spot.0 - x).hypot(first.spot.1 - y) < TOGETHER)
    }

    fn text(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for mark in &self.marks {
            if !names.contains(&mark.point.label.as_str()) {
                names.push(&mark.point.label);
            }
        }
        let (first, others) = names.split_first().unwrap_or((&"", &[]));
        let mut text = font::fit(first, SMALL, LONGEST);
        for (at, name) in others.iter().enumerate() {
            let longer = format!("{text}, {name}");
            if font::width(&longer, SMALL) > LONGEST {
                return format!("{text} + {} more", others.len() - at);
            }
            text = longer;
        }
        text
    }

    /// What it says when pointed at: every member.
    pub(super) fn summary(&self) -> String {
        self.marks.iter().map(|mark| mark.point.summary()).collect::<Vec<_>>().join("\n")
    }
}

/// The predicted point that a measured one belongs to: they share a name, so one label is enough for both.
pub(super) fn twin<'a>(mark: &Mark<'_>, clusters: &'a [Cluster<'a>]) -> Option<&'a Mark<'a>> {
    let all = clusters.iter().flat_map(|cluster| &cluster.marks);
    let mut others = all.filter(|other| !other.point.measured);
    let found = others.find(|other| other.point.label == mark.point.label && other.point.series == mark.point.series);
    found.filter(|_| mark.point.measured)
}

/// Labels for the clusters; `texts` are places that are taken already, `lines` those of the roof.
pub(super) fn labels(
    clusters: &[Cluster<'_>],
    frame: Rect,
    texts: Vec<Rect>,
    lines: Vec<Segment>,
    radius: f64,
) -> Vec<Label> {
    let marks = clusters.iter().flat_map(|cluster| &cluster.marks);
    let points: Vec<Rect> = marks.map(|mark| glyph_box(mark.spot, radius)).collect();
    let named = |cluster: &&Cluster<'_>| {
        cluster.marks.first().is_some_and(|mark| !mark.point.label.is_empty() && twin(mark, clusters).is_none())
    };
    let mut wanted: Vec<(&Cluster<'_>, String)> = Vec::new();
    for cluster in clusters.iter().filter(named) {
        let text = cluster.text();
        // Where series coincide, one label is enough.
        let said = |other: &(&Cluster<'_>, String)| other.1 == text && distance(other.0, cluster) < 2.0 * TOGETHER;
        if !wanted.iter().any(said) {
            wanted.push((cluster, text));
        }
    }
    let ground = Ground { frame, points, texts, lines, radius };
    // Greedy placement depends on the order, so a few are tried; in each of them totals come first.
    let total = |cluster: &Cluster<'_>| cluster.marks[0].point.class != Class::Total;
    let crowd = |cluster: &Cluster<'_>| clusters.iter().filter(|other| distance(other, cluster) < 60.0).count() as i64;
    let across = |cluster: &Cluster<'_>| cluster.marks[0].spot.0 as i64;
    let orders: [&dyn Fn(&Cluster<'_>) -> i64; 4] =
        [&crowd, &|cluster| -crowd(cluster), &across, &|cluster| -across(cluster)];
    let attempts = orders.map(|order| {
        let mut wanted: Vec<&(&Cluster<'_>, String)> = wanted.iter().collect();
        wanted.sort_by_cached_key(|(cluster, _)| (total(cluster), order(cluster)));
        let request = |(cluster, text): &&(&Cluster<'_>, String)| Request {
            spot: cluster.marks[0].spot,
            width: font::width(text, SMALL),
            height: LINE_HEIGHT,
        };
        let (placed, cost) = place(&ground, &wanted.iter().map(request).collect::<Vec<_>>());
        let labels = wanted.into_iter().zip(placed);
        let label =
            |((_, text), placed): (&(_, String), Option<_>)| Some(Label { text: text.clone(), placed: placed? });
        (cost, labels.filter_map(label).collect())
    });
    attempts.into_iter().min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, labels)| labels).unwrap_or_default()
}

fn distance(one: &Cluster<'_>, other: &Cluster<'_>) -> f64 {
    let (one, other) = (one.marks[0].spot, other.marks[0].spot);
    (one.0 - other.0).hypot(one.1 - other.1)
}

pub(super) fn glyph_box(spot: Spot, radius: f64) -> Rect {
    Rect::around(spot, 2.0 * radius + 2.0, 2.0 * radius + 2.0)
}
