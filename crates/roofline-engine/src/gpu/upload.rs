//! The way of weights onto the GPU.

use roofline_core::{Dim, Format, Model, model::arithmetic, program::Weight};
use roofline_run::cuda::model::{Kernels, Matrix as OnGpu, Memory, Source};

use super::{GpuHeld, GpuMatrix, GpuModel};
use crate::{Error, Result, engine::Record, matrix::Matrix, weights::Held};

/// Rows on their way: as they are stored, or as 16-bit numbers where no kernel reads that.
struct Rows {
    format: Format,
    count: usize,
    codes: Vec<u8>,
}

impl GpuModel {
    /// Takes the weights of a step.
    pub(crate) fn take(
        &mut self,
        model: &Model,
        key: (Option<usize>, &'static [Weight]),
        held: &Held<'_>,
    ) -> Result<()> {
        let (layer, weights) = key;
        let taken = match held {
            Held::Vectors(vectors) => {
                let memory = |numbers: &Vec<f32>| Memory::of_floats(&self.gpu, numbers);
                let both = |(one, bias): &(Vec<f32>, Option<Vec<f32>>)| {
                    Ok::<_, Error>((memory(one)?, bias.as_ref().map(memory).transpose()?))
                };
                GpuHeld::Vectors(vectors.iter().map(both).collect::<Result<_>>()?)
            }
            Held::Products(tables) if weights == [Weight::Embedding] => self.embedding(model, tables)?,
            Held::Products(matrices) => {
                let fuses = fuses(model, weights, matrices);
                let each = |matrix: &Matrix<'_>| self.matrix(&[matrix], fuses);
                GpuHeld::Products(matrices.iter().map(each).collect::<Result<_>>()?)
            }
            Held::Experts { experts, turns } => {
                let first = experts.first().ok_or_else(|| Error::missing("experts"))?;
                let fuses = !turns && fuses(model, weights, first);
                let apart = (0..first.len()).map(|at| {
                    let own: Vec<&Matrix<'_>> = experts.iter().filter_map(|expert| expert.get(at)).collect();
                    self.matrix(&own, fuses)
                });
                GpuHeld::Experts { matrices: apart.collect::<Result<_>>()?, turns: *turns }
            }
        };
        for (own, matrix) in held.matrices(weights) {
            let format = match &taken {
                GpuHeld::Products(matrices) | GpuHeld::Experts { matrices, .. } => {
                    let at = own.first().and_then(|one| weights.iter().position(|other| other == one)).unwrap_or(0);
                    matrices.get(if matrices.len() == 1 { 0 } else { at }).map(|own| own.format)
                }
                _ => matrix.format(),
            };
            let stored = matrix.format();
            if let (Some(stored), Some(format)) = (stored, format)
                && stored != format
                && !self.widened.contains(&stored)
            {
                self.widened.push(stored);
            }
            // What runs is what predictions speak of.
            let bytes = match (stored, format) {
                (Some(one), Some(other)) if one == other => matrix.full_bytes(),
                _ => (matrix.rows * matrix.columns * 2) as u64,
            };
            let format = format.or(Some(self.values));
            let scheme = format.map_or_else(|| matrix.scheme(), |format| format.to_string());
            if let Some(inputs) = matrix.inputs.filter(|_| !narrows(&taken)) {
                self.unrounded.get_or_insert_with(|| inputs.to_string());
            }
            let rounds = narrows(&taken);
            let inputs = format.filter(|_| rounds);
            self.records.push(Record { layer, weights: own, format, scheme, bytes, rounds, inputs });
        }
        self.held.insert(key, taken);
        Ok(())
    }

    fn kernels(&self) -> Result<Kernels<'_>> {
        let reason = || format!("its numbers are {}, and those of a GPU are bf16 or fp16", self.values);
        Kernels::new(&self.gpu, self.values).ok_or_else(|| Error::unsupported("the model", reason()))
    }

    /// The rows of a token, and the head where it is tied to them.
    fn embedding(&self, model: &Model, tables: &[Matrix<'_>]) -> Result<GpuHeld> {
        let matrix = tables.first().ok_or_else(|| Error::missing("the embedding"))?;
        let plain = self.widened(matrix)?;
        let row = matrix.columns * 2;
        let mut table = Memory::new(&self.gpu, matrix.rows * row)?;
        for first in (0..matrix.rows).step_by(plain.count.max(1)) {
            let bytes = plain.count.min(matrix.rows - first) * row;
            table.write(&self.gpu, first * row, &plain.codes[..bytes])?;
        }
        self.gpu.wait()?;
        let head = model.tied.then(|| self.matrix(&[matrix], false)).transpose()?;
        Ok(GpuHeld::Embedding { table, head: head.map(Box::new) })
    }

    /// One matrix of all experts, or of the only one.
    fn matrix(&self, own: &[&Matrix<'_>], turns: bool) -> Result<GpuMatrix> {
        let first = own.first().ok_or_else(|| Error::missing("a matrix"))?;
        let kernels = self.kernels()?;
        // A factor per row and expert has no place behind products of chosen experts.
        let factored = own.len() > 1 && own.iter().any(|matrix| matrix.factors.is_some());
        let same_tensor = own.iter().all(|matrix| matrix.tensor_part() == first.tensor_part());
        let inputs = self.sizes(false).narrowed(first.format(), first.inputs, first.columns).filter(|_| own.len() == 1);
        let beside = inputs.unwrap_or(self.values);
        let packs = first.format().is_some_and(|format| OnGpu::packs(format, beside, first.columns));
        let wide = !packs || factored || !same_tensor;
        let shape = (first.rows, first.columns);
        let matrix = if wide {
            let rows = own.iter().map(|matrix| self.widened(matrix)).collect::<Result<Vec<Rows>>>()?;
            let sources: Vec<Source<'_>> = rows
                .iter()
                .map(|Rows { format, count, codes }| Source {
                    format: *format,
                    rows: *count,
                    codes,
                    scales: &[],
                    zeros: &[],
                    tensor: &[],
                })
                .collect();
            OnGpu::new(&kernels, shape, &sources, None, (turns, self.orders))?
        } else {
            let sources: Vec<Source<'_>> = own.iter().filter_map(|matrix| matrix.source()).collect();
            OnGpu::new(&kernels, shape, &sources, inputs, (turns, self.orders))?
        };
        let floats = |numbers: &[f32]| Memory::of_floats(&self.gpu, numbers);
        let bias = own.iter().any(|matrix| matrix.bias.is_some()).then(|| {
            let zeros = vec![0.0; first.rows];
            let all: Vec<f32> =
                own.iter().flat_map(|matrix| matrix.bias.as_ref().unwrap_or(&zeros).iter().copied()).collect();
            floats(&all)
        });
        // Numbers that were widened have their factors in them.
        let factors = first.factors.as_ref().filter(|_| !wide).map(|factors| floats(factors));
        let format = if wide { self.values } else { first.format().unwrap_or(self.values) };
        Ok(GpuMatrix { matrix, factors: factors.transpose()?, bias: bias.transpose()?, format })
    }

    /// One row as 16-bit numbers.
    fn row(&self, matrix: &Matrix<'_>, row: usize, numbers: &mut [f32]) -> Result<Vec<u8>> {
        matrix.row(row, numbers)?;
        Ok(self.values.encode(numbers, Dim::new("columns", numbers.len() as u64)?)?.codes)
    }

    /// Rows as 16-bit numbers.
    fn widened(&self, matrix: &Matrix<'_>) -> Result<Rows> {
        let rows = matrix.stored_rows();
        if let Some(source) = matrix.source().filter(|own| own.format == self.values && matrix.factors.is_none()) {
            return Ok(Rows { format: self.values, count: rows, codes: source.codes.to_vec() });
        }
        let (row, threads) = (matrix.columns * 2, std::thread::available_parallelism().map_or(1, usize::from));
        let mut codes = vec![0; rows * row];
        let each = rows.div_ceil(threads).max(1);
        let failed = std::sync::Mutex::new(None);
        std::thread::scope(|scope| {
            for (at, part) in codes.chunks_mut(each * row).enumerate() {
                let failed = &failed;
                scope.spawn(move || {
                    let mut numbers = vec![0.0; matrix.columns];
                    for (own, out) in part.chunks_exact_mut(row).enumerate() {
                        match self.row(matrix, at * each + own, &mut numbers) {
                            Ok(codes) => out.copy_from_slice(&codes),
                            Err(error) => {
                                failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(error);
                                return;
                            }
                        }
                    }
                });
            }
        });
        match failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(Rows { format: self.values, count: rows, codes }),
        }
    }
}

/// Whether inputs of a step's products are rounded.
fn narrows(held: &GpuHeld) -> bool {
    match held {
        GpuHeld::Products(matrices) => matrices.iter().all(|own| own.matrix.narrows()),
        _ => false,
    }
}

/// Whether the gate is applied within the product: what the kernel knows is SiLU, and a product without biases.
fn fuses(model: &Model, weights: &[Weight], matrices: &[Matrix<'_>]) -> bool {
    let gated = matches!(weights, [Weight::Gate, Weight::Up] | [Weight::ExpertGate, Weight::ExpertUp]);
    let silu = model.arithmetic.activation == arithmetic::Activation::Silu;
    let bare = matrices.iter().all(|matrix| matrix.bias.is_none() && matrix.factors.is_none());
    gated && silu && bare && matrices.len() == 1
}
