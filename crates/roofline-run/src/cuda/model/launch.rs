//! Kernels that may start before the one in front of them has ended: `kernels/chain.cuh` says what they wait for.

use std::ffi::c_void;

use cudarc::driver::{CudaFunction, sys};

use crate::{
    Result,
    cuda::{
        backend::Argument,
        gpu::{Gpu, failed},
    },
};

/// The oldest driver whose graphs keep such starts: CUDA 12.3.
const OLDEST: (u32, u32) = (12, 3);

/// Whether kernels of this GPU start ahead.
pub(in crate::cuda) fn chains(gpu: &Gpu) -> bool {
    let mut parts = gpu.driver.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let driver = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    gpu.architecture.major >= 9 && driver >= OLDEST
}

/// Blocks in two dimensions, threads, and dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct Grid {
    pub(in crate::cuda) blocks: (u32, u32),
    pub(in crate::cuda) threads: u32,
    pub(in crate::cuda) shared: u32,
}

impl Grid {
    pub(in crate::cuda) fn of(blocks: usize, threads: u32) -> Self {
        Self { blocks: (blocks as u32, 1), threads, shared: 0 }
    }
}

/// Asks for a kernel that was compiled as one of a chain.
pub(in crate::cuda) fn chained(gpu: &Gpu, function: &CudaFunction, grid: Grid, arguments: &[Argument]) -> Result<()> {
    let mut ahead = sys::CUlaunchAttribute_st {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue_union { programmaticStreamSerializationAllowed: 1 },
    };
    let config = sys::CUlaunchConfig_st {
        gridDimX: grid.blocks.0,
        gridDimY: grid.blocks.1,
        gridDimZ: 1,
        blockDimX: grid.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: grid.shared,
        hStream: gpu.stream().cu_stream(),
        attrs: &raw mut ahead,
        numAttrs: u32::from(chains(gpu)),
    };
    let mut places: Vec<*mut c_void> = arguments.iter().map(Argument::place).collect();
    // SAFETY: every caller passes what the kernel's source declares, with addresses of memory that is large enough and
    // outlives the call; the arguments are read before this returns.
    #[allow(unsafe_code)]
    unsafe {
        gpu.context().bind_to_thread().map_err(failed)?;
        sys::cuLaunchKernelEx(&raw const config, function.cu_function(), places.as_mut_ptr(), std::ptr::null_mut())
            .result()
            .map_err(failed)
    }
}
