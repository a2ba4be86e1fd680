//! Who runs a model: all cores of this machine, or its GPU. Everything that differs between the two is asked here - which
//! machine theory speaks of, which memory must have room, and who can say what power it takes.

use std::sync::Arc;

use clap::{Args, ValueEnum};
use roofline_core::{Device, Format, Machine, Model, units::Bytes};
use roofline_engine::{Backend, Error as Refusal, Settings, memory};
use roofline_run::{
    cpu::machine::Machine as Host,
    cuda::{Architecture, Gpu},
    process::peak_memory,
    telemetry::{Shortage, Source},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Numbers;
use crate::{Context, Error, Result, gpu::described, machine, request::BackendName, this_machine};

/// Who runs a model.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Execution {
    /// Who runs the model: all cores of this machine (cpu), or its NVIDIA GPU (cuda); the GPU where there is one, else the
    /// processor, when left out
    #[arg(long, value_enum, help_heading = "Whole models")]
    pub backend: Option<ModelBackend>,
    /// Which GPU, as `nvidia-smi -L` counts them
    #[arg(long, value_name = "INDEX", default_value_t = 0, help_heading = "Whole models")]
    pub gpu: usize,
}

/// Those that run models; fake times are of single kernels only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ModelBackend {
    Cpu,
    Cuda,
}

impl From<ModelBackend> for BackendName {
    fn from(backend: ModelBackend) -> Self {
        match backend {
            ModelBackend::Cpu => Self::Cpu,
            ModelBackend::Cuda => Self::Cuda,
        }
    }
}

impl Execution {
    /// Who runs, where nobody was named: the one that measures kernels.
    pub(crate) fn backend(&self) -> BackendName {
        BackendName::or_usual(self.backend.map(BackendName::from))
    }

    /// Who runs, ready to.
    pub(crate) fn executor(&self, context: &Context) -> Result<Executor> {
        Executor::open(context, self.backend(), self.gpu)
    }

    /// What has to be typed for it, behind other words.
    pub(crate) fn words(&self) -> String {
        let backend = self.backend.map(|backend| format!(" --backend {}", BackendName::from(backend).name()));
        let gpu = (self.gpu > 0).then(|| format!(" --gpu {}", self.gpu));
        [backend, gpu].into_iter().flatten().collect()
    }
}

/// Cores or a GPU, looked at before anything is loaded.
pub(crate) struct Executor {
    pub(crate) name: BackendName,
    backend: Backend,
    gpu: Option<Opened>,
}

/// A GPU, and what of its memory was free when nothing had been loaded.
struct Opened {
    gpu: Gpu,
    index: usize,
    free: Bytes,
}

impl Executor {
    /// All cores of this machine.
    pub(crate) fn cpu() -> Self {
        Self { name: BackendName::Cpu, backend: Backend::Cpu, gpu: None }
    }

    /// That of a name. A driver, a GPU or a compiler that is missing is said here, before weights are read.
    pub(crate) fn open(context: &Context, name: BackendName, index: usize) -> Result<Self> {
        match name {
            BackendName::Cpu => Ok(Self::cpu()),
            BackendName::Cuda => {
                let kernels = context.home().folder("kernels");
                let gpu = Gpu::open(index, kernels.clone())?;
                gpu.compiler()?;
                let free = gpu.free()?;
                let backend = Backend::Cuda { index, kernels };
                Ok(Self { name, backend, gpu: Some(Opened { gpu, index, free }) })
            }
            BackendName::Null => {
                let hint = "`⟨backend cpu⟩` or `cuda` runs it; without weights, its kernels have fake times";
                Err(Error::request("the null backend runs no models", hint))
            }
        }
    }

    /// As the engine is told.
    pub(super) fn backend(&self) -> Backend {
        self.backend.clone()
    }

    pub(crate) fn is_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// That of the GPU.
    pub(super) fn architecture(&self) -> Option<Architecture> {
        self.gpu.as_ref().map(|opened| opened.gpu.architecture)
    }

    /// The data sheet of what runs.
    pub(crate) fn device(&self, context: &Context) -> Result<Device> {
        match &self.gpu {
            Some(Opened { gpu, .. }) => described(context, &gpu.name),
            None => this_machine::device(context),
        }
    }

    /// The machine that predictions of what runs here speak of.
    pub(crate) fn machine(&self, context: &Context) -> Result<Machine> {
        Ok(machine::machine(context, self.device(context)?, self.name.stack()))
    }

    /// What it is made of, in a few lines.
    pub(crate) fn facts(&self, context: &Context) -> Result<Vec<(String, String)>> {
        match &self.gpu {
            Some(Opened { gpu, .. }) => Ok(gpu.facts()),
            None => this_machine::facts(context),
        }
    }

    /// What a GPU says of itself; nothing on a processor.
    pub(crate) fn accelerator(&self) -> Vec<(String, String)> {
        self.gpu.as_ref().map(|opened| opened.gpu.facts()).unwrap_or_default()
    }

    /// Who says what power is drawn; nobody on a processor.
    pub(crate) fn power(&self) -> Option<Arc<dyn Source>> {
        Some(Arc::new(self.gpu.as_ref()?.gpu.telemetry().ok()?))
    }

    /// Memory of the GPU that was taken since it was opened, or the most that the program ever held of the host's.
    pub(crate) fn memory_used(&self) -> Option<Bytes> {
        match &self.gpu {
            Some(Opened { gpu, free, .. }) => {
                let used = *free - gpu.free().ok()?;
                Some(used).filter(|used| *used > Bytes::ZERO)
            }
            None => peak_memory(),
        }
    }

    /// Refuses a device that is not the one that runs.
    pub(crate) fn is_meant(&self, context: &Context, on: Option<&str>, device: &Device) -> Result<()> {
        match on.filter(|on| *on != "this") {
            None => Ok(()),
            Some(on) if self.is_gpu() && context.device(on)?.key == device.key => Ok(()),
            Some(on) if self.is_gpu() => Err(Error::request(
                format!("the GPU of this machine is `{}`, not `{on}`", device.key),
                "leave out ⟨on⟩",
            )),
            Some(on) => {
                Err(Error::request(format!("the processor of this machine cannot run as `{on}`"), "leave out ⟨on⟩"))
            }
        }
    }

    /// Refuses a number of threads where no thread computes.
    pub(crate) fn takes(&self, numbers: &Numbers) -> Result<()> {
        if self.is_gpu() && numbers.threads.is_some() {
            let hint = "leave it out, or say `⟨backend cpu⟩`";
            return Err(Error::request("⟨threads⟩ are the processor's, and the model runs on the GPU", hint));
        }
        Ok(())
    }

    /// What the engine says, with the other way to run it where a GPU has no kernel for a part or a format of the model.
    pub(crate) fn refused(&self, error: Error) -> Error {
        match error {
            Error::Engine(refusal @ Refusal::Unsupported { .. }) if self.is_gpu() => {
                let hint = "`⟨backend cpu⟩` runs it on the processor; `⟨roofline quantize⟩` writes other formats";
                Error::request(format!("{refusal} (on a GPU)"), hint)
            }
            error => error,
        }
    }

    /// Refuses what there is no room for, with the sum.
    pub(crate) fn has_room(&self, need: &Need<'_>) -> Result<()> {
        let remedy = "use fewer bits per weight, a shorter context, a smaller batch or a narrower cache";
        let (what, sum) = match &self.gpu {
            None => {
                let Some(available) = Host::detect().available.filter(|available| need.total() > *available) else {
                    return Ok(());
                };
                (need.model.to_owned(), format!("{need} = {}, and {available} are available: {remedy}", need.total()))
            }
            Some(Opened { gpu, index, .. }) => {
                let free = gpu.free()?;
                if need.total() <= free {
                    return Ok(());
                }
                let source = self.power();
                let short = Shortage::new(need.total(), free, source.as_deref());
                let what = format!("{} on GPU {index} ({})", need.model, gpu.name);
                (what, format!("{need}: {short}; several GPUs cannot share a model here: {remedy}, or `⟨backend cpu⟩`"))
            }
        };
        Err(Refusal::Memory { what, needed: need.total(), sum: Some(sum) }.into())
    }
}

/// What a model takes while it runs.
pub(crate) struct Need<'a> {
    model: &'a str,
    weights: Bytes,
    cache: Bytes,
    /// Values of a pass; nothing where they are taken as they are needed.
    pass: Bytes,
    sequences: usize,
    context: usize,
    kv: Format,
}

impl<'a> Need<'a> {
    /// Of weights that take so many bytes, as `settings` run them.
    pub(crate) fn of(
        model: &'a Model,
        weights: Bytes,
        sequences: usize,
        context: usize,
        settings: &Settings,
    ) -> Result<Self> {
        let cache = memory::cache(model, settings, sequences, context)?;
        let pass = memory::pass(model, settings, sequences, context);
        Ok(Self { model: &model.name, weights, cache, pass, sequences, context, kv: settings.kv })
    }

    /// The same with another model beside it.
    pub(crate) fn beside(self, other: &Need<'_>) -> Self {
        let (weights, cache) = (self.weights + other.weights, self.cache + other.cache);
        Self { weights, cache, pass: self.pass + other.pass, ..self }
    }

    fn total(&self) -> Bytes {
        self.weights + self.cache + self.pass
    }
}

impl std::fmt::Display for Need<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { weights, cache, pass, sequences, context, kv, .. } = self;
        write!(f, "{weights} of weights + {cache} of cache ({sequences} x {context} tokens in {kv})")?;
        if *pass > Bytes::ZERO { write!(f, " + {pass} of a pass") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(weights: f64) -> Need<'static> {
        let (weights, cache, pass) = (Bytes::new(weights), Bytes::new(1e9), Bytes::ZERO);
        Need { model: "llama", weights, cache, pass, sequences: 2, context: 16, kv: Format::BF16 }
    }

    /// A GPU takes all of a pass at once, and whole groups of keys.
    #[test]
    fn a_gpu_needs_more_than_a_processor() {
        let model = Model::find("llama-3.2-1b").unwrap();
        let on = |backend| Settings { backend, ..Settings::with(Format::BF16) };
        let need = |settings: &Settings| Need::of(&model, Bytes::new(1e9), 1, 65, settings).unwrap();
        let (cpu, gpu) = (need(&on(Backend::Cpu)), need(&on(Backend::Cuda { index: 0, kernels: None })));
        assert!(cpu.pass == Bytes::ZERO && !cpu.to_string().contains("pass"), "{cpu}");
        assert!(gpu.pass > Bytes::ZERO && gpu.to_string().ends_with(" of a pass"), "{gpu}");
        assert_eq!(gpu.cache.value() / cpu.cache.value(), 128.0 / 65.0);
        assert_eq!(gpu.total(), gpu.weights + gpu.cache + gpu.pass);
    }

    /// A model that nothing was said of runs where kernels are measured, and words repeat what was said.
    #[test]
    fn who_runs() {
        let asked: Execution = crate::request::from_json(serde_json::json!({ "backend": "cpu" })).unwrap();
        assert_eq!((asked.backend(), asked.words().as_str()), (BackendName::Cpu, " --backend cpu"));
        let asked: Execution = crate::request::from_json(serde_json::json!({ "backend": "cuda", "gpu": 1 })).unwrap();
        assert_eq!((asked.backend(), asked.words().as_str()), (BackendName::Cuda, " --backend cuda --gpu 1"));
        let nobody = Execution::default();
        assert_eq!(nobody.backend(), crate::request::Measuring::default().backend());
        assert_eq!(nobody.words(), "");
        assert!(crate::request::from_json::<Execution>(serde_json::json!({ "backend": "null" })).is_err());
    }

    #[test]
    fn the_processor_has_room_for_little_and_not_for_everything() {
        let cpu = Executor::cpu();
        assert!(cpu.has_room(&need(1.0)).is_ok() || Host::detect().available.is_none());
        if Host::detect().available.is_some() {
            let error = cpu.has_room(&need(1e18).beside(&need(1e18))).unwrap_err();
            assert_eq!(error.kind(), "memory");
            let hint = error.hint().unwrap();
            assert!(hint.contains(" of weights + 2 GB of cache (2 x 16 tokens in bf16) = "), "{hint}");
        }
    }

    /// A machine without a GPU says what is missing, and what runs instead.
    #[test]
    fn a_gpu_that_is_missing_is_said() {
        let context = Context::pure();
        if roofline_run::cuda::present() {
            assert!(Executor::open(&context, BackendName::Cuda, 999).is_err());
            return;
        }
        let error = Executor::open(&context, BackendName::Cuda, 0).err().unwrap();
        assert!(!error.is_input() && error.hint().is_some(), "{error:?}");
        assert!(Executor::open(&context, BackendName::Null, 0).err().unwrap().is_input());
    }

    #[test]
    fn only_what_runs_can_be_named() {
        let (context, cpu) = (Context::pure(), Executor::cpu());
        let device = context.device("xeon_8480p").unwrap();
        assert!(cpu.is_meant(&context, None, &device).is_ok() && cpu.is_meant(&context, Some("this"), &device).is_ok());
        assert!(cpu.is_meant(&context, Some("h200"), &device).is_err());
        assert!(cpu.takes(&Numbers { threads: Some(2), ..Numbers::default() }).is_ok());
    }
}
