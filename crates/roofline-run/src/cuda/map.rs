//! Where operands are and how a stage takes them, as the copy engine of compute capability 9.0 and later wants to know it.

use cudarc::driver::{DeviceRepr, sys};

use super::gpu::{Gpu, failed};
use crate::Result;

/// A tensor in the GPU's memory, made by the driver.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Map([u64; 16]);

// SAFETY: plain numbers, as large and as aligned as the kernels declare them.
#[allow(unsafe_code)]
unsafe impl DeviceRepr for Map {}

impl Map {
    /// Of rows of `units` times 128 bytes at `at`, taken `rows` times `steps` units at once.
    pub(super) fn new(gpu: &Gpu, at: u64, [m, units]: [usize; 2], [rows, steps]: [usize; 2]) -> Result<Self> {
        if gpu.architecture.major < 9 {
            return Ok(Self([0; 16]));
        }
        // 64 words of a unit, then rows, then units.
        Self::encoded(at, [64, m as u64, units as u64], [units as u64 * 128, 128], [64, rows as u32, steps as u32])
    }

    /// Of `rows` of `width` words, taken 64 words of `taken` rows at once.
    pub(super) fn of_rows(at: u64, [rows, width]: [usize; 2], taken: usize) -> Result<Self> {
        Self::encoded(at, [width as u64, rows as u64], [2 * width as u64], [64, taken as u32])
    }

    /// Of tokens, `pitch` words apart, of several heads of `width` words each, taken 64 words of `taken` tokens and heads at
    /// once.
    pub(super) fn of_heads(
        at: u64,
        [tokens, heads, width]: [usize; 3],
        pitch: usize,
        taken: [usize; 2],
    ) -> Result<Self> {
        let [some_tokens, some_heads] = taken.map(|count| count as u32);
        let strides = [2 * width as u64, 2 * pitch as u64];
        Self::encoded(at, [width as u64, heads as u64, tokens as u64], strides, [64, some_heads, some_tokens])
    }

    /// Of 16-bit words, whatever they stand for. All dimensions but the first have a stride, in bytes.
    fn encoded<const N: usize, const M: usize>(
        at: u64,
        sizes: [u64; N],
        strides: [u64; M],
        taken: [u32; N],
    ) -> Result<Self> {
        const { assert!(N == M + 1, "a stride for all dimensions but the first") };
        let mut map = Self([0; 16]);
        let every = [1u32; N];
        // SAFETY: as many sizes as dimensions and one stride fewer, and a place for the result.
        #[allow(unsafe_code)]
        let code = unsafe {
            sys::cuTensorMapEncodeTiled(
                (&raw mut map).cast(),
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
                N as u32,
                at as *mut std::ffi::c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                taken.as_ptr(),
                every.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        code.result().map_err(failed)?;
        Ok(map)
    }
}
