//! What `roofline monitor` recorded while somebody's run went on: power over the run and over its parts.
//!
//! A recording starts before a run and ends after it, and nobody notes when. The run is taken to be where the GPU drew most:
//! of all stretches as long as the run, the one with the most energy.

use std::{fs, path::Path};

use roofline_core::units::{Joules, Seconds, Watts};
use roofline_run::telemetry::{PowerReading, Recording, Sample};
use serde::Deserialize;

use crate::{Error, Result};

/// A look, of which two values are wanted.
#[derive(Deserialize)]
struct Look {
    elapsed_s: f64,
    power_draw_w: Option<f64>,
}

/// A recording, and when the run began in it.
pub(super) struct Power {
    recording: Recording,
    start: Seconds,
}

impl Power {
    /// What a file of looks, a line of JSON each, says of a run that took so long.
    pub(super) fn read(path: &Path, measured: Seconds) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(Error::file(path))?;
        let hint = "`⟨roofline monitor⟩` writes one while a run goes on: as JSON, a line for each look";
        let refused = |why: String| Error::request(format!("{}: {why}", path.display()), hint);
        let mut samples = Vec::new();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let look: Look =
                serde_json::from_str(line).map_err(|error| refused(format!("line {}: {error}", at + 1)))?;
            let (timestamp, power) = (Seconds::new(look.elapsed_s), look.power_draw_w.map(Watts::new));
            samples.push(Sample { timestamp, power, ..Sample::default() });
        }
        samples.retain(|sample| sample.power.is_some());
        samples.sort_by(|one, other| one.timestamp.value().total_cmp(&other.timestamp.value()));
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
            return Err(refused("nobody looked at the power".to_owned()));
        };
        let (first, last) = (first.timestamp, last.timestamp);
        if last - first < measured {
            return Err(refused(format!("it has {} of power, and the run took {measured}", last - first)));
        }
        let recording =
            Recording { samples, power_reading: Some(PowerReading::Averaged), energy_counter: None, cut_off: false };
        let starts = recording.samples.iter().map(|sample| sample.timestamp).filter(|start| *start + measured <= last);
        let energies = recording.energies();
        let energy = |start: Seconds| energies.between(start, start + measured).unwrap_or(Joules::ZERO).value();
        let most = starts.map(|start| (energy(start), start)).max_by(|(one, _), (other, _)| one.total_cmp(other));
        let start = most.map_or(first, |(_, start)| start);
        Ok(Self { recording, start })
    }

    /// Energy of a part of the run, both ends since its start; none of one that was over between two looks.
    pub(super) fn energy(&self, from: Seconds, until: Seconds) -> Option<Joules> {
        let (from, until) = (self.start + from, self.start + until);
        let inside = self.recording.samples.iter().filter(|sample| (from..=until).contains(&sample.timestamp));
        if inside.count() < 2 {
            return None;
        }
        self.recording.energy_between(from, until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Idle for 2 s at 100 W, 400 W for 4 s, idle again: the run is the middle.
    #[test]
    fn the_run_is_where_most_was_drawn() {
        let path = std::env::temp_dir().join(format!("roofline-power-{}.jsonl", std::process::id()));
        let look = |at: i32| {
            let power = if (4..=12).contains(&at) { 400.0 } else { 100.0 };
            format!("{{\"elapsed_s\":{},\"power_draw_w\":{power},\"device_name\":\"x\"}}\n", f64::from(at) / 2.0)
        };
        fs::write(&path, (0..20).map(look).collect::<String>()).unwrap();
        let power = Power::read(&path, Seconds::new(4.0)).unwrap();
        assert_eq!(power.energy(Seconds::ZERO, Seconds::new(4.0)), Some(Joules::new(1600.0)));
        assert_eq!(power.energy(Seconds::ZERO, Seconds::new(1.0)), Some(Joules::new(400.0)));
        assert_eq!(power.energy(Seconds::new(0.1), Seconds::new(0.4)), None);
        let error = Power::read(&path, Seconds::new(60.0)).err().unwrap();
        assert!(error.is_input() && error.to_string().contains("and the run took"), "{error}");
        fs::write(&path, "no look\n").unwrap();
        assert!(Power::read(&path, Seconds::new(1.0)).err().unwrap().to_string().contains("line 1"));
        fs::remove_file(path).unwrap();
    }
}
