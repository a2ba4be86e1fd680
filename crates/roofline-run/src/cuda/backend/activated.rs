//! Linear layers with the activation function behind them. Up to [`THIN_ROWS`](crate::cuda::THIN_ROWS) the function is in the product's own kernel; above,
//! products of cuBLASLt write what another kernel reads.

use cudarc::driver::{CudaFunction, CudaSlice};
use roofline_core::{
    Dim, Format, Op, Precision,
    measurement::{Check, Kernel, Residency, Subject},
    op::{ActivatedLinear, Elementwise, ElementwiseKind, Linear},
    units::Bytes,
};

use super::{
    super::{
        compiler::Architecture,
        elementwise::Rows,
        gemv_packed::{Activation, Stored, Thin},
        gpu::{Gpu, failed},
        operand::{Operand, address},
    },
    Argument, GpuCase, Launch, Work, gemm_cublaslt, launch,
    linear::{Checked, Plan, poison, thin_work, through},
    unsupported,
};
use crate::{
    Case, Result, reference,
    tolerance::{decoded, limit, sample},
};

/// The product without its function, which is what chooses the kernel.
fn plain(shape: ActivatedLinear, subject: &Subject, architecture: Architecture) -> Result<Plan> {
    let formats = &subject.formats;
    if !matches!(formats.activations, Format::BF16 | Format::FP16) {
        let reason = format!("no kernel of ours rounds an activation function to {}", formats.activations);
        return Err(unsupported(reason));
    }
    // The product writes 16 bit; the function narrows what it writes itself.
    let wide = Subject { formats: Precision { output: formats.query, ..*formats }, ..subject.clone() };
    match Plan::of(shape.linear, &wide, architecture)? {
        Plan::Thin(thin) => {
            let activation = if shape.gated { Activation::Gated } else { Activation::Silu };
            Ok(Plan::Thin(Thin { activation, ..thin }))
        }
        Plan::Tiled(tiled) => Err(unsupported(format!(
            "for {} rows no kernel follows a product of {} weights with its activation function yet",
            tiled.m, formats.weights
        ))),
        plan => Ok(plan),
    }
}

pub(super) fn kernel(shape: ActivatedLinear, subject: &Subject, architecture: Architecture) -> Result<Kernel> {
    plain(shape, subject, architecture).map(|plan| named(&plan, shape.gated))
}

fn named(plan: &Plan, gated: bool) -> Kernel {
    let kernel = plan.kernel();
    let function = if gated { "silu_mul" } else { "silu" };
    let name = match plan {
        Plan::Gemm(_) if gated => format!("2 x {}, {function}", kernel.name),
        Plan::Gemm(_) => format!("{}, {function}", kernel.name),
        _ => format!("{} {function}", kernel.name),
    };
    Kernel { name, ..kernel }
}

pub(super) fn prepare<'a>(
    gpu: &'a Gpu,
    shape: ActivatedLinear,
    subject: &Subject,
    residency: Residency,
) -> Result<Box<dyn Case + 'a>> {
    let formats = &subject.formats;
    let [m, n, k] = [shape.linear.m, shape.linear.n, shape.linear.k].map(|dim| dim.get() as usize);
    let plan = plain(shape, subject, gpu.architecture)?;
    let kernel = named(&plan, shape.gated);
    let matrices = if shape.gated { 2 } else { 1 };
    let weights = (0..matrices)
        .map(|at| Operand::new(formats.weights, n, k, 1.0 / (k as f32).sqrt(), 11 + at))
        .collect::<Result<Vec<Operand>>>()?;
    let inputs = Operand::new(formats.activations, m, k, 1.0, 2)?;
    let through = through(&plan, formats.weights);
    let result = Activated { weights, inputs, output: formats.activations, through };
    match plan {
        // The kernel takes one scale for both matrices, and each of two tensors has its own.
        Plan::Thin(thin) if thin.stored == Stored::Nvfp4 && shape.gated => {
            let same = result.weights[0].encoded.tensor == result.weights[1].encoded.tensor;
            let shared = if same { result } else { result.sharing()? };
            thin_case(gpu, thin, kernel, shared, residency)
        }
        Plan::Thin(thin) => thin_case(gpu, thin, kernel, result, residency),
        Plan::Gemm(product) => {
            let rows = function(shape, formats)?;
            let products = result
                .weights
                .iter()
                .map(|weights| {
                    let (weights, inputs) = (weights.clone(), result.inputs.clone());
                    let checked = Checked { weights, inputs, output: formats.query, pitch: product.pitch(), through };
                    gemm_cublaslt::work(gpu, product, checked, residency)
                })
                .collect::<Result<Vec<gemm_cublaslt::GemmWork<'a>>>>()?;
            let y = gpu.memory(m * n * 2)?;
            let function = gpu.function(&rows.recipe())?;
            Ok(GpuCase::boxed(gpu, Sequence { kernel, products, rows, function, y, result }))
        }
        Plan::Fp32 | Plan::Tiled(_) => {
            Err(unsupported("no kernel follows such a product with its activation function".to_owned()))
        }
    }
}

fn thin_case<'a>(
    gpu: &'a Gpu,
    thin: Thin,
    kernel: Kernel,
    result: Activated,
    residency: Residency,
) -> Result<Box<dyn Case + 'a>> {
    let (weights, inputs) = (result.weights.clone(), result.inputs.clone());
    let check = Box::new(move |gpu: &Gpu, y: &CudaSlice<u8>| result.compare(gpu, y));
    Ok(GpuCase::boxed(gpu, thin_work(gpu, thin, kernel, &weights, &inputs, residency, check)?))
}

/// The kernel of the function alone.
fn function(shape: ActivatedLinear, formats: &Precision) -> Result<Rows> {
    let Linear { m, n, .. } = shape.linear;
    let kind = if shape.gated { ElementwiseKind::GatedActivation } else { ElementwiseKind::Activation };
    let op = Op::Elementwise(Elementwise { kind, tokens: u128::from(m.get()), vectors: Dim::ONE, width: n });
    let formats = Precision { output: formats.query, ..*formats };
    Rows::of(&op, &formats).map_err(unsupported)
}

/// What should come out.
struct Activated {
    weights: Vec<Operand>,
    inputs: Operand,
    output: Format,
    through: Format,
}

impl Activated {
    /// The same with the gate's numbers for both matrices: kernels know one scale per tensor. Mixed-up matrices would not
    /// show here; every other format shows them.
    fn sharing(self) -> Result<Self> {
        let first = self.weights.first().cloned();
        let gate = first.ok_or_else(|| unsupported("no weights".to_owned()))?;
        Ok(Self { weights: vec![gate.clone(), gate], ..self })
    }

    /// Every output of a few rows.
    fn compare(&self, gpu: &Gpu, y: &CudaSlice<u8>) -> Result<std::result::Result<Check, String>> {
        let (rows, n) = (sample(self.inputs.rows), self.weights[0].rows);
        let distinct: Vec<usize> = rows.iter().map(|row| row % self.inputs.distinct()).collect();
        let product = |weights: &Operand| {
            let columns: Vec<usize> = (0..weights.distinct()).collect();
            reference::linear::linear(&self.inputs.values, &weights.values, weights.columns, &distinct, &columns)
        };
        let all: Vec<Vec<f64>> = self.weights.iter().map(product).collect();
        let columns = self.weights[0].distinct();
        let (mut result, mut expected) = (Vec::new(), Vec::new());
        for (at, row) in rows.iter().enumerate() {
            let mut bytes = vec![0; n * 2];
            gpu.stream().memcpy_dtoh(&y.slice(row * n * 2..(row + 1) * n * 2), &mut bytes).map_err(failed)?;
            gpu.wait()?;
            result.extend(decoded(&bytes, self.output));
            expected.extend((0..n).map(|column| {
                let place = at * columns + column % columns;
                let gate = all[0][place];
                let silu = gate / (1.0 + (-gate).exp());
                all.get(1).map_or(silu, |up| silu * up[place])
            }));
        }
        // What the function reads may have been rounded once, so twice the usual is allowed.
        Ok(Check::of(&result, &expected, 2.0 * limit(self.output, self.through)))
    }
}

/// Products, then the function.
struct Sequence<'a> {
    kernel: Kernel,
    products: Vec<gemm_cublaslt::GemmWork<'a>>,
    rows: Rows,
    function: CudaFunction,
    y: CudaSlice<u8>,
    result: Activated,
}

impl Work for Sequence<'_> {
    fn kernel(&self) -> Kernel {
        self.kernel.clone()
    }

    fn copies(&self) -> usize {
        // Both rotate together; the second may have had room for fewer copies than the first.
        self.products.iter().map(Work::copies).min().unwrap_or(1)
    }

    fn times_cache(&self) -> f64 {
        self.products.iter().map(Work::times_cache).sum()
    }

    /// What the products write and the function reads, and the products' own.
    fn detour(&self) -> Bytes {
        let own =
            |product: &gemm_cublaslt::GemmWork<'_>| product.detour() + Bytes::new(2.0 * product.result().len() as f64);
        self.products.iter().map(own).sum()
    }

    fn enqueue(&self, gpu: &Gpu, copy: usize) -> Result<()> {
        self.products.iter().try_for_each(|product| product.enqueue(gpu, copy))?;
        let read = self.products.iter().map(|product| Argument::Address(address(gpu, product.result())));
        let count = (self.rows.rows() * self.rows.width) as u64;
        let rest = [Argument::Address(address(gpu, &self.y)), Argument::Count(count)];
        let geometry = Launch { blocks: self.rows.blocks() as u32, threads: self.rows.threads() as u32, shared: 0 };
        launch(gpu, &self.function, geometry, &read.chain(rest).collect::<Vec<Argument>>())
    }

    fn poison(&mut self, gpu: &Gpu) -> Result<()> {
        self.products.iter_mut().try_for_each(|product| product.poison(gpu))?;
        poison(gpu, &mut self.y)
    }

    fn check(&self, gpu: &Gpu) -> Result<std::result::Result<Check, String>> {
        self.result.compare(gpu, &self.y)
    }
}
