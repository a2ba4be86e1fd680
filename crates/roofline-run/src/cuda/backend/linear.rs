//! Linear layers: the kernel for a shape and its formats.

use cudarc::driver::{CudaFunction, CudaSlice};
use roofline_core::{
    Format, Math, Precision,
    measurement::{Check, Kernel, Path, Residency, Subject},
    op::Linear,
};

use super::{
    super::{
        compiler::Architecture,
        gemm_packed::{self, Tiled},
        gemv_packed::{Activation, Division, Stored, THIN_ROWS, Thin},
        gpu::{Gpu, Recipe, failed},
        model::chains,
        operand::{Copies, Operand, Part, address},
    },
    Argument, GpuCase, Launch, Work, candidate, fp4, gemm_cublaslt, launch, launch_early, tiled, unsupported,
};
use crate::{
    Case, Result, reference,
    tolerance::{decoded, limit, sample},
};

const GEMV_FP32: &str =
    concat!(include_str!("../../../kernels/common.cuh"), include_str!("../../../kernels/gemv_fp32.cu"));

/// Most rows of 8 bit times 8 bit that are packed: cuBLASLt is slow on fewer.
pub(crate) const PACKED_BYTES_ROWS: usize = 256;

/// Which kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Plan {
    Thin(Thin),
    /// FP32 on the vector unit.
    Fp32,
    /// Packed weights times more rows.
    Tiled(Tiled),
    Gemm(gemm_cublaslt::Gemm),
}

impl Plan {
    pub(super) fn of(shape: Linear, subject: &Subject, architecture: Architecture) -> Result<Self> {
        let formats = &subject.formats;
        let [m, n, k] = [shape.m, shape.n, shape.k].map(|dim| dim.get() as usize);
        if n > 1 << 24 || k > 1 << 24 || m > 1 << 20 {
            return Err(unsupported(format!("{m} x {n} x {k} is past what the kernels count to")));
        }
        let sixteen = |format: Format| matches!(format, Format::FP16 | Format::BF16);
        if subject.cast {
            if formats.weights != Format::INT8 || !sixteen(formats.activations) || m > THIN_ROWS {
                let reason = format!("weights are cast first only from int8 to 16 bit, for at most {THIN_ROWS} rows");
                return Err(unsupported(reason));
            }
            return gemm_cublaslt::Gemm::of(shape, formats, true).map(Self::Gemm);
        }
        if let Some(reason) = fp4::refusal(formats, architecture) {
            return Err(unsupported(reason));
        }
        let stored = Stored::of(formats.weights, formats.activations);
        if m > THIN_ROWS {
            let packed = |stored: &Stored| match stored {
                Stored::Sixteen => false,
                // cuBLASLt is the faster one beyond, and elsewhere.
                Stored::BothFp8 | Stored::BothInt8 => {
                    m <= PACKED_BYTES_ROWS && architecture.major == 9 && sixteen(formats.output)
                }
                _ => true,
            };
            let Some(stored) = stored.filter(packed) else {
                return gemm_cublaslt::Gemm::of(shape, formats, false).map(Self::Gemm);
            };
            if architecture < gemm_packed::OLDEST {
                let reason = format!(
                    "for more than {THIN_ROWS} rows {} weights need a GPU of compute capability {}, and this one has {}.{}",
                    formats.weights, "8.0 or later", architecture.major, architecture.minor
                );
                return Err(unsupported(reason));
            }
            let half = Self::half_output(stored, k, formats)?;
            return Ok(Self::Tiled(Tiled { stored, half, m, n, k, matrices: 1 }));
        }
        let wide = [formats.weights, formats.activations, formats.output].iter().all(|format| *format == Format::FP32);
        if wide && formats.math == Math::Fp32 {
            return Ok(Self::Fp32);
        }
        let Some(stored) = stored else {
            return gemm_cublaslt::Gemm::of(shape, formats, false).map(Self::Gemm);
        };
        let half = Self::half_output(stored, k, formats)?;
        Ok(Self::Thin(Thin { activation: Activation::None, stored, half, m, n, k }))
    }

    /// Whether a kernel of packed weights writes IEEE half; refused where none can write or read what is asked for.
    fn half_output(stored: Stored, k: usize, formats: &Precision) -> Result<bool> {
        let sixteen = matches!(formats.output, Format::FP16 | Format::BF16);
        if !sixteen || !(stored.bytes() || formats.output == formats.activations) {
            let reason = format!("no kernel writes {} from {} activations", formats.output, formats.activations);
            return Err(unsupported(reason));
        }
        if stored == Stored::Nf4 && !k.is_multiple_of(64) {
            let reason =
                format!("NF4 blocks run over row ends where k = {k} is no multiple of 64, and no kernel follows them");
            return Err(unsupported(reason));
        }
        Ok(formats.output == Format::FP16)
    }

    pub(super) fn kernel(&self) -> Kernel {
        match self {
            Self::Thin(thin) => {
                let (path, math) = match thin.stored {
                    Stored::Sixteen => (Path::Native, if thin.half { Math::Fp16 } else { Math::Bf16 }),
                    Stored::BothInt8 => (Path::Native, Math::Int8),
                    Stored::BothFp8 => (Path::Native, Math::Fp8),
                    _ => (Path::FusedDequant, if thin.half { Math::Fp16 } else { Math::Bf16 }),
                };
                Kernel { name: format!("thin {:?}", thin.stored).to_lowercase(), path, math }
            }
            Self::Tiled(tiled) => {
                let (path, math) = match (tiled.stored, tiled.half) {
                    (Stored::BothFp8, _) => (Path::Native, Math::Fp8),
                    (Stored::BothInt8, _) => (Path::Native, Math::Int8),
                    (_, true) => (Path::FusedDequant, Math::Fp16),
                    (_, false) => (Path::FusedDequant, Math::Bf16),
                };
                Kernel { name: format!("tiled {:?}", tiled.stored).to_lowercase(), path, math }
            }
            Self::Fp32 => Kernel { name: "wide fp32".to_owned(), path: Path::Native, math: Math::Fp32 },
            Self::Gemm(gemm) => gemm.kernel(),
        }
    }
}

pub(super) fn prepare<'a>(
    gpu: &'a Gpu,
    shape: Linear,
    subject: &Subject,
    residency: Residency,
) -> Result<Box<dyn Case + 'a>> {
    let formats = &subject.formats;
    let [m, n, k] = [shape.m, shape.n, shape.k].map(|dim| dim.get() as usize);
    let plan = Plan::of(shape, subject, gpu.architecture)?;
    let weights = Operand::new(formats.weights, n, k, 1.0 / (k as f32).sqrt(), 1)?;
    let inputs = Operand::new(formats.activations, m, k, 1.0, 2)?;
    let pitch = if let Plan::Gemm(gemm) = &plan { gemm.pitch() } else { n };
    let checked = |plan: &Plan| {
        let (weights, inputs) = (weights.clone(), inputs.clone());
        Checked { weights, inputs, output: formats.output, pitch, through: through(plan, formats.weights) }
    };
    let product = checked(&plan);
    match plan {
        Plan::Gemm(gemm) => Ok(GpuCase::boxed(gpu, gemm_cublaslt::work(gpu, gemm, product, residency)?)),
        Plan::Tiled(tiled) => Ok(GpuCase::boxed(gpu, tiled::work(gpu, tiled, plan.kernel(), product, residency)?)),
        Plan::Fp32 => Ok(GpuCase::boxed(gpu, gemv_fp32(gpu, plan.kernel(), product, residency)?)),
        Plan::Thin(thin) => {
            let kernel = plan.kernel();
            // The check takes the operands with it, so that what runs has copies.
            let (weights, inputs) = (vec![product.weights.clone()], product.inputs.clone());
            let check = Box::new(move |gpu: &Gpu, y: &CudaSlice<u8>| product.compare(gpu, y));
            let work = thin_work(gpu, thin, kernel, &weights, &inputs, residency, check)?;
            if let Some(tiled) = tiled::instead_of(thin, gpu.architecture) {
                let plan = Plan::Tiled(tiled);
                let other = tiled::work(gpu, tiled, plan.kernel(), checked(&plan), residency)?;
                if candidate(gpu, &other)? < candidate(gpu, &work)? {
                    return Ok(GpuCase::boxed(gpu, other));
                }
            }
            Ok(GpuCase::boxed(gpu, work))
        }
    }
}

/// The format that rounds most between stored numbers and sums: NF4's values are rounded to 16 bit, every other stored
/// number is exact in what it is multiplied as; TF32 rounds FP32 to ten bits, tensor units add up FP8 products in fewer bits
/// than FP32, and a cast rounds to 16 bit what it writes.
pub(super) fn through(plan: &Plan, weights: Format) -> Format {
    match plan {
        Plan::Thin(thin) if thin.stored == Stored::Nf4 => {
            if thin.half {
                Format::FP16
            } else {
                Format::BF16
            }
        }
        // Scales of groups multiply weights before they are summed.
        Plan::Tiled(tiled) if tiled.stored.group() != 0 => {
            if tiled.half {
                Format::FP16
            } else {
                Format::BF16
            }
        }
        Plan::Gemm(gemm) if gemm.kernel().math == Math::Tf32 => Format::FP16,
        Plan::Gemm(_) if weights == Format::FP64 => Format::FP64,
        Plan::Gemm(gemm) if gemm.kernel().path == Path::CastEmulated => Format::BF16,
        _ => {
            if weights == Format::FP8 {
                Format::FP16
            } else {
                Format::FP32
            }
        }
    }
}

/// A product's operands on the host, and what they should give.
pub(super) struct Checked {
    pub(super) weights: Operand,
    pub(super) inputs: Operand,
    pub(super) output: Format,
    /// Elements from one row of the result to the next.
    pub(super) pitch: usize,
    pub(super) through: Format,
}

impl Checked {
    /// Bytes of the result.
    pub(super) fn bytes(&self) -> usize {
        self.inputs.rows * self.weights.rows * self.output.nominal_bits() as usize / 8
    }

    /// Every output of a few rows; there are only so many distinct columns.
    pub(super) fn compare(&self, gpu: &Gpu, y: &CudaSlice<u8>) -> Result<std::result::Result<Check, String>> {
        let rows = sample(self.inputs.rows);
        let n = self.weights.rows;
        let columns: Vec<usize> = (0..self.weights.distinct()).collect();
        let distinct: Vec<usize> = rows.iter().map(|row| row % self.inputs.distinct()).collect();
        let exact = reference::linear::linear(
            &self.inputs.values,
            &self.weights.values,
            self.weights.columns,
            &distinct,
            &columns,
        );
        let size = self.output.nominal_bits() as usize / 8;
        let (mut result, mut expected) = (Vec::new(), Vec::new());
        for (at, row) in rows.iter().enumerate() {
            let mut bytes = vec![0; n * size];
            let start = row * self.pitch * size;
            gpu.stream().memcpy_dtoh(&y.slice(start..start + n * size), &mut bytes).map_err(failed)?;
            gpu.wait()?;
            if self.output == Format::INT32 {
                // Sums of codes: the scales are not in them.
                let (x_scales, w_scales) =
                    (self.inputs.encoded.scales.as_slice(), self.weights.encoded.scales.as_slice());
                let scale = |scales: &[u8], row: usize| decoded(&scales[2 * row..2 * row + 2], Format::BF16)[0];
                let integers = bytes.as_chunks::<4>().0.iter().map(|bytes| f64::from(i32::from_le_bytes(*bytes)));
                let row_scale = scale(x_scales, row % self.inputs.distinct());
                result.extend(
                    integers.enumerate().map(|(column, sum)| sum * row_scale * scale(w_scales, column % columns.len())),
                );
            } else {
                result.extend(decoded(&bytes, self.output));
            }
            expected.extend((0..n).map(|column| exact[at * columns.len() + column % columns.len()]));
        }
        Ok(Check::of(&result, &expected, limit(self.output, self.through)))
    }
}

/// Programs that may be compiled here, for a test that needs no GPU.
pub(super) fn sources() -> Vec<(String, Recipe)> {
    [(1, 2), (16, 4)]
        .map(|(rows, outputs)| {
            let defines = vec![("ROWS", rows), ("OUTPUTS", outputs), ("WARPS", 8)];
            (format!("gemv fp32 {rows} rows"), Recipe { source: GEMV_FP32, function: "gemv_fp32", defines, shared: 0 })
        })
        .into()
}

/// Fills a result with what no kernel writes.
pub(super) fn poison(gpu: &Gpu, y: &mut CudaSlice<u8>) -> Result<()> {
    let bytes = y.len();
    let block = vec![0xff; bytes.min(1 << 22)];
    let mut done = 0;
    while done < bytes {
        let length = block.len().min(bytes - done);
        gpu.stream().memcpy_htod(&block[..length], &mut y.slice_mut(done..done + length)).map_err(failed)?;
        done += length;
    }
    gpu.wait()
}

/// One kernel, called with the parts of a copy and then with what is the same for all copies.
pub(super) struct Single {
    pub(super) kernel: Kernel,
    pub(super) copies: Copies,
    pub(super) y: CudaSlice<u8>,
    /// What is neither weights nor result.
    pub(super) _held: Vec<CudaSlice<u8>>,
    pub(super) function: CudaFunction,
    pub(super) geometry: Launch,
    /// Whether it waits for the kernel before it by itself, and may start while that ends.
    pub(super) early: bool,
    pub(super) parts: usize,
    pub(super) arguments: Vec<Argument>,
    pub(super) check: Box<Judge>,
}

/// Compares a result on the GPU with the exact one.
pub(super) type Judge = dyn Fn(&Gpu, &CudaSlice<u8>) -> Result<std::result::Result<Check, String>>;

impl Work for Single {
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
        let parts = (0..self.parts).map(|part| Argument::Address(self.copies.at(gpu, copy, part)));
        let arguments: Vec<Argument> = parts.chain(self.arguments.iter().copied()).collect();
        let ask = if self.early { launch_early } else { launch };
        ask(gpu, &self.function, self.geometry, &arguments)
    }

    fn poison(&mut self, gpu: &Gpu) -> Result<()> {
        poison(gpu, &mut self.y)
    }

    fn check(&self, gpu: &Gpu) -> Result<std::result::Result<Check, String>> {
        (self.check)(gpu, &self.y)
    }
}

/// The fastest division of a thin product, tried on its own operands.
pub(super) fn thin_work(
    gpu: &Gpu,
    thin: Thin,
    kernel: Kernel,
    weights: &[Operand],
    inputs: &Operand,
    residency: Residency,
    check: Box<Judge>,
) -> Result<Single> {
    let divisions = thin.divisions(gpu.multiprocessors, gpu.architecture.major >= 9);
    let early = chains(gpu);
    let recipe = |division: &Division| {
        let mut recipe = thin.recipe(*division);
        recipe.defines.push(("CHAINED", i64::from(early)));
        recipe
    };
    let recipes: Vec<Recipe> = divisions.iter().map(recipe).collect();
    let functions = gpu.functions(&recipes)?;
    let copies = Copies::new(gpu, &thin.pack(weights), residency)?;
    // Fewer rows than the operand has distinct ones, so that none repeats.
    let x = gpu.upload(&inputs.plain(thin.steps() * 64))?;
    let x_scales = gpu.upload(&if thin.stored.bytes() { inputs.row_scales() } else { vec![0; 16] })?;
    let y = gpu.memory(thin.m * thin.n * 2)?;
    let integer = |value: usize| Argument::Integer(value as i32);
    let mut arguments: Vec<Argument> = [&x, &x_scales, &y].map(|at| Argument::Address(address(gpu, at))).into();
    arguments.extend([integer(thin.n), integer(thin.steps()), integer(thin.m)]);
    arguments.push(Argument::Real(thin.stored.tensor_scale(&weights[0], thin.half)));
    let geometry = |division: Division| Launch {
        blocks: thin.blocks(division, gpu.multiprocessors),
        threads: 32 * division.warps,
        shared: 0,
    };
    let (function, first) = (functions[0].clone(), geometry(divisions[0]));
    let held = vec![x, x_scales];
    let mut work =
        Single { kernel, copies, y, _held: held, function, geometry: first, early, parts: 3, arguments, check };
    let mut best = f64::INFINITY;
    let mut chosen = 0;
    for (at, (division, function)) in divisions.iter().zip(&functions).enumerate() {
        (work.function, work.geometry) = (function.clone(), geometry(*division));
        let fastest = candidate(gpu, &work)?;
        if fastest < best {
            (best, chosen) = (fastest, at);
        }
    }
    if best.is_infinite() {
        return Err(unsupported("no division of this kernel runs on this GPU".to_owned()));
    }
    (work.function, work.geometry) = (functions[chosen].clone(), geometry(divisions[chosen]));
    work.kernel.name += &divisions[chosen].words();
    Ok(work)
}

fn gemv_fp32(gpu: &Gpu, kernel: Kernel, checked: Checked, residency: Residency) -> Result<Single> {
    let (m, n, k) = (checked.inputs.rows, checked.weights.rows, checked.weights.columns);
    let width = k.next_multiple_of(4);
    let rows = m.next_power_of_two();
    let (outputs, warps) = (if rows > 4 { 4 } else { 2 }, 8);
    let defines = vec![("ROWS", rows as i64), ("OUTPUTS", outputs), ("WARPS", warps)];
    let function = gpu.function(&Recipe { source: GEMV_FP32, function: "gemv_fp32", defines, shared: 0 })?;
    let pattern = checked.weights.plain(width);
    let copies = Copies::new(gpu, &[Part { pattern, bytes: n * width * 4 }], residency)?;
    let x = gpu.upload(&checked.inputs.plain(width))?;
    let y = gpu.memory(checked.bytes())?;
    let integer = |value: usize| Argument::Integer(value as i32);
    let mut arguments: Vec<Argument> = [&x, &y].map(|at| Argument::Address(address(gpu, at))).into();
    arguments.extend([integer(n), integer(width), integer(m)]);
    let geometry = Launch { blocks: n.div_ceil(outputs as usize) as u32, threads: 32 * warps as u32, shared: 0 };
    let check = Box::new(move |gpu: &Gpu, y: &CudaSlice<u8>| checked.compare(gpu, y));
    Ok(Single { kernel, copies, y, _held: vec![x], function, geometry, early: false, parts: 1, arguments, check })
}
