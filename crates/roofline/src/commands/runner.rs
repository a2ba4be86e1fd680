//! Measuring a list of kernels: a backend, a run file, a progress bar.

mod place;

pub(super) use place::writable;

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use indicatif::{ProgressBar, ProgressStyle};
use roofline_core::{
    Device,
    measurement::{Measurement, Residency, Subject},
    units::Seconds,
};
use roofline_run::{Backend, Environment, Header, Line, Null, Protocol, Run, RunFile, Skipped, measure};

use self::place::Place;
use super::{gpu, setting, this};
use crate::{
    cli::{BackendArg, RunArgs},
    config,
    failure::Failure,
    report::style,
};

/// How long the power of a kernel is watched: long enough for the driver's counter, which ticks every 20 to 100 ms.
const WATCHED: Seconds = Seconds::new(1.0);

/// A backend at work, with what it has measured.
pub(super) struct Runner {
    pub(super) backend: Box<dyn Backend>,
    pub(super) protocol: Protocol,
    pub(super) environment: Environment,
    /// Where the run goes, or where it is as soon as there is one.
    path: PathBuf,
    place: Place,
    /// The run, as soon as something is measured.
    file: Option<RunFile>,
    /// What the run held when it was resumed, and what has been measured since.
    measured: Vec<Measurement>,
    skipped: Vec<Skipped>,
    /// Kernels that the run says it is to hold.
    planned: Option<u64>,
    watcher: Option<Arc<dyn Watcher>>,
}

/// Somebody who follows a run and may end it.
pub(crate) trait Watcher: Send + Sync {
    /// Kernel `at` of `count` is about to start.
    fn starts(&self, at: usize, count: usize, words: &str);
    /// One was measured and is on disk.
    fn measured(&self, measured: &Measurement, device: &Device);
    /// One could not be measured.
    fn skipped(&self, skipped: &Skipped);
    /// Whether to stop before the next kernel.
    fn cancelled(&self) -> bool;
}

/// What a list of subjects became.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) measured: Vec<Measurement>,
    pub(super) skipped: Vec<Skipped>,
}

impl Outcome {
    /// Refuses an outcome in which nothing was measured, with the reason of the first that was not.
    pub(super) fn nonempty(self) -> Result<Self, Failure> {
        match self.skipped.first() {
            Some(first) if self.measured.is_empty() => {
                let names = "`roofline precisions` lists the names; `--backend cpu`, `cuda` or `null` says who runs";
                let hint = first.hint.as_deref().unwrap_or(names);
                Err(Failure::usage(format!("{}: {}", first.precision, first.reason), hint))
            }
            _ => Ok(self),
        }
    }
}

impl Runner {
    /// Opens the backend and the run that is resumed, and looks whether a new one can be written, so that what can fail
    /// fails before anything is measured. `verb` names the file. A new one is there only once subjects are: a command that
    /// named none leaves nothing in the way of the next.
    pub(super) fn start(args: &RunArgs, on: Option<&str>, verb: &str) -> Result<Self, Failure> {
        let mut protocol = if args.quick { Protocol::quick() } else { Protocol::default() };
        if let Some(seconds) = args.seconds {
            protocol.stop.budget = Seconds::new(seconds);
        }
        protocol.watch = args.energy.then_some(WATCHED);
        if args.warm {
            protocol.residency = Residency::Warm;
        }
        let earlier = args.out.as_deref().filter(|_| args.resume).map(RunFile::resume).transpose()?;
        let place = match &earlier {
            Some((file, _)) => Place::Named(file.path().to_owned()),
            None => Place::of(args.out.as_deref(), verb)?,
        };
        // A place that cannot be written must not cost the time of a measurement.
        if earlier.is_none() {
            place.writable()?;
        }
        let path = place.first();
        let backend = backend(args, on)?;
        let mut environment = Environment::of(this::machine().clone());
        environment.accelerator = backend.facts();
        let (file, run) = earlier.unzip();
        if let Some(run) = &run {
            same_machine(run, &*backend)?;
            for change in changes(&run.header.environment, &environment) {
                style::talk("warning", &change);
            }
            let cut = if run.truncated { "; its last line was cut short and is measured again" } else { "" };
            style::talk("note", &format!("resuming with {} finished measurements{cut}", run.measurements.len()));
        }
        let (measured, skipped, planned) =
            run.map_or_else(Default::default, |run| (run.measurements, run.skipped, run.planned));
        let watcher = args.watcher.clone();
        Ok(Self { backend, protocol, environment, path, place, file, measured, skipped, planned, watcher })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// When, by whom and on what: what is fitted to a run or written down of it says so.
    pub(super) fn provenance(&self) -> String {
        let Environment { machine, accelerator, commit, .. } = &self.environment;
        let fact = |wanted: &str| accelerator.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
        let made_of = match (fact("GPU"), fact("driver version").or(fact("driver"))) {
            (Some(gpu), Some(driver)) => format!("{gpu}, driver {driver}"),
            _ => format!("{}, {} threads", machine.name.as_deref().unwrap_or("an unnamed processor"), machine.threads),
        };
        format!("{}, {} backend, {made_of}, {commit}", utc(SystemTime::now()), self.backend.name())
    }

    /// The run, started where it is not there yet.
    fn file(&mut self) -> Result<&mut RunFile, Failure> {
        let file = match self.file.take() {
            Some(file) => file,
            None => self.place.create(&header(&*self.backend, &self.environment)?)?,
        };
        file.path().clone_into(&mut self.path);
        Ok(self.file.insert(file))
    }

    /// Measures each subject that the run does not hold yet; every one is on disk before the next starts.
    pub(super) fn measure(&mut self, subjects: &[Subject]) -> Result<Outcome, Failure> {
        let planned = subjects.len() as u64;
        let known = self.planned.replace(planned) == Some(planned);
        let file = self.file()?;
        if !known {
            file.write(&Line::Planned(planned))?;
        }
        let bar = progress(subjects.len());
        let mut outcome = Outcome::default();
        let watcher = self.watcher.clone();
        for (at, subject) in subjects.iter().enumerate() {
            if watcher.as_ref().is_some_and(|watcher| watcher.cancelled()) {
                return Err(Failure::Cancelled);
            }
            bar.set_message(subject.words());
            if let Some(watcher) = &watcher {
                watcher.starts(at, subjects.len(), &subject.words());
            }
            match self.one(subject)? {
                Ok(measured) => {
                    if let Some(watcher) = &watcher {
                        watcher.measured(&measured, self.device());
                    }
                    outcome.measured.push(measured);
                }
                Err(skipped) => {
                    if let Some(watcher) = &watcher {
                        watcher.skipped(&skipped);
                    }
                    outcome.skipped.push(skipped);
                }
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(outcome)
    }

    fn one(&mut self, subject: &Subject) -> Result<Result<Measurement, Skipped>, Failure> {
        let (residency, name) = (self.protocol.residency, self.backend.name());
        if let Some(known) = self.measured.iter().find(|known| known.repeats(subject, residency, name)) {
            return Ok(Ok(known.clone()));
        }
        // The same kernel at another site needs no second look.
        let elsewhere = |known: &&Measurement| {
            let (site, precision) = (known.site.clone(), known.precision.clone());
            let moved = Subject { site, precision, phase: known.phase, ..subject.clone() };
            known.repeats(&moved, residency, name)
        };
        let again = self.measured.iter().find(elsewhere).map(|known| known.clone().at(subject));
        let result = match again {
            Some(known) => Ok(known),
            None => measure(&mut *self.backend, subject, &self.protocol),
        };
        match result {
            Ok(measured) => {
                self.file()?.write(&Line::Measured(Box::new(measured.clone())))?;
                self.measured.push(measured.clone());
                Ok(Ok(measured))
            }
            // What this machine cannot do is a result; a file that cannot be written, or a GPU that stopped, is the end.
            Err(error @ (roofline_run::Error::File { .. } | roofline_run::Error::GpuLost { .. })) => Err(error.into()),
            Err(error) => {
                let (site, precision, op) = (subject.site.clone(), subject.precision.clone(), subject.op);
                // A library that is missing is missing for all of them, and what to do about it is half of the answer.
                let missing = error.hint().filter(|_| matches!(error, roofline_run::Error::Gpu { .. }));
                let reason = missing.map_or_else(|| error.to_string(), |hint| format!("{error}; {hint}"));
                // Another precision may need less memory than this machine has left, but that is not the first remedy.
                let short = matches!(error, roofline_run::Error::Memory { .. } | roofline_run::Error::GpuMemory(_));
                let hint = error.hint().filter(|_| short);
                let skipped = Skipped { site, phase: subject.phase, precision, op, reason, hint };
                if !self.skipped.contains(&skipped) {
                    self.file()?.write(&Line::Skipped(skipped.clone()))?;
                    self.skipped.push(skipped.clone());
                }
                Ok(Err(skipped))
            }
        }
    }

    /// Measures each subject again, whatever the run holds, and keeps the run as it is.
    pub(super) fn repeat(&mut self, subjects: &[Subject]) -> Vec<Measurement> {
        let bar = progress(subjects.len());
        let again = subjects.iter().filter_map(|subject| {
            bar.set_message(format!("{} again", subject.words()));
            let measured = measure(&mut *self.backend, subject, &self.protocol).ok();
            bar.inc(1);
            measured
        });
        let again = again.collect();
        bar.finish_and_clear();
        again
    }

    /// The device that is measured.
    pub(super) fn device(&self) -> &Device {
        self.backend.device()
    }
}

fn backend(args: &RunArgs, on: Option<&str>) -> Result<Box<dyn Backend>, Failure> {
    match (args.backend(), on) {
        (BackendArg::Cuda, on) => {
            let backend = gpu::backend(args.gpu)?;
            let device = backend.device();
            match on.filter(|on| *on != "this") {
                Some(on) if setting::device(&config::registry(), on)?.key != device.key => {
                    let hint = "leave out --on, or say `--backend null` for fake times on any device";
                    Err(Failure::usage(format!("the GPU of this machine is `{}`, not `{on}`", device.key), hint))
                }
                _ => Ok(Box::new(backend)),
            }
        }
        (BackendArg::Cpu, None | Some("this")) => Ok(Box::new(this::backend()?)),
        (BackendArg::Cpu, Some(on)) => {
            let hint = "leave out --on, or say `--backend null` for fake times on any device";
            Err(Failure::usage(format!("the processor of this machine cannot run as `{on}`"), hint))
        }
        (BackendArg::Null, Some(on)) => Ok(Box::new(Null::new(setting::device(&config::registry(), on)?))),
        (BackendArg::Null, None) => {
            Err(Failure::usage("the null backend plays a device that you name", "say which by `--on h200`"))
        }
    }
}

fn header(backend: &dyn Backend, environment: &Environment) -> Result<Header, Failure> {
    let device = backend.device();
    let toml = (backend.name() == "cpu").then(this::description).transpose()?;
    let environment = serde_json::to_value(environment).map_err(std::io::Error::from)?;
    let header = Header::new(utc(SystemTime::now()), device.label(), toml, backend.name(), environment);
    Ok(Header { command: typed(std::env::args().skip(1)), ..header })
}

/// The command that measures, where one was typed; a server was told otherwise.
fn typed(words: impl Iterator<Item = String>) -> Option<Vec<String>> {
    const VERBS: [&str; 4] = ["measure", "compare", "sweep", "calibrate"];
    let words: Vec<String> = words.collect();
    let first = words.iter().find(|word| word.as_str() == "serve" || VERBS.contains(&word.as_str()));
    first.is_some_and(|word| word != "serve").then_some(words)
}

/// Measurements of two machines do not belong in one run.
fn same_machine(run: &Run, backend: &dyn Backend) -> Result<(), Failure> {
    let Header { backend: name, device, .. } = &run.header;
    if *name == backend.name() && *device == backend.device().label() {
        return Ok(());
    }
    let message = format!(
        "the run was made by {name} on `{device}`, this is {} on `{}`",
        backend.name(),
        backend.device().label()
    );
    Err(Failure::usage(message, "start a new run with another --out"))
}

/// What can fail about where a run goes, before anything is measured for its sake.
pub(super) fn ready(args: &RunArgs, verb: &str) -> Result<(), Failure> {
    match &args.out {
        Some(out) if args.resume => Ok(Run::read(out).map(|_| ())?),
        out => Place::of(out.as_deref(), verb)?.writable(),
    }
}

/// What is not as it was when a run was started, which may explain why its measurements do not fit each other.
fn changes(then: &serde_json::Value, now: &Environment) -> Vec<String> {
    let Ok(then) = serde_json::from_value::<Environment>(then.clone()) else {
        return vec!["the run does not say which machine and which commit it was started with".to_owned()];
    };
    let (before, after) = (facts(&then), facts(now));
    let find = |all: &[(String, String)], wanted: &str| {
        all.iter().find(|(name, _)| name == wanted).map_or("unknown", |(_, value)| value).to_owned()
    };
    let mut names: Vec<&String> = before.iter().chain(&after).map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    let values = names.into_iter().map(|name| (name, find(&before, name), find(&after, name)));
    let changed = values.filter(|(_, before, after)| before != after);
    changed.map(|(name, before, after)| format!("the run was started with {name} {before}, this is {after}")).collect()
}

/// What measurements depend on: the build, the machine, its system.
fn facts(of: &Environment) -> Vec<(String, String)> {
    let Environment { commit, compiler, system, kernel, machine, accelerator, .. } = of;
    let or_unknown = |fact: &Option<String>| fact.clone().unwrap_or_else(|| "unknown".to_owned());
    let own = [
        ("commit", commit.clone()),
        ("compiler", compiler.clone()),
        ("processor", format!("{} of {} threads", or_unknown(&machine.name), machine.threads)),
        ("system", or_unknown(system)),
        ("kernel", or_unknown(kernel)),
    ];
    own.map(|(name, value)| (name.to_owned(), value)).into_iter().chain(accelerator.iter().cloned()).collect()
}

/// A bar on standard error, where somebody looks at it.
fn progress(length: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed} {wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// RFC 3339 in UTC, to the second. Days to dates after Hinnant, "chrono-Compatible Low-Level Date Algorithms".
pub(crate) fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use roofline_core::Graph;

    use super::*;

    #[test]
    fn what_the_machine_lacks_is_not_blamed_on_the_precision() {
        let op = Graph::gemv(4096, 4096).unwrap().nodes[0].op;
        let hint = |hint: Option<&str>| {
            let (site, precision, reason) = ("x".to_owned(), "bf16".to_owned(), "why".to_owned());
            let skipped = vec![Skipped { site, phase: None, precision, op, reason, hint: hint.map(str::to_owned) }];
            match (Outcome { skipped, ..Outcome::default() }).nonempty() {
                Err(Failure::Usage { hint, message }) if message == "bf16: why" => hint.unwrap(),
                Err(failure) => panic!("{failure:?}"),
                Ok(_) => panic!("nothing was measured"),
            }
        };
        assert_eq!(hint(Some("close python3")), "close python3");
        assert!(hint(None).contains("roofline precisions"));
    }

    #[test]
    fn dates() {
        let at = |seconds: u64| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(at(1_767_225_599), "2025-12-31T23:59:59Z");
    }
}
