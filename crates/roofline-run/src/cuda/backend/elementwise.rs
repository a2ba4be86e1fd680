//! Kernels that touch each element a few times. What they write rotates with what they read, so that both are as cold.

use cudarc::driver::{CudaFunction, CudaSlice};
use roofline_core::{
    Dim, Format,
    measurement::{Check, Kernel, Residency, Subject},
};

use super::{
    super::{
        elementwise::{Does, Rows},
        gpu::Gpu,
        operand::{Copies, Operand, Part, address},
    },
    Argument, GpuCase, Launch, Work, launch, unsupported,
};
use crate::{
    Case, Result,
    reference::elementwise as reference,
    tolerance::{decoded, limit, sample},
};

/// How much farther off than its format's own rounding a result with scales may be.
const SLACK: f64 = 1.25;

/// The kernel for an operator.
pub(super) fn plan(subject: &Subject) -> Result<Rows> {
    Rows::of(&subject.op, &subject.formats).map_err(unsupported)
}

pub(super) fn prepare<'a>(gpu: &'a Gpu, subject: &Subject, residency: Residency) -> Result<Box<dyn Case + 'a>> {
    let rows = plan(subject)?;
    if rows.blocks() > i32::MAX as usize || rows.rows() > u32::MAX as usize {
        return Err(unsupported(format!("{} rows are more than a launch has blocks for", rows.rows())));
    }
    let function = gpu.function(&rows.recipe())?;
    let inputs: Vec<Operand> = (0..rows.does.inputs() as u64)
        .map(|at| Operand::new(rows.input, rows.rows(), rows.width, 1.0, 6 + at))
        .collect::<Result<_>>()?;
    let written = rows.rows() * rows.width * rows.output.nominal_bits() as usize / 8;
    let unwritten = |bytes: usize| Part { pattern: vec![0xff; bytes.min(1 << 16)], bytes };
    let mut parts: Vec<Part> = inputs
        .iter()
        .map(|input| Part { pattern: input.plain(rows.width), bytes: rows.rows() * rows.width * 2 })
        .collect();
    parts.push(unwritten(written));
    parts.push(unwritten(if rows.scaled() { rows.rows() * 2 } else { 0 }));
    let copies = Copies::new(gpu, &parts, residency)?;
    let weight: Vec<f32> = (0..rows.width).map(|at| 1.0 + (at % 7) as f32 / 8.0).collect();
    let (side, numbers) = match rows.does {
        Does::Norm => (rows.input.encode(&weight, Dim::new("width", rows.width as u64)?)?.codes, Vec::new()),
        Does::Rope => (angles(rows.width), (0..rows.tokens).map(|token| token % reference::POSITIONS).collect()),
        // Rows that are looked up or written, each once.
        Does::KvWrite | Does::Embedding => (Vec::new(), (0..rows.rows()).rev().collect()),
        _ => (Vec::new(), Vec::new()),
    };
    let indices: Vec<u8> = numbers.iter().flat_map(|number| (*number as u32).to_le_bytes()).collect();
    let work = Elementwise {
        rows,
        function,
        copies,
        inputs,
        weight,
        side: gpu.upload(&side)?,
        indices: gpu.upload(&indices)?,
    };
    Ok(GpuCase::boxed(gpu, work))
}

/// Cosines, then sines, of every position.
fn angles(width: usize) -> Vec<u8> {
    let half = width / 2;
    let angle =
        |position: usize, at: usize| position as f64 * reference::BASE.powf(-2.0 * (at % half) as f64 / width as f64);
    let number = |position: usize, at: usize| {
        let angle = angle(position, at);
        if at < half { angle.cos() as f32 } else { angle.sin() as f32 }
    };
    let all = (0..reference::POSITIONS).flat_map(|position| (0..width).map(move |at| number(position, at)));
    all.flat_map(f32::to_le_bytes).collect()
}

struct Elementwise {
    rows: Rows,
    function: CudaFunction,
    /// Inputs, the output and its scales.
    copies: Copies,
    inputs: Vec<Operand>,
    weight: Vec<f32>,
    /// A norm's weights or a rotation's angles.
    side: CudaSlice<u8>,
    /// Positions of tokens, or rows that are looked up or written.
    indices: CudaSlice<u8>,
}

impl Work for Elementwise {
    fn kernel(&self) -> Kernel {
        self.rows.kernel()
    }

    fn copies(&self) -> usize {
        self.copies.rotation.copies
    }

    fn times_cache(&self) -> f64 {
        self.copies.rotation.times_cache
    }

    fn enqueue(&self, gpu: &Gpu, copy: usize) -> Result<()> {
        use Argument::{Address, Count, Integer, Real};
        let rows = &self.rows;
        let part = |part: usize| Address(self.copies.at(gpu, copy, part));
        let [x, y] = [0, self.inputs.len() - 1].map(part);
        let [out, scales] = [self.inputs.len(), self.inputs.len() + 1].map(part);
        let [side, indices] = [&self.side, &self.indices].map(|memory| Address(address(gpu, memory)));
        let (nothing, count, width) = (Address(0), Count(rows.rows() as u64), Integer(rows.width as i32));
        let elements = Count((rows.rows() * rows.width) as u64);
        let arguments = match rows.does {
            Does::Norm => vec![x, side, out, scales, count, width, Real(reference::EPSILON)],
            Does::Softmax => vec![x, out, scales, count, width],
            Does::KvWrite => vec![x, nothing, indices, out, scales, count, width],
            Does::Embedding => vec![x, indices, nothing, out, scales, count, width],
            Does::Rope => {
                vec![x, side, indices, out, Count(rows.tokens as u64), Integer(rows.vectors as i32), width]
            }
            Does::Gated if rows.scaled() => vec![x, y, out, scales, count, width],
            Does::Activation if rows.scaled() => vec![x, nothing, out, scales, count, width],
            Does::Gated | Does::Residual => vec![x, y, out, elements],
            Does::Activation => vec![x, out, elements],
        };
        let geometry = Launch { blocks: rows.blocks() as u32, threads: rows.threads() as u32, shared: 0 };
        launch(gpu, &self.function, geometry, &arguments)
    }

    fn poison(&mut self, gpu: &Gpu) -> Result<()> {
        let output = self.inputs.len();
        self.copies.poison(gpu, output)?;
        self.copies.poison(gpu, output + 1)
    }

    fn check(&self, gpu: &Gpu) -> Result<std::result::Result<Check, String>> {
        let rows = &self.rows;
        let (mut result, mut expected) = (Vec::new(), Vec::new());
        for row in sample(rows.rows()) {
            let input = |at: usize, row: usize| {
                let operand = &self.inputs[at];
                &operand.values[row % operand.distinct() * rows.width..][..rows.width]
            };
            let mirrored = rows.rows() - 1 - row;
            let x = input(0, row);
            let wide = |row: &[f32]| row.iter().map(|value| f64::from(*value)).collect();
            let other = || input(1, row).iter();
            let (place, values): (usize, Vec<f64>) = match rows.does {
                Does::Norm => (row, reference::norm(x, &self.weight, f64::from(reference::EPSILON))),
                Does::Softmax => (row, reference::softmax(x)),
                Does::Rope => (row, reference::rope(x, reference::BASE, row / rows.vectors % reference::POSITIONS)),
                Does::Residual => (row, x.iter().zip(other()).map(|(x, y)| reference::residual(*x, *y)).collect()),
                Does::Gated => (row, x.iter().zip(other()).map(|(gate, up)| reference::gated(*gate, *up)).collect()),
                Does::Activation => (row, x.iter().map(|value| reference::silu(*value)).collect()),
                Does::KvWrite => (mirrored, wide(x)),
                Does::Embedding => (row, wide(input(0, mirrored))),
            };
            result.extend(self.written(gpu, place)?);
            expected.extend(values);
        }
        let limit = if rows.scaled() { self.loss(&expected)? } else { limit(rows.output, Format::FP32) };
        Ok(Check::of(&result, &expected, limit))
    }
}

impl Elementwise {
    /// What is in a row of the output.
    fn written(&self, gpu: &Gpu, row: usize) -> Result<Vec<f64>> {
        let (rows, output) = (&self.rows, self.inputs.len());
        let bytes = rows.width * rows.output.nominal_bits() as usize / 8;
        let codes = self.copies.read(gpu, output, row * bytes..(row + 1) * bytes)?;
        if !rows.scaled() {
            return Ok(decoded(&codes, rows.output));
        }
        let scale = decoded(&self.copies.read(gpu, output + 1, row * 2..row * 2 + 2)?, Format::BF16)[0];
        let element = rows.output.element();
        Ok(codes.iter().map(|code| f64::from(element.decode(u64::from(*code))) * scale).collect())
    }

    /// How far off results may be that are stored with a scale per row: a little more than exact ones would be.
    fn loss(&self, exact: &[f64]) -> Result<f64> {
        let values: Vec<f32> = exact.iter().map(|value| *value as f32).collect();
        let stored = self.rows.output.encode(&values, Dim::new("width", self.rows.width as u64)?)?.decode();
        let square = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
        let off = square(&mut stored.iter().zip(exact).map(|(stored, exact)| f64::from(*stored) - exact));
        let size = square(&mut exact.iter().copied());
        Ok(SLACK * (off / size).sqrt() + limit(self.rows.input, Format::FP32))
    }
}
