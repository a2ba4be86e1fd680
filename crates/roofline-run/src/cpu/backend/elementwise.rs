//! Kernels that touch each element a few times.

use roofline_core::{
    Format, Math,
    measurement::{Check, Kernel, Path, Residency, Subject},
    op::{self, ElementwiseKind as Kind},
};

use roofline_isa::Isa;

use super::{
    super::{
        kernels::elementwise::{Activation, Elementwise, Rotations, Target},
        operands::{Pattern, Slots},
        pool::Pool,
    },
    Cpu, CpuCase, Run, unsupported,
};
use crate::{
    Case, Result,
    reference::elementwise as reference,
    tolerance::{decoded, limit, sample},
};

/// Format of the inputs, their number, and format of the output.
fn formats(kind: Kind, subject: &Subject) -> (Format, usize, Format) {
    let formats = &subject.formats;
    match kind {
        Kind::Norm => (formats.query, 1, formats.activations),
        Kind::Rope | Kind::Embedding => (formats.query, 1, formats.query),
        Kind::Residual => (formats.query, 2, formats.query),
        Kind::KvWrite => (formats.query, 1, formats.kv),
        Kind::GatedActivation => (formats.output, 2, formats.activations),
        Kind::Activation => (formats.output, 1, formats.activations),
    }
}

pub(super) fn kernel(isa: Isa, shape: &op::Elementwise, subject: &Subject) -> Result<Kernel> {
    let (input, _, output) = formats(shape.kind, subject);
    let plain = |format: Format| matches!(format, Format::FP32 | Format::BF16 | Format::FP16);
    if !plain(input) || !plain(output) {
        return Err(unsupported(format!("no element-wise kernel of ours goes from {input} to {output}")));
    }
    if shape.kind == Kind::Rope
        && (!shape.width.get().is_multiple_of(2) || shape.width.get() > Rotations::WIDEST as u64)
    {
        let most = Rotations::WIDEST;
        return Err(unsupported(format!(
            "no kernel turns heads of {} features, only even ones up to {most}",
            shape.width
        )));
    }
    let name = format!("{} {input} {}", shape.kind.site(), isa.level());
    Ok(Kernel { name, path: Path::Native, math: Math::Fp32 })
}

pub(super) fn prepare<'a>(
    cpu: &'a mut Cpu,
    shape: op::Elementwise,
    subject: &Subject,
    residency: Residency,
) -> Result<Box<dyn Case + 'a>> {
    let kernel = kernel(cpu.isa, &shape, subject)?;
    let (input, count, output) = formats(shape.kind, subject);
    let too_large = || unsupported(format!("{} rows are more than memory can hold", shape.tokens));
    let tokens = usize::try_from(shape.tokens).map_err(|_| too_large())?;
    let (vectors, width) = (shape.vectors.get() as usize, shape.width.get() as usize);
    let rows =
        tokens.checked_mul(vectors).filter(|rows| rows.checked_mul(width * 8).is_some()).ok_or_else(too_large)?;
    cpu.room(3.0 * rows as f64 * width as f64)?;
    let inputs = (0..count as u64).map(|at| Pattern::new(input, rows, width, 1.0, 6 + at)).collect::<Result<_>>()?;
    let written = rows * width * output.nominal_bits() as usize / 8;
    let slots = Slots::new(inputs).with_output(written);
    let rotation = cpu.load(&slots, residency)?;
    let weight = (0..width).map(|at| 1.0 + (at % 7) as f32 / 8.0).collect();
    let run = ElementwiseRun {
        kernels: Elementwise::on(cpu.isa),
        kind: shape.kind,
        kernel,
        slots,
        output,
        vectors,
        weight,
        rotations: Rotations::new(
            if shape.kind == Kind::Rope { width } else { 2 },
            reference::BASE,
            reference::POSITIONS,
        ),
        positions: (0..tokens).map(|token| token % reference::POSITIONS).collect(),
        places: (0..rows).rev().collect(),
        result: Vec::new(),
    };
    let known = cpu.device.clock.boost;
    Ok(Box::new(CpuCase { run, pool: &mut cpu.pool, memory: &mut cpu.arena, rotation, next: 0, known }))
}

struct ElementwiseRun {
    kernels: Elementwise,
    kind: Kind,
    kernel: Kernel,
    slots: Slots,
    output: Format,
    vectors: usize,
    weight: Vec<f32>,
    rotations: Rotations,
    positions: Vec<usize>,
    /// Rows that are looked up or written, each once.
    places: Vec<usize>,
    /// What the run that is checked wrote.
    result: Vec<u8>,
}

impl Run for ElementwiseRun {
    fn kernel(&self) -> Kernel {
        self.kernel.clone()
    }

    fn run(&mut self, pool: &mut Pool, memory: &mut [u8], copy: usize) {
        let (inputs, out) = self.slots.split(memory, copy);
        let (kernels, out) = (self.kernels, Target::plain(self.output, out));
        let done = match self.kind {
            Kind::Norm => kernels.norm(pool, inputs[0], &self.weight, reference::EPSILON, out),
            Kind::Rope => kernels.rope(pool, inputs[0], self.vectors, &self.rotations, &self.positions, out),
            Kind::Residual => kernels.residual(pool, inputs[0], inputs[1], out),
            Kind::KvWrite => kernels.kv_write(pool, inputs[0], &self.places, out),
            Kind::Embedding => kernels.embedding(pool, inputs[0], &self.places, out),
            Kind::GatedActivation => kernels.gated(pool, Activation::Silu, inputs[0], inputs[1], out),
            Kind::Activation => kernels.activation(pool, Activation::Silu, inputs[0], out),
        };
        done.expect("formats and shapes were looked at when this was planned");
    }

    fn poison(&mut self, memory: &mut [u8]) {
        self.slots.split(memory, 0).1.fill(0x5a);
    }

    fn keep(&mut self, memory: &mut [u8]) {
        self.result = self.slots.split(memory, 0).1.to_vec();
    }

    fn check(&self) -> std::result::Result<Check, String> {
        let input = self.slots.pattern(0);
        let bytes = self.result.len() / input.rows;
        let (mut result, mut expected) = (Vec::new(), Vec::new());
        for row in sample(input.rows) {
            let x = input.row(row);
            let other = || self.slots.pattern(1).row(row).iter();
            let (place, values): (usize, Vec<f64>) = match self.kind {
                Kind::Norm => (row, reference::norm(x, &self.weight, f64::from(reference::EPSILON))),
                Kind::Rope => (row, reference::rope(x, reference::BASE, self.positions[row / self.vectors])),
                Kind::Residual => (row, x.iter().zip(other()).map(|(x, y)| reference::residual(*x, *y)).collect()),
                Kind::KvWrite => (self.places[row], x.iter().map(|value| f64::from(*value)).collect()),
                Kind::Embedding => {
                    let looked_up = input.row(self.places[row]);
                    (row, looked_up.iter().map(|value| f64::from(*value)).collect())
                }
                Kind::GatedActivation => {
                    (row, x.iter().zip(other()).map(|(gate, up)| reference::gated(*gate, *up)).collect())
                }
                Kind::Activation => (row, x.iter().map(|value| reference::silu(*value)).collect()),
            };
            expected.extend(values);
            result.extend(decoded(&self.result[place * bytes..(place + 1) * bytes], self.output));
        }
        Check::of(&result, &expected, limit(self.output, Format::FP32).max(1e-5))
    }
}
