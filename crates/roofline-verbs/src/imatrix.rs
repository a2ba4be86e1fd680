//! Importance matrices: how much each input of a model's matrices matters on a text.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use clap::Args;
use roofline_core::Dim;
use roofline_quant::{Checkpoint, Imatrix, gguf::model::Names, imatrix::collect, stored::StoredTensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Context, Error, Note, Result,
    context::files::folder_of,
    evaluate::TextFacts,
    observed::{Beginning, Cut, Samples, admit, layerwise},
    running::{Numbers, Opened},
    text::{number, size},
};

/// A model, a text, and where what is found goes.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[command(after_help = HELP)]
#[serde(default)]
#[schemars(rename = "ImatrixRequest")]
pub struct Request {
    /// The model: a checkpoint's folder, its file of weights, or a GGUF file; `demo` is the one that comes along
    #[arg(value_name = "MODEL")]
    #[schemars(extend("x-local" = true))]
    pub model: PathBuf,
    /// The text, in UTF-8; the demo's own when left out
    #[arg(long, value_name = "FILE")]
    #[schemars(extend("x-local" = true))]
    pub data: Option<PathBuf>,
    /// Where the matrix goes
    #[arg(long, short = 'o', value_name = "FILE")]
    #[schemars(extend("x-local" = true))]
    pub to: PathBuf,
    /// Samples from the beginning of the text at most; all when left out
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub samples: Option<Dim>,
    /// Tokens of a sample; 512, or what the model was made for, when left out
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true)]
    pub length: Option<Dim>,
    /// Where samples wait between layers, instead of in memory: a folder, for what has no name and is gone afterwards
    #[arg(long, value_name = "FOLDER")]
    #[schemars(extend("x-local" = true))]
    pub offload: Option<PathBuf>,
    /// Replace a file that is there
    #[arg(long)]
    pub force: bool,
    /// Threads; all cores when left out
    #[arg(long, value_name = "COUNT")]
    #[schemars(range(min = 1, max = 1024))]
    pub threads: Option<u16>,
}

const HELP: &str = "\
The file is llama.cpp's own: `llama-quantize --imatrix` takes it, and `roofline quantize --imatrix` takes what
`llama-imatrix` made, in either of its forms. Samples are what `llama-imatrix` calls chunks: the text is cut one
behind the other, and what is shorter than a sample at its end is left out.

Examples:
  roofline imatrix ./Llama-3.2-1B --data wiki.train.raw -o imatrix.gguf
  roofline imatrix ./Llama-3.2-1B --data wiki.train.raw --samples 100 -o imatrix.gguf
  roofline quantize ./Llama-3.2-1B --plan iq3_m --imatrix imatrix.gguf --to llama-iq3_m.gguf";

/// What was written.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "ImatrixAnswer")]
pub struct Answer {
    /// What the model is called.
    pub model: String,
    /// The text.
    pub text: TextFacts,
    /// Samples that ran, and the tokens of each.
    pub samples: usize,
    pub length: usize,
    /// Matrices that something is known of.
    pub entries: usize,
    /// Where it is, and how long.
    pub target: PathBuf,
    pub bytes: u64,
    pub seconds: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// Makes an importance matrix of a model and a text.
pub fn imatrix(context: &Context, request: &Request) -> Result<Answer> {
    if !context.is_local() {
        return Err(Error::Path { what: "model", name: request.model.display().to_string() });
    }
    if request.to.as_os_str().is_empty() {
        return Err(Error::request("there is no place for the matrix", "say `⟨to FILE⟩`"));
    }
    if request.to.exists() && !request.force {
        let hint = "name another file by ⟨to⟩, or replace it by ⟨force⟩";
        return Err(Error::Taken { path: request.to.clone(), hint });
    }
    let start = Instant::now();
    let opened = Opened::open(context, &request.model)?;
    let threads = Numbers { threads: request.threads, ..Numbers::default() }.threads()?;
    let length = (Samples::Asked, request.length.map(Dim::get));
    let (cut, samples) = samples(context, &opened, request.data.as_deref(), length, request.samples)?;
    // What cannot be written to is said before anything runs.
    folder_of(&request.to)?;
    Imatrix::admits(&request.to, request.force)?;
    context.watcher().heeds();
    let (count, length) = (samples.len(), cut.length);
    let found = of_samples(context, &opened.checkpoint, (samples, &cut), threads, request.offload.as_deref())?;
    found.write(&request.to, request.force)?;
    if let Some(unreached) = found.unreached() {
        context.warn(unreached + "; a longer text may reach them");
    }
    let facts = cut.facts;
    let bytes = std::fs::metadata(&request.to).map_err(Error::file(&request.to))?.len();
    let seconds = start.elapsed().as_secs_f64();
    context.note(format!("{} tokens in {} s; {}", count * length, number(seconds), size(bytes)));
    Ok(Answer {
        model: opened.model.name,
        text: facts,
        samples: count,
        length,
        entries: found.len(),
        target: request.to.clone(),
        bytes,
        seconds,
        notes: context.notes(),
    })
}

/// A text in samples of tokens, as llama.cpp cuts it: one behind the other, the token that begins a text in the place of each one's
/// first.
pub(crate) fn samples(
    context: &Context,
    opened: &Opened,
    data: Option<&Path>,
    length: (Samples, Option<u64>),
    most: Option<Dim>,
) -> Result<(Cut, Vec<Vec<u32>>)> {
    let model = (&opened.checkpoint, &opened.model);
    let cut = Cut::of(context, model, data, length, Beginning::OfText)?;
    let most = most.map_or(usize::MAX, |most| most.get() as usize);
    let mut samples = cut.some(cut.tokens.chunks_exact(cut.length).take(most).map(<[u32]>::to_vec).collect())?;
    if let Some(first) = cut.first {
        for sample in &mut samples {
            sample[0] = first;
        }
    }
    Ok((cut, samples))
}

/// The importance matrix of samples.
pub(crate) fn of_samples(
    context: &Context,
    checkpoint: &Checkpoint,
    (samples, cut): (Vec<Vec<u32>>, &Cut),
    threads: usize,
    offload: Option<&Path>,
) -> Result<Imatrix> {
    let head = StoredTensor::all(checkpoint)?.iter().any(|stored| stored.name.ends_with("lm_head.weight"));
    let names = Names::new(&checkpoint.config, head)?;
    let dataset = cut.facts.name.as_str();
    let mut observed = layerwise(context, checkpoint, samples, threads, offload)?;
    // Sums of channels are little beside it.
    admit(context, &observed, (dataset, cut.samples), 0, offload)?;
    let watcher = context.watcher();
    let found = collect(&mut observed, &names, dataset, &mut |done, layers| {
        watcher.starts(done, layers, &format!("{dataset} through layer {done}"));
    });
    watcher.ends();
    Ok(found?)
}
