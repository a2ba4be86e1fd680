//! How a checkpoint is written: what its tensors and files are called, what its configuration says.

mod compressed_tensors;
mod folder;
mod gguf;
mod plain;
mod torchao;

use std::{collections::HashMap, fmt, path::Path, str::FromStr, sync::Arc};

use roofline_core::Error as CoreError;

use crate::{
    Checkpoint, Dtype, Error, Job, Method, Plan, Result,
    coding::{Coding, Part},
    job::{Code, Item, Order, Place, Plain, Rows, Work},
    number::is_number,
    safetensors::Entry,
    site::{Role, Site},
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

    /// The schemes it can store.
    pub fn schemes(self) -> &'static [Scheme] {
        match self {
            Self::CompressedTensors => compressed_tensors::SCHEMES,
            Self::Gguf => gguf::SCHEMES,
            Self::Torchao => torchao::SCHEMES,
            Self::Plain => plain::SCHEMES,
        }
    }

    /// Its scheme of that name, in whichever case, with `-` or `_`.
    pub fn scheme(self, name: &str) -> Result<&'static Scheme> {
        let plain = |name: &str| name.trim().to_lowercase().replace('_', "-");
        let wanted = plain(name);
        let fits = |scheme: &&Scheme| scheme.aliases.iter().chain([&scheme.name]).any(|known| plain(known) == wanted);
        if let Some(scheme) = self.schemes().iter().find(fits) {
            return Ok(scheme);
        }
        let names = self.schemes().iter().map(|scheme| scheme.name);
        let elsewhere = Self::ALL.iter().find(|other| other.schemes().iter().any(|scheme| fits(&scheme)));
        let hint = match elsewhere {
            Some(other) => format!("{other} has it: use `--as {other}`"),
            None => format!("{self} has {}", names.clone().collect::<Vec<_>>().join(", ")),
        };
        Err(CoreError::unknown("scheme", name, names, hint).into())
    }

    /// The layout that a scheme of that name is most often written in.
    pub fn of_scheme(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.scheme(name).is_ok())
    }

    /// The one file that is the result, where it is no folder.
    pub(crate) fn single_file<'j>(self, job: &'j Job<'_>, target: &Path) -> Option<&'j str> {
        let named = target.extension().is_some_and(|extension| extension == "gguf");
        job.files.first().filter(|_| self == Self::Gguf && named).map(|file| file.name.as_str())
    }

    /// What writing `checkpoint` to `target` by `plan` takes.
    pub fn job<'a>(self, checkpoint: &'a Checkpoint, plan: &Plan, method: Method, target: &Path) -> Result<Job<'a>> {
        match self {
            Self::CompressedTensors => compressed_tensors::job(checkpoint, plan, method),
            Self::Gguf => {
                let name = gguf::file_name(target, &checkpoint.name(), &plan.scheme);
                gguf::job(checkpoint, plan, method, name)
            }
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

/// A way of storing weights that a layout knows by name.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// Its name on the command line and in plans, in lower case with `-`.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// What it is, in a sentence.
    pub summary: &'static str,
    /// How it is coded.
    pub(crate) target: Target,
}

/// What a scheme's weights become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Numbers of this type.
    Plain(Dtype),
    /// One of GGUF's types, or a mix of them.
    Gguf(&'static str),
    /// One of torchao's ways.
    Torchao(crate::coding::torchao::Scheme),
    /// One of compressed-tensors' ways.
    Compressed(crate::coding::compressed_tensors::Scheme, compressed_tensors::Activations),
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

/// Everything a checkpoint holds, with its place in the model, and how many layers there are.
fn sites(checkpoint: &Checkpoint) -> Result<(Vec<(Stored<'_>, Site)>, u64)> {
    let all: Vec<(Stored<'_>, Site)> = Stored::all(checkpoint)?
        .into_iter()
        .map(|stored| {
            let site = Site::of(stored.name(), stored.shape().len());
            (stored, site)
        })
        .collect();
    let layers = all.iter().filter_map(|(_, site)| site.layer).max().map_or(0, |last| last + 1);
    Ok((all, layers))
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
    let (all, layers) = sites(checkpoint)?;
    let notes: Vec<String> = idle(plan, &all, layers);
    let mut decisions = Vec::new();
    for (stored, site) in all {
        let Stored::Plain((_, entry)) = &stored else { return Err(quantized_already(checkpoint, &stored)) };
        let coded = match plan.at(&site, layers) {
            None => None,
            Some(name) => {
                let scheme = layout.scheme(name)?;
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
            "nothing to do: the plan leaves every weight of this model as it is",
            "`roofline inspect` lists the weights and their roles",
        ));
    }
    Ok((decisions, notes))
}

/// A word for every rule that fits nothing.
fn idle(plan: &Plan, all: &[(Stored<'_>, Site)], layers: u64) -> Vec<String> {
    let sites: Vec<&Site> = all.iter().map(|(_, site)| site).collect();
    let rules = plan.idle(&sites, layers).into_iter();
    rules.map(|rule| format!("the rule for {} fits no weight of this model", rule.text())).collect()
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
            let scheme = decision.coded.as_ref().map_or(crate::plan::KEEP, |(scheme, ..)| scheme.name);
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
mod tests {
    use super::*;

    #[test]
    fn every_scheme_has_one_meaning_in_its_layout() {
        for layout in Layout::ALL {
            assert_eq!(layout.name().parse::<Layout>().unwrap(), layout);
            let mut seen = std::collections::HashSet::new();
            for scheme in layout.schemes() {
                for name in scheme.aliases.iter().chain([&scheme.name]) {
                    assert!(seen.insert(*name), "{name}");
                    assert_eq!(*name, name.to_lowercase());
                    assert_eq!(layout.scheme(&name.to_uppercase()).unwrap().name, scheme.name);
                }
            }
        }
    }

    #[test]
    fn an_unknown_scheme_says_which_there_are() {
        let error = Layout::CompressedTensors.scheme("w4a61").unwrap_err();
        assert!(error.to_string().contains("did you mean `w4a16`?"), "{error}");
        assert!(error.hint().unwrap().contains("w8a8"), "{:?}", error.hint());
        let error = Layout::Torchao.scheme("nvfp4a16").unwrap_err();
        assert_eq!(error.hint().unwrap(), "compressed-tensors has it: use `--as compressed-tensors`");
    }
}
