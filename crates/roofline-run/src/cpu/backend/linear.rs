//! Linear layers.

use roofline_core::{
    Format, Math,
    measurement::{Check, Kernel, Residency, Subject},
    op::Linear,
};

use super::{
    super::{
        buffer::Buffer,
        linear::Product,
        operands::{Pattern, Slots},
        pool::Pool,
    },
    Cpu, CpuCase, Run, unsupported,
};
use crate::{
    Case, Result,
    closeness::{decoded, limit, sample},
    reference,
};

pub(super) fn plan(cpu: &Cpu, shape: Linear, subject: &Subject) -> Result<Product> {
    let plan = if subject.cast { Product::cast_first } else { Product::plan };
    let product = plan(cpu.simd, shape, &subject.formats, cpu.pool.threads());
    product.map_err(|reason| unsupported(reason.to_string()))
}

pub(super) fn kernel(product: &Product) -> Kernel {
    Kernel { name: product.kernel_name(), path: product.path(), math: product.math() }
}

pub(super) fn prepare<'a>(
    cpu: &'a mut Cpu,
    shape: Linear,
    subject: &Subject,
    residency: Residency,
) -> Result<Box<dyn Case + 'a>> {
    let (m, n, k) = (shape.m.get() as usize, shape.n.get() as usize, shape.k.get() as usize);
    let size = |one: usize, other: usize| one as f64 * other as f64;
    cpu.room(size(m, k) + size(m, n) + size(n, k))?;
    let product = plan(cpu, shape, subject)?;
    let kernel = kernel(&product);
    let formats = &subject.formats;
    let weights = Pattern::new(formats.weights, n, k, 1.0 / (k as f32).sqrt(), 1)?;
    let inputs = Pattern::new(formats.activations, m, k, 1.0, 2)?;
    let mut x = cpu.memory(inputs.bytes())?;
    inputs.write(&mut x);
    let y = cpu.memory(m * n * formats.output.nominal_bits() as usize / 8)?;
    let slots = Slots::new(vec![weights]);
    let rotation = cpu.load(&slots, residency)?;
    let run = LinearRun { product, kernel, slots, inputs, x, y, output: formats.output, n };
    Ok(Box::new(CpuCase { run, pool: &mut cpu.pool, memory: &mut cpu.arena, rotation, next: 0 }))
}

struct LinearRun {
    product: Product,
    kernel: Kernel,
    slots: Slots,
    inputs: Pattern,
    x: Buffer,
    y: Buffer,
    output: Format,
    n: usize,
}

impl Run for LinearRun {
    fn kernel(&self) -> Kernel {
        self.kernel.clone()
    }

    fn run(&mut self, pool: &mut Pool, memory: &mut [u8], copy: usize) {
        self.product.run(pool, self.inputs.tensor(&self.x), self.slots.tensor(memory, copy, 0), &mut self.y);
    }

    /// Every output of a few rows; there are only so many distinct columns.
    fn check(&self) -> std::result::Result<Check, String> {
        let rows = sample(self.inputs.rows);
        let weights = self.slots.pattern(0);
        let columns: Vec<usize> = (0..weights.distinct()).collect();
        let distinct: Vec<usize> = rows.iter().map(|row| row % self.inputs.distinct()).collect();
        let exact =
            reference::linear::linear(&self.inputs.values, &weights.values, weights.columns, &distinct, &columns);
        let width = self.n * self.output.nominal_bits() as usize / 8;
        let (mut result, mut expected) = (Vec::new(), Vec::new());
        for (at, row) in rows.iter().enumerate() {
            result.extend(decoded(&self.y[row * width..(row + 1) * width], self.output));
            expected.extend((0..self.n).map(|column| exact[at * columns.len() + column % columns.len()]));
        }
        let through = if self.kernel.math == Math::Bf16 { Format::BF16 } else { Format::FP32 };
        Check::of(&result, &expected, limit(self.output, through))
    }
}
