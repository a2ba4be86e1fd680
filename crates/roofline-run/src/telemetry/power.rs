//! Power while something runs: a thread that looks every ten milliseconds, and what came of it.
//!
//! Energy is given twice, because each way has a fault of its own. The integral of the samples (trapezoids over their
//! timestamps) misses what happens between two of them, and where only the driver's one-second mean can be read
//! ([`PowerReading::Averaged`]) it lags behind a short run. The driver's own counter misses nothing, but advances in steps
//! of its own and is coarse over a few of them. Over some seconds the two should agree.

mod summary;

pub use summary::{Energies, Summary};

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use roofline_core::units::{Celsius, Hertz, Joules, Seconds, Watts};
use schemars::JsonSchema;
use serde::Serialize;

use super::{ClockDomain, Source, status::megahertz};

/// One look. At least one of its values is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "PowerSample")]
pub struct Sample {
    /// Since the recording started.
    #[serde(rename = "timestamp_s")]
    pub timestamp: Seconds,
    /// Power.
    #[serde(rename = "power_w")]
    pub power: Option<Watts>,
    /// Temperature of the chip.
    #[serde(rename = "temperature_c")]
    pub temperature: Option<Celsius>,
    /// Clock of the multiprocessors.
    #[serde(rename = "gpu_clock_mhz", serialize_with = "megahertz")]
    #[schemars(with = "Option<f64>")]
    pub gpu_clock: Option<Hertz>,
    /// Clock of the memory.
    #[serde(rename = "mem_clock_mhz", serialize_with = "megahertz")]
    #[schemars(with = "Option<f64>")]
    pub mem_clock: Option<Hertz>,
    /// Share of time with a kernel running, in per cent.
    pub gpu_util_pct: Option<u32>,
    /// Share of time with memory in use, in per cent.
    pub mem_util_pct: Option<u32>,
}

/// What the power of a sample is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PowerReading {
    /// Power at that moment.
    Instant,
    /// What the driver calls power, from Ampere on (GA100 apart) the mean of the last second.
    Averaged,
}

/// What a tracker saw.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "PowerRecording")]
pub struct Recording {
    /// In order of time.
    pub samples: Vec<Sample>,
    /// What their power is; none where it cannot be read.
    pub power_reading: Option<PowerReading>,
    /// What the driver's energy counter advanced by; none where it cannot be read, or went backwards.
    #[serde(rename = "energy_counter_j")]
    pub energy_counter: Option<Joules>,
    /// Whether the driver let the last sample hang, so that the end is missing.
    pub cut_off: bool,
}

impl Recording {
    /// Averages, extremes and energy; none of nothing.
    pub fn summary(&self) -> Option<Summary> {
        Summary::of(self)
    }

    /// Energy of a part of it, both ends since the start: a region of what was watched. None where no power was read.
    pub fn energy_between(&self, from: Seconds, until: Seconds) -> Option<Joules> {
        self.energies().between(from, until)
    }

    /// The same of many parts.
    pub fn energies(&self) -> Energies {
        Energies::of(self)
    }
}

/// Records power, temperature and clocks from its start until it is stopped or dropped.
///
/// ```no_run
/// use std::sync::Arc;
/// use roofline_run::telemetry::{Gpu, PowerTracker};
///
/// let tracker = PowerTracker::start(Arc::new(Gpu::open(0)?), PowerTracker::INTERVAL);
/// // ... what is to be watched ...
/// if let Some(summary) = tracker.stop().summary() {
///     println!("{:?} over {}", summary.power_avg, summary.duration);
/// }
/// # Ok::<(), roofline_run::Error>(())
/// ```
#[must_use = "a tracker that is dropped stops"]
pub struct PowerTracker {
    shared: Arc<Shared>,
    /// Dropping it asks the thread to stop.
    stop: Option<Sender<()>>,
    stopped: Receiver<()>,
}

/// What the thread and its owner both see.
struct Shared {
    source: Arc<dyn Source>,
    reading: Option<PowerReading>,
    state: Mutex<State>,
}

struct State {
    started: Instant,
    energy_start: Option<Joules>,
    energy_end: Option<Joules>,
    samples: Vec<Sample>,
}

impl PowerTracker {
    /// Often enough to see a kernel of a few tenths of a second.
    pub const INTERVAL: Duration = Duration::from_millis(10);
    /// How long a stop waits for a driver that hangs.
    const PATIENCE: Duration = Duration::from_secs(2);

    /// Looks at once and then at every `interval`, until stopped.
    pub fn start(source: Arc<dyn Source>, interval: Duration) -> Self {
        // Asked once: samples of both kinds in one recording could not be integrated.
        let reading = source
            .instant_power()
            .map(|_| PowerReading::Instant)
            .or_else(|_| source.power_draw().map(|_| PowerReading::Averaged));
        let shared = Arc::new(Shared { state: Mutex::new(State::new(source.as_ref())), reading: reading.ok(), source });
        let ((stop, stopping), (done, stopped)) = (channel(), channel());
        let worker = Arc::clone(&shared);
        // A system that has no thread left makes the recording empty, and not what is watched fail.
        let _ = thread::Builder::new().name("power".into()).spawn(move || {
            worker.record(interval, &stopping);
            drop(done);
        });
        Self { shared, stop: Some(stop), stopped }
    }

    /// Forgets what was recorded and goes on from zero.
    pub fn restart(&mut self) {
        let fresh = State::new(self.shared.source.as_ref());
        *self.shared.state() = fresh;
    }

    /// Looks a last time, ends the thread and hands over what it saw. A driver that hangs is left alone after two seconds.
    pub fn stop(mut self) -> Recording {
        let cut_off = !self.halt();
        let mut state = self.shared.state();
        let energy = state.energy_start.zip(state.energy_end).map(|(start, end)| end - start);
        Recording {
            samples: std::mem::take(&mut state.samples),
            power_reading: self.shared.reading,
            energy_counter: energy.filter(|energy| *energy >= Joules::ZERO),
            cut_off,
        }
    }

    /// Whether the thread is gone.
    fn halt(&mut self) -> bool {
        self.stop = None;
        // Nothing is ever sent: the channel closes when the thread ends, also when it panics.
        self.stopped.recv_timeout(Self::PATIENCE) != Err(RecvTimeoutError::Timeout)
    }
}

impl Drop for PowerTracker {
    fn drop(&mut self) {
        if self.stop.is_some() {
            self.halt();
        }
    }
}

impl State {
    fn new(source: &dyn Source) -> Self {
        let energy_start = source.total_energy().ok();
        Self { started: Instant::now(), energy_start, energy_end: None, samples: Vec::new() }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, interval: Duration, stopping: &Receiver<()>) {
        let mut next = Instant::now();
        loop {
            self.look();
            // A driver slower than the interval costs samples, not a backlog of them.
            next = (next + interval).max(Instant::now());
            let left = next.saturating_duration_since(Instant::now());
            if stopping.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
                break;
            }
        }
        self.look();
        let energy = self.source.total_energy().ok();
        self.state().energy_end = energy;
    }

    /// One sample, taken without the lock so that a slow driver keeps nobody waiting.
    fn look(&self) {
        let source = self.source.as_ref();
        let started = self.state().started;
        let power = match self.reading {
            Some(PowerReading::Instant) => source.instant_power().ok(),
            Some(PowerReading::Averaged) => source.power_draw().ok(),
            None => None,
        };
        let timestamp = Seconds::new(started.elapsed().as_secs_f64());
        let utilization = source.utilization().ok();
        let sample = Sample {
            timestamp,
            power,
            temperature: source.temperature().ok(),
            gpu_clock: source.clock(ClockDomain::Sm).ok(),
            mem_clock: source.clock(ClockDomain::Memory).ok(),
            gpu_util_pct: utilization.map(|utilization| utilization.gpu),
            mem_util_pct: utilization.map(|utilization| utilization.memory),
        };
        let mut state = self.state();
        // One that began before a restart belongs to what was forgotten.
        if state.started == started && sample != (Sample { timestamp, ..Sample::default() }) {
            state.samples.push(sample);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::fake::{Fake, QUERIES};

    const INTERVAL: Duration = Duration::from_millis(2);

    fn start(fake: Fake) -> PowerTracker {
        PowerTracker::start(Arc::new(fake), INTERVAL)
    }

    #[test]
    fn a_recording_has_a_beginning_and_an_end() {
        let tracker = start(Fake::default());
        thread::sleep(Duration::from_millis(50));
        let recording = tracker.stop();
        assert!(!recording.cut_off && recording.samples.len() >= 3, "{recording:?}");
        assert!(recording.samples.is_sorted_by_key(|sample| sample.timestamp.value()));
        assert_eq!(recording.power_reading, Some(PowerReading::Instant));
        assert_eq!(recording.samples[0].power, Some(Watts::new(400.0)));
        // The fake's counter was asked at the start and at the end: four joules apart.
        assert_eq!(recording.energy_counter, Some(Joules::new(4.0)));
        let fields = serde_json::to_value(recording.samples[0]).unwrap();
        for (name, value) in [("power_w", 400), ("temperature_c", 51), ("gpu_clock_mhz", 1756), ("mem_clock_mhz", 3201)]
        {
            assert_eq!(fields[name], value);
        }
        assert_eq!((&fields["gpu_util_pct"], &fields["mem_util_pct"]), (&97.into(), &41.into()));
        assert!(fields["timestamp_s"].is_number());
    }

    #[test]
    fn a_scope_shorter_than_the_interval_has_two_samples() {
        let recording = PowerTracker::start(Arc::new(Fake::default()), Duration::from_mins(1)).stop();
        assert_eq!(recording.samples.len(), 2);
    }

    #[test]
    fn a_restart_forgets() {
        let mut tracker = PowerTracker::start(Arc::new(Fake::default()), Duration::from_mins(1));
        while tracker.shared.state().samples.is_empty() {
            thread::yield_now();
        }
        tracker.restart();
        let recording = tracker.stop();
        assert_eq!(recording.samples.len(), 1, "the last look only");
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        let recording = start(Fake::failing(&["instant_power_w", "utilization", "total_energy_j"])).stop();
        assert_eq!(recording.power_reading, Some(PowerReading::Averaged));
        assert_eq!(recording.energy_counter, None);
        let sample = recording.samples[0];
        assert_eq!((sample.power, sample.gpu_util_pct), (Some(Watts::new(350.0)), None));
        let nothing = start(Fake::failing(QUERIES)).stop();
        assert_eq!((nothing.samples.len(), nothing.power_reading), (0, None));
        assert!(nothing.summary().is_none());
    }

    #[test]
    fn a_driver_that_hangs_is_left_alone() {
        let tracker = start(Fake::slow(Duration::from_secs(20)));
        let start = Instant::now();
        let recording = tracker.stop();
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
        assert!(recording.cut_off && recording.samples.is_empty());
    }

    #[test]
    fn a_drop_ends_the_thread() {
        let fake: Arc<dyn Source> = Arc::new(Fake::default());
        drop(PowerTracker::start(Arc::clone(&fake), INTERVAL));
        // The thread closes its channel as its last act but for letting go of the source.
        let start = Instant::now();
        while Arc::strong_count(&fake) > 1 && start.elapsed() < Duration::from_secs(2) {
            thread::yield_now();
        }
        assert_eq!(Arc::strong_count(&fake), 1);
    }
}
