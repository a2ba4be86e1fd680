//! Kernels one after the other, and the weakest that their times stand on.

use super::Prediction;
use crate::{Error, Result, machine::Basis};

/// What has been added up so far.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum(Option<(Prediction, Basis)>);

impl Sum {
    /// The next kernel.
    pub(super) fn add(&mut self, prediction: Prediction, basis: Basis) {
        self.0 = Some(match self.0 {
            Some((sum, weakest)) => (sum.then(prediction), weakest.max(basis)),
            None => (prediction, basis),
        });
    }

    /// All of them.
    pub(super) fn total(self) -> Result<(Prediction, Basis)> {
        self.0.ok_or_else(|| Error::Shape("a graph without kernels takes no time".to_owned()))
    }
}
