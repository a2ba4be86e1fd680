//! A recording in a few numbers.

use roofline_core::units::{Celsius, Flops, FlopsPerJoule, Hertz, Joules, Quantity, Seconds, Watts};
use schemars::JsonSchema;
use serde::Serialize;

use super::{PowerReading, Recording, Sample, megahertz};

/// Averages over time, extremes and energy of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "PowerSummary")]
pub struct Summary {
    /// Mean power, weighted by time.
    #[serde(rename = "power_avg_w")]
    pub power_avg: Option<Watts>,
    /// Highest power.
    #[serde(rename = "power_max_w")]
    pub power_max: Option<Watts>,
    /// Lowest power.
    #[serde(rename = "power_min_w")]
    pub power_min: Option<Watts>,
    /// What these powers are.
    pub power_reading: Option<PowerReading>,
    /// Mean temperature, weighted by time.
    #[serde(rename = "temp_avg_c")]
    pub temp_avg: Option<Celsius>,
    /// Highest temperature.
    #[serde(rename = "temp_max_c")]
    pub temp_max: Option<Celsius>,
    /// Mean clock of the multiprocessors, weighted by time.
    #[serde(rename = "clock_avg_mhz", serialize_with = "megahertz")]
    #[schemars(with = "Option<f64>")]
    pub clock_avg: Option<Hertz>,
    /// Lowest clock.
    #[serde(rename = "clock_min_mhz", serialize_with = "megahertz")]
    #[schemars(with = "Option<f64>")]
    pub clock_min: Option<Hertz>,
    /// Highest clock.
    #[serde(rename = "clock_max_mhz", serialize_with = "megahertz")]
    #[schemars(with = "Option<f64>")]
    pub clock_max: Option<Hertz>,
    /// From the first sample to the last.
    #[serde(rename = "duration_s")]
    pub duration: Seconds,
    /// How many.
    pub num_samples: usize,
    /// Energy as the integral of the samples' power.
    #[serde(rename = "energy_j")]
    pub energy: Option<Joules>,
    /// Energy by the driver's counter.
    #[serde(rename = "energy_counter_j")]
    pub energy_counter: Option<Joules>,
}

impl Summary {
    pub(super) fn of(recording: &Recording) -> Option<Self> {
        let (first, last) = (recording.samples.first()?, recording.samples.last()?);
        let power = Series::of(recording, |sample| sample.power);
        let temperature = Series::of(recording, |sample| sample.temperature);
        let clock = Series::of(recording, |sample| sample.gpu_clock);
        Some(Self {
            power_avg: power.mean(),
            power_max: power.max(),
            power_min: power.min(),
            power_reading: recording.power_reading,
            temp_avg: temperature.mean(),
            temp_max: temperature.max(),
            clock_avg: clock.mean(),
            clock_min: clock.min(),
            clock_max: clock.max(),
            duration: last.timestamp - first.timestamp,
            num_samples: recording.samples.len(),
            // A single power is no energy: it took no time.
            energy: (power.0.len() > 1).then(|| Joules::new(power.integral())),
            energy_counter: recording.energy_counter,
        })
    }

    /// Energy of each of `runs` that filled the recording.
    pub fn energy_per(&self, runs: u64) -> Option<Joules> {
        (runs > 0).then_some(self.energy? / runs as f64)
    }

    /// Operations per joule, which is FLOP/s per watt, where `work` was done during the recording.
    pub fn efficiency(&self, work: Flops) -> Option<FlopsPerJoule> {
        self.energy.filter(|energy| *energy > Joules::ZERO).map(|energy| work / energy)
    }
}

/// The energy of parts of a recording: whoever asks for many of them has it added up once. Before the first sample and after
/// the last, power is taken to be what they saw.
pub struct Energies {
    power: Series<Watts>,
    /// From the first sample to each.
    sums: Vec<f64>,
}

impl Energies {
    pub(super) fn of(recording: &Recording) -> Self {
        let power = Series::<Watts>::of(recording, |sample| sample.power);
        let mut sum = 0.0;
        let parts = power.0.windows(2).map(|pair| {
            sum += trapezoid(pair[0], pair[1]);
            sum
        });
        let sums = std::iter::once(0.0).chain(parts).collect();
        Self { power, sums }
    }

    /// That of a part, both ends since the start. None where no power was read.
    pub fn between(&self, from: Seconds, until: Seconds) -> Option<Joules> {
        Some(Joules::new(self.until(until.value())? - self.until(from.value())?))
    }

    /// From the first sample on; less than nothing before it.
    fn until(&self, time: f64) -> Option<f64> {
        let before = self.power.before(time).unwrap_or(0);
        let last = *self.power.0.get(before)?;
        Some(self.sums[before] + trapezoid(last, (time, self.power.at(time)?)))
    }
}

/// Of the area under the line between two points.
fn trapezoid((start, low): (f64, f64), (end, high): (f64, f64)) -> f64 {
    (end - start) * (low + high) / 2.0
}

/// A quantity over time, in base units; samples without it are bridged.
struct Series<Q>(Vec<(f64, f64)>, std::marker::PhantomData<Q>);

impl<Q: Quantity> Series<Q> {
    fn of(recording: &Recording, value: impl Fn(&Sample) -> Option<Q>) -> Self {
        let point = |sample: &Sample| Some((sample.timestamp.value(), value(sample)?.base_units()));
        Self(recording.samples.iter().filter_map(point).collect(), std::marker::PhantomData)
    }

    /// Trapezoids between neighbours: samples are as far apart as the driver and the scheduler let them be.
    fn integral(&self) -> f64 {
        self.0.windows(2).map(|pair| trapezoid(pair[0], pair[1])).sum()
    }

    /// The last sample before a time.
    fn before(&self, time: f64) -> Option<usize> {
        self.0.partition_point(|(own, _)| *own < time).checked_sub(1)
    }

    /// Its value at a time, on the line between two samples.
    fn at(&self, time: f64) -> Option<f64> {
        let before = self.before(time);
        match (before.map(|before| self.0[before]), self.0.get(before.map_or(0, |before| before + 1))) {
            (Some((start, low)), Some((end, high))) => Some(low + (high - low) * (time - start) / (end - start)),
            (Some((_, value)), None) | (None, Some(&(_, value))) => Some(value),
            (None, None) => None,
        }
    }

    fn mean(&self) -> Option<Q> {
        let (first, last) = (self.0.first()?, self.0.last()?);
        let time = last.0 - first.0;
        Some(Q::of(if time > 0.0 { self.integral() / time } else { first.1 }))
    }

    fn max(&self) -> Option<Q> {
        self.0.iter().map(|point| point.1).reduce(f64::max).map(Q::of)
    }

    fn min(&self) -> Option<Q> {
        self.0.iter().map(|point| point.1).reduce(f64::min).map(Q::of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(timestamp: f64, power: Option<f64>, clock: f64) -> Sample {
        Sample {
            timestamp: Seconds::new(timestamp),
            power: power.map(Watts::new),
            temperature: Some(Celsius::new(40.0 + timestamp)),
            gpu_clock: Some(Hertz::new(clock * 1e6)),
            ..Sample::default()
        }
    }

    fn recording(samples: Vec<Sample>) -> Recording {
        let power_reading = Some(PowerReading::Instant);
        Recording { samples, power_reading, energy_counter: Some(Joules::new(900.0)), cut_off: false }
    }

    /// 100 W to 300 W in one second, then 300 W for two, unevenly sampled and once not at all:
    /// 200 W x 1 s + 300 W x 2 s = 800 J, over 3 s.
    #[test]
    fn energy_is_the_area_under_power() {
        let samples = vec![
            sample(0.5, Some(100.0), 1980.0),
            sample(1.5, Some(300.0), 1700.0),
            sample(1.6, None, 1700.0),
            sample(1.75, Some(300.0), 1700.0),
            sample(3.5, Some(300.0), 1700.0),
        ];
        let summary = recording(samples).summary().unwrap();
        assert_eq!(summary.energy, Some(Joules::new(800.0)));
        assert_eq!(summary.energy_counter, Some(Joules::new(900.0)));
        assert!((summary.power_avg.unwrap().value() - 800.0 / 3.0).abs() < 1e-9);
        assert_eq!((summary.power_max, summary.power_min), (Some(Watts::new(300.0)), Some(Watts::new(100.0))));
        assert_eq!((summary.duration, summary.num_samples), (Seconds::new(3.0), 5));
        assert_eq!((summary.temp_avg, summary.temp_max), (Some(Celsius::new(42.0)), Some(Celsius::new(43.5))));
        assert_eq!((summary.clock_min, summary.clock_max), (Some(Hertz::new(1.7e9)), Some(Hertz::new(1.98e9))));
        assert_eq!(summary.energy_per(400), Some(Joules::new(2.0)));
        assert_eq!(summary.energy_per(0), None);
        assert_eq!(summary.efficiency(Flops::new(1.6e15)), Some(FlopsPerJoule::new(2e12)));
        let fields = serde_json::to_value(summary).unwrap();
        assert_eq!((&fields["energy_j"], &fields["clock_max_mhz"]), (&800.into(), &1980.into()));
        assert_eq!(fields["power_reading"], "instant");
    }

    /// The parts of a recording have its energy together, wherever it is cut.
    #[test]
    fn parts_have_the_energy_of_the_whole() {
        let all = recording(vec![sample(0.0, Some(100.0), 1.0), sample(1.0, Some(300.0), 1.0), sample(3.0, None, 1.0)]);
        let energy = |from, until| all.energy_between(Seconds::new(from), Seconds::new(until)).unwrap().value();
        assert!((energy(0.0, 1.0) - 200.0).abs() < 1e-9);
        for cut in [0.0, 0.1, 0.5, 0.99, 1.0] {
            assert!((energy(0.0, cut) + energy(cut, 1.0) - 200.0).abs() < 1e-9, "{cut}");
        }
        // One addition for all of them, also of what was before anybody looked.
        let energies = all.energies();
        let between = |from, until| energies.between(Seconds::new(from), Seconds::new(until)).unwrap().value();
        assert!((between(-1.0, 0.0) - 100.0).abs() < 1e-9 && (between(-1.0, 0.5) - 175.0).abs() < 1e-9);
        assert_eq!(between(0.25, 0.25), 0.0);
        // Nobody looked after a second: it is taken to go on.
        assert!((energy(1.0, 2.0) - 300.0).abs() < 1e-9);
        let dark = recording(vec![sample(0.0, None, 1.0)]);
        assert_eq!(dark.energy_between(Seconds::ZERO, Seconds::new(1.0)), None);
    }

    #[test]
    fn one_sample_has_power_and_no_energy() {
        let summary = recording(vec![sample(0.0, Some(250.0), 1980.0)]).summary().unwrap();
        assert_eq!((summary.power_avg, summary.energy), (Some(Watts::new(250.0)), None));
        assert_eq!((summary.energy_per(1), summary.efficiency(Flops::new(1.0))), (None, None));
        assert!(recording(Vec::new()).summary().is_none());
    }

    #[test]
    fn without_power_the_rest_is_there() {
        let summary = recording(vec![sample(0.0, None, 1980.0), sample(1.0, None, 1980.0)]).summary().unwrap();
        assert_eq!((summary.power_avg, summary.energy), (None, None));
        assert_eq!(summary.clock_avg, Some(Hertz::new(1.98e9)));
    }
}
