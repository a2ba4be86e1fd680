//! The last minute.

use std::collections::VecDeque;

use super::Look;

/// What is remembered, in seconds.
pub(super) const SPAN: f64 = 60.0;

const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Moments of the last minute: seconds since the start, watts, megahertz.
#[derive(Default)]
pub(super) struct History(VecDeque<(f64, Option<f64>, Option<f64>)>);

impl History {
    pub(super) fn push(&mut self, look: &Look) {
        let status = &look.status;
        let power = status.power_draw.map(roofline_core::units::Watts::value);
        let clock = status.sm_clock.or(status.gpu_clock).map(|clock| clock.value() / 1e6);
        self.0.push_back((look.elapsed_s, power, clock));
        while self.0.front().is_some_and(|moment| moment.0 < look.elapsed_s - SPAN) {
            self.0.pop_front();
        }
    }

    pub(super) fn power(&self) -> Vec<(f64, f64)> {
        self.0.iter().filter_map(|(time, power, _)| Some((*time, (*power)?))).collect()
    }

    pub(super) fn clock(&self) -> Vec<(f64, f64)> {
        self.0.iter().filter_map(|(time, _, clock)| Some((*time, (*clock)?))).collect()
    }
}

/// The last minute in `cells` columns, the newest at the right. A column is the mean of what was seen in it, or what was
/// seen before it; before the first look it is empty. `top` is a full column.
pub(super) fn sparkline(points: &[(f64, f64)], cells: usize, top: f64) -> String {
    let Some((now, _)) = points.last() else { return " ".repeat(cells) };
    let each = SPAN / cells as f64;
    let mut held = None;
    let column = |cell: usize| {
        let end = now - each * (cells - 1 - cell) as f64;
        let inside = points.iter().filter(|(time, _)| *time > end - each && *time <= end).map(|(_, value)| *value);
        let (count, sum) = inside.fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
        held = if count > 0.0 { Some(sum / count) } else { held };
        held.map_or(' ', |value: f64| LEVELS[((value / top * 8.0).round() - 1.0).clamp(0.0, 7.0) as usize])
    };
    (0..cells).map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_at_the_right() {
        assert_eq!(sparkline(&[], 4, 8.0), "    ");
        assert_eq!(sparkline(&[(0.0, 8.0)], 4, 8.0), "   █");
        // 15 s to a column: the one in the middle was not looked at and keeps what was seen before it.
        assert_eq!(sparkline(&[(0.0, 1.0), (10.0, 3.0), (40.0, 8.0), (41.0, 0.0)], 4, 8.0), " ▂▂▄");
        assert_eq!(sparkline(&[(0.0, 0.0)], 1, 8.0), "▁");
        assert_eq!(sparkline(&[(0.0, 99.0)], 1, 8.0), "█", "above the limit is a full column");
    }
}
