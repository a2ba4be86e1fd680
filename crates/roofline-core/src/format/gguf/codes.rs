//! Codes apart from the scales they stand under: what a method needs that chooses codes itself.
//!
//! In these types a weight is `scale (q - MIDDLE) - minimum`, with the scale and the minimum of its group as the block has them stored;
//! `IQ4` has a table of values for `q`. Where a type has two levels of scales, those of a group are their product. The points of `IQ3`
//! are of several weights at once, and none of these.

use super::{
    Codec, Iq4Nl, Iq4Xs, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, half, iq4, q2k, q3k, q6k, q45k,
    simple::{pack_five, pack_four},
};

/// A block type with a code for each weight.
pub trait Codes: Codec {
    /// Weights that share a scale.
    const GROUP: usize;
    /// The least code.
    const LEAST: u8 = 0;
    /// The largest.
    const LARGEST: u8;
    /// The code of zero; zero where there are minima.
    const MIDDLE: u8;
    /// What codes stand for before their scale, where that is not evenly spaced.
    const VALUES: Option<&'static [i8; 16]> = None;

    /// The scale and the minimum of a group of a block.
    fn steps(block: &[u8], group: usize) -> (f32, f32);

    /// Puts codes, as many as a block has weights, in the place of a block's own. Its scales stay.
    fn put(codes: &[u8], block: &mut [u8]);
}

/// The codes of a whole block.
#[inline(always)]
fn whole<const N: usize>(codes: &[u8]) -> &[u8; N] {
    // A caller counts them: `put` is given a block's.
    codes.first_chunk().unwrap_or(&[0; N])
}

macro_rules! simple {
    ($name:ident, $largest:literal, $middle:literal, $minimum:expr, $pack:ident at $from:literal) => {
        impl Codes for $name {
            const GROUP: usize = Self::ELEMENTS;
            const LARGEST: u8 = $largest;
            const MIDDLE: u8 = $middle;

            #[inline(always)]
            fn steps(block: &[u8], _group: usize) -> (f32, f32) {
                let minimum: fn(&[u8]) -> f32 = $minimum;
                (half::read(block), minimum(block))
            }

            #[inline(always)]
            fn put(codes: &[u8], block: &mut [u8]) {
                $pack(whole(codes), &mut block[$from..]);
            }
        }
    };
}

simple!(Q4_0, 15, 8, |_| 0.0, pack_four at 2);
simple!(Q5_0, 31, 16, |_| 0.0, pack_five at 2);
// What is stored is the least weight itself.
simple!(Q4_1, 15, 0, |block| -half::read(&block[2..]), pack_four at 4);
simple!(Q5_1, 31, 0, |block| -half::read(&block[2..]), pack_five at 4);

impl Codes for Q8_0 {
    const GROUP: usize = Self::ELEMENTS;
    /// -128 has no counterpart, and no quantizer of ggml's writes it.
    const LEAST: u8 = 1;
    const LARGEST: u8 = 255;
    const MIDDLE: u8 = 128;

    #[inline(always)]
    fn steps(block: &[u8], _group: usize) -> (f32, f32) {
        (half::read(block), 0.0)
    }

    #[inline(always)]
    fn put(codes: &[u8], block: &mut [u8]) {
        for (byte, code) in block[2..].iter_mut().zip(codes) {
            *byte = code ^ 0x80;
        }
    }
}

impl Codes for Q2K {
    const GROUP: usize = 16;
    const LARGEST: u8 = 3;
    const MIDDLE: u8 = 0;

    #[inline(always)]
    fn steps(block: &[u8], group: usize) -> (f32, f32) {
        q2k::steps(block, group)
    }

    #[inline(always)]
    fn put(codes: &[u8], block: &mut [u8]) {
        q2k::pack_two(whole(codes), &mut block[q2k::CODES..q2k::D]);
    }
}

impl Codes for Q3K {
    const GROUP: usize = 16;
    const LARGEST: u8 = 7;
    const MIDDLE: u8 = 4;

    #[inline(always)]
    fn steps(block: &[u8], group: usize) -> (f32, f32) {
        (q3k::step(block, group), 0.0)
    }

    #[inline(always)]
    fn put(codes: &[u8], block: &mut [u8]) {
        q3k::pack(whole(codes), &mut block[..q3k::SCALES]);
    }
}

impl Codes for Q6K {
    const GROUP: usize = 16;
    const LARGEST: u8 = 63;
    const MIDDLE: u8 = 32;

    #[inline(always)]
    fn steps(block: &[u8], group: usize) -> (f32, f32) {
        (q6k::step(block, group), 0.0)
    }

    #[inline(always)]
    fn put(codes: &[u8], block: &mut [u8]) {
        q6k::pack(whole(codes), &mut block[..q6k::SCALES]);
    }
}

macro_rules! with_minima {
    ($name:ident, $largest:literal) => {
        impl Codes for $name {
            const GROUP: usize = q45k::SUB;
            const LARGEST: u8 = $largest;
            const MIDDLE: u8 = 0;

            #[inline(always)]
            fn steps(block: &[u8], group: usize) -> (f32, f32) {
                q45k::steps(block, group)
            }

            #[inline(always)]
            fn put(codes: &[u8], block: &mut [u8]) {
                let mut all = [[0; q45k::SUB]; q45k::SUBS];
                for (all, codes) in all.iter_mut().zip(codes.as_chunks().0) {
                    *all = *codes;
                }
                q45k::pack::<Self>(&all, block);
            }
        }
    };
}

with_minima!(Q4K, 15);
with_minima!(Q5K, 31);

impl Codes for Iq4Nl {
    const GROUP: usize = Self::ELEMENTS;
    const LARGEST: u8 = 15;
    const MIDDLE: u8 = 0;
    const VALUES: Option<&'static [i8; 16]> = Some(&iq4::UNEVEN);

    #[inline(always)]
    fn steps(block: &[u8], _group: usize) -> (f32, f32) {
        (half::read(block), 0.0)
    }

    #[inline(always)]
    fn put(codes: &[u8], block: &mut [u8]) {
        pack_four(whole(codes), &mut block[2..]);
    }
}

impl Codes for Iq4Xs {
    const GROUP: usize = iq4::SUB;
    const LARGEST: u8 = 15;
    const MIDDLE: u8 = 0;
    const VALUES: Option<&'static [i8; 16]> = Some(&iq4::UNEVEN);

    #[inline(always)]
    fn steps(block: &[u8], group: usize) -> (f32, f32) {
        (iq4::step(block, group), 0.0)
    }

    #[inline(always)]
    fn put(codes: &[u8], block: &mut [u8]) {
        for (codes, block) in codes.as_chunks().0.iter().zip(block[iq4::CODES..].chunks_exact_mut(iq4::SUB / 2)) {
            pack_four(codes, block);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Any codes come back as what the stored scales make of them, and nothing but them changes.
    fn codes_are_put<C: Codes>(values: &[f32], random: &[u8]) {
        let mut block = vec![0; C::BYTES];
        C::encode(&values[..C::ELEMENTS], &mut block);
        let codes: Vec<u8> = random[..C::ELEMENTS]
            .iter()
            .map(|byte| C::LEAST + (u32::from(*byte) % u32::from(C::LARGEST - C::LEAST + 1).max(1)) as u8)
            .collect();
        let steps: Vec<_> = (0..C::ELEMENTS / C::GROUP).map(|group| C::steps(&block, group)).collect();
        C::put(&codes, &mut block);
        assert_eq!(steps, (0..steps.len()).map(|group| C::steps(&block, group)).collect::<Vec<_>>());
        let mut decoded = vec![0.0; C::ELEMENTS];
        C::decode(&block, &mut decoded);
        for (at, (x, code)) in decoded.iter().zip(&codes).enumerate() {
            let (scale, minimum) = steps[at / C::GROUP];
            let even = f32::from(*code) - f32::from(C::MIDDLE);
            let level = C::VALUES.map_or(even, |values| f32::from(values[usize::from(*code)]));
            assert_eq!(*x, scale * level - minimum, "{at} of {code}");
        }
    }

    proptest! {
        #[test]
        fn codes_stand_under_the_stored_scales(
            values in prop::collection::vec(-1f32..1.0, 256), random in prop::collection::vec(any::<u8>(), 256)
        ) {
            codes_are_put::<Q4_0>(&values, &random);
            codes_are_put::<Q4_1>(&values, &random);
            codes_are_put::<Q5_0>(&values, &random);
            codes_are_put::<Q5_1>(&values, &random);
            codes_are_put::<Q8_0>(&values, &random);
            codes_are_put::<Q2K>(&values, &random);
            codes_are_put::<Q3K>(&values, &random);
            codes_are_put::<Q4K>(&values, &random);
            codes_are_put::<Q5K>(&values, &random);
            codes_are_put::<Q6K>(&values, &random);
            codes_are_put::<Iq4Nl>(&values, &random);
            codes_are_put::<Iq4Xs>(&values, &random);
        }
    }
}
