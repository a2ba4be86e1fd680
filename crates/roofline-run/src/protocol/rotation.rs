//! Hazard: a second call finds its weights in the cache, and a decode step in a real model never does: between two uses of
//! a layer all others pass through. So every sample reads another copy of the operands, and all copies together are past
//! the caches.

use roofline_core::units::Bytes;

/// Copies past this many caches: least-recently-used replacement keeps nothing, and what is random keeps little.
const TIMES_CACHE: f64 = 2.5;
/// Copies below this many caches leave part of them where they were.
pub(crate) const LEAST: f64 = 2.0;
/// Share of free memory that copies may take.
const SHARE: f64 = 0.6;

/// How many copies there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rotation {
    /// Copies of the operands.
    pub(crate) copies: usize,
    /// Bytes of all copies over the bytes of the caches.
    pub(crate) times_cache: f64,
}

impl Rotation {
    /// Copies of `operands` past `cache`, as far as `free` memory allows; none where not even one fits.
    pub(crate) fn cold(operands: Bytes, cache: Bytes, free: Bytes) -> Option<Self> {
        let room = (free * SHARE / operands).floor();
        if room < 1.0 {
            return None;
        }
        // Two at least: the same copy twice in a row would find its last part still there.
        let wanted = (cache * TIMES_CACHE / operands).ceil().max(2.0);
        let copies = wanted.min(room);
        Some(Self { copies: copies as usize, times_cache: operands * copies / cache })
    }

    /// Memory that must be free for one copy of `operands`: others may take theirs meanwhile.
    pub(crate) fn least(operands: Bytes) -> Bytes {
        operands / SHARE
    }

    /// One copy, which stays where it is.
    pub(crate) fn warm(operands: Bytes, cache: Bytes) -> Self {
        Self { copies: 1, times_cache: operands / cache }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_go_past_the_cache_and_fit_the_memory() {
        let mb = |bytes: f64| Bytes::new(bytes * 1e6);
        let least = Rotation::least(mb(64.0));
        assert!(Rotation::cold(mb(64.0), mb(260.0), least * 1.001).is_some());
        assert!(Rotation::cold(mb(64.0), mb(260.0), least * 0.999).is_none());
        let rotation = Rotation::cold(mb(64.0), mb(260.0), mb(20_000.0)).unwrap();
        assert_eq!(rotation.copies, 11); // 2.5 * 260 / 64
        assert!(rotation.times_cache > LEAST);
        assert_eq!(Rotation::cold(mb(4000.0), mb(260.0), mb(20_000.0)).unwrap().copies, 2);
        let tight = Rotation::cold(mb(64.0), mb(260.0), mb(500.0)).unwrap();
        assert_eq!((tight.copies, tight.times_cache < LEAST), (4, true));
        assert_eq!(Rotation::cold(mb(64.0), mb(260.0), mb(100.0)), None);
        assert_eq!(Rotation::warm(mb(64.0), mb(260.0)).copies, 1);
    }
}
