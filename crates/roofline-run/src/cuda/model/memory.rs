//! Memory of a GPU.

use cudarc::driver::CudaSlice;

use crate::{
    Error, Result,
    cuda::{
        gpu::{Gpu, failed},
        operand::address,
    },
};

/// A piece of a GPU's memory, given back when it is dropped.
pub struct Memory {
    slice: CudaSlice<u8>,
    address: u64,
    bytes: usize,
}

impl Memory {
    /// Bytes of any value.
    pub fn new(gpu: &Gpu, bytes: usize) -> Result<Self> {
        let slice = gpu.memory(bytes).map_err(Error::of_model)?;
        let address = address(gpu, &slice);
        Ok(Self { slice, address, bytes })
    }

    /// Zeros.
    pub fn zeroed(gpu: &Gpu, bytes: usize) -> Result<Self> {
        let mut made = Self::new(gpu, bytes)?;
        gpu.stream().memset_zeros(&mut made.slice).map_err(failed)?;
        Ok(made)
    }

    /// All bits set.
    pub fn filled(gpu: &Gpu, bytes: usize) -> Result<Self> {
        let block = vec![0xff; bytes.min(1 << 22)];
        let mut made = Self::new(gpu, bytes)?;
        for at in (0..bytes).step_by(block.len().max(1)) {
            made.write(gpu, at, &block[..block.len().min(bytes - at)])?;
        }
        Ok(made)
    }

    /// A copy of `bytes`.
    pub fn of(gpu: &Gpu, bytes: &[u8]) -> Result<Self> {
        let mut made = Self::new(gpu, bytes.len())?;
        made.write(gpu, 0, bytes)?;
        Ok(made)
    }

    /// The same of numbers.
    pub fn of_floats(gpu: &Gpu, numbers: &[f32]) -> Result<Self> {
        Self::of(gpu, &numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>())
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Where its `at`-th byte is.
    ///
    /// # Panics
    ///
    /// Where it has no such byte.
    pub fn at(&self, at: usize) -> u64 {
        assert!(at <= self.bytes, "byte {at} of {}", self.bytes);
        self.address + at as u64
    }

    /// How much it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `bytes` to its place `at`, behind everything that was asked for before.
    pub fn write(&mut self, gpu: &Gpu, at: usize, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        gpu.stream().memcpy_htod(bytes, &mut self.slice.slice_mut(at..at + bytes.len())).map_err(failed)
    }

    /// Copies its first bytes out, when everything that was asked for before is done.
    pub fn read(&self, gpu: &Gpu, out: &mut [u8]) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        gpu.stream().memcpy_dtoh(&self.slice.slice(..out.len()), out).map_err(failed)?;
        gpu.wait()
    }
}
