use proptest::prelude::*;

use super::*;

/// What `values` become in blocks.
pub(super) fn back(block: GgufBlock, values: &[f32]) -> Vec<f32> {
    block.decoded(&block.encoded(values))
}

/// `||x - y|| / ||x||`.
pub(super) fn error(x: &[f32], y: &[f32]) -> f32 {
    let norm = |of: &mut dyn Iterator<Item = f32>| of.map(|x| x * x).sum::<f32>().sqrt();
    norm(&mut x.iter().zip(y).map(|(x, y)| x - y)) / norm(&mut x.iter().copied())
}

/// Those whose values are evenly spaced.
fn even() -> Vec<GgufBlock> {
    GgufBlock::ALL.into_iter().filter(|block| !block.is_uneven()).collect()
}

/// `x = scale * code - minimum` of the weight at `at` in a block, read from the bytes as `ggml-common.h` lays them out.
fn affine(block: GgufBlock, bytes: &[u8], at: usize) -> (f32, f32) {
    match block {
        GgufBlock::Q8_0 | GgufBlock::Q5_0 | GgufBlock::Q4_0 => (half::read(bytes), 0.0),
        GgufBlock::Q5_1 | GgufBlock::Q4_1 => (half::read(bytes), -half::read(&bytes[2..])),
        GgufBlock::Q3K => (half::read(&bytes[q3k::D..]) * f32::from(q3k::unpack(&bytes[q3k::SCALES..], at / 16)), 0.0),
        GgufBlock::Q2K => {
            let (scale, minimum) = (bytes[at / 16] & 15, bytes[at / 16] >> 4);
            (half::read(&bytes[q2k::D..]) * f32::from(scale), half::read(&bytes[q2k::DMIN..]) * f32::from(minimum))
        }
        GgufBlock::Q6K => (half::read(&bytes[q6k::D..]) * f32::from(bytes[q6k::SCALES + at / 16] as i8), 0.0),
        GgufBlock::Q5K | GgufBlock::Q4K => {
            let (scale, minimum) = q45k::unpack(&bytes[4..16], at / 32);
            (half::read(bytes) * f32::from(scale), half::read(&bytes[2..]) * f32::from(minimum))
        }
        _ => unreachable!("values with uneven steps are no such thing"),
    }
}

#[test]
fn blocks_have_the_sizes_of_ggml() {
    let sizes = GgufBlock::ALL.map(|block| (block.elements(), block.bytes()));
    let large = [(256, 144), (32, 18), (256, 136), (256, 110), (256, 110), (256, 98), (256, 84)];
    let two = [(256, 82), (256, 74), (256, 66), (256, 56), (256, 50)];
    let small = [(32, 34), (256, 210), (32, 24), (32, 22), (256, 176), (32, 20), (32, 18)];
    let expected: Vec<(usize, usize)> = small.into_iter().chain(large).chain(two).collect();
    assert_eq!(sizes.to_vec(), expected);
}

#[test]
#[should_panic(expected = "300 weights are no whole number of Q4K blocks")]
fn what_is_no_whole_block_is_refused() {
    GgufBlock::Q4K.encode(&[0.0; 300], &mut [0; 144]);
}

/// A code that is the value of a Q6_K weight by hand: the first of 256, with d = 1, a scale of 3 and the code 0b10_0101 = 37 = 32 + 5.
#[test]
fn a_block_written_by_hand_is_read() {
    let mut bytes = [0; 210];
    bytes[0] = 0b0101;
    bytes[128] = 0b10;
    bytes[192] = 3;
    bytes[208..].copy_from_slice(&[0x00, 0x3c]);
    let values = GgufBlock::Q6K.decoded(&bytes);
    assert_eq!((values[0], values[1], values[16]), (15.0, -96.0, 0.0));
    // Q4_K: d = 1, dmin = 2; the fifth sub-block has the scale 0b10_0001 and the minimum 0b01_0010, the code 9.
    let mut bytes = [0; 144];
    bytes[..4].copy_from_slice(&[0x00, 0x3c, 0x00, 0x40]);
    bytes[4] = 0b10 << 6;
    bytes[8] = 0b01 << 6;
    bytes[12] = 0b0010_0001;
    bytes[16 + 64] = 9;
    assert_eq!(GgufBlock::Q4K.decoded(&bytes)[128], 33.0 * 9.0 - 2.0 * 18.0);
}

proptest! {
    /// Every weight lands on the nearest of its block's levels: within half a step, but for those beyond the last level,
    /// which the search of the K types gives up for the others and `q4_0` and `q5_0` lack on one side. Blocks of one scale
    /// choose codes before that is rounded to f16, by 2^-11 of itself or half of the smallest, 2^-25, and so is a minimum.
    #[test]
    fn decoding_is_within_half_a_step(
        block in prop::sample::select(even()),
        values in prop::collection::vec(-1f32..1.0, 256),
        exponent in -20i32..15,
    ) {
        let values: Vec<f32> = values.iter().map(|value| value * 2f32.powi(exponent)).collect();
        let bytes = block.encoded(&values);
        let decoded = block.decoded(&bytes);
        let codes = f32::from(1u16 << block.element().bits());
        let lowest = if block.has_minimum() { 0.0 } else { -codes / 2.0 };
        for (at, (x, y)) in values.iter().zip(&decoded).enumerate() {
            let own = &bytes[at / block.elements() * block.bytes()..][..block.bytes()];
            let (scale, minimum) = affine(block, own, at % block.elements());
            let level = if scale == 0.0 { 0.0 } else { ((x + minimum) / scale).round() };
            let level = level.clamp(lowest, lowest + codes - 1.0);
            let nearest = (scale * level - minimum - x).abs();
            let of_minimum = if block.has_minimum() { 2.0 * minimum.abs() } else { 0.0 };
            // Twice: the nearest level is off, and the one that was chosen.
            let off = (x.abs() + of_minimum) / 1000.0 + (codes + 1.0) * 2f32.powi(-24);
            let rounding = if block.elements() == 32 { off } else { 0.0 };
            let allowed = nearest + rounding + 1e-6 * (x.abs() + minimum.abs());
            prop_assert!((x - y).abs() <= allowed, "{block:?} {at}: {x} became {y}, allowed {allowed}");
        }
    }

    /// A block says nothing about its neighbours: rows may be packed one by one or all at once.
    #[test]
    fn blocks_are_independent(
        block in prop::sample::select(GgufBlock::ALL.to_vec()),
        values in prop::collection::vec(-1f32..1.0, 768),
    ) {
        let apart: Vec<u8> = values.chunks(block.elements()).flat_map(|values| block.encoded(values)).collect();
        prop_assert_eq!(block.encoded(&values), apart);
    }
}
