//! Labels that do not cover each other, the points or the frame: each takes the best free place around its point, and
//! one that finds none is left out.

use std::f64::consts::TAU;

use super::canvas::{Rect, Spot};

/// A straight line.
pub(super) type Segment = (Spot, Spot);

/// A label that looks for a place.
pub(super) struct Request {
    pub(super) spot: Spot,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// A place that was found.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) rect: Rect,
    /// A line to the point, where the label had to move away from it.
    pub(super) leader: Option<Segment>,
}

/// What labels have to keep clear of.
pub(super) struct Ground {
    /// The frame that labels stay in.
    pub(super) frame: Rect,
    /// Never covered; a leader may pass a point if it must, but no text.
    pub(super) points: Vec<Rect>,
    pub(super) texts: Vec<Rect>,
    /// Lines: covered where nothing better is free.
    pub(super) lines: Vec<Segment>,
    /// How large a point is.
    pub(super) radius: f64,
}

/// Distances from the rim of a point; from the second on there is a leader.
const DISTANCES: [f64; 6] = [3.0, 12.0, 22.0, 34.0, 48.0, 64.0];
const ANGLES: usize = 24;
/// Free room beside every label, where two could be read as one, and above it.
const GAP: (f64, f64) = (5.0, 1.0);
/// Prices of what is not forbidden, in units of distance.
const LINE: f64 = 26.0;
const LEADER: f64 = 10.0;
const CROSSING: f64 = 60.0;
/// No label is better than one that costs more.
const LEFT_OUT: f64 = 110.0;
const ROUNDS: usize = 3;
/// More labels than this nobody reads, and finding their places would take long.
const MOST: usize = 150;

/// A place for each request, in this order, and what all of them cost together. Who came first may have blocked a better
/// place of the others, or moved away needlessly, so everyone chooses again.
pub(super) fn place(ground: &Ground, requests: &[Request]) -> (Vec<Option<Placed>>, f64) {
    let mut placed: Vec<Option<Placed>> = vec![None; requests.len()];
    let mut costs = vec![LEFT_OUT; requests.len()];
    for (at, request) in (0..ROUNDS).flat_map(|_| requests.iter().enumerate().take(MOST)) {
        placed[at] = None;
        let taken: Vec<&Placed> = placed.iter().flatten().collect();
        let best = candidates(request, ground.radius)
            .filter_map(|(candidate, cost)| Some((price(ground, &taken, request, &candidate)? + cost, candidate)))
            .filter(|(cost, _)| *cost < LEFT_OUT)
            .min_by(|one, other| one.0.total_cmp(&other.0));
        costs[at] = best.as_ref().map_or(LEFT_OUT, |(cost, _)| *cost);
        placed[at] = best.map(|(_, candidate)| candidate);
    }
    (placed, costs.into_iter().sum())
}

/// Places around a point, and what each costs by itself: near and to the right is best.
fn candidates(request: &Request, radius: f64) -> impl Iterator<Item = (Placed, f64)> {
    let all = DISTANCES.into_iter().flat_map(|distance| (0..ANGLES).map(move |at| (distance, at)));
    let ((x, y), width, height) = (request.spot, request.width, request.height);
    all.map(move |(distance, at)| {
        let (sin, cos) = (at as f64 / ANGLES as f64 * TAU).sin_cos();
        let reach = radius + distance;
        // Between the axes a label lies in one quadrant, clear of a line through its point.
        let side = |part: f64| (part * 1.7).clamp(-1.0, 1.0);
        let center = (x + cos * reach + side(cos) * width / 2.0, y - sin * reach - side(sin) * height / 2.0);
        let rect = Rect::around(center, width, height);
        let leader = (distance > DISTANCES[0]).then(|| {
            let (near, rim) = (nearest(&rect, (x, y)), radius + 1.0);
            let length = (near.0 - x).hypot(near.1 - y).max(rim);
            ((x + (near.0 - x) / length * rim, y + (near.1 - y) / length * rim), near)
        });
        let turn = 3.0 * (1.0 - cos) + 1.5 * sin.abs();
        let cost = distance + turn + if leader.is_some() { LEADER } else { 0.0 };
        (Placed { rect, leader }, cost)
    })
}

/// What a place costs because of what else is there; none where it is taken.
fn price(ground: &Ground, taken: &[&Placed], request: &Request, candidate: &Placed) -> Option<f64> {
    let (across, up) = (candidate.rect.width + 2.0 * GAP.0, candidate.rect.height + 2.0 * GAP.1);
    let rect = Rect::around(candidate.rect.center(), across, up);
    let blocked = !ground.frame.holds(&rect)
        || ground.points.iter().chain(&ground.texts).any(|other| other.overlaps(&candidate.rect.grown(GAP.1)))
        || taken.iter().any(|other| other.rect.overlaps(&rect))
        || taken.iter().filter_map(|other| other.leader).any(|leader| crosses_rect(leader, &rect));
    if blocked {
        return None;
    }
    let covered = |line: &&Segment| crosses_rect(**line, &candidate.rect);
    let mut cost = LINE * ground.lines.iter().filter(covered).count() as f64;
    if let Some(leader) = candidate.leader {
        if taken.iter().map(|other| &other.rect).chain(&ground.texts).any(|text| crosses_rect(leader, text)) {
            return None;
        }
        let own = Rect::around(request.spot, 1.0, 1.0);
        let strangers = ground.points.iter().filter(|point| !point.overlaps(&own));
        cost += CROSSING * strangers.filter(|point| crosses_rect(leader, point)).count() as f64;
        let middle = (leader.0.0.midpoint(leader.1.0), leader.0.1.midpoint(leader.1.1));
        cost += CROSSING * ground.lines.iter().filter(|line| distance(middle, **line) < 2.5).count() as f64;
        let leaders = taken.iter().filter_map(|other| other.leader);
        cost += CROSSING * leaders.filter(|other| crosses(leader, *other)).count() as f64;
    }
    Some(cost)
}

/// The place on a rectangle that is nearest to a spot.
fn nearest(rect: &Rect, (x, y): Spot) -> Spot {
    (x.clamp(rect.x, rect.right()), y.clamp(rect.y, rect.bottom()))
}

/// How far a spot is from a line.
fn distance((x, y): Spot, (from, to): Segment) -> f64 {
    let (right, down) = (to.0 - from.0, to.1 - from.1);
    let length = (right * right + down * down).max(f64::MIN_POSITIVE);
    let part = (((x - from.0) * right + (y - from.1) * down) / length).clamp(0.0, 1.0);
    (from.0 + part * right - x).hypot(from.1 + part * down - y)
}

fn crosses_rect((from, to): Segment, rect: &Rect) -> bool {
    let inside = |(x, y): Spot| x > rect.x && x < rect.right() && y > rect.y && y < rect.bottom();
    let (left, top, right, bottom) = (rect.x, rect.y, rect.right(), rect.bottom());
    inside(from)
        || inside(to)
        || crosses((from, to), ((left, top), (right, bottom)))
        || crosses((from, to), ((left, bottom), (right, top)))
}

fn crosses((a, b): Segment, (c, d): Segment) -> bool {
    let side = |p: Spot, q: Spot, r: Spot| (q.0 - p.0) * (r.1 - p.1) - (q.1 - p.1) * (r.0 - p.0);
    side(a, b, c) * side(a, b, d) < 0.0 && side(c, d, a) * side(c, d, b) < 0.0
}

/// `wanted` heights moved as little as needed for a `gap` between neighbours, and kept between `low` and `high` as long
/// as there is room. The order stays.
pub(super) fn apart(wanted: &[f64], gap: f64, low: f64, high: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|one, other| wanted[*one].total_cmp(&wanted[*other]));
    // Neighbours that touch become one block, centred where its members want to be.
    let mut blocks: Vec<(f64, usize)> = Vec::new();
    let room = |count: usize| (count - 1) as f64 * gap;
    let bounded = |start: f64, count: usize| start.min(high - room(count)).max(low);
    for at in &order {
        let mut block = (wanted[*at], 1);
        loop {
            let start = bounded(block.0 - room(block.1) / 2.0, block.1);
            match blocks.pop() {
                Some(above) if bounded(above.0 - room(above.1) / 2.0, above.1) + above.1 as f64 * gap > start => {
                    let count = above.1 + block.1;
                    block = ((above.0 * above.1 as f64 + block.0 * block.1 as f64) / count as f64, count);
                }
                above => {
                    blocks.extend(above);
                    break;
                }
            }
        }
        blocks.push(block);
    }
    let placed = blocks.into_iter().flat_map(|(center, count)| {
        let start = bounded(center - room(count) / 2.0, count);
        (0..count).map(move |at| start + at as f64 * gap)
    });
    let mut out = vec![0.0; wanted.len()];
    for (at, value) in order.into_iter().zip(placed) {
        out[at] = value;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_labels_are_moved_apart() {
        assert_eq!(apart(&[50.0, 10.0], 15.0, 0.0, 100.0), [50.0, 10.0]);
        assert_eq!(apart(&[50.0, 52.0], 14.0, 0.0, 100.0), [44.0, 58.0]);
        assert_eq!(apart(&[0.0, 2.0, 4.0], 14.0, 0.0, 100.0), [0.0, 14.0, 28.0]);
        assert_eq!(apart(&[99.0, 98.0], 14.0, 0.0, 100.0), [100.0, 86.0]);
        assert!(apart(&[], 14.0, 0.0, 100.0).is_empty());
    }

    #[test]
    fn a_label_beside_a_line_does_not_cover_it() {
        let frame = Rect { x: 0.0, y: 0.0, width: 200.0, height: 200.0 };
        let line = ((100.0, 100.0), (200.0, 100.0));
        let ground = Ground { frame, points: vec![], texts: vec![], lines: vec![line], radius: 5.0 };
        let (placed, _) = place(&ground, &[Request { spot: (100.0, 100.0), width: 40.0, height: 14.0 }]);
        let rect = placed[0].as_ref().unwrap().rect;
        assert!(!crosses_rect(line, &rect) && frame.holds(&rect), "{rect:?}");
    }

    #[test]
    fn a_label_without_a_place_is_left_out() {
        let frame = Rect { x: 0.0, y: 0.0, width: 60.0, height: 20.0 };
        let ground = Ground { frame, points: vec![], texts: vec![frame], lines: vec![], radius: 5.0 };
        assert!(place(&ground, &[Request { spot: (30.0, 10.0), width: 40.0, height: 14.0 }]).0[0].is_none());
    }
}
