//! What a model takes of memory, known before any of it is taken: of a processor's, or of a GPU's, by the settings.

use roofline_core::{Dim, Model, format::Sizes as Stored, units::Bytes};
use roofline_quant::Checkpoint;
use roofline_run::cuda::Architecture;

use crate::{
    Backend, Result, Settings,
    gpu::{Sizes, cache_bytes, pass_bytes},
    matrix::{Loading, Tensors},
};

/// The weights of a checkpoint. On a GPU of some architecture what no kernel reads is of 16 bit, and what is rounded on both
/// sides is there twice; further [orders](roofline_run::cuda::model::Orders) are kept only where there is room.
pub fn weights(
    checkpoint: &Checkpoint,
    model: &Model,
    settings: &Settings,
    gpu: Option<Architecture>,
) -> Result<Bytes> {
    let Some(architecture) = gpu else { return Ok(Bytes::new(checkpoint.bytes() as f64)) };
    let (settings, _) = settings.clone().on_its_backend();
    let tensors = Tensors::new(checkpoint, settings.round_inputs)?;
    let sizes = Sizes { values: settings.values, architecture, tied: model.tied };
    Ok(Bytes::new(sizes.of_checkpoint(&tensors, &Loading::new(&settings)?).bytes() as f64))
}

/// The cache of `sequences` with up to `context` tokens each.
pub fn cache(model: &Model, settings: &Settings, sequences: usize, context: usize) -> Result<Bytes> {
    let (batch, length) = (Dim::new("batch", sequences as u64)?, Dim::new("context", context as u64)?);
    Ok(match settings.backend {
        Backend::Cpu => model.kv_bytes(batch, length, Dim::ONE, settings.kv, Stored::Exact),
        Backend::Cuda { .. } => cache_bytes(model, settings.kv, sequences, context),
    })
}

/// The values of a pass of theirs, which a processor takes as they are needed.
pub fn pass(model: &Model, settings: &Settings, sequences: usize, context: usize) -> Bytes {
    match settings.backend {
        Backend::Cpu => Bytes::ZERO,
        Backend::Cuda { .. } => pass_bytes(model, settings, sequences, context),
    }
}
