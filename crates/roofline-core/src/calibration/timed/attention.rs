//! The time of attention: one new token over a cache, or a prompt.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    CACHE_RATE, Causes, Found, corner, kept,
    kernel::{Shape, TimedKernel},
    spec::{COUNT, at},
    throttled, whole,
};
use crate::op::causal_pairs;

/// Keys of a step of the loop over a cache, and the least that are worth a block of their own.
const STEP: f64 = 64.0;
/// Bytes of an output, and of a partial one that is written and read again.
const OUTPUT: f64 = 2.0;
const PARTIAL: f64 = 8.0;
/// Operations for each feature, query and key: two products, each a multiply-add.
const OPERATIONS: f64 = 4.0;

/// How a stack cuts its attention.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttentionChoice {
    /// Queries of a block.
    pub tile: u32,
    /// Whether heads that share keys and values share a block.
    pub packs: bool,
    /// Up to how many heads do.
    pub pack_limit: u32,
    /// Whether they do where a window limits what is seen, too.
    pub packs_windows: bool,
    /// Blocks that share one cache, at most.
    pub splits: u32,
}

impl AttentionChoice {
    pub(super) fn sensible(&self) -> bool {
        (1..=1024).contains(&self.tile) && (1..=1024).contains(&self.splits)
    }
}

/// What is asked for, as plain numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    batch: f64,
    queries: f64,
    pub(super) context: f64,
    heads: f64,
    kv_heads: f64,
    width: f64,
    /// Zero where all is seen.
    window: f64,
    windowed: bool,
    decode: bool,
    cached: f64,
    query: f64,
}

impl Asked {
    pub(super) fn of(kernel: &TimedKernel) -> Self {
        let (cached, query) = kernel.dtype.bytes();
        let Shape::Attention { batch, queries, context, heads, kv_heads, head_dim, window, decode } = kernel.shape
        else {
            let none = 1.0;
            return Self {
                batch: none,
                queries: none,
                context: none,
                heads: none,
                kv_heads: none,
                width: none,
                window: 0.0,
                windowed: false,
                decode: true,
                cached,
                query,
            };
        };
        let windowed = window > 0.0;
        let window = if windowed && window < context { window } else { 0.0 };
        Self { batch, queries, context, heads, kv_heads, width: head_dim, window, windowed, decode, cached, query }
    }

    /// Query-key pairs of a head and sequence, causal, within a window where there is one.
    fn pairs(&self, window: f64) -> f64 {
        causal_pairs(self.queries, self.context, if window > 0.0 { window } else { self.context })
    }

    /// Pairs that the mask leaves.
    pub(super) fn causal_pairs(&self) -> f64 {
        self.pairs(self.window)
    }

    /// Keys that any query sees.
    pub(super) fn visible(&self) -> f64 {
        if self.window > 0.0 { (self.window + self.queries - 1.0).min(self.context) } else { self.context }
    }
}

/// The time of attention by cause.
pub(super) fn causes(
    values: &[f64; COUNT],
    choice: &AttentionChoice,
    asked: &Asked,
    units: f64,
    found: Found,
) -> Causes {
    let value = |at: usize| values[at];
    let visible = asked.visible();
    // Keys before a window that a kernel passes over all the same.
    let passed = if asked.window > 0.0 { visible + value(at::BEYOND) * (asked.context - visible) } else { visible };
    let cache = 2.0 * asked.batch * asked.kv_heads * passed * asked.width * asked.cached;
    let ends = asked.batch * asked.heads * asked.queries * asked.width * (asked.query + OUTPUT);
    let warm = if found == Found::AsTimed { cache * kept(cache, value(at::WARM_CACHE)) } else { 0.0 };
    let read = value(at::READ);
    let memory = (cache - warm) / read + warm / (CACHE_RATE * read) + ends / value(at::WRITE);
    let speed = value(match asked.width {
        width if width >= 512.0 => at::WIDTH_512,
        width if width > 192.0 => at::WIDTH_256,
        width if width > 128.0 => at::WIDTH_192,
        width if width < 128.0 => at::WIDTH_64,
        _ => return finish(values, asked, &body(values, choice, asked, units, memory, passed), 1.0),
    });
    finish(values, asked, &body(values, choice, asked, units, memory, passed), speed)
}

/// Time, of which memory, of which compute, and what is added after it.
struct Body {
    time: f64,
    memory: f64,
    compute: f64,
    extra: f64,
}

fn body(values: &[f64; COUNT], choice: &AttentionChoice, asked: &Asked, units: f64, memory: f64, passed: f64) -> Body {
    if asked.decode {
        decode(values, choice, asked, units, memory, passed)
    } else {
        prefill(values, choice, asked, units, memory, passed)
    }
}

fn finish(values: &[f64; COUNT], asked: &Asked, body: &Body, speed: f64) -> Causes {
    let launch = values[at::LAUNCH] + values[at::SEQUENCE] * asked.batch;
    Causes {
        time: launch + body.time / speed + body.extra,
        launch,
        memory: body.memory / speed + body.extra,
        compute: body.compute / speed,
    }
}

/// A block for each cache of a head and sequence, or several that share it.
fn decode(
    values: &[f64; COUNT],
    choice: &AttentionChoice,
    asked: &Asked,
    units: f64,
    memory: f64,
    passed: f64,
) -> Body {
    let value = |at: usize| values[at];
    let group = asked.heads / asked.kv_heads;
    let packs = choice.packs && group <= f64::from(choice.pack_limit) && (choice.packs_windows || !asked.windowed);
    let block_rows = f64::from(choice.tile);
    let mut best = Body { time: f64::INFINITY, memory, compute: 0.0, extra: 0.0 };
    for packed in [true, false] {
        // A head that is alone in its group may run as it likes.
        if (packed && !packs) || (!packed && packs && group > 1.0) {
            continue;
        }
        let (queries, rate) = if packed { (block_rows, value(at::RATE)) } else { (1.0, value(at::VECTOR)) };
        let items = asked.batch * asked.kv_heads * if packed { whole(group / block_rows) } else { group };
        let mut split = 1.0;
        while split <= f64::from(choice.splits) && (split == 1.0 || passed / split >= STEP) {
            let keys = whole(passed / split);
            let waves = items * split / units;
            let even = waves.max(1.0);
            let share = even + value(at::WAVE) * (whole(waves) - even).max(0.0);
            let compute = share * units * keys * queries * (OPERATIONS * asked.width / rate + value(at::PAIR));
            let bytes = keys * 2.0 * asked.width * asked.cached;
            let stream = share * (bytes / value(at::STREAM) + whole(keys / STEP) * value(at::STEP) + value(at::BLOCK));
            let partial = PARTIAL * asked.batch * asked.heads * asked.width * split / value(at::WRITE);
            let extra = if split > 1.0 { value(at::SPLIT) + partial } else { 0.0 };
            split *= 2.0;
            if memory.max(compute).max(stream) + extra >= best.time + best.extra {
                continue;
            }
            let time = corner(4, &[memory, compute, stream]);
            if time + extra < best.time + best.extra {
                best = Body { time, memory: memory.max(stream), compute, extra };
            }
        }
    }
    best
}

/// A block for some queries of each head: it passes over the keys they see.
fn prefill(
    values: &[f64; COUNT],
    choice: &AttentionChoice,
    asked: &Asked,
    units: f64,
    memory: f64,
    passed: f64,
) -> Body {
    let value = |at: usize| values[at];
    let group = asked.heads / asked.kv_heads;
    let block_rows = f64::from(choice.tile);
    let (rows, lanes, heads) = if choice.packs {
        (asked.queries * group, asked.batch * asked.kv_heads, group)
    } else {
        (asked.queries, asked.batch * asked.heads, 1.0)
    };
    let tiles = whole(rows / block_rows);
    let tokens = if choice.packs { (block_rows / group).max(1.0) } else { block_rows };
    // Tiles that the mask cuts are computed whole: half a tile more for each row of them.
    let inside = asked.pairs(asked.window);
    let outside = if asked.window > 0.0 { value(at::BEYOND) * (asked.pairs(0.0) - inside) } else { 0.0 };
    let padded = inside + asked.queries * tokens.min(asked.queries) / 2.0 + outside;
    let filled = (tiles * block_rows / rows).min(block_rows);
    let pairs = padded * heads * filled;
    let pair = OPERATIONS * asked.width / value(at::RATE) + value(at::PAIR);
    let total = lanes * pairs * pair;
    let longest = if asked.window > 0.0 {
        passed.min(asked.window + tokens) + value(at::BEYOND) * (asked.context - asked.window).max(0.0)
    } else {
        asked.context
    };
    let (step, block) = (value(at::STEP), value(at::BLOCK));
    let chain = units * block_rows * longest * pair + whole(longest / STEP) * step + block;
    let blocks = lanes * tiles;
    let keys = pairs / tiles / block_rows;
    let stream = (blocks / units).max(1.0) * (block + keys / STEP * step)
        + blocks / units * keys * 2.0 * asked.width * asked.cached / value(at::STREAM);
    let time = corner(4, &[memory, total, chain, stream]) + value(at::WAVE) * chain;
    let time = throttled(time, value(at::THROTTLE));
    Body { time, memory: memory.max(stream), compute: total.max(chain), extra: 0.0 }
}
