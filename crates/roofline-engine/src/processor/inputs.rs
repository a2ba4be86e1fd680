//! Inputs that are rounded before they are multiplied, where a checkpoint says so. Kernels read them in the numbers of the
//! model: what was rounded is a number of the code, times its scale.

use std::sync::{Mutex, PoisonError};

use roofline_core::Format;
use roofline_quant::{Dtype, Inputs, activations::Scales};
use roofline_run::cpu::{Pool, Tensor};

use crate::{Error, Result, matrix::Matrix, values::Slot};

/// Bytes below which one thread rounds alone.
const ALONE: usize = 16 << 10;

/// What a product of that matrix reads for `x`: that, or what it is rounded to in `slot`. Products of one step share what
/// `last` says was rounded for the one before.
pub(super) fn given<'r>(
    pool: &mut Pool,
    matrix: &Matrix<'_>,
    x: Tensor<'r>,
    slot: &'r mut Slot,
    last: &mut Option<Inputs>,
) -> Result<Tensor<'r>> {
    let Some(inputs) = matrix.inputs else { return Ok(x) };
    slot.widen_to(x.columns);
    if *last != Some(inputs) {
        round(pool, inputs, x, slot.bytes_mut(x.rows))?;
        *last = Some(inputs);
    }
    Ok(slot.tensor(x.rows))
}

fn round(pool: &mut Pool, inputs: Inputs, x: Tensor<'_>, out: &mut [u8]) -> Result<()> {
    let dtype = match x.format {
        Format::BF16 => Dtype::Bf16,
        Format::FP16 => Dtype::F16,
        Format::FP32 => Dtype::F32,
        other => return Err(Error::unsupported(format!("inputs in {other}"), "they are rounded in 16 or 32 bit")),
    };
    if !inputs.fits(x.columns) {
        return Err(Error::unsupported("a product", format!("{} inputs cannot be rounded to {inputs}", x.columns)));
    }
    // A scale of all is found by one.
    if x.codes.len() < ALONE || pool.threads() == 1 || inputs.scales == Scales::Pass {
        inputs.round(dtype, x.columns, x.codes, out, &mut Vec::new());
        return Ok(());
    }
    let part = x.rows.div_ceil(pool.threads()) * x.columns * dtype.bytes();
    let parts: Vec<Mutex<(&[u8], &mut [u8])>> =
        x.codes.chunks(part).zip(out.chunks_mut(part)).map(Mutex::new).collect();
    pool.run(|index| {
        if let Some(part) = parts.get(index) {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            let (from, to) = &mut *part;
            inputs.round(dtype, x.columns, from, to, &mut Vec::new());
        }
    });
    Ok(())
}
