//! Rows of weights to rows of codes and back, for every element in one loop.
//!
//! The loops are compiled for each [`Element`] and each width of vectors, and for the group sizes in use, so that their
//! inner loops have a known length.

use super::grid::Element;
use roofline_isa::widest;

/// Calls `$function` with the group size as a constant where it is a usual one.
macro_rules! by_group {
    ($group:expr, $function:ident($($arg:expr),*)) => {
        match $group {
            32 => $function::<32>($($arg),*),
            64 => $function::<64>($($arg),*),
            128 => $function::<128>($($arg),*),
            _ => $function::<0>($($arg),*),
        }
    };
}

/// `slice` cut to a known length, if there is one.
#[inline(always)]
fn fixed<T, const G: usize>(slice: &[T]) -> &[T] {
    if G == 0 { slice } else { &slice[..G] }
}

#[inline(always)]
fn fixed_mut<T, const G: usize>(slice: &mut [T]) -> &mut [T] {
    if G == 0 { slice } else { &mut slice[..G] }
}

#[inline(always)]
fn code_groups<const G: usize>(
    element: impl Element,
    values: &[f32],
    group: usize,
    (scales, zeros): (&[f32], &[f32]),
    codes: &mut [u8],
) -> u64 {
    let group = if G == 0 { group } else { G };
    let mut outside = 0u64;
    let parameters = scales.iter().zip(zeros);
    for ((values, codes), (scale, zero)) in
        values.chunks_exact(group).zip(codes.chunks_exact_mut(group)).zip(parameters)
    {
        let mut count = 0u32;
        for (value, code) in fixed::<_, G>(values).iter().zip(fixed_mut::<_, G>(codes)) {
            let (found, beyond) = element.code(*value, *scale, *zero);
            *code = found;
            count += u32::from(beyond);
        }
        outside += u64::from(count);
    }
    outside
}

/// Four groups of 16 at a time, with a scale and a zero point for each weight: a loop over 16 alone would be unrolled
/// before it becomes vector code.
const SIXTEENS: usize = 64;

/// Each of four numbers sixteen times.
#[inline(always)]
fn spread(numbers: &[f32]) -> [f32; SIXTEENS] {
    let mut each = [0.0; SIXTEENS];
    for (each, number) in each.chunks_exact_mut(16).zip(numbers) {
        each.fill(*number);
    }
    each
}

#[inline(always)]
fn code_sixteens(element: impl Element, values: &[f32], (scales, zeros): (&[f32], &[f32]), codes: &mut [u8]) -> u64 {
    let (values, last_values) = values.as_chunks::<SIXTEENS>();
    let (codes, last_codes) = codes.as_chunks_mut::<SIXTEENS>();
    let (scales, last_scales) = scales.as_chunks::<4>();
    let (zeros, last_zeros) = zeros.as_chunks::<4>();
    let mut outside = 0u64;
    for ((values, codes), (scales, zeros)) in values.iter().zip(codes).zip(scales.iter().zip(zeros)) {
        let (scales, zeros) = (spread(scales), spread(zeros));
        let mut count = 0u32;
        for at in 0..SIXTEENS {
            let (found, beyond) = element.code(values[at], scales[at], zeros[at]);
            codes[at] = found;
            count += u32::from(beyond);
        }
        outside += u64::from(count);
    }
    outside + code_groups::<0>(element, last_values, 16, (last_scales, last_zeros), last_codes)
}

#[inline(always)]
fn expand_sixteens(element: impl Element, codes: &[u8], (scales, zeros): (&[f32], &[f32]), values: &mut [f32]) {
    let (values, last_values) = values.as_chunks_mut::<SIXTEENS>();
    let (codes, last_codes) = codes.as_chunks::<SIXTEENS>();
    let (scales, last_scales) = scales.as_chunks::<4>();
    let (zeros, last_zeros) = zeros.as_chunks::<4>();
    for ((values, codes), (scales, zeros)) in values.iter_mut().zip(codes).zip(scales.iter().zip(zeros)) {
        let (scales, zeros) = (spread(scales), spread(zeros));
        for at in 0..SIXTEENS {
            values[at] = element.value(codes[at], scales[at], zeros[at]);
        }
    }
    expand_groups::<0>(element, last_codes, 16, (last_scales, last_zeros), last_values);
}

widest! {
    /// The codes of a row whose groups of `group` weights have these scales and zero points. Returns how many weights
    /// lay outside the range by more than half a step.
    pub(crate) fn code<E: Element>(
        element: E, values: &[f32], group: usize, scales: &[f32], zeros: &[f32], codes: &mut [u8]
    ) -> u64 {
        if group == 16 {
            return code_sixteens(element, values, (scales, zeros), codes);
        }
        by_group!(group, code_groups(element, values, group, (scales, zeros), codes))
    }
}

#[inline(always)]
fn expand_groups<const G: usize>(
    element: impl Element,
    codes: &[u8],
    group: usize,
    (scales, zeros): (&[f32], &[f32]),
    values: &mut [f32],
) {
    let group = if G == 0 { group } else { G };
    let parameters = scales.iter().zip(zeros);
    for ((codes, values), (scale, zero)) in
        codes.chunks_exact(group).zip(values.chunks_exact_mut(group)).zip(parameters)
    {
        for (code, value) in fixed::<_, G>(codes).iter().zip(fixed_mut::<_, G>(values)) {
            *value = element.value(*code, *scale, *zero);
        }
    }
}

widest! {
    /// What the codes of a row stand for: the inverse of [`code`].
    pub(crate) fn expand<E: Element>(
        element: E, codes: &[u8], group: usize, scales: &[f32], zeros: &[f32], values: &mut [f32]
    ) {
        if group == 16 {
            return expand_sixteens(element, codes, (scales, zeros), values);
        }
        by_group!(group, expand_groups(element, codes, group, (scales, zeros), values));
    }
}

#[inline(always)]
fn peak_groups<const G: usize>(values: &[f32], group: usize, peaks: &mut [f32]) {
    let group = if G == 0 { group } else { G };
    for (values, peak) in values.chunks_exact(group).zip(peaks) {
        let mut bits = 0;
        for value in fixed::<_, G>(values) {
            // Among magnitudes, the order of the bits is the order of the numbers.
            bits = bits.max(value.to_bits() & 0x7fff_ffff);
        }
        *peak = f32::from_bits(bits);
    }
}

widest! {
    /// The largest magnitude of each group of a row.
    pub(crate) fn peaks(values: &[f32], group: usize, peaks: &mut [f32]) {
        if group == 16 {
            return peak_groups::<16>(values, group, peaks);
        }
        by_group!(group, peak_groups(values, group, peaks));
    }
}

#[inline(always)]
fn range_groups<const G: usize>(values: &[f32], group: usize, lows: &mut [f32], highs: &mut [f32]) {
    let group = if G == 0 { group } else { G };
    for ((values, low), high) in values.chunks_exact(group).zip(lows).zip(highs) {
        let (mut below, mut above) = (0i32, 0i32);
        for value in fixed::<_, G>(values) {
            // As signed integers, numbers with the sign bit are below zero.
            above = above.max(value.to_bits() as i32);
            below = below.max((value.to_bits() ^ 0x8000_0000) as i32);
        }
        *low = -f32::from_bits(below as u32);
        *high = f32::from_bits(above as u32);
    }
}

widest! {
    /// The least and the greatest of each group of a row and of zero.
    pub(crate) fn ranges(values: &[f32], group: usize, lows: &mut [f32], highs: &mut [f32]) {
        by_group!(group, range_groups(values, group, lows, highs));
    }
}

#[inline(always)]
fn extreme_groups<const G: usize>(values: &[f32], group: usize, lows: &mut [f32], highs: &mut [f32]) {
    let group = if G == 0 { group } else { G };
    // Flipping the bits below the sign of negative numbers gives integers in the order of the numbers, and back.
    let ordered = |bits: i32| bits ^ ((bits >> 31) & 0x7fff_ffff);
    for ((values, low), high) in values.chunks_exact(group).zip(lows).zip(highs) {
        let (mut least, mut greatest) = (i32::MAX, i32::MIN);
        for value in fixed::<_, G>(values) {
            let bits = ordered(value.to_bits() as i32);
            least = least.min(bits);
            greatest = greatest.max(bits);
        }
        *low = f32::from_bits(ordered(least) as u32);
        *high = f32::from_bits(ordered(greatest) as u32);
    }
}

widest! {
    /// The least and the greatest of each group of a row.
    pub(crate) fn extremes(values: &[f32], group: usize, lows: &mut [f32], highs: &mut [f32]) {
        by_group!(group, extreme_groups(values, group, lows, highs));
    }
}

#[cfg(test)]
mod tests {
    use std::marker::PhantomData;

    use super::*;
    use crate::{
        coding::grid::{Asymmetric, E2m1, E4m3, Symmetric},
        rounding::{Bf16, F32},
    };

    /// Numbers of many magnitudes, with zeros.
    fn numbers(count: usize) -> Vec<f32> {
        let mut state = 1u32;
        let mut next = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        (0..count)
            .map(|_| {
                let magnitude = f32::from_bits((110 + next() % 20) << 23 | next() & 0x007f_0000);
                match next() % 8 {
                    0 => 0.0,
                    1..4 => -magnitude,
                    _ => magnitude,
                }
            })
            .collect()
    }

    #[test]
    fn peaks_and_ranges_are_those_of_a_plain_loop() {
        for group in [5, 16, 32, 64, 96, 128] {
            let values = numbers(group * 3);
            for (found, lows, highs) in roofline_isa::at_every_level(|| {
                let (mut found, mut lows, mut highs) = ([0.0; 3], [0.0; 3], [0.0; 3]);
                peaks(&values, group, &mut found);
                ranges(&values, group, &mut lows, &mut highs);
                let (mut least, mut greatest) = ([0.0; 3], [0.0; 3]);
                extremes(&values, group, &mut least, &mut greatest);
                // Every group has numbers of both signs.
                assert_eq!((least, greatest), (lows, highs));
                (found, lows, highs)
            }) {
                for (at, values) in values.chunks(group).enumerate() {
                    assert_eq!(found[at], values.iter().fold(0.0, |peak: f32, value| peak.max(value.abs())));
                    assert_eq!(lows[at], values.iter().fold(0.0, |low: f32, value| low.min(*value)));
                    assert_eq!(highs[at], values.iter().fold(0.0, |high: f32, value| high.max(*value)));
                }
            }
        }
    }

    fn same_at_every_level<E: Element>(element: E) {
        for group in [7, 16, 32, 64, 128] {
            let values = numbers(group * 5);
            let mut results = roofline_isa::at_every_level(|| {
                let (scales, zeros) = ([0.01, 0.3, 1e-4, 2.0, 0.5], [0.0, -3.0, 2.0, 0.0, 1.0]);
                let mut codes = vec![0; values.len()];
                let outside = code(element, &values, group, &scales, &zeros, &mut codes);
                let mut decoded = vec![0.0; values.len()];
                expand(element, &codes, group, &scales, &zeros, &mut decoded);
                (outside, codes, decoded.into_iter().map(f32::to_bits).collect::<Vec<_>>())
            })
            .into_iter();
            let first = results.next().unwrap();
            assert!(results.all(|other| other == first));
        }
    }

    #[test]
    fn every_width_of_vectors_gives_the_same_bytes() {
        same_at_every_level(Symmetric::<Bf16>::new(8));
        same_at_every_level(Symmetric::<F32>::new(4));
        same_at_every_level(Asymmetric::<crate::rounding::F16>::new(4));
        same_at_every_level(E4m3::<Bf16>(PhantomData));
        same_at_every_level(E2m1::<F32>(PhantomData));
    }

    #[test]
    fn weights_beyond_the_range_are_counted() {
        let mut codes = [0; 4];
        // 7.5 steps are half a step beyond 7, 7.6 are more.
        let outside = code(Symmetric::<F32>::new(4), &[7.5, 7.6, -8.5, -8.6], 4, &[1.0], &[0.0], &mut codes);
        assert_eq!((outside, codes), (2, [7, 7, 0xf8, 0xf8]));
    }
}
