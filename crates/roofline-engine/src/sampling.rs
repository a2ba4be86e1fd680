//! From logits to a token.
//!
//! The same seed gives the same tokens on every machine that computes the same logits: the random numbers are
//! SplitMix64's, the sums run in one order, and the exponential is computed here with additions and multiplications
//! alone, since the one of the system's library differs between systems in its last bit.

use crate::{Error, Result};

/// How the next token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// What the logits are divided by. 0 always takes the most probable token.
    pub temperature: f32,
    /// Only the smallest set of most probable tokens whose probability reaches this is drawn from. 1 keeps all, 0 one.
    pub top_p: f32,
    /// Where the random numbers start.
    pub seed: u64,
}

impl Sampling {
    /// Always the most probable token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, seed: 0 };
}

/// Chooses tokens, one after the other.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    random: SplitMix64,
    /// Weights relative to the most probable token's, and their tokens. Kept between calls for its memory alone.
    candidates: Vec<(f64, u32)>,
}

impl Sampler {
    /// A sampler at the start of its random numbers.
    pub fn new(sampling: Sampling) -> Result<Self> {
        let Sampling { temperature, top_p, seed } = sampling;
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(Error::Sampling {
                name: "the temperature",
                value: temperature,
                allowed: "a number from 0 (always the most probable token) up",
            });
        }
        if !(0.0..=1.0).contains(&top_p) {
            return Err(Error::Sampling { name: "top-p", value: top_p, allowed: "a probability from 0 to 1" });
        }
        Ok(Self { sampling, random: SplitMix64(seed), candidates: Vec::new() })
    }

    /// The next token, whose id is its place in the logits.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        let best = most_probable(logits)?;
        if self.sampling.temperature == 0.0 {
            return Ok(best as u32);
        }
        let largest = f64::from(logits[best]);
        let temperature = f64::from(self.sampling.temperature);
        self.candidates.clear();
        self.candidates.extend(
            (0..).zip(logits).map(|(id, &logit)| (exp_of_negative((f64::from(logit) - largest) / temperature), id)),
        );
        if self.sampling.top_p < 1.0 {
            keep_top(&mut self.candidates, f64::from(self.sampling.top_p));
        }
        Ok(draw(&self.candidates, self.random.fraction()))
    }
}

/// The place of the largest logit, the first of equals.
fn most_probable(logits: &[f32]) -> Result<usize> {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if !logit.is_finite() {
            return Err(Error::Logits { reason: format!("the logit of token {id} is {logit}, which is no number") });
        }
        if logit > logits[best] {
            best = id;
        }
    }
    if logits.is_empty() {
        return Err(Error::Logits { reason: "there are no logits to choose a token from".to_owned() });
    }
    Ok(best)
}

/// Leaves the smallest set of the heaviest whose share reaches `top_p`, heaviest first, the lower token first of equals.
///
/// All that weigh less than a share of `(1 - top_p) / count` weigh less than `1 - top_p` together, so the set is found
/// among the others, and of a large vocabulary only a few are sorted.
fn keep_top(candidates: &mut Vec<(f64, u32)>, top_p: f64) {
    let total: f64 = candidates.iter().map(|(weight, _)| weight).sum();
    let least = total * (1.0 - top_p) / candidates.len() as f64;
    // The heaviest has at least the mean share, and the comparison must not lose it to rounding.
    candidates.retain(|&(weight, _)| weight >= least || weight == 1.0);
    candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut sum = 0.0;
    let enough = candidates.iter().position(|(weight, _)| {
        sum += weight;
        sum >= top_p * total
    });
    if let Some(last) = enough {
        candidates.truncate(last + 1);
    }
}

/// The token at this fraction of all weight.
fn draw(candidates: &[(f64, u32)], fraction: f64) -> u32 {
    let total: f64 = candidates.iter().map(|(weight, _)| weight).sum();
    let target = fraction * total;
    let mut sum = 0.0;
    let mut last = 0;
    for &(weight, id) in candidates {
        // One that weighs nothing is never drawn, not even where rounding leaves the target at the very end.
        if weight > 0.0 {
            sum += weight;
            last = id;
            if target < sum {
                break;
            }
        }
    }
    last
}

/// e to a power that is not positive, within 4e-16 of the true value; 0 where that is below the smallest normal number.
///
/// `x = k ln 2 + r` with `|r| <= ln 2 / 2`, whose Taylor series ends below the rounding after 14 terms (0.347^14 / 14!
/// is 4e-18).
fn exp_of_negative(x: f64) -> f64 {
    /// ln 2 in two parts: the upper has 32 bits, so that `k` times it is exact.
    const LN2_UPPER: f64 = 6.931_471_803_691_238e-1;
    const LN2_LOWER: f64 = 1.908_214_929_270_587_7e-10;
    // e^-708 is the last that is a normal number.
    if x < -708.0 {
        return 0.0;
    }
    let k = (x * std::f64::consts::LOG2_E).round();
    let r = (x - k * LN2_UPPER) - k * LN2_LOWER;
    let mut series = 1.0;
    for term in (1..14).rev() {
        series = 1.0 + series * r / f64::from(term);
    }
    series * f64::from_bits(((1023 + k as i64) as u64) << 52)
}

/// A generator of random numbers: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
#[derive(Debug, Clone)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// At least 0 and below 1, in steps of 2^-53.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sampler(temperature: f32, top_p: f32, seed: u64) -> Sampler {
        Sampler::new(Sampling { temperature, top_p, seed }).unwrap()
    }

    /// How often each of four tokens comes in 40,000 draws, as a share.
    fn shares(mut sampler: Sampler, logits: [f32; 4]) -> [f64; 4] {
        let mut counts = [0.0; 4];
        for _ in 0..40_000 {
            counts[sampler.sample(&logits).unwrap() as usize] += 1.0 / 40_000.0;
        }
        counts
    }

    /// The standard deviation of a share of 40,000 is at most 0.0025; four of them happen once in ten thousand seeds,
    /// and the seed is fixed.
    fn close(shares: [f64; 4], wanted: [f64; 4]) {
        for (share, wanted) in shares.into_iter().zip(wanted) {
            assert!((share - wanted).abs() < 0.01, "{shares:?} is not {wanted:?}");
        }
    }

    const HALVES: [f64; 4] = [0.125, 0.5, 0.125, 0.25];

    /// Logits that are logarithms of probabilities give those probabilities back.
    fn logits() -> [f32; 4] {
        HALVES.map(|p| p.ln() as f32)
    }

    #[test]
    fn tokens_come_as_often_as_they_are_probable() {
        close(shares(sampler(1.0, 1.0, 7), logits()), HALVES);
        // At half the temperature probabilities are squared: 1/64, 16/64, 1/64, 4/64 of 22/64.
        close(shares(sampler(0.5, 1.0, 7), logits()), [1.0 / 22.0, 16.0 / 22.0, 1.0 / 22.0, 4.0 / 22.0]);
        // At a huge one all are alike, at a tiny one only the first counts.
        close(shares(sampler(1e30, 1.0, 7), logits()), [0.25; 4]);
        close(shares(sampler(1e-30, 1.0, 7), logits()), [0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_it() {
        // 0.5 does not reach 0.6, 0.5 + 0.25 does; what is left is shared in proportion.
        close(shares(sampler(1.0, 0.6, 3), logits()), [0.0, 2.0 / 3.0, 0.0, 1.0 / 3.0]);
        close(shares(sampler(1.0, 0.4, 3), logits()), [0.0, 1.0, 0.0, 0.0]);
        close(shares(sampler(1.0, 0.0, 3), logits()), [0.0, 1.0, 0.0, 0.0]);
        // Of equals the lower token is kept: 0.8 needs the third, and of the first and the third that is the first.
        close(shares(sampler(1.0, 0.8, 3), logits()), [1.0 / 7.0, 4.0 / 7.0, 0.0, 2.0 / 7.0]);
    }

    #[test]
    fn greedy_takes_the_first_of_equals() {
        let mut greedy = Sampler::new(Sampling::GREEDY).unwrap();
        assert_eq!(greedy.sample(&[1.0, 3.0, 3.0, 2.0]).unwrap(), 1);
        assert_eq!(greedy.sample(&[-5.0]).unwrap(), 0);
        assert_eq!(sampler(1.0, 0.9, 0).sample(&[-5.0]).unwrap(), 0);
    }

    #[test]
    fn a_seed_decides() {
        let run = |seed| {
            let mut sampler = sampler(1.0, 1.0, seed);
            (0..64).map(|_| sampler.sample(&logits()).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        // The first numbers of the reference implementation for this seed.
        let mut random = SplitMix64(1_234_567);
        assert_eq!(
            [random.next(), random.next(), random.next()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn what_is_no_number_is_refused_by_name() {
        for (logits, said) in [
            (&[0.0, f32::NAN][..], "the logit of token 1 is NaN, which is no number"),
            (&[f32::INFINITY, 0.0], "the logit of token 0 is inf, which is no number"),
            (&[0.0, 0.0, f32::NEG_INFINITY], "the logit of token 2 is -inf, which is no number"),
            (&[], "there are no logits to choose a token from"),
        ] {
            for temperature in [0.0, 1.0] {
                assert_eq!(sampler(temperature, 0.5, 0).sample(logits).unwrap_err().to_string(), said);
            }
        }
        for (temperature, top_p) in [(-1.0, 1.0), (f32::NAN, 1.0), (f32::INFINITY, 1.0), (1.0, 1.5), (1.0, f32::NAN)] {
            let error = Sampler::new(Sampling { temperature, top_p, seed: 0 }).unwrap_err();
            assert!(error.to_string().contains("must be"), "{error}");
        }
    }

    proptest! {
        /// Sorting everything and cutting is what the shortcut must come to.
        #[test]
        fn the_shortcut_keeps_what_sorting_all_would(
            logits in prop::collection::vec(-20.0_f32..0.0, 1..200),
            top_p in 0.0_f64..1.0,
        ) {
            let mut kept: Vec<_> = (0..).zip(&logits).map(|(id, &x)| (exp_of_negative(x.into()), id)).collect();
            let largest = kept.iter().map(|c| c.0).fold(0.0, f64::max);
            for candidate in &mut kept {
                candidate.0 /= largest;
            }
            let total: f64 = kept.iter().map(|c| c.0).sum();
            let mut all = kept.clone();
            all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            let mut sum = 0.0;
            let wanted: Vec<_> = all.into_iter().take_while(|c| {
                let short = sum < top_p * total;
                sum += c.0;
                short
            }).collect();
            keep_top(&mut kept, top_p);
            prop_assert_eq!(&kept[..wanted.len()], &wanted[..]);
            prop_assert_eq!(kept.len(), wanted.len().max(1));
        }

        #[test]
        fn the_exponential_is_the_exponential(x in -700.0_f64..=0.0) {
            prop_assert!((exp_of_negative(x) / x.exp() - 1.0).abs() < 1e-15);
        }

        #[test]
        fn any_numbers_give_a_token(
            logits in prop::collection::vec(prop::num::f32::NORMAL | prop::num::f32::ZERO, 1..50),
            temperature in 0.0_f32..1e6, top_p in 0.0_f32..=1.0, seed: u64,
        ) {
            let token = sampler(temperature, top_p, seed).sample(&logits).unwrap();
            prop_assert!((token as usize) < logits.len());
        }
    }
}
