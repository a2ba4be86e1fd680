//! How a tensor of a Hugging Face checkpoint is read so that it is one of llama.cpp's.

use crate::{
    Error, Result,
    coding::Matrix,
    gguf::{
        family::{Conversion, Share},
        model::{Shape, apart},
    },
    origin::{Order, Origin},
    rows::{Added, Heads, Ordered, Pairs, Plain, Rows, Stacked},
    stored::Located,
};

/// A tensor in llama.cpp's order.
pub(super) struct View<'a> {
    /// Its dimensions, columns first.
    pub(super) dims: Vec<u64>,
    /// Its rows.
    pub(super) rows: Box<dyn Rows + 'a>,
    /// Where they come from.
    pub(super) origins: Vec<Origin>,
}

/// The tensor at a place of the file, converted as its family says.
pub(super) fn view<'a>(located: Located<'a>, conversion: Conversion, shape: &Shape) -> Result<View<'a>> {
    let (shard, entry) = located;
    let refuse = |reason: String| Error::Weight { name: entry.name.clone(), reason, hint: None };
    let misshapen = || refuse(format!("has the shape {:?}, which config.json does not explain", entry.shape));
    if entry.shape.is_empty() || entry.shape.contains(&0) {
        return Err(refuse(format!("has the shape {:?}", entry.shape)));
    }
    let dims: Vec<u64> = entry.shape.iter().rev().map(|dim| *dim as u64).collect();
    let plain = Plain::new(shard, entry)?;
    // What is reordered is reordered by rows: a vector's numbers are rows of one.
    let lines = || if entry.shape.len() == 1 { plain.upright() } else { plain };
    let &Shape { heads, kv_heads, head_dim, experts, latent } = shape;
    let within = |matrix, first, down, across| -> Result<Box<dyn Rows + 'a>> {
        Ok(Box::new(Plain::within(shard, entry, matrix, first, down, across)?))
    };
    let origins = |rows: usize| origins(&entry.name, conversion, shape, rows);
    let rows: Box<dyn Rows + 'a> = match conversion {
        Conversion::Same | Conversion::Expert => Box::new(plain),
        Conversion::PlusOne => Box::new(Added::new(plain, 1.0)),
        Conversion::QueryPairs | Conversion::KeyPairs => {
            let heads = if conversion == Conversion::QueryPairs { heads } else { kv_heads };
            Box::new(Heads::new(lines(), lines().matrix().rows / heads, Pairs::Joined))
        }
        Conversion::Fused => Box::new(Ordered::new(lines(), head_dim, apart(heads, kv_heads))),
        Conversion::Stack(which) => {
            let [all, columns, outputs] = entry.shape[..] else { return Err(misshapen()) };
            let (first, down, rows) = share_of(which, outputs).filter(|_| all == experts).ok_or_else(misshapen)?;
            let each = columns * outputs;
            let matrix = Matrix { rows, columns };
            let stack = (0..all).map(|expert| within(matrix, expert * each + first, down, outputs));
            let stack = Stacked::of(stack.collect::<Result<_>>()?);
            let dims = [columns, rows, all].map(|dim| dim as u64).to_vec();
            return Ok(View { dims, origins: origins(stack.matrix().rows), rows: stack });
        }
        Conversion::Biases(which) => {
            let [all, outputs] = entry.shape[..] else { return Err(misshapen()) };
            let (first, across, columns) = share_of(which, outputs).filter(|_| all == experts).ok_or_else(misshapen)?;
            let rows = within(Matrix { rows: all, columns }, first, outputs, across)?;
            return Ok(View { dims: vec![columns as u64, all as u64], rows, origins: Vec::new() });
        }
        Conversion::LatentKey | Conversion::LatentValue => {
            let ([_, rank], Some((key, value))) = (&entry.shape[..], latent) else { return Err(misshapen()) };
            let (rank, each) = (*rank, (key + value) * *rank);
            let stack = (0..heads).map(|head| {
                if conversion == Conversion::LatentKey {
                    within(Matrix { rows: rank, columns: key }, head * each, 1, rank)
                } else {
                    within(Matrix { rows: value, columns: rank }, head * each + key * rank, rank, 1)
                }
            });
            let rows = Stacked::of(stack.collect::<Result<_>>()?);
            let dims = if conversion == Conversion::LatentKey { [key, rank, heads] } else { [rank, value, heads] };
            return Ok(View { dims: dims.map(|dim| dim as u64).to_vec(), rows, origins: Vec::new() });
        }
    };
    Ok(View { dims, origins: origins(rows.matrix().rows), rows })
}

/// Where the rows of a tensor of llama.cpp's come from, of which there are so many.
pub(super) fn origins(tensor: &str, conversion: Conversion, shape: &Shape, rows: usize) -> Vec<Origin> {
    let &Shape { heads, kv_heads, head_dim, experts, .. } = shape;
    let whole = |order: Order| vec![Origin { order, ..Origin::whole(tensor, rows) }];
    match conversion {
        Conversion::Same | Conversion::Expert | Conversion::PlusOne => whole(Order::SAME),
        Conversion::QueryPairs => whole(Order::Heads(rows / heads)),
        Conversion::KeyPairs => whole(Order::Heads(rows / kv_heads)),
        Conversion::Fused => whole(Order::Blocks(head_dim, apart(heads, kv_heads))),
        Conversion::Stack(which) => {
            let each = rows / experts.max(1);
            let outputs = if which == Share::Whole { each } else { 2 * each };
            let Some((first, by, _)) = share_of(which, outputs) else { return Vec::new() };
            let origin = |expert: usize| Origin {
                tensor: tensor.to_owned(),
                expert: Some(expert),
                rows: expert * each..(expert + 1) * each,
                order: Order::Every { first: expert * outputs + first, by },
            };
            (0..experts).map(origin).collect()
        }
        // Biases are no products, and models that unfold their keys do not run here.
        Conversion::Biases(_) | Conversion::LatentKey | Conversion::LatentValue => Vec::new(),
    }
}

/// Of so many outputs, the first, the distance to the next and the number of a which.
fn share_of(which: Share, outputs: usize) -> Option<(usize, usize, usize)> {
    let half = outputs / 2;
    match which {
        Share::Whole => Some((0, 1, outputs)),
        _ if !outputs.is_multiple_of(2) => None,
        Share::First => Some((0, 1, half)),
        Share::Second => Some((half, 1, half)),
        Share::Even => Some((0, 2, half)),
        Share::Odd => Some((1, 2, half)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::joined;

    /// Falcon-40B in small: two groups of two queries, a key and a value. NeoX has a key and a value for each query.
    #[test]
    fn heads_come_apart() {
        for (heads, kv_heads) in [(4, 2), (2, 2), (3, 1)] {
            let (there, back) = (apart(heads, kv_heads), joined(heads, kv_heads));
            assert!(there.iter().enumerate().all(|(to, from)| back[*from] == to));
        }
        assert_eq!(apart(4, 2), [0, 1, 4, 5, 2, 6, 3, 7]);
        assert_eq!(apart(2, 2), [0, 3, 1, 4, 2, 5]);
        assert_eq!(apart(3, 1), [0, 1, 2, 3, 4]);
    }
}
