//! Models that run, as verbs start them: opened, looked at, found to fit, and then loaded under somebody's eyes.

mod executor;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use clap::{Args, ValueEnum};
use roofline_core::{Dim, Format, Model};
use roofline_engine::{Engine, Error as Refusal, NamedFile, Settings, Tokenizer, memory};
use roofline_quant::Checkpoint;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::executor::{Execution, ModelBackend};
pub(crate) use self::executor::{Executor, Need};
use crate::{Context, Error, Result, demo, text::size};

/// Most threads of a run.
const THREADS: u16 = 1024;

/// The numbers that a model computes with.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Numbers {
    /// How keys and values are cached; as --values when left out
    #[arg(long, global = true, value_enum, value_name = "FORMAT", help_heading = "Whole models")]
    #[schemars(extend("x-local" = true))]
    pub kv: Option<CacheFormat>,
    /// The numbers between kernels; the checkpoint's own when left out
    #[arg(long, global = true, value_enum, value_name = "FORMAT", help_heading = "Whole models")]
    #[schemars(extend("x-local" = true))]
    pub values: Option<ValueFormat>,
    /// Threads; all cores when left out
    #[arg(long, global = true, value_name = "COUNT", help_heading = "Whole models")]
    #[schemars(range(min = 1, max = 1024), extend("x-local" = true))]
    pub threads: Option<u16>,
    /// Tokens of a prompt that one pass takes, of all sequences together; when left out 512, or fewer for a small model, and 8192
    /// on a GPU
    #[arg(long, global = true, value_name = "TOKENS", allow_negative_numbers = true, help_heading = "Whole models")]
    #[schemars(extend("x-local" = true))]
    pub chunk: Option<Dim>,
}

/// Formats of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CacheFormat {
    Bf16,
    Fp16,
    Fp32,
    Fp8,
    Int8,
}

/// Formats of the numbers between kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ValueFormat {
    Bf16,
    Fp16,
    Fp32,
}

impl CacheFormat {
    const fn format(self) -> Format {
        match self {
            Self::Bf16 => Format::BF16,
            Self::Fp16 => Format::FP16,
            Self::Fp32 => Format::FP32,
            Self::Fp8 => Format::FP8,
            Self::Int8 => Format::INT8,
        }
    }
}

impl ValueFormat {
    const fn format(self) -> Format {
        match self {
            Self::Bf16 => Format::BF16,
            Self::Fp16 => Format::FP16,
            Self::Fp32 => Format::FP32,
        }
    }
}

impl Numbers {
    /// How a model runs, where nothing else was said than `usual`; it stops when whoever follows wants that.
    pub(crate) fn settings(&self, context: &Context, usual: &Settings, executor: &Executor) -> Result<Settings> {
        let watcher = context.shared_watcher();
        let values = self.values.map_or(usual.values, ValueFormat::format);
        // A cache that nothing is said of follows the numbers between kernels.
        let cache = if usual.kv == usual.values { values } else { usual.kv };
        Ok(Settings {
            backend: executor.backend(),
            threads: self.threads()?,
            values,
            kv: self.kv.map_or(cache, CacheFormat::format),
            chunk: self.chunk.map(|chunk| chunk.get() as usize),
            stop: Arc::new(move || if watcher.cancelled() { Err(Refusal::Stopped) } else { Ok(()) }),
            ..usual.clone()
        })
    }

    /// How many threads.
    pub(crate) fn threads(&self) -> Result<usize> {
        match self.threads {
            None => Ok(thread::available_parallelism().map_or(1, usize::from)),
            Some(threads) if (1..=THREADS).contains(&threads) => Ok(threads.into()),
            Some(threads) => {
                let hint = format!("`⟨threads⟩` is from 1 to {THREADS}");
                Err(Error::request(format!("{threads} threads are not possible"), hint))
            }
        }
    }
}

/// A checkpoint that was opened, and what its headers say.
pub(crate) struct Opened {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) model: Model,
}

impl Opened {
    /// Reads headers only.
    pub(crate) fn open(context: &Context, path: &Path) -> Result<Self> {
        if !context.is_local() {
            return Err(Error::Path { what: "model", name: path.display().to_string() });
        }
        let checkpoint = Checkpoint::open(&demo::checkpoint(context, path)?)?;
        let model = Model::from_config(&checkpoint.config.to_string(), &checkpoint.name())?;
        Ok(Self { checkpoint, model })
    }

    /// The files that say how it speaks.
    pub(crate) fn files(&self) -> Result<Vec<NamedFile>> {
        files_of(&self.checkpoint)
    }

    /// The tokenizer among those files, if there is one.
    pub(crate) fn tokenizer(&self, files: &[NamedFile]) -> Result<Option<Tokenizer>> {
        tokenizer_of(&self.model, files)
    }

    /// How it runs, where nobody says.
    pub(crate) fn usual(&self) -> Settings {
        Settings::for_checkpoint(&self.checkpoint)
    }

    /// Refuses sequences that the model was not made for, and what there is no room for, before anything is read.
    pub(crate) fn fits(
        &self,
        sequences: usize,
        context: usize,
        settings: &Settings,
        executor: &Executor,
    ) -> Result<()> {
        executor.has_room(&self.need(sequences, context, settings, executor)?)
    }

    /// What it takes to run such sequences; refused where the model was not made for them.
    pub(crate) fn need(
        &self,
        sequences: usize,
        context: usize,
        settings: &Settings,
        executor: &Executor,
    ) -> Result<Need<'_>> {
        within(&self.model, context)?;
        let weights = memory::weights(&self.checkpoint, &self.model, settings, executor.architecture())?;
        Need::of(&self.model, weights, sequences, context, settings)
    }

    /// Reads the weights.
    pub(crate) fn load(&self, context: &Context, settings: Settings) -> Result<Engine<'_>> {
        let watcher = context.watcher();
        let (mut begun, mut seen) = (false, 0);
        let mut progress = |done: u64, total: u64| {
            if !begun {
                watcher.size(total);
                begun = true;
            }
            watcher.advance(done.saturating_sub(seen));
            seen = done;
            if watcher.cancelled() { Err(Refusal::Stopped) } else { Ok(()) }
        };
        let engine = Engine::load(&self.checkpoint, settings, &mut progress);
        watcher.ends();
        Ok(engine?)
    }
}

/// The files that say how a checkpoint speaks.
pub(crate) fn files_of(checkpoint: &Checkpoint) -> Result<Vec<NamedFile>> {
    let mut files = checkpoint.tokenizer_files()?;
    // A GGUF file has its configuration made of its metadata; a folder has it beside its weights.
    files.push(("config.json".to_owned(), checkpoint.config.to_string().into_bytes()));
    Ok(files)
}

/// A model's tokenizer among those files, if there is one.
pub(crate) fn tokenizer_of(model: &Model, files: &[NamedFile]) -> Result<Option<Tokenizer>> {
    let vocabulary = model.vocabulary.get() as usize;
    Ok(Tokenizer::from_files(files)?.map(|one| one.for_vocabulary(vocabulary)).transpose()?)
}

/// How most bytes of a model's weights are stored. What its checkpoint wants otherwise is said; those that no kernel reads as they are stored are said: they cost time.
pub(crate) fn format(context: &Context, engine: &Engine<'_>) -> String {
    engine.notes.iter().for_each(|note| context.warn(note.clone()));
    let decoded = engine.decoded_bytes();
    if decoded > 0 {
        let share = 100.0 * decoded as f64 / engine.bytes().max(1) as f64;
        context.warn(format!(
            "{} of the weights ({share:.0} %) lie in a layout that no kernel reads: their rows are decoded each time they \
             are multiplied, which is slow",
            size(decoded)
        ));
    }
    engine.schemes().into_iter().next().map(|(scheme, _)| scheme).unwrap_or_default()
}

/// Refuses a context that is longer than the one a model was made for.
pub(crate) fn within(model: &Model, context: usize) -> Result<()> {
    match model.max_context {
        Some(most) if context as u64 > most.get() => {
            let limit = format!("the {most} that {} was made for", model.name);
            Err(Refusal::Context { asked: context, limit }.into())
        }
        _ => Ok(()),
    }
}

/// A path, where a name is that of weights which lie here: a folder with a file of weights, or such a file, or the demo.
pub(crate) fn weights_at(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    if demo::is_meant(path) {
        return Some(path.to_owned());
    }
    let is_weights = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        [".gguf", ".safetensors", ".safetensors.index.json", ".bin.index.json", ".bin", ".pt", ".pth"]
            .iter()
            .any(|ending| name.ends_with(ending))
    };
    let found = if path.is_dir() {
        let entries = std::fs::read_dir(path).ok()?;
        entries.flatten().any(|entry| entry.path().is_file() && is_weights(&entry.path()))
    } else {
        path.is_file() && is_weights(path)
    };
    found.then(|| path.to_owned())
}
