//! Attention over a cache.

use roofline_core::{
    Dim, Format,
    measurement::{Check, Kernel, Path, Residency, Subject},
    op,
};

use super::{
    super::{
        buffer::Buffer,
        kernels::attention::Attention,
        operands::{Pattern, Slots},
        pool::Pool,
    },
    Cpu, CpuCase, Run, unsupported,
};
use crate::{
    Case, Result, exact,
    tolerance::{decoded, limit, sample},
};

pub(super) fn plan(cpu: &Cpu, shape: &op::Attention, subject: &Subject) -> Result<(Attention, Kernel)> {
    let planned = Attention::plan_on(shape, &subject.formats, cpu.pool.threads(), cpu.isa);
    let planned = planned.map_err(|reason| unsupported(reason.to_string()))?;
    let formats = &subject.formats;
    let path = if formats.kv == formats.query { Path::Native } else { Path::FusedDequant };
    let kernel = Kernel { name: planned.kernel_name(), path, math: planned.math() };
    Ok((planned, kernel))
}

pub(super) fn prepare<'a>(
    cpu: &'a mut Cpu,
    shape: op::Attention,
    subject: &Subject,
    residency: Residency,
) -> Result<Box<dyn Case + 'a>> {
    let size = |dim: Dim| dim.get() as usize;
    let elements = [shape.batch, shape.heads, shape.queries.max(shape.context), shape.head_dim.max(shape.value_dim)];
    cpu.room(2.0 * elements.iter().map(|dim| dim.get() as f64).product::<f64>())?;
    let (attention, kernel) = plan(cpu, &shape, subject)?;
    let formats = &subject.formats;
    let cached = if shape.cache == op::Cache::Expanded { formats.query } else { formats.kv };
    let queries = size(shape.batch) * size(shape.queries) * size(shape.heads);
    let keys = size(shape.batch) * size(shape.kv_heads) * size(shape.context);
    let inputs = Pattern::new(formats.query, queries, size(shape.head_dim), 1.0, 3)?;
    let slots = Slots::new(vec![
        Pattern::new(cached, keys, size(shape.head_dim), 1.0, 4)?,
        Pattern::new(cached, keys, size(shape.value_dim), 1.0, 5)?,
    ]);
    let mut q = cpu.memory(inputs.bytes())?;
    inputs.write(&mut q);
    let out = cpu.memory(queries * size(shape.value_dim) * formats.query.nominal_bits() as usize / 8)?;
    let rotation = cpu.load(&slots, residency)?;
    let run = AttentionRun { attention, kernel, shape, slots, inputs, q, out, query: formats.query };
    let known = cpu.device.clock.boost;
    Ok(Box::new(CpuCase { run, pool: &mut cpu.pool, memory: &mut cpu.arena, rotation, next: 0, known }))
}

struct AttentionRun {
    attention: Attention,
    kernel: Kernel,
    shape: op::Attention,
    slots: Slots,
    inputs: Pattern,
    q: Buffer,
    out: Buffer,
    query: Format,
}

impl Run for AttentionRun {
    fn kernel(&self) -> Kernel {
        self.kernel.clone()
    }

    fn run(&mut self, pool: &mut Pool, memory: &mut [u8], copy: usize) {
        let [k, v] = [0, 1].map(|at| self.slots.tensor(memory, copy, at));
        self.attention.run(pool, self.inputs.tensor(&self.q), k, v, &mut self.out);
    }

    /// A few queries of every head. A causal query among many sees what a single one sees over a shorter cache.
    fn check(&self) -> std::result::Result<Check, String> {
        let size = |dim: Dim| dim.get() as usize;
        let width = size(self.shape.value_dim) * self.query.nominal_bits() as usize / 8;
        let (mut result, mut expected) = (Vec::new(), Vec::new());
        for index in sample(size(self.shape.queries)) {
            let caches = [self.slots.pattern(0), self.slots.pattern(1)];
            let (rows, exact) = exact::attention(&self.shape, &self.inputs, caches, index)?;
            expected.extend(exact);
            for row in rows {
                result.extend(decoded(&self.out[row * width..(row + 1) * width], self.query));
            }
        }
        // The exponential is a polynomial good to about 2^-20.
        Check::of(&result, &expected, limit(self.query, Format::FP32).max(1e-4))
    }
}
