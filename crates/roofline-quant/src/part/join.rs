//! Parts put together: what each of them must be is known from the source's headers, and is looked at before anything is
//! written.
//!
//! A file that one part wrote alone gets a second name, and no byte of it is copied; of a file that several parts share, the
//! bytes of the others are copied into the first one's. They are the bytes that belong there, so that a join that is killed
//! leaves every part as good as it was.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    path::Path,
};

use super::{Part, Share};
use crate::{
    Checkpoint, Error, ErrorStats, Manner, QuantizeJob, Request, Result, Workspace,
    disk::{read_exact_at, write_all_at},
    job::Output,
    quantize::{Report, conclude, fingerprint, prepare, without_data},
    stream::{Progress, create},
    workspace::{Found, Unfit},
};

/// Bytes that are copied at a time.
const STEP: usize = 4 << 20;

/// Joins the parts beside a target; the result and its report are those of a run on one machine.
pub fn join(checkpoint: &Checkpoint, request: &Request, watch: &dyn Progress) -> Result<Report> {
    without_data(request)?;
    let job = prepare(checkpoint, request)?;
    let whole = fingerprint(checkpoint, request, &job)?;
    let single = request.layout.single_file(&job, &request.target);
    let count = count(&request.target)?;
    let parts: Vec<(Share, Found)> = find(&job, request, &whole, count)?;
    let mut outcome: Vec<Option<ErrorStats>> = vec![None; job.items.len()];
    for (share, found) in &parts {
        share.items.iter().for_each(|item| outcome[*item] = found.done.get(item).copied().flatten());
    }
    let mut own = whole;
    own["number of parts"] = count.into();
    // A join that was killed is begun again: it had copied a few bytes.
    let manner = Manner { force: request.manner.force, resume: !request.manner.force };
    let needed = copied(&job, &parts) + job.companions.iter().map(|(_, companion)| companion.len()).sum::<u64>();
    let space = Workspace::open(&request.target, None, &own, &[], single.is_some(), needed, manner)?;
    watch.size(checkpoint.bytes() * if request.verify { 2 } else { 1 });
    let made = (0..job.files.len())
        .try_for_each(|file| {
            place(&job, file, &parts, &space.out(), watch)?;
            if watch.cancelled() { Err(Error::Cancelled) } else { Ok(()) }
        })
        .and_then(|()| conclude(checkpoint, request, &job, &outcome, &space, watch));
    match made {
        Ok(report) => {
            space.finish(single)?;
            for (_, found) in parts {
                found.remove();
            }
            Ok(report)
        }
        Err(error) => {
            space.abandon();
            Err(error)
        }
    }
}

/// How many parts there are to be, by the folders beside the target.
fn count(target: &Path) -> Result<usize> {
    let beside = Workspace::parts(target)?;
    let counts: BTreeSet<usize> = beside.iter().map(|part| part.count).collect();
    let shown = target.display();
    let mut each = counts.iter();
    match (each.next(), each.next()) {
        (Some(count), None) => Ok(*count),
        (None, _) => Err(Error::Parts {
            what: format!("no part of `{shown}` is there"),
            hint: "make them first, each with `⟨part 1/4⟩` to `⟨part 4/4⟩`, for example, and the same arguments"
                .to_owned(),
        }),
        _ => {
            let name = target.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            let folders: Vec<String> = beside.iter().map(|part| format!("`{}`", part.folder(&name))).collect();
            let counts: Vec<String> = counts.iter().map(usize::to_string).collect();
            Err(Error::Parts {
                what: format!("`{shown}` has parts of runs in {} parts", counts.join(" and ")),
                hint: format!("remove those that are not meant: {}", folders.join(", ")),
            })
        }
    }
}

/// Every part, locked and looked at; an error that names all that cannot be joined, and why.
fn find(
    job: &QuantizeJob<'_>,
    request: &Request,
    whole: &serde_json::Value,
    count: usize,
) -> Result<Vec<(Share, Found)>> {
    let (mut parts, mut unfit, mut again) = (Vec::new(), Vec::new(), Vec::new());
    for (part, share) in Part::all(count).zip(Share::each(job, count)) {
        let files = share.files.iter().map(|file| &job.files[*file]);
        let files: Vec<(&str, u64)> = files.map(|file| (file.name.as_str(), file.bytes)).collect();
        let found = Workspace::find(&request.target, part, &part.fingerprint(whole), &files)?;
        let problem = match found {
            Ok(found) => {
                let left = share.items.iter().filter(|item| !found.done.contains_key(item)).count();
                if left == 0 {
                    parts.push((share, found));
                    continue;
                }
                format!("is half-written: {left} of {} tensors are still to be made", share.items.len())
            }
            Err(Unfit::Missing) => "is missing".to_owned(),
            Err(Unfit::Busy) => "is being written".to_owned(),
            Err(Unfit::Other(what)) => format!("was made with another {what}"),
            Err(Unfit::File(name)) => format!("lacks `{name}`, or has it at another length"),
        };
        unfit.push(format!("part {part} {problem}"));
        again.push(format!("`⟨part {part}⟩`"));
    }
    if unfit.is_empty() {
        return Ok(parts);
    }
    Err(Error::Parts {
        what: format!("`{}` cannot be joined: {}", request.target.display(), unfit.join("; ")),
        hint: format!(
            "make {} with the arguments of the others; `⟨resume⟩` goes on with what is there, `⟨force⟩` starts again",
            again.join(", ")
        ),
    })
}

/// The parts that wrote into a file.
fn owners(parts: &[(Share, Found)], file: usize) -> impl Iterator<Item = &(Share, Found)> {
    parts.iter().filter(move |(share, _)| share.files.contains(&file))
}

/// Bytes that have to be copied.
fn copied(job: &QuantizeJob<'_>, parts: &[(Share, Found)]) -> u64 {
    let of = |(file, output): (usize, &Output)| {
        let mut owners = owners(parts, file);
        match owners.next() {
            None => output.bytes,
            Some(_) => owners.flat_map(|(share, _)| spans(job, share, file)).map(|(_, bytes)| bytes).sum(),
        }
    };
    job.files.iter().enumerate().map(of).sum()
}

/// Where a part's bytes lie in a file, and how many there are.
fn spans<'a>(job: &'a QuantizeJob<'_>, share: &'a Share, file: usize) -> impl Iterator<Item = (u64, u64)> + 'a {
    let spans = share.items.iter().flat_map(|item| job.items[*item].spans());
    spans.filter(move |(to, bytes)| to.file == file && *bytes > 0).map(|(to, bytes)| (to.offset, bytes))
}

/// Puts a file together in `folder`.
fn place(
    job: &QuantizeJob<'_>,
    file: usize,
    parts: &[(Share, Found)],
    folder: &Path,
    watch: &dyn Progress,
) -> Result<()> {
    let output = &job.files[file];
    let path = folder.join(&output.name);
    let mut owners = owners(parts, file);
    let Some((first, found)) = owners.next() else {
        let (_, made) = create(output, folder)?;
        return made.sync_all().map_err(Error::file("write", &path));
    };
    let theirs = found.out().join(&output.name);
    // Not every file system has a second name for a file.
    if fs::hard_link(&theirs, &path).is_err() {
        fs::copy(&theirs, &path).map_err(Error::file("copy", &theirs))?;
        File::open(&path).and_then(|file| file.sync_all()).map_err(Error::file("write", &path))?;
    }
    advance(job, first, file, watch);
    let mut to = None;
    for (share, found) in owners {
        if to.is_none() {
            to = Some(OpenOptions::new().write(true).open(&path).map_err(Error::file("write", &path))?);
        }
        let Some(to) = &to else { continue };
        let theirs = found.out().join(&output.name);
        let from = File::open(&theirs).map_err(Error::file("read", &theirs))?;
        let mut buffer = Vec::new();
        for (offset, bytes) in spans(job, share, file) {
            let mut at = 0;
            while at < bytes {
                buffer.resize((bytes - at).min(STEP as u64) as usize, 0);
                read_exact_at(&from, &mut buffer, offset + at).map_err(Error::file("read", &theirs))?;
                write_all_at(to, &buffer, offset + at).map_err(Error::file("write", &path))?;
                at += buffer.len() as u64;
            }
        }
        advance(job, share, file, watch);
    }
    to.map_or(Ok(()), |to| to.sync_data().map_err(Error::file("write", &path)))
}

/// Tells of the tensors of a part that begin in a file.
fn advance(job: &QuantizeJob<'_>, share: &Share, file: usize, watch: &dyn Progress) {
    let first = |item: &&usize| job.items[**item].spans().first().is_some_and(|(to, _)| to.file == file);
    let bytes = share.items.iter().filter(first).map(|item| job.items[*item].input()).sum();
    watch.advance(bytes);
}
