//! How a checkpoint is written: what its tensors and files are called, what its configuration says.

mod awq;
mod bitsandbytes;
mod compressed_tensors;
mod experts;
mod fine_grained;
mod folder;
mod gguf;
mod gptq;
mod left;
mod mlx;
mod packed;
mod plain;
mod scheme;
mod shards;
mod together;
mod torchao;

pub(crate) use left::left;
pub use left::{Left, Why};
pub(crate) use scheme::Target;
pub use scheme::{Listed, Scheme};
pub use shards::Shards;
#[cfg(test)]
pub(crate) use shards::places;
pub(crate) use together::{Experts, Together};

use std::{collections::HashMap, fmt, path::Path, str::FromStr, sync::Arc};

use compressed_tensors::kept_stacks;
use roofline_core::{Error as CoreError, Format, Plan, Role};

use crate::{
    Checkpoint, Dtype, Error, Imatrix, Method, QuantizeJob, Request, Result,
    coding::{Coding, Numbers, Part},
    family::{self, Family, Stack},
    gguf::model::Names,
    imatrix,
    job::{Code, Item, Place, Work},
    number::is_number,
    plan::{Asked, Wanted, narrow},
    site::Site,
    stored::{Kind, StoredTensor},
};

/// A family of files that some runtimes load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layout {
    /// safetensors as llm-compressor writes them: vLLM, SGLang, transformers.
    CompressedTensors,
    /// One GGUF file: llama.cpp, Ollama, LM Studio.
    Gguf,
    /// safetensors as torchao flattens them: transformers, vLLM.
    Torchao,
    /// safetensors in GPTQ's packing: transformers, vLLM, SGLang.
    Gptq,
    /// safetensors in AWQ's packing: transformers, vLLM, SGLang, MLX.
    Awq,
    /// safetensors of Hugging Face's fine-grained FP8: transformers, vLLM, SGLang.
    FineGrained,
    /// safetensors of plain numbers: every runtime. Quantized checkpoints are decoded.
    Plain,
    /// safetensors as transformers saves models in bitsandbytes' codes: transformers, PEFT.
    Bitsandbytes,
    /// safetensors as mlx-lm converts them: mlx-lm, LM Studio on Apple's computers.
    Mlx,
}

impl Layout {
    /// Every layout, the most common first.
    pub const ALL: [Self; 9] = [
        Self::CompressedTensors,
        Self::Plain,
        Self::Gguf,
        Self::Torchao,
        Self::Gptq,
        Self::Awq,
        Self::FineGrained,
        Self::Bitsandbytes,
        Self::Mlx,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::CompressedTensors => "compressed-tensors",
            Self::Gguf => "gguf",
            Self::Torchao => "torchao",
            Self::Gptq => "gptq",
            Self::Awq => "awq",
            Self::FineGrained => "fp8",
            Self::Plain => "safetensors",
            Self::Bitsandbytes => "bitsandbytes",
            Self::Mlx => "mlx",
        }
    }

    /// The one file that is the result, where it is no folder.
    pub(crate) fn single_file<'j>(self, job: &'j QuantizeJob<'_>, target: &Path) -> Option<&'j str> {
        let named = target.extension().is_some_and(|extension| extension == "gguf");
        job.files.first().filter(|_| self == Self::Gguf && named).map(|file| file.name.as_str())
    }

    /// What writing `checkpoint` as it is asked for takes.
    pub fn job<'a>(self, checkpoint: &'a Checkpoint, request: &Request) -> Result<QuantizeJob<'a>> {
        let Request { plan, ranges, .. } = request;
        let method = request.method.without_data();
        let runtimes = self.wanted_by(request.runtime)?;
        if ranges.is_some() && self != Self::CompressedTensors {
            return Err(Error::unsupported(
                format!("{self} stores no scales of activations, so ranges are of no use"),
                "leave `⟨ranges⟩` out, or use `⟨as compressed-tensors⟩`",
            ));
        }
        if let Some(mix) = plan.mix().filter(|_| self != Self::Gguf) {
            return Err(self.no_recipe(mix));
        }
        if self != Self::Plain {
            self.check_configuration(checkpoint)?;
        }
        let mut job = match self {
            Self::CompressedTensors => compressed_tensors::job(checkpoint, request, &runtimes),
            Self::Gguf => gguf::job(checkpoint, request),
            Self::Torchao => torchao::job(checkpoint, plan, method),
            Self::Plain => plain::job(checkpoint, plan),
            Self::Bitsandbytes => bitsandbytes::job(checkpoint, plan, method),
            Self::Mlx => mlx::job(checkpoint, plan, method),
            Self::Gptq => gptq::job(checkpoint, plan, method),
            Self::Awq => awq::job(checkpoint, plan, method),
            Self::FineGrained => fine_grained::job(checkpoint, plan, method),
        }?;
        if let Some(imatrix) = &request.imatrix {
            if self != Self::Gguf {
                weigh(checkpoint, &mut job, imatrix, request.method)?;
            }
            imatrix::check(imatrix, &mut job)?;
            job.notes.extend(gguf::unweighed(&job).filter(|_| self == Self::Gguf));
        }
        job.notes.extend(left::notes(checkpoint, plan, &job));
        Ok(job)
    }

    /// Codes mean nothing to a loader that is not told what model they are of.
    fn check_configuration(self, checkpoint: &Checkpoint) -> Result<()> {
        if checkpoint.config.as_object().is_some_and(|config| !config.is_empty()) {
            return Ok(());
        }
        Err(Error::unsupported(
            format!(
                "`{}` has no config.json, or an empty one, and no runtime loads {self} without it",
                checkpoint.folder.display()
            ),
            "put the model's own config.json beside its weights; `⟨as safetensors⟩` changes the type of numbers without one",
        ))
    }
}

/// Weighs errors by an importance matrix, where the method looks at errors.
fn weigh(checkpoint: &Checkpoint, job: &mut QuantizeJob<'_>, imatrix: &Imatrix, method: Method) -> Result<()> {
    if method != Method::Mse {
        let looks = if method.needs_data() { "weighs them by its own text" } else { "looks at none" };
        return Err(Error::unsupported(
            format!("an importance matrix weighs errors, and the method `{method}` {looks}"),
            "take `⟨method mse⟩` with it, or `⟨as gguf⟩`, whose types weigh by themselves",
        ));
    }
    imatrix::weigh(job, imatrix, &Names::new(&checkpoint.config, true)?)
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Layout {
    type Err = CoreError;

    fn from_str(text: &str) -> Result<Self, CoreError> {
        let names = Self::ALL.map(Self::name);
        let known = Self::ALL.into_iter().find(|layout| layout.name() == text);
        known.ok_or_else(|| CoreError::unknown("layout", text, names, format!("layouts: {}", names.join(", "))))
    }
}

/// What becomes of a tensor of the source.
struct Decision<'a> {
    /// Which shard of the output it goes to: the one it comes from.
    shard: usize,
    stored: StoredTensor<'a>,
    site: Site,
    /// The scheme, how it codes and what it stores; none for what is copied.
    coded: Option<(&'static Scheme, Arc<dyn Coding>, Vec<Part>)>,
}

/// Everything a checkpoint holds, with its place in the model.
fn sites(checkpoint: &Checkpoint) -> Result<Vec<(StoredTensor<'_>, Site)>> {
    let all = StoredTensor::all(checkpoint)?.into_iter().map(|stored| {
        let site = Site::of(&stored.name, stored.shape.len());
        (stored, site)
    });
    Ok(all.collect())
}

/// A plan for the model that these are the weights of, and what to know about it.
fn asked<'p>(plan: &'p Plan, checkpoint: &Checkpoint, all: &[(StoredTensor<'_>, Site)]) -> (Asked<'p>, Vec<String>) {
    let sites: Vec<&Site> = all.iter().map(|(_, site)| site).collect();
    let asked = Asked::new(plan, &checkpoint.config, sites.iter().copied());
    let notes = asked.notes(&sites);
    (asked, notes)
}

/// Which of the checkpoint's files a tensor lies in.
fn shard_of(checkpoint: &Checkpoint, stored: &StoredTensor<'_>) -> usize {
    let (shard, _) = stored.first();
    checkpoint.shards.iter().position(|other| std::ptr::eq(other, shard)).unwrap_or(0)
}

/// Decides for every tensor of a plain checkpoint.
fn decide<'a>(
    checkpoint: &'a Checkpoint,
    plan: &Plan,
    layout: Layout,
    coding: impl Fn(&'static Scheme, &StoredTensor<'_>) -> Result<Arc<dyn Coding>>,
) -> Result<(Vec<Decision<'a>>, Vec<String>)> {
    let mut all = sites(checkpoint)?;
    if layout == Layout::CompressedTensors && Family::of(&checkpoint.config).stack() == Some(Stack::SideBySide) {
        all = taken_apart(all)?;
    }
    let (asked, notes) = asked(plan, checkpoint, &all);
    let mut decisions = Vec::new();
    for (stored, site) in all {
        if stored.is_coded() {
            return Err(quantized_already(checkpoint, &stored));
        }
        let coded = match wanted(layout, &asked, &site, stored.dtype)? {
            None => None,
            Some(_) if site.is_stack() => {
                let reason = "holds the experts of a layer in a stack, which transformers and vLLM load only as it is";
                let hint = format!("`{plan},experts=keep` quantizes the rest; `⟨as gguf⟩` writes stacks in every type");
                return Err(stored.refuse(reason, Some(&hint)));
            }
            Some(scheme) => {
                if !is_number(stored.dtype) {
                    let reason = format!("is stored as {}, which is not a floating-point number", stored.dtype);
                    return Err(stored.refuse(reason, Some("keep it with `⟨keep⟩`")));
                }
                if left::is_transposed(&checkpoint.config, &site) {
                    let reason = "is stored transposed, in a module (Conv1D) that no loader of this layout quantizes";
                    return Err(stored.refuse(reason, Some("keep it with `⟨keep⟩`, or write GGUF")));
                }
                let coding = coding(scheme, &stored)?;
                let parts = parts(&stored, &*coding)?;
                Some((scheme, coding, parts))
            }
        };
        decisions.push(Decision { shard: shard_of(checkpoint, &stored), stored, site, coded });
    }
    if decisions.iter().all(|decision| decision.coded.is_none()) {
        let transposed = decisions.iter().any(|decision| left::is_transposed(&checkpoint.config, &decision.site));
        let hint = if transposed {
            "this family's code has its matrices transposed (Conv1D), and no loader of this layout quantizes those"
        } else {
            "`⟨roofline inspect⟩` lists the weights and their roles; `⟨as safetensors⟩` changes the type of plain numbers"
        };
        let what = format!("nothing to do: the plan `{plan}` leaves every weight of this model as it is");
        return Err(Error::unsupported(what, hint));
    }
    Ok((decisions, notes))
}

/// The same with the experts of every stack one by one, in the order of names.
fn taken_apart(all: Vec<(StoredTensor<'_>, Site)>) -> Result<Vec<(StoredTensor<'_>, Site)>> {
    let mut apart = Vec::new();
    for (stored, site) in all {
        if site.is_stack() {
            for one in family::apart(&stored, &site)? {
                let site = Site::of(&one.name, one.shape.len());
                apart.push((one, site));
            }
        } else {
            apart.push((stored, site));
        }
    }
    Ok(apart)
}

/// The scheme that a layout of codes has for what is asked for; none for what is kept. Sixteen bits are kept as they are,
/// whichever they are.
fn wanted(layout: Layout, asked: &Asked<'_>, site: &Site, dtype: Dtype) -> Result<Option<&'static Scheme>> {
    let (weights, activations) = match asked.at(site) {
        Wanted::Kept => return Ok(None),
        Wanted::As(precision) => match narrow(precision) {
            None => return Ok(None),
            Some((Format::FP32, _)) if dtype == Dtype::F32 => return Ok(None),
            Some(formats) => formats,
        },
        Wanted::Mixed(mix) => return Err(layout.no_recipe(mix)),
    };
    layout.scheme_at(Some(site.role), weights, activations).map(Some)
}

/// What a tensor is stored as, if it is a matrix that suits.
fn parts(stored: &StoredTensor<'_>, coding: &dyn Coding) -> Result<Vec<Part>> {
    let refuse = |reason: String, hint: &str| stored.refuse(reason, Some(hint));
    let [rows, columns] = stored.shape[..] else {
        let reason = format!("has the shape {:?}, which is no matrix", stored.shape);
        return Err(refuse(reason, "keep it with a rule of the plan, or with `⟨keep⟩`"));
    };
    if rows == 0 || columns == 0 {
        return Err(refuse(format!("has the shape {:?}", stored.shape), "an empty weight cannot be quantized"));
    }
    let hint = "keep it with `⟨keep⟩`, or choose a scheme with a smaller group or one scale per channel";
    coding.parts(crate::coding::Matrix { rows, columns }).map_err(|reason| refuse(reason, hint))
}

/// Items for decisions whose stored tensors have found their places; `name` says what a part is called in the file.
fn items<'a>(
    decisions: Vec<Decision<'a>>,
    places: &HashMap<String, Place>,
    name: impl Fn(&str, &Site, &Part) -> String,
) -> Result<Vec<Item<'a>>> {
    let at: HashMap<String, (usize, &'static str)> = decisions
        .iter()
        .enumerate()
        .filter_map(|(at, decision)| {
            let (scheme, ..) = decision.coded.as_ref()?;
            Some((decision.site.module.clone(), (at, scheme.name)))
        })
        .collect();
    let place = |name: &str| {
        let none =
            || Error::Weight { name: name.to_owned(), reason: "has no place in the output".to_owned(), hint: None };
        places.get(name).copied().ok_or_else(none)
    };
    let item = |Decision { stored, site, coded, .. }: Decision<'a>| {
        let source = stored.name.clone();
        let work = match coded {
            None if !matches!(stored.kind, Kind::Plain(_)) => {
                // The same numbers, in the order that they have here.
                let dtype = stored.dtype;
                let coding: Arc<dyn Coding> = Arc::new(Numbers(dtype));
                let rows = stored.into_rows()?;
                let unfit = |reason| Error::Weight { name: source.clone(), reason, hint: None };
                let to = place(&source)?;
                let parts = coding.parts(rows.matrix()).map_err(unfit)?.into_iter().map(|part| (part, to)).collect();
                let scheme = dtype.name().to_owned();
                Work::Code(Code {
                    rows,
                    coding,
                    scheme,
                    lossy: false,
                    fused: Vec::new(),
                    importance: None,
                    chosen: None,
                    origins: Vec::new(),
                    parts,
                })
            }
            None => {
                let (shard, entry) = stored.first();
                Work::Copy { shard, entry, to: place(&source)? }
            }
            Some((scheme, coding, parts)) => {
                let family = site.fused().into_iter().filter_map(|module| at.get(&module));
                let family = family.filter(|(_, other)| coding.shares_peak() && *other == scheme.name);
                let mut fused: Vec<usize> = family.map(|(at, _)| *at).collect();
                if fused.is_empty() {
                    fused.extend(at.get(&site.module).map(|(at, _)| *at));
                }
                let rows = stored.into_rows()?;
                let parts = parts.into_iter().map(|part| {
                    let to = place(&name(&source, &site, &part))?;
                    Ok((part, to))
                });
                let parts = parts.collect::<Result<_>>()?;
                let lossy = !matches!(scheme.target, Target::Plain(_));
                let scheme = scheme.name.to_owned();
                let origins = Vec::new();
                Work::Code(Code { rows, coding, scheme, lossy, fused, importance: None, chosen: None, origins, parts })
            }
        };
        Ok(Item { name: source, site, work })
    };
    decisions.into_iter().map(item).collect()
}

/// Families that runtimes fuse, of which the plan stores the members in different ways.
fn torn_families(decisions: &[Decision<'_>]) -> Vec<String> {
    let schemes: HashMap<&str, &str> = decisions
        .iter()
        .map(|decision| {
            let scheme = decision.coded.as_ref().map_or("16 bit", |(scheme, ..)| scheme.name);
            (decision.site.module.as_str(), scheme)
        })
        .collect();
    let mut notes = Vec::new();
    for decision in decisions.iter().filter(|decision| decision.site.role != Role::Vector) {
        let family = decision.site.fused();
        // Each family once, by its first member.
        if family.len() < 2 || family[0] != decision.site.module {
            continue;
        }
        let mut stored: Vec<&str> = family.iter().filter_map(|module| schemes.get(module.as_str()).copied()).collect();
        stored.dedup();
        if stored.len() > 1 {
            let stored = stored.join(" and ");
            notes.push(format!("`{}` and what it is fused with are stored as {stored}: vLLM refuses that", family[0]));
        }
    }
    if notes.len() > 1 {
        let rest = notes.len() - 1;
        notes.truncate(1);
        notes.push(format!("and {rest} more such families"));
    }
    notes
}

/// A checkpoint whose weights are codes already.
fn quantized_already(checkpoint: &Checkpoint, stored: &StoredTensor<'_>) -> Error {
    Error::unsupported(
        format!("`{}` is quantized already: `{}` is in codes", checkpoint.folder.display(), stored.name),
        "start from the original checkpoint, since every quantization adds its error; or decode this one with `⟨plan bf16⟩`",
    )
}

#[cfg(test)]
mod tests;
