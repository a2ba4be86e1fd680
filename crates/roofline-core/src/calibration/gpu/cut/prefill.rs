//! Attention of many new tokens, cut into blocks.

use super::Cut;
use crate::{Dim, op::Attention};

/// Queries of a block.
const QUERIES: [u32; 2] = [128, 64];
/// Keys that a block passes over at once: one that it sees a part of costs all of them.
const KEYS: u32 = 64;
/// Blocks that share the keys of the same queries, and the fewest keys that are worth a block of its own.
const SPLITS: [u32; 4] = [1, 2, 4, 8];
const LEAST_KEYS: f64 = 512.0;

/// Blocks of some queries of a head: each passes over the keys that they see, in steps. What the mask removes of a step is
/// paid for; steps that it removes altogether are not. With few queries over a long cache, several blocks may share its keys.
///
/// A step has two products and a softmax, whose exponentials another unit makes, as many for narrow heads as for wide ones:
/// that is the lane's time per step. Its queries before the first step and its outputs after the last are hidden behind nothing:
/// that is the lane's time per output. `query` is the bytes of one number of a query.
pub(super) fn cuts(attention: &Attention, read: f64, query: f64) -> Vec<Cut> {
    let heads = attention.batch.float() * attention.heads.float();
    let features = attention.head_dim.float() + attention.value_dim.float();
    let queries = query * heads * attention.queries.float() * attention.head_dim.float();
    // What a key and its value are together.
    let keys = attention.keys() as f64 * attention.batch.float() * attention.kv_heads.float();
    let (key_bytes, key_elements) = ((read - queries).max(0.0) / keys, attention.cached_elements() / keys);
    let outputs = heads * attention.queries.float() * attention.value_dim.float();
    let mut cuts = Vec::with_capacity(QUERIES.len() * SPLITS.len());
    for rows in QUERIES {
        let Seen { blocks, steps, longest } = Seen::of(attention, rows);
        let (each, rows) = (steps / blocks, f64::from(rows));
        for split in SPLITS.map(f64::from) {
            let seen = each / split * f64::from(KEYS);
            if split > 1.0 && seen < LEAST_KEYS {
                break;
            }
            cuts.push(Cut {
                blocks: heads * blocks * split,
                flops: 2.0 * rows * seen * features,
                bytes: seen * key_bytes + queries / (heads * blocks),
                elements: seen * key_elements,
                steps: each / split * rows / f64::from(QUERIES[0]),
                outputs: rows * attention.value_dim.float(),
                partial: if split > 1.0 { 4.0 * outputs * split } else { 0.0 },
                late: 0.0,
                split: split > 1.0,
                longest: longest / each,
            });
        }
    }
    cuts
}

/// What the blocks of one head and sequence pass over.
#[derive(Debug, PartialEq)]
struct Seen {
    blocks: f64,
    /// Steps of all of them.
    steps: f64,
    /// Those of the longest.
    longest: f64,
}

impl Seen {
    /// Sums over blocks in closed form: a prompt of a million tokens has thousands of them.
    fn of(attention: &Attention, rows: u32) -> Self {
        let [queries, context] = [attention.queries, attention.context].map(|dim| i128::from(dim.get()));
        let (rows, keys) = (i128::from(rows), i128::from(KEYS));
        let blocks = (queries + rows - 1) / rows;
        let steps = |until: i128| (until + keys - 1).div_euclid(keys);
        let told =
            |all: i128, longest: i128| Self { blocks: blocks as f64, steps: all as f64, longest: longest as f64 };
        if !attention.causal {
            return told(blocks * steps(context), steps(context));
        }
        let before = context - queries;
        // The first key of the first block's first query, below zero where all are seen.
        let first = before + 1 - attention.window.map_or(context, |window: Dim| i128::from(window.get()));
        // Blocks from here on leave out the keys before their window.
        let later = if first > 0 { 0 } else { (1 - first + rows - 1) / rows }.min(blocks);
        let here = |block: i128| {
            let begin = if block < later { 0 } else { (first + block * rows).div_euclid(keys) };
            steps(context.min(before + (block + 1) * rows)) - begin
        };
        // Steps until the last key of each block: whole steps of rows, from where the new tokens begin.
        let ends = (blocks - 1) * steps(before) + rows / keys * (blocks * (blocks - 1) / 2) + steps(context);
        let left = blocks - later;
        let begins = left * first.div_euclid(keys) + rows / keys * ((later + blocks - 1) * left / 2);
        let longest = [(later - 1).max(0), later.min(blocks - 1), blocks - 1].map(here);
        told(ends - begins, longest.into_iter().max().unwrap_or(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Cache;

    fn attention(queries: u64, context: u64, window: Option<u64>, causal: bool) -> Attention {
        let dim = |value| Dim::new("test", value).unwrap();
        Attention {
            batch: dim(2),
            heads: dim(8),
            kv_heads: dim(2),
            head_dim: dim(128),
            value_dim: dim(128),
            queries: dim(queries),
            context: dim(context),
            causal,
            window: window.map(dim),
            cache: Cache::Separate,
        }
    }

    /// Block by block, key by key where a step begins and ends.
    fn counted(attention: &Attention, rows: i64) -> Seen {
        let [queries, context] = [attention.queries, attention.context].map(|dim| dim.get() as i64);
        let window = attention.window.map_or(context, |window| window.get() as i64);
        let (mut blocks, mut steps, mut longest) = (0, 0, 0);
        for from in (0..queries).step_by(rows as usize) {
            let last = (from + rows).min(queries) - 1;
            let at = |query: i64| context - queries + query;
            let (begin, end) =
                if attention.causal { ((at(from) + 1 - window).max(0), at(last) + 1) } else { (0, context) };
            let here = (end + 63) / 64 - begin / 64;
            (blocks, steps, longest) = (blocks + 1, steps + here, longest.max(here));
        }
        Seen { blocks: f64::from(blocks), steps: steps as f64, longest: longest as f64 }
    }

    #[test]
    fn sums_are_those_of_counting() {
        for rows in [64, 128] {
            for (queries, context) in
                [(2, 2), (128, 128), (129, 129), (1000, 1000), (512, 8192), (17, 4099), (300, 333)]
            {
                for window in [None, Some(1), Some(100), Some(512), Some(4096)] {
                    for causal in [true, false] {
                        let window = window.filter(|_| causal);
                        let asked = attention(queries, context, window, causal);
                        let words = format!("{rows} {queries} {context} {window:?} {causal}");
                        assert_eq!(Seen::of(&asked, rows), counted(&asked, i64::from(rows)), "{words}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_causal_mask_leaves_about_half_of_the_steps() {
        let whole = attention(8192, 8192, None, false);
        let half = attention(8192, 8192, None, true);
        let flops = |attention: &Attention| {
            let cut = cuts(attention, 1e6, 2.0)[0];
            cut.blocks * cut.flops
        };
        let share = flops(&half) / flops(&whole);
        assert!((0.5..0.51).contains(&share), "{share}");
        // The last block sees everything, about twice the mean.
        let cut = cuts(&half, 1e6, 2.0)[0];
        assert!((1.9..2.0).contains(&cut.longest), "{}", cut.longest);
        assert_eq!(cut.blocks, 16.0 * 64.0);
    }

    #[test]
    fn few_queries_over_a_long_cache_may_share_it() {
        assert!(cuts(&attention(64, 32768, None, true), 1e6, 2.0).iter().any(|cut| cut.split));
        assert!(!cuts(&attention(64, 640, None, true), 1e6, 2.0).iter().any(|cut| cut.split));
    }
}
