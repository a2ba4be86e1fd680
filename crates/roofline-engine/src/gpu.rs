//! A model on an NVIDIA GPU: its weights in the order of their kernels, and sequences that run there.
//!
//! A pass follows the steps of the program, as on a processor. Kernels are asked for without waiting for them; a pass that
//! comes again is recorded and replayed as a whole. What is fused is what the program says, and what neighbours allow: the
//! residual sum goes into the norm behind it, turning and writing to the cache are one kernel. Of few rows both go into
//! products and attention: a layer has five kernels then, those that the program counts.

mod attention;
mod experts;
mod pass;
mod products;
mod room;
mod session;
mod sizes;
mod small;
mod upload;

use std::collections::HashMap;

use roofline_core::{Format, program::Weight, units::Bytes};
use roofline_run::cuda::{
    Architecture, Gpu,
    model::{Matrix, Memory, Orders},
};

pub(crate) use self::{
    room::{cache_bytes, pass_bytes},
    session::GpuSession,
    sizes::{Sizes, Taken},
};
use crate::{
    Error, Result,
    engine::{Backend, Record},
};

/// What a step reads: the weights it names, by its layer and its list.
type Key = (Option<usize>, &'static [Weight]);

/// A model's weights on a GPU.
pub(crate) struct GpuModel {
    gpu: Gpu,
    /// The numbers between kernels.
    values: Format,
    held: HashMap<Key, GpuHeld>,
    /// What is stored how.
    pub(crate) records: Vec<Record>,
    /// Formats that no kernel here reads, and that run as 16-bit numbers.
    widened: Vec<Format>,
    /// What inputs of some products are not rounded to, although the checkpoint says so.
    unrounded: Option<String>,
    /// In how many orders weights may be kept.
    orders: Orders,
}

/// The weights of one step.
enum GpuHeld {
    /// Rows of 16-bit numbers, by token; and the same as a product, where the head is tied to it.
    Embedding {
        table: Memory,
        head: Option<Box<GpuMatrix>>,
    },
    Products(Vec<GpuMatrix>),
    /// One matrix, or a gate and what it multiplies apart; each of all experts.
    Experts {
        matrices: Vec<GpuMatrix>,
        turns: bool,
    },
    Vectors(Vec<(Memory, Option<Memory>)>),
}

/// A matrix, and what is applied to its products.
struct GpuMatrix {
    matrix: Matrix,
    factors: Option<Memory>,
    bias: Option<Memory>,
    /// How it is stored on the GPU.
    format: Format,
}

impl GpuModel {
    /// A GPU without weights yet; `weights` says how many bytes they take there. Refuses those that there is no room for.
    pub(crate) fn open(backend: &Backend, values: Format, weights: impl FnOnce(Architecture) -> Taken) -> Result<Self> {
        let Backend::Cuda { index, kernels } = backend else {
            return Err(Error::unsupported("a GPU", "the model is to run on the processor"));
        };
        let gpu = Gpu::open(*index, kernels.clone())?;
        let (taken, free) = (weights(gpu.architecture), gpu.free()?);
        let needed = Bytes::new(taken.bytes() as f64);
        if needed > free {
            let sum = format!("{needed} for the weights, {free} free on {}; use fewer bits per weight", gpu.name);
            return Err(Error::Memory { what: "the weights".to_owned(), needed, sum: Some(sum) });
        }
        // As often as leaves half of the memory for everything else.
        let orders = match taken.orders_in(0.5 * free.value()) {
            times if times > 3.0 => Orders::All,
            times if times > 2.0 => Orders::Two,
            _ => Orders::One,
        };
        let (held, records) = (HashMap::new(), Vec::new());
        Ok(Self { gpu, values, held, records, widened: Vec::new(), unrounded: None, orders })
    }

    /// How much matrices take here.
    fn sizes(&self, tied: bool) -> Sizes {
        Sizes { values: self.values, architecture: self.gpu.architecture, tied }
    }

    /// The GPU.
    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Refuses sequences that there is no room for, before any of it is taken: for their cache, for the values of a pass, and
    /// for the matrix that is widened on the way.
    pub(crate) fn fits(&self, cache: Bytes, pass: Bytes) -> Result<()> {
        let pass = pass + Bytes::new(self.widest() as f64);
        let (needed, free) = (cache + pass, self.gpu.free()?);
        if needed <= free {
            return Ok(());
        }
        let sum = format!(
            "{cache} for the KV cache and {pass} for a pass, {free} free on {}; use a shorter context, a smaller batch or a \
             narrower cache",
            self.gpu.name
        );
        Err(Error::Memory { what: "the KV cache".to_owned(), needed, sum: Some(sum) })
    }

    /// Bytes of the weights as they are stored.
    pub(crate) fn bytes(&self) -> u64 {
        self.records.iter().map(|record| record.bytes).sum()
    }

    /// What was done otherwise than the checkpoint has it.
    pub(crate) fn notes(&self) -> Vec<String> {
        let widened = self.widened.iter();
        widened
            .map(|format| format!("no kernel of the GPU reads {format}: such weights run as {}", self.values))
            .chain(self.unrounded.iter().map(|inputs| {
                format!("inputs that the checkpoint rounds to {inputs} are multiplied as they are: the GPU has no kernel for that")
            }))
            .collect()
    }

    fn held(&self, layer: Option<usize>, weights: &'static [Weight]) -> Result<&GpuHeld> {
        let found = self.held.get(&(layer, weights));
        let tied = || self.held.get(&(None, &[Weight::Embedding])).filter(|_| weights == [Weight::Head]);
        found.or_else(tied).ok_or_else(|| Error::missing(&format!("{weights:?}")))
    }

    /// The matrices of a product.
    fn products(&self, layer: Option<usize>, weights: &'static [Weight]) -> Result<&[GpuMatrix]> {
        match self.held(layer, weights)? {
            GpuHeld::Products(matrices) | GpuHeld::Experts { matrices, .. } => Ok(matrices),
            GpuHeld::Embedding { head: Some(head), .. } => Ok(std::slice::from_ref(&**head)),
            _ => Err(Error::missing(&format!("{weights:?}"))),
        }
    }

    /// The vectors of a norm, with their biases.
    fn vectors(&self, layer: Option<usize>, weights: &'static [Weight]) -> Result<&[(Memory, Option<Memory>)]> {
        match self.held(layer, weights)? {
            GpuHeld::Vectors(vectors) => Ok(vectors),
            _ => Err(Error::missing(&format!("{weights:?}"))),
        }
    }

    /// Matrices of the same weights in every layer: what the fastest way of a product is found on.
    fn peers(&self, weights: &'static [Weight], at: usize) -> Vec<&Matrix> {
        let own = self.held.iter().filter(|((_, key), _)| *key == weights);
        own.filter_map(|(_, held)| match held {
            GpuHeld::Products(matrices) | GpuHeld::Experts { matrices, .. } => matrices.get(at),
            GpuHeld::Embedding { head, .. } => head.as_deref(),
            GpuHeld::Vectors(_) => None,
        })
        .map(|own| &own.matrix)
        .collect()
    }

    /// Whether `visits` rows of experts are sorted by them, in all layers.
    fn sorts(&self, visits: usize) -> bool {
        let experts = self.held.values().flat_map(|held| match held {
            GpuHeld::Experts { matrices, .. } => matrices.as_slice(),
            _ => &[],
        });
        Matrix::sort_visits(experts.map(|own| &own.matrix), visits)
    }

    /// Bytes of the largest matrix as rows of 16-bit numbers.
    fn widest(&self) -> usize {
        let matrices = self.held.values().flat_map(|held| match held {
            GpuHeld::Products(matrices) | GpuHeld::Experts { matrices, .. } => matrices.as_slice(),
            GpuHeld::Embedding { head, .. } => head.as_deref().map_or(&[][..], std::slice::from_ref),
            GpuHeld::Vectors(_) => &[],
        });
        matrices.filter(|own| !own.matrix.has_rows()).map(|own| own.matrix.plain_bytes()).max().unwrap_or(0)
    }
}
