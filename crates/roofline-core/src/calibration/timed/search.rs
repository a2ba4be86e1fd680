//! Finding the terms of a kernel: what the stack decides first, on some of the timings, then every number on all of them.

mod ranges;

use self::ranges::{Range, choices, ranges};
use super::{
    Choice, Found,
    attention::{self, AttentionChoice},
    kernel::{TimedKernel, TimedOp},
    least_squares::{self, DIFFERENCE, Errors, Search},
    product::{self, Cut, ProductChoice, RANGES, TILE_COUNT},
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
    /// With every way to cut it.
    Product(product::Asked, Vec<Cut>),
    Attention(attention::Asked),
}

impl Row {
    pub(super) fn new(kernel: &TimedKernel, time: f64, units: f64) -> Self {
        let asked = match kernel.shape.op() {
            TimedOp::Gemm => {
                let asked = product::Asked::of(kernel);
                Asked::Product(asked, asked.cuts(units))
            }
            _ => Asked::Attention(attention::Asked::of(kernel)),
        };
        Self { asked, time }
    }

    pub(super) fn predicted(&self, values: &[f64; COUNT], choice: &Choice, units: f64) -> f64 {
        match (&self.asked, choice) {
            (Asked::Product(asked, cuts), Choice::Product(choice)) => {
                let range = product::range_of(asked.m);
                let usable = cuts.iter().copied().filter(|cut| cut.usable(choice, range));
                product::Base::of(values, choice, asked, units, Found::AsTimed).time(usable)
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
/// Timings that a term needs at least, where there are few.
const ROWS_OF_TERM: usize = 8;
/// A term goes where the loss is not larger without it by this share.
const WORTH: f64 = 0.004;
/// Terms of which each is tried to be left out.
const TRIED: usize = 2;
/// What a tile has to explain more than the fastest one does, for each timing.
const TILE_WORTH: f64 = 0.003;

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
        let mut off = Off { fit: self, choice, active, near: Vec::new(), ends: Vec::new() };
        let weight = if self.op == TimedOp::Gemm { 0.02 } else { 0.01 };
        let search = Search { least: &least, most: &most, first: &first, weight, rows: self.rows.len() };
        search.run(&mut off, start, steps)
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
                Asked::Product(asked, _) => product::range_of(asked.m) == range,
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
                let (found, loss) = self.run(&Choice::Attention(choice), &self.active, &start, 5);
                (choice, found, loss)
            })
            .collect();
        tried.sort_by(|one, two| one.2.total_cmp(&two.2));
        tried.truncate(4);
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
        let most = MOST_TERMS.min(self.rows.len() / ROWS_OF_TERM);
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
            if active.len() <= most && left > loss * (1.0 + WORTH) {
                return (active, found);
            }
            (active, found) = (terms, place);
        }
    }
}

/// How far off some terms are. Beside a place only the cuts that are about as fast as the fastest are looked at: a term that
/// changes by a share changes no cut's time by more.
struct Off<'a> {
    fit: &'a Fit<'a>,
    choice: &'a Choice,
    active: &'a [usize],
    /// The cuts of each row, and where they end.
    near: Vec<Cut>,
    ends: Vec<usize>,
}

/// Slower cuts than this cannot become the fastest: one may gain as much as the other loses.
const NEAR: f64 = 1.0 + 2.5 * DIFFERENCE;

impl Errors for Off<'_> {
    fn at(&self, place: &[f64], out: &mut [f64]) {
        self.fit.errors(self.choice, self.fit.values(self.active, place).all(), out);
    }

    fn settle(&mut self, place: &[f64]) {
        self.near.clear();
        self.ends.clear();
        let (values, units) = (self.fit.values(self.active, place), self.fit.place.units);
        let Choice::Product(choice) = self.choice else { return };
        for row in &self.fit.rows {
            if let Asked::Product(asked, cuts) = &row.asked {
                let range = product::range_of(asked.m);
                let usable = cuts.iter().copied().filter(|cut| cut.usable(choice, range));
                let base = product::Base::of(values.all(), choice, asked, units, Found::AsTimed);
                base.near(usable, NEAR, &mut self.near);
            }
            self.ends.push(self.near.len());
        }
    }

    fn beside(&self, place: &[f64], out: &mut [f64]) {
        let Choice::Product(choice) = self.choice else { return self.at(place, out) };
        let (values, units) = (self.fit.values(self.active, place), self.fit.place.units);
        let mut from = 0;
        for ((row, end), out) in self.fit.rows.iter().zip(&self.ends).zip(out) {
            if let Asked::Product(asked, _) = &row.asked {
                let base = product::Base::of(values.all(), choice, asked, units, Found::AsTimed);
                let time = base.time(self.near[from..*end].iter().copied());
                *out = libm::log(time / row.time);
            }
            from = *end;
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
