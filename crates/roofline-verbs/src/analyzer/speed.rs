//! Times of one thing done in several ways, as rates.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::run::seconds;
use crate::{Error, Result};

/// Ways that were timed.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Speed {
    pub runs: Vec<TimedWay>,
    /// The way that the others are compared with; nothing is compared where it has no time
    pub baseline: Option<String>,
}

/// A way, and how long it took.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct TimedWay {
    pub label: String,
    /// Tokens that came out, of every repetition
    pub tokens: u64,
    /// Seconds of every repetition
    pub times: Vec<f64>,
}

/// The ways as rates.
#[derive(Serialize, JsonSchema)]
pub struct SpeedAnswer {
    pub rows: Vec<Way>,
}

/// One way.
#[derive(Clone, Serialize, JsonSchema)]
#[schemars(rename = "WaySpeed")]
pub struct Way {
    pub label: String,
    pub tokens: u64,
    pub avg_time: Option<f64>,
    /// Of a sample; zero where there is one repetition.
    pub std_time: Option<f64>,
    pub tokens_per_sec: Option<f64>,
    /// Tokens per second over those of the baseline.
    pub speedup: Option<f64>,
}

/// The mean of times and their standard deviation, that of a sample; none of no times.
pub(super) fn mean_and_spread(times: &[f64]) -> Result<Option<(f64, f64)>> {
    for time in times {
        seconds(*time)?;
    }
    if times.is_empty() {
        return Ok(None);
    }
    let count = times.len() as f64;
    let mean = times.iter().sum::<f64>() / count;
    let squares: f64 = times.iter().map(|time| (time - mean).powi(2)).sum();
    Ok(Some((mean, (squares / (count - 1.0).max(1.0)).sqrt())))
}

impl Speed {
    pub(super) fn answer(&self) -> Result<SpeedAnswer> {
        if self.runs.is_empty() {
            return Err(Error::request("nothing was timed", "tell of at least one way"));
        }
        let mut rows = Vec::new();
        for way in &self.runs {
            let timed = mean_and_spread(&way.times)?;
            rows.push(Way {
                label: way.label.clone(),
                tokens: way.tokens,
                avg_time: timed.map(|timed| timed.0),
                std_time: timed.map(|timed| timed.1),
                tokens_per_sec: timed.map(|timed| way.tokens as f64 / timed.0),
                speedup: None,
            });
        }
        let named = |row: &&Way| self.baseline.as_ref().is_some_and(|name| *name == row.label);
        if let Some(base) = rows.iter().find(named).and_then(|row| row.tokens_per_sec).filter(|rate| *rate > 0.0) {
            for row in &mut rows {
                row.speedup = row.tokens_per_sec.map(|rate| rate / base);
            }
        }
        Ok(SpeedAnswer { rows })
    }
}
