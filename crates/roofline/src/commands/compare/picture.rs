//! A comparison as pictures.

use roofline_core::{compare::Diagnosis, op::Class as OpClass};

use super::Compared;
use crate::{
    commands::plot::ceilings,
    plot::{Class, Group, Memory, Point, Roofline, Time, Times},
};

impl Compared {
    /// Measured points hollow, predicted ones filled, under the device's roofs.
    pub(super) fn picture(&self) -> Roofline {
        let mut points = Vec::new();
        for pair in self.pairs.iter().filter(|pair| pair.ideal.work.flops.value() > 0.0) {
            let class = match pair.observation.op.class() {
                OpClass::Attention => Class::Attention,
                OpClass::Elementwise | OpClass::Network => Class::Elementwise,
                OpClass::Gemm => Class::Product,
            };
            let (label, series) = (format!("{} {}", pair.label(), pair.subject()), pair.label());
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
            title: format!("{} on {}", self.subject, self.device_name),
            subtitle: format!("predicted ({} tier) filled, measured hollow", self.tier),
            memories: vec![Memory { label: "memory".to_owned(), bandwidth: self.on.memory.bandwidth }],
            ceilings: ceilings(&self.on),
            points,
            brief: true,
        }
    }

    /// Ideal, expected and measured time of each kernel, those of one operator together.
    pub(super) fn times(&self) -> Times {
        let mut groups: Vec<Group> = Vec::new();
        for (row, pair) in self.comparisons.iter().zip(&self.pairs) {
            let slow = pair.diagnoses.iter().any(|found| matches!(found, Diagnosis::SlowKernel { .. }));
            let note = match slow {
                true => "slow",
                false if pair.emulated() => "on purpose",
                false => "",
            };
            let bar = Time {
                label: row.precision.clone(),
                ideal: row.ideal_time_us,
                expected: pair.expected.map(|expected| expected.time.micros()),
                measured: row.measured_time_us,
                of_roof: row.efficiency,
                note,
                bad: slow,
            };
            match groups.iter_mut().find(|group| group.label == row.shape) {
                Some(group) => group.bars.push(bar),
                None => groups.push(Group { label: row.shape.clone(), bars: vec![bar] }),
            }
        }
        // Where nothing shares its operator with another, a line for each is enough.
        if groups.iter().all(|group| group.bars.len() == 1) {
            for group in &mut groups {
                let shape = std::mem::take(&mut group.label);
                group.bars.iter_mut().for_each(|bar| bar.label = format!("{shape} {}", bar.label));
            }
        }
        Times {
            title: "Time of each kernel".to_owned(),
            subtitle: "the longest of an operator fills the width".to_owned(),
            unit: "us".to_owned(),
            groups,
        }
    }
}
