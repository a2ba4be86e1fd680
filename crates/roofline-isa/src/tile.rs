//! Sums of products in a tile that stays in registers: four rows by sixteen columns.
//!
//! That is eight registers of AVX2 or four of AVX-512, each a sum of its own, so that neither loads nor the latency of sums hold the
//! others up. Products are rounded before they are added, one after the other: the same bits on every processor.

use crate::{Kernel, Vector, current, launch};

/// Rows of a tile.
pub const ROWS: usize = 4;
/// Columns of a tile.
pub const WIDTH: usize = 16;

/// `sums[row][column] += left[t][row] * right[t][column]`, one `t` after the other.
pub fn add(sums: &mut [[f32; WIDTH]; ROWS], left: &[[f32; ROWS]], right: &[[f32; WIDTH]]) {
    launch(current(), Tile { sums, left, right });
}

struct Tile<'t> {
    sums: &'t mut [[f32; WIDTH]; ROWS],
    left: &'t [[f32; ROWS]],
    right: &'t [[f32; WIDTH]],
}

impl Kernel for Tile<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(mut self) {
        // SAFETY: the caller has `V`'s instructions, and strips of whole vectors lie within a row.
        unsafe {
            if V::LANES >= WIDTH {
                self.strip::<V, 1>(0);
            } else {
                (0..WIDTH).step_by(2 * V::LANES).for_each(|from| self.strip::<V, 2>(from));
            }
        }
    }
}

impl Tile<'_> {
    /// `N` vectors of every row, from a column on.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set, and `from + N * V::LANES` is no more than `WIDTH`.
    #[inline(always)]
    unsafe fn strip<V: Vector, const N: usize>(&mut self, from: usize) {
        // SAFETY: as the caller says.
        unsafe {
            let mut own = [[V::splat(0.0); N]; ROWS];
            for (own, sums) in own.iter_mut().zip(self.sums.iter()) {
                for (at, sum) in own.iter_mut().enumerate() {
                    *sum = V::load(sums.as_ptr().add(from + at * V::LANES));
                }
            }
            for (left, right) in self.left.iter().zip(self.right) {
                let mut numbers = [V::splat(0.0); N];
                for (at, number) in numbers.iter_mut().enumerate() {
                    *number = V::load(right.as_ptr().add(from + at * V::LANES));
                }
                for (own, factor) in own.iter_mut().zip(left) {
                    let factor = V::splat(*factor);
                    for (sum, number) in own.iter_mut().zip(numbers) {
                        *sum = sum.add(factor.mul(number));
                    }
                }
            }
            for (own, sums) in own.iter().zip(self.sums.iter_mut()) {
                for (at, sum) in own.iter().enumerate() {
                    sum.store(sums.as_mut_ptr().add(from + at * V::LANES));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::at_every_level;

    /// Beside plain loops, to the last bit, with every instruction set and any number of products.
    #[test]
    fn tiles_are_the_plain_sums() {
        let number = |at: usize| (at * 7919 % 1009) as f32 / 504.5 - 1.0;
        for count in [0, 1, 2, 37] {
            let left: Vec<[f32; ROWS]> = (0..count).map(|t| [0, 1, 2, 3].map(|row| number(5 * t + row))).collect();
            let right: Vec<[f32; WIDTH]> =
                (0..count).map(|t| std::array::from_fn(|column| number(31 * t + column))).collect();
            let start: [[f32; WIDTH]; ROWS] =
                std::array::from_fn(|row| std::array::from_fn(|column| number(row + column)));
            let mut want = start;
            for (left, right) in left.iter().zip(&right) {
                for (sums, factor) in want.iter_mut().zip(left) {
                    sums.iter_mut().zip(right).for_each(|(sum, number)| *sum += factor * number);
                }
            }
            let found = at_every_level(|| {
                let mut sums = start;
                add(&mut sums, &left, &right);
                sums
            });
            assert!(found.iter().all(|found| *found == want), "{count}");
        }
    }
}
