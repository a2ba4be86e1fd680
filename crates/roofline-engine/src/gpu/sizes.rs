//! How much of a GPU's memory weights take, before any of them is there.

use roofline_core::{Format, program::Weight};
use roofline_quant::Inputs;
use roofline_run::cuda::{Architecture, model::Matrix as OnGpu};

use crate::{
    matrix::{Header, Loading, Matrix, Tensors},
    weights::{Held, Key},
};

/// What decides it beside the weights themselves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// The numbers between kernels.
    pub(crate) values: Format,
    pub(crate) architecture: Architecture,
    /// Whether the head is the embedding.
    pub(crate) tied: bool,
}

/// What a matrix is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Its rows are looked up; and multiplied, where the head is tied to them.
    Embedding,
    Product,
    Expert,
}

impl Sizes {
    /// Bytes of a checkpoint's weights, each matrix kept in one order. Experts whose scales of whole tensors differ, which is
    /// not known before they are read, are counted as they are stored.
    pub(crate) fn of_checkpoint(&self, tensors: &Tensors<'_>, at: &Loading) -> u64 {
        let tensor = |Header { name, vector, rows, columns, format, row_factors, inputs }: Header<'_>| {
            if vector {
                return 4 * rows as u64 * columns as u64;
            }
            let expert = name.contains(".experts.");
            // Products of chosen experts have no place for a factor per row.
            let format = format.filter(|_| !(expert && row_factors));
            let usage = match name {
                name if name.ends_with("embed_tokens.weight") => Use::Embedding,
                _ if expert => Use::Expert,
                _ => Use::Product,
            };
            self.matrix(format, inputs, (rows, columns), usage)
        };
        tensors.headers(at).map(tensor).sum()
    }

    /// The same of weights that were made up.
    pub(crate) fn of_made(&self, all: &[(Key, Held<'_>)]) -> u64 {
        let step = |((_, weights), held): &(Key, Held<'_>)| -> u64 {
            let usage = match held {
                Held::Experts { .. } => Use::Expert,
                _ if *weights == [Weight::Embedding] => Use::Embedding,
                _ => Use::Product,
            };
            let bytes =
                |matrix: &Matrix<'_>| self.matrix(matrix.format(), matrix.inputs, (matrix.rows, matrix.columns), usage);
            held.matrices(weights).map(|(_, matrix)| bytes(matrix)).sum()
        };
        all.iter().map(step).sum()
    }

    fn matrix(&self, format: Option<Format>, inputs: Option<Inputs>, shape: (usize, usize), usage: Use) -> u64 {
        let table = 2 * shape.0 as u64 * shape.1 as u64;
        if usage == Use::Embedding && !self.tied {
            return table;
        }
        let inputs = self.narrowed(format, inputs, shape.1).filter(|_| usage != Use::Expert);
        let product = OnGpu::room(format, inputs.unwrap_or(self.values), shape);
        if usage == Use::Embedding { table + product } else { product }
    }

    /// What inputs of a product are rounded to where both sides have kernels for that, of few rows and of many; others are
    /// multiplied as they are.
    pub(super) fn narrowed(&self, format: Option<Format>, inputs: Option<Inputs>, columns: usize) -> Option<Format> {
        let inputs = inputs.and_then(|inputs| inputs.format()).filter(|inputs| format == Some(*inputs))?;
        let packs = OnGpu::packs(inputs, inputs, columns) && columns.is_multiple_of(16);
        (packs && OnGpu::narrows_on(self.architecture, inputs)).then_some(inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOPPER: Architecture = Architecture { major: 9, minor: 0 };
    const ADA: Architecture = Architecture { major: 8, minor: 9 };

    fn sizes(architecture: Architecture, tied: bool) -> Sizes {
        Sizes { values: Format::BF16, architecture, tied }
    }

    /// Rows of 8 bit are there twice where inputs are of 8 bit as well, which is for one matrix on one architecture.
    #[test]
    fn what_is_rounded_is_there_twice() {
        let fp8 = |architecture, inputs: Option<Format>, usage| {
            let inputs = inputs.and_then(Inputs::of);
            sizes(architecture, false).matrix(Some(Format::FP8), inputs, (64, 128), usage)
        };
        let (once, twice) = (64 * (128 + 2), 64 * (128 + 2) + 64 * (128 + 4));
        assert_eq!(fp8(HOPPER, None, Use::Product), once);
        assert_eq!(fp8(HOPPER, Some(Format::FP8), Use::Product), twice);
        assert_eq!(fp8(HOPPER, Some(Format::FP8), Use::Expert), once);
        assert_eq!(fp8(HOPPER, Some(Format::INT8), Use::Product), once);
        assert_eq!(fp8(ADA, Some(Format::FP8), Use::Product), once);
    }

    /// A table is of 16 bit, whatever it is stored in; with a head that is tied to it, it is there as a product, too.
    #[test]
    fn an_embedding_is_a_table_and_perhaps_a_head() {
        let table = |tied| sizes(ADA, tied).matrix(Some(Format::INT8), None, (64, 128), Use::Embedding);
        assert_eq!((table(false), table(true)), (64 * 256, 64 * 256 + 64 * (128 + 2)));
    }
}
