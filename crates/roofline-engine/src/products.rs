//! Plans of products, kept while a session lasts: planning takes memory, and a pass has few shapes.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex},
};

use roofline_core::{Dim, Format, Math, Precision, op::Linear};
use roofline_isa::Isa;
use roofline_run::cpu::{
    Pool, Tensor,
    kernels::{
        elementwise::{Elementwise, Target},
        linear::{ByRows, Product, Workshop},
    },
};

use crate::{Error, Result, matrix::Matrix};

/// Rows of `x` up to which a product has a plan for each number of them.
const FEW: usize = 16;

/// Numbers of a precision that says only what products read and write.
pub(crate) fn numbers(values: Format, kv: Format) -> Precision {
    // What a processor multiplies BF16 with, where it can; anything else is widened.
    let math = if values == Format::BF16 { Math::Bf16 } else { Math::Fp32 };
    Precision { weights: values, activations: values, kv, math, output: values, query: values, attention: Math::Fp32 }
}

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    rows: usize,
    n: usize,
    k: usize,
    /// None where rows are decoded.
    weights: Option<Format>,
    output: Format,
}

enum Planned {
    Product(Product),
    ByRows(ByRows),
}

/// The plans of a session.
pub(crate) struct Products {
    isa: Isa,
    threads: usize,
    numbers: Precision,
    /// The most rows of `x`.
    most: usize,
    plans: HashMap<Key, Planned>,
    workshop: Arc<Workshop>,
}

impl Products {
    pub(crate) fn new(isa: Isa, threads: usize, numbers: Precision, most: usize) -> Self {
        Self { isa, threads, numbers, most, plans: HashMap::new(), workshop: Arc::default() }
    }

    /// `y = x W^T`, times the matrix's factors, plus its bias.
    pub(crate) fn run(
        &mut self,
        pool: &mut Pool,
        matrix: &Matrix<'_>,
        x: Tensor<'_>,
        y: &mut [u8],
        output: Format,
    ) -> Result<()> {
        if x.columns != matrix.columns {
            let shape = [matrix.rows, matrix.columns];
            return Err(Error::shape("a weight", &shape, &format!("rows of {}", x.columns)));
        }
        let planned = self.plan(matrix, x.rows, output)?;
        match (planned, matrix.tensor()) {
            (Planned::Product(product), Some(weights)) => product.run(pool, x, weights, y),
            (Planned::ByRows(product), _) => {
                let failed = Mutex::new(None);
                let decode = |_: usize, rows: Range<usize>, out: &mut [f32]| {
                    if let Err(error) = matrix.decode(rows, out) {
                        failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(error);
                    }
                };
                product.run(pool, x, &decode, y);
                if let Some(error) = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
                    return Err(error);
                }
            }
            (Planned::Product(_), None) => return Err(Error::unsupported("a product", "its weights are not there")),
        }
        let (factors, bias) = (matrix.factors.as_deref(), matrix.bias.as_deref());
        if factors.is_some() || bias.is_some() {
            Elementwise::on(self.isa).affine(pool, Target::plain(output, y), matrix.rows, factors, bias)?;
        }
        Ok(())
    }

    /// The plan for that many rows of `x`, or for more.
    fn plan(&mut self, matrix: &Matrix<'_>, rows: usize, output: Format) -> Result<&mut Planned> {
        let weights = matrix.format();
        let rows = if rows <= FEW { rows } else { self.most.max(rows) };
        let key = Key { rows, n: matrix.rows, k: matrix.columns, weights, output };
        if !self.plans.contains_key(&key) {
            let dim = |size: usize| Dim::new("a product", size as u64);
            let shape = Linear { m: dim(rows)?, n: dim(key.n)?, k: dim(key.k)? };
            let numbers = Precision { output, ..self.numbers };
            let planned = match weights {
                Some(weights) => {
                    let precision = Precision { weights, ..numbers };
                    Planned::Product(Product::plan_in(&self.workshop, self.isa, shape, &precision, self.threads)?)
                }
                None => Planned::ByRows(ByRows::plan(self.isa, shape, numbers.activations, output, self.threads)?),
            };
            self.plans.insert(key, planned);
        }
        self.plans.get_mut(&key).ok_or_else(|| Error::unsupported("a product", "its plan is lost"))
    }
}
