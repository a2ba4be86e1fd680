//! Linear layers with the activation function behind them: one product or two, then the function, as one call.

use roofline_core::{
    Format, Math,
    measurement::{Check, Kernel, Residency, Subject},
    op::{ActivatedLinear, Linear},
    units::Bytes,
};

use super::{
    super::{
        buffer::Buffer,
        kernels::elementwise::{Activation, Elementwise, Target},
        kernels::linear::Product,
        operands::{Pattern, Slots},
        pool::Pool,
        tensor::Tensor,
    },
    Cpu, CpuCase, Run, linear, unsupported,
};
use crate::{
    Case, Result, reference,
    tolerance::{decoded, limit, sample},
};

/// The products, which write what the function reads: the queries' format, since nothing narrower has been chosen yet.
fn plan(cpu: &Cpu, shape: ActivatedLinear, subject: &Subject) -> Result<(Vec<Product>, Kernel)> {
    let formats = &subject.formats;
    if !matches!(formats.activations, Format::FP32 | Format::BF16 | Format::FP16) {
        let reason = format!("no kernel of ours rounds an activation function to {}", formats.activations);
        return Err(unsupported(reason));
    }
    let wide = Subject { formats: roofline_core::Precision { output: formats.query, ..*formats }, ..subject.clone() };
    let count = if shape.gated { 2 } else { 1 };
    let products = (0..count).map(|_| linear::plan(cpu, shape.linear, &wide)).collect::<Result<Vec<Product>>>()?;
    let one = linear::kernel(&products[0]);
    let name = if shape.gated { format!("2 x {}, silu_mul", one.name) } else { format!("{}, silu", one.name) };
    Ok((products, Kernel { name, path: one.path, math: one.math }))
}

pub(super) fn kernel(cpu: &Cpu, shape: ActivatedLinear, subject: &Subject) -> Result<Kernel> {
    plan(cpu, shape, subject).map(|(_, kernel)| kernel)
}

pub(super) fn prepare<'a>(
    cpu: &'a mut Cpu,
    shape: ActivatedLinear,
    subject: &Subject,
    residency: Residency,
) -> Result<Box<dyn Case + 'a>> {
    let Linear { m, n, k } = shape.linear;
    let [m, n, k] = [m, n, k].map(|dim| dim.get() as usize);
    let size = |one: usize, other: usize| one as f64 * other as f64;
    cpu.room(size(m, k) + 3.0 * size(m, n) + 2.0 * size(n, k))?;
    let (products, kernel) = plan(cpu, shape, subject)?;
    let formats = &subject.formats;
    let scale = 1.0 / (k as f32).sqrt();
    let weights = (0..products.len() as u64)
        .map(|at| Pattern::new(formats.weights, n, k, scale, 11 + at))
        .collect::<Result<Vec<Pattern>>>()?;
    let inputs = Pattern::new(formats.activations, m, k, 1.0, 2)?;
    let mut x = cpu.memory(inputs.bytes())?;
    inputs.write(&mut x);
    let size = |format: Format| m * n * format.nominal_bits() as usize / 8;
    let between = products.iter().map(|_| cpu.memory(size(formats.query))).collect::<Result<Vec<Buffer>>>()?;
    let y = cpu.memory(size(formats.activations))?;
    let slots = Slots::new(weights).with_output(products.iter().map(Product::between).sum());
    let rotation = cpu.load(&slots, residency)?;
    let (query, output) = (formats.query, formats.activations);
    let run = ActivatedRun { products, kernel, slots, inputs, x, between, y, query, output, m, n };
    let known = cpu.device.clock.boost;
    Ok(Box::new(CpuCase { run, pool: &mut cpu.pool, memory: &mut cpu.arena, rotation, next: 0, known }))
}

struct ActivatedRun {
    products: Vec<Product>,
    kernel: Kernel,
    slots: Slots,
    inputs: Pattern,
    x: Buffer,
    /// What the products write.
    between: Vec<Buffer>,
    y: Buffer,
    query: Format,
    output: Format,
    m: usize,
    n: usize,
}

impl Run for ActivatedRun {
    fn kernel(&self) -> Kernel {
        self.kernel.clone()
    }

    fn run(&mut self, pool: &mut Pool, memory: &mut [u8], copy: usize) {
        let x = self.inputs.tensor(&self.x);
        let (weights, mut rest) = self.slots.split(memory, copy);
        for ((product, weights), written) in self.products.iter_mut().zip(weights).zip(&mut self.between) {
            let (between, after) = rest.split_at_mut(product.between());
            product.run_through(pool, x, weights, between, written);
            rest = after;
        }
        let (rows, columns, format) = (self.m, self.n, self.query);
        let written = |codes| Tensor { format, rows, columns, codes, scales: &[], zeros: &[], tensor: &[] };
        let (kernels, out) = (Elementwise::default(), Target::plain(self.output, &mut self.y));
        let done = match &self.between[..] {
            [gate, up] => kernels.gated(pool, Activation::Silu, written(gate), written(up), out),
            all => kernels.activation(pool, Activation::Silu, written(&all[0]), out),
        };
        done.expect("formats were looked at when this was planned");
    }

    /// What the products write and the function reads, and what the products themselves write first.
    fn detour(&self) -> Bytes {
        let first: usize = self.products.iter().map(Product::between).sum();
        let between: usize = self.between.iter().map(|written| written.len()).sum();
        Bytes::new(2.0 * (first + between) as f64)
    }

    /// Every output of a few rows. What the function reads has been rounded once, so twice the usual is allowed.
    fn check(&self) -> std::result::Result<Check, String> {
        let rows = sample(self.m);
        let distinct: Vec<usize> = rows.iter().map(|row| row % self.inputs.distinct()).collect();
        let product = |at: usize| {
            let weights = self.slots.pattern(at);
            let columns: Vec<usize> = (0..weights.distinct()).collect();
            reference::linear::linear(&self.inputs.values, &weights.values, weights.columns, &distinct, &columns)
        };
        let all: Vec<Vec<f64>> = (0..self.products.len()).map(product).collect();
        let width = self.n * self.output.nominal_bits() as usize / 8;
        let columns = self.slots.pattern(0).distinct();
        let (mut result, mut expected) = (Vec::new(), Vec::new());
        for (at, row) in rows.iter().enumerate() {
            result.extend(decoded(&self.y[row * width..(row + 1) * width], self.output));
            expected.extend((0..self.n).map(|column| {
                let place = at * columns + column % columns;
                let gate = all[0][place];
                let silu = gate / (1.0 + (-gate).exp());
                all.get(1).map_or(silu, |up| silu * up[place])
            }));
        }
        let through = if self.kernel.math == Math::Bf16 { Format::BF16 } else { Format::FP32 };
        Check::of(&result, &expected, 2.0 * limit(self.output, through).max(limit(self.query, through)))
    }
}
