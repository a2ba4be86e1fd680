//! A comparison as pictures.

use roofline_core::compare::Diagnosis;

use super::Answer;
use crate::picture::{Class, Group, Memory, Point, Roofline, Time, Times, ceilings};

/// Most bars of a chart: a file of somebody's measurements may have thousands.
const MOST: usize = 64;

impl Answer {
    /// Measured points hollow, predicted ones filled, under the device's roofs.
    pub fn picture(&self) -> Roofline {
        let mut points = Vec::new();
        for pair in self.pairs.iter().filter(|pair| pair.ideal.work.flops.value() > 0.0) {
            let class = Class::of(&pair.observation.op);
            let (label, series) = (pair.subject(), pair.label());
            let (intensity, flops) = (pair.ideal.intensity(), pair.ideal.work.flops);
            let predicted = flops / pair.predicted();
            let point = |rate, measured| Point {
                label: label.clone(),
                intensity,
                rate,
                class,
                series: series.clone(),
                measured,
            };
            points.push(point(predicted, false));
            points.push(point(pair.rate(), true));
        }
        Roofline {
            title: format!("Under the roofs of {}", self.device_name),
            subtitle: format!("predicted ({} tier) filled, measured hollow", self.tier),
            memories: vec![Memory { label: "memory".to_owned(), bandwidth: self.on.memory.bandwidth }],
            ceilings: ceilings(&self.on),
            points,
            brief: true,
        }
    }

    /// Ideal, expected and measured time of each kernel, those of one operator together.
    pub fn times(&self) -> Times {
        let mut groups: Vec<Group> = Vec::new();
        for (row, pair) in self.comparisons.iter().zip(&self.pairs).take(MOST) {
            let slow = pair.diagnoses.iter().any(|found| matches!(found, Diagnosis::SlowKernel { .. }));
            let note = match slow {
                true => "slow",
                false if pair.emulated() => "on purpose",
                false => "",
            };
            let bar = Time {
                label: row.precision.clone(),
                ideal: row.figures.ideal_time_us,
                expected: pair.expected.map(|expected| expected.time.micros()),
                measured: row.measured_time_us,
                of_roof: row.efficiency,
                note,
                bad: slow,
            };
            match groups.iter_mut().find(|group| group.label == row.placed()) {
                Some(group) => group.bars.push(bar),
                None => groups.push(Group { label: row.placed(), bars: vec![bar] }),
            }
        }
        // Where nothing shares its operator with another, a line for each is enough.
        let apart = groups.iter().all(|group| group.bars.len() == 1);
        if apart {
            for group in &mut groups {
                let shape = std::mem::take(&mut group.label);
                group.bars.iter_mut().for_each(|bar| bar.label = format!("{shape} {}", bar.label));
            }
        }
        let scale = if apart { "the longest of each kernel" } else { "the longest of an operator" };
        let more = self.pairs.len().saturating_sub(MOST);
        let more = if more > 0 { format!("; {more} more kernels by ⟨all⟩") } else { String::new() };
        Times {
            title: "Time of each kernel".to_owned(),
            subtitle: format!("in us; {scale} fills the width{more}"),
            unit: "us".to_owned(),
            groups,
        }
    }
}
