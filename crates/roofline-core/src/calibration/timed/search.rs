//! Finding the terms of a kernel: what the stack decides first, on some of the timings, then every number on all of them.

use super::{
    Choice, Found,
    attention::{self, AttentionChoice},
    kernel::{TimedKernel, TimedOp},
    least_squares::{self, Search},
    product::{self, ProductChoice, RANGES, TILE_COUNT},
    spec::{Absent, COUNT, SPECS, Values, at, terms_of},
};

/// What is known of the place where kernels were timed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) units: f64,
    pub(super) bandwidth: f64,
    pub(super) peak: f64,
    pub(super) cache: f64,
}

/// A timing, ready to be asked about.
pub(super) struct Row {
    asked: Asked,
    time: f64,
}

enum Asked {
    Product(product::Asked),
    Attention(attention::Asked),
}

impl Row {
    pub(super) fn new(kernel: &TimedKernel, time: f64) -> Self {
        let asked = match kernel.shape.op() {
            TimedOp::Gemm => Asked::Product(product::Asked::of(kernel)),
            _ => Asked::Attention(attention::Asked::of(kernel)),
        };
        Self { asked, time }
    }

    pub(super) fn predicted(&self, values: &[f64; COUNT], choice: &Choice, units: f64) -> f64 {
        match (&self.asked, choice) {
            (Asked::Product(asked), Choice::Product(choice)) => {
                product::causes(values, choice, asked, units, Found::AsTimed).time
            }
            (Asked::Attention(asked), Choice::Attention(choice)) => {
                attention::causes(values, choice, asked, units, Found::AsTimed).time
            }
            _ => f64::INFINITY,
        }
    }
}

/// Timings that choices are made on; the numbers are fitted to all.
const SAMPLE: usize = 320;
/// Terms that a kernel has at most.
const MOST_TERMS: usize = 12;
/// A term goes where the loss is not larger without it by this share.
const WORTH: f64 = 0.004;
/// Terms of which each is tried to be left out.
const TRIED: usize = 2;
/// What a tile has to explain more than the fastest one does, for each timing.
const TILE_WORTH: f64 = 0.003;

/// First guess, least and most of a term.
#[derive(Clone, Copy)]
struct Range(f64, f64, f64);

/// The terms and the choice that explain `rows` best.
pub(super) fn search(op: TimedOp, rows: &[Row], place: &Place) -> (Values, Choice) {
    let every = rows.len().div_ceil(SAMPLE).max(1);
    let sample: Vec<&Row> = rows.iter().step_by(every).collect();
    let all: Vec<&Row> = rows.iter().collect();
    let some = Fit::new(op, sample, *place);
    let (choice, start) = match op {
        TimedOp::Gemm => some.product(),
        _ => some.attention(),
    };
    let (active, start) = some.without_the_idle(&choice, start);
    let fit = Fit { rows: all, ..some };
    let (found, _) = fit.run(&choice, &active, &start, 25);
    (fit.values(&active, &found).rounded(), choice)
}

struct Fit<'a> {
    op: TimedOp,
    rows: Vec<&'a Row>,
    place: Place,
    ranges: [Option<Range>; COUNT],
    active: Vec<usize>,
}

impl<'a> Fit<'a> {
    fn new(op: TimedOp, rows: Vec<&'a Row>, place: Place) -> Self {
        let least = rows.iter().map(|row| row.time).fold(f64::INFINITY, f64::min);
        let ranges = ranges(op, least, &place);
        Self { op, rows, place, ranges, active: terms_of(op).to_vec() }
    }

    fn range(&self, term: usize) -> Range {
        self.ranges[term].unwrap_or(Range(1.0, 1.0, 1.0))
    }

    /// First guesses of some terms, as logarithms.
    fn first(&self, active: &[usize]) -> Vec<f64> {
        active.iter().map(|term| libm::log(self.range(*term).0)).collect()
    }

    /// All values, where those that are not active are left out.
    fn values(&self, active: &[usize], place: &[f64]) -> Values {
        let mut values = Values::default();
        for (term, value) in active.iter().zip(place) {
            values.set(*term, libm::exp(*value));
        }
        for term in terms_of(self.op) {
            if SPECS[*term].absent == Absent::Never && !active.contains(term) {
                values.set(*term, self.range(*term).0);
            }
        }
        values
    }

    fn errors(&self, choice: &Choice, values: &[f64; COUNT], out: &mut [f64]) {
        for (row, out) in self.rows.iter().zip(out) {
            *out = libm::log(row.predicted(values, choice, self.place.units) / row.time);
        }
    }

    fn run(&self, choice: &Choice, active: &[usize], start: &[f64], steps: usize) -> (Vec<f64>, f64) {
        let of = |part: fn(Range) -> f64| -> Vec<f64> {
            active.iter().map(|term| libm::log(part(self.range(*term)))).collect()
        };
        let (first, least, most) = (self.first(active), of(|range| range.1), of(|range| range.2));
        let errors = |place: &[f64], out: &mut [f64]| self.errors(choice, self.values(active, place).all(), out);
        let weight = if self.op == TimedOp::Gemm { 0.02 } else { 0.01 };
        let search =
            Search { least: &least, most: &most, first: &first, weight, rows: self.rows.len(), errors: &errors };
        search.run(start, steps)
    }

    /// Tiles, shared sums and the corner of a product, with a place to go on from.
    fn product(&self) -> (Choice, Vec<f64>) {
        let start = self.first(&self.active);
        let mut other = start.clone();
        for (term, value) in
            [(at::STREAM, 10.0 * self.place.bandwidth / self.place.units), (at::STEP, 80e-9), (at::BLOCK, 1e-6)]
        {
            if let Some(at) = self.active.iter().position(|active| *active == term) {
                other[at] = libm::log(value);
            }
        }
        let mut best = (ProductChoice::ANY, start.clone(), f64::INFINITY);
        for start in [&start, &other] {
            for splits in [true, false] {
                let choice = ProductChoice { splits, ..ProductChoice::ANY };
                let (found, loss) = self.run(&Choice::Product(choice), &self.active, start, 10);
                if loss < best.2 {
                    best = (choice, found, loss);
                }
            }
        }
        for _ in 0..2 {
            best.0.tiles = self.tiles(best.0, &best.1);
            let (found, loss) = self.run(&Choice::Product(best.0), &self.active, &best.1, 10);
            (best.1, best.2) = (found, loss);
            for splits in [true, false] {
                for corner in [2, 4, 8] {
                    let choice = ProductChoice { splits, corner, ..best.0 };
                    if choice == best.0 {
                        continue;
                    }
                    let (found, loss) = self.run(&Choice::Product(choice), &self.active, &best.1, 5);
                    if loss < 0.995 * best.2 {
                        best = (choice, found, loss);
                    }
                }
            }
        }
        (Choice::Product(best.0), best.1)
    }

    /// The tile of each range of rows that explains its timings best, where one does so better than the fastest.
    fn tiles(&self, choice: ProductChoice, place: &[f64]) -> [Option<u8>; RANGES] {
        let values = self.values(&self.active, place);
        let mut tiles = choice.tiles;
        for range in 0..RANGES {
            let inside = |row: &&&Row| match &row.asked {
                Asked::Product(asked) => product::range_of(asked.m) == range,
                Asked::Attention(_) => false,
            };
            let rows: Vec<&&Row> = self.rows.iter().filter(inside).collect();
            let loss = |tile: Option<u8>| {
                let mut tiles = tiles;
                tiles[range] = tile;
                let choice = Choice::Product(ProductChoice { tiles, ..choice });
                let errors: Vec<f64> = rows
                    .iter()
                    .map(|row| libm::log(row.predicted(values.all(), &choice, self.place.units) / row.time))
                    .collect();
                least_squares::cost(&errors) + if tile.is_some() { TILE_WORTH * rows.len() as f64 } else { 0.0 }
            };
            let all = std::iter::once(None).chain((0..TILE_COUNT).map(Some));
            let best = all.map(|tile| (tile, loss(tile))).min_by(|one, two| one.1.total_cmp(&two.1));
            tiles[range] = best.and_then(|(tile, _)| tile);
        }
        tiles
    }

    /// How heads and queries share blocks, with a place to go on from.
    fn attention(&self) -> (Choice, Vec<f64>) {
        let start = self.first(&self.active);
        let mut tried: Vec<(AttentionChoice, Vec<f64>, f64)> = choices(self.op)
            .into_iter()
            .map(|choice| {
                let (found, loss) = self.run(&Choice::Attention(choice), &self.active, &start, 8);
                (choice, found, loss)
            })
            .collect();
        tried.sort_by(|one, two| one.2.total_cmp(&two.2));
        tried.truncate(3);
        let changed = |changes: &[(usize, f64)]| {
            let mut start = start.clone();
            for (term, value) in changes {
                if let Some(at) = self.active.iter().position(|active| active == term) {
                    start[at] = libm::log(*value);
                }
            }
            start
        };
        let Place { units, bandwidth, peak, .. } = self.place;
        let others = [
            changed(&[(at::STEP, 400e-9), (at::BLOCK, 2e-6), (at::RATE, 0.2 * peak)]),
            changed(&[(at::STREAM, 0.7 * bandwidth / units)]),
        ];
        let again = tried.clone().into_iter().flat_map(|(choice, found, _)| {
            std::iter::once(found).chain(others.iter().cloned()).map(move |start| (choice, start))
        });
        let all = again.map(|(choice, start)| {
            let (found, loss) = self.run(&Choice::Attention(choice), &self.active, &start, 14);
            (choice, found, loss)
        });
        let best = all.min_by(|one, two| one.2.total_cmp(&two.2));
        best.map_or_else(
            || (Choice::Attention(choices(self.op)[0]), start.clone()),
            |(choice, found, _)| (Choice::Attention(choice), found),
        )
    }

    /// Leaves out what explains nothing, one after the other, and no more than the most that a kernel may have. What would be
    /// missed least at once is tried without.
    fn without_the_idle(&self, choice: &Choice, found: Vec<f64>) -> (Vec<usize>, Vec<f64>) {
        let (mut active, mut found) = (self.active.clone(), found);
        let mut errors = vec![0.0; self.rows.len()];
        loop {
            let (settled, loss) = self.run(choice, &active, &found, 4);
            found = settled;
            let mut missed: Vec<(usize, f64)> = Vec::new();
            for at in (0..active.len()).filter(|at| SPECS[active[*at]].absent != Absent::Never) {
                let (terms, place) = without(&active, &found, at);
                self.errors(choice, self.values(&terms, &place).all(), &mut errors);
                missed.push((at, least_squares::cost(&errors)));
            }
            missed.sort_by(|one, two| one.1.total_cmp(&two.1));
            let tried = missed.iter().take(TRIED).map(|(at, _)| {
                let (terms, start) = without(&active, &found, *at);
                let (place, loss) = self.run(choice, &terms, &start, 4);
                (terms, place, loss)
            });
            let Some((terms, place, left)) = tried.min_by(|one, two| one.2.total_cmp(&two.2)) else {
                return (active, found);
            };
            if active.len() <= MOST_TERMS && left > loss * (1.0 + WORTH) {
                return (active, found);
            }
            (active, found) = (terms, place);
        }
    }
}

/// The same without one of them.
fn without(active: &[usize], found: &[f64], at: usize) -> (Vec<usize>, Vec<f64>) {
    let (mut terms, mut place) = (active.to_vec(), found.to_vec());
    terms.remove(at);
    place.remove(at);
    (terms, place)
}

/// Choices that stacks are known to make.
fn choices(op: TimedOp) -> Vec<AttentionChoice> {
    let mut all = Vec::new();
    if op == TimedOp::ContextAttention {
        for packs in [true, false] {
            for tile in [64, 128, 256] {
                all.push(AttentionChoice { tile, packs, pack_limit: 1024, packs_windows: true, splits: 1 });
            }
        }
        return all;
    }
    let packing = [(true, 16, 1024), (true, 64, 1024), (true, 16, 32), (true, 16, 16), (true, 64, 32), (false, 1, 1)];
    for (packs, tile, pack_limit) in packing {
        for splits in [1, 8, 32, 256] {
            for packs_windows in if packs { &[true, false][..] } else { &[true] } {
                let packs_windows = *packs_windows;
                all.push(AttentionChoice { tile, packs, pack_limit, packs_windows, splits });
            }
        }
    }
    all
}

/// Where each term of an operator may lie.
fn ranges(op: TimedOp, least: f64, place: &Place) -> [Option<Range>; COUNT] {
    let Place { units, bandwidth, peak, cache } = *place;
    let product = op == TimedOp::Gemm;
    let host = Range(0.5 * least, 0.1 * least, (3.0 * least).max(4e-4));
    let width = Range(1.0, 0.1, 2.0);
    let room = Range(0.1 * cache, 1e4, 2.0 * cache);
    let of = |term: usize| match term {
        at::LAUNCH if product => Range(0.6 * least, 0.05 * least, least),
        at::LAUNCH => Range(0.8 * least, 0.1 * least, 1.3 * least),
        at::READ => Range(0.85 * bandwidth, 0.2 * bandwidth, bandwidth),
        at::RATE if product => Range(0.8 * peak, 0.1 * peak, peak),
        at::RATE => Range(0.5 * peak, 0.01 * peak, peak),
        at::WRITE if product => Range(2.0 * bandwidth, 0.2 * bandwidth, 30.0 * bandwidth),
        at::WRITE => Range(bandwidth, 0.05 * bandwidth, 30.0 * bandwidth),
        at::WAVE => Range(0.4, 0.01, 1.0),
        at::STREAM => Range(3.0 * bandwidth / units, 0.1 * bandwidth / units, 30.0 * bandwidth / units),
        at::BLOCK => Range(0.3e-6, 1e-9, 5e-5),
        at::SPLIT => Range(1.5e-6, 1e-9, 5e-5),
        at::THROTTLE => Range(0.1, 0.001, 0.6),
        at::STEP => Range(if product { 20e-9 } else { 50e-9 }, 1e-10, 5e-6),
        at::ROW => Range(1e-10, 1e-12, 1e-7),
        at::ELEMENT => Range(1e-13, 1e-16, 1e-10),
        at::WARM_OUTPUT => Range(0.5 * cache, 1e5, 20.0 * cache),
        at::HOST | at::HOST_THIN | at::HOST_ODD => host,
        at::SINGLE => Range(1e-8, 1e-9, 1e-4),
        at::SEQUENCE => Range(1e-9, 1e-12, 1e-6),
        at::PAIR => Range(10.0 / peak, 0.1 / peak, 2e4 / peak),
        at::VECTOR => Range(0.03 * peak, 0.0005 * peak, peak),
        at::BEYOND => Range(0.01, 0.0005, 1.0),
        at::WIDTH_64 | at::WIDTH_192 | at::WIDTH_256 | at::WIDTH_512 => width,
        _ => room,
    };
    let known = terms_of(op);
    std::array::from_fn(|term| known.contains(&term).then(|| of(term)))
}
