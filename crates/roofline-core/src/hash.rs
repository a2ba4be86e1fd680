//! A hash that is the same on every machine and in every version, for splits, tests and names of files that must repeat.

/// 64-bit FNV-1a (Fowler, Noll and Vo; the constants are those of `draft-eastlake-fnv`). Not for secrets.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    let mut hash = Fnv1a::default();
    hash.add(bytes);
    hash.value()
}

/// The same of bytes that come one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Fnv1a(u64);

impl Default for Fnv1a {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv1a {
    /// More bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        const PRIME: u64 = 0x0100_0000_01b3;
        self.0 = bytes.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
    }

    /// The hash of all that came.
    pub fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::{Fnv1a, fnv1a};

    /// Test vectors of the same draft.
    #[test]
    fn published_vectors() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
        let mut parts = Fnv1a::default();
        parts.add(b"foo");
        parts.add(b"bar");
        assert_eq!(parts.value(), fnv1a(b"foobar"));
    }
}
