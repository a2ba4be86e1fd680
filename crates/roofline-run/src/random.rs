//! Numbers to multiply: never zeros, which take less power and sometimes less time than what a model holds.

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): small, fast, and good enough for numbers that are only multiplied.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `count`, which is far below 2^32: all are as likely, to one part in 2^32.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.next()) * count as u128) >> 64) as usize
    }

    /// The sum of four uniform numbers, shifted and scaled to mean 0 and standard deviation 1: near enough to normal.
    pub(crate) fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: u64 = (0..4).map(|part| bits >> (16 * part) & 0xffff).sum();
        (sum as f32 / 65535.0 - 2.0) * 3f32.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_centred_and_of_unit_size() {
        let mut random = Random(1);
        let values: Vec<f32> = (0..10_000).map(|_| random.normal()).collect();
        let mean = values.iter().sum::<f32>() / 1e4;
        let square = values.iter().map(|value| value * value).sum::<f32>() / 1e4;
        assert!(mean.abs() < 0.05 && (square - 1.0).abs() < 0.05, "{mean} {square}");
    }
}
