//! A kernel of one's own: checked against the reference, timed by our protocol, and set between the roof and our kernel.
//!
//! Two ways lead here. A CUDA kernel in a file is compiled and run by us (`roofline measure kernel`). A function is called by
//! whoever has it, from Python for instance: [`prepare`] says what is to be measured, [`Prepared::measure`] does it on the
//! caller's own thread, and [`told`] measures our kernel and puts both side by side.

use std::{fs::File, io::Read, path::Path};

use roofline_core::{
    Device, Machine, Plan,
    measurement::{Measurement, Residency, Subject},
    plan::Kernel,
    predict::{Figures, Tier},
};
use roofline_run::{
    Error as RunError, Protocol, Skipped,
    cuda::{Cuda, Gpu, present},
    measure as measured,
    own::{Manifest, Operands, Own, Place, Timer, measure_own},
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    Context, Error, Result,
    broken::Broken,
    gpu,
    machine::{machine, plans},
    measure::{Answer, Asked, KernelFile, Request, Subject as Named, shown},
    predict::{shape, varies},
    request::{BackendName, Measuring},
    runner,
    subjects::refuse_theory,
    text::number,
    this_machine,
};

/// Longest program of a kernel.
const LONGEST: u64 = 4 << 20;

/// A kernel of one's own beside the roof and ours. Its own numbers are in `measurements`.
#[derive(Serialize, JsonSchema)]
pub struct OwnKernel {
    pub kernel: String,
    pub shape: String,
    pub precision: String,
    /// What told its time.
    pub timer: Timer,
    /// The least time, and the time that our kernels are expected to take.
    #[serde(flatten)]
    pub figures: Figures,
    pub measured_time_us: f64,
    /// Ideal over measured time: 1 is the roof.
    pub of_roof: f64,
    /// What it waits for at the roof: `memory` or `compute`.
    pub bound: String,
    /// Our kernel for the same, measured in the same call.
    pub ours: Option<String>,
    pub ours_time_us: Option<f64>,
    /// Times as fast as ours.
    pub speedup_over_ours: Option<f64>,
    /// Why ours was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ours_missing: Option<String>,
    pub verdict: String,
}

impl OwnKernel {
    fn new(
        yours: &Measurement,
        ours: &std::result::Result<Measurement, String>,
        timer: Timer,
        machine: &Machine,
    ) -> Result<Self> {
        let (prediction, basis) = machine.prediction(&yours.op, &yours.formats)?;
        let (roof, time) = (yours.roof(&machine.device)?, yours.time());
        let figures = Figures::of(&prediction, basis, Tier::Expected, machine);
        let bound = prediction.bound(Tier::Ideal).to_string();
        let of_roof = roof / time;
        let verdict = verdict(yours, of_roof, &bound, &figures, ours.as_ref().ok());
        Ok(Self {
            kernel: yours.kernel.name.clone(),
            shape: yours.op.words(&yours.site),
            precision: yours.precision.clone(),
            timer,
            figures,
            measured_time_us: time.micros(),
            of_roof,
            bound,
            ours: ours.as_ref().ok().map(|ours| ours.kernel.name.clone()),
            ours_time_us: ours.as_ref().ok().map(|ours| ours.time().micros()),
            speedup_over_ours: ours.as_ref().ok().map(|ours| ours.time() / time),
            ours_missing: ours.as_ref().err().cloned(),
            verdict,
        })
    }
}

fn verdict(yours: &Measurement, of_roof: f64, bound: &str, figures: &Figures, ours: Option<&Measurement>) -> String {
    let time = yours.time();
    let place = if of_roof > 1.0 {
        let why = match yours.residency {
            Residency::Warm => "a cache served it",
            Residency::Cold => "the device is described too low, or a cache served it",
        };
        format!("{}x the {bound} roof: {why}", number(of_roof))
    } else {
        format!("{:.0} % of the {bound} roof", of_roof * 100.0)
    };
    let theory = format!(
        "{} us, {place} ({} us ideal, {} us expected of our kernels)",
        number(time.micros()),
        number(figures.ideal_time_us),
        number(figures.expected_time_us)
    );
    let Some(ours) = ours else { return theory };
    let ratio = ours.time() / time;
    let beside = match ratio {
        faster if faster >= 1.0 => format!("{}x as fast as ours", number(faster)),
        slower => format!("ours is {}x as fast", number(1.0 / slower)),
    };
    format!("{theory}; {beside} ({} us)", number(ours.time().micros()))
}

/// What is to be measured, where, and how.
pub struct Prepared {
    words: String,
    subject: Subject,
    device: Device,
    backend: BackendName,
    place: Place,
    protocol: Protocol,
    run: Measuring,
}

/// Finds the operator, the device and its caches for a function that the caller has. What is wrong with the question is said
/// before anything is called.
pub fn prepare(context: &Context, request: &Request) -> Result<Prepared> {
    let Some(Asked::Operator(asked)) = request.subject.as_ref().map(Named::asked) else {
        return Err(Error::request("a function computes one operator", "it is gemv, gemm or attention"));
    };
    let run = request.run.clone();
    if run.out.is_some() || run.resume || run.energy || request.saturate || request.write_device.is_some() {
        let hint = "leave out ⟨out⟩, ⟨resume⟩, ⟨energy⟩, ⟨saturate⟩ and ⟨write_device⟩";
        return Err(Error::request("a function of one's own is measured and told, and not kept in a run", hint));
    }
    let (operator, words) = shape(asked)?;
    let setting = asked.setting();
    refuse_theory(setting)?;
    let backend = run.backend();
    let (device, place) = place(context, backend, &run, setting.first())?;
    let (graph, all) = (operator.graph(), plans(&setting.precision, varies(asked), &device)?);
    let [plan] = &all[..] else { return Err(one_precision(&setting.precision)) };
    let subject = subject_of(&graph, plan, &device)?;
    // Refused before the caller makes anything of it.
    Operands::of(&subject)?;
    Ok(Prepared { words, subject, device, backend, place, protocol: run.protocol(), run })
}

fn one_precision(named: &[String]) -> Error {
    let message = match named {
        [] => "no precision was named".to_owned(),
        named => format!("`{}` is more than one precision", named.join(",")),
    };
    Error::request(message, "a kernel reads one: `⟨precision fp32⟩`, bf16, fp16, w8a16, w4a16, ...")
}

/// The only kernel of an operator.
fn subject_of(graph: &roofline_core::Graph, plan: &Plan, device: &Device) -> Result<Subject> {
    let mut all = Vec::new();
    plan.on(device, None)?.kernels(graph, |Kernel { node, precision }| {
        all.push(Subject::new(&node, &plan.label(), *precision));
    });
    match all.len() {
        1 => Ok(all.remove(0)),
        count => {
            let message = format!("this is {count} kernels one after the other");
            Err(Error::request(message, "a kernel of one's own is one of gemv, gemm or attention, and fused"))
        }
    }
}

/// The device of a backend, and what there is to rotate past.
fn place(context: &Context, backend: BackendName, run: &Measuring, on: Option<&str>) -> Result<(Device, Place)> {
    match backend {
        BackendName::Null => {
            let hint = "leave out ⟨backend⟩, or say cpu or cuda";
            Err(Error::request("the null backend runs nothing, and so no function of yours", hint))
        }
        BackendName::Cpu => {
            if let Some(on) = on.filter(|on| *on != "this") {
                let message = format!("the processor of this machine cannot run as `{on}`");
                return Err(Error::request(message, "leave out ⟨on⟩"));
            }
            let (device, machine) = (this_machine::device(context)?, roofline_run::cpu::machine::Machine::detect());
            Ok((device, Place::processor(&machine)))
        }
        BackendName::Cuda => {
            let gpu = Gpu::open(run.gpu, None)?;
            let device = gpu::described(context, &gpu.name)?;
            match on.filter(|on| *on != "this") {
                Some(on) if context.device(on)?.key != device.key => {
                    let message = format!("the GPU of this machine is `{}`, not `{on}`", device.key);
                    Err(Error::request(message, "leave out ⟨on⟩"))
                }
                _ => Ok((device, Place::gpu(&gpu)?)),
            }
        }
    }
}

impl Prepared {
    /// Checks and times a function, on the thread that this is called on.
    pub fn measure(&self, own: &mut dyn Own) -> Result<Measurement> {
        Ok(measure_own(own, &self.place, &self.device, &self.subject, &self.protocol)?)
    }
}

/// A measured function beside the roof and, where `ours` asks for it, beside our kernel.
pub fn told(
    context: &Context,
    prepared: &Prepared,
    yours: &Measurement,
    timer: Timer,
    ours: bool,
    said: Vec<String>,
) -> Result<Answer> {
    for text in said {
        context.note(text);
    }
    let ours = if ours { our_own(context, prepared) } else { Err("it was not asked for".to_owned()) };
    let machine = machine(context, prepared.device.clone(), prepared.backend.stack());
    let own = OwnKernel::new(yours, &ours, timer, &machine)?;
    let mut all = vec![shown(yours, &prepared.device)];
    all.extend(ours.iter().map(|ours| shown(ours, &prepared.device)));
    Ok(answer(context, prepared.words.clone(), &prepared.device, prepared.backend, &prepared.protocol, all, vec![own]))
}

/// Our kernel for the same, or why there is none.
fn our_own(context: &Context, prepared: &Prepared) -> std::result::Result<Measurement, String> {
    let Prepared { subject, protocol, run, backend, .. } = prepared;
    let run = Measuring { backend: Some(*backend), ..run.clone() };
    let mut backend = runner::backend(context, &run, None).map_err(|error| error.to_string())?;
    measured(&mut *backend, subject, protocol).map_err(|error| error.to_string())
}

/// Measures a CUDA kernel that is described by a manifest, shape by shape, each after ours.
pub(crate) fn from_file(context: &Context, request: &Request, asked: &KernelFile) -> Result<Answer> {
    let name = asked.manifest.display().to_string();
    if !context.is_local() {
        return Err(Error::Path { what: "kernel", name });
    }
    let run = &request.run;
    if run.out.is_some() || run.resume {
        let hint = "leave out ⟨out⟩ and ⟨resume⟩; the answer in JSON has all of it";
        return Err(Error::request("a kernel of one's own is told, and not kept in a run", hint));
    }
    if let Some(other @ (BackendName::Cpu | BackendName::Null)) = run.backend {
        let message = format!("a CUDA kernel does not run on the {} backend", other.name());
        return Err(Error::request(message, "say `⟨backend cuda⟩`, or nothing"));
    }
    let manifest = Manifest::parse(&text_of(&asked.manifest)?, &asked.manifest)?;
    let source = text_of(&asked.manifest.parent().unwrap_or(Path::new("")).join(&manifest.source))?;
    let plan = match &Plan::list(&manifest.precision)?[..] {
        [plan] => plan.clone(),
        _ => return Err(one_precision(std::slice::from_ref(&manifest.precision))),
    };
    let mut cuda = gpu::backend(context, run.gpu).map_err(elsewhere)?;
    let protocol = run.protocol();
    let work = Work { context, manifest: &manifest, source: &source, plan: &plan, protocol: &protocol };
    let (mut measurements, mut own, mut skipped, mut broken) = (Vec::new(), Vec::new(), Vec::new(), None);
    let machine = machine(context, roofline_run::Backend::device(&cuda).clone(), BackendName::Cuda.stack());
    let count = manifest.shapes().len();
    for at in 0..count {
        if context.watcher().cancelled() {
            return Err(Error::Cancelled);
        }
        let (yours, ours) = match work.shape(&mut cuda, at) {
            Ok(both) => both,
            // A kernel that breaks the GPU takes nothing with it that was measured before.
            Err(error) if at > 0 && !matches!(error, Error::Cancelled) => {
                broken = Some(Broken::new(format!("shape {} of {count}", at + 1), &error));
                break;
            }
            Err(error) => return Err(error),
        };
        own.push(OwnKernel::new(&yours, &ours, Timer::CudaGraph, &machine)?);
        measurements.push(shown(&yours, &machine.device));
        match ours {
            Ok(ours) => measurements.push(shown(&ours, &machine.device)),
            Err(reason) => skipped.push(Skipped {
                site: yours.site.clone(),
                phase: None,
                precision: yours.precision.clone(),
                op: yours.op,
                reason: format!("our own: {reason}"),
                hint: None,
            }),
        }
    }
    context.watcher().ends();
    let words = format!("{} ({}), {name}", manifest.name, manifest.kind.name());
    let told = answer(context, words, &machine.device, BackendName::Cuda, &protocol, measurements, own);
    Ok(Answer { broken, skipped, ..told })
}

/// What to do without a GPU: the processor runs no CUDA kernel.
fn elsewhere(error: Error) -> Error {
    match error {
        Error::Run(RunError::Gpu { reason, .. }) if !present() => {
            let hint = "a CUDA kernel runs on an NVIDIA GPU with its driver; functions of Python are measured on the processor, \
                        too, by `roofline.measure_callable`";
            Error::Run(RunError::Gpu { reason, hint: Some(hint.to_owned()) })
        }
        error => error,
    }
}

/// A manifest at work.
struct Work<'a> {
    context: &'a Context,
    manifest: &'a Manifest,
    source: &'a str,
    plan: &'a Plan,
    protocol: &'a Protocol,
}

impl Work<'_> {
    /// One shape: ours first, because a kernel that breaks the GPU leaves nothing that could be measured after it.
    fn shape(&self, cuda: &mut Cuda, at: usize) -> Result<(Measurement, std::result::Result<Measurement, String>)> {
        let shape = &self.manifest.shapes()[at];
        let device = roofline_run::Backend::device(cuda).clone();
        let subject = subject_of(&self.manifest.graph(shape)?, self.plan, &device)?;
        let operands = Operands::of(&subject)?;
        let multiprocessors = cuda.gpu().multiprocessors;
        let kernel = self.manifest.kernel(shape, &operands, self.source.to_owned(), multiprocessors)?;
        // A text that does not compile must not cost the time of ours.
        cuda.gpu().compiler()?.compile_own(&kernel, cuda.gpu().architecture)?;
        self.context.watcher().starts(at, self.manifest.shapes().len(), &subject.words());
        let ours = measured(&mut *cuda, &subject, self.protocol).map_err(|error| error.to_string());
        Ok((cuda.measure_own(&kernel, operands, &subject, self.protocol)?, ours))
    }
}

fn answer(
    context: &Context,
    subject: String,
    device: &Device,
    backend: BackendName,
    protocol: &Protocol,
    measurements: Vec<crate::measure::MeasuredKernel>,
    own: Vec<OwnKernel>,
) -> Answer {
    Answer {
        subject,
        device: device.label(),
        device_name: device.name.clone(),
        backend,
        residency: protocol.residency,
        run: None,
        measurements,
        own,
        passes: Vec::new(),
        stopped: false,
        broken: None,
        skipped: Vec::new(),
        saturation: None,
        written_device: None,
        notes: context.notes(),
    }
}

/// A text file that is not too long.
fn text_of(path: &Path) -> Result<String> {
    let file = File::open(path).map_err(Error::file(path))?;
    let mut text = String::new();
    let read = file.take(LONGEST + 1).read_to_string(&mut text).map_err(Error::file(path))?;
    if read as u64 > LONGEST {
        let message = format!("{} is longer than {} MiB", path.display(), LONGEST >> 20);
        return Err(Error::request(message, "it is the text of a kernel, or its manifest"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
