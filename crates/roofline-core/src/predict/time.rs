//! Times of the two tiers, which cannot be mixed: a floor divides by a floor, an expectation by an expectation.

use std::{fmt, marker::PhantomData, ops};

use crate::units::Seconds;

/// Marks times that nothing can beat.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ideal;

/// Marks times that are likely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likely;

/// The least time a machine can take.
pub type Floor = Time<Ideal>;
/// The time to expect of it.
pub type Outlook = Time<Likely>;

/// A time of one tier. There is no ratio of two tiers: it would say nothing of either.
///
/// ```compile_fail
/// use roofline_core::{predict::{Floor, Outlook}, units::Seconds};
/// let ratio = Floor::new(Seconds::new(1.0)) / Outlook::new(Seconds::new(2.0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Time<T>(Seconds, PhantomData<T>);

impl<T> Time<T> {
    /// A time of this tier.
    pub const fn new(seconds: Seconds) -> Self {
        Self(seconds, PhantomData)
    }

    /// The time, whatever the tier.
    pub const fn seconds(&self) -> Seconds {
        self.0
    }

    /// In microseconds.
    pub fn micros(&self) -> f64 {
        self.0.micros()
    }
}

impl<T: PartialEq> PartialOrd for Time<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.0.partial_cmp(&other.0)
    }
}

impl<T> ops::Div for Time<T> {
    type Output = f64;
    fn div(self, other: Self) -> f64 {
        self.0 / other.0
    }
}

impl<T> ops::Add for Time<T> {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self::new(self.0 + other.0)
    }
}

impl<T> ops::Mul<f64> for Time<T> {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        Self::new(self.0 * factor)
    }
}

impl<T> fmt::Display for Time<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
