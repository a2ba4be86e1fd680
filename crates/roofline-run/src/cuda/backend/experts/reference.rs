//! What products of experts should give, for a few tokens.

use cudarc::driver::CudaSlice;
use roofline_core::{Format, measurement::Check};

use super::{Plan, visits::Visits};
use crate::{
    Result,
    cuda::{
        gemv_packed::Stored,
        gpu::{Gpu, failed},
        model::Source,
        operand::Operand,
    },
    reference,
    tolerance::{decoded, limit, sample},
};

/// Matrices that differ. Experts repeat them, a prime, so that mixed-up experts show.
const VARIANTS: usize = 7;

/// Operands on the host.
pub(super) struct Expected {
    variants: Vec<Operand>,
    pub(super) inputs: Operand,
}

impl Expected {
    /// Numbers of all experts, and of `rows` rows that they multiply.
    pub(super) fn new(plan: &Plan, rows: usize) -> Result<Self> {
        let (format, k) = (plan.formats.weights, plan.shape.k.get() as usize);
        // Kernels know one scale for a whole tensor, and each of several has its own: experts are all the same there.
        let count = if plan.stored == Some(Stored::Nvfp4) { 1 } else { VARIANTS };
        let scale = 1.0 / (k as f32).sqrt();
        let variant = |at: usize| Operand::new(format, plan.matrix_rows(), k, scale, 11 + at as u64);
        let variants = (0..count).map(variant).collect::<Result<_>>()?;
        Ok(Self { variants, inputs: Operand::new(plan.formats.activations, rows, k, 1.0, 2)? })
    }

    fn variant(&self, expert: usize) -> &Operand {
        &self.variants[expert % self.variants.len()]
    }

    /// The rows of an expert, which repeat.
    pub(super) fn source(&self, expert: usize) -> Source<'_> {
        let Operand { encoded, .. } = self.variant(expert);
        Source {
            format: encoded.format(),
            rows: encoded.rows(),
            codes: &encoded.codes,
            scales: &encoded.scales,
            zeros: &encoded.zeros,
            tensor: &encoded.tensor,
        }
    }

    /// All outputs of an expert for row `row` of the inputs.
    fn product(&self, row: usize, expert: usize) -> Vec<f64> {
        let (weights, inputs) = (self.variant(expert), &self.inputs);
        let distinct = weights.distinct();
        let columns: Vec<usize> = (0..distinct).collect();
        let rows = [row % inputs.distinct()];
        let exact = reference::linear::linear(&inputs.values, &weights.values, weights.columns, &rows, &columns);
        (0..weights.rows).map(|column| exact[column % distinct]).collect()
    }

    /// Every output of a few tokens, with each of their experts.
    pub(super) fn compare(
        &self,
        gpu: &Gpu,
        plan: &Plan,
        visits: &Visits,
        out: &CudaSlice<u8>,
    ) -> Result<std::result::Result<Check, String>> {
        let (n, active, values) = (plan.shape.n.get() as usize, visits.active, plan.formats.activations);
        let places = if plan.sorted { visits.places() } else { (0..visits.chosen.len()).collect() };
        let read = |row: usize, size: usize| -> Result<Vec<u8>> {
            let mut bytes = vec![0; n * size];
            gpu.stream().memcpy_dtoh(&out.slice(row * n * size..(row + 1) * n * size), &mut bytes).map_err(failed)?;
            gpu.wait()?;
            Ok(bytes)
        };
        let weights = visits.weights();
        let (mut result, mut expected) = (Vec::new(), Vec::new());
        for token in sample(visits.tokens) {
            let own = token * active..(token + 1) * active;
            if plan.is_down() {
                result.extend(decoded(&read(token, 4)?, Format::FP32));
                let mut sums = vec![0.0; n];
                for (visit, weight) in own.zip(&weights) {
                    let product = self.product(places[visit], visits.chosen[visit]);
                    sums.iter_mut().zip(product).for_each(|(sum, value)| *sum += weight * value);
                }
                expected.extend(sums);
                continue;
            }
            for visit in own {
                result.extend(decoded(&read(places[visit], 2)?, values));
                let product = self.product(token, visits.chosen[visit]);
                let (gate, up) = product.split_at(n);
                let silu = |gate: &f64| gate / (1.0 + (-gate).exp());
                expected.extend(gate.iter().enumerate().map(|(at, gate)| silu(gate) * up.get(at).unwrap_or(&1.0)));
            }
        }
        // What a function or a sum reads may have been rounded once, so twice the usual is allowed.
        Ok(Check::of(&result, &expected, 2.0 * limit(values, values)))
    }
}
