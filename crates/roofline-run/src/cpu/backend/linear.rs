//! Linear layers.

use roofline_core::{
    Format, Math, Precision,
    measurement::{Check, Kernel, Residency, Subject},
    op::Linear,
    units::Bytes,
};

use super::{
    super::{
        buffer::Buffer,
        kernels::linear::Product,
        operands::{Pattern, Slots},
        pool::Pool,
    },
    Cpu, CpuCase, Run, unsupported,
};
use crate::{
    Case, Result, exact,
    tolerance::{decoded, limit, sample},
};

pub(super) fn plan(cpu: &Cpu, shape: Linear, subject: &Subject) -> Result<Product> {
    let plan = if subject.cast { Product::cast_first } else { Product::plan };
    let product = plan(cpu.isa, shape, &stored(&subject.formats), cpu.pool.threads());
    product.map_err(|reason| unsupported(reason.to_string()))
}

/// `formats` with the unit that their numbers ask for. A precision names the fastest unit that could multiply it, which is
/// what its least time is of; which one does is for the kernel to say, and BF16 pairs are what it has units for.
fn stored(formats: &Precision) -> Precision {
    let pairs = formats.activations == Format::BF16 && formats.weights.nominal_bits() <= 16;
    Precision { math: if pairs { Math::Bf16 } else { formats.math }, ..*formats }
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
    let slots = Slots::new(vec![weights]).with_output(product.between());
    let rotation = cpu.load(&slots, residency)?;
    let run = LinearRun { product, kernel, slots, inputs, x, y, output: formats.output, n };
    let known = cpu.device.clock.boost;
    Ok(Box::new(CpuCase { run, pool: &mut cpu.pool, memory: &mut cpu.arena, rotation, next: 0, known }))
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
        let (weights, between) = self.slots.split(memory, copy);
        self.product.run_through(pool, self.inputs.tensor(&self.x), weights[0], between, &mut self.y);
    }

    /// Written, then read.
    fn detour(&self) -> Bytes {
        Bytes::new(2.0 * self.product.between() as f64)
    }

    /// Every output of a few rows; there are only so many distinct columns.
    fn check(&self) -> std::result::Result<Check, String> {
        let rows = sample(self.inputs.rows);
        let expected = exact::linear(&self.inputs, self.slots.pattern(0), &rows);
        let width = self.n * self.output.nominal_bits() as usize / 8;
        let result: Vec<f64> =
            rows.iter().flat_map(|row| decoded(&self.y[row * width..(row + 1) * width], self.output)).collect();
        let through = if self.kernel.math == Math::Bf16 { Format::BF16 } else { Format::FP32 };
        Check::of(&result, &expected, limit(self.output, through))
    }
}

#[cfg(test)]
mod tests {
    use roofline_core::{
        Device, Graph, Registry,
        device::{Kind, Peaks},
        precision::{NAMED, PrecisionSpec},
        units::{ByteRate, Bytes, FlopRate},
    };

    use super::*;
    use crate::{Backend, cpu::machine::Machine};

    /// Whichever unit is the fastest, no kernel multiplies on one that is faster than what its least time was computed with;
    /// and which one it takes has nothing to do with that.
    #[test]
    fn no_kernel_beats_the_unit_of_its_precision() {
        let units = [Math::Fp32, Math::Bf16, Math::Int16, Math::Int8];
        let device = |fastest: Math| {
            let rate = |math: Math| (math, FlopRate::new(if math == fastest { 2e12 } else { 1e12 }));
            let peaks = Peaks::distinct(units.map(rate)).unwrap();
            let device = Device::custom("one of four", ByteRate::new(1e10), peaks, None).unwrap();
            Device { kind: Kind::Cpu, ..device }
        };
        let blocks = ["q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "q3_k", "q2_k"]
            .map(|name| format!("{name}/bf16"));
        let others = ["int4-g128-zp/bf16", "int4/fp16", "nf4/fp16", "q4_k/fp16"].map(str::to_owned);
        let names = NAMED.iter().map(|named| named.name.to_owned()).chain(blocks).chain(others);
        let mut checked = 0;
        for name in names {
            let spec: PrecisionSpec = name.parse().unwrap();
            for rows in [1, 16, 17, 64] {
                let mut used = None;
                for fastest in units {
                    let device = device(fastest);
                    let Ok(formats) = spec.on(&device) else { continue };
                    let cpu = Cpu::new(&Machine { threads: 1, ..Machine::default() }, device);
                    let subject = Subject::new(&Graph::gemm(rows, 64, 512).unwrap().nodes[0], &name, formats);
                    let Ok(kernel) = cpu.supports(&subject) else { continue };
                    let peak = |math: Math| cpu.device().peaks.of(math).unwrap();
                    assert!(peak(formats.math) >= peak(kernel.math), "{}: {} by {}", name, formats.math, kernel.math);
                    assert_eq!(*used.get_or_insert(kernel.math), kernel.math, "{name} with {rows} rows");
                    checked += 1;
                }
            }
        }
        assert!(checked > 100, "{checked} kernels");
    }

    /// 64 x 128 weights of a byte, two bytes each where they are cast to: written and read.
    #[test]
    fn a_cast_moves_its_matrix_twice_and_has_one_per_copy() {
        let device = Registry::builtin().find("h200").unwrap().into_owned();
        let formats = "w8a16".parse::<PrecisionSpec>().unwrap().on(&device).unwrap();
        let plain = Subject::new(&Graph::gemv(64, 128).unwrap().nodes[0], "w8a16", formats);
        let naive = Subject { cast: true, ..plain.clone() };
        let mut cpu = Cpu::new(&Machine { threads: 2, ..Machine::default() }, device);
        let mut prepared = |subject: &Subject| {
            let mut case = cpu.prepare(subject, Residency::Warm).unwrap();
            case.check().unwrap();
            (case.detour(), case.times_cache().unwrap() * super::super::CACHE.value())
        };
        let ((none, alone), (detour, with)) = (prepared(&plain), prepared(&naive));
        assert_eq!((none, detour), (Bytes::ZERO, Bytes::new(2.0 * 2.0 * 64.0 * 128.0)));
        assert!(with - alone >= 2.0 * 64.0 * 128.0, "the cast matrix is part of a copy: {with} after {alone}");
    }
}
