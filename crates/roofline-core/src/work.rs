//! What an operator costs on any machine. Work is a value that adds; intensity is a method, never stored.

use std::{iter::Sum, ops};

use crate::units::{Bytes, Flops, Intensity};

/// Operations, and bytes that must move between memory and the chip at least once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Operations; a multiply-add is two.
    pub flops: Flops,
    /// Bytes read from memory.
    pub read: Bytes,
    /// Bytes written to memory.
    pub write: Bytes,
}

impl Work {
    /// Traffic in both directions.
    pub fn bytes(&self) -> Bytes {
        self.read + self.write
    }

    /// Operations per byte.
    pub fn intensity(&self) -> Intensity {
        self.flops / self.bytes()
    }
}

impl ops::Add for Work {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { flops: self.flops + other.flops, read: self.read + other.read, write: self.write + other.write }
    }
}

impl ops::Mul<f64> for Work {
    type Output = Self;
    fn mul(self, times: f64) -> Self {
        Self { flops: self.flops * times, read: self.read * times, write: self.write * times }
    }
}

impl Sum for Work {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self::default(), ops::Add::add)
    }
}
