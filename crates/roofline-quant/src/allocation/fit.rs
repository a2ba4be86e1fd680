//! The choices that lose least within a size.

use std::collections::BTreeSet;

use roofline_core::Plan;

use super::{Choice, Offer, Trial, best, least, trial::KEPT};
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

/// Numbers of offers, for each portion.
type Numbers = Vec<Vec<usize>>;

impl Trial<'_> {
    /// Refuses a goal that the smallest formats do not meet, before anything is tried.
    pub fn reachable(&self, goal: Goal) -> Result<()> {
        let all = |portion| self.sizes(portion).into_iter().map(|(offer, _)| offer).collect();
        let offers: Vec<Vec<Offer>> = (0..self.portions().len()).map(all).collect();
        let mut smallest: Option<Fitted> = None;
        for numbers in self.alike(&offers) {
            let found = self.smallest(&offers, &numbers)?;
            if found.as_ref().is_some_and(|found| found.counted(goal) <= self.limit(goal)) {
                return Ok(());
            }
            smallest = smaller(goal, smallest, found);
        }
        Err(self.too_small(goal, smallest.as_ref()))
    }

    /// The formats of each portion that are worth a try, the smallest first: none takes as much as another and is further from the
    /// weights. Where all portions have one format, it is all of them that this is asked of, and none is too large.
    pub fn worthwhile(&self, goal: Goal, rated: &[Vec<(Offer, f64)>]) -> Vec<Vec<Offer>> {
        let kept: Option<Vec<&str>> = self.has_one_format().then(|| {
            let of = |own: &[(Offer, f64)], format: &str| own.iter().find(|(offer, _)| offer.format == format).copied();
            let formats: BTreeSet<&str> = rated.iter().flatten().map(|(offer, _)| offer.format).collect();
            let all = formats.into_iter().map(|format| {
                // What cannot have it is kept.
                let each = rated.iter().filter_map(|own| of(own, format).or_else(|| of(own, KEPT)));
                let (bytes, error) =
                    each.fold((0, 0.0), |(bytes, sum), (offer, error)| (bytes + offer.bytes, sum + error));
                (Offer { format, bytes }, error)
            });
            let all = all.collect::<Vec<_>>();
            let limit = self.limit(goal);
            let fits = unbeaten(&all).into_iter().filter(|offer| offer.bytes <= limit || offer.format == KEPT);
            fits.map(|offer| offer.format).collect()
        });
        let of = |own: &Vec<(Offer, f64)>| match &kept {
            None => unbeaten(own),
            Some(kept) => {
                let own = own.iter().map(|(offer, _)| *offer);
                let mut own: Vec<Offer> =
                    own.filter(|offer| offer.format == KEPT || kept.contains(&offer.format)).collect();
                own.sort_by_key(|offer| offer.bytes);
                own
            }
        };
        rated.iter().map(of).collect()
    }

    /// The best choices that fit, of each portion's offers and what is lost by each.
    pub fn fitted(&self, goal: Goal, offers: &[Vec<Offer>], losses: &[Vec<f64>]) -> Result<Fitted> {
        let (mut best, mut smallest): (Option<(f64, Fitted)>, Option<Fitted>) = (None, None);
        for numbers in self.alike(offers) {
            let Some(own) = self.smallest(offers, &numbers)? else { continue };
            if own.counted(goal) > self.limit(goal) {
                smallest = smaller(goal, smallest, Some(own));
                continue;
            }
            let found = self.fitted_of(goal, offers, losses, &numbers, own)?;
            let loss = found.chosen.iter().zip(losses).map(|(at, losses)| losses[*at]).sum();
            if best.as_ref().is_none_or(|(least, _)| loss < *least) {
                best = Some((loss, found));
            }
        }
        best.map(|(_, found)| found).ok_or_else(|| self.too_small(goal, smallest.as_ref()))
    }

    /// The offers that may stand beside each other: all, or where one format is all that there is, each beside what is kept.
    fn alike(&self, offers: &[Vec<Offer>]) -> Vec<Numbers> {
        let of = |format: Option<&str>| -> Numbers {
            let stands = |offer: &Offer| format.is_none_or(|format| [format, KEPT].contains(&offer.format));
            offers.iter().map(|own| (0..own.len()).filter(|at| stands(&own[*at])).collect()).collect()
        };
        if !self.has_one_format() {
            return vec![of(None)];
        }
        let formats: BTreeSet<&str> = offers.iter().flatten().map(|offer| offer.format).collect();
        formats.into_iter().filter(|format| *format != KEPT).map(|format| of(Some(format))).collect()
    }

    /// The smallest of some offers; nothing where a portion has none of them.
    fn smallest(&self, offers: &[Vec<Offer>], numbers: &Numbers) -> Result<Option<Fitted>> {
        let least =
            |(own, numbers): (&Vec<Offer>, &Vec<usize>)| numbers.iter().copied().min_by_key(|at| own[*at].bytes);
        let chosen: Option<Vec<usize>> = offers.iter().zip(numbers).map(least).collect();
        chosen.map(|chosen| self.composed(chosen, offers)).transpose()
    }

    fn fitted_of(
        &self,
        goal: Goal,
        offers: &[Vec<Offer>],
        losses: &[Vec<f64>],
        numbers: &Numbers,
        smallest: Fitted,
    ) -> Result<Fitted> {
        let choices = |((offers, losses), numbers): ((&Vec<Offer>, &Vec<f64>), &Vec<usize>)| -> Vec<Choice> {
            numbers.iter().map(|at| Choice { bytes: offers[*at].bytes, loss: losses[*at] }).collect()
        };
        let parts: Vec<Vec<Choice>> = offers.iter().zip(losses).zip(numbers).map(choices).collect();
        let limit = self.limit(goal);
        // What is beside the chosen tensors: norms, headers, a tokenizer. The most that any plan was found to need is set
        // aside, so the next one fits, unless it needs more still.
        let mut beside = smallest.counted(goal) - least(&parts);
        while let Some(chosen) = limit.checked_sub(beside).and_then(|budget| best(&parts, budget)) {
            let own: u64 = parts.iter().zip(&chosen).map(|(part, at)| part[*at].bytes).sum();
            let chosen = numbers.iter().zip(chosen).map(|(numbers, at)| numbers[at]).collect();
            let made = self.composed(chosen, offers)?;
            if made.counted(goal) <= limit {
                return Ok(made);
            }
            beside = beside.max(made.counted(goal).saturating_sub(own));
        }
        Ok(smallest)
    }

    /// Bytes that a goal allows.
    fn limit(&self, goal: Goal) -> u64 {
        match goal {
            Goal::Bytes(bytes) => bytes,
            Goal::Bits(bits) => (bits * self.weights() as f64 / 8.0).floor() as u64,
        }
    }

    fn composed(&self, chosen: Vec<usize>, offers: &[Vec<Offer>]) -> Result<Fitted> {
        let formats = self.portions().iter().zip(offers).zip(&chosen);
        let formats: Vec<_> = formats.map(|((portion, own), at)| (portion, own[*at].format)).collect();
        let plan = self.plan(&formats)?;
        let (bytes, tensors) = self.bytes(&plan)?;
        Ok(Fitted { chosen, plan, bytes, tensors })
    }

    fn too_small(&self, goal: Goal, smallest: Option<&Fitted>) -> Error {
        let Some(least) = smallest.map(|smallest| smallest.counted(goal)) else {
            let what = format!("{} stores a part of this model in nothing", self.layout());
            return Error::unsupported(what, "take another layout");
        };
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

/// The smaller of two, as a goal counts.
fn smaller(goal: Goal, one: Option<Fitted>, other: Option<Fitted>) -> Option<Fitted> {
    one.into_iter().chain(other).min_by_key(|fitted| fitted.counted(goal))
}

/// Those that no other is as small and as near as, the smallest first.
fn unbeaten(known: &[(Offer, f64)]) -> Vec<Offer> {
    let beaten = |(one, error): &(Offer, f64)| {
        known.iter().any(|(other, least)| {
            let no_worse = other.bytes <= one.bytes && least <= error;
            no_worse && (other.bytes < one.bytes || least < error || other.format < one.format)
        })
    };
    let mut offers: Vec<Offer> = known.iter().filter(|one| !beaten(one)).map(|(offer, _)| *offer).collect();
    offers.sort_by_key(|offer| offer.bytes);
    offers
}
