//! How well a matrix product cuts into tiles on a device: shared memory, waves, occupancy and what of it L2 can hold.
//!
//! An analytical picture for choosing a tile, not a prediction of time. A tile of `tm x tn` of the output is computed by a
//! block that streams `tk` columns at a time of both inputs through shared memory, double-buffered.

mod thin;

pub use thin::Thin;

use schemars::JsonSchema;
use serde::Serialize;

use crate::{Device, Error, Format, Result, op::Linear, units::Bytes};

/// A tile of the output and a step along `k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Tile {
    /// Rows of the output.
    pub m: u64,
    /// Columns of the output.
    pub n: u64,
    /// Step along `k`.
    pub k: u64,
}

/// The tiles that libraries choose from.
pub const STANDARD: [Tile; 12] = [
    Tile { m: 64, n: 64, k: 32 },
    Tile { m: 64, n: 128, k: 32 },
    Tile { m: 128, n: 64, k: 32 },
    Tile { m: 128, n: 128, k: 32 },
    Tile { m: 128, n: 256, k: 32 },
    Tile { m: 256, n: 128, k: 32 },
    Tile { m: 256, n: 256, k: 32 },
    Tile { m: 64, n: 64, k: 64 },
    Tile { m: 64, n: 128, k: 64 },
    Tile { m: 128, n: 128, k: 64 },
    Tile { m: 128, n: 256, k: 64 },
    Tile { m: 256, n: 128, k: 64 },
];

/// What the tiles run on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "TilingMachine")]
pub struct Machine {
    /// Multiprocessors.
    pub sm: u64,
    /// Shared memory a multiprocessor gives to its blocks.
    pub shared_per_sm: Bytes,
    /// Second-level cache.
    pub l2: Bytes,
}

impl Machine {
    /// The device's own numbers; one it does not have is an error.
    pub fn of(device: &Device) -> Result<Self> {
        let missing = |what: &str| Error::Device { key: device.key.clone(), reason: format!("its file has no {what}") };
        Ok(Self {
            sm: device.units.sm.ok_or_else(|| missing("multiprocessor count"))?.into(),
            shared_per_sm: device.cache.shared_per_sm.ok_or_else(|| missing("shared memory size"))?,
            l2: device.cache.l2.ok_or_else(|| missing("L2 size"))?,
        })
    }
}

/// How a product cuts into one kind of tile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Tiling {
    /// The tile.
    pub tile: Tile,
    /// Two buffers of both input tiles.
    pub shared_bytes: Bytes,
    /// Whether a multiprocessor's shared memory holds them.
    pub feasible: bool,
    /// Tiles of the output.
    pub tiles: u64,
    /// Tiles over multiprocessors.
    pub waves: f64,
    /// How full the waves are: `waves / ceil(waves)`.
    pub wave_efficiency: f64,
    /// Blocks that share a multiprocessor, at most 4.
    pub blocks_per_sm: u64,
    /// A quarter per block.
    pub occupancy: f64,
    /// Waves when the blocks of a multiprocessor run side by side.
    pub concurrent_waves: f64,
    /// How much of the tiles is output: `m n` over the area they cover.
    pub tile_efficiency: f64,
    /// The part of both inputs and the output that L2 can hold.
    pub l2_share: f64,
    /// `0.4 wave efficiency + 0.3 occupancy + 0.3 L2 share`; zero where the tile does not fit.
    pub score: f64,
}

/// The most blocks a multiprocessor is credited with.
const MAX_BLOCKS: u64 = 4;

impl Tiling {
    /// `product` in tiles of `tile`, all operands in `format`.
    pub fn of(product: Linear, tile: Tile, format: Format, machine: Machine) -> Self {
        let (m, n) = (product.m.get(), product.n.get());
        let element = f64::from(format.nominal_bits()) / 8.0;
        let shared = 2.0 * ((tile.m * tile.k + tile.k * tile.n) as f64) * element;
        let tiles = m.div_ceil(tile.m) * n.div_ceil(tile.n);
        let waves = tiles as f64 / machine.sm as f64;
        let blocks = ((machine.shared_per_sm.value() / shared) as u64).min(MAX_BLOCKS);
        let feasible = blocks > 0;
        let concurrent = tiles as f64 / (machine.sm * blocks.max(1)) as f64;
        let covered = (m.div_ceil(tile.m) * tile.m) as f64 * (n.div_ceil(tile.n) * tile.n) as f64;
        let wave_efficiency = waves / waves.ceil();
        let occupancy = occupancy(blocks);
        let l2_share = cached_share(product, format, machine);
        let score = score(wave_efficiency, occupancy, l2_share);
        Self {
            tile,
            shared_bytes: Bytes::new(shared),
            feasible,
            tiles,
            waves,
            wave_efficiency,
            blocks_per_sm: blocks,
            occupancy,
            concurrent_waves: concurrent,
            tile_efficiency: product.m.float() * product.n.float() / covered,
            l2_share,
            score: if feasible { score } else { 0.0 },
        }
    }

    /// The standard tiles that are no larger than the product, best first; an error where none is. A product with fewer rows
    /// than the smallest tile is split by [`Thin`].
    pub fn sweep(product: Linear, format: Format, machine: Machine) -> Result<Vec<Self>> {
        let fits = |tile: &&Tile| tile.m <= product.m.get() && tile.n <= product.n.get() && tile.k <= product.k.get();
        let mut tilings: Vec<Self> =
            STANDARD.iter().filter(fits).map(|tile| Self::of(product, *tile, format, machine)).collect();
        if tilings.is_empty() {
            return Err(Error::Shape(format!(
                "no standard tile (from 64 x 64 x 32) fits {} x {} x {}; `⟨tile⟩` looks at one of your own",
                product.m, product.n, product.k
            )));
        }
        tilings.sort_by(|a, b| b.score.total_cmp(&a.score));
        Ok(tilings)
    }
}

/// A quarter per block that shares a multiprocessor, of four.
pub fn occupancy(blocks_per_sm: u64) -> f64 {
    0.25 * blocks_per_sm.min(MAX_BLOCKS) as f64
}

/// How evenly work falls: `0.4 wave efficiency + 0.3 occupancy + 0.3 L2 share`.
pub fn score(wave_efficiency: f64, occupancy: f64, l2_share: f64) -> f64 {
    0.4 * wave_efficiency + 0.3 * occupancy + 0.3 * l2_share
}

/// The part of both inputs and the output, all in `format`, that L2 can hold.
fn cached_share(product: Linear, format: Format, machine: Machine) -> f64 {
    let (m, n, k) = (product.m.float(), product.n.float(), product.k.float());
    let working_set = (m * k + k * n + m * n) * f64::from(format.nominal_bits()) / 8.0;
    (machine.l2.value() / working_set).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    fn tiling(sm: u64, kib: f64, mib: f64) -> Tiling {
        let machine = Machine { sm, shared_per_sm: Bytes::new(kib * 1024.0), l2: Bytes::new(mib * 1024.0 * 1024.0) };
        let product = Linear::new(4096, 4096, 4096).unwrap();
        Tiling::of(product, Tile { m: 128, n: 128, k: 32 }, Format::FP16, machine)
    }

    #[test]
    fn known_numbers() {
        // 2 x (128 x 32 + 32 x 128) x 2 B; 32 x 32 tiles; 1024 / 160 = 6.4 waves; all of 100.7 MB in 96 MiB.
        let big = tiling(160, 228.0, 96.0);
        assert_eq!((big.shared_bytes.value(), big.tiles, big.blocks_per_sm), (32_768.0, 1024, 4));
        assert!((big.waves - 6.4).abs() < 1e-12 && (big.wave_efficiency - 0.914).abs() < 5e-4);
        assert!((big.l2_share - 1.0).abs() < 1e-12 && (big.score - 0.966).abs() < 5e-4);
        let h100 = tiling(132, 228.0, 50.0);
        assert!((h100.waves - 7.758).abs() < 5e-4 && (h100.wave_efficiency - 0.970).abs() < 5e-4);
        assert!((h100.l2_share - 0.521).abs() < 5e-4 && (h100.score - 0.844).abs() < 5e-4);
    }

    #[test]
    fn what_does_not_fit_scores_nothing() {
        // 256 x 128 x 64 in FP32 needs 192 KiB; GB10 has 100 KiB.
        let machine = Machine::of(&Registry::builtin().find("gb10").unwrap()).unwrap();
        let product = Linear::new(4096, 4096, 4096).unwrap();
        let tiling = Tiling::of(product, Tile { m: 256, n: 128, k: 64 }, Format::FP32, machine);
        assert!(!tiling.feasible && tiling.score == 0.0);
        assert_eq!(machine.sm, 48);
    }

    #[test]
    fn tiles_are_no_larger_than_the_product() {
        let machine = Machine::of(&Registry::builtin().find("h200").unwrap()).unwrap();
        let product = Linear::new(128, 32, 4096).unwrap();
        assert!(Tiling::sweep(product, Format::BF16, machine).unwrap_err().to_string().contains("128 x 32 x 4096"));
        let product = Linear::new(128, 4096, 4096).unwrap();
        let sweep = Tiling::sweep(product, Format::BF16, machine).unwrap();
        assert!(sweep.iter().all(|tiling| tiling.tile.m <= 128) && sweep.is_sorted_by(|a, b| a.score >= b.score));
        assert!(Machine::of(&Registry::builtin().find("tpu_v4").unwrap()).is_err());
    }
}
