//! What must hold, and needs that nothing can meet.

use super::{Demand, Goal, Need, runtime};
use crate::{
    Error, Result,
    units::{Bytes, Seconds},
};

/// What must hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Memory of a device that may be used; all of it when not given.
    pub memory: Option<Bytes>,
    /// What the weights may take, of the whole model.
    pub weights: Option<Bytes>,
    /// The same for each weight, in bits.
    pub bits_per_weight: Option<f64>,
    /// The largest rise of the perplexity, as a share.
    pub quality_loss: Option<f64>,
    /// The fewest tokens per second for each sequence.
    pub tokens_per_s: Option<f64>,
    /// The longest time to the first token.
    pub first_token: Option<Seconds>,
    /// Only precisions whose weights a unit multiplies as they are stored.
    pub native_only: bool,
    /// Only these names, where there are any.
    pub allow: Vec<String>,
    /// Never these.
    pub deny: Vec<String>,
    /// Only plans that one of these runtimes loads, where there are any.
    pub runtimes: Vec<String>,
    /// Whether plans compete that may lose much, whose cost in quality is neither published nor estimated, or that have fewer
    /// than four bits.
    pub any_quality: bool,
}

impl Limits {
    /// Nothing must hold.
    pub const fn none() -> Self {
        Self {
            memory: None,
            weights: None,
            bits_per_weight: None,
            quality_loss: None,
            tokens_per_s: None,
            first_token: None,
            native_only: false,
            allow: Vec::new(),
            deny: Vec::new(),
            runtimes: Vec::new(),
            any_quality: false,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::none()
    }
}

impl Need<'_> {
    /// Refuses limits that nothing can meet, or that say nothing.
    pub(super) fn check(&self) -> Result<()> {
        let limits = self.limits;
        let refuse = |what: &str| Err(Error::Shape(format!("{what} must be more than nothing")));
        let nothing = |what: &str, value: &dyn std::fmt::Display| refuse(&format!("{what}, {value},"));
        if let Some(memory) = limits.memory.filter(|memory| *memory <= Bytes::ZERO) {
            return nothing("the memory limit", &memory);
        }
        if let Some(weights) = limits.weights.filter(|weights| *weights <= Bytes::ZERO) {
            return nothing("the size of the weights", &weights);
        }
        if let Some(bits) = limits.bits_per_weight.filter(|bits| !bits.is_finite() || *bits <= 0.0) {
            return nothing("the bits for each weight", &bits);
        }
        if let Some(rate) = limits.tokens_per_s.filter(|rate| rate.is_nan() || *rate <= 0.0) {
            return nothing("the fewest tokens per second", &rate);
        }
        if let Some(time) = limits.first_token.filter(|time| *time <= Seconds::ZERO) {
            return nothing("the longest time to the first token", &time);
        }
        if let Some(loss) = limits.quality_loss.filter(|loss| loss.is_nan() || *loss < 0.0) {
            return Err(Error::Shape(format!("the largest loss of quality, {loss}, must not be negative")));
        }
        if limits.first_token.is_some() && matches!(self.demand, Demand::Decode { .. }) {
            let what =
                "a time to the first token needs a prompt: ask for a prefill, or for a request with prompt and tokens";
            return Err(Error::Shape(what.to_owned()));
        }
        let known = |name: &String| runtime::names().any(|known| known.eq_ignore_ascii_case(name));
        if let Some(unknown) = limits.runtimes.iter().find(|name| !known(name)) {
            let all: Vec<&str> = runtime::names().collect();
            return Err(Error::Shape(format!("unknown runtime `{unknown}`: known are {}", all.join(", "))));
        }
        if self.batch == Some(0) {
            return refuse("the batch");
        }
        if self.devices == Some(0) {
            return refuse("the number of devices");
        }
        if let Some(price) = self.dollars_per_hour.filter(|price| !price.is_finite() || *price <= 0.0) {
            return nothing("the price of an hour", &price);
        }
        if self.goal == Goal::Cost && self.dollars_per_hour.is_none() {
            return Err(Error::Shape("the least cost needs the price of an hour".to_owned()));
        }
        let device = &self.machine.device;
        if self.goal == Goal::Energy && device.tdp.is_none() {
            let what =
                format!("nothing is known of the power of {}: neither measured energies nor a limit", device.name);
            return Err(Error::Shape(what));
        }
        if let Some(both) = limits.allow.iter().find(|name| limits.deny.contains(name)) {
            return Err(Error::Shape(format!("`{both}` is allowed and denied")));
        }
        Ok(())
    }
}
