//! The points that the types of three bits keep: four weights at a time, each in one of eight levels.
//!
//! A point is written as one number, three bits of level to a weight, the first lowest. Which points there are is ggml's choice and
//! part of its formats (`iq3xxs_grid` and `iq3s_grid` of `ggml-common.h`). What lies between them goes to one of the nearest.

use std::sync::LazyLock;

/// Weights of a point.
pub(super) const POINT: usize = 4;
/// Levels of a weight.
pub(super) const LEVELS: i32 = 8;
/// All points that four levels make.
const ALL: usize = 1 << (3 * POINT);

/// The points of a type.
pub(super) struct Grid {
    points: &'static [u16],
    /// What each of all points is, where it is kept: the place among those that are.
    at: Vec<Option<u16>>,
    /// The nearest kept ones of each that is not, by distance and by place.
    near: Vec<Vec<u16>>,
}

/// Those of `IQ3_XXS`.
pub(super) static XXS: LazyLock<Grid> = LazyLock::new(|| Grid::new(&POINTS_256, 2));
/// Those of `IQ3_S`.
pub(super) static S: LazyLock<Grid> = LazyLock::new(|| Grid::new(&POINTS_512, 3));

/// The levels of a point.
#[inline(always)]
pub(super) fn levels(point: u16) -> [u8; POINT] {
    [0, 3, 6, 9].map(|shift| (point >> shift & 7) as u8)
}

/// The point of these levels.
#[inline(always)]
pub(super) fn point(levels: [u8; POINT]) -> u16 {
    levels.iter().rev().fold(0, |point, level| point << 3 | u16::from(*level))
}

/// What a level stands for, before any scale: the odd numbers.
#[inline(always)]
pub(super) fn value(level: u8) -> f32 {
    f32::from(2 * level + 1)
}

impl Grid {
    /// What is not kept is near to what lies within the first `distances` distances.
    fn new(points: &'static [u16], distances: usize) -> Self {
        let mut at = vec![None; ALL];
        for (place, point) in points.iter().enumerate() {
            at[usize::from(*point)] = Some(place as u16);
        }
        let near = (0..ALL as u16).map(|one| {
            if at[usize::from(one)].is_some() {
                return Vec::new();
            }
            let distance = |point: u16| -> u32 {
                let pairs = levels(one).into_iter().zip(levels(point));
                pairs.map(|(a, b)| u32::from(a.abs_diff(b)).pow(2)).sum()
            };
            let all: Vec<u32> = points.iter().map(|point| distance(*point)).collect();
            let mut bound = 0;
            for _ in 0..distances {
                bound = all.iter().copied().filter(|distance| *distance > bound).min().unwrap_or(bound);
            }
            let mut near: Vec<(u32, u16)> = (0..)
                .zip(all)
                .filter(|(_, distance)| *distance <= bound)
                .map(|(place, distance)| (distance, place))
                .collect();
            near.sort_unstable();
            near.into_iter().map(|(_, place)| place).collect()
        });
        let near = near.collect();
        Self { points, at, near }
    }

    /// The levels of the point at a place.
    #[inline(always)]
    pub(super) fn levels(&self, place: u16) -> [u8; POINT] {
        levels(self.points[usize::from(place) % self.points.len()])
    }

    /// Where these levels are kept.
    #[inline(always)]
    pub(super) fn place(&self, levels: [u8; POINT]) -> Option<u16> {
        self.at[usize::from(point(levels))]
    }

    /// Of the kept points near these levels the one with the least `sum w (scale value - x)^2`.
    #[inline(always)]
    pub(super) fn nearest(&self, tried: [u8; POINT], x: &[f32], weights: &[f32], scale: f32) -> [u8; POINT] {
        let (mut best, mut least) = (tried, f32::INFINITY);
        for place in &self.near[usize::from(point(tried))] {
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

#[rustfmt::skip]
const POINTS_256: [u16; 256] = [
    0, 2, 4, 9, 11, 15, 16, 18, 25, 34, 59, 61, 65, 67, 72, 74,
    81, 85, 88, 90, 97, 108, 120, 128, 130, 132, 137, 144, 146, 153, 155, 159,
    169, 175, 189, 193, 199, 200, 202, 213, 248, 267, 287, 292, 303, 315, 317, 321,
    327, 346, 362, 413, 436, 456, 460, 462, 483, 497, 513, 515, 520, 522, 529, 531,
    536, 538, 540, 551, 552, 576, 578, 585, 592, 594, 641, 643, 648, 650, 657, 664,
    698, 704, 706, 720, 729, 742, 758, 769, 773, 808, 848, 852, 870, 889, 901, 978,
    992, 1024, 1026, 1033, 1035, 1040, 1042, 1046, 1049, 1058, 1089, 1091, 1093, 1096, 1098, 1105,
    1112, 1139, 1143, 1144, 1152, 1154, 1161, 1167, 1168, 1170, 1183, 1184, 1197, 1217, 1224, 1228,
    1272, 1276, 1309, 1323, 1347, 1367, 1377, 1404, 1473, 1475, 1486, 1509, 1537, 1544, 1546, 1553,
    1555, 1576, 1589, 1594, 1600, 1602, 1616, 1625, 1636, 1638, 1665, 1667, 1672, 1685, 1706, 1722,
    1737, 1755, 1816, 1831, 1850, 1856, 1862, 1874, 1901, 1932, 1950, 1971, 2011, 2032, 2052, 2063,
    2077, 2079, 2091, 2095, 2172, 2192, 2207, 2208, 2224, 2230, 2247, 2277, 2308, 2345, 2356, 2389,
    2403, 2424, 2501, 2504, 2506, 2520, 2570, 2593, 2616, 2624, 2630, 2646, 2669, 2700, 2714, 2746,
    2754, 2795, 2824, 2835, 2839, 2874, 2882, 2905, 2984, 3028, 3042, 3092, 3108, 3110, 3124, 3153,
    3185, 3215, 3252, 3288, 3294, 3364, 3397, 3434, 3483, 3523, 3537, 3587, 3589, 3591, 3592, 3610,
    3626, 3670, 3680, 3722, 3749, 3754, 3776, 3789, 3803, 3824, 3857, 3873, 3904, 3906, 3924, 3992,
];

#[rustfmt::skip]
const POINTS_512: [u16; 512] = [
    0, 1, 2, 5, 7, 8, 9, 10, 12, 14, 16, 17, 21, 27, 32, 34,
    37, 39, 41, 43, 48, 50, 57, 60, 63, 64, 65, 66, 68, 72, 73, 77,
    80, 83, 87, 89, 93, 100, 113, 117, 122, 128, 129, 133, 135, 136, 139, 142,
    145, 149, 152, 156, 162, 165, 167, 169, 171, 184, 187, 195, 201, 205, 208, 210,
    217, 219, 222, 228, 232, 234, 247, 249, 253, 256, 267, 271, 273, 276, 282, 288,
    291, 297, 312, 322, 324, 336, 338, 342, 347, 353, 357, 359, 374, 379, 390, 393,
    395, 409, 426, 441, 448, 450, 452, 464, 466, 470, 475, 488, 492, 512, 513, 514,
    516, 520, 521, 523, 525, 527, 528, 530, 537, 540, 542, 556, 558, 561, 570, 576,
    577, 579, 582, 584, 588, 593, 600, 603, 609, 616, 618, 632, 638, 640, 650, 653,
    655, 656, 660, 666, 672, 675, 685, 688, 698, 705, 708, 711, 712, 715, 721, 727,
    728, 732, 737, 754, 760, 771, 773, 778, 780, 793, 795, 802, 806, 808, 812, 833,
    840, 843, 849, 856, 858, 873, 912, 916, 919, 932, 934, 961, 963, 968, 970, 977,
    989, 993, 1010, 1016, 1024, 1025, 1027, 1029, 1031, 1032, 1034, 1036, 1038, 1041, 1043, 1047,
    1048, 1050, 1057, 1059, 1061, 1064, 1066, 1079, 1080, 1083, 1085, 1088, 1090, 1096, 1099, 1103,
    1106, 1109, 1113, 1116, 1122, 1129, 1153, 1156, 1159, 1169, 1171, 1176, 1183, 1185, 1195, 1199,
    1209, 1212, 1216, 1218, 1221, 1225, 1234, 1236, 1241, 1243, 1250, 1256, 1270, 1281, 1287, 1296,
    1299, 1306, 1309, 1313, 1338, 1341, 1348, 1353, 1362, 1375, 1376, 1387, 1400, 1408, 1410, 1415,
    1425, 1453, 1457, 1477, 1481, 1494, 1496, 1507, 1512, 1538, 1545, 1547, 1549, 1551, 1554, 1561,
    1563, 1565, 1570, 1572, 1575, 1577, 1587, 1593, 1601, 1603, 1605, 1612, 1617, 1619, 1632, 1648,
    1658, 1662, 1664, 1674, 1680, 1690, 1692, 1704, 1729, 1736, 1740, 1745, 1747, 1751, 1752, 1761,
    1763, 1767, 1773, 1787, 1795, 1801, 1806, 1810, 1817, 1834, 1840, 1844, 1857, 1864, 1866, 1877,
    1882, 1892, 1902, 1915, 1934, 1953, 1985, 1987, 2000, 2002, 2013, 2048, 2052, 2058, 2064, 2068,
    2071, 2074, 2081, 2088, 2104, 2114, 2119, 2121, 2123, 2130, 2136, 2141, 2147, 2153, 2157, 2177,
    2179, 2184, 2189, 2193, 2203, 2208, 2223, 2226, 2232, 2244, 2249, 2251, 2256, 2258, 2265, 2269,
    2304, 2306, 2324, 2335, 2336, 2361, 2373, 2375, 2385, 2418, 2443, 2460, 2480, 2504, 2509, 2520,
    2531, 2537, 2562, 2568, 2572, 2578, 2592, 2596, 2599, 2602, 2614, 2620, 2625, 2627, 2629, 2634,
    2641, 2650, 2682, 2688, 2697, 2707, 2712, 2718, 2731, 2754, 2759, 2760, 2775, 2788, 2793, 2805,
    2811, 2817, 2820, 2832, 2842, 2854, 2890, 2902, 2921, 2923, 2978, 3010, 3012, 3026, 3081, 3083,
    3085, 3097, 3099, 3120, 3136, 3152, 3159, 3188, 3210, 3228, 3234, 3245, 3250, 3256, 3264, 3276,
    3281, 3296, 3349, 3363, 3378, 3392, 3395, 3420, 3440, 3461, 3488, 3529, 3531, 3584, 3588, 3591,
    3600, 3602, 3614, 3616, 3628, 3634, 3650, 3657, 3668, 3683, 3685, 3713, 3716, 3720, 3726, 3729,
    3736, 3753, 3778, 3802, 3805, 3819, 3841, 3845, 3851, 3856, 3880, 3922, 3938, 3970, 3993, 4032,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_sorted_and_known_by_their_levels() {
        for (grid, count) in [(&*XXS, 256), (&*S, 512)] {
            assert_eq!(grid.points.len(), count);
            assert!(grid.points.windows(2).all(|pair| pair[0] < pair[1]));
            for place in 0..count as u16 {
                assert_eq!(grid.place(grid.levels(place)), Some(place));
            }
        }
        assert_eq!((levels(0o4321), point([1, 2, 3, 4])), ([1, 2, 3, 4], 0o4321));
    }

    /// Every point is kept or has some that are near, and the nearest of them first.
    #[test]
    fn what_is_not_kept_has_neighbours() {
        for grid in [&*XXS, &*S] {
            for one in 0..ALL as u16 {
                assert_eq!(grid.at[usize::from(one)].is_none(), !grid.near[usize::from(one)].is_empty(), "{one:o}");
            }
        }
        // (1, 0, 0, 0) lies between (0, 0, 0, 0) and (2, 0, 0, 0): of 256 points the two at a distance of one, then those at the next.
        assert_eq!(&XXS.near[1][..2], &[0, 1]);
        let x = [2.9, 1.0, 1.0, 1.0];
        assert_eq!(XXS.nearest([1, 0, 0, 0], &x, &[1.0; 4], 1.0), [0; 4]);
        assert_eq!(XXS.nearest([1, 0, 0, 0], &[3.1, 1.0, 1.0, 1.0], &[1.0; 4], 1.0), [2, 0, 0, 0]);
    }
}
