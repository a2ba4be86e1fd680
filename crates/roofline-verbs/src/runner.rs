//! Measuring a list of kernels: a backend, a run file, and whoever follows.

mod disturbance;
mod place;

use std::{
    io,
    path::{Path, PathBuf},
};

use jiff::{Timestamp, Unit};
use roofline_core::{
    Device,
    measurement::{Measurement, Subject},
};
use roofline_run::{Backend, Environment, Header, Line, Null, Protocol, Run, RunFile, Skipped, measure};

use self::place::Place;
use crate::{
    Context, Error, Result, gpu,
    request::{BackendName, Measuring},
    this_machine,
};

/// A backend at work, with what it has measured.
pub(crate) struct Runner<'a> {
    pub(crate) context: &'a Context,
    pub(crate) kind: BackendName,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) protocol: Protocol,
    pub(crate) environment: Environment,
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
}

/// What a list of subjects became.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) measured: Vec<Measurement>,
    pub(crate) skipped: Vec<Skipped>,
}

impl Outcome {
    /// Refuses an outcome in which nothing was measured, with the reason of the first that was not.
    pub(crate) fn nonempty(self) -> Result<Self> {
        match self.skipped.first() {
            Some(first) if self.measured.is_empty() => {
                let names = "`⟨roofline precisions⟩` lists the names; `⟨backend cpu⟩`, `cuda` or `null` says who runs";
                let hint = first.hint.as_deref().unwrap_or(names);
                Err(Error::request(format!("{}: {}", first.precision, first.reason), hint))
            }
            _ => Ok(self),
        }
    }
}

impl<'a> Runner<'a> {
    /// Opens the backend and the run that is resumed, and looks whether a new one can be written, so that what can fail
    /// fails before anything is measured. `verb` names the file. A new one is there only once subjects are: a command that
    /// named none leaves nothing in the way of the next.
    pub(crate) fn start(context: &'a Context, args: &Measuring, on: Option<&str>, verb: &str) -> Result<Self> {
        let protocol = args.protocol();
        let earlier = args.out.as_deref().filter(|_| args.resume).map(RunFile::resume).transpose()?;
        let place = match &earlier {
            Some((file, _)) => Place::Named(file.path().to_owned()),
            None => Place::of(context, args.out.as_deref(), verb)?,
        };
        // A place that cannot be written must not cost the time of a measurement.
        if earlier.is_none() {
            place.writable()?;
        }
        let path = place.first();
        let (kind, backend) = (args.backend(), backend(context, args, on)?);
        let mut environment = Environment::of(this_machine::machine().clone());
        environment.accelerator = backend.facts();
        let (file, run) = earlier.unzip();
        if let Some(run) = &run {
            same_machine(run, &*backend)?;
            for change in changes(&run.header.environment, &environment) {
                context.warn(change);
            }
            let cut = if run.truncated { "; its last line was cut short and is measured again" } else { "" };
            context.note(format!("resuming with {} finished measurements{cut}", run.measurements.len()));
        }
        let (measured, skipped, planned) =
            run.map_or_else(Default::default, |run| (run.measurements, run.skipped, run.planned));
        Ok(Self { context, kind, backend, protocol, environment, path, place, file, measured, skipped, planned })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// When, by whom and on what: what is fitted to a run or written down of it says so.
    pub(crate) fn provenance(&self) -> String {
        let Environment { machine, accelerator, commit, .. } = &self.environment;
        let fact = |wanted: &str| accelerator.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
        let made_of = match (fact("GPU"), fact("driver version").or(fact("driver"))) {
            (Some(gpu), Some(driver)) => format!("{gpu}, driver {driver}"),
            _ => format!("{}, {} threads", machine.name.as_deref().unwrap_or("an unnamed processor"), machine.threads),
        };
        format!("{}, {} backend, {made_of}, {commit}", now(), self.backend.name())
    }

    /// What the first line of a run says.
    fn header(&self) -> Result<Header> {
        let (device, name) = (self.backend.device(), self.backend.name());
        let toml = (self.kind == BackendName::Cpu).then(|| this_machine::description(self.context)).transpose()?;
        let environment =
            serde_json::to_value(&self.environment).map_err(io::Error::from).map_err(Error::file(&self.path))?;
        let header = Header::new(now(), device.label(), toml, name, environment);
        Ok(Header { command: self.context.command().map(<[String]>::to_vec), ..header })
    }

    /// The run, started where it is not there yet.
    fn file(&mut self) -> Result<&mut RunFile> {
        let file = match self.file.take() {
            Some(file) => file,
            None => self.place.create(&self.header()?)?,
        };
        file.path().clone_into(&mut self.path);
        Ok(self.file.insert(file))
    }

    /// Measures each subject that the run does not hold yet; every one is on disk before the next starts.
    pub(crate) fn measure(&mut self, subjects: &[Subject]) -> Result<Outcome> {
        let planned = subjects.len() as u64;
        let known = self.planned.replace(planned) == Some(planned);
        let file = self.file()?;
        if !known {
            file.write(&Line::Planned(planned))?;
        }
        let (context, mut outcome) = (self.context, Outcome::default());
        let watcher = context.watcher();
        for (at, subject) in subjects.iter().enumerate() {
            if watcher.cancelled() {
                return Err(Error::Cancelled);
            }
            watcher.starts(at, subjects.len(), &subject.words());
            match self.one(subject)? {
                Ok(measured) => {
                    watcher.measured(&measured, self.device());
                    outcome.measured.push(measured);
                }
                Err(skipped) => {
                    watcher.skipped(&skipped);
                    outcome.skipped.push(skipped);
                }
            }
        }
        watcher.ends();
        Ok(outcome)
    }

    fn one(&mut self, subject: &Subject) -> Result<Result<Measurement, Skipped>> {
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
            Err(error @ roofline_run::Error::File { .. }) => Err(error.into()),
            Err(error @ roofline_run::Error::GpuLost { .. }) => {
                // Where a server keeps its files is its own affair.
                if self.context.command().is_some() && !self.measured.is_empty() {
                    let (count, path) = (self.measured.len(), self.path.display());
                    self.context.note(format!("{count} finished measurements are kept in {path}"));
                }
                Err(error.into())
            }
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
    pub(crate) fn repeat(&mut self, subjects: &[Subject]) -> Vec<Measurement> {
        let watcher = self.context.watcher();
        let again = subjects.iter().enumerate().filter_map(|(at, subject)| {
            watcher.starts(at, subjects.len(), &format!("{} again", subject.words()));
            measure(&mut *self.backend, subject, &self.protocol).ok()
        });
        let again = again.collect();
        watcher.ends();
        again
    }

    /// The device that is measured.
    pub(crate) fn device(&self) -> &Device {
        self.backend.device()
    }
}

/// The backend that was asked for, on the device that was named.
pub(crate) fn backend(context: &Context, args: &Measuring, on: Option<&str>) -> Result<Box<dyn Backend>> {
    let elsewhere = "leave out ⟨on⟩, or say `⟨backend null⟩` for fake times on any device";
    match (args.backend(), on) {
        (BackendName::Cuda, on) => {
            let backend = gpu::backend(context, args.gpu)?;
            let device = backend.device();
            match on.filter(|on| *on != "this") {
                Some(on) if context.device(on)?.key != device.key => {
                    let message = format!("the GPU of this machine is `{}`, not `{on}`", device.key);
                    Err(Error::request(message, elsewhere))
                }
                _ => Ok(Box::new(backend)),
            }
        }
        (BackendName::Cpu, None | Some("this")) => Ok(Box::new(this_machine::backend(context)?)),
        (BackendName::Cpu, Some(on)) => {
            Err(Error::request(format!("the processor of this machine cannot run as `{on}`"), elsewhere))
        }
        (BackendName::Null, Some(on)) => Ok(Box::new(Null::new(context.device(on)?))),
        (BackendName::Null, None) => {
            Err(Error::request("the null backend plays a device that you name", "say which by `⟨on h200⟩`"))
        }
    }
}

/// Measurements of two machines do not belong in one run.
fn same_machine(run: &Run, backend: &dyn Backend) -> Result<()> {
    let Header { backend: name, device, .. } = &run.header;
    if *name == backend.name() && *device == backend.device().label() {
        return Ok(());
    }
    let message = format!(
        "the run was made by {name} on `{device}`, this is {} on `{}`",
        backend.name(),
        backend.device().label()
    );
    Err(Error::request(message, "start a new run with another ⟨out⟩"))
}

/// What can fail about where a run goes, before anything is measured for its sake.
pub(crate) fn ready(context: &Context, args: &Measuring, verb: &str) -> Result<()> {
    match &args.out {
        Some(out) if args.resume => Ok(Run::read(out).map(|_| ())?),
        out => Place::of(context, out.as_deref(), verb)?.writable(),
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

/// The time in UTC, to the second.
pub fn now() -> String {
    let now = Timestamp::now();
    now.round(Unit::Second).unwrap_or(now).to_string()
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
                Err(Error::Request { hint, message }) if message == "bf16: why" => hint,
                Err(error) => panic!("{error:?}"),
                Ok(_) => panic!("nothing was measured"),
            }
        };
        assert_eq!(hint(Some("close python3")), "close python3");
        assert!(hint(None).contains("roofline precisions"));
    }
}
