//! Kernels between products: the residual stream and its norms, the way into the cache, activation functions, experts.

use roofline_core::Format;

use super::{
    Kernels,
    launch::{Grid, chained},
    matrix::unsupported,
};
use crate::{
    Result,
    cuda::{backend::Argument, gpu::Recipe, row_format::RowFormat},
};

macro_rules! source {
    ($($name:literal),+) => {
        concat!(
            include_str!("../../../kernels/common.cuh"),
            include_str!("../../../kernels/chain.cuh"),
            include_str!("../../../kernels/narrow.cuh"),
            $(include_str!(concat!("../../../kernels/", $name))),+
        )
    };
}
pub(super) use source;

pub(super) const PARTS: &str = source!("model_parts.cu");
const STREAM: &str = source!("stream_norm.cu");
const ROPE: &str = source!("rope.cuh", "rope_write.cu");

/// Threads of a flat kernel, and blocks per multiprocessor at most.
const FLAT: usize = 256;
const WAVES: usize = 8;
/// Threads that sort visits: `SORTERS` in the kernel.
const SORTERS: u32 = 1024;

/// Something that is added to the stream, by its address.
#[derive(Clone, Copy, Debug, Default)]
pub struct Added {
    /// What, one row after the other; none for nothing.
    pub first: Option<u64>,
    /// What else.
    pub second: Option<u64>,
    /// Whether they are FP32.
    pub wide: bool,
    /// The weights that the first is normed with before it is added.
    pub post: Option<u64>,
}

/// A norm of the stream, with what comes before it.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// Rows of outputs.
    pub rows: usize,
    /// Numbers of a row.
    pub width: usize,
    /// The stream, in FP32.
    pub stream: u64,
    /// Tokens, the embedding's rows and what they are multiplied by, where the stream starts here.
    pub embedding: Option<(u64, u64, f32)>,
    /// What is added to the stream.
    pub added: Added,
    /// The norm's weights, where there is one, and its bias where it subtracts the mean.
    pub weight: Option<u64>,
    /// What it adds, where it does.
    pub bias: Option<u64>,
    /// Whether it subtracts the mean.
    pub centred: bool,
    /// What is added to the mean square.
    pub epsilon: f32,
    /// Of so many rows only the last is normed; none for all.
    pub last_of: Option<usize>,
    /// Where it goes.
    pub out: u64,
}

/// Queries, keys and values on their way.
#[derive(Clone, Copy, Debug)]
pub struct RopeWrite {
    /// Tokens.
    pub rows: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Features of a head.
    pub width: usize,
    /// Features that are turned.
    pub rotary: usize,
    /// What the product put out.
    pub projected: u64,
    /// What is added to it.
    pub bias: Option<u64>,
    /// Weights of the norms of queries and keys.
    pub norms: Option<[u64; 2]>,
    /// Cosines and sines by position.
    pub table: u64,
    /// The position of each row.
    pub positions: u64,
    /// Where queries go.
    pub queries: u64,
    /// Keys, values, their scales.
    pub cache: [u64; 4],
    /// How they are stored.
    pub format: Format,
    /// Keys that a sequence may have.
    pub capacity: usize,
    /// The first sequence.
    pub first: usize,
    /// Rows of each.
    pub step: usize,
    /// What norms add to a mean square.
    pub epsilon: f32,
}

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// `x / (1 + e^-x)`.
    Silu,
    /// GELU by the hyperbolic tangent.
    GeluTanh,
    /// GELU by the error function.
    Gelu,
    /// Of gpt-oss, with the largest gate.
    ClampedSwish(f32),
}

/// A gate and what it multiplies.
#[derive(Clone, Copy, Debug)]
pub struct Activated {
    /// How many.
    pub rows: usize,
    /// Numbers of each.
    pub width: usize,
    /// What the function is of.
    pub gate: u64,
    /// What it multiplies, where it does.
    pub up: Option<u64>,
    /// Biases of both.
    pub biases: [Option<u64>; 2],
    /// Numbers from the biases of one expert to those of the next.
    pub bias_pitch: usize,
    /// The expert of each row.
    pub choice: Option<u64>,
    /// Numbers from row to row.
    pub pitch: usize,
    /// Numbers from one to the next.
    pub stride: usize,
    /// Where it goes.
    pub out: u64,
}

fn at(address: Option<u64>) -> Argument {
    Argument::Address(address.unwrap_or(0))
}

fn integer(value: usize) -> Argument {
    Argument::Integer(value as i32)
}

/// A macro and its value.
type Define = (&'static str, i64);

/// Threads of a row's block, and fours that each holds.
fn row_shape(width: usize) -> (usize, usize) {
    let fours = width.div_ceil(4);
    let threads = fours.next_multiple_of(32).clamp(32, 1024);
    // A quarter of a block's threads wait less for each other.
    let threads = if fours > 256 { fours.div_ceil(2).next_multiple_of(32).clamp(256, 1024) } else { threads };
    (threads, fours.div_ceil(threads))
}

fn norm_defines(norm: &Norm) -> Vec<Define> {
    let Norm { embedding, added, weight, centred, last_of, width, .. } = norm;
    let (threads, chunks) = row_shape(*width);
    let many = usize::from(added.first.is_some()) + usize::from(added.second.is_some());
    let flag = |on: bool| i64::from(on);
    vec![
        ("THREADS", threads as i64),
        ("CHUNKS", chunks as i64),
        ("EMBED", flag(embedding.is_some())),
        ("ADDED", many as i64),
        ("WIDE", flag(added.wide)),
        ("POST", flag(added.post.is_some())),
        (
            "NORM",
            if weight.is_none() {
                0
            } else if *centred {
                2
            } else {
                1
            },
        ),
        ("LAST", flag(last_of.is_some())),
    ]
}

impl Kernels<'_> {
    fn ask(
        &self,
        source: &'static str,
        function: &'static str,
        more: &[Define],
        grid: Grid,
        arguments: &[Argument],
    ) -> Result<()> {
        let defines = [self.flags(), more.to_vec()].concat();
        let function = self.gpu.function(&Recipe { source, function, defines, shared: 0 })?;
        chained(self.gpu, &function, grid, arguments)
    }

    /// Blocks of a kernel that goes over `count` numbers.
    fn flat(&self, count: usize) -> Grid {
        Grid::of(count.div_ceil(FLAT).clamp(1, self.gpu.multiprocessors as usize * WAVES), FLAT as u32)
    }

    /// Adds to the stream and norms it.
    pub fn norm(&self, norm: &Norm) -> Result<()> {
        if norm.width > 16 * 1024 {
            return Err(unsupported(format!("a stream of {} numbers is wider than a block holds", norm.width)));
        }
        let (tokens, table, scale) = norm.embedding.unwrap_or((0, 0, 1.0));
        let arguments = [
            Argument::Address(tokens),
            Argument::Address(table),
            Argument::Real(scale),
            Argument::Address(norm.stream),
            at(norm.added.first),
            at(norm.added.second),
            at(norm.added.post),
            at(norm.weight),
            at(norm.bias),
            Argument::Address(norm.out),
            integer(norm.width),
            integer(norm.last_of.unwrap_or(1)),
            Argument::Real(norm.epsilon),
        ];
        let grid = Grid::of(norm.rows, row_shape(norm.width).0 as u32);
        self.ask(STREAM, "stream_norm", &norm_defines(norm), grid, &arguments)
    }

    /// Turns queries and keys, and puts keys and values into the cache.
    pub fn rope_write(&self, rope: &RopeWrite) -> Result<()> {
        let sixteen = if self.half { Format::FP16 } else { Format::BF16 };
        let format = RowFormat::of(rope.format, sixteen).ok_or_else(|| {
            unsupported(format!("a cache in {} has no kernel: use {sixteen}, fp8 or int8", rope.format))
        })?;
        let mut defines = format.defines("CACHE");
        let width = |name, value: usize| (name, value as i64);
        defines.extend([width("HEAD_DIM", rope.width), width("ROTARY", rope.rotary)]);
        defines.push(("NORMED", i64::from(rope.norms.is_some())));
        let [keys, values, key_scales, value_scales] = rope.cache.map(Argument::Address);
        let arguments = [
            Argument::Address(rope.projected),
            at(rope.bias),
            at(rope.norms.map(|norms| norms[0])),
            at(rope.norms.map(|norms| norms[1])),
            Argument::Address(rope.table),
            Argument::Address(rope.positions),
            Argument::Address(rope.queries),
            keys,
            values,
            key_scales,
            value_scales,
            integer(rope.rows),
            integer(rope.heads),
            integer(rope.kv_heads),
            integer(rope.capacity),
            integer(rope.first),
            integer(rope.step),
            Argument::Real(rope.epsilon),
        ];
        let warps = rope.rows * (rope.heads + 2 * rope.kv_heads);
        self.ask(ROPE, "rope_write", &defines, Grid::of(warps.div_ceil(4), 128), &arguments)
    }

    /// Multiplies `rows` rows of outputs by factors, adds biases and bends them, where there are such.
    pub fn affine(
        &self,
        y: u64,
        (rows, width): (usize, usize),
        wide: bool,
        (factors, bias, cap): (Option<u64>, Option<u64>, Option<f32>),
    ) -> Result<()> {
        let count = rows * width;
        let arguments = [
            Argument::Address(y),
            at(factors),
            at(bias),
            Argument::Count(count as u64),
            integer(width),
            Argument::Real(cap.unwrap_or(0.0)),
        ];
        self.ask(PARTS, "affine", &[("WIDE", i64::from(wide))], self.flat(count), &arguments)
    }

    /// An activation function, with a gate or without.
    pub fn activated(&self, function: Function, of: &Activated) -> Result<()> {
        let (kind, limit) = match function {
            Function::Silu => (1, 0.0),
            Function::GeluTanh => (2, 0.0),
            Function::Gelu => (3, 0.0),
            Function::ClampedSwish(limit) => (4, limit),
        };
        let count = of.rows * of.width;
        let arguments = [
            Argument::Address(of.gate),
            at(of.up),
            at(of.biases[0]),
            at(of.biases[1]),
            at(of.choice),
            Argument::Address(of.out),
            Argument::Count(count as u64),
            integer(of.width),
            integer(of.pitch),
            integer(of.stride),
            integer(of.bias_pitch),
            Argument::Real(limit),
        ];
        self.ask(PARTS, "activated", &[("KIND", kind)], self.flat(count), &arguments)
    }

    /// The experts of each row, and how much it takes of each.
    pub fn route(
        &self,
        scores: u64,
        (choice, weights): (u64, u64),
        (rows, experts, active): (usize, usize, usize),
        of_all: bool,
    ) -> Result<()> {
        let arguments = [
            Argument::Address(scores),
            Argument::Address(choice),
            Argument::Address(weights),
            integer(rows),
            integer(experts),
            integer(active),
            Argument::Integer(i32::from(of_all)),
        ];
        self.ask(PARTS, "route", &[], Grid::of(rows.div_ceil(8), 256), &arguments)
    }

    /// Sorts visits by expert. `places` are of: the choice, then for each row its token, for each visit its row, for each row
    /// its expert, and for each expert its first row, with the end behind the last.
    pub fn sort(&self, places: [u64; 5], visits: usize, (experts, active): (usize, usize)) -> Result<()> {
        let mut arguments = places.map(Argument::Address).to_vec();
        arguments.extend([integer(visits), integer(active)]);
        self.ask(PARTS, "sorted", &[], Grid::of(experts, SORTERS), &arguments)
    }

    /// What experts put out, weighed: `visited`, where its rows are (none: in order), the choice, its weights, biases.
    pub fn combine(
        &self,
        visited: u64,
        place: Option<u64>,
        (choice, weights, bias): (u64, u64, Option<u64>),
        out: u64,
        (rows, width, active): (usize, usize, usize),
    ) -> Result<()> {
        let count = rows * width;
        let arguments = [
            Argument::Address(visited),
            at(place),
            Argument::Address(choice),
            Argument::Address(weights),
            at(bias),
            Argument::Address(out),
            Argument::Count(count as u64),
            integer(width),
            integer(active),
        ];
        self.ask(PARTS, "combine", &[], self.flat(count), &arguments)
    }

    /// Rows of `width` numbers to rows that are `pitch` apart.
    pub fn place(&self, from: u64, to: u64, rows: usize, width: usize, pitch: usize) -> Result<()> {
        let count = rows * width;
        let arguments = [
            Argument::Address(from),
            Argument::Address(to),
            Argument::Count(count as u64),
            integer(width),
            integer(pitch),
        ];
        self.ask(PARTS, "place", &[], self.flat(count), &arguments)
    }

    /// Rows of `x` by their numbers in `from`.
    pub fn gather(&self, x: u64, from: u64, out: u64, (rows, width): (usize, usize)) -> Result<()> {
        let count = rows * width;
        let arguments = [
            Argument::Address(x),
            Argument::Address(from),
            Argument::Address(out),
            Argument::Count(count as u64),
            integer(width),
        ];
        self.ask(PARTS, "gather", &[], self.flat(count), &arguments)
    }
}

pub(super) fn sources() -> Vec<(String, Recipe)> {
    let recipe = |source, function, defines: Vec<Define>| Recipe { source, function, defines, shared: 0 };
    let mut all = Vec::new();
    for (at, (embedding, first, second, post, centred, last_of)) in [
        (Some((0, 0, 1.0)), None, None, None, false, None),
        (None, Some(0), None, Some(0), false, None),
        (None, Some(0), Some(0), None, true, None),
        (None, None, None, None, false, Some(4)),
    ]
    .into_iter()
    .enumerate()
    {
        let added = Added { first, second, wide: at == 1, post };
        let norm = Norm {
            rows: 1,
            width: [2880, 4096, 2560, 8192][at],
            stream: 0,
            embedding,
            added,
            weight: Some(0),
            bias: None,
            centred,
            epsilon: 1e-5,
            last_of,
            out: 0,
        };
        let defines = [norm_defines(&norm), vec![("HALF", (at % 2) as i64), ("CHAINED", 1)]].concat();
        all.push((format!("stream norm {at}"), recipe(STREAM, "stream_norm", defines)));
    }
    for (format, width, rotary) in
        [(RowFormat::Sixteen, 80, 32), (RowFormat::E4m3, 128, 128), (RowFormat::Int8, 20, 20)]
    {
        let sizes =
            [("HEAD_DIM", width), ("ROTARY", rotary), ("NORMED", i64::from(width == 128)), ("HALF", 0), ("CHAINED", 1)];
        let defines = [format.defines("CACHE"), sizes.to_vec()].concat();
        all.push((format!("rope write {format:?}"), recipe(ROPE, "rope_write", defines)));
    }
    for kind in 1..=4 {
        let defines = vec![("KIND", kind), ("WIDE", kind % 2), ("HALF", kind / 2 % 2), ("CHAINED", 1)];
        all.push((format!("model parts {kind}"), recipe(PARTS, "activated", defines)));
    }
    all
}
