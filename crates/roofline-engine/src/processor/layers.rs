//! What layers put out, kept for whoever asks how it differs between two models.

use super::{Pass, ProcessorSession};
use crate::session::LayerOutput;

/// What is kept of layers.
#[derive(Default)]
pub(super) struct Kept {
    /// Of every how many tokens; none at 0.
    every: usize,
    outputs: Vec<LayerOutput>,
}

impl ProcessorSession<'_, '_> {
    /// From now on keeps what each layer puts out, of every `every`-th token of a sequence (its first, and those at
    /// multiples of `every`); 0 keeps nothing, as a session does where nobody asks. What was kept before is let go.
    pub(crate) fn keep_layers(&mut self, every: usize) {
        self.kept = Kept { every, outputs: Vec::new() };
    }

    /// Takes what was kept since it was last taken, the first layer first; empty where nothing was.
    pub(crate) fn take_layers(&mut self) -> Vec<LayerOutput> {
        std::mem::take(&mut self.kept.outputs)
    }

    /// Keeps the stream as it is behind a layer.
    pub(super) fn keep_layer(&mut self, pass: &Pass, layer: usize) {
        let Self { kept, room, .. } = self;
        if kept.every == 0 {
            return;
        }
        let width = room.stream.width;
        let at = kept.outputs.iter().position(|own| own.layer == layer).unwrap_or(kept.outputs.len());
        if at == kept.outputs.len() {
            kept.outputs.push(LayerOutput { layer, width, values: Vec::new() });
        }
        let rows = room.stream.tensor(pass.rows()).codes.chunks_exact(room.stream.row());
        for (_, row) in pass.positions.iter().zip(rows).filter(|(position, _)| position.is_multiple_of(kept.every)) {
            let numbers = row.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            kept.outputs[at].values.extend(numbers);
        }
    }
}
