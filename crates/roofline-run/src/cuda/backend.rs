//! A GPU behind the seam that the protocol uses.

mod activated;
mod attention;
mod elementwise;
mod experts;
mod fp4;
mod gemm_cublaslt;
mod linear;
mod own;
mod prefill;
mod tiled;

pub(crate) use linear::PACKED_BYTES_ROWS;
pub(crate) use tiled::CONTESTED_ROWS;

use std::sync::Arc;

use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use roofline_core::{
    Device, Dim, Op,
    measurement::{Check, Kernel, Measurement, Residency, Subject},
    units::{Bytes, Seconds},
};

use super::{
    ceilings,
    gpu::{Gpu, Recipe, failed},
    map::Map,
    model::{Grid, chained},
    replay::Replay,
};
use crate::{
    Backend, Case, Error, Protocol, Result,
    backend::Ceiling,
    measure::measure_case,
    own::{CudaKernel, Operands},
    protocol::Look,
    telemetry::{self, Source},
};

/// One NVIDIA GPU.
pub struct Cuda {
    gpu: Gpu,
    device: Device,
}

impl Cuda {
    /// `gpu`, whose data-sheet is `device`.
    pub fn new(gpu: Gpu, device: Device) -> Self {
        Self { gpu, device }
    }

    /// The GPU itself.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Measures somebody's kernel as ours are: compiled, checked, replayed from a graph.
    pub fn measure_own(
        &self,
        kernel: &CudaKernel,
        operands: Operands,
        subject: &Subject,
        protocol: &Protocol,
    ) -> Result<Measurement> {
        let power = protocol.watch.map(|_| self.power()).transpose()?;
        let case = own::prepare(&self.gpu, kernel, operands, subject, protocol.residency)?;
        measure_case(case, self.name(), &self.device, subject, protocol, power).map_err(|error| match error {
            Error::Wrong { kernel, reason } => Error::WrongOwn { kernel, reason },
            Error::GpuLost { reason } => Error::BrokeGpu { kernel: kernel.name.clone(), reason },
            error => error,
        })
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn lost(&self) -> Option<Error> {
        self.gpu.lost()
    }

    fn facts(&self) -> Vec<(String, String)> {
        self.gpu.facts()
    }

    fn power(&self) -> Result<Arc<dyn Source>> {
        Ok(Arc::new(self.gpu.telemetry()?))
    }

    fn ceilings(&mut self) -> Result<Vec<Ceiling>> {
        ceilings::measure(&self.gpu)
    }

    fn supports(&self, subject: &Subject) -> Result<Kernel> {
        match &subject.op {
            Op::Linear(shape) => linear::Plan::of(*shape, subject, self.gpu.architecture).map(|plan| plan.kernel()),
            Op::ActivatedLinear(shape) => activated::kernel(*shape, subject, self.gpu.architecture),
            Op::Attention(shape) if shape.queries == Dim::ONE => {
                attention::plan(shape, subject).map(|plan| plan.kernel(self.gpu.architecture.major))
            }
            Op::Attention(shape) => prefill::kernel(&self.gpu, shape, subject),
            Op::Experts(shape) => experts::kernel(*shape, subject, self.gpu.architecture),
            Op::Elementwise(_) | Op::Softmax(_) => elementwise::plan(subject).map(|plan| plan.kernel()),
            op => Err(unsupported(format!("there is no kernel for {}", op.words(&subject.site)))),
        }
    }

    fn prepare(&mut self, subject: &Subject, residency: Residency) -> Result<Box<dyn Case + '_>> {
        match &subject.op {
            Op::Linear(shape) => linear::prepare(&self.gpu, *shape, subject, residency),
            Op::ActivatedLinear(shape) => activated::prepare(&self.gpu, *shape, subject, residency),
            Op::Attention(shape) if shape.queries == Dim::ONE => {
                attention::prepare(&self.gpu, *shape, subject, residency)
            }
            Op::Attention(shape) => prefill::prepare(&self.gpu, *shape, subject, residency),
            Op::Experts(shape) => experts::prepare(&self.gpu, *shape, subject, residency),
            Op::Elementwise(_) | Op::Softmax(_) => elementwise::prepare(&self.gpu, subject, residency),
            op => Err(unsupported(format!("there is no kernel for {}", op.words(&subject.site)))),
        }
    }
}

/// Programs of kernels that have no module of their own.
pub(super) fn sources() -> Vec<(String, Recipe)> {
    [linear::sources(), gemm_cublaslt::sources()].concat()
}

fn unsupported(reason: String) -> Error {
    Error::Unsupported { backend: "cuda", reason }
}

/// What every case on a GPU does the same way.
trait Work {
    fn kernel(&self) -> Kernel;
    /// Copies of the operands.
    fn copies(&self) -> usize;
    /// Bytes of all copies over the second-level cache.
    fn times_cache(&self) -> f64;
    /// Bytes that a call writes and reads again.
    fn detour(&self) -> Bytes {
        Bytes::ZERO
    }
    /// Asks for one call on copy `copy`.
    fn enqueue(&self, gpu: &Gpu, copy: usize) -> Result<()>;
    /// Overwrites what an earlier call may have left where results go: all bits set, which is NaN in every float.
    fn poison(&mut self, gpu: &Gpu) -> Result<()>;
    /// What the last call wrote for copy 0, against a reference.
    fn check(&self, gpu: &Gpu) -> Result<std::result::Result<Check, String>>;
}

/// A [`Work`] with the graph that times it.
struct GpuCase<'a, W> {
    gpu: &'a Gpu,
    work: W,
    replay: Option<Replay>,
    /// What tells its clock; none where the driver's library for that is missing.
    telemetry: Option<telemetry::Gpu>,
}

impl<'a, W: Work + 'a> GpuCase<'a, W> {
    fn boxed(gpu: &'a Gpu, work: W) -> Box<dyn Case + 'a> {
        Box::new(Self { gpu, work, replay: None, telemetry: gpu.telemetry().ok() })
    }
}

impl<W: Work> Case for GpuCase<'_, W> {
    fn kernel(&self) -> Kernel {
        self.work.kernel()
    }

    fn check(&mut self) -> Result<Check> {
        self.work.poison(self.gpu)?;
        self.work.enqueue(self.gpu, 0)?;
        self.gpu.wait()?;
        let checked = self.work.check(self.gpu)?;
        checked.map_err(|reason| Error::Wrong { kernel: self.work.kernel().name, reason })
    }

    fn sample(&mut self) -> Result<Seconds> {
        let replay = match self.replay.take() {
            Some(replay) => replay,
            None => time(self.gpu, &self.work)?,
        };
        self.replay.insert(replay).sample(self.gpu)
    }

    fn detour(&self) -> Bytes {
        self.work.detour()
    }

    fn calls(&self) -> u64 {
        self.replay.as_ref().map_or(1, Replay::calls)
    }

    fn times_cache(&self) -> Option<f64> {
        Some(self.work.times_cache())
    }

    fn look(&mut self) -> Look {
        self.telemetry.as_ref().map_or_else(Look::default, |source| Look::of(source))
    }
}

/// A graph of `work` on all its copies.
fn time(gpu: &Gpu, work: &impl Work) -> Result<Replay> {
    Replay::new(gpu, work.copies(), &mut |copy| work.enqueue(gpu, copy))
}

/// The shortest time of a call in seconds, of three replays: enough to choose by.
fn fastest(gpu: &Gpu, work: &impl Work) -> Result<f64> {
    let replay = time(gpu, work)?;
    let samples = (0..3).map(|_| replay.sample(gpu).map(Seconds::value)).collect::<Result<Vec<f64>>>()?;
    Ok(samples.into_iter().fold(f64::INFINITY, f64::min))
}

/// The same for one of several ways: one that this GPU or its library refuses is no candidate, and infinitely slow.
fn candidate(gpu: &Gpu, work: &impl Work) -> Result<f64> {
    match fastest(gpu, work) {
        Err(Error::Gpu { .. }) => Ok(f64::INFINITY),
        other => other,
    }
}

/// What a kernel is called with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument {
    Address(u64),
    Integer(i32),
    Count(u64),
    Real(f32),
    Map(Map),
}

impl Argument {
    /// Where it is, as the driver wants to know.
    pub(super) fn place(&self) -> *mut std::ffi::c_void {
        match self {
            Self::Address(number) | Self::Count(number) => std::ptr::from_ref(number).cast_mut().cast(),
            Self::Integer(number) => std::ptr::from_ref(number).cast_mut().cast(),
            Self::Real(number) => std::ptr::from_ref(number).cast_mut().cast(),
            Self::Map(map) => std::ptr::from_ref(map).cast_mut().cast(),
        }
    }
}

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launch {
    pub(super) blocks: u32,
    pub(super) threads: u32,
    pub(super) shared: u32,
}

/// Asks for a kernel.
pub(super) fn launch(gpu: &Gpu, function: &CudaFunction, launch: Launch, arguments: &[Argument]) -> Result<()> {
    let Launch { blocks, threads, shared } = launch;
    let config = LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: shared };
    start(gpu, function, config, arguments)
}

/// The same for a kernel that itself waits for the one before it (`griddepcontrol.wait`), and may start while that ends.
pub(super) fn launch_early(gpu: &Gpu, function: &CudaFunction, launch: Launch, arguments: &[Argument]) -> Result<()> {
    let Launch { blocks, threads, shared } = launch;
    chained(gpu, function, Grid { blocks: (blocks, 1), threads, shared }, arguments)
}

/// The same in three dimensions.
fn start(gpu: &Gpu, function: &CudaFunction, config: LaunchConfig, arguments: &[Argument]) -> Result<()> {
    let mut builder = gpu.stream().launch_builder(function);
    for argument in arguments {
        match argument {
            Argument::Address(number) | Argument::Count(number) => builder.arg(number),
            Argument::Integer(number) => builder.arg(number),
            Argument::Real(number) => builder.arg(number),
            Argument::Map(map) => builder.arg(map),
        };
    }
    // SAFETY: every caller passes what the kernel's source declares, with addresses of memory that is large enough and
    // outlives the call. What somebody's own kernel does with it is theirs.
    #[allow(unsafe_code)]
    unsafe { builder.launch(config) }.map_err(failed)?;
    Ok(())
}
