//! Somebody's own kernel, with the operands that ours have.

use cudarc::driver::{CudaFunction, CudaSlice, LaunchConfig};
use roofline_core::measurement::{Check, Kernel, Residency, Subject};

use super::{
    super::{
        gpu::{Gpu, failed},
        operand::{Copies, Part, address},
    },
    Argument, GpuCase, Work,
    linear::poison,
    start,
};
use crate::{
    Case, Result,
    own::{self, CudaKernel, Operands, Written},
};

pub(super) fn prepare<'a>(
    gpu: &'a Gpu,
    kernel: &CudaKernel,
    operands: Operands,
    subject: &Subject,
    residency: Residency,
) -> Result<Box<dyn Case + 'a>> {
    let function = gpu.own(kernel)?;
    let (mut rotated, mut held, mut places) = (Vec::new(), Vec::new(), Vec::new());
    for part in operands.parts() {
        if part.rotated {
            places.push((part.name.clone(), Place::Rotated(rotated.len())));
            rotated.push(Part { pattern: part.pattern().to_vec(), bytes: part.size() });
        } else {
            let memory = gpu.upload(&part.bytes())?;
            places.push((part.name.clone(), Place::Fixed(address(gpu, &memory))));
            held.push(memory);
        }
    }
    let copies = Copies::new(gpu, &rotated, residency)?;
    let (dtype, shape) = operands.output();
    let size = shape.iter().product::<usize>() * dtype.size();
    let y = gpu.memory(size)?;
    let argument = |argument: &own::Argument| match argument {
        own::Argument::Output => Place::Fixed(address(gpu, &y)),
        own::Argument::Count(_, count) => Place::Count(*count),
        // The manifest has none but those that are there.
        own::Argument::Array(name) => {
            places.iter().find(|(known, _)| known == name).map_or(Place::Fixed(0), |(_, at)| *at)
        }
    };
    let arguments = kernel.arguments.iter().map(argument).collect();
    let three = |[x, y, z]: [u32; 3]| (x, y, z);
    let config =
        LaunchConfig { grid_dim: three(kernel.grid), block_dim: three(kernel.block), shared_mem_bytes: kernel.shared };
    let kernel = own::kernel(kernel.name.clone(), subject);
    Ok(GpuCase::boxed(gpu, OwnKernel { kernel, function, config, copies, y, size, _held: held, arguments, operands }))
}

/// What stands for an argument.
#[derive(Clone, Copy)]
enum Place {
    /// A part of the copy that is read.
    Rotated(usize),
    Fixed(u64),
    Count(i32),
}

struct OwnKernel {
    kernel: Kernel,
    function: CudaFunction,
    config: LaunchConfig,
    copies: Copies,
    y: CudaSlice<u8>,
    /// Bytes of the result.
    size: usize,
    _held: Vec<CudaSlice<u8>>,
    arguments: Vec<Place>,
    operands: Operands,
}

impl Work for OwnKernel {
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
        let argument = |place: &Place| match *place {
            Place::Rotated(part) => Argument::Address(self.copies.at(gpu, copy, part)),
            Place::Fixed(address) => Argument::Address(address),
            Place::Count(count) => Argument::Integer(count),
        };
        let arguments: Vec<Argument> = self.arguments.iter().map(argument).collect();
        start(gpu, &self.function, self.config, &arguments)
    }

    fn poison(&mut self, gpu: &Gpu) -> Result<()> {
        poison(gpu, &mut self.y)
    }

    fn check(&self, gpu: &Gpu) -> Result<std::result::Result<Check, String>> {
        let mut bytes = vec![0; self.size];
        gpu.stream().memcpy_dtoh(&self.y.slice(..self.size), &mut bytes).map_err(failed)?;
        gpu.wait()?;
        let (dtype, shape) = self.operands.output();
        Ok(self.operands.check(&Written { dtype, shape: shape.to_vec(), bytes }))
    }
}
