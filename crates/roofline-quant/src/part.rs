//! A share of a run, for many machines: which tensors it codes, and the folder it leaves beside the target.
//!
//! Every part is prepared as the whole is, from the same headers, so that each byte has one place whoever writes it. What a
//! part writes lies in a folder of its own with a journal of its own, and no two parts write into the same file: a file
//! system that nodes share need not know how to put two writers' pages together.

mod join;

pub use join::join;

use std::{collections::BTreeSet, fmt, path::PathBuf, str::FromStr};

use roofline_core::{Error as CoreError, Plan};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::{
    Checkpoint, Error, QuantizeJob, Request, Result, Workspace,
    quantize::{Line, fingerprint, lines, prepare, without_data},
    stream::{self, Progress},
};

/// Most parts of a run.
const MOST: usize = 4096;

/// Which share of a run: `2/4` is the second of four.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    number: usize,
    count: usize,
}

impl Part {
    /// All parts of so many.
    pub(crate) fn all(count: usize) -> impl Iterator<Item = Self> {
        (1..=count).map(move |number| Self { number, count })
    }

    /// The folder of this part of what is called `name`.
    pub(crate) fn folder(self, name: &str) -> String {
        format!(".{name}.part-{}-of-{}", self.number, self.count)
    }

    /// The part of `name` that a folder holds, by the folder's name.
    pub(crate) fn of_folder(folder: &str, name: &str) -> Option<Self> {
        let rest = folder.strip_prefix('.')?.strip_prefix(name)?.strip_prefix(".part-")?;
        let (number, count) = rest.split_once("-of-")?;
        let part: Self = format!("{number}/{count}").parse().ok()?;
        // `01` is no name of ours.
        (part.folder(name) == folder).then_some(part)
    }

    /// What this part alone is made from.
    fn fingerprint(self, whole: &Value) -> Value {
        let mut own = whole.clone();
        own["part"] = self.to_string().into();
        own
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.count)
    }
}

impl FromStr for Part {
    type Err = CoreError;

    fn from_str(text: &str) -> Result<Self, CoreError> {
        let number = |text: &str| text.trim().parse::<usize>().ok();
        let read = text.split_once('/').and_then(|(part, of)| Some((number(part)?, number(of)?)));
        match read {
            Some((number, count)) if (1..=MOST).contains(&count) && (1..=count).contains(&number) => {
                Ok(Self { number, count })
            }
            _ => Err(CoreError::Unknown {
                what: "part",
                name: text.to_owned(),
                nearest: None,
                hint: format!("I/N, such as 1/4: the first of four; I is from 1 to N, and N at most {MOST}"),
            }),
        }
    }
}

/// The tensors that one run codes, and the files they go into.
#[derive(Clone, Debug)]
pub struct Share {
    pub(crate) items: Vec<usize>,
    pub(crate) files: BTreeSet<usize>,
}

impl Share {
    /// Everything.
    pub fn whole(job: &QuantizeJob<'_>) -> Self {
        Self { items: (0..job.items.len()).collect(), files: (0..job.files.len()).collect() }
    }

    /// The shares of so many parts: items that follow each other in the files, with about as many input bytes each. Most files
    /// are then written by one part alone.
    pub(crate) fn each(job: &QuantizeJob<'_>, count: usize) -> Vec<Self> {
        let mut order: Vec<(usize, u64, usize)> = Vec::new();
        for (item, one) in job.items.iter().enumerate() {
            let first = one.spans().into_iter().map(|(to, _)| (to.file, to.offset)).min().unwrap_or_default();
            order.push((first.0, first.1, item));
        }
        order.sort_unstable();
        // A tensor without bytes has a place in the order, too.
        let weight = |item: usize| u128::from(job.items[item].input()).max(1);
        let all: u128 = order.iter().map(|(.., item)| weight(*item)).sum();
        let mut shares = vec![Self { items: Vec::new(), files: BTreeSet::new() }; count];
        let mut before = 0;
        for (.., item) in order {
            // An item belongs to the part that its middle lies in.
            let middle = 2 * before + weight(item);
            before += weight(item);
            let share = &mut shares[(middle * count as u128 / (2 * all)) as usize];
            share.items.push(item);
            share.files.extend(job.items[item].spans().into_iter().map(|(to, _)| to.file));
        }
        for share in &mut shares {
            share.items.sort_unstable();
        }
        shares
    }

    /// Bytes that are read for it.
    pub(crate) fn input(&self, job: &QuantizeJob<'_>) -> u64 {
        self.items.iter().map(|item| job.items[*item].input()).sum()
    }

    /// Bytes that are written for it, heads of files aside.
    fn output(&self, job: &QuantizeJob<'_>) -> u64 {
        self.items.iter().flat_map(|item| job.items[*item].spans()).map(|(_, bytes)| bytes).sum()
    }
}

/// What became of one part.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "QuantizePart")]
pub struct PartReport {
    /// What the model is called.
    pub model: String,
    /// The layout's name.
    pub layout: String,
    /// The plan.
    pub plan: Plan,
    /// The method's name.
    pub method: String,
    /// Where the whole will be.
    pub target: PathBuf,
    /// Which part: `2/4` is the second of four.
    pub part: String,
    /// Where it waits for the others.
    pub folder: PathBuf,
    /// Tensors of this part.
    pub tensors: usize,
    /// Tensors of the whole.
    pub tensors_of_all: usize,
    /// Bytes of this part's tensors in the source.
    pub bytes_before: u64,
    /// Bytes that were written for them.
    pub bytes_after: u64,
    /// The quantized weights of this part.
    pub weights: Vec<Line>,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// Quantizes one part, and leaves it beside the target for [`join`]. A part that was made before is complete at once where
/// `resume` is asked for.
pub fn quantize_part(
    checkpoint: &Checkpoint,
    request: &Request,
    part: Part,
    watch: &dyn Progress,
) -> Result<PartReport> {
    if request.verify {
        let hint = "leave `⟨verify⟩` out here, and say it with `⟨join⟩`";
        return Err(Error::unsupported("a part is read back when it is joined", hint));
    }
    without_data(request)?;
    let job = prepare(checkpoint, request)?;
    let share = Share::each(&job, part.count).swap_remove(part.number - 1);
    let fingerprint = part.fingerprint(&fingerprint(checkpoint, request, &job)?);
    let single = request.layout.single_file(&job, &request.target).is_some();
    let files = share.files.iter().map(|file| &job.files[*file]);
    let files: Vec<(&str, u64)> = files.map(|file| (file.name.as_str(), file.bytes)).collect();
    let heads: u64 = share.files.iter().map(|file| job.files[*file].head.bytes().len() as u64).sum();
    let needed = share.output(&job) + heads;
    let space = Workspace::open(&request.target, Some(part), &fingerprint, &files, single, needed, request.manner)?;
    watch.size(share.input(&job));
    let outcome = match stream::run(&job, &share, &space, request.threads, watch) {
        Ok(outcome) => outcome,
        Err(error) => return Err(space.fail(error)),
    };
    Ok(PartReport {
        model: checkpoint.name(),
        layout: request.layout.name().to_owned(),
        plan: request.plan.clone(),
        method: request.method.to_string(),
        target: request.target.clone(),
        part: part.to_string(),
        folder: space.leave(),
        tensors: share.items.len(),
        tensors_of_all: job.items.len(),
        bytes_before: share.input(&job),
        bytes_after: share.output(&job),
        weights: lines(&job, &outcome),
        notes: job.notes.clone(),
    })
}

#[cfg(test)]
mod tests;
