//! The choices that lose least within a size.

use roofline_core::Plan;

use super::{Choice, Offer, Trial, best, least};
use crate::{Error, Result};

/// How large a result may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// Bytes of all files but the card.
    Bytes(u64),
    /// Bits of the tensors for each weight.
    Bits(f64),
}

/// Choices, and the plan that they are.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// Which of its offers each portion gets.
    pub chosen: Vec<usize>,
    /// The same as rules.
    pub plan: Plan,
    /// Bytes of all files but the card.
    pub bytes: u64,
    /// Bytes of the tensors alone.
    pub tensors: u64,
}

impl Fitted {
    /// Bytes that a goal is about.
    fn counted(&self, goal: Goal) -> u64 {
        match goal {
            Goal::Bytes(_) => self.bytes,
            Goal::Bits(_) => self.tensors,
        }
    }
}

impl Trial<'_> {
    /// Refuses a goal that the smallest formats do not meet, before anything is tried.
    pub fn reachable(&self, goal: Goal) -> Result<()> {
        let least = |portion: usize| {
            let all = self.sizes(portion).into_iter().map(|(offer, _)| offer);
            all.min_by_key(|offer| offer.bytes).into_iter().collect()
        };
        let smallest: Vec<Vec<Offer>> = (0..self.portions().len()).map(least).collect();
        let lost: Vec<Vec<f64>> = smallest.iter().map(|own| vec![0.0; own.len()]).collect();
        self.fitted(goal, &smallest, &lost).map(|_| ())
    }

    /// The best choices that fit, of each portion's offers and what is lost by each.
    pub fn fitted(&self, goal: Goal, offers: &[Vec<Offer>], losses: &[Vec<f64>]) -> Result<Fitted> {
        let parts: Vec<Vec<Choice>> = offers
            .iter()
            .zip(losses)
            .map(|(offers, losses)| {
                offers.iter().zip(losses).map(|(offer, loss)| Choice { bytes: offer.bytes, loss: *loss }).collect()
            })
            .collect();
        let limit = match goal {
            Goal::Bytes(bytes) => bytes,
            Goal::Bits(bits) => (bits * self.weights() as f64 / 8.0).floor() as u64,
        };
        let smallest = best(&parts, least(&parts)).ok_or_else(|| {
            Error::unsupported(
                format!("{} stores a part of this model in nothing", self.layout()),
                "take another layout",
            )
        })?;
        let smallest = self.composed(smallest, offers)?;
        if smallest.counted(goal) > limit {
            return Err(self.too_small(goal, &smallest));
        }
        // What is beside the chosen tensors: norms, headers, a tokenizer. The most that any plan was found to need is set
        // aside, so the next one fits, unless it needs more still.
        let mut beside = smallest.counted(goal) - least(&parts);
        let mut fitting = smallest;
        while let Some(chosen) = limit.checked_sub(beside).and_then(|budget| best(&parts, budget)) {
            let own: u64 = parts.iter().zip(&chosen).map(|(part, at)| part[*at].bytes).sum();
            let made = self.composed(chosen, offers)?;
            if made.counted(goal) <= limit {
                fitting = made;
                break;
            }
            beside = beside.max(made.counted(goal).saturating_sub(own));
        }
        Ok(fitting)
    }

    fn composed(&self, chosen: Vec<usize>, offers: &[Vec<Offer>]) -> Result<Fitted> {
        let formats = self.portions().iter().zip(offers).zip(&chosen);
        let formats: Vec<_> = formats.map(|((portion, own), at)| (portion, own[*at].format)).collect();
        let plan = self.plan(&formats)?;
        let (bytes, tensors) = self.bytes(&plan)?;
        Ok(Fitted { chosen, plan, bytes, tensors })
    }

    fn too_small(&self, goal: Goal, smallest: &Fitted) -> Error {
        let least = smallest.counted(goal);
        let words = match goal {
            Goal::Bytes(asked) => format!("{least} B at least, and {asked} B are asked for"),
            Goal::Bits(asked) => {
                // Rounded up: what is told can be asked for.
                let bits = (8000.0 * least as f64 / self.weights().max(1) as f64).ceil() / 1000.0;
                format!("{bits:.3} bits for each weight at least, and {asked} are asked for")
            }
        };
        let what = format!("this model as {} takes {words}", self.layout());
        Error::unsupported(what, "aim at more, or take another layout")
    }
}
