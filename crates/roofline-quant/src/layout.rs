//! How a checkpoint is written: what its tensors and files are called, what its configuration says.

mod compressed_tensors;
mod folder;
mod gguf;
mod plain;
mod scheme;
mod torchao;

pub(crate) use scheme::Target;
pub use scheme::{Listed, Scheme};

use std::{collections::HashMap, fmt, path::Path, str::FromStr, sync::Arc};

use roofline_core::{Error as CoreError, Format, Plan, Role};

use crate::{
    Checkpoint, Dtype, Error, Job, Method, Result,
    coding::{Coding, Part},
    job::{Code, Item, Order, Place, Plain, Rows, Work},
    number::is_number,
    plan::{Asked, Wanted, narrow},
    safetensors::Entry,
    site::Site,
    stored::Stored,
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
    /// safetensors of plain numbers: every runtime. Quantized checkpoints are decoded.
    Plain,
}

impl Layout {
    /// Every layout, the most common first.
    pub const ALL: [Self; 4] = [Self::CompressedTensors, Self::Plain, Self::Gguf, Self::Torchao];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::CompressedTensors => "compressed-tensors",
            Self::Gguf => "gguf",
            Self::Torchao => "torchao",
            Self::Plain => "safetensors",
        }
    }

    /// The one file that is the result, where it is no folder.
    pub(crate) fn single_file<'j>(self, job: &'j Job<'_>, target: &Path) -> Option<&'j str> {
        let named = target.extension().is_some_and(|extension| extension == "gguf");
        job.files.first().filter(|_| self == Self::Gguf && named).map(|file| file.name.as_str())
    }

    /// What writing `checkpoint` to `target` by `plan` takes.
    pub fn job<'a>(self, checkpoint: &'a Checkpoint, plan: &Plan, method: Method, target: &Path) -> Result<Job<'a>> {
        if let Some(mix) = plan.mix().filter(|_| self != Self::Gguf) {
            return Err(self.no_recipe(mix));
        }
        match self {
            Self::CompressedTensors => compressed_tensors::job(checkpoint, plan, method),
            Self::Gguf => gguf::job(checkpoint, plan, method, target),
            Self::Torchao => torchao::job(checkpoint, plan, method),
            Self::Plain => plain::job(checkpoint, plan),
        }
    }
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
    stored: Stored<'a>,
    site: Site,
    /// The scheme, how it codes and what it stores; none for what is copied.
    coded: Option<(&'static Scheme, Arc<dyn Coding>, Vec<Part>)>,
}

/// Everything a checkpoint holds, with its place in the model.
fn sites(checkpoint: &Checkpoint) -> Result<Vec<(Stored<'_>, Site)>> {
    let all = Stored::all(checkpoint)?.into_iter().map(|stored| {
        let site = Site::of(stored.name(), stored.shape().len());
        (stored, site)
    });
    Ok(all.collect())
}

/// A plan for the model that these are the weights of, and what to know about it.
fn asked<'p>(plan: &'p Plan, checkpoint: &Checkpoint, all: &[(Stored<'_>, Site)]) -> (Asked<'p>, Vec<String>) {
    let sites: Vec<&Site> = all.iter().map(|(_, site)| site).collect();
    let asked = Asked::new(plan, &checkpoint.config, sites.iter().copied());
    let notes = asked.notes(&sites);
    (asked, notes)
}

/// Which of the checkpoint's files a tensor lies in.
fn shard_of(checkpoint: &Checkpoint, stored: &Stored<'_>) -> usize {
    let (shard, _) = stored.first();
    checkpoint.shards.iter().position(|other| std::ptr::eq(other, shard)).unwrap_or(0)
}

/// Decides for every tensor of a plain checkpoint.
fn decide<'a>(
    checkpoint: &'a Checkpoint,
    plan: &Plan,
    layout: Layout,
    coding: impl Fn(&'static Scheme, &Entry) -> Result<Arc<dyn Coding>>,
) -> Result<(Vec<Decision<'a>>, Vec<String>)> {
    let all = sites(checkpoint)?;
    let (asked, notes) = asked(plan, checkpoint, &all);
    let mut decisions = Vec::new();
    for (stored, site) in all {
        let Stored::Plain((_, entry)) = &stored else { return Err(quantized_already(checkpoint, &stored)) };
        let coded = match wanted(layout, &asked, &site, entry.dtype)? {
            None => None,
            Some(scheme) => {
                if !is_number(entry.dtype) {
                    return Err(Error::Weight {
                        name: entry.name.clone(),
                        reason: format!("is stored as {}, which is not a floating-point number", entry.dtype),
                        hint: Some("keep it with `--keep`".to_owned()),
                    });
                }
                let coding = coding(scheme, entry)?;
                let parts = parts(entry, &*coding)?;
                Some((scheme, coding, parts))
            }
        };
        decisions.push(Decision { shard: shard_of(checkpoint, &stored), stored, site, coded });
    }
    if decisions.iter().all(|decision| decision.coded.is_none()) {
        return Err(Error::unsupported(
            format!("nothing to do: the plan `{plan}` leaves every weight of this model as it is"),
            "`roofline inspect` lists the weights and their roles; `--as safetensors` changes the type of plain numbers",
        ));
    }
    Ok((decisions, notes))
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
fn parts(entry: &Entry, coding: &dyn Coding) -> Result<Vec<Part>> {
    let refuse =
        |reason: String, hint: &str| Error::Weight { name: entry.name.clone(), reason, hint: Some(hint.to_owned()) };
    let [rows, columns] = entry.shape[..] else {
        let reason = format!("has the shape {:?}, which is no matrix", entry.shape);
        return Err(refuse(reason, "keep it with a rule of the plan, or with `--keep`"));
    };
    if rows == 0 || columns == 0 {
        return Err(refuse(format!("has the shape {:?}", entry.shape), "an empty weight cannot be quantized"));
    }
    let hint = "keep it with `--keep`, or choose a scheme with a smaller group or one scale per channel";
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
        let source = stored.name().to_owned();
        let work = match coded {
            None => {
                let (shard, entry) = stored.first();
                Work::Copy { shard, entry, to: place(&entry.name)? }
            }
            Some((scheme, coding, parts)) => {
                let family = site.fused().into_iter().filter_map(|module| at.get(&module));
                let mut fused: Vec<usize> =
                    family.filter(|(_, other)| *other == scheme.name).map(|(at, _)| *at).collect();
                if fused.is_empty() {
                    fused.extend(at.get(&site.module).map(|(at, _)| *at));
                }
                let rows: Box<dyn Rows + 'a> = match stored {
                    Stored::Plain((shard, entry)) => Box::new(Plain::new(shard, entry)?),
                    Stored::Coded(coded) => Box::new(coded),
                };
                let parts = parts.into_iter().map(|part| {
                    let to = place(&name(&source, &site, &part))?;
                    Ok((part, to))
                });
                let parts = parts.collect::<Result<_>>()?;
                let lossy = !matches!(scheme.target, Target::Plain(_));
                let (sources, order, scheme, parts) = (vec![rows], Order::AsIs, scheme.name.to_owned(), parts);
                Work::Code(Code { sources, order, coding, scheme, lossy, fused, importance: None, parts })
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
fn quantized_already(checkpoint: &Checkpoint, stored: &Stored<'_>) -> Error {
    Error::unsupported(
        format!("`{}` is quantized already: `{}` is in codes", checkpoint.folder.display(), stored.name()),
        "start from the original checkpoint, since every quantization adds its error; or decode this one with `--plan bf16`",
    )
}

#[cfg(test)]
mod tests;
