//! The time of a matrix product.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    CACHE_RATE, Causes, Found, corner, kept,
    kernel::{Shape, TimedKernel},
    spec::{COUNT, at},
    throttled,
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

/// A product and every way to cut it.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) m: f64,
    n: f64,
    k: f64,
    weights: f64,
    input: f64,
    cuts: Vec<Cut>,
}

/// One way to cut a product.
#[derive(Clone, Copy, Debug)]
struct Cut {
    tile: u8,
    /// Whether the tile is not mostly outside the matrix.
    fits: bool,
    split: bool,
    blocks: f64,
    flops: f64,
    bytes: f64,
    steps: f64,
    partial: f64,
}

impl Asked {
    /// With its cuts.
    pub(super) fn of(kernel: &TimedKernel) -> Self {
        let Shape::Product { m, n, k } = kernel.shape else {
            return Self { m: 0.0, n: 0.0, k: 0.0, weights: 0.0, input: 0.0, cuts: Vec::new() };
        };
        let (weight, activation) = kernel.dtype.bytes();
        let mut cuts = Vec::with_capacity(TILES.len() * SPLITS.len());
        for (number, Tile(rows, outputs)) in TILES.into_iter().enumerate() {
            let wide = |side: f64, least: f64, of: f64| side > least && side >= 2.0 * of;
            let fits = !wide(rows, 16.0, m) && !wide(outputs, 64.0, n);
            for split in SPLITS {
                if split > 1.0 && k / split < LEAST_DEPTH {
                    break;
                }
                let steps = (k / split / STEP).ceil();
                let depth = steps * STEP;
                cuts.push(Cut {
                    tile: number as u8,
                    fits,
                    split: split > 1.0,
                    blocks: (m / rows).ceil() * (n / outputs).ceil() * split,
                    flops: 2.0 * rows * outputs * depth,
                    bytes: depth * (rows.min(m) * activation + outputs.min(n) * weight),
                    steps,
                    partial: if split > 1.0 { PARTIAL * m * n * split } else { 0.0 },
                });
            }
        }
        Self { m, n, k, weights: n * k * weight, input: m * k * activation, cuts }
    }
}

/// The time of a product by cause.
pub(super) fn causes(values: &[f64; COUNT], choice: &ProductChoice, asked: &Asked, units: f64, found: Found) -> Causes {
    let value = |at: usize| values[at];
    let (read, write) = (value(at::READ), value(at::WRITE));
    let of_weights = if found == Found::AsTimed { kept(asked.weights, value(at::WARM_WEIGHTS)) } else { 0.0 };
    let warm = asked.weights * of_weights + asked.input * kept(asked.input, value(at::WARM_INPUT));
    let memory = (asked.weights + asked.input - warm) / read + warm / (CACHE_RATE * read);
    let output = OUTPUT * asked.m * asked.n;
    let near = if value(at::WARM_OUTPUT).is_finite() { kept(output, value(at::WARM_OUTPUT)) } else { 1.0 };
    let finish = output * near / write + output * (1.0 - near) / write.min(TO_MEMORY * read);
    let taken = choice.tiles[range_of(asked.m)];
    let (operation, byte) = (units / value(at::RATE), 1.0 / value(at::STREAM));
    let (wave, throttle) = (value(at::WAVE), value(at::THROTTLE));
    let (mut best, mut parts) = (f64::INFINITY, (0.0, 0.0));
    for cut in &asked.cuts {
        let usable = taken.map_or(cut.fits, |number| cut.tile == number);
        if !usable || (cut.split && !choice.splits) {
            continue;
        }
        let waves = cut.blocks / units;
        let even = waves.max(1.0);
        let share = even + wave * (waves.ceil() - even);
        let compute = throttled(share * cut.flops * operation, throttle);
        let stream = share * (cut.bytes * byte + cut.steps * value(at::STEP) + value(at::BLOCK));
        let extra = cut.partial / write + if cut.split { value(at::SPLIT) } else { 0.0 };
        if compute.max(stream) + extra >= best {
            continue;
        }
        let time = corner(choice.corner, &[memory, compute, stream]) + extra;
        if time < best {
            (best, parts) = (time, (memory.max(stream) + extra, compute));
        }
    }
    let quantizing = asked.m * (value(at::ROW) + asked.k * value(at::ELEMENT));
    let single = if asked.m == 1.0 { value(at::SINGLE) } else { 0.0 };
    let launch = value(at::LAUNCH) + single;
    let host = if asked.n < ODD.0 || asked.k < ODD.1 {
        value(at::HOST_ODD)
    } else if asked.m < THIN {
        value(at::HOST_THIN)
    } else {
        value(at::HOST)
    };
    let running = launch + best + finish + quantizing;
    let time = if host > 0.0 { corner(8, &[running, host]) } else { running };
    let waiting = time - running;
    Causes { time, launch: launch + waiting, memory: parts.0 + finish + quantizing, compute: parts.1 }
}
