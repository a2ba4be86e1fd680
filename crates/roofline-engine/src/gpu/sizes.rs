//! How much of a GPU's memory weights take, before any of them is there.

use std::iter::Sum;

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

/// Bytes of weights on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// What is there in one form, however much room there is: tables, vectors, and plain rows of what is of 8 bit on both sides.
    pub(crate) fixed: u64,
    /// What each [order](roofline_run::cuda::model::Orders) takes.
    pub(crate) ordered: u64,
}

impl Taken {
    /// In one order.
    pub(crate) fn bytes(self) -> u64 {
        self.fixed + self.ordered
    }

    /// How many orders have room in so many bytes.
    pub(crate) fn orders_in(self, room: f64) -> f64 {
        (room - self.fixed as f64) / self.ordered as f64
    }
}

impl Sum for Taken {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self { fixed: sum.fixed + one.fixed, ordered: sum.ordered + one.ordered })
    }
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
    pub(crate) fn of_checkpoint(&self, tensors: &Tensors<'_>, at: &Loading) -> Taken {
        let tensor = |Header { name, vector, rows, columns, format, row_factors, inputs }: Header<'_>| {
            if vector {
                return Taken { fixed: 4 * rows as u64 * columns as u64, ordered: 0 };
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
    pub(crate) fn of_made(&self, all: &[(Key, Held<'_>)]) -> Taken {
        let step = |((_, weights), held): &(Key, Held<'_>)| -> Taken {
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

    fn matrix(&self, format: Option<Format>, inputs: Option<Inputs>, shape: (usize, usize), usage: Use) -> Taken {
        let table = 2 * shape.0 as u64 * shape.1 as u64;
        if usage == Use::Embedding && !self.tied {
            return Taken { fixed: table, ordered: 0 };
        }
        let inputs = self.narrowed(format, inputs, shape.1).filter(|_| usage != Use::Expert);
        let product = OnGpu::room(format, inputs.unwrap_or(self.values), shape);
        let table = if usage == Use::Embedding { table } else { 0 };
        let rows = if inputs.is_some() { OnGpu::rows_room(shape) } else { 0 };
        Taken { fixed: table + rows, ordered: product }
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
            let taken = sizes(architecture, false).matrix(Some(Format::FP8), inputs, (64, 128), usage);
            (taken.fixed, taken.ordered)
        };
        let (once, rows) = (64 * (128 + 2), 64 * (128 + 4));
        assert_eq!(fp8(HOPPER, None, Use::Product), (0, once));
        assert_eq!(fp8(HOPPER, Some(Format::FP8), Use::Product), (rows, once));
        assert_eq!(fp8(HOPPER, Some(Format::FP8), Use::Expert), (0, once));
        assert_eq!(fp8(HOPPER, Some(Format::INT8), Use::Product), (0, once));
        assert_eq!(fp8(ADA, Some(Format::FP8), Use::Product), (0, once));
    }

    /// A table is of 16 bit, whatever it is stored in; with a head that is tied to it, it is there as a product, too.
    #[test]
    fn an_embedding_is_a_table_and_perhaps_a_head() {
        let table = |tied| sizes(ADA, tied).matrix(Some(Format::INT8), None, (64, 128), Use::Embedding);
        assert_eq!(table(false), Taken { fixed: 64 * 256, ordered: 0 });
        assert_eq!(table(true), Taken { fixed: 64 * 256, ordered: 64 * (128 + 2) });
    }

    /// What is there once in any case takes room from the orders, and is not counted once more for each.
    #[test]
    fn orders_are_of_what_has_several() {
        let all: Taken = [Taken { fixed: 10, ordered: 20 }, Taken { fixed: 2, ordered: 4 }].into_iter().sum();
        assert_eq!((all.bytes(), all.orders_in(12.0 + 72.0)), (36, 3.0));
        assert!(Taken { fixed: 10, ordered: 0 }.orders_in(20.0) > 3.0 && all.orders_in(6.0) < 1.0);
    }
}
