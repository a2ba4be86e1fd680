//! Products of packed weights by kernels of our own, cut into fields.
//!
//! A block has as many tokens as there are, up to the next power of two, because what is widened has to serve all of them. Blocks
//! are as many as there are multiprocessors, and each has the same number of the stages of all fields (a field is a tile of
//! the output): no wave is half empty, but a field that several blocks share is added up through the L2, and a block whose
//! stages end one field and begin another is counted with sums of both (kernels for Hopper leave those of one and add up the other). Where fields are enough, each may be one block's alone; where two
//! blocks a field nearly fill the machine, they may be neighbours that add up without the L2, and fields may be half as high.

use super::{Cut, Tile, tile};

/// Tokens of a tile: what an instruction has at least, and what registers have room for.
const TOKENS: (f64, f64) = (16.0, 256.0);
/// Bytes times bytes have twice as many columns in a stage, and no kernel for fewer tokens.
const TOKENS_OF_BYTES: f64 = 64.0;
/// Features of a tile, and sums that two warpgroups have registers for.
const FEATURES: [f64; 2] = [128.0, 256.0];
/// Features of a tile whose columns two warpgroups share; blocks that may be neighbours; and the most tokens of either.
const SIDED: f64 = 64.0;
const NEAR: f64 = 2.0;
const NEAR_TOKENS: f64 = 64.0;
const SUMS: f64 = 256.0 * 128.0;
/// Tokens from which two blocks fetch them for each other.
const CLUSTERED: f64 = 256.0;
/// Columns of a stage; twice as many where tokens are few, and what columns are padded to.
const STAGE: f64 = 128.0;
const FEW: f64 = 64.0;
const PADDED: f64 = 256.0;
/// A machine that is emptier than this with a whole number of blocks to a field has its stages shared by all.
const NEARLY_FULL: f64 = 7.0 / 8.0;
/// One that is emptier than this with neighbours is not tried with them.
const MOSTLY_FULL: f64 = 3.0 / 4.0;

/// Every tile for as many rows as a matrix has in the mean, of all `matrices`, and for twice as many: some have more rows than
/// others, and a second tile of a matrix costs as much as the first. Only the GPU knows how many fields there are, so that all blocks
/// share the stages of all. `tiles` says how many tiles of so many rows there are.
pub(super) fn grouped(product: &Product, matrices: f64, tiles: impl Fn(f64) -> f64, units: f64) -> Vec<Cut> {
    let mean = (product.m / matrices).ceil();
    let height = |rows: f64| rows.log2().ceil().exp2().clamp(TOKENS.0, TOKENS.1);
    let (few, many) = (height(mean), height(2.0 * mean));
    let mut all = Vec::new();
    for tokens in if few < many { vec![few, many] } else { vec![few] } {
        let there = tiles(tokens);
        for features in FEATURES.into_iter().filter(|features| tokens * features <= SUMS) {
            for cluster in if tokens >= CLUSTERED { &[1.0, 2.0][..] } else { &[1.0] } {
                let tile = tile(tokens, features);
                let fields = there * (product.n / (features * cluster)).ceil();
                let stages = product.stages(tile);
                let blocks = (units / cluster).floor().max(1.0).min(fields * stages);
                let cut = product.cut(tile, *cluster, fields, stages, blocks);
                // Rows that a tile has room for and no matrix has are multiplied, and not written.
                let written = product.m / there * features * (fields / blocks).max(1.0);
                all.push(Cut { outputs: written, ..cut });
            }
        }
    }
    all
}

/// What is multiplied, per element where it is bytes.
pub(super) struct Product {
    pub(super) m: f64,
    pub(super) n: f64,
    pub(super) k: f64,
    pub(super) weight: f64,
    pub(super) input: f64,
    /// Both operands are bytes.
    pub(super) bytes: bool,
}

/// Every tile for the number of tokens, with every way to share its fields that is worth trying.
pub(super) fn cuts(product: &Product, units: f64) -> Vec<Cut> {
    let Product { m, .. } = *product;
    let least = if product.bytes { TOKENS_OF_BYTES } else { TOKENS.0 };
    let tokens = m.log2().ceil().exp2().clamp(least, TOKENS.1);
    let mut tiles: Vec<Tile> = FEATURES.map(|features| tile(tokens, features)).into();
    if product.bytes && tokens > 128.0 {
        tiles.push(tile(128.0, 256.0));
    }
    tiles.retain(|tile| tile.tokens * tile.features <= SUMS);
    let clusters: &[f64] = if tokens >= CLUSTERED { &[1.0, 2.0] } else { &[1.0] };
    let each =
        |tile: &Tile| clusters.iter().flat_map(|cluster| product.shared(*tile, *cluster, units)).collect::<Vec<_>>();
    let mut all: Vec<Cut> = tiles.iter().flat_map(each).collect();
    if !product.bytes && tokens <= NEAR_TOKENS {
        all.extend(product.near(tile(tokens, FEATURES[0]), NEAR, units));
        all.extend([1.0, NEAR].into_iter().filter_map(|each| product.near(tile(tokens, SIDED), each, units)));
    }
    all
}

impl Product {
    /// The ways to share the fields of `cluster` tiles each.
    fn shared(&self, tile: Tile, cluster: f64, units: f64) -> Vec<Cut> {
        let room = (units / cluster).floor().max(1.0);
        let fields = (self.m / tile.tokens).ceil() * (self.n / (tile.features * cluster)).ceil();
        let stages = self.stages(tile);
        let cut = |blocks: f64| self.cut(tile, cluster, fields, stages, blocks.min(fields * stages));
        let each = (room / fields).floor().min(stages);
        if each < 1.0 {
            return vec![cut(room), cut(fields)];
        }
        let mut all = vec![cut(fields * each)];
        if each * fields < NEARLY_FULL * room {
            all.push(cut(room));
        }
        all
    }

    /// `each` neighbours to a field, where there is room for as many; half a field only where they fill most of the machine.
    fn near(&self, tile: Tile, each: f64, units: f64) -> Option<Cut> {
        let fields = (self.m / tile.tokens).ceil() * (self.n / tile.features).ceil();
        let stages = self.stages(tile);
        let blocks = fields * each;
        let full = tile.features > SIDED || blocks >= MOSTLY_FULL * units;
        let fits = each == (units / fields).floor() && each <= stages && full;
        // What is left to the first of them stays in its shared memory.
        let cut = Cut { partial: 0.0, late: 0.0, split: false, ..self.cut(tile, 1.0, fields, stages, blocks) };
        fits.then_some(cut)
    }

    /// Stages of a field.
    fn stages(&self, tile: Tile) -> f64 {
        let columns = if self.bytes { self.k } else { (self.k / PADDED).ceil() * PADDED };
        (columns / self.stage(tile)).ceil()
    }

    /// Columns of a stage.
    fn stage(&self, tile: Tile) -> f64 {
        match tile.tokens {
            _ if self.bytes => STAGE,
            few if few <= FEW => 2.0 * STAGE,
            many if many > 128.0 && self.weight > 0.75 => STAGE / 2.0,
            _ => STAGE,
        }
    }

    /// `blocks` clusters with as many stages each.
    fn cut(&self, tile: Tile, cluster: f64, fields: f64, stages: f64, blocks: f64) -> Cut {
        let Tile { tokens, features } = tile;
        let each = fields * stages / blocks;
        let depth = each * self.stage(tile);
        // A block of whole fields shares none; one whose part of a field is the same for all leaves sums once, others twice.
        let (whole, even) = (each % stages == 0.0, stages % each == 0.0);
        let shares = if whole {
            0.0
        } else if even {
            1.0
        } else {
            2.0
        };
        let sums = tokens * features;
        Cut {
            blocks: blocks * cluster,
            flops: 2.0 * sums * depth,
            bytes: depth * (tokens.min(self.m) * self.input / cluster + features * self.weight),
            elements: depth * features,
            steps: depth / super::STEP,
            outputs: tokens.min(self.m) * features * (fields / blocks).max(1.0),
            partial: 4.0 * sums * shares * blocks * cluster,
            late: if whole { 0.0 } else { 4.0 * sums * ((blocks / fields).ceil().max(1.0) + shares - 1.0) },
            split: shares > 0.0,
            longest: each.ceil() / each,
        }
    }
}
