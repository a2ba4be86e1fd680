//! Blocks whose codes a method chooses: the type's own search finds the scales, and they stay.
//!
//! Scales of one block hang together - those of sub-blocks are whole steps of one for all - so they are those that the type has
//! for a whole row, weighed by the importance of its inputs, as with an importance matrix. Codes are then chosen under what is stored of
//! them, and put in the place of the search's.

use roofline_core::format::gguf::{Codec, Codes, Iq4Nl, Iq4Xs, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};

use super::{Type, encode_weighted};
use crate::coding::Grid;

/// Calls `$body` with `$codec` standing for the codec of the type `$ty`; `$else` for types of no such codes.
macro_rules! coded {
    ($ty:expr, $codec:ident => $body:expr, $else:expr) => {
        coded!(@each $ty, $codec => $body, $else, Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Iq4Nl Iq4Xs Q2K Q3K Q4K Q5K Q6K)
    };
    (@each $ty:expr, $codec:ident => $body:expr, $else:expr, $($name:ident)*) => {
        match $ty {
            $(Type::$name => {
                type $codec = $name;
                $body
            })*
            _ => $else,
        }
    };
}

/// Codes of a type that has one for each weight.
pub(super) struct BlockGrid {
    ty: Type,
    group: usize,
    least: f32,
    largest: f32,
    middle: f32,
    /// What codes stand for, where that is not evenly spaced.
    values: Option<&'static [i8; 16]>,
}

impl BlockGrid {
    /// The grid of a type; none where codes are of several weights, or there are none.
    pub(super) fn of(ty: Type) -> Option<Self> {
        coded!(ty, C => Some(Self {
            ty,
            group: C::GROUP,
            least: f32::from(C::LEAST),
            largest: f32::from(C::LARGEST),
            middle: f32::from(C::MIDDLE),
            values: C::VALUES,
        }), None)
    }
}

impl Grid for BlockGrid {
    fn group(&self, _columns: usize) -> usize {
        self.group
    }

    fn by_rows(&self) -> bool {
        true
    }

    fn choose(&self, row: &[f32], importance: &[f32], scales: &mut [f32], minima: &mut [f32]) {
        let mut bytes = vec![0; self.ty.bytes(row.len() as u64).map_or(0, |bytes| bytes as usize)];
        encode_weighted(self.ty, row, importance, &mut bytes);
        steps(self.ty, &bytes, scales, minima);
    }

    fn round(&self, weight: f32, scale: f32, minimum: f32) -> (u8, f32) {
        let steps = if scale == 0.0 { 0.0 } else { (weight + minimum) / scale };
        if let Some(values) = self.values {
            // Half way between two, the larger, as ggml has it.
            let above = |pair: &[i8]| steps >= f32::midpoint(f32::from(pair[0]), f32::from(pair[1]));
            let code = values.windows(2).filter(|pair| above(pair)).count();
            return (code as u8, scale * f32::from(values[code]) - minimum);
        }
        let code = (steps.round_ties_even() + self.middle).clamp(self.least, self.largest);
        (code as u8, scale * (code - self.middle) - minimum)
    }

    fn values(&self, codes: &[u8], scale: f32, minimum: f32, values: &mut [f32]) {
        for (value, code) in values.iter_mut().zip(codes) {
            let even = f32::from(*code) - self.middle;
            let level = self.values.map_or(even, |values| f32::from(values[usize::from(*code) & 15]));
            *value = scale * level - minimum;
        }
    }
}

/// The scale and the minimum of every group of some blocks.
pub(super) fn steps(ty: Type, bytes: &[u8], scales: &mut [f32], minima: &mut [f32]) {
    coded!(ty, C => {
        let each = C::ELEMENTS / C::GROUP;
        let steps = bytes.chunks_exact(C::BYTES).flat_map(|block| (0..each).map(move |group| C::steps(block, group)));
        for ((scale, minimum), found) in scales.iter_mut().zip(minima).zip(steps) {
            (*scale, *minimum) = found;
        }
    }, {});
}

/// Puts codes in the place of those of some blocks, which keep their scales.
pub(super) fn put(ty: Type, codes: &[u8], bytes: &mut [u8]) {
    coded!(ty, C => {
        for (codes, block) in codes.chunks_exact(C::ELEMENTS).zip(bytes.chunks_exact_mut(C::BYTES)) {
            C::put(codes, block);
        }
    }, {});
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        coding::{Block, Coding},
        data::Chosen,
        ggml::GgmlCoding,
    };

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|at| (((at + seed) * 7919 % 1009) as f32 / 504.5 - 1.0) * (1.0 + (at % 7) as f32)).collect()
    }

    const TYPES: [Type; 12] = [
        Type::Q4_0,
        Type::Q4_1,
        Type::Q5_0,
        Type::Q5_1,
        Type::Q8_0,
        Type::Q2K,
        Type::Q3K,
        Type::Q4K,
        Type::Q5K,
        Type::Q6K,
        Type::Iq4Nl,
        Type::Iq4Xs,
    ];

    /// What is written decodes to what was chosen, to the last bit, and the scales are those of the type with that importance.
    #[test]
    fn what_is_chosen_is_what_is_stored() {
        let (columns, rows) = (512, 3);
        let (values, importance) = (numbers(columns * rows, 3), numbers(columns, 5));
        let importance: Vec<f32> = importance.iter().map(|own| own * own).collect();
        for ty in TYPES {
            let coding = GgmlCoding(ty);
            let grid = coding.grid().unwrap();
            let group = grid.group(columns);
            let mut chosen = Chosen::room(rows, columns, group);
            for (at, row) in values.chunks_exact(columns).enumerate() {
                let own = at * columns / group..(at + 1) * columns / group;
                let (scales, zeros) = (&mut chosen.scales[own.clone()], &mut chosen.zeros[own]);
                grid.choose(row, &importance, scales, zeros);
            }
            // Others than the nearest: every third is a code further.
            for (at, (code, weight)) in chosen.codes.iter_mut().zip(&values).enumerate() {
                let (scale, zero) = (chosen.scales[at / group], chosen.zeros[at / group]);
                let by = if at % 3 == 0 { scale } else { 0.0 };
                *code = grid.round(weight + by, scale, zero).0;
            }
            let mut bytes = vec![0; ty.bytes((columns * rows) as u64).unwrap() as usize];
            let mut decoded = vec![0.0; columns * rows];
            let block = Block { values: &values, columns, peak: 0.0, importance: Some(&importance), chosen: None };
            coding.encode(block, &mut [&mut bytes], &mut decoded);
            let plain = bytes.clone();
            coding.encode(Block { chosen: Some(chosen.rows()), ..block }, &mut [&mut bytes], &mut decoded);
            assert_eq!(decoded, chosen.values(&*grid, columns), "{ty}");
            assert_ne!(bytes, plain, "{ty}");
            let mut back = vec![0.0; columns * rows];
            coding.decode(columns, &[&bytes], &mut back);
            assert_eq!(back, decoded, "{ty}");
            // Only codes differ: with those of the search in their place, the bytes are the search's.
            let (mut scales, mut zeros) = (chosen.scales.clone(), chosen.zeros.clone());
            steps(ty, &bytes, &mut scales, &mut zeros);
            assert_eq!((&scales, &zeros), (&chosen.scales, &chosen.zeros), "{ty}");
            coding.decode(columns, &[&plain], &mut back);
            let own: Vec<u8> = back
                .iter()
                .enumerate()
                .map(|(at, x)| grid.round(*x, chosen.scales[at / group], chosen.zeros[at / group]).0)
                .collect();
            put(ty, &own, &mut bytes);
            coding.decode(columns, &[&bytes], &mut decoded);
            assert_eq!(decoded, back, "{ty}");
        }
    }

    #[test]
    fn rounding_is_to_the_nearest_code() {
        let grid = BlockGrid::of(Type::Q4K).unwrap();
        assert_eq!(grid.round(2.4, 0.5, 1.0), (7, 2.5));
        assert_eq!((grid.round(-9.0, 0.5, 1.0), grid.round(90.0, 0.5, 1.0)), ((0, -1.0), (15, 6.5)));
        // Without a scale there is nothing but the minimum.
        assert_eq!(grid.round(3.0, 0.0, 1.0), (0, -1.0));
        // A scale may be negative, and the codes of -128 stay out of use.
        let grid = BlockGrid::of(Type::Q4_0).unwrap();
        assert_eq!(grid.round(1.0, -0.25, 0.0), (4, 1.0));
        assert_eq!(BlockGrid::of(Type::Q8_0).unwrap().round(-900.0, 1.0, 0.0), (1, -127.0));
        // Half way between 1 and 13 it is 13, and -10 and 1 are 11 apart.
        let grid = BlockGrid::of(Type::Iq4Nl).unwrap();
        assert_eq!((grid.round(3.5, 0.5, 0.0), grid.round(-2.26, 0.5, 0.0)), ((9, 6.5), (7, -5.0)));
        assert!(BlockGrid::of(Type::Iq3S).is_none() && BlockGrid::of(Type::Mxfp4).is_none());
    }
}
