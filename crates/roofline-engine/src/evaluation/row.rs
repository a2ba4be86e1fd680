//! One prediction: what logits say of the token that came, and of another model's logits. Sums are in f64; a row is added
//! up by one thread from its first logit to its last, so that the number of threads changes nothing.

use std::sync::Mutex;

use roofline_run::cpu::Pool;

use crate::{Error, Result};

/// What a model thought of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Alone {
    /// Its negative log-likelihood, in nats.
    pub nll: f64,
    /// What it thought most probable; the lowest of several.
    pub top: u32,
}

/// What two models thought of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Beside {
    /// The model.
    pub own: Alone,
    /// What it was made of.
    pub original: Alone,
    /// How far the model's prediction is from the original's: the divergence of Kullback and Leibler, in nats.
    pub kl: f64,
}

/// The logarithm of the sum of a row's exponentials, and the place of its largest.
fn normaliser(row: &[f32]) -> Result<(f64, u32)> {
    let (mut largest, mut top) = (f32::NEG_INFINITY, 0);
    for (at, logit) in row.iter().enumerate() {
        if !logit.is_finite() {
            return Err(Error::Logits { reason: format!("the logit of token {at} is {logit}") });
        }
        if *logit > largest {
            (largest, top) = (*logit, at as u32);
        }
    }
    let sum: f64 = row.iter().map(|logit| f64::from(*logit - largest).exp()).sum();
    Ok((f64::from(largest) + sum.ln(), top))
}

/// What a row says of a token.
pub(super) fn score(row: &[f32], target: u32) -> Result<Alone> {
    let (normaliser, top) = normaliser(row)?;
    Ok(Alone { nll: normaliser - f64::from(row[target as usize]), top })
}

/// What two rows say of a token: `sum p (ln p - ln q)` is `sum p (a - b)` less the difference of the normalisers.
pub(super) fn compare(own: &[f32], original: &[f32], target: u32) -> Result<Beside> {
    let (own_sum, own_top) = normaliser(own)?;
    let (sum, top) = normaliser(original)?;
    let difference = sum - own_sum;
    let mut kl = 0.0;
    for (own, original) in own.iter().zip(original) {
        let original = f64::from(*original);
        kl += (original - sum).exp() * (original - f64::from(*own) - difference);
    }
    let at = target as usize;
    Ok(Beside {
        own: Alone { nll: own_sum - f64::from(own[at]), top: own_top },
        original: Alone { nll: sum - f64::from(original[at]), top },
        // No divergence is negative; what rounding makes so is none.
        kl: kl.max(0.0),
    })
}

/// A prediction that others are held against: what that takes is made once, and then every other takes one logarithm and a product
/// for each token of the vocabulary.
pub(crate) struct Reference {
    /// What it thinks of every token.
    probabilities: Vec<f32>,
    /// The sum of those, which rounding keeps from being one.
    sum: f64,
    /// `sum p ln p`, of the numbers as they are kept, so that what rounding changes is the same on both sides.
    expected: f64,
}

impl Reference {
    pub(crate) fn of(row: &[f32]) -> Result<Self> {
        let (normaliser, _) = normaliser(row)?;
        let logarithm = |logit: &f32| f64::from(*logit) - normaliser;
        let probabilities: Vec<f32> = row.iter().map(|logit| logarithm(logit).exp() as f32).collect();
        let sum = probabilities.iter().map(|p| f64::from(*p)).sum();
        let expected = probabilities.iter().zip(row).map(|(p, logit)| f64::from(*p) * logarithm(logit)).sum();
        Ok(Self { probabilities, sum, expected })
    }

    /// How far another prediction is from it: what [`compare`] calls `kl`.
    pub(crate) fn divergence(&self, own: &[f32]) -> Result<f64> {
        let (normaliser, _) = normaliser(own)?;
        let dot: f64 = self.probabilities.iter().zip(own).map(|(p, logit)| f64::from(*p) * f64::from(*logit)).sum();
        Ok((self.expected - dot + normaliser * self.sum).max(0.0))
    }
}

/// What others are held against, of every row of a piece.
pub(crate) fn references(logits: &[f32], rows: usize) -> Result<Vec<Reference>> {
    logits.chunks_exact((logits.len() / rows.max(1)).max(1)).map(Reference::of).collect()
}

/// How far the rows of a piece are from theirs.
pub(crate) fn divergences(known: &[Reference], logits: &[f32]) -> Result<Vec<f64>> {
    let rows = logits.chunks_exact((logits.len() / known.len().max(1)).max(1));
    known.iter().zip(rows).map(|(known, row)| known.divergence(row)).collect()
}

/// Every row of a piece.
pub(super) fn alone(pool: &mut Pool, logits: &[f32], targets: &[u32]) -> Result<Vec<Alone>> {
    let width = logits.len() / targets.len().max(1);
    each(pool, targets.len(), |row| score(&logits[row * width..(row + 1) * width], targets[row]))
}

/// Every row of a piece of two models.
pub(super) fn beside(pool: &mut Pool, own: &[f32], original: &[f32], targets: &[u32]) -> Result<Vec<Beside>> {
    let width = own.len() / targets.len().max(1);
    let of = |row: usize| row * width..(row + 1) * width;
    each(pool, targets.len(), |row| compare(&own[of(row)], &original[of(row)], targets[row]))
}

/// `one` of every row, on all threads, in the order of rows.
fn each<T: Send>(pool: &mut Pool, rows: usize, one: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    let done = Mutex::new(Vec::with_capacity(rows));
    pool.split(rows, 1, |_, part| {
        let own: Vec<(usize, Result<T>)> = part.map(|row| (row, one(row))).collect();
        done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(own);
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(row, _)| *row);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Equal logits say nothing: every token is as probable as any other, and the perplexity is the vocabulary's size.
    #[test]
    fn equal_logits_give_the_vocabulary() {
        for size in [2, 131, 4096] {
            let row = vec![-3.25; size];
            let scored = score(&row, 1).unwrap();
            assert!((scored.nll.exp() / size as f64 - 1.0).abs() < 1e-12, "{size}: {scored:?}");
            assert_eq!(scored.top, 0);
        }
    }

    /// Logits that are logarithms of probabilities: p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4). The divergence is
    /// 1/2 ln 2 - 1/4 ln 2 = 1/4 ln 2; of the other way round it is the same by symmetry. Shifts change nothing.
    #[test]
    fn a_small_case_by_hand() {
        let p = [0.5f32.ln(), 0.25f32.ln(), 0.25f32.ln()];
        let q = [0.25f32.ln() + 7.0, 0.5f32.ln() + 7.0, 0.25f32.ln() + 7.0];
        let told = compare(&q, &p, 2).unwrap();
        assert!((told.kl - 0.25 * 2f64.ln()).abs() < 1e-6, "{told:?}");
        assert!((told.own.nll - 4f64.ln()).abs() < 1e-6 && (told.original.nll - 4f64.ln()).abs() < 1e-6);
        assert_eq!((told.own.top, told.original.top), (1, 0));
    }

    /// A prediction that was kept says the same as one that is beside the other.
    #[test]
    fn a_kept_prediction_is_the_same() {
        let row = |by: f32| (0..1000u16).map(|at| (f32::from(at) * by).sin() * 9.0).collect::<Vec<f32>>();
        let (own, original) = (row(0.71), row(0.7101));
        let kept = Reference::of(&original).unwrap();
        let (found, wanted) = (kept.divergence(&own).unwrap(), compare(&own, &original, 0).unwrap().kl);
        assert!(wanted > 1e-4 && (found - wanted).abs() < 1e-6 * wanted, "{found} {wanted}");
        assert!(kept.divergence(&original).unwrap() < 1e-12);
        assert!(kept.divergence(&[f32::NAN; 1000]).is_err());
    }

    /// A divergence from oneself is none, however far apart logits are: e to the -180th is still a number.
    #[test]
    fn equal_models_do_not_differ() {
        let row: Vec<f32> = (0..1000u16).map(|at| (f32::from(at) * 0.71).sin() * 90.0).collect();
        let told = compare(&row, &row, 3).unwrap();
        assert_eq!(told.kl, 0.0);
        assert_eq!(told.own, told.original);
        assert!(told.own.nll.is_finite());
    }

    #[test]
    fn what_is_no_number_is_said() {
        let error = score(&[0.0, f32::NAN], 0).unwrap_err().to_string();
        assert_eq!(error, "the logit of token 1 is NaN");
    }

    #[test]
    fn threads_change_nothing() {
        let logits: Vec<f32> = (0..70u16 * 50).map(|at| (f32::from(at) * 0.37).sin() * 4.0).collect();
        let targets: Vec<u32> = (0..70).map(|at| at % 50).collect();
        let one = alone(&mut Pool::new(1), &logits, &targets).unwrap();
        assert_eq!(one, alone(&mut Pool::new(3), &logits, &targets).unwrap());
        assert_eq!(one[7], score(&logits[350..400], 7).unwrap());
    }
}
