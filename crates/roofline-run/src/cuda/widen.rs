//! An 8-bit cache as 16-bit numbers, for attention of many new tokens.

use super::{
    asked::Asked,
    backend::{Argument, Launch},
    gpu::Recipe,
    row_format::RowFormat,
};

const SOURCE: &str = concat!(
    include_str!("../../kernels/common.cuh"),
    include_str!("../../kernels/chain.cuh"),
    include_str!("../../kernels/attention_widen.cu")
);
/// Rows of a block.
const ROWS: usize = 256;
const THREADS: u32 = 256;

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Widen {
    pub(super) stored: RowFormat,
    pub(super) half: bool,
    pub(super) kv_heads: usize,
    pub(super) width: usize,
    pub(super) chained: bool,
}

impl Widen {
    pub(super) fn recipe(&self) -> Recipe {
        let mut defines = self.stored.defines("CACHE");
        defines.extend([
            ("HEAD_DIM", self.width as i64),
            ("HALF", i64::from(self.half)),
            ("ROWS", ROWS as i64),
            ("CHAINED", i64::from(self.chained)),
        ]);
        Recipe { source: SOURCE, function: "attention_widen", defines, shared: 0 }
    }

    /// Bytes of all keys, and as many of all values, that it writes.
    pub(super) fn bytes(&self, sequences: usize, capacity: usize) -> usize {
        sequences * self.kv_heads * capacity * self.width * 2
    }

    /// How its kernel is called, to write keys and values to `wide`, from where attention then takes them.
    pub(super) fn call(&self, asked: &Asked, wide: [u64; 2]) -> (Launch, Vec<Argument>) {
        let mut arguments: Vec<Argument> =
            [asked.keys, asked.values, asked.key_scales, asked.value_scales, wide[0], wide[1], asked.starts]
                .map(Argument::Address)
                .into();
        let integer = |value: usize| Argument::Integer(value as i32);
        arguments.extend([self.kv_heads, asked.capacity, asked.new].map(integer));
        let blocks = 2 * asked.sequences * self.kv_heads * asked.capacity.div_ceil(ROWS);
        (Launch { blocks: blocks as u32, threads: THREADS, shared: 0 }, arguments)
    }
}

/// Programs that may be compiled here, for a test that needs no GPU.
pub(super) fn sources() -> Vec<(String, Recipe)> {
    let of = |(stored, half): (RowFormat, bool)| {
        let widen = Widen { stored, half, kv_heads: 8, width: 128, chained: half };
        (format!("attention widen {stored:?}"), widen.recipe())
    };
    [(RowFormat::E4m3, false), (RowFormat::E5m2, true), (RowFormat::Int8, false)].map(of).into()
}
