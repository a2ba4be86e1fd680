//! One subject: check, warm up, sample until the median is known, say what may be wrong with it.

use std::{sync::Arc, time::Instant};

use roofline_core::{
    Device,
    measurement::{Energy, Measurement, Residency, Subject, Warning},
    units::Seconds,
};

use crate::{
    Backend, Case, Error, Protocol, Result,
    interference::Interference,
    protocol::{
        clock::{Judged, Watch},
        overhead, rotation,
    },
    telemetry::{PowerTracker, Source},
};

/// Blocks of samples between two looks at the clock last about this long.
const BLOCK: Seconds = Seconds::new(2e-3);
/// Samples a block has at most.
const BLOCK_SAMPLES: usize = 64;
/// Stolen core time, in percent, that is worth a word.
const STOLEN: f64 = 1.0;
/// A measurement may beat its roof by the error of the roof's own measurement.
const ABOVE: f64 = 1.05;

/// Measures `subject`. Nothing is reported that was not right.
pub fn measure(backend: &mut dyn Backend, subject: &Subject, protocol: &Protocol) -> Result<Measurement> {
    attempt(backend, subject, protocol).map_err(|error| match error {
        // A library has words of its own for a GPU that is gone.
        Error::Gpu { .. } => backend.lost().unwrap_or(error),
        error => error,
    })
}

fn attempt(backend: &mut dyn Backend, subject: &Subject, protocol: &Protocol) -> Result<Measurement> {
    let (name, device) = (backend.name(), backend.device().clone());
    let power = protocol.watch.map(|_| backend.power()).transpose()?;
    let case = backend.prepare(subject, protocol.residency)?;
    measure_case(case, name, &device, subject, protocol, power)
}

/// The same of a case that is prepared already, by backend `name` on `device`, with what tells its power.
pub(crate) fn measure_case(
    mut case: Box<dyn Case + '_>,
    name: &'static str,
    device: &Device,
    subject: &Subject,
    protocol: &Protocol,
    power: Option<Arc<dyn Source>>,
) -> Result<Measurement> {
    let kernel = case.kernel();
    let check = case.check()?;
    protocol.warmup.run(|| case.sample())?;
    let sampled = sample(&mut *case, protocol)?;
    let Sampled { judged, instrument, before, after, spent } = sampled;
    let Judged { samples, discarded, clocks, warnings: clock_warnings } = judged;
    let (times_cache, detour) = (case.times_cache(), case.detour());
    let energy = match (protocol.watch, power) {
        (Some(time), Some(source)) => watched(&mut *case, source, time)?,
        _ => None,
    };
    drop(case);
    let none = || Error::NoSamples { reason: format!("{discarded} were discarded because the clock fell") };
    let measured = Measurement::new(subject.clone(), protocol.residency, name.to_owned(), kernel, check, samples);
    let mut measured = measured.ok_or_else(none)?;
    (measured.discarded, measured.clock) = (discarded, clocks);
    measured.moved = measured.bytes + detour;
    let summary = *measured.summary();
    let mut warnings = Vec::new();
    let roof = measured.roof(device);
    if let Some(ratio) = roof.ok().map(|roof| roof / summary.median).filter(|ratio| *ratio > ABOVE) {
        warnings.push(Warning::AboveRoofline { ratio });
    }
    match summary.confidence {
        None => warnings.push(Warning::FewSamples { samples: summary.samples }),
        Some(known) if known > protocol.stop.confidence => {
            let (confidence_pct, wanted_pct) = (known * 100.0, protocol.stop.confidence * 100.0);
            warnings.push(Warning::Noisy { confidence_pct, wanted_pct });
        }
        Some(_) => {}
    }
    warnings.extend(clock_warnings);
    warnings.extend(interrupted(before, after, spent));
    warnings.extend(overhead::warning(summary.median, instrument));
    let leaks = times_cache.filter(|times| protocol.residency == Residency::Cold && *times < rotation::LEAST);
    warnings.extend(leaks.map(|times_cache| Warning::NotCold { times_cache }));
    measured.warnings = warnings;
    measured.energy = energy;
    Ok(measured)
}

/// Calls the kernel for `time` with somebody watching the power.
fn watched(case: &mut dyn Case, source: Arc<dyn Source>, time: Seconds) -> Result<Option<Energy>> {
    let (start, mut calls) = (Instant::now(), 0);
    let tracker = PowerTracker::start(source, PowerTracker::INTERVAL);
    while start.elapsed().as_secs_f64() < time.value() {
        case.sample()?;
        calls += case.calls();
    }
    let summary = tracker.stop().summary();
    Ok(summary.and_then(|summary| {
        let integrated = summary.energy_per(calls)?;
        let counted_j = summary.energy_counter.map(|energy| energy.value() / calls as f64);
        let clock_mhz = summary.clock_avg.map(|clock| clock.value() / 1e6);
        Some(Energy { calls, integrated, counted_j, power: summary.power_avg?, clock_mhz })
    }))
}

struct Sampled {
    judged: Judged,
    instrument: Seconds,
    before: Interference,
    after: Interference,
    spent: Seconds,
}

/// Blocks of samples, each between two looks at the clock.
fn sample(case: &mut dyn Case, protocol: &Protocol) -> Result<Sampled> {
    let instrument = case.overhead();
    let (start, before) = (Instant::now(), case.interference());
    let mut watch = Watch::new(case.known_clock(), case.look().clock);
    let mut samples: Vec<Seconds> = Vec::new();
    let (mut fake, mut refused) = (Seconds::ZERO, false);
    loop {
        let (first, mut block) = (samples.len(), Seconds::ZERO);
        while block < BLOCK && samples.len() - first < BLOCK_SAMPLES {
            let sample = case.sample()?;
            block += sample;
            samples.push(overhead::subtract(sample, instrument));
            if protocol.stop.enough(&samples, fake + block) {
                break;
            }
        }
        fake += block;
        if !watch.accept(case.look(), &samples[first..]) {
            samples.truncate(first);
            refused = true;
        }
        // A backend with fake times finishes by those; a real one by the clock on the wall.
        let spent = fake.max(Seconds::new(start.elapsed().as_secs_f64()));
        // A clock that stays low would discard for ever: what there is by then has to do.
        let hopeless = refused && spent > protocol.stop.budget * 4.0 && samples.len() < protocol.stop.least;
        if protocol.stop.enough(&samples, spent) || hopeless {
            let judged = watch.judge(&protocol.stop);
            return Ok(Sampled { judged, instrument, before, after: case.interference(), spent });
        }
    }
}

fn interrupted(before: Interference, after: Interference, spent: Seconds) -> Option<Warning> {
    let meanwhile = after.since(before);
    let stolen_pct = meanwhile.stolen.map_or(0.0, |stolen| stolen / spent * 100.0);
    let preemptions = meanwhile.preemptions.unwrap_or(0);
    // A scheduler tick now and then is life; one in every ten milliseconds is company.
    let often = preemptions as f64 > 10.0 + spent.value() * 100.0;
    (stolen_pct > STOLEN || often).then_some(Warning::Interrupted { stolen_pct, preemptions })
}

#[cfg(test)]
mod tests;
