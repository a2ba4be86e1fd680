//! A model with its weights, ready to run.

use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Instant};

use roofline_core::{
    Device, Format, Math, Model, Precision, Role,
    model::{AttentionLayer, FeedForward, Layer, Lowering, Workload, arithmetic},
    plan::Assignment,
    precision::PrecisionSpec,
    program::Weight,
    units::{Bytes, Seconds},
};
use roofline_isa::Isa;
use roofline_quant::{Checkpoint, Dtype, observed::Replaced};
use roofline_run::{
    cpu::{kernels::elementwise::Activation, machine::Machine},
    cuda::{Architecture, Gpu},
};

use crate::{
    Error, Result,
    gpu::{GpuModel, Sizes, Taken},
    matrix::{Loading, Matrix, Tensors},
    memory, products,
    session::Session,
    weights::{Held, Key, Weights},
};

/// Where a model runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// The processor's cores.
    #[default]
    Cpu,
    /// An NVIDIA GPU.
    Cuda {
        /// Which one, as the driver counts them.
        index: usize,
        /// Folder for compiled kernels; none keeps them in memory only.
        kernels: Option<PathBuf>,
    },
}

/// How a model runs.
#[derive(Clone)]
pub struct Settings {
    /// What it runs on.
    pub backend: Backend,
    /// Threads.
    pub threads: usize,
    /// The widest instructions that may be used.
    pub isa: Isa,
    /// The numbers between kernels.
    pub values: Format,
    /// The numbers of the cache.
    pub kv: Format,
    /// Tokens that a pass takes at once; where nobody says, as many as leave its values a small part of the weights.
    pub chunk: Option<usize>,
    /// Whether logits of every token are asked for, which takes room.
    pub all_logits: bool,
    /// Whether weights are decoded row by row although there is a kernel for them: slow, and what kernels are held against.
    pub decode: bool,
    /// Whether inputs of products are rounded where the checkpoint says so, as those who run it do; without, what is left is
    /// what its weights alone have lost.
    pub round_inputs: bool,
    /// Asked before every step; an error ends the pass.
    pub stop: Arc<dyn Fn() -> Result<()> + Send + Sync>,
}

/// The gate of gpt-oss's activation function.
const ALPHA: f32 = 1.702;
/// Tokens that a pass takes at once, where nobody says: the first of which the values fit their part.
const CHUNKS: [usize; 4] = [512, 256, 128, 64];
/// The same on a GPU, which has room for more and is slow with few.
const GPU_CHUNK: usize = 8192;
/// The part of the weights that values of a pass may take besides.
const PART: f64 = 0.05;
/// Bytes that they may take whatever the weights are: small models have many kernels for little work, and threads that wait
/// for each other after every one.
const LEAST: f64 = 16e6;

impl Settings {
    /// All threads of this machine, and the numbers that suit a checkpoint: 16 bit unless it has 32.
    pub fn for_checkpoint(checkpoint: &Checkpoint) -> Self {
        let text = |key: &str| checkpoint.config[key].as_str().or(checkpoint.config["text_config"][key].as_str());
        let values = match text("dtype").or_else(|| text("torch_dtype")) {
            Some("float32") => Format::FP32,
            Some("float16") => Format::FP16,
            Some(_) => Format::BF16,
            None => usual(checkpoint),
        };
        Self::with(values)
    }

    /// All threads of this machine, with these numbers.
    pub fn with(values: Format) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            backend: Backend::Cpu,
            threads,
            isa: Isa::best(),
            values,
            kv: values,
            chunk: None,
            all_logits: false,
            decode: false,
            round_inputs: true,
            stop: Arc::new(|| Ok(())),
        }
    }
}

impl Settings {
    /// The same with numbers that the backend has kernels for, and what was changed, in words.
    pub(crate) fn on_its_backend(self) -> (Self, Option<String>) {
        if self.backend == Backend::Cpu || self.values != Format::FP32 {
            return (self, None);
        }
        let values = Format::BF16;
        let kv = if self.kv == Format::FP32 { values } else { self.kv };
        let note = format!("the GPU has no kernels between fp32 numbers: they are {values} here");
        (Self { values, kv, ..self }, Some(note))
    }

    /// Tokens that a pass of a GPU takes at once, of all sequences together.
    pub(crate) fn chunk_on_gpu(&self) -> usize {
        self.chunk.unwrap_or(GPU_CHUNK)
    }
}

/// The plain numbers that most of a file is in; BF16 where it is in codes.
fn usual(checkpoint: &Checkpoint) -> Format {
    let tensors = checkpoint.tensors();
    let share = |dtype: Dtype| {
        let of = tensors.values().filter(|(_, entry)| entry.dtype == dtype);
        of.map(|(_, entry)| entry.bytes()).sum::<u64>() * 2 > checkpoint.bytes()
    };
    if share(Dtype::F16) {
        Format::FP16
    } else if share(Dtype::F32) {
        Format::FP32
    } else {
        Format::BF16
    }
}

/// How a matrix is stored, and what for.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) layer: Option<usize>,
    pub(crate) weights: &'static [Weight],
    /// None where rows are decoded each time.
    pub(crate) format: Option<Format>,
    pub(crate) scheme: String,
    pub(crate) bytes: u64,
    /// Whether inputs of its product are rounded.
    pub(crate) rounds: bool,
    /// What they are multiplied as, where that is not what is between kernels.
    pub(crate) inputs: Option<Format>,
}

/// Weights where they are needed.
pub(crate) enum Loaded<'a> {
    Processor(Weights<'a>),
    Gpu(Box<GpuModel>),
}

impl<'a> Loaded<'a> {
    /// A place for weights, which take so many bytes on a GPU.
    pub(crate) fn open(settings: &Settings, weights: impl FnOnce(Architecture) -> Taken) -> Result<Self> {
        Ok(match &settings.backend {
            Backend::Cpu => Self::Processor(Weights::default()),
            Backend::Cuda { .. } => Self::Gpu(Box::new(GpuModel::open(&settings.backend, settings.values, weights)?)),
        })
    }

    /// Takes the weights of a step.
    pub(crate) fn take(&mut self, model: &Model, key: Key, held: Held<'a>) -> Result<()> {
        match self {
            Self::Processor(weights) => weights.take(key, held),
            Self::Gpu(gpu) => gpu.take(model, key, &held)?,
        }
        Ok(())
    }
}

/// A model that runs.
pub struct Engine<'a> {
    /// What it is.
    pub model: Model,
    /// How it runs.
    pub settings: Settings,
    /// What a processor reads.
    pub(crate) weights: Weights<'a>,
    /// What a GPU has.
    gpu: Option<Box<GpuModel>>,
    /// Tokens that a pass takes at once.
    pub chunk: usize,
    /// How long reading the weights took.
    pub loading: Seconds,
    /// What the checkpoint wants otherwise than it is done here, in words.
    pub notes: Vec<String>,
}

impl<'a> Engine<'a> {
    /// Reads a checkpoint's weights. `progress` hears of bytes read, and of how many, and may end it with an error.
    pub fn load(
        checkpoint: &'a Checkpoint,
        settings: Settings,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<Self> {
        Self::load_replacing(checkpoint, settings, &Replaced::new(), progress)
    }

    /// The same with other numbers in the place of some weights.
    pub fn load_replacing(
        checkpoint: &'a Checkpoint,
        settings: Settings,
        replaced: &Replaced,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<Self> {
        let start = Instant::now();
        let (settings, wide) = settings.on_its_backend();
        let model = Model::from_config(&checkpoint.config.to_string(), &checkpoint.name())?;
        runs(&model)?;
        let program = model.program(Workload::decode(1, 1)?, Lowering::default())?;
        let tensors = Tensors::new(checkpoint, settings.round_inputs)?.with(replaced)?;
        if settings.backend == Backend::Cpu {
            fits(tensors.bytes(), 0)?;
        }
        let loading = Loading::new(&settings)?;
        let weights = |architecture| {
            let sizes = Sizes { values: settings.values, architecture, tied: model.tied };
            sizes.of_checkpoint(&tensors, &loading)
        };
        let mut loaded = Loaded::open(&settings, weights)?;
        let mut take = |key, held| loaded.take(&model, key, held);
        Weights::read(&model, &program, &tensors, &loading, &|_, _| true, progress, &mut take)?;
        let mut engine = Self::of(model, settings, loaded)?;
        engine.notes.extend(otherwise(checkpoint, &engine.settings));
        engine.notes.extend(wide);
        engine.loading = Seconds::new(start.elapsed().as_secs_f64());
        Ok(engine)
    }

    /// A model with weights that are there already.
    pub(crate) fn of(model: Model, settings: Settings, loaded: Loaded<'a>) -> Result<Self> {
        runs(&model)?;
        let (weights, gpu) = match loaded {
            Loaded::Processor(weights) => (weights, None),
            Loaded::Gpu(gpu) => (Weights::default(), Some(gpu)),
        };
        if let Some(gpu) = gpu {
            let chunk = settings.chunk_on_gpu();
            let notes = gpu.notes();
            return Ok(Self { model, settings, weights, gpu: Some(gpu), chunk, loading: Seconds::ZERO, notes });
        }
        let room = (PART * weights.bytes() as f64).max(LEAST);
        let fits = |tokens: &&usize| (**tokens * values_of_a_token(&model, &settings)) as f64 <= room;
        let chunk = settings.chunk.unwrap_or_else(|| *CHUNKS.iter().find(fits).unwrap_or(&CHUNKS[3]));
        Ok(Self { model, settings, weights, gpu: None, chunk, loading: Seconds::ZERO, notes: Vec::new() })
    }

    /// Room for `sequences` of up to `context` tokens each.
    pub fn session(&self, sequences: usize, context: usize) -> Result<Session<'_, 'a>> {
        let cache = memory::cache(&self.model, &self.settings, sequences, context)?;
        match &self.gpu {
            Some(gpu) => gpu.fits(cache, memory::pass(&self.model, &self.settings, sequences, context))?,
            None => fits(0, cache.value() as u64)?,
        }
        Session::new(self, sequences, context)
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> u64 {
        self.gpu.as_ref().map_or_else(|| self.weights.bytes(), |gpu| gpu.bytes())
    }

    /// The GPU that it runs on, where it does.
    pub(crate) fn gpu(&self) -> Option<&GpuModel> {
        self.gpu.as_deref()
    }

    /// The GPU that it runs on, where it does: its name, its memory, its power.
    pub fn device(&self) -> Option<&Gpu> {
        self.gpu.as_deref().map(GpuModel::gpu)
    }

    /// How each of its matrices is stored.
    fn records(&self) -> Vec<Record> {
        let of = |(layer, weights, matrix): (Option<usize>, &'static [Weight], &Matrix<'a>)| Record {
            layer,
            weights,
            format: matrix.format(),
            scheme: matrix.scheme(),
            bytes: matrix.bytes(),
            rounds: matrix.inputs.is_some(),
            // A processor multiplies what was rounded as the numbers between kernels.
            inputs: None,
        };
        self.gpu.as_ref().map_or_else(|| self.weights.matrices().map(of).collect(), |gpu| gpu.records.clone())
    }

    /// How its weights are stored, in words, and how many bytes are stored so; the most first.
    pub fn schemes(&self) -> Vec<(String, u64)> {
        let mut all: Vec<(String, u64)> = Vec::new();
        for Record { scheme, bytes, .. } in self.records() {
            match all.iter_mut().find(|(known, _)| *known == scheme) {
                Some((_, sum)) => *sum += bytes,
                None => all.push((scheme, bytes)),
            }
        }
        all.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        all
    }

    /// Whether inputs of a product are rounded.
    pub(crate) fn rounds(&self) -> bool {
        self.records().iter().any(|record| record.rounds)
    }

    /// Bytes of weights that no kernel reads as they are stored: their rows are decoded each time they are multiplied.
    pub fn decoded_bytes(&self) -> u64 {
        self.records().iter().filter(|record| record.format.is_none()).map(|record| record.bytes).sum()
    }

    /// What predictions have to know of it: how each weight is stored, what kernels hand to each other, and what is cached.
    pub fn assignment(&self, device: &Device) -> Result<Assignment> {
        let mut stored: HashMap<(Role, Option<u64>), PrecisionSpec> = HashMap::new();
        for Record { layer, weights, format, inputs, .. } in self.records() {
            let Some(format) = format else { continue };
            // Where both sides are of 8 bit, the formats' own names say so.
            let both = inputs.filter(|inputs| *inputs == format).and_then(|_| match format {
                Format::FP8 => "fp8".parse().ok(),
                Format::INT8 => "int8".parse().ok(),
                _ => None,
            });
            let spec = both.unwrap_or_else(|| PrecisionSpec::weights_only(format));
            stored
                .extend(weights.iter().map(|weight| ((weight.role(), layer.map(|layer| layer as u64)), spec.clone())));
        }
        // A tied head is the embedding.
        if let Some(embedding) = stored.get(&(Role::Embedding, None)).cloned() {
            stored.entry((Role::Head, None)).or_insert(embedding);
        }
        let numbers = (self.settings.values, self.settings.kv);
        let at = |role: Role, layer: Option<u64>| stored.get(&(role, layer)).cloned();
        Ok(Assignment::of_stored(device, &self.model.anatomy, numbers, at)?)
    }

    /// What products read and write.
    pub(crate) fn numbers(&self) -> Precision {
        let numbers = products::numbers(self.settings.values, self.settings.kv);
        // Tensor cores multiply what is between kernels, in products and in attention.
        let math = if self.settings.values == Format::FP16 { Math::Fp16 } else { Math::Bf16 };
        if self.gpu.is_some() { Precision { math, attention: math, ..numbers } } else { numbers }
    }

    /// The formats of a step with weights stored so; as the numbers are where rows are decoded.
    pub(crate) fn precision(&self, role: Role, weights: Option<Format>) -> Precision {
        let numbers = self.numbers();
        let output = if matches!(role, Role::Head | Role::Router) { Format::FP32 } else { numbers.output };
        Precision { weights: weights.unwrap_or(numbers.weights), output, ..numbers }
    }

    /// The shape of each layer, the first to the last.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = &Layer> {
        self.model.anatomy.order.iter().map(|shape| &self.model.layers[usize::from(*shape)])
    }

    /// The shape of one layer.
    pub(crate) fn shape(&self, layer: usize) -> &Layer {
        &self.model.layers[usize::from(self.model.anatomy.order[layer])]
    }

    /// Experts of a layer, and how many a token uses.
    pub(crate) fn experts(&self, layer: Option<usize>) -> Result<(usize, usize)> {
        match layer.map(|layer| self.shape(layer).feed_forward) {
            Some(FeedForward::Experts { experts, active, .. }) => Ok((experts.get() as usize, active.get() as usize)),
            _ => Err(Error::missing("experts")),
        }
    }

    /// The function of its feed-forward blocks.
    pub(crate) fn activation(&self) -> Result<Activation> {
        activation(&self.model)
    }
}

/// What a checkpoint's configuration wants and nothing here does.
fn otherwise(checkpoint: &Checkpoint, settings: &Settings) -> Vec<String> {
    let wanted = &checkpoint.config["quantization_config"];
    let mut notes = Vec::new();
    let cache = &wanted["kv_cache_scheme"];
    if !cache.is_null() {
        let (bits, kind) = (cache["num_bits"].as_u64().unwrap_or(8), cache["type"].as_str().unwrap_or("int"));
        notes.push(format!(
            "the checkpoint wants a cache of {bits}-bit {kind} numbers with scales that it stores; it is kept in {} here",
            settings.kv
        ));
    }
    if wanted["load_in_8bit"] == true || wanted["_load_in_8bit"] == true {
        notes.push(
            "bitsandbytes rounds inputs of such weights to INT8, but for the largest; here they are multiplied as they are"
                .to_owned(),
        );
    }
    notes
}

fn activation(model: &Model) -> Result<Activation> {
    Ok(match &model.arithmetic.activation {
        arithmetic::Activation::Silu => Activation::Silu,
        arithmetic::Activation::GeluTanh => Activation::GeluTanh,
        arithmetic::Activation::Gelu => Activation::Gelu,
        arithmetic::Activation::ClampedSwish { limit } => {
            Activation::ClampedSwish { limit: *limit as f32, alpha: ALPHA }
        }
        arithmetic::Activation::Unknown(name) => {
            return Err(Error::unsupported(&model.name, format!("its activation function is `{name}`")));
        }
    })
}

/// Refuses models that have a part for which there is no kernel, by its name.
pub(crate) fn runs(model: &Model) -> Result<()> {
    activation(model)?;
    if let Some(beyond) = model.arithmetic.beyond {
        return Err(Error::unsupported(&model.name, beyond));
    }
    for layer in &model.layers {
        if let AttentionLayer::Latent { .. } = layer.attention {
            return Err(Error::unsupported(&model.name, "its attention is latent (DeepSeek)"));
        }
        if let FeedForward::Experts { shared: Some(_), .. } = layer.feed_forward {
            return Err(Error::unsupported(&model.name, "it has experts that every token meets"));
        }
        if let AttentionLayer::Grouped { rotary_dim, .. } = layer.attention
            && !rotary_dim.get().is_multiple_of(2)
        {
            return Err(Error::unsupported(
                &model.name,
                format!("it turns {rotary_dim} features of a head, an odd number"),
            ));
        }
    }
    Ok(())
}

/// Bytes that a token's values take in a pass: the stream, what attention and the widest feed-forward block hand on, and
/// a copy of what that reads in the order of its kernel.
fn values_of_a_token(model: &Model, settings: &Settings) -> usize {
    let hidden = model.hidden.get();
    let widest = model.layers.iter().map(|layer| {
        let (inner, times) = match layer.feed_forward {
            FeedForward::Dense { inner, .. } => (inner.get(), 1),
            FeedForward::Experts { inner, active, .. } => (inner.get(), active.get()),
        };
        let heads = match layer.attention {
            AttentionLayer::Grouped { heads, head_dim, .. } => heads.get() * head_dim.get(),
            AttentionLayer::Latent { heads, value_dim, .. } => heads.get() * value_dim.get(),
        };
        4 * inner * times + 4 * heads
    });
    let numbers = 4 * hidden + widest.max().unwrap_or(0);
    (4 * hidden + numbers * u64::from(settings.values.nominal_bits()) / 8) as usize
}

/// Refuses what the machine has no room for, before any of it is taken.
fn fits(weights: u64, cache: u64) -> Result<()> {
    let Some(available) = Machine::detect().available else { return Ok(()) };
    let needed = Bytes::new((weights + cache) as f64);
    if needed <= available {
        return Ok(());
    }
    let what = if cache > 0 { "the KV cache" } else { "the weights" };
    let sum = format!(
        "{needed} for {what}, {available} available; use fewer bits per weight, a shorter context or a smaller batch"
    );
    Err(Error::Memory { what: what.to_owned(), needed, sum: Some(sum) })
}
