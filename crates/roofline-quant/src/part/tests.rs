use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use super::*;
use crate::{Layout, Manner, layout::Shards, quantize, scratch::Scratch, verify::tests::source};

fn part(text: &str) -> Part {
    text.parse().unwrap()
}

/// Every file below a path, by name; the one file where it is one.
fn bytes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    if path.is_file() {
        return BTreeMap::from([(String::new(), fs::read(path).unwrap())]);
    }
    let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())).collect()
}

fn request(layout: Layout, plan: &str, target: &Path) -> Request {
    Request { threads: 2, ..Request::new(plan.parse().unwrap(), layout, target.to_owned()) }
}

fn silent(_: u64) {}

#[test]
fn parts_by_their_names() {
    for (text, shown) in [("1/1", "1/1"), (" 2 / 4 ", "2/4"), ("4096/4096", "4096/4096")] {
        assert_eq!(part(text).to_string(), shown);
    }
    for text in ["", "1", "0/4", "5/4", "1/0", "1/5000", "-1/4", "1/4/4", "a/b", "1.5/4"] {
        let refused = text.parse::<Part>().unwrap_err();
        assert!(refused.to_string().contains(&format!("`{text}`")), "{refused}");
        assert!(refused.hint().unwrap().contains("such as 1/4"), "{refused}");
    }
    assert_eq!(Part::of_folder(".out.part-2-of-4", "out"), Some(part("2/4")));
    for other in [".out.part-02-of-4", ".out.part-5-of-4", "out.part-2-of-4", ".other.part-2-of-4", ".out.partial"] {
        assert_eq!(Part::of_folder(other, "out"), None, "{other}");
    }
}

/// Every tensor is in one part, and no part has much more than its share.
#[test]
fn shares_are_disjoint_and_even() {
    let scratch = Scratch::new("shares");
    let checkpoint = source(&scratch.path().join("source"));
    let request = request(Layout::CompressedTensors, "w4a16", &scratch.path().join("out"));
    let job = prepare(&checkpoint, &request).unwrap();
    let all: u64 = Share::whole(&job).input(&job);
    let largest = job.items.iter().map(crate::job::Item::input).max().unwrap();
    for count in [1, 2, 3, 5, 40] {
        let shares = Share::each(&job, count);
        let mut items: Vec<usize> = shares.iter().flat_map(|share| share.items.clone()).collect();
        items.sort_unstable();
        assert_eq!(items, (0..job.items.len()).collect::<Vec<_>>(), "{count}");
        for share in &shares {
            assert!(share.input(&job) <= all / count as u64 + largest, "{count}: {}", share.input(&job));
        }
    }
}

/// In any number of parts, made in any order, in one file or in shards: the bytes and the report of one machine.
#[test]
fn parts_join_to_what_one_machine_writes() {
    let scratch = Scratch::new("join");
    let checkpoint = source(&scratch.path().join("source"));
    for (layout, plan, shards, name) in [
        (Layout::CompressedTensors, "w4a16", Shards::AsSource, "out"),
        (Layout::CompressedTensors, "w4a16", Shards::Of(60_000), "out"),
        // The largest magnitude of queries, keys and values is one, whoever has which of them.
        (Layout::CompressedTensors, "nvfp4a16", Shards::AsSource, "out"),
        (Layout::Torchao, "int4-g64-zp16", Shards::Of(100_000), "out"),
        (Layout::Plain, "fp32", Shards::Of(300_000), "out"),
        (Layout::Gguf, "q4_k_m", Shards::AsSource, "out.gguf"),
    ] {
        let target = scratch.path().join(name);
        let mut request = Request { shards, ..request(layout, plan, &target) };
        let report = serde_json::to_value(quantize(&checkpoint, &request, &silent).unwrap()).unwrap();
        let expected = bytes(&target);
        request.manner.force = true;
        for count in [1, 2, 3, 20] {
            let label = format!("{layout} {plan} {shards} in {count}");
            let (mut lines, mut read) = (0, 0);
            for part in Part::all(count).collect::<Vec<_>>().into_iter().rev() {
                let told = quantize_part(&checkpoint, &request, part, &silent).unwrap();
                assert_eq!(told.folder, scratch.path().join(part.folder(name)), "{label}");
                lines += told.weights.len();
                read += told.bytes_before;
            }
            assert_eq!(lines, report["weights"].as_array().unwrap().len(), "{label}");
            assert_eq!(read, checkpoint.bytes(), "{label}");
            let joined = join(&checkpoint, &request, &silent).unwrap();
            assert_eq!(serde_json::to_value(joined).unwrap(), report, "{label}");
            assert_eq!(bytes(&target), expected, "{label}");
            assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 2, "{label}: nothing is left");
        }
        if target.is_dir() {
            fs::remove_dir_all(&target).unwrap();
        } else {
            fs::remove_file(&target).unwrap();
        }
    }
}

/// What is wrong with a part is said of every part at once, and nothing is written.
#[test]
fn what_cannot_be_joined_is_named() {
    let scratch = Scratch::new("unfit");
    let checkpoint = source(&scratch.path().join("source"));
    let target = scratch.path().join("out");
    let request = |plan: &str| request(Layout::CompressedTensors, plan, &target);
    let make = |plan: &str, text: &str| quantize_part(&checkpoint, &request(plan), part(text), &silent).unwrap();
    let refused = || {
        let error = join(&checkpoint, &request("w4a16"), &silent).unwrap_err();
        assert!(!target.exists() && !scratch.path().join(".out.partial").exists());
        assert_eq!((error.kind(), error.is_input()), ("parts", true));
        (error.to_string(), error.hint().unwrap())
    };
    assert!(refused().0.starts_with("no part of `"));
    let first = make("w4a16", "1/5");
    make("w8a16", "2/5");
    let third = make("w4a16", "3/5");
    let fourth = make("w4a16", "4/5");
    let journal = third.folder.join("journal.jsonl");
    let text = fs::read_to_string(&journal).unwrap();
    // What a kill leaves: a line less, and half of it.
    let cut = text.trim_end().rfind('\n').map_or(0, |at| at + 1);
    fs::write(&journal, &text[..cut + 4]).unwrap();
    let file = fs::read_dir(fourth.folder.join("out")).unwrap().next().unwrap().unwrap().path();
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(100).unwrap();
    let (what, hint) = refused();
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(what.contains("part 2/5 was made with another plan; part 3/5 is half-written: 1 of "), "{what}");
    assert!(what.contains(&format!("part 4/5 lacks `{name}`")), "{what}");
    assert!(what.ends_with("part 5/5 is missing") && !what.contains("part 1/5"), "{what}");
    assert!(hint.contains("`⟨part 2/5⟩`, `⟨part 3/5⟩`, `⟨part 4/5⟩`, `⟨part 5/5⟩`"), "{hint}");
    // Parts of another run beside them.
    make("w4a16", "1/2");
    let (what, hint) = refused();
    assert!(
        what.ends_with("has parts of runs in 2 and 5 parts") && hint.contains("`.out.part-1-of-2`"),
        "{what} {hint}"
    );
    fs::remove_dir_all(scratch.path().join(".out.part-1-of-2")).unwrap();
    // A part that is there is not made again by accident; with a word it goes on, or begins again.
    let again =
        |text: &str, manner| quantize_part(&checkpoint, &Request { manner, ..request("w4a16") }, part(text), &silent);
    let (resume, force) = (Manner { force: false, resume: true }, Manner { force: true, resume: false });
    assert!(again("1/5", Manner::default()).unwrap_err().to_string().ends_with("is there already"));
    assert!(again("2/5", resume).unwrap_err().to_string().ends_with("was begun with another plan"));
    assert_eq!(again("1/5", resume).unwrap().weights, first.weights);
    again("2/5", force).unwrap();
    assert_eq!(again("3/5", resume).unwrap().weights, third.weights);
    assert_eq!(again("4/5", resume).unwrap().weights, fourth.weights);
    again("5/5", resume).unwrap();
    // Somebody is at one of them.
    let held = fs::File::open(third.folder.join("lock")).unwrap();
    held.lock().unwrap();
    assert!(refused().0.ends_with("part 3/5 is being written"));
    drop(held);
    join(&checkpoint, &request("w4a16"), &silent).unwrap();
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 2);
}

/// A source that changed after the first part was made.
#[test]
fn another_source_is_noticed() {
    let scratch = Scratch::new("changed");
    let folder = scratch.path().join("source");
    let request = request(Layout::CompressedTensors, "w4a16", &scratch.path().join("out"));
    quantize_part(&source(&folder), &request, part("1/2"), &silent).unwrap();
    let checkpoint = source(&folder);
    quantize_part(&checkpoint, &request, part("2/2"), &silent).unwrap();
    let error = join(&checkpoint, &request, &silent).unwrap_err().to_string();
    assert!(error.ends_with("part 1/2 was made with another source"), "{error}");
}

/// Somebody who has seen enough after so many bytes.
struct Enough(AtomicU64);

impl Progress for Enough {
    fn advance(&self, bytes: u64) {
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(bytes)));
    }

    fn cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// Stopped while it codes or while it reads back: there is no target, and going on ends with the same bytes.
#[test]
fn a_run_that_is_stopped_can_go_on() {
    let scratch = Scratch::new("stopped");
    let checkpoint = source(&scratch.path().join("source"));
    let (target, expected) = (scratch.path().join("out"), scratch.path().join("expected"));
    quantize(&checkpoint, &request(Layout::CompressedTensors, "w4a16", &expected), &silent).unwrap();
    let request = Request { verify: true, ..request(Layout::CompressedTensors, "w4a16", &target) };
    let resume = Request { manner: Manner { force: false, resume: true }, ..request.clone() };
    for bytes_until in [1, checkpoint.bytes() / 2, checkpoint.bytes() * 3 / 2] {
        let stopped = quantize(&checkpoint, &request, &Enough(AtomicU64::new(bytes_until)));
        assert!(matches!(stopped, Err(Error::Cancelled)), "{bytes_until}");
        assert!(!target.exists() && scratch.path().join(".out.partial/journal.jsonl").exists());
        quantize(&checkpoint, &resume, &silent).unwrap();
        assert_eq!(bytes(&target)["model.safetensors"], bytes(&expected)["model.safetensors"]);
        fs::remove_dir_all(&target).unwrap();
    }
    let own = Request { verify: false, ..request };
    let stopped = quantize_part(&checkpoint, &own, part("1/1"), &Enough(AtomicU64::new(1)));
    assert!(matches!(stopped, Err(Error::Cancelled)));
    quantize_part(&checkpoint, &Request { verify: false, ..resume.clone() }, part("1/1"), &silent).unwrap();
    let stopped = join(&checkpoint, &resume, &Enough(AtomicU64::new(1)));
    assert!(matches!(stopped, Err(Error::Cancelled)) && !target.exists());
    join(&checkpoint, &resume, &silent).unwrap();
    assert_eq!(bytes(&target)["model.safetensors"], bytes(&expected)["model.safetensors"]);
}
