//! Attention over a model's cache.

use roofline_core::Format;

use super::{
    Kernels,
    launch::{Grid, chained},
    matrix::unsupported,
    small::source,
};
use crate::{
    Result,
    cuda::{backend::Argument, gpu::Recipe, row_format::RowFormat},
};

const PLAIN: &str = source!("attention_plain.cu");
/// The widest head of the plain kernel.
const WIDEST: usize = 256;

/// A layer's cache.
#[derive(Clone, Copy, Debug)]
pub struct Cached {
    /// Keys, values, and the scales of both.
    pub places: [u64; 4],
    /// How they are stored.
    pub format: Format,
    /// Keys that a sequence may have.
    pub capacity: usize,
}

/// Queries of some sequences over their caches.
#[derive(Clone, Copy, Debug)]
pub struct Attending {
    /// How many.
    pub sequences: usize,
    /// The first of them in the cache.
    pub first: usize,
    /// Queries of each.
    pub new: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Features of a head.
    pub width: usize,
    /// Keys that a query sees at most.
    pub window: Option<usize>,
    /// What scores are multiplied by.
    pub scale: f32,
    /// Where they are bent: `cap tanh(score / cap)`.
    pub cap: Option<f32>,
    /// A score per head that takes part in the sum and has no value.
    pub sinks: Option<u64>,
    /// A row for each token, head by head.
    pub queries: u64,
    /// Keys that each sequence had before these queries, in memory.
    pub starts: u64,
    /// Keys that it has with them.
    pub lengths: u64,
    /// The most keys that a sequence may have, which decides how the work is divided.
    pub longest: usize,
    /// What they look at.
    pub cache: Cached,
    /// Where mixed values go, as the queries lie.
    pub out: u64,
}

impl Kernels<'_> {
    /// Attention, by the fastest kernel that takes it.
    pub fn attention(&self, of: &Attending) -> Result<()> {
        self.attention_plain(of)
    }

    /// Attention by a kernel that takes any head.
    pub fn attention_plain(&self, of: &Attending) -> Result<()> {
        let sixteen = if self.half { Format::FP16 } else { Format::BF16 };
        let format = RowFormat::of(of.cache.format, sixteen)
            .ok_or_else(|| unsupported(format!("a cache in {} has no kernel", of.cache.format)))?;
        if of.width > WIDEST {
            return Err(unsupported(format!("heads of {} features are wider than {WIDEST}", of.width)));
        }
        let rows = of.sequences * of.new;
        let defines = [self.flags(), format.defines("CACHE"), vec![("HEAD_DIM", of.width as i64)]].concat();
        let function = self.gpu.function(&Recipe { source: PLAIN, function: "attention_plain", defines, shared: 0 })?;
        let integer = |value: usize| Argument::Integer(value.min(i32::MAX as usize) as i32);
        let [keys, values, key_scales, value_scales] = of.cache.places.map(Argument::Address);
        let arguments = [
            Argument::Address(of.queries),
            keys,
            values,
            key_scales,
            value_scales,
            Argument::Address(of.starts),
            Argument::Address(of.sinks.unwrap_or(0)),
            Argument::Address(of.out),
            integer(rows),
            integer(of.heads),
            integer(of.kv_heads),
            integer(of.cache.capacity),
            integer(of.first),
            integer(of.new),
            integer(of.window.unwrap_or(usize::MAX)),
            Argument::Real(of.scale),
            Argument::Real(of.cap.unwrap_or(0.0)),
        ];
        chained(self.gpu, &function, Grid::of((rows * of.heads).div_ceil(4), 128), &arguments)
    }
}

pub(super) fn sources() -> Vec<(String, Recipe)> {
    let of = |(format, width): (RowFormat, i64)| {
        let more = vec![("HEAD_DIM", width), ("HALF", width / 20 % 2), ("CHAINED", 1)];
        let defines = [format.defines("CACHE"), more].concat();
        (
            format!("plain attention {format:?}"),
            Recipe { source: PLAIN, function: "attention_plain", defines, shared: 0 },
        )
    };
    [(RowFormat::Sixteen, 20), (RowFormat::E4m3, 128), (RowFormat::E5m2, 64), (RowFormat::Int8, 256)].map(of).into()
}
