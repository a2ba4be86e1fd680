//! The points that the types of few bits keep: some weights at a time, each in one of a few levels.
//!
//! Which points there are is ggml's choice and part of its formats. What lies between them goes to one of the nearest.

use std::sync::OnceLock;

/// The points of a type, each of `POINT` weights in `LEVELS` levels.
pub(super) struct Grid<const POINT: usize, const LEVELS: usize> {
    points: Vec<[u8; POINT]>,
    /// What each of all points is, where it is kept: the place among those that are.
    at: Vec<Option<u16>>,
    /// How many distances are near.
    distances: usize,
    /// The kept points near each that is not, once it was asked for: most never are.
    near: Vec<OnceLock<Vec<u16>>>,
}

/// What a level stands for, before any scale: the odd numbers.
#[inline(always)]
pub(super) fn value(level: u8) -> f32 {
    f32::from(2 * level + 1)
}

/// All levels written as one number, the first lowest.
#[inline(always)]
pub(super) fn number<const POINT: usize, const LEVELS: usize>(levels: [u8; POINT]) -> usize {
    levels.iter().rev().fold(0, |number, level| number * LEVELS + usize::from(*level))
}

/// The levels that a number stands for.
pub(super) fn levels<const POINT: usize, const LEVELS: usize>(mut number: usize) -> [u8; POINT] {
    [(); POINT].map(|()| {
        let level = number % LEVELS;
        number /= LEVELS;
        level as u8
    })
}

impl<const POINT: usize, const LEVELS: usize> Grid<POINT, LEVELS> {
    /// The points of these numbers, ascending. What is not kept is near to what lies within the first `distances` distances.
    pub(super) fn new(numbers: impl Iterator<Item = usize>, distances: usize) -> Self {
        let points: Vec<[u8; POINT]> = numbers.map(levels::<POINT, LEVELS>).collect();
        let all = LEVELS.pow(POINT as u32);
        let mut at = vec![None; all];
        for (place, point) in (0..).zip(&points) {
            at[number::<POINT, LEVELS>(*point)] = Some(place);
        }
        Self { points, at, distances, near: vec![OnceLock::new(); all] }
    }

    /// The kept points near these levels, by distance and by place.
    #[inline(always)]
    fn near(&self, levels: [u8; POINT]) -> &[u16] {
        self.near[number::<POINT, LEVELS>(levels)].get_or_init(|| self.nearby(levels))
    }

    fn nearby(&self, levels: [u8; POINT]) -> Vec<u16> {
        let mut by_distance = vec![Vec::new(); POINT * (LEVELS - 1).pow(2) + 1];
        for (place, point) in (0..).zip(&self.points) {
            let mut distance = 0;
            for (a, b) in levels.iter().zip(point) {
                distance += usize::from(a.abs_diff(*b)).pow(2);
            }
            by_distance[distance].push(place);
        }
        by_distance.into_iter().filter(|places| !places.is_empty()).take(self.distances).flatten().collect()
    }

    /// The levels of the point at a place.
    #[inline(always)]
    pub(super) fn levels(&self, place: u16) -> [u8; POINT] {
        self.points[usize::from(place) % self.points.len()]
    }

    /// Where these levels are kept.
    #[inline(always)]
    pub(super) fn place(&self, levels: [u8; POINT]) -> Option<u16> {
        self.at[number::<POINT, LEVELS>(levels)]
    }

    /// Of the kept points near these levels the one with the least `sum w (scale value - x)^2`.
    #[inline(always)]
    pub(super) fn nearest(
        &self,
        tried: [u8; POINT],
        value: impl Fn(u8) -> f32,
        x: &[f32],
        weights: &[f32],
        scale: f32,
    ) -> [u8; POINT] {
        let (mut best, mut least) = (tried, f32::INFINITY);
        for place in self.near(tried) {
            let levels = self.levels(*place);
            let mut error = 0.0;
            for ((level, x), w) in levels.iter().zip(x).zip(weights) {
                let difference = scale * value(*level) - x;
                error += w * difference * difference;
            }
            if error < least || best == tried {
                (best, least) = (levels, error);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{iq2_grid, iq3_grid},
        *,
    };

    /// A grid has so many points, sorted, each known by its levels.
    fn check<const POINT: usize, const LEVELS: usize>(grid: &Grid<POINT, LEVELS>, count: usize) {
        assert_eq!(grid.points.len(), count);
        assert!(grid.points.windows(2).all(|pair| number::<POINT, LEVELS>(pair[0]) < number::<POINT, LEVELS>(pair[1])));
        for place in 0..count as u16 {
            assert_eq!(grid.place(grid.levels(place)), Some(place));
        }
        assert_eq!(grid.at.len(), LEVELS.pow(POINT as u32));
    }

    #[test]
    fn points_are_sorted_and_known_by_their_levels() {
        check(&iq3_grid::XXS, 256);
        check(&iq3_grid::S, 512);
        check(&iq2_grid::XXS, 256);
        check(&iq2_grid::XS, 512);
        check(&iq2_grid::S, 1024);
        check(&iq2_grid::ONE, 2048);
        assert_eq!((levels::<4, 8>(0o4321), number::<4, 8>([1, 2, 3, 4])), ([1, 2, 3, 4], 0o4321));
    }

    /// (1, 0, 0, 0) lies between (0, 0, 0, 0) and (2, 0, 0, 0): of 256 points the two at a distance of one, then those at the next.
    #[test]
    fn what_is_not_kept_goes_to_the_nearest() {
        let grid = &*iq3_grid::XXS;
        assert_eq!(&grid.near([1, 0, 0, 0])[..2], &[0, 1]);
        assert_eq!(grid.nearest([1, 0, 0, 0], value, &[2.9, 1.0, 1.0, 1.0], &[1.0; 4], 1.0), [0; 4]);
        assert_eq!(grid.nearest([1, 0, 0, 0], value, &[3.1, 1.0, 1.0, 1.0], &[1.0; 4], 1.0), [2, 0, 0, 0]);
        // What cannot be compared becomes a point that is kept.
        assert_eq!(grid.nearest([1, 0, 0, 0], value, &[f32::MAX; 4], &[f32::MAX; 4], 1.0), [0; 4]);
    }
}
