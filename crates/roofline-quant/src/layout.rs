//! How a checkpoint is written: what its tensors and files are called, what its configuration says.

mod compressed_tensors;
mod folder;

use std::{collections::HashMap, fmt, str::FromStr, sync::Arc};

use roofline_core::Error as CoreError;

use crate::{
    Checkpoint, Error, Job, Method, Plan, Result,
    coding::{Coding, Part},
    job::{Code, Item, Order, Place, Plain, Rows, Work},
    safetensors::Entry,
    site::{Role, Site},
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
}

impl Layout {
    /// Every layout, the most common first.
    pub const ALL: [Self; 3] = [Self::CompressedTensors, Self::Gguf, Self::Torchao];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::CompressedTensors => "compressed-tensors",
            Self::Gguf => "gguf",
            Self::Torchao => "torchao",
        }
    }

    /// The schemes it can store.
    pub fn schemes(self) -> &'static [Scheme] {
        match self {
            Self::CompressedTensors => compressed_tensors::SCHEMES,
            Self::Gguf => &[],
            Self::Torchao => &[],
        }
    }

    /// Its scheme of that name, in whichever case, with `-` or `_`.
    pub fn scheme(self, name: &str) -> Result<&'static Scheme> {
        let wanted = name.trim().to_lowercase().replace('_', "-");
        let fits = |scheme: &&Scheme| scheme.name == wanted || scheme.aliases.contains(&wanted.as_str());
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
    pub(crate) fn single_file<'j>(self, job: &'j Job<'_>) -> Option<&'j str> {
        (self == Self::Gguf).then(|| job.files.first().map(|file| file.name.as_str())).flatten()
    }

    /// What writing `checkpoint` by `plan` takes.
    pub fn job<'a>(self, checkpoint: &'a Checkpoint, plan: &Plan, method: Method) -> Result<Job<'a>> {
        refuse_quantized(checkpoint)?;
        match self {
            Self::CompressedTensors => compressed_tensors::job(checkpoint, plan, method),
            Self::Gguf => Err(Error::unsupported("gguf", "later")),
            Self::Torchao => todo!(),
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
    pub(crate) stored: Stored,
}

/// What a scheme's weights become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// One of compressed-tensors' ways.
    Compressed(crate::coding::compressed_tensors::Scheme, compressed_tensors::Activations),
}

/// What becomes of a tensor of the source.
struct Decision<'a> {
    shard: usize,
    entry: &'a Entry,
    site: Site,
    /// The scheme, how it codes and what it stores; none for what is copied.
    coded: Option<(&'static Scheme, Arc<dyn Coding>, Vec<Part>)>,
}

/// Decides for every tensor of the checkpoint, in the order of the files.
fn decide<'a>(
    checkpoint: &'a Checkpoint,
    plan: &Plan,
    layout: Layout,
    coding: impl Fn(&'static Scheme, &Entry) -> Result<Arc<dyn Coding>>,
) -> Result<(Vec<Decision<'a>>, Vec<String>)> {
    let entries = || {
        let shards = checkpoint.shards.iter().enumerate();
        shards.flat_map(|(shard, file)| file.header.tensors.iter().map(move |entry| (shard, entry)))
    };
    let sites: Vec<Site> = entries().map(|(_, entry)| Site::of(&entry.name, entry.shape.len())).collect();
    let layers = sites.iter().filter_map(|site| site.layer).max().map_or(0, |last| last + 1);
    let notes: Vec<String> = plan
        .idle(sites.iter(), layers)
        .iter()
        .map(|rule| format!("the rule for {} fits no weight of this model", rule.text()))
        .collect();
    let mut decisions = Vec::new();
    for ((shard, entry), site) in entries().zip(sites) {
        let coded = match plan.at(&site, layers) {
            None => None,
            Some(name) => {
                let scheme = layout.scheme(name)?;
                let coding = coding(scheme, entry)?;
                let parts = parts(entry, &*coding)?;
                Some((scheme, coding, parts))
            }
        };
        decisions.push(Decision { shard, entry, site, coded });
    }
    if decisions.iter().all(|decision| decision.coded.is_none()) {
        let reason = "its plan leaves every weight of this model as it is";
        return Err(Error::unsupported(
            format!("nothing to do: {reason}"),
            "`roofline inspect` lists the weights and their roles",
        ));
    }
    Ok((decisions, notes))
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
    checkpoint: &'a Checkpoint,
    decisions: Vec<Decision<'a>>,
    places: &HashMap<String, Place>,
    name: impl Fn(&Site, &Part) -> String,
) -> Result<Vec<Item<'a>>> {
    let at: HashMap<String, (usize, &'static str)> = decisions
        .iter()
        .enumerate()
        .filter_map(|(at, decision)| {
            let (scheme, ..) = decision.coded.as_ref()?;
            Some((decision.site.module.clone(), (at, scheme.name)))
        })
        .collect();
    let place = |name: &str| places.get(name).copied().unwrap_or(Place { file: 0, offset: 0 });
    let item = |Decision { shard, entry, site, coded }| {
        let shard = &checkpoint.shards[shard];
        let work = match coded {
            None => Work::Copy { shard, entry, to: place(&entry.name) },
            Some((scheme, coding, parts)) => {
                let family = site.fused().into_iter().filter_map(|module| at.get(&module));
                let fused = family.filter(|(_, other)| *other == scheme.name).map(|(at, _)| *at).collect();
                let sources: Vec<Box<dyn Rows>> = vec![Box::new(Plain::new(shard, entry)?)];
                let parts = parts.into_iter().map(|part| {
                    let to = place(&name(&site, &part));
                    (part, to)
                });
                let (order, scheme, parts) = (Order::AsIs, scheme.name.to_owned(), parts.collect());
                Work::Code(Code { sources, order, coding, scheme, lossy: true, fused, importance: None, parts })
            }
        };
        Ok(Item { name: entry.name.clone(), site, work })
    };
    decisions.into_iter().map(item).collect()
}

/// Families that runtimes fuse, of which the plan stores the members in different ways.
fn torn_families(decisions: &[Decision<'_>]) -> Vec<String> {
    let scheme = |module: &str| {
        let found = decisions.iter().find(|decision| decision.site.module == module)?;
        Some(found.coded.as_ref().map_or(crate::plan::KEEP, |(scheme, ..)| scheme.name))
    };
    let mut notes = Vec::new();
    for decision in decisions.iter().filter(|decision| decision.site.role != Role::Vector) {
        let family = decision.site.fused();
        // Each family once, by its first member.
        if family.len() < 2 || family[0] != decision.site.module {
            continue;
        }
        let mut schemes: Vec<&str> = family.iter().filter_map(|module| scheme(module)).collect();
        schemes.dedup();
        if schemes.len() > 1 {
            let schemes = schemes.join(" and ");
            notes.push(format!("`{}` and what it is fused with are stored as {schemes}: vLLM refuses that", family[0]));
        }
    }
    if notes.len() > 1 {
        let rest = notes.len() - 1;
        notes.truncate(1);
        notes.push(format!("and {rest} more such families"));
    }
    notes
}

/// A checkpoint whose weights are codes already has to be decoded before it can be coded again.
fn refuse_quantized(checkpoint: &Checkpoint) -> Result<()> {
    let Some(config) = checkpoint.config.get("quantization_config") else { return Ok(()) };
    let method = config.get("quant_method").and_then(serde_json::Value::as_str).unwrap_or("some method");
    Err(Error::unsupported(
        format!("`{}` is quantized already, with {method}", checkpoint.folder.display()),
        "start from the original checkpoint: every quantization adds its error",
    ))
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
                    assert_eq!(*name, name.to_lowercase().replace('_', "-"));
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
