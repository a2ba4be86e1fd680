//! What is kept of the inputs of a product: sums over tokens, whose size does not depend on how many tokens there were.

use roofline_isa::widest;

use super::{
    panels::{Panels, ROWS, WIDTH, add},
    share::share,
};
use crate::{Error, Result, observed::Seen};

/// Sums over the tokens that a product has seen.
pub(crate) struct Moments {
    pub(crate) columns: usize,
    /// `X^T X`, of which the part on and above the diagonal counts; nothing where nobody wants it.
    products: Vec<f32>,
    /// Sums of magnitudes.
    magnitudes: Vec<f64>,
    /// Largest magnitudes.
    pub(crate) peaks: Vec<f32>,
    pub(crate) tokens: u64,
}

impl Moments {
    pub(crate) fn new(columns: usize) -> Self {
        Self {
            columns,
            products: vec![0.0; columns * columns],
            magnitudes: vec![0.0; columns],
            peaks: vec![0.0; columns],
            tokens: 0,
        }
    }

    /// The same without `X^T X`.
    pub(crate) fn without_products(columns: usize) -> Self {
        Self { products: Vec::new(), ..Self::new(columns) }
    }

    /// Bytes that the moments of so many columns take.
    pub(crate) fn bytes(columns: usize) -> u64 {
        4 * (columns as u64).pow(2) + 12 * columns as u64
    }

    /// Adds what a sample brings; an error where it is no number.
    pub(crate) fn add(&mut self, seen: Seen<'_>, threads: usize) -> Result<()> {
        let columns = self.columns;
        let damaged = || seen.values.iter().position(|value| !value.is_finite());
        if !all_finite(seen.values)
            && let Some(at) = damaged()
        {
            let (module, token) = (&seen.modules[0], seen.tokens.get(at / columns).copied().unwrap_or(0));
            return Err(Error::Model {
                reason: format!(
                    "`{module}` is given {} by token {token} of a sample, in column {}",
                    seen.values[at],
                    at % columns
                ),
                hint: Some(
                    "the model overflows on this text, or a weight is damaged: `⟨roofline evaluate⟩` tells; a method \
                     without data needs no text"
                        .to_owned(),
                ),
            });
        }
        for row in seen.values.chunks_exact(columns) {
            add_magnitudes(row, &mut self.magnitudes, &mut self.peaks);
        }
        self.tokens += seen.tokens.len() as u64;
        if self.products.is_empty() {
            return Ok(());
        }
        let (left, right) = (Panels::<ROWS>::of(seen.values, columns), Panels::<WIDTH>::of(seen.values, columns));
        // A band has the rows of a panel, and begins on the diagonal.
        let bands: Vec<(usize, &mut [f32])> = self.products.chunks_mut(WIDTH * columns).enumerate().collect();
        share(threads, bands, |(band, products)| {
            for panel in band..right.count() {
                let (from, width) = (panel * WIDTH, WIDTH.min(columns - panel * WIDTH));
                for (tile, rows) in products.chunks_mut(ROWS * columns).enumerate() {
                    let mut sums = [[0.0; WIDTH]; ROWS];
                    add(&mut sums, left.panel(band * (WIDTH / ROWS) + tile), right.panel(panel));
                    for (row, sums) in rows.chunks_exact_mut(columns).zip(&sums) {
                        row[from..][..width].iter_mut().zip(sums).for_each(|(product, sum)| *product += *sum);
                    }
                }
            }
        });
        Ok(())
    }

    /// The mean of `x_i x_j` over tokens.
    pub(crate) fn product(&self, i: usize, j: usize) -> f64 {
        let at = i.min(j) * self.columns + i.max(j);
        f64::from(self.products[at]) / self.tokens.max(1) as f64
    }

    /// The means of all products.
    pub(super) fn all_products(&self) -> Panels<WIDTH> {
        let columns = self.columns;
        let all: Vec<f32> = (0..columns * columns).map(|at| self.product(at / columns, at % columns) as f32).collect();
        Panels::of(&all, columns)
    }

    /// The mean square of every input: how much an error in its weights matters.
    pub(crate) fn importance(&self) -> Vec<f32> {
        (0..self.columns).map(|at| self.product(at, at) as f32).collect()
    }

    /// The same for choosing scales: weights of inputs that were zero in every token count a little, too.
    pub(crate) fn importance_for_scales(&self) -> Vec<f32> {
        const LITTLE: f32 = 1e-3;
        let mut importance = self.importance();
        let mean = importance.iter().sum::<f32>() / self.columns.max(1) as f32;
        for own in importance.iter_mut().filter(|own| **own == 0.0) {
            *own = LITTLE * mean;
        }
        importance
    }

    /// The mean magnitude of every input.
    pub(crate) fn mean_magnitudes(&self) -> Vec<f64> {
        self.magnitudes.iter().map(|sum| sum / self.tokens.max(1) as f64).collect()
    }
}

widest! {
    /// Whether all are numbers.
    fn all_finite(values: &[f32]) -> bool {
        values.iter().fold(true, |all, value| all & value.is_finite())
    }
}

widest! {
    /// Adds the magnitudes of a row, and keeps the largest.
    fn add_magnitudes(row: &[f32], sums: &mut [f64], peaks: &mut [f32]) {
        for ((sum, peak), value) in sums.iter_mut().zip(peaks).zip(row) {
            let magnitude = value.abs();
            *sum += f64::from(magnitude);
            *peak = if magnitude > *peak { magnitude } else { *peak };
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Moments of rows of numbers.
    pub(crate) fn moments(columns: usize, values: &[f32]) -> Moments {
        let (modules, tokens) = (["a".to_owned()], (0..values.len() / columns).collect::<Vec<_>>());
        let mut moments = Moments::new(columns);
        moments.add(Seen { modules: &modules, expert: None, tokens: &tokens, columns, values }, 2).unwrap();
        moments
    }

    #[test]
    fn known_sums() {
        let found = moments(3, &[1.0, 2.0, -3.0, 4.0, 0.0, 1.0]);
        let want = [[17.0, 2.0, 1.0], [2.0, 4.0, -6.0], [1.0, -6.0, 10.0]];
        for (i, row) in want.iter().enumerate() {
            for (j, sum) in row.iter().enumerate() {
                assert_eq!(found.product(i, j), sum / 2.0, "{i} {j}");
            }
        }
        assert_eq!(found.mean_magnitudes(), [2.5, 1.0, 2.0]);
        assert_eq!((found.peaks, found.tokens), (vec![4.0, 2.0, 3.0], 2));
    }

    #[test]
    fn any_number_of_columns_and_threads() {
        for columns in [1, 31, 32, 33, 70] {
            let values: Vec<f32> = (0..columns * 9).map(|at| ((at * 37 % 101) as f32 - 50.0) / 16.0).collect();
            let (modules, tokens) = (["a".to_owned()], (0..9).collect::<Vec<_>>());
            let made = |threads: usize| {
                let mut moments = Moments::new(columns);
                moments
                    .add(Seen { modules: &modules, expert: None, tokens: &tokens, columns, values: &values }, threads)
                    .unwrap();
                moments
            };
            let one = made(1);
            assert_eq!(made(3).products, one.products);
            for i in 0..columns {
                for j in 0..columns {
                    let sum: f32 = values.chunks(columns).map(|row| row[i] * row[j]).sum();
                    assert!((one.product(i, j) * 9.0 - f64::from(sum)).abs() < 1e-3, "{columns}: {i} {j}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_number_is_an_error_that_says_where() {
        let (modules, tokens) = (["model.layers.0.mlp.down_proj".to_owned()], [4, 7]);
        let values = [0.0, 1.0, f32::NAN, 2.0];
        let seen = Seen { modules: &modules, expert: None, tokens: &tokens, columns: 2, values: &values };
        let error = Moments::new(2).add(seen, 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`model.layers.0.mlp.down_proj` is given NaN by token 7 of a sample, in column 0"
        );
        assert!(error.is_input() && error.hint().is_some());
    }
}
