//! Products of many rows, by cuBLASLt; and the two things around them that it does not do: scaling INT32 sums to 16 bit,
//! and writing INT8 weights out as 16 bit first, the naive way, which is measured to show what it costs.

use cudarc::driver::{CudaFunction, CudaSlice};
use roofline_core::{
    Format, Math, Precision,
    measurement::{Check, Kernel, Path, Residency},
    op::Linear,
    units::Bytes,
};

use super::{
    super::{
        THIN_ROWS,
        cublaslt::{Algorithm, Compute, Product, Scales, Shape, Type},
        gpu::{Gpu, Recipe},
        operand::{Copies, Operand, Part, address},
    },
    Argument, Launch, Work, candidate, fp4, launch,
    linear::{Checked, poison},
    unsupported,
};
use crate::{Result, tolerance::decoded};

const CAST: &str = concat!(include_str!("../../../kernels/common.cuh"), include_str!("../../../kernels/cast.cu"));
const THREADS: u32 = 256;
/// Elements that rows are padded to: what 8-bit products need, and 16-bit ones gain by.
const ALIGNED: usize = 16;
/// Bytes that every matrix starts at a multiple of, as those of an allocation of their own do.
const ALIGNMENT: usize = 256;

/// A product and what goes around it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gemm {
    shape: Shape,
    /// Weights are INT8 in memory and cast to 16 bit there.
    cast: bool,
    /// Sums are scaled to this type.
    scaled: Option<Type>,
    math: Math,
}

impl Gemm {
    pub(super) fn of(shape: Linear, formats: &Precision, cast: bool) -> Result<Self> {
        let Precision { weights, activations, output, math, .. } = *formats;
        let [m, n, k] = [shape.m, shape.n, shape.k].map(|dim| dim.get() as usize);
        let plain = |format: Format| match format {
            Format::FP32 | Format::TF32 => Some(Type::Fp32),
            Format::FP16 => Some(Type::Fp16),
            Format::BF16 => Some(Type::Bf16),
            Format::FP64 => Some(Type::Fp64),
            _ => None,
        };
        let double = |format: Format| format == Format::FP64;
        let none = || {
            let reason = if weights == activations || cast {
                format!("cuBLASLt has no product of {activations} that writes {output}")
            } else {
                format!(
                    "for more than {THIN_ROWS} rows {weights} weights with {activations} activations have no kernel yet: cuBLASLt \
                     multiplies equal formats only"
                )
            };
            unsupported(reason)
        };
        let per_tensor: Option<Format> = "fp8-e4m3-tensor".parse().ok();
        let multiplied = if cast { activations } else { weights };
        let (input, compute, scales, sums, target) = match (multiplied, plain(output)) {
            _ if multiplied != activations => return Err(none()),
            (Format::INT8, _) if output == Format::INT32 => {
                (Type::Int8, Compute::Int32, Scales::None, Type::Int32, None)
            }
            (Format::INT8, Some(to @ (Type::Bf16 | Type::Fp16))) => {
                (Type::Int8, Compute::Int32, Scales::None, Type::Int32, Some(to))
            }
            // Double precision is not mixed with anything.
            _ if double(multiplied) != double(output) => return Err(none()),
            (Format::FP64, Some(to)) => (Type::Fp64, Compute::Fp64, Scales::None, to, None),
            (Format::NVFP4, Some(to @ (Type::Bf16 | Type::Fp16))) => {
                (Type::Fp4, Compute::Fp32, Scales::Blocks, to, None)
            }
            (Format::FP8, Some(to)) => (Type::Fp8, Compute::Fp32, Scales::Rows, to, None),
            (format, Some(to)) if Some(format) == per_tensor => (Type::Fp8, Compute::Fp32, Scales::Tensor, to, None),
            (format, Some(to)) => {
                let input = plain(format).ok_or_else(none)?;
                let compute = if math == Math::Tf32 { Compute::Tf32 } else { Compute::Fp32 };
                (input, compute, Scales::None, to, None)
            }
            _ => return Err(none()),
        };
        let width = k.next_multiple_of(if input == Type::Fp4 { 2 * ALIGNED } else { ALIGNED });
        let narrow = matches!(input, Type::Int8 | Type::Fp8 | Type::Fp4);
        let n = if narrow { n.next_multiple_of(ALIGNED) } else { n };
        let shape = Shape { m, n, k: width, width, input, output: sums, compute, scales };
        Ok(Self { shape, cast, scaled: target, math })
    }

    pub(super) fn kernel(&self) -> Kernel {
        let input = format!("{:?}", self.shape.input).to_lowercase();
        let name = match (self.cast, self.scaled) {
            (true, _) => format!("cast int8, cublaslt {input}"),
            (_, Some(_)) => format!("cublaslt {input}, scale"),
            _ => format!("cublaslt {input}"),
        };
        let path = if self.cast { Path::CastEmulated } else { Path::Native };
        Kernel { name, path, math: self.math }
    }

    /// Elements from one row of the result to the next.
    pub(super) fn pitch(&self) -> usize {
        self.shape.n
    }
}

/// Programs that may be compiled here, for a test that needs no GPU.
pub(super) fn sources() -> Vec<(String, Recipe)> {
    [0, 1]
        .map(|half| {
            (
                format!("cast half {half}"),
                Recipe { source: CAST, function: "cast", defines: vec![("HALF", half)], shared: 0 },
            )
        })
        .into()
}

pub(super) fn work(gpu: &Gpu, gemm: Gemm, checked: Checked, residency: Residency) -> Result<GemmWork<'_>> {
    let Shape { m, n, width, .. } = gemm.shape;
    let bits = |operand: &Operand| operand.encoded.format().nominal_bits() as usize;
    let part = |operand: &Operand, rows: usize| {
        let pattern = operand.plain(width);
        Part { pattern, bytes: rows * width * bits(operand) / 8 }
    };
    let weights = part(&checked.weights, n);
    let x = Copies::new(gpu, &[part(&checked.inputs, m)], Residency::Warm)?;
    let bytes = |kind: Type| {
        m * n
            * match kind {
                Type::Fp64 => 8,
                Type::Fp32 | Type::Int32 => 4,
                _ => 2,
            }
    };
    let row_scales = |operand: &Operand| {
        let scales = operand.row_scales();
        let wide = decoded(&scales, Format::BF16).into_iter().map(|scale| scale as f32);
        wide.flat_map(f32::to_le_bytes).collect::<Vec<u8>>()
    };
    let none = || vec![0; 16];
    let scales: [Vec<u8>; 2] = match (gemm.shape.scales, gemm.scaled.is_some()) {
        // What is multiplied is 16 bit, and only the weights came from less.
        _ if gemm.cast => [checked.weights.row_scales(), none()],
        (Scales::Rows, _) => [&checked.weights, &checked.inputs].map(row_scales),
        (Scales::Blocks, _) => [fp4::tiled(&checked.weights, n, width), fp4::tiled(&checked.inputs, m, width)],
        (Scales::Tensor, _) => [&checked.weights, &checked.inputs].map(|operand| operand.encoded.tensor.clone()),
        (Scales::None, true) => [&checked.weights, &checked.inputs].map(Operand::row_scales),
        (Scales::None, false) => [none(), none()],
    };
    // Rows that only fill up to an aligned number have scales, too.
    let padded = |scales: &[u8]| [scales, &[0; 4 * ALIGNED]].concat();
    let scales = [gpu.upload(&padded(&scales[0]))?, gpu.upload(&padded(&scales[1]))?];
    let mut product = gpu.blas()?.product(gemm.shape, [address(gpu, &scales[0]), address(gpu, &scales[1])])?;
    if gemm.shape.scales == Scales::Blocks {
        product.factor = fp4::factor(&checked.weights) * fp4::factor(&checked.inputs);
    }
    let defines = vec![("HALF", i64::from(gemm.shape.input == Type::Fp16 || gemm.scaled == Some(Type::Fp16)))];
    let function = |name| gpu.function(&Recipe { source: CAST, function: name, defines: defines.clone(), shared: 0 });
    let around = match (gemm.cast, gemm.scaled.is_some()) {
        (true, _) => Some(function("cast")?),
        (_, true) => Some(function("scale")?),
        _ => None,
    };
    let between = if gemm.cast {
        n * width * 2
    } else if gemm.scaled.is_some() {
        bytes(Type::Int32)
    } else {
        0
    };
    let copies = Copies::new(gpu, &[weights], residency)?;
    // A cast matrix is as cold as the one it is cast from; sums are outputs, and stay where they were left.
    let stride = if gemm.cast { between.next_multiple_of(ALIGNMENT) } else { 0 };
    let mut work = GemmWork {
        gemm,
        algorithm: product.candidates[0],
        product,
        between: gpu.memory(between + stride * (copies.rotation.copies - 1))?,
        stride,
        detour: Bytes::new(2.0 * between as f64),
        copies,
        x,
        y: gpu.memory(bytes(gemm.scaled.unwrap_or(gemm.shape.output)))?,
        scales,
        around,
        checked,
    };
    work.search(gpu)?;
    Ok(work)
}

pub(super) struct GemmWork<'a> {
    gemm: Gemm,
    product: Product<'a>,
    algorithm: Algorithm,
    copies: Copies,
    x: Copies,
    /// Cast weights, or sums that are not scaled yet.
    between: CudaSlice<u8>,
    /// Bytes from one copy of them to the next.
    stride: usize,
    /// Those of one copy, written and read.
    detour: Bytes,
    y: CudaSlice<u8>,
    scales: [CudaSlice<u8>; 2],
    around: Option<CudaFunction>,
    checked: Checked,
}

impl GemmWork<'_> {
    /// Where the result is.
    pub(super) fn result(&self) -> &CudaSlice<u8> {
        &self.y
    }

    /// Keeps the fastest algorithm.
    fn search(&mut self, gpu: &Gpu) -> Result<()> {
        let (mut best, mut chosen) = (f64::INFINITY, self.algorithm);
        for algorithm in self.product.candidates.clone() {
            self.algorithm = algorithm;
            let fastest = candidate(gpu, self)?;
            if fastest < best {
                (best, chosen) = (fastest, algorithm);
            }
        }
        self.algorithm = chosen;
        if best.is_finite() { Ok(()) } else { Err(unsupported("cuBLASLt refuses every algorithm it names".to_owned())) }
    }
}

impl Work for GemmWork<'_> {
    fn kernel(&self) -> Kernel {
        self.gemm.kernel()
    }

    fn copies(&self) -> usize {
        self.copies.rotation.copies
    }

    fn times_cache(&self) -> f64 {
        self.copies.rotation.times_cache
    }

    fn detour(&self) -> Bytes {
        self.detour
    }

    fn enqueue(&self, gpu: &Gpu, copy: usize) -> Result<()> {
        let Shape { m, n, width, .. } = self.gemm.shape;
        let (w, x) = (self.copies.at(gpu, copy, 0), self.x.at(gpu, 0, 0));
        let [y, between, w_scales, x_scales] =
            [&self.y, &self.between, &self.scales[0], &self.scales[1]].map(|at| address(gpu, at));
        let between = between + (copy * self.stride) as u64;
        let geometry = Launch { blocks: gpu.multiprocessors * 16, threads: THREADS, shared: 0 };
        let integer = |value: usize| Argument::Integer(value as i32);
        match &self.around {
            Some(cast) if self.gemm.cast => {
                let at = Argument::Address;
                launch(gpu, cast, geometry, &[at(w), at(w_scales), at(between), integer(n), integer(width)])?;
                self.product.enqueue(gpu, &self.algorithm, between, x, y)
            }
            Some(scale) => {
                self.product.enqueue(gpu, &self.algorithm, w, x, between)?;
                let at = Argument::Address;
                launch(gpu, scale, geometry, &[at(between), at(w_scales), at(x_scales), at(y), integer(m), integer(n)])
            }
            None => self.product.enqueue(gpu, &self.algorithm, w, x, y),
        }
    }

    fn poison(&mut self, gpu: &Gpu) -> Result<()> {
        poison(gpu, &mut self.between)?;
        poison(gpu, &mut self.y)
    }

    fn check(&self, gpu: &Gpu) -> Result<std::result::Result<Check, String>> {
        self.checked.compare(gpu, &self.y)
    }
}
