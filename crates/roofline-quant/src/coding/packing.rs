//! Codes side by side: two to a byte, or in the words that compressed-tensors fills from the low bits up.

use roofline_isa::widest;

widest! {
    /// Two codes to a byte, the first in the low half; what stands above a code's low four bits is dropped. `flip` is
    /// exclusive-ored into every byte. An odd last code is alone in its byte.
    pub(crate) fn pack_nibbles(codes: &[u8], flip: u8, out: &mut [u8]) {
        let (pairs, rest) = codes.as_chunks::<2>();
        for (pair, out) in pairs.iter().zip(out.iter_mut()) {
            let pair = u16::from_le_bytes(*pair) & 0x0f0f;
            *out = (pair | pair >> 4) as u8 ^ flip;
        }
        if let [last] = rest {
            out[pairs.len()] = (last & 15) ^ (flip & 15);
        }
    }
}

widest! {
    /// The codes of [`pack_nibbles`], zero-extended.
    pub(crate) fn unpack_nibbles(packed: &[u8], flip: u8, codes: &mut [u8]) {
        let (pairs, rest) = codes.as_chunks_mut::<2>();
        for (pair, byte) in pairs.iter_mut().zip(packed) {
            let byte = u16::from(byte ^ flip);
            *pair = ((byte | byte << 4) & 0x0f0f).to_le_bytes();
        }
        if let [last] = rest {
            *last = (packed[pairs.len()] ^ flip) & 15;
        }
    }
}

widest! {
    /// Four-bit codes in two's complement, extended to eight bits.
    pub(crate) fn extend_sign(codes: &mut [u8]) {
        for code in codes {
            *code = (*code ^ 8).wrapping_sub(8);
        }
    }
}

/// Bytes of a row of `count` codes of `bits` bits in whole 32-bit words.
pub(crate) fn word_bytes(count: usize, bits: u8) -> usize {
    (count * usize::from(bits)).div_ceil(32) * 4
}

/// Codes of 4 or 8 bits in two's complement as compressed-tensors packs them: with half the range added, so that they
/// are not negative, from the low bits of 32-bit words up, the last word filled with zero bits.
pub(crate) fn pack_words(codes: &[u8], bits: u8, out: &mut [u8]) {
    let used = (codes.len() * usize::from(bits)).div_ceil(8);
    out[used..].fill(0);
    if bits == 4 {
        pack_nibbles(codes, 0x88, &mut out[..used]);
    } else {
        for (code, out) in codes.iter().zip(out) {
            *out = code ^ 0x80;
        }
    }
}

/// The codes of [`pack_words`].
pub(crate) fn unpack_words(packed: &[u8], bits: u8, codes: &mut [u8]) {
    if bits == 4 {
        unpack_nibbles(packed, 0x88, codes);
        extend_sign(codes);
    } else {
        for (byte, code) in packed.iter().zip(codes) {
            *code = byte ^ 0x80;
        }
    }
}

/// Codes of up to 8 bits as one stream of bits from the low end up, as MLX's words hold them: eight codes of `bits` bits
/// are `bits` bytes. There are a multiple of eight.
pub(crate) fn pack_stream(codes: &[u8], bits: u8, out: &mut [u8]) {
    match bits {
        4 => pack_nibbles(codes, 0, out),
        8 => out.copy_from_slice(codes),
        _ => {
            let (eights, _) = codes.as_chunks::<8>();
            for (eight, out) in eights.iter().zip(out.chunks_exact_mut(usize::from(bits))) {
                let word = eight.iter().rev().fold(0u64, |word, code| word << bits | u64::from(*code));
                out.copy_from_slice(&word.to_le_bytes()[..usize::from(bits)]);
            }
        }
    }
}

/// The codes of [`pack_stream`].
pub(crate) fn unpack_stream(packed: &[u8], bits: u8, codes: &mut [u8]) {
    match bits {
        4 => unpack_nibbles(packed, 0, codes),
        8 => codes.copy_from_slice(packed),
        _ => {
            let mask = (1u64 << bits) - 1;
            let (eights, _) = codes.as_chunks_mut::<8>();
            for (eight, packed) in eights.iter_mut().zip(packed.chunks_exact(usize::from(bits))) {
                let mut word = packed.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
                for code in eight {
                    *code = (word & mask) as u8;
                    word >>= bits;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn words_hold_every_code(codes in prop::collection::vec(-8i8..8, 1..100)) {
            let codes: Vec<u8> = codes.into_iter().map(|code| code as u8).collect();
            for bits in [4, 8] {
                let mut packed = vec![0xff; word_bytes(codes.len(), bits)];
                pack_words(&codes, bits, &mut packed);
                let mut back = vec![0; codes.len()];
                unpack_words(&packed, bits, &mut back);
                prop_assert_eq!(&back, &codes);
            }
        }
    }

    proptest! {
        #[test]
        fn streams_hold_every_code(codes in prop::collection::vec(any::<u8>(), 64)) {
            for bits in 1..=8 {
                let codes: Vec<u8> = codes.iter().map(|code| code & (0xff >> (8 - bits))).collect();
                let mut packed = vec![0xff; 8 * usize::from(bits)];
                pack_stream(&codes, bits, &mut packed);
                let mut back = vec![0; codes.len()];
                unpack_stream(&packed, bits, &mut back);
                prop_assert_eq!(&back, &codes);
            }
        }
    }

    #[test]
    fn the_first_code_is_lowest_and_the_rest_is_zero() {
        let mut packed = [0xff; 4];
        // -8, 7, 0 are 0, 15, 8 with eight added.
        pack_words(&[0xf8, 7, 0], 4, &mut packed);
        assert_eq!(packed, [0xf0, 0x08, 0, 0]);
    }
}
