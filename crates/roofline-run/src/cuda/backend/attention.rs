//! Attention of one new token per sequence over its cache.
//!
//! Which division of the work is fastest depends on the GPU as much as on the shape, so a few are timed on the operands
//! themselves, as for thin products.

use cudarc::driver::{CudaFunction, CudaSlice};
use roofline_core::{
    Dim, Format,
    measurement::{Check, Kernel, Residency, Subject},
    op::{self, Cache},
};

use super::{
    super::{
        asked::Asked,
        attention::{Decode, Division},
        gpu::{Gpu, Recipe, failed},
        operand::{Copies, Operand, Part, address},
    },
    Argument, GpuCase, Launch, Work, candidate, launch,
    linear::poison,
    unsupported,
};
use crate::{
    Case, Result, reference,
    tolerance::{decoded, limit, sample},
};

/// The kernel for `shape`.
pub(super) fn plan(shape: &op::Attention, subject: &Subject) -> Result<Decode> {
    Decode::of(shape, subject.formats.query, subject.formats.kv).map_err(unsupported)
}

pub(super) fn prepare<'a>(
    gpu: &'a Gpu,
    shape: op::Attention,
    subject: &Subject,
    residency: Residency,
) -> Result<Box<dyn Case + 'a>> {
    let decode = plan(&shape, subject)?;
    let query = subject.formats.query;
    let format = if shape.cache == Cache::Expanded { query } else { subject.formats.kv };
    let rows = decode.batch * decode.kv_heads * decode.context;
    let q = Operand::new(query, decode.batch * decode.heads, decode.width, 1.0, 3)?;
    let caches = [Operand::new(format, rows, decode.width, 1.0, 4)?, Operand::new(format, rows, decode.width, 1.0, 5)?];
    let codes = |operand: &Operand| Part { pattern: operand.plain(decode.width), bytes: rows * decode.row_bytes() };
    let scales = |operand: &Operand| Part {
        bytes: operand.encoded.scales.len() / operand.distinct() * rows,
        pattern: operand.encoded.scales.clone(),
    };
    let [k, v] = &caches;
    let copies = Copies::new(gpu, &[codes(k), codes(v), scales(k), scales(v)], residency)?;
    let (multiprocessors, shared) = (gpu.multiprocessors as usize, Decode::shared_room(gpu.block_shared()?));
    let divisions = decode.divisions(multiprocessors, shared, gpu.architecture.major >= 9);
    let recipes: Vec<Recipe> = divisions.iter().map(|division| decode.recipe(*division)).collect();
    // Divisions of keys have the same program, which is made once.
    let mut programs = recipes.clone();
    programs.dedup();
    gpu.functions(&programs)?;
    let functions = gpu.functions(&recipes)?;
    let (Some(first), Some(most)) =
        (decode.usual(multiprocessors, shared), divisions.iter().map(|division| decode.shares(*division)).max())
    else {
        return Err(unsupported(format!("heads of {} features need more shared memory than there is", decode.width)));
    };
    let queries = repeated(&q);
    let mut work = Attention {
        decode,
        kernel: decode.kernel(gpu.architecture.major),
        division: first,
        function: gpu.function(&decode.recipe(first))?,
        copies,
        out: gpu.memory(queries.len())?,
        q_memory: gpu.upload(&queries)?,
        shares: gpu.memory(most)?,
        counters: gpu.upload(&vec![0; decode.counters()])?,
        shape,
        query,
        q,
        caches,
    };
    let mut best = (f64::INFINITY, 0);
    for (at, (division, function)) in divisions.iter().zip(&functions).enumerate() {
        (work.division, work.function) = (*division, function.clone());
        let fastest = candidate(gpu, &work)?;
        if fastest < best.0 {
            best = (fastest, at);
        }
    }
    (work.division, work.function) = (divisions[best.1], functions[best.1].clone());
    work.kernel.name += &work.division.words();
    Ok(GpuCase::boxed(gpu, work))
}

/// All rows of a plain operand.
fn repeated(operand: &Operand) -> Vec<u8> {
    let period = operand.plain(operand.columns);
    let bytes = period.len() / operand.distinct() * operand.rows;
    period.into_iter().cycle().take(bytes).collect()
}

impl Decode {
    /// How its kernel is called. Where keys are counted in the GPU's memory, sequences may differ.
    pub(in crate::cuda) fn call(&self, division: Division, asked: &Asked) -> (Launch, Vec<Argument>) {
        let Division { warps, depth, splits, .. } = division;
        let integer = |value: usize| Argument::Integer(value as i32);
        let mut arguments = vec![
            Argument::Address(asked.queries),
            Argument::Address(asked.keys),
            Argument::Address(asked.values),
            Argument::Address(asked.key_scales),
            Argument::Address(asked.value_scales),
            Argument::Address(asked.out),
            Argument::Address(asked.shares),
            Argument::Address(asked.counters),
            Argument::Address(asked.starts),
            Argument::Address(asked.table),
            Argument::Address(asked.sinks),
            integer(self.heads),
            integer(self.kv_heads),
            integer(asked.query_pitch),
            integer(asked.capacity),
            integer(self.first),
            integer(self.context),
            integer(asked.new),
            integer(asked.window.unwrap_or(0)),
            integer(splits),
            integer(self.groups()),
            Argument::Real(asked.scale * std::f32::consts::LOG2_E),
            Argument::Real(asked.cap.unwrap_or(0.0)),
        ];
        if let Some(turn) = asked.turn {
            arguments.extend([turn.bias, turn.norms[0], turn.norms[1], turn.table].map(Argument::Address));
            arguments.push(Argument::Real(turn.epsilon));
        }
        let shared = self.shared(warps, depth) as u32;
        (Launch { blocks: (self.units() * splits) as u32, threads: 32 * warps as u32, shared }, arguments)
    }
}

struct Attention {
    decode: Decode,
    kernel: Kernel,
    division: Division,
    function: CudaFunction,
    /// Keys, values and their scales.
    copies: Copies,
    q_memory: CudaSlice<u8>,
    out: CudaSlice<u8>,
    shares: CudaSlice<u8>,
    counters: CudaSlice<u8>,
    shape: op::Attention,
    query: Format,
    q: Operand,
    caches: [Operand; 2],
}

impl Work for Attention {
    fn kernel(&self) -> Kernel {
        self.kernel.clone()
    }

    fn copies(&self) -> usize {
        self.copies.rotation.copies
    }

    fn times_cache(&self) -> f64 {
        self.copies.rotation.times_cache
    }

    fn enqueue(&self, gpu: &Gpu, copy: usize) -> Result<()> {
        let decode = &self.decode;
        let part = |part: usize| self.copies.at(gpu, copy, part);
        let place = |memory: &CudaSlice<u8>| address(gpu, memory);
        let (geometry, arguments) = decode.call(
            self.division,
            &Asked {
                sequences: decode.batch,
                new: 1,
                queries: place(&self.q_memory),
                query_pitch: decode.heads * decode.width,
                keys: part(0),
                values: part(1),
                key_scales: part(2),
                value_scales: part(3),
                capacity: decode.context,
                starts: 0,
                pages: 0,
                table: 0,
                sinks: 0,
                out: place(&self.out),
                shares: place(&self.shares),
                counters: place(&self.counters),
                window: None,
                scale: 1.0 / (decode.width as f32).sqrt(),
                cap: None,
                turn: None,
            },
        );
        launch(gpu, &self.function, geometry, &arguments)
    }

    fn poison(&mut self, gpu: &Gpu) -> Result<()> {
        poison(gpu, &mut self.out)
    }

    /// All query heads of a few KV heads: each is an attention of its own.
    fn check(&self, gpu: &Gpu) -> Result<std::result::Result<Check, String>> {
        let Decode { heads, kv_heads, width, context, .. } = self.decode;
        let group = self.decode.group();
        let group_dim = Dim::new("heads", group as u64)?;
        let one = op::Attention { batch: Dim::ONE, heads: group_dim, kv_heads: Dim::ONE, ..self.shape };
        let rows = |operand: &Operand, first: usize, count: usize| -> Vec<f32> {
            let row = |row: usize| &operand.values[row % operand.distinct() * width..][..width];
            (first..first + count).flat_map(row).copied().collect()
        };
        let (mut result, mut expected) = (Vec::new(), Vec::new());
        for unit in sample(self.decode.batch * kv_heads) {
            let first = unit / kv_heads * heads + unit % kv_heads * group;
            let [k, v] = &self.caches.each_ref().map(|cache| rows(cache, unit * context, context));
            expected.extend(reference::attention::attention(&one, &rows(&self.q, first, group), k, v));
            let mut bytes = vec![0; group * width * 2];
            let start = first * width * 2;
            let there = self.out.slice(start..start + bytes.len());
            gpu.stream().memcpy_dtoh(&there, &mut bytes).map_err(failed)?;
            gpu.wait()?;
            result.extend(decoded(&bytes, self.query));
        }
        // Weights are rounded to 16 bit before they multiply values.
        Ok(Check::of(&result, &expected, limit(self.query, self.query)))
    }
}
