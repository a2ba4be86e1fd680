//! The time of a matrix product.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    CACHE_RATE, Causes, Found, corner, kept,
    kernel::{Shape, TimedKernel},
    spec::{COUNT, at},
    throttled, whole,
};

/// A tile of the output: rows of the input by outputs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tile(f64, f64);

/// Tiles that libraries have for these devices; the largest are two blocks that work as one.
const TILES: [Tile; 14] = [
    Tile(16.0, 64.0),
    Tile(16.0, 128.0),
    Tile(32.0, 64.0),
    Tile(32.0, 128.0),
    Tile(64.0, 32.0),
    Tile(64.0, 64.0),
    Tile(64.0, 128.0),
    Tile(64.0, 256.0),
    Tile(128.0, 32.0),
    Tile(128.0, 64.0),
    Tile(128.0, 128.0),
    Tile(128.0, 256.0),
    Tile(256.0, 128.0),
    Tile(256.0, 256.0),
];
/// How many tiles there are.
pub(super) const TILE_COUNT: u8 = TILES.len() as u8;
/// Blocks that share a sum over `k`.
const SPLITS: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];
/// The least part of a sum that is worth a block of its own.
const LEAST_DEPTH: f64 = 256.0;
/// A step of the loop over `k`.
const STEP: f64 = 64.0;
/// Rows at which stacks change their tiles.
const BOUNDS: [f64; 4] = [16.0, 64.0, 128.0, 512.0];
/// Ranges of rows between them.
pub(super) const RANGES: usize = BOUNDS.len() + 1;
/// Rows below which, and outputs and inputs below which, stacks call another kernel.
const THIN: f64 = 32.0;
const ODD: (f64, f64) = (64.0, 128.0);
/// Bytes of an output, and of a partial sum that is written and read again.
const OUTPUT: f64 = 2.0;
const PARTIAL: f64 = 8.0;
/// What writing to memory reaches of what reading does.
const TO_MEMORY: f64 = 0.75;

/// The range that `m` rows are in.
pub(super) fn range_of(m: f64) -> usize {
    BOUNDS.iter().filter(|bound| m > **bound).count()
}

/// How a stack cuts its products.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProductChoice {
    /// The tile for up to 16, 64, 128, 512 and more rows, rows by outputs; none, `any` in files, where the fastest is taken.
    #[serde(with = "tile_names")]
    #[schemars(with = "[String; RANGES]")]
    pub tiles: [Option<u8>; RANGES],
    /// Whether blocks share a sum.
    pub splits: bool,
    /// The power of the rounded maximum.
    pub corner: u8,
}

impl ProductChoice {
    /// Every tile, shared sums, and the usual corner.
    pub(super) const ANY: Self = Self { tiles: [None; RANGES], splits: true, corner: 4 };

    pub(super) fn sensible(&self) -> bool {
        self.tiles.iter().flatten().all(|tile| *tile < TILE_COUNT) && matches!(self.corner, 2 | 4 | 8)
    }
}

/// Tiles as files have them: `128x256`, or `any`.
mod tile_names {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    use super::{RANGES, TILES, Tile};

    const ANY: &str = "any";

    fn name(Tile(rows, outputs): Tile) -> String {
        format!("{rows}x{outputs}")
    }

    pub(super) fn serialize<S: Serializer>(tiles: &[Option<u8>; RANGES], serializer: S) -> Result<S::Ok, S::Error> {
        tiles.map(|tile| tile.map_or_else(|| ANY.to_owned(), |at| name(TILES[usize::from(at)]))).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[Option<u8>; RANGES], D::Error> {
        let mut tiles = [None; RANGES];
        for (tile, text) in tiles.iter_mut().zip(<[String; RANGES]>::deserialize(deserializer)?) {
            if text != ANY {
                let at = TILES.iter().position(|known| name(*known) == text);
                *tile = Some(at.ok_or_else(|| D::Error::custom(format!("no tile is called `{text}`")))? as u8);
            }
        }
        Ok(tiles)
    }
}

/// A product as plain numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) m: f64,
    n: f64,
    k: f64,
    weights: f64,
    input: f64,
    /// Bytes of an element of each.
    weight: f64,
    activation: f64,
}

/// One way to cut a product, for a machine of so many multiprocessors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    tile: u8,
    /// Whether the tile is not mostly outside the matrix.
    fits: bool,
    split: bool,
    /// Blocks of each multiprocessor, one at least, and what is missing to whole waves.
    even: f64,
    missing: f64,
    flops: f64,
    bytes: f64,
    steps: f64,
    partial: f64,
}

impl Asked {
    pub(super) fn of(kernel: &TimedKernel) -> Self {
        let (weight, activation) = kernel.dtype.bytes();
        let (m, n, k) = match kernel.shape {
            Shape::Product { m, n, k } => (m, n, k),
            Shape::Attention { .. } => (0.0, 0.0, 0.0),
        };
        Self { m, n, k, weights: n * k * weight, input: m * k * activation, weight, activation }
    }

    /// Every way to cut it, those of one tile after those of another, for a search that asks again and again.
    pub(super) fn cuts(&self, units: f64) -> Vec<Cut> {
        (0..TILE_COUNT).flat_map(|tile| self.cuts_of(tile, units)).collect()
    }

    /// The cuts by one tile: with the sum in one piece, then shared by more and more blocks.
    fn cuts_of(&self, tile: u8, units: f64) -> impl Iterator<Item = Cut> + use<> {
        let Self { m, n, k, weight, activation, .. } = *self;
        let Tile(rows, outputs) = TILES[usize::from(tile)];
        let wide = |side: f64, least: f64, of: f64| side > least && side >= 2.0 * of;
        let fits = !wide(rows, 16.0, m) && !wide(outputs, 64.0, n);
        let blocks = whole(m / rows) * whole(n / outputs);
        let line = rows.min(m) * activation + outputs.min(n) * weight;
        SPLITS.into_iter().take_while(move |split| *split == 1.0 || k / split >= LEAST_DEPTH).map(move |split| {
            let steps = whole(k / split / STEP);
            let depth = steps * STEP;
            let waves = blocks * split / units;
            let even = waves.max(1.0);
            Cut {
                tile,
                fits,
                split: split > 1.0,
                even,
                missing: (whole(waves) - even).max(0.0),
                flops: 2.0 * rows * outputs * depth,
                bytes: depth * line,
                steps,
                partial: if split > 1.0 { PARTIAL * m * n * split } else { 0.0 },
            }
        })
    }

    /// The cuts that a stack may take.
    fn taken(&self, choice: &ProductChoice, units: f64) -> impl Iterator<Item = Cut> + use<> {
        let (asked, splits, tile) = (*self, choice.splits, choice.tiles[range_of(self.m)]);
        let tiles = tile.map_or(0..TILE_COUNT, |tile| tile..tile + 1);
        let usable = move |cut: &Cut| (tile.is_some() || cut.fits) && (splits || !cut.split);
        tiles.flat_map(move |tile| asked.cuts_of(tile, units).take_while(usable))
    }
}

/// The time of a product by cause.
pub(super) fn causes(values: &[f64; COUNT], choice: &ProductChoice, asked: &Asked, units: f64, found: Found) -> Causes {
    let base = Base::of(values, choice, asked, units, found);
    let best = base.fastest(asked.taken(choice, units));
    base.finish(&best)
}

/// What of a time is the same for every cut.
pub(super) struct Base<'a> {
    values: &'a [f64; COUNT],
    asked: &'a Asked,
    corner: u8,
    memory: f64,
    operation: f64,
    byte: f64,
}

/// A cut's time from reading to the last product, of which memory, of which compute.
#[derive(Clone, Copy)]
struct Body {
    time: f64,
    memory: f64,
    compute: f64,
}

impl<'a> Base<'a> {
    pub(super) fn of(
        values: &'a [f64; COUNT],
        choice: &ProductChoice,
        asked: &'a Asked,
        units: f64,
        found: Found,
    ) -> Self {
        let read = values[at::READ];
        let of_weights = if found == Found::AsTimed { kept(asked.weights, values[at::WARM_WEIGHTS]) } else { 0.0 };
        let warm = asked.weights * of_weights + asked.input * kept(asked.input, values[at::WARM_INPUT]);
        let memory = (asked.weights + asked.input - warm) / read + warm / (CACHE_RATE * read);
        let (operation, byte) = (units / values[at::RATE], 1.0 / values[at::STREAM]);
        Self { values, asked, corner: choice.corner, memory, operation, byte }
    }

    /// The time of one cut; none where it cannot be below `limit`.
    #[inline]
    fn body(&self, cut: &Cut, limit: f64) -> Option<Body> {
        let value = |at: usize| self.values[at];
        let share = cut.even + value(at::WAVE) * cut.missing;
        let compute = share * cut.flops * self.operation;
        let stream = share * (cut.bytes * self.byte + cut.steps * value(at::STEP) + value(at::BLOCK));
        let extra = if cut.split { cut.partial / value(at::WRITE) + value(at::SPLIT) } else { 0.0 };
        if self.memory.max(compute).max(stream) + extra >= limit {
            return None;
        }
        let compute = throttled(compute, value(at::THROTTLE));
        let time = corner(self.corner, &[self.memory, compute, stream]) + extra;
        (time < limit).then(|| Body { time, memory: self.memory.max(stream) + extra, compute })
    }

    fn fastest(&self, cuts: impl Iterator<Item = Cut>) -> Body {
        let mut best = Body { time: f64::INFINITY, memory: 0.0, compute: 0.0 };
        for cut in cuts {
            if let Some(faster) = self.body(&cut, best.time) {
                best = faster;
            }
        }
        best
    }

    /// The time with the fastest of some cuts.
    pub(super) fn time(&self, cuts: impl Iterator<Item = Cut>) -> f64 {
        self.finish(&self.fastest(cuts)).time
    }

    /// Adds to `near` the cuts that are slower than the fastest by less than `factor`: those that can become the fastest where
    /// no term changes by more.
    pub(super) fn near(&self, cuts: impl Iterator<Item = Cut> + Clone, factor: f64, near: &mut Vec<Cut>) {
        let limit = factor * self.fastest(cuts.clone()).time;
        near.extend(cuts.filter(|cut| self.body(cut, limit).is_some()));
    }

    fn finish(&self, best: &Body) -> Causes {
        let (asked, value) = (self.asked, |at: usize| self.values[at]);
        let (read, write) = (value(at::READ), value(at::WRITE));
        let output = OUTPUT * asked.m * asked.n;
        let near = if value(at::WARM_OUTPUT).is_finite() { kept(output, value(at::WARM_OUTPUT)) } else { 1.0 };
        let finish = output * near / write + output * (1.0 - near) / write.min(TO_MEMORY * read);
        let quantizing = asked.m * (value(at::ROW) + asked.k * value(at::ELEMENT));
        let single = if asked.m == 1.0 { value(at::SINGLE) } else { 0.0 };
        let launch = value(at::LAUNCH) + single;
        let host = value(if asked.n < ODD.0 || asked.k < ODD.1 {
            at::HOST_ODD
        } else if asked.m < THIN {
            at::HOST_THIN
        } else {
            at::HOST
        });
        let running = launch + best.time + finish + quantizing;
        let time = if host > 0.0 { corner(8, &[running, host]) } else { running };
        let waiting = time - running;
        Causes { time, launch: launch + waiting, memory: best.memory + finish + quantizing, compute: best.compute }
    }
}

impl Cut {
    /// Whether a stack may take it for so many rows.
    pub(super) fn usable(&self, choice: &ProductChoice, range: usize) -> bool {
        choice.tiles[range].map_or(self.fits, |tile| self.tile == tile) && (choice.splits || !self.split)
    }
}
