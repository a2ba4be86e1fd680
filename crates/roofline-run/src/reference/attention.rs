//! Attention, one score at a time.

use roofline_core::op::Attention;

/// `softmax(Q * K^T / sqrt(d)) * V`. Queries and outputs are `[batch][query][head][feature]`, keys and values
/// `[batch][kv head][context][feature]`.
pub(crate) fn attention(op: &Attention, q: &[f32], k: &[f32], v: &[f32]) -> Vec<f64> {
    let scale = 1.0 / (op.head_dim.get() as f64).sqrt();
    attention_with(op, |product| product * scale, |_| None, q, k, v)
}

/// The same with the score of a product of one's choice, and what a query head has a score for beside its keys.
pub(crate) fn attention_with(
    op: &Attention,
    score: impl Fn(f64) -> f64,
    sink: impl Fn(usize) -> Option<f64>,
    q: &[f32],
    k: &[f32],
    v: &[f32],
) -> Vec<f64> {
    let size = |dim: roofline_core::Dim| dim.get() as usize;
    let (heads, kv_heads, queries, context) = (size(op.heads), size(op.kv_heads), size(op.queries), size(op.context));
    let (dim, value_dim) = (size(op.head_dim), size(op.value_dim));
    let mut out = Vec::with_capacity(size(op.batch) * queries * heads * value_dim);
    for batch in 0..size(op.batch) {
        for query in 0..queries {
            for head in 0..heads {
                let row = |matrix: &[f32], row: usize, width: usize| -> Vec<f64> {
                    matrix[row * width..(row + 1) * width].iter().map(|value| f64::from(*value)).collect()
                };
                let q = row(q, (batch * queries + query) * heads + head, dim);
                let cached = |key: usize| (batch * kv_heads + head * kv_heads / heads) * context + key;
                let end = if op.causal { context - queries + query + 1 } else { context };
                let start = op.window.filter(|_| op.causal).map_or(0, |window| end.saturating_sub(size(window)));
                let of_key = |key: usize| {
                    let products = q.iter().zip(row(k, cached(key), dim)).map(|(q, k)| q * k);
                    score(products.sum::<f64>())
                };
                let scores: Vec<f64> = (start..end).map(of_key).collect();
                let sink = sink(head);
                let largest = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
                let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - largest).exp());
                let mut sum = vec![0.0; value_dim];
                for (key, weight) in (start..end).zip(weights) {
                    for (sum, value) in sum.iter_mut().zip(row(v, cached(key), value_dim)) {
                        *sum += weight / total * value;
                    }
                }
                out.extend(sum);
            }
        }
    }
    out
}
