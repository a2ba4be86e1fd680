//! Attention over a model's cache: of one new token per sequence, of many, and of heads that only the plain kernel takes.

use std::collections::HashMap;

use cudarc::driver::CudaFunction;
use roofline_core::{
    Dim, Format,
    op::{self, Cache},
};

use super::{
    Kernels, Memory, RopeWrite,
    launch::{Grid, chained, chains},
    matrix::unsupported,
    products::{best, fastest},
    small::source,
};
use crate::{
    Result,
    cuda::{
        asked::{Asked, Turn},
        attention::{Beside, Decode, Division, Turned},
        backend::{Argument, Launch},
        gpu::Recipe,
        prefill::{Extent, Form, Prefill, Room},
        row_format::RowFormat,
        widen::Widen,
    },
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
    /// The most keys that a sequence may have, which decides how the work is divided.
    pub longest: usize,
    /// What they look at.
    pub cache: Cached,
    /// The way of queries and of new keys and values there, where it is not gone yet.
    pub turn: Option<RopeWrite>,
    /// Where mixed values go, as the queries lie.
    pub out: u64,
}

/// What plans differ by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    sequences: usize,
    new: usize,
    heads: usize,
    kv_heads: usize,
    width: usize,
    windowed: bool,
    capped: bool,
    sinks: bool,
    longest: usize,
    capacity: usize,
    turned: Option<Turned>,
}

#[derive(Clone)]
enum Plan {
    Decode(Decode, Division, CudaFunction),
    Prefill(Prefill, Form, CudaFunction, Option<(Widen, CudaFunction)>),
    Plain,
}

/// The attentions of a model.
pub struct Attentions<'g> {
    kernels: Kernels<'g>,
    plans: HashMap<Key, Plan>,
    /// What blocks leave for each other, counters, and 8-bit caches as 16-bit numbers.
    shares: Memory,
    counters: Memory,
    wide: [Memory; 2],
    /// Whether any of these was replaced by a larger one.
    grew: bool,
}

impl<'g> Attentions<'g> {
    /// None planned yet.
    pub fn new(kernels: Kernels<'g>) -> Result<Self> {
        let none = || Memory::new(kernels.gpu, 0);
        let (plans, wide) = (HashMap::new(), [none()?, none()?]);
        Ok(Self { kernels, plans, shares: none()?, counters: none()?, wide, grew: false })
    }

    /// Whether memory that recorded passes use has been replaced since this was last asked: they must not run again.
    pub fn take_grew(&mut self) -> bool {
        std::mem::take(&mut self.grew)
    }

    /// Whether memory is there for a call, so that it can be recorded: what is asked for first is planned then.
    fn planned(&mut self, of: &Attending, caches: &[Cached]) -> Result<Plan> {
        let key = Key {
            sequences: of.sequences,
            new: of.new,
            heads: of.heads,
            kv_heads: of.kv_heads,
            width: of.width,
            windowed: of.window.is_some(),
            capped: of.cap.is_some(),
            sinks: of.sinks.is_some(),
            longest: of.longest,
            capacity: of.cache.capacity,
            turned: turned(of),
        };
        if let Some(plan) = self.plans.get(&key) {
            return Ok(plan.clone());
        }
        let plan = match if of.new == 1 { self.decode(of, caches)? } else { None } {
            Some(plan) => plan,
            None => self.prefill(of)?.unwrap_or(Plan::Plain),
        };
        self.plans.insert(key, plan.clone());
        Ok(plan)
    }

    fn op(of: &Attending) -> Result<op::Attention> {
        let dim = |size: usize| Dim::new("attention", size as u64);
        Ok(op::Attention {
            batch: dim(of.sequences)?,
            heads: dim(of.heads)?,
            kv_heads: dim(of.kv_heads)?,
            head_dim: dim(of.width)?,
            value_dim: dim(of.width)?,
            queries: dim(of.new)?,
            context: dim(of.longest.max(of.new))?,
            causal: true,
            window: of.window.map(dim).transpose()?,
            cache: Cache::Separate,
        })
    }

    fn sixteen(&self) -> Format {
        if self.kernels.half { Format::FP16 } else { Format::BF16 }
    }

    /// One new token per sequence; none where no kernel takes such heads.
    fn decode(&mut self, of: &Attending, caches: &[Cached]) -> Result<Option<Plan>> {
        let gpu = self.kernels.gpu;
        let Ok(mut decode) = Decode::of(&Self::op(of)?, self.sixteen(), of.cache.format) else { return Ok(None) };
        decode.first = 0;
        decode.beside = Beside {
            page: None,
            lengths: true,
            capped: of.cap.is_some(),
            sinks: of.sinks.is_some(),
            chained: chains(gpu),
            turned: turned(of),
        };
        let shared = Decode::shared_room(gpu.block_shared()?);
        let divisions = decode.divisions(gpu.multiprocessors as usize, shared, gpu.architecture.major >= 9);
        let most = divisions.iter().map(|division| decode.shares(*division)).max().unwrap_or(0);
        self.grow(most, decode.counters())?;
        let recipes: Vec<Recipe> = divisions.iter().map(|division| decode.recipe(*division)).collect();
        let functions = gpu.functions(&recipes)?;
        // As if every sequence were as long as it may be.
        let full =
            Memory::of(gpu, &((of.longest.min(of.cache.capacity) - 1) as i32).to_le_bytes().repeat(of.sequences))?;
        let ways: Vec<(Division, CudaFunction)> = divisions.into_iter().zip(functions).collect();
        let found = best(ways, |(division, function)| {
            fastest(self.kernels, caches.len(), &mut |at| {
                let of =
                    Attending { starts: full.address(), cache: caches.get(at).copied().unwrap_or(of.cache), ..*of };
                let (launch, arguments) = decode.call(*division, &self.asked(&of));
                self.start(function, launch, &arguments)
            })
        });
        gpu.wait()?;
        Ok(found.ok().map(|(division, function)| Plan::Decode(decode, division, function)))
    }

    /// Many new tokens per sequence; none where no kernel takes such heads.
    fn prefill(&mut self, of: &Attending) -> Result<Option<Plan>> {
        let gpu = self.kernels.gpu;
        let Ok((plan, widen)) = Prefill::of(&Self::op(of)?, self.sixteen(), of.cache.format) else { return Ok(None) };
        let chained = chains(gpu);
        let (capped, sinks) = (of.cap.is_some(), of.sinks.is_some());
        let plan = Prefill { windowed: of.window.is_some(), capped, sinks, chained, ..plan };
        let widen = widen.map(|widen| Widen { chained, ..widen });
        let extent = Extent { sequences: of.sequences, new: of.new };
        let Ok(forms) = plan.forms(Room::of(gpu)?, extent) else { return Ok(None) };
        let [shares, counters] = plan.scratch(gpu.multiprocessors);
        self.grow(shares, counters)?;
        if let Some(widen) = &widen {
            let bytes = widen.bytes(of.sequences, of.cache.capacity);
            if self.wide[0].bytes() < bytes {
                gpu.wait()?;
                self.grew = true;
                self.wide = [Memory::new(gpu, bytes)?, Memory::new(gpu, bytes)?];
            }
        }
        let form = forms[0];
        let function = gpu.function(&plan.recipe(form))?;
        let widen = match widen {
            Some(widen) => Some((widen, gpu.function(&widen.recipe())?)),
            None => None,
        };
        Ok(Some(Plan::Prefill(plan, form, function, widen)))
    }

    /// Room for what blocks leave for each other.
    fn grow(&mut self, shares: usize, counters: usize) -> Result<()> {
        let gpu = self.kernels.gpu;
        if self.shares.bytes() < shares {
            gpu.wait()?;
            self.grew = true;
            self.shares = Memory::new(gpu, shares)?;
        }
        if self.counters.bytes() < counters {
            gpu.wait()?;
            self.grew = true;
            self.counters = Memory::zeroed(gpu, counters)?;
        }
        Ok(())
    }

    fn asked(&self, of: &Attending) -> Asked {
        let narrow = of.cache.format.nominal_bits() == 8;
        let rows = (of.first * of.kv_heads * of.cache.capacity) as u64;
        let bytes = rows * of.width as u64 * if narrow { 1 } else { 2 };
        let [keys, values, key_scales, value_scales] = of.cache.places;
        let queries = of.turn.map_or(of.queries, |turn| turn.projected);
        let heads = of.heads + if of.turn.is_some() { 2 * of.kv_heads } else { 0 };
        Asked {
            sequences: of.sequences,
            new: of.new,
            queries,
            query_pitch: heads * of.width,
            keys: keys + bytes,
            values: values + bytes,
            key_scales: key_scales + 2 * rows,
            value_scales: value_scales + 2 * rows,
            capacity: of.cache.capacity,
            starts: of.starts,
            table: 0,
            pages: 0,
            sinks: of.sinks.unwrap_or(0),
            out: of.out,
            shares: self.shares.address(),
            counters: self.counters.address(),
            window: of.window,
            scale: of.scale,
            cap: of.cap,
            turn: of.turn.map(|turn| Turn {
                bias: turn.bias.unwrap_or(0),
                norms: turn.norms.unwrap_or_default(),
                table: turn.table,
                epsilon: turn.epsilon,
            }),
        }
    }

    fn start(&self, function: &CudaFunction, launch: Launch, arguments: &[Argument]) -> Result<()> {
        let Launch { blocks, threads, shared } = launch;
        chained(self.kernels.gpu, function, Grid { blocks: (blocks, 1), threads, shared }, arguments)
    }

    /// Attention, by the fastest kernel that takes it. `caches` are those of all layers alike, to find it on.
    pub fn run(&mut self, of: &Attending, caches: &[Cached]) -> Result<()> {
        let plan = self.planned(of, caches)?;
        let of = &match (&plan, &of.turn) {
            (Plan::Decode(..), _) | (_, None) => *of,
            (_, Some(turn)) => {
                self.kernels.rope_write(turn)?;
                Attending { turn: None, ..*of }
            }
        };
        match plan {
            Plan::Decode(decode, division, function) => {
                let (launch, arguments) = decode.call(division, &self.asked(of));
                self.start(&function, launch, &arguments)
            }
            Plan::Prefill(plan, form, function, widen) => {
                let mut asked = self.asked(of);
                if let Some((widen, function)) = widen {
                    let wide = [&self.wide[0], &self.wide[1]].map(Memory::address);
                    let (launch, arguments) = widen.call(&asked, wide);
                    self.start(&function, launch, &arguments)?;
                    (asked.keys, asked.values) = (wide[0], wide[1]);
                }
                let (launch, arguments) = plan.call(self.kernels.gpu, form, &asked)?;
                self.start(&function, launch, &arguments)
            }
            Plan::Plain => self.plain(of),
        }
    }

    /// Attention by a kernel that takes any head.
    fn plain(&self, of: &Attending) -> Result<()> {
        let gpu = self.kernels.gpu;
        let format = RowFormat::of(of.cache.format, self.sixteen())
            .ok_or_else(|| unsupported(format!("a cache in {} has no kernel", of.cache.format)))?;
        if of.width > WIDEST {
            return Err(unsupported(format!("heads of {} features are wider than {WIDEST}", of.width)));
        }
        let rows = of.sequences * of.new;
        let defines = [self.kernels.flags(), format.defines("CACHE"), vec![("HEAD_DIM", of.width as i64)]].concat();
        let function = gpu.function(&Recipe { source: PLAIN, function: "attention_plain", defines, shared: 0 })?;
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
        chained(gpu, &function, Grid::of((rows * of.heads).div_ceil(4), 128), &arguments)
    }
}

fn turned(of: &Attending) -> Option<Turned> {
    of.turn.map(|turn| Turned { rotary: turn.rotary, normed: turn.norms.is_some() })
}

pub(super) fn sources() -> Vec<(String, Recipe)> {
    let of = |(format, width): (RowFormat, i64)| {
        let more = vec![("HEAD_DIM", width), ("HALF", width / 20 % 2), ("CHAINED", 1)];
        let defines = [format.defines("CACHE"), more].concat();
        let recipe = Recipe { source: PLAIN, function: "attention_plain", defines, shared: 0 };
        (format!("plain attention {format:?}"), recipe)
    };
    [(RowFormat::Sixteen, 20), (RowFormat::E4m3, 128), (RowFormat::E5m2, 64), (RowFormat::Int8, 256)].map(of).into()
}
