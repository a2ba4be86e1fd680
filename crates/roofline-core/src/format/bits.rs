//! Dense little-endian bit streams: element `i` of `b` bits occupies bits `[i*b, i*b + b)`, lowest bit first.

/// Appends `codes` of `bits` bits each, padded with zeros to a whole byte.
pub(super) fn pack(codes: impl Iterator<Item = u64>, bits: u32, out: &mut Vec<u8>) {
    let mut pending: u128 = 0;
    let mut filled = 0;
    for code in codes {
        pending |= u128::from(code) << filled;
        filled += bits;
        while filled >= 8 {
            out.push(pending as u8);
            pending >>= 8;
            filled -= 8;
        }
    }
    if filled > 0 {
        out.push(pending as u8);
    }
}

/// Element `index` of a packed stream.
pub(super) fn unpack(bytes: &[u8], bits: u32, index: usize) -> u64 {
    let start = index * bits as usize;
    let last = (start + bits as usize - 1) / 8;
    let window = bytes[start / 8..=last].iter().rev().fold(0u128, |value, byte| (value << 8) | u128::from(*byte));
    (window >> (start % 8)) as u64 & (u64::MAX >> (64 - bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_round_trips() {
        for bits in [2, 3, 4, 6, 8, 16, 32, 64] {
            let mask = u64::MAX >> (64 - bits);
            let codes: Vec<u64> = (0..37u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask).collect();
            let mut bytes = Vec::new();
            pack(codes.iter().copied(), bits, &mut bytes);
            assert_eq!(bytes.len(), (37 * bits as usize).div_ceil(8));
            let back: Vec<u64> = (0..37).map(|i| unpack(&bytes, bits, i)).collect();
            assert_eq!(back, codes, "{bits} bits");
        }
    }
}
