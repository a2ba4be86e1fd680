//! Operands on the GPU: real numbers in their stored format, a few distinct rows repeated.

use std::ops::Range;

use cudarc::driver::CudaSlice;
use roofline_core::{Dim, Format, format::Encoded, measurement::Residency, units::Bytes};

use super::gpu::{Gpu, failed};
use crate::{
    Result,
    protocol::{replay::MOST, rotation::Rotation},
    random::Random,
};

/// Distinct rows of a tensor: a prime above the 16 rows that a tensor unit takes, so that mixed-up rows show.
pub(super) const DISTINCT: usize = 17;
/// Parts of a copy start on this many bytes.
const LINE: usize = 256;

/// A tensor's distinct rows.
#[derive(Clone)]
pub(super) struct Operand {
    pub(super) encoded: Encoded,
    /// What they decode to.
    pub(super) values: Vec<f32>,
    /// Rows of the whole tensor.
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Operand {
    /// `rows` of normally distributed numbers of standard deviation `scale`; equal seeds give equal numbers.
    pub(super) fn new(format: Format, rows: usize, columns: usize, scale: f32, seed: u64) -> Result<Self> {
        let mut random = Random(seed);
        let distinct = rows.min(DISTINCT);
        let values: Vec<f32> = (0..distinct * columns).map(|_| random.normal() * scale).collect();
        let encoded = format.encode(&values, Dim::new("columns", columns as u64)?)?;
        let values = encoded.decode();
        Ok(Self { encoded, values, rows, columns })
    }

    /// Distinct rows.
    pub(super) fn distinct(&self) -> usize {
        self.encoded.rows()
    }

    /// One period of plain rows, each padded with zeros to `width` elements.
    pub(super) fn plain(&self, width: usize) -> Vec<u8> {
        let bits = self.encoded.format().nominal_bits() as usize;
        let (row, padded) = (self.columns * bits / 8, width * bits / 8);
        let mut bytes = vec![0; self.distinct() * padded];
        for (from, to) in self.encoded.codes.chunks(row).zip(bytes.chunks_mut(padded)) {
            to[..row].copy_from_slice(from);
        }
        bytes
    }

    /// BF16 scales of all rows.
    pub(super) fn row_scales(&self) -> Vec<u8> {
        let scale = |row: usize| &self.encoded.scales[row % self.distinct() * 2..][..2];
        (0..self.rows).flat_map(|row| scale(row).to_vec()).collect()
    }
}

/// A part of a copy: a pattern that repeats to a length.
pub(super) struct Part {
    pub(super) pattern: Vec<u8>,
    pub(super) bytes: usize,
}

/// Several copies of several tensors, past the second-level cache.
pub(super) struct Copies {
    memory: CudaSlice<u8>,
    offsets: Vec<usize>,
    sizes: Vec<usize>,
    stride: usize,
    pub(super) rotation: Rotation,
}

impl Copies {
    /// As many copies of `parts` as `residency` asks for.
    pub(super) fn new(gpu: &Gpu, parts: &[Part], residency: Residency) -> Result<Self> {
        let mut stride = 0;
        let mut offsets = Vec::new();
        for part in parts {
            offsets.push(stride);
            stride += part.bytes.next_multiple_of(LINE);
        }
        let (operands, free) = (Bytes::new(stride as f64), gpu.free()?);
        let rotation = match residency {
            Residency::Cold => {
                let short = || gpu.shortage(Rotation::least(operands), free);
                let rotation = Rotation::cold(operands, gpu.l2, free).ok_or_else(short)?;
                // A graph of more kernels than this takes longer to make than it says; what then stays in the cache is warned of.
                let copies = rotation.copies.min(MOST);
                Rotation { copies, times_cache: operands * copies as f64 / gpu.l2 }
            }
            Residency::Warm if operands < free => Rotation::warm(operands, gpu.l2),
            Residency::Warm => return Err(gpu.shortage(operands, free)),
        };
        let mut memory = gpu.memory(stride * rotation.copies)?;
        for (part, offset) in parts.iter().zip(&offsets) {
            fill(gpu, &mut memory, *offset, part)?;
        }
        // Each turn copies everything that is there already behind it, until all copies are there.
        let mut done = stride;
        let all = stride * rotation.copies;
        while done < all {
            let length = done.min(all - done);
            let (from, mut to) = memory.split_at_mut(done);
            gpu.stream().memcpy_dtod(&from.slice(..length), &mut to.slice_mut(..length)).map_err(failed)?;
            done += length;
        }
        gpu.wait()?;
        let sizes = parts.iter().map(|part| part.bytes).collect();
        Ok(Self { memory, offsets, sizes, stride, rotation })
    }

    /// Address of a part of a copy.
    pub(super) fn at(&self, gpu: &Gpu, copy: usize, part: usize) -> u64 {
        assert!(copy < self.rotation.copies, "copy {copy} of {}", self.rotation.copies);
        address(gpu, &self.memory) + (copy * self.stride + self.offsets[part]) as u64
    }

    /// Sets all bits of a part of the first copy.
    pub(super) fn poison(&mut self, gpu: &Gpu, part: usize) -> Result<()> {
        let bytes = self.sizes[part];
        fill(gpu, &mut self.memory, self.offsets[part], &Part { pattern: vec![0xff; bytes.min(1 << 16)], bytes })?;
        gpu.wait()
    }

    /// Bytes of a part of the first copy.
    pub(super) fn read(&self, gpu: &Gpu, part: usize, range: Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; range.len()];
        let start = self.offsets[part] + range.start;
        gpu.stream().memcpy_dtoh(&self.memory.slice(start..start + bytes.len()), &mut bytes).map_err(failed)?;
        gpu.wait()?;
        Ok(bytes)
    }
}

/// Repeats a pattern over its part: uploaded once, then doubled.
fn fill(gpu: &Gpu, memory: &mut CudaSlice<u8>, offset: usize, part: &Part) -> Result<()> {
    let first = part.pattern.len().min(part.bytes);
    if first == 0 {
        return Ok(());
    }
    gpu.stream().memcpy_htod(&part.pattern[..first], &mut memory.slice_mut(offset..offset + first)).map_err(failed)?;
    let mut done = first;
    while done < part.bytes {
        let length = done.min(part.bytes - done);
        let (from, mut to) = memory.split_at_mut(offset + done);
        gpu.stream().memcpy_dtod(&from.slice(offset..offset + length), &mut to.slice_mut(..length)).map_err(failed)?;
        done += length;
    }
    Ok(())
}

/// Where memory is.
pub(super) fn address(gpu: &Gpu, memory: &CudaSlice<u8>) -> u64 {
    use cudarc::driver::DevicePtr;
    memory.device_ptr(gpu.stream()).0
}
