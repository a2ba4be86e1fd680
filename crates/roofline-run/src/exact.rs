//! What operands made here give exactly: the reference on a few of the rows, which are made of few distinct ones.

use roofline_core::{Dim, op};

use crate::{cpu::operands::Pattern, reference};

/// Every output of `rows`; there are only so many distinct columns.
pub(crate) fn linear(inputs: &Pattern, weights: &Pattern, rows: &[usize]) -> Vec<f64> {
    let columns: Vec<usize> = (0..weights.distinct()).collect();
    let mut distinct: Vec<usize> = rows.iter().map(|row| row % inputs.distinct()).collect();
    distinct.sort_unstable();
    distinct.dedup();
    let exact = reference::linear::linear(&inputs.values, &weights.values, weights.columns, &distinct, &columns);
    let line = |row: &usize| {
        let at = distinct.binary_search(&(row % inputs.distinct())).unwrap_or(0) * columns.len();
        let exact = &exact[at..at + columns.len()];
        (0..weights.rows).map(move |column| exact[column % exact.len()])
    };
    rows.iter().flat_map(line).collect()
}

/// Query `index` of every sequence and head: the rows of the result that it is, and what they should be. A causal query among
/// many sees what a single one sees over a shorter cache.
pub(crate) fn attention(
    shape: &op::Attention,
    inputs: &Pattern,
    caches: [&Pattern; 2],
    index: usize,
) -> Result<(Vec<usize>, Vec<f64>), String> {
    let size = |dim: Dim| dim.get() as usize;
    let (batch, heads, queries, context) =
        (size(shape.batch), size(shape.heads), size(shape.queries), size(shape.context));
    let seen = if shape.causal { context - queries + index + 1 } else { context };
    let [keys, values] = caches.map(|pattern| -> Vec<f32> {
        let heads = (0..batch * size(shape.kv_heads)).map(|head| head * context);
        heads.flat_map(|first| (first..first + seen).flat_map(|row| pattern.row(row))).copied().collect()
    });
    let rows = (0..batch * heads).map(|at| (at / heads * queries + index) * heads + at % heads);
    let rows: Vec<usize> = rows.collect();
    let q: Vec<f32> = rows.iter().flat_map(|row| inputs.row(*row)).copied().collect();
    let seen = Dim::new("context", seen as u64).map_err(|error| error.to_string())?;
    let one = op::Attention { queries: Dim::ONE, context: seen, ..*shape };
    Ok((rows, reference::attention::attention(&one, &q, &keys, &values)))
}
