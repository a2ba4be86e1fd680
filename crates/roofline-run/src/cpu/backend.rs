//! The processor behind the seam that the protocol uses.

mod activated;
mod attention;
mod elementwise;
mod linear;

use std::time::Instant;

use roofline_core::{
    Device, Op,
    measurement::{Check, Kernel, Residency, Subject},
    units::{Bytes, Hertz, Seconds},
};

use super::{affinity::Binding, buffer::Buffer, clock, machine::Machine, operands::Slots, pool::Pool};
use crate::{Backend, Case, Error, Result, interference::Interference, protocol::rotation::Rotation};
use roofline_isa::Isa;

/// Caches of a processor that does not say.
const CACHE: Bytes = Bytes::new(64e6);
/// Memory of a machine that does not say.
const MEMORY: Bytes = Bytes::new(4e9);

/// What a second call would find its operands in.
pub(crate) fn cache_of(machine: &Machine) -> Bytes {
    machine.last_level_cache().unwrap_or(CACHE)
}

/// What copies of operands may take a share of.
pub(crate) fn free_of(machine: &Machine) -> Bytes {
    machine.available.or(machine.memory).unwrap_or(MEMORY)
}

/// All cores of this machine.
pub struct Cpu {
    device: Device,
    isa: Isa,
    pool: Pool,
    binding: Binding,
    /// Copies of the operands; kept from one case to the next, because touching memory for the first time is slow.
    arena: Buffer,
    cache: Bytes,
    free: Bytes,
}

impl Cpu {
    /// The machine as `device`, with one thread per core that the process may use.
    ///
    /// # Panics
    ///
    /// Never: an empty buffer always fits.
    pub fn new(machine: &Machine, device: Device) -> Self {
        Self::held_back(machine, device, Isa::best())
    }

    /// The same with narrower instructions than the processor has.
    ///
    /// # Panics
    ///
    /// Never: an empty buffer always fits.
    pub fn held_back(machine: &Machine, device: Device, isa: Isa) -> Self {
        let arena = Buffer::from_bytes(&[]).expect("no bytes always fit");
        let mut pool = Pool::new(machine.threads);
        let binding = Binding::new(&mut pool);
        Self { device, isa, pool, binding, arena, cache: cache_of(machine), free: free_of(machine) }
    }

    /// Refuses what would not fit before anything is taken: `elements` of up to 4 bytes each, as they are and, for the few
    /// rows that are distinct, as numbers.
    fn room(&self, elements: f64) -> Result<()> {
        let needed = Bytes::new(elements * 4.0);
        if needed > self.free * 0.8 { Err(Error::Memory { needed, available: self.free }) } else { Ok(()) }
    }

    /// Memory for an operand or a result that is not rotated.
    fn memory(&self, bytes: usize) -> Result<Buffer> {
        let needed = Bytes::new(bytes as f64);
        Buffer::zeroed(bytes).ok_or(Error::Memory { needed, available: self.free })
    }

    /// Copies of `slots` in memory, as many as `residency` asks for.
    fn load(&mut self, slots: &Slots, residency: Residency) -> Result<Rotation> {
        let operands = slots.bytes();
        let short = || Error::Memory { needed: operands, available: self.free };
        let rotation = match residency {
            Residency::Cold => Rotation::cold(operands, self.cache, self.free).ok_or_else(short)?,
            Residency::Warm if operands < self.free => Rotation::warm(operands, self.cache),
            Residency::Warm => return Err(short()),
        };
        let needed = slots.stride() * rotation.copies;
        if self.arena.len() < needed {
            self.arena = Buffer::from_bytes(&[]).ok_or_else(short)?;
            self.arena = Buffer::zeroed(needed).ok_or_else(short)?;
        }
        let (stride, memory) = (slots.stride(), Shares(self.arena.as_mut_ptr()));
        let threads = self.pool.threads();
        self.pool.run(|thread| {
            let pieces = slots.pieces(thread, threads);
            for (copy, piece) in (0..rotation.copies).flat_map(|copy| pieces.iter().map(move |piece| (copy, piece))) {
                let start = memory.at(copy * stride + piece.place.start);
                // SAFETY: the arena holds all copies, and no two threads have the same piece.
                #[allow(unsafe_code)]
                let place = unsafe { std::slice::from_raw_parts_mut(start, piece.place.len()) };
                piece.write(place);
            }
        });
        Ok(rotation)
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        self.binding.release(&mut self.pool);
    }
}

/// A place in memory that several threads write different parts of.
#[derive(Clone, Copy)]
struct Shares(*mut u8);

impl Shares {
    fn at(&self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}

// SAFETY: whoever uses it writes to disjoint parts.
#[allow(unsafe_code)]
unsafe impl Send for Shares {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Shares {}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn supports(&self, subject: &Subject) -> Result<Kernel> {
        match &subject.op {
            Op::Linear(shape) => Ok(linear::kernel(&linear::plan(self, *shape, subject)?)),
            Op::ActivatedLinear(shape) => activated::kernel(self, *shape, subject),
            Op::Attention(shape) => Ok(attention::plan(self, shape, subject)?.1),
            Op::Elementwise(shape) => elementwise::kernel(self.isa, shape, subject),
            op => Err(unsupported(format!("there is no kernel for {}", op.words(&subject.site)))),
        }
    }

    fn prepare(&mut self, subject: &Subject, residency: Residency) -> Result<Box<dyn Case + '_>> {
        match &subject.op {
            Op::Linear(shape) => linear::prepare(self, *shape, subject, residency),
            Op::ActivatedLinear(shape) => activated::prepare(self, *shape, subject, residency),
            Op::Attention(shape) => attention::prepare(self, *shape, subject, residency),
            Op::Elementwise(shape) => elementwise::prepare(self, *shape, subject, residency),
            op => Err(unsupported(format!("there is no kernel for {}", op.words(&subject.site)))),
        }
    }
}

fn unsupported(reason: String) -> Error {
    Error::Unsupported { backend: "cpu", reason }
}

/// What every case on the processor does the same way.
trait Run {
    fn kernel(&self) -> Kernel;
    /// Runs on copy `copy` of the operands.
    fn run(&mut self, pool: &mut Pool, memory: &mut [u8], copy: usize);
    /// Bytes that a run writes and reads again.
    fn detour(&self) -> Bytes {
        Bytes::ZERO
    }
    /// Overwrites what an earlier case may have left where results go.
    fn poison(&mut self, _memory: &mut [u8]) {}
    /// Keeps what the last run wrote to copy 0, where results are not kept anyway.
    fn keep(&mut self, _memory: &mut [u8]) {}
    /// What the last run wrote, against a reference.
    fn check(&self) -> std::result::Result<Check, String>;
}

/// A [`Run`] with its copies.
struct CpuCase<'a, R> {
    run: R,
    pool: &'a mut Pool,
    memory: &'a mut [u8],
    rotation: Rotation,
    next: usize,
    /// The clock that the device's ceilings were measured at.
    known: Option<Hertz>,
}

impl<R: Run> Case for CpuCase<'_, R> {
    fn kernel(&self) -> Kernel {
        self.run.kernel()
    }

    fn check(&mut self) -> Result<Check> {
        self.run.poison(self.memory);
        self.run.run(self.pool, self.memory, 0);
        self.run.keep(self.memory);
        self.run.check().map_err(|reason| Error::Wrong { kernel: self.run.kernel().name, reason })
    }

    fn sample(&mut self) -> Result<Seconds> {
        self.next = (self.next + 1) % self.rotation.copies;
        let start = Instant::now();
        self.run.run(self.pool, self.memory, self.next);
        Ok(Seconds::new(start.elapsed().as_secs_f64()))
    }

    fn detour(&self) -> Bytes {
        self.run.detour()
    }

    fn overhead(&mut self) -> Seconds {
        let empty = || {
            let start = Instant::now();
            Seconds::new(start.elapsed().as_secs_f64())
        };
        (0..200).map(|_| empty()).reduce(Seconds::min).unwrap_or(Seconds::ZERO)
    }

    fn times_cache(&self) -> Option<f64> {
        Some(self.rotation.times_cache)
    }

    fn clock(&mut self) -> Option<Hertz> {
        clock::probe()
    }

    fn known_clock(&self) -> Option<Hertz> {
        self.known
    }

    fn interference(&mut self) -> Interference {
        Interference::now()
    }
}
