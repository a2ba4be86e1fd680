//! Products with fewer rows than any tile: a matrix-vector product and its neighbours.
//!
//! There is nothing to keep in a tile: each weight is used once, and time is what reading the weights takes. What a kernel
//! can get wrong is the splitting. Every multiprocessor must have rows of the weight to read, and enough of them on their
//! way that the memory never waits: `bandwidth x latency` bytes over the whole chip (Little's law). Where the weight has
//! too few rows for that, each row is split along `k`, and the parts are added.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Machine, STANDARD, cached_share};
use crate::{
    Device, Format, Result,
    op::Linear,
    units::{Bytes, Seconds},
};

/// How long a load takes from memory. An idle H100 answers after about 480 cycles, 0.3 us (arXiv 2402.13499), and a busy
/// memory takes longer; half a microsecond is a round figure between, and only sizes what is in flight.
const LATENCY: Seconds = Seconds::new(500e-9);
/// Bytes that a warp asks for at once: 32 lanes of 16 bytes.
const WARP_LOAD: f64 = 512.0;
/// Warps of a block, each with a row of the weight.
const ROWS_PER_BLOCK: u64 = 4;

/// How a product with few rows is split over a device: one warp per row of the weight, or per part of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "ThinTiling")]
pub struct Thin {
    /// Rows of the weight that a block reads, one per warp.
    pub rows_per_block: u64,
    /// Parts that a row is cut into along `k`; 1 where there are rows enough.
    pub k_splits: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks that a multiprocessor needs side by side to have enough bytes in flight.
    pub blocks_per_sm: u64,
    /// Blocks over what runs side by side.
    pub waves: f64,
    /// How full the waves are: `waves / ceil(waves)`.
    pub wave_efficiency: f64,
    /// What a multiprocessor reads of the weight.
    pub bytes_per_sm: Bytes,
    /// What a multiprocessor must have on its way at any time: its share of the bandwidth, times the latency.
    pub bytes_in_flight_per_sm: Bytes,
    /// The latency that this assumes.
    pub latency: Seconds,
    /// The input, which every block reads.
    pub input_bytes: Bytes,
    /// Whether a multiprocessor's shared memory holds it.
    pub input_in_shared: bool,
    /// The part of both inputs and the output that L2 can hold.
    pub l2_share: f64,
}

impl Thin {
    /// Whether no standard tile is as short as `product`.
    pub fn applies(product: Linear) -> bool {
        STANDARD.iter().all(|tile| tile.m > product.m.get())
    }

    /// `product` split over `device`, all operands in `format`.
    pub fn of(product: Linear, format: Format, device: &Device) -> Result<Self> {
        let machine = Machine::of(device)?;
        let element = f64::from(format.nominal_bits()) / 8.0;
        let (m, n, k) = (product.m.float(), product.n.get(), product.k.float());
        let in_flight = Bytes::new(device.memory.bandwidth.value() * LATENCY.value() / machine.sm as f64);
        let blocks_per_sm = (in_flight.value() / (WARP_LOAD * ROWS_PER_BLOCK as f64)).ceil().max(1.0) as u64;
        let side_by_side = machine.sm * blocks_per_sm;
        let whole = n.div_ceil(ROWS_PER_BLOCK);
        // A part shorter than one load of a warp leaves lanes without work.
        let most_splits = (k * element / WARP_LOAD).floor().max(1.0) as u64;
        let k_splits = side_by_side.div_ceil(whole).min(most_splits);
        let blocks = whole * k_splits;
        let waves = blocks as f64 / side_by_side as f64;
        let input = m * k * element;
        Ok(Self {
            rows_per_block: ROWS_PER_BLOCK,
            k_splits,
            blocks,
            blocks_per_sm,
            waves,
            wave_efficiency: waves / waves.ceil(),
            bytes_per_sm: Bytes::new(product.n.float() * k * element / machine.sm as f64),
            bytes_in_flight_per_sm: in_flight,
            latency: LATENCY,
            input_bytes: Bytes::new(input),
            input_in_shared: input <= machine.shared_per_sm.value(),
            l2_share: cached_share(product, format, machine),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    fn thin(m: u64, n: u64, k: u64, on: &str) -> Thin {
        let product = Linear::new(m, n, k).unwrap();
        assert!(Thin::applies(product));
        Thin::of(product, Format::BF16, &Registry::builtin().find(on).unwrap()).unwrap()
    }

    #[test]
    fn a_vector_on_an_h200() {
        let thin = thin(1, 4096, 4096, "h200");
        // 4.8 TB/s x 0.5 us / 132 = 18.2 kB on their way per multiprocessor: nine blocks of four warps of 512 B.
        assert!((thin.bytes_in_flight_per_sm.value() - 4.8e12 * 500e-9 / 132.0).abs() < 1e-6);
        assert_eq!((thin.blocks_per_sm, thin.rows_per_block), (9, 4));
        // 1024 blocks of four rows do not fill 1188 places: each row is cut in two.
        assert_eq!((thin.k_splits, thin.blocks), (2, 2048));
        assert!(
            (thin.waves - 2048.0 / 1188.0).abs() < 1e-12 && (thin.wave_efficiency - thin.waves / 2.0).abs() < 1e-12
        );
        // 4096 x 4096 x 2 B over 132 multiprocessors; 8 KiB of input, in shared memory.
        assert!((thin.bytes_per_sm.value() - 33_554_432.0 / 132.0).abs() < 1e-6);
        assert!(thin.input_bytes == Bytes::new(8192.0) && thin.input_in_shared && thin.l2_share == 1.0);
    }

    #[test]
    fn rows_are_split_only_where_there_are_too_few() {
        // A vocabulary has rows enough for everybody; 64 rows of 128 numbers cannot be cut below a warp's load.
        assert_eq!(thin(1, 128_256, 4096, "h200").k_splits, 1);
        assert_eq!(thin(1, 64, 128, "h200").k_splits, 1);
        let few = thin(63, 64, 8192, "h200");
        assert_eq!((few.k_splits, few.blocks), (32, 512));
        assert!(!few.input_in_shared, "63 x 8192 x 2 B is a megabyte");
        // The smallest of all has one multiprocessor: 12.8 kB on their way are seven blocks.
        assert_eq!(thin(1, 4096, 4096, "jetson_nano").blocks_per_sm, 7);
    }

    #[test]
    fn from_the_shortest_tile_on_there_are_tiles() {
        let of = |m: u64| Thin::applies(Linear::new(m, 4096, 4096).unwrap());
        assert!(of(1) && of(63) && !of(64));
    }
}
