//! Hazard: the first calls fault pages in, wake sleeping threads and find a clock that idles. They say nothing about the
//! kernel, so they are run and thrown away: at least a few of them, and for at least a few milliseconds.

use std::time::Instant;

use roofline_core::units::Seconds;

use crate::Result;

/// How much to throw away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warmup {
    /// At least so many calls.
    pub calls: u32,
    /// And so much time, unless that takes more than `most` calls.
    pub time: Seconds,
    /// At most so many calls.
    pub most: u32,
}

impl Default for Warmup {
    fn default() -> Self {
        Self { calls: 2, time: Seconds::new(0.02), most: 200 }
    }
}

impl Warmup {
    /// Calls `sample` until it is warm.
    pub fn run(&self, mut sample: impl FnMut() -> Result<Seconds>) -> Result<()> {
        let start = Instant::now();
        let (mut spent, mut calls) = (Seconds::ZERO, 0);
        while calls < self.calls || (spent < self.time && calls < self.most) {
            spent += sample()?;
            calls += 1;
            // A sample may be one of many calls that were made; what counts is how long the machine was busy.
            spent = spent.max(Seconds::new(start.elapsed().as_secs_f64()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_calls_and_enough_time() {
        let calls = |each: f64| {
            let mut count = 0;
            Warmup { calls: 3, time: Seconds::new(1.0), most: 50 }
                .run(|| {
                    count += 1;
                    Ok(Seconds::new(each))
                })
                .unwrap();
            count
        };
        assert_eq!(calls(5.0), 3);
        assert_eq!(calls(0.125), 8);
        assert_eq!(calls(0.0), 50);
    }
}
