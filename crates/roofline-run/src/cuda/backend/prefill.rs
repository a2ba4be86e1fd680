//! Attention of many new tokens per sequence, on operands of its own.
//!
//! A reference of everything would take longer than anybody waits for, so a few rows of a few heads are compared.

use cudarc::driver::{CudaFunction, CudaSlice};
use roofline_core::{
    Dim, Format,
    measurement::{Check, Kernel, Residency, Subject},
    op,
    units::Bytes,
};

use super::{
    super::{
        asked::Asked,
        gpu::{Gpu, Recipe, failed},
        map::Map,
        operand::{Copies, Operand, Part, address},
        prefill::{Extent, Form, Prefill, Room, Unit},
        widen::Widen,
    },
    Argument, GpuCase, Launch, Work, candidate, launch,
    linear::poison,
    unsupported,
};
use crate::{
    Case, Result, reference,
    tolerance::{decoded, limit, sample, spread},
};

/// Keys that the reference looks at, about.
const LOOKED_AT: usize = 1 << 20;

/// The kernel for `shape`.
pub(super) fn kernel(gpu: &Gpu, shape: &op::Attention, subject: &Subject) -> Result<Kernel> {
    plan(gpu, shape, subject).map(|(plan, widen, _)| plan.kernel(widen))
}

/// The same with its forms here.
fn plan(gpu: &Gpu, shape: &op::Attention, subject: &Subject) -> Result<(Prefill, Option<Widen>, Vec<Form>)> {
    let (plan, widen) = Prefill::of(shape, subject.formats.query, subject.formats.kv).map_err(unsupported)?;
    let extent = Extent { sequences: shape.batch.get() as usize, new: shape.queries.get() as usize };
    let forms = plan.forms(Room::of(gpu)?, extent).map_err(unsupported)?;
    Ok((plan, widen, forms))
}

impl Room {
    pub(in crate::cuda) fn of(gpu: &Gpu) -> Result<Self> {
        let Gpu { architecture, multiprocessors, .. } = *gpu;
        Ok(Self { architecture, multiprocessors, shared: gpu.block_shared()? })
    }
}

impl Prefill {
    /// How its kernel is called.
    pub(in crate::cuda) fn call(&self, gpu: &Gpu, form: Form, asked: &Asked) -> Result<(Launch, Vec<Argument>)> {
        let integer = |value: usize| Argument::Integer(value as i32);
        let items = self.tiles(form, Extent { sequences: asked.sequences, new: asked.new }) * form.splits;
        let rows = self.kv_heads * self.page.map_or(asked.sequences * asked.capacity, |page| asked.pages * page);
        let mut arguments = match form.unit {
            Unit::Wgmma { .. } => {
                let tokens = asked.sequences * asked.new;
                let queries = Map::of_heads(
                    asked.queries,
                    [tokens, self.heads, self.width],
                    asked.query_pitch,
                    [form.tall() / form.pack, form.pack],
                )?;
                let taken = self.page.map_or(form.keys, |page| page.min(form.keys));
                let cached = |at: u64| Map::of_rows(at, [rows, self.width], taken).map(Argument::Map);
                vec![Argument::Map(queries), cached(asked.keys)?, cached(asked.values)?]
            }
            Unit::Mma { .. } => [asked.queries, asked.keys, asked.values].map(Argument::Address).into(),
        };
        let places = [asked.out, asked.starts, asked.table, asked.sinks, asked.shares, asked.counters];
        arguments.extend(places.map(Argument::Address));
        arguments.extend([asked.sequences, self.heads, self.kv_heads, asked.capacity, asked.new].map(integer));
        if let Unit::Mma { .. } = form.unit {
            arguments.push(integer(asked.query_pitch));
        }
        arguments.extend([asked.window.unwrap_or(0), form.splits].map(integer));
        arguments.push(Argument::Real(asked.scale * std::f32::consts::LOG2_E));
        arguments.push(Argument::Real(asked.cap.unwrap_or(0.0)));
        // Blocks of the one kernel stay and take tile after tile.
        let blocks = match form.unit {
            Unit::Wgmma { .. } => items.min(gpu.multiprocessors as usize),
            Unit::Mma { .. } => items,
        };
        let shared = self.recipe(form).shared;
        Ok((Launch { blocks: blocks as u32, threads: form.threads(), shared }, arguments))
    }
}

pub(super) fn prepare<'a>(
    gpu: &'a Gpu,
    shape: op::Attention,
    subject: &Subject,
    residency: Residency,
) -> Result<Box<dyn Case + 'a>> {
    let (plan, widen, forms) = plan(gpu, &shape, subject)?;
    let [batch, queries, context] = [shape.batch, shape.queries, shape.context].map(|dim| dim.get() as usize);
    let query = subject.formats.query;
    let format = if widen.is_some() { subject.formats.kv } else { query };
    let rows = batch * plan.kv_heads * context;
    let q = Operand::new(query, batch * queries * plan.heads, plan.width, 1.0, 3)?;
    let caches = [Operand::new(format, rows, plan.width, 1.0, 4)?, Operand::new(format, rows, plan.width, 1.0, 5)?];
    let part = |operand: &Operand| {
        let pattern = operand.plain(plan.width);
        Part { bytes: pattern.len() / operand.distinct() * operand.rows, pattern }
    };
    let scales = |operand: &Operand| Part {
        bytes: operand.encoded.scales.len() / operand.distinct() * rows,
        pattern: operand.encoded.scales.clone(),
    };
    let [k, v] = &caches;
    let copies = Copies::new(gpu, &[part(k), part(v), scales(k), scales(v)], residency)?;
    let inputs = Copies::new(gpu, &[part(&q)], Residency::Warm)?;
    let wide = match widen {
        Some(widen) => {
            let memory = || gpu.memory(widen.bytes(batch, context));
            Some(Wide { widen, function: gpu.function(&widen.recipe())?, caches: [memory()?, memory()?] })
        }
        None => None,
    };
    let recipes: Vec<Recipe> = forms.iter().map(|form| plan.recipe(*form)).collect();
    let functions = gpu.functions(&recipes)?;
    // Keys before the new tokens; fewer than none where tokens see more than they are.
    let start = context as i32 - queries as i32;
    let [shares, counters] = plan.scratch(gpu.multiprocessors);
    let mut work = PrefillWork {
        kernel: plan.kernel(widen),
        form: forms[0],
        function: functions[0].clone(),
        out: gpu.memory(q.rows * plan.width * 2)?,
        starts: gpu.upload(&start.to_le_bytes().repeat(batch))?,
        shares: gpu.memory(shares)?,
        counters: gpu.upload(&vec![0; counters])?,
        plan,
        shape,
        query,
        wide,
        copies,
        inputs,
        q,
        caches,
    };
    let mut best = (f64::INFINITY, 0);
    for (at, (form, function)) in forms.iter().zip(&functions).enumerate() {
        (work.form, work.function) = (*form, function.clone());
        let fastest = candidate(gpu, &work)?;
        if fastest < best.0 {
            best = (fastest, at);
        }
    }
    (work.form, work.function) = (forms[best.1], functions[best.1].clone());
    work.kernel.name += &work.form.words();
    Ok(GpuCase::boxed(gpu, work))
}

/// What a cache of 8 bit is written to before it is multiplied.
struct Wide {
    widen: Widen,
    function: CudaFunction,
    caches: [CudaSlice<u8>; 2],
}

struct PrefillWork {
    plan: Prefill,
    wide: Option<Wide>,
    kernel: Kernel,
    form: Form,
    function: CudaFunction,
    shape: op::Attention,
    query: Format,
    /// Keys, values and their scales.
    copies: Copies,
    /// Queries.
    inputs: Copies,
    out: CudaSlice<u8>,
    starts: CudaSlice<u8>,
    shares: CudaSlice<u8>,
    counters: CudaSlice<u8>,
    q: Operand,
    caches: [Operand; 2],
}

impl Work for PrefillWork {
    fn kernel(&self) -> Kernel {
        self.kernel.clone()
    }

    fn copies(&self) -> usize {
        self.copies.rotation.copies
    }

    fn times_cache(&self) -> f64 {
        self.copies.rotation.times_cache
    }

    fn detour(&self) -> Bytes {
        let written = self.wide.iter().flat_map(|wide| &wide.caches).map(CudaSlice::len).sum::<usize>();
        Bytes::new(2.0 * written as f64)
    }

    fn enqueue(&self, gpu: &Gpu, copy: usize) -> Result<()> {
        let [batch, queries, context] =
            [self.shape.batch, self.shape.queries, self.shape.context].map(|dim| dim.get() as usize);
        let mut asked = Asked {
            sequences: batch,
            new: queries,
            queries: self.inputs.at(gpu, 0, 0),
            query_pitch: self.plan.heads * self.plan.width,
            keys: self.copies.at(gpu, copy, 0),
            values: self.copies.at(gpu, copy, 1),
            key_scales: self.copies.at(gpu, copy, 2),
            value_scales: self.copies.at(gpu, copy, 3),
            capacity: context,
            starts: address(gpu, &self.starts),
            pages: 0,
            table: 0,
            sinks: 0,
            out: address(gpu, &self.out),
            shares: address(gpu, &self.shares),
            counters: address(gpu, &self.counters),
            window: self.shape.window.map(|window| window.get() as usize),
            scale: 1.0 / (self.plan.width as f32).sqrt(),
            cap: None,
            turn: None,
        };
        if let Some(Wide { widen, function, caches }) = &self.wide {
            let wide = caches.each_ref().map(|memory| address(gpu, memory));
            let (geometry, arguments) = widen.call(&asked, wide);
            launch(gpu, function, geometry, &arguments)?;
            [asked.keys, asked.values] = wide;
        }
        let (geometry, arguments) = self.plan.call(gpu, self.form, &asked)?;
        launch(gpu, &self.function, geometry, &arguments)
    }

    fn poison(&mut self, gpu: &Gpu) -> Result<()> {
        poison(gpu, &mut self.out)
    }

    /// Rows of one query head of a few KV heads: each is an attention of its own, over as many keys as it sees.
    fn check(&self, gpu: &Gpu) -> Result<std::result::Result<Check, String>> {
        let Prefill { heads, kv_heads, width, .. } = self.plan;
        let [batch, queries, context] =
            [self.shape.batch, self.shape.queries, self.shape.context].map(|dim| dim.get() as usize);
        let row = |operand: &Operand, row: usize| -> Vec<f32> {
            operand.values[row % operand.distinct() * width..][..width].to_vec()
        };
        let units = sample(batch * kv_heads);
        let tokens = spread(queries, LOOKED_AT / (context * units.len()));
        let (mut result, mut expected) = (Vec::new(), Vec::new());
        for (unit, token) in units.iter().flat_map(|unit| tokens.iter().map(move |token| (*unit, *token))) {
            let (sequence, group) = (unit / kv_heads, heads / kv_heads);
            // Another head of the group each time.
            let head = unit % kv_heads * group + (unit + token) % group;
            let keys = if self.shape.causal { context - queries + token + 1 } else { context };
            let one = op::Attention {
                batch: Dim::ONE,
                heads: Dim::ONE,
                kv_heads: Dim::ONE,
                queries: Dim::ONE,
                context: Dim::new("keys", keys as u64)?,
                ..self.shape
            };
            let place = (sequence * queries + token) * heads + head;
            let [k, v] = &self
                .caches
                .each_ref()
                .map(|cache| -> Vec<f32> { (0..keys).flat_map(|key| row(cache, unit * context + key)).collect() });
            expected.extend(reference::attention::attention(&one, &row(&self.q, place), k, v));
            let mut bytes = vec![0; width * 2];
            let there = self.out.slice(place * width * 2..(place + 1) * width * 2);
            gpu.stream().memcpy_dtoh(&there, &mut bytes).map_err(failed)?;
            gpu.wait()?;
            result.extend(decoded(&bytes, self.query));
        }
        // Weights are rounded to 16 bit before they multiply values.
        Ok(Check::of(&result, &expected, limit(self.query, self.query)))
    }
}
