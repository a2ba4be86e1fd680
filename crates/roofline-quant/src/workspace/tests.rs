use std::io::Write;

use serde_json::json;

use super::*;
use crate::scratch::Scratch;

const FORCE: Manner = Manner { force: true, resume: false };
const RESUME: Manner = Manner { force: false, resume: true };

fn open(target: &Path, manner: Manner) -> Result<Workspace> {
    let single = target.extension().is_some_and(|extension| extension == "gguf");
    Workspace::open(target, None, &json!({ "plan": "a" }), &[], single, 10, manner)
}

fn fill(folder: &Path, weights: &str) {
    fs::write(folder.join("model.safetensors"), weights).unwrap();
    fs::write(folder.join("config.json"), "{}").unwrap();
}

#[test]
fn the_target_appears_whole_or_not_at_all() {
    let scratch = Scratch::new("whole");
    let target = scratch.path().join("model");
    let space = open(&target, Manner::default()).unwrap();
    fill(&space.out(), "new");
    assert!(!target.exists());
    space.finish(None).unwrap();
    assert_eq!(fs::read_to_string(target.join("model.safetensors")).unwrap(), "new");
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
    // A second run needs permission, and then replaces the folder as a whole.
    let error = open(&target, Manner::default()).unwrap_err();
    assert!(error.to_string().ends_with("is there already"), "{error}");
    fs::write(target.join("old.txt"), "old").unwrap();
    let space = open(&target, FORCE).unwrap();
    fill(&space.out(), "newer");
    space.finish(None).unwrap();
    assert_eq!(fs::read_to_string(target.join("model.safetensors")).unwrap(), "newer");
    assert!(!target.join("old.txt").exists());
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
}

#[test]
fn one_file_can_be_the_target() {
    let scratch = Scratch::new("single");
    let target = scratch.path().join("model.gguf");
    for text in ["one", "two"] {
        let space = open(&target, FORCE).unwrap();
        fs::write(space.out().join("model.gguf"), text).unwrap();
        space.finish(Some("model.gguf")).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), text);
    }
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
}

#[test]
fn an_interrupted_run_is_resumed_only_if_it_is_the_same() {
    let scratch = Scratch::new("resume");
    let target = scratch.path().join("model");
    let space = open(&target, Manner::default()).unwrap();
    let stats = ErrorStats { weights: 3, power: 0.1, ..ErrorStats::default() };
    space.note(&[(0, Some(stats)), (1, None)]).unwrap();
    let busy = open(&target, RESUME).unwrap_err();
    assert!(busy.to_string().ends_with("is being written by another run"), "{busy}");
    let partial = space.partial.clone();
    drop(space);
    // What a kill leaves of a line that was being written.
    let mut journal = OpenOptions::new().append(true).open(partial.join("journal.jsonl")).unwrap();
    journal.write_all(b"{\"item\":2,\"ta").unwrap();
    let error = open(&target, Manner::default()).unwrap_err();
    assert!(error.to_string().ends_with("is left of an interrupted run"), "{error}");
    let error = Workspace::open(&target, None, &json!({ "plan": "b" }), &[], false, 10, RESUME).unwrap_err();
    assert!(error.to_string().ends_with("was begun with another plan"), "{error}");
    let space = open(&target, RESUME).unwrap();
    assert_eq!(space.done, BTreeMap::from([(0, Some(stats)), (1, None)]));
    space.note(&[(2, None)]).unwrap();
    drop(space);
    assert_eq!(open(&target, RESUME).unwrap().done.len(), 3);
    // Files that are gone, or of another length, make a journal worthless.
    let with =
        |length| Workspace::open(&target, None, &json!({ "plan": "a" }), &[("w", length)], false, 10, RESUME).unwrap();
    fs::write(partial.join("out/w"), "four").unwrap();
    assert_eq!(with(4).done.len(), 3);
    assert!(with(5).done.is_empty());
    assert!(open(&target, FORCE).unwrap().done.is_empty());
}

#[test]
fn what_is_no_checkpoint_is_never_replaced() {
    let scratch = Scratch::new("precious");
    let target = scratch.path().join("home");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("diary.txt"), "dear").unwrap();
    let error = open(&target, FORCE).unwrap_err();
    assert!(error.to_string().ends_with("is there already and is no checkpoint"), "{error}");
    assert!(open(&target.join("diary.txt"), FORCE).is_err());
    assert!(open(Path::new("/"), FORCE).is_err());
    // A folder in which models are collected is not a model.
    for name in ["a.gguf", "b.gguf"] {
        fs::write(target.join(name), "").unwrap();
    }
    assert!(open(&target, FORCE).is_err());
    fs::remove_file(target.join("b.gguf")).unwrap();
    fs::write(target.join("config.json"), "{}").unwrap();
    assert!(open(&target, FORCE).is_err());
    assert_eq!(fs::read_to_string(target.join("diary.txt")).unwrap(), "dear");
}

#[test]
fn what_appears_during_a_run_is_not_replaced() {
    let scratch = Scratch::new("appeared");
    let target = scratch.path().join("model");
    let space = open(&target, Manner::default()).unwrap();
    fill(&space.out(), "new");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("diary.txt"), "dear").unwrap();
    let error = space.finish(None).unwrap_err();
    assert!(error.to_string().ends_with("is there already"), "{error}");
    assert_eq!(fs::read_to_string(target.join("diary.txt")).unwrap(), "dear");
}

#[test]
fn what_others_put_into_the_folder_stays() {
    let scratch = Scratch::new("foreign");
    let target = scratch.path().join("model");
    let partial = scratch.path().join(".model.partial");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("diary.txt"), "dear").unwrap();
    for manner in [Manner::default(), FORCE, RESUME] {
        let error = open(&target, manner).unwrap_err();
        assert!(error.to_string().ends_with("holds files of somebody else's"), "{error}");
    }
    assert_eq!(fs::read_to_string(partial.join("diary.txt")).unwrap(), "dear");
}

#[test]
fn a_target_that_cannot_be_replaced_costs_no_work() {
    let scratch = Scratch::new("kept");
    let target = scratch.path().join("model");
    let space = open(&target, Manner::default()).unwrap();
    fill(&space.out(), "new");
    space.note(&[(0, None)]).unwrap();
    fs::create_dir(&target).unwrap();
    assert!(space.finish(None).is_err());
    fs::remove_dir(&target).unwrap();
    assert_eq!(open(&target, RESUME).unwrap().done.len(), 1);
    // A file is no folder.
    fs::write(scratch.path().join("x.gguf"), "").unwrap();
    let folder = Workspace::open(&scratch.path().join("x.gguf"), None, &json!({}), &[], false, 10, FORCE).unwrap_err();
    assert!(folder.to_string().ends_with("is a file, and a folder is to be written"), "{folder}");
}

#[test]
fn the_loser_of_a_race_takes_nothing_with_it() {
    let scratch = Scratch::new("race");
    let target = scratch.path().join("model");
    let winner = open(&target, Manner::default()).unwrap();
    winner.note(&[(0, None)]).unwrap();
    for manner in [Manner::default(), FORCE, RESUME] {
        let error = open(&target, manner).unwrap_err();
        assert!(error.to_string().ends_with("is being written by another run"), "{error}");
    }
    fill(&winner.out(), "new");
    winner.finish(None).unwrap();
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
}

#[test]
fn a_disk_that_is_too_small_is_known_beforehand() {
    let scratch = Scratch::new("space");
    let target = scratch.path().join("model");
    let error = Workspace::open(&target, None, &json!({}), &[], false, u64::MAX, Manner::default()).unwrap_err();
    assert!(error.to_string().contains("18446744073709551615 are needed"), "{error}");
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    let nowhere = open(&scratch.path().join("no/model"), Manner::default()).unwrap_err();
    assert!(nowhere.to_string().starts_with("cannot write into"), "{nowhere}");
}

/// A disk that is full takes none of the layers that a method has made, which took their time; what is wrong with the input does.
#[test]
fn layers_outlive_a_full_disk() {
    let scratch = Scratch::new("layers");
    let target = scratch.path().join("model");
    let layers = scratch.path().join(".model.partial/layers");
    let full = || Error::Space { path: target.clone(), free: 1, needed: 2 };
    let space = open(&target, Manner::default()).unwrap();
    fs::create_dir(space.layers()).unwrap();
    fs::write(space.layers().join("layer-0000.draft"), "half").unwrap();
    space.fail(full());
    assert!(!layers.exists(), "nothing was finished");
    let space = open(&target, Manner::default()).unwrap();
    fs::create_dir(space.layers()).unwrap();
    fs::write(space.layers().join("layer-0000.safetensors"), "whole").unwrap();
    space.fail(Error::file("write", &target)(std::io::ErrorKind::StorageFull.into()));
    assert!(layers.join("layer-0000.safetensors").exists());
    // Neither are they lost where there is still too little room, and then enough.
    let narrow = Workspace::open(&target, None, &json!({ "plan": "a" }), &[], false, u64::MAX, RESUME).unwrap_err();
    assert_eq!(narrow.kind(), "space");
    assert!(Workspace::check(&target, &json!({ "plan": "a" }), false, RESUME).unwrap().reused > 0);
    let space = open(&target, RESUME).unwrap();
    assert!(space.layers().join("layer-0000.safetensors").exists());
    space.fail(Error::Model { reason: "NaN".to_owned(), hint: None });
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
}

/// Between looking and making there is time for another: whoever comes second is told so, in whatever moment it comes.
#[test]
fn runs_that_start_at_once_are_told_of_each_other() {
    const RUNS: usize = 8;
    let scratch = Scratch::new("at-once");
    for round in 0..40 {
        let target = scratch.path().join(format!("model-{round}"));
        let (start, end) = (std::sync::Barrier::new(RUNS), std::sync::Barrier::new(RUNS));
        let run = || {
            start.wait();
            let opened = open(&target, Manner::default());
            end.wait();
            opened.map(Workspace::abandon).map_err(|error| error.to_string())
        };
        let all: Vec<Result<(), String>> = std::thread::scope(|scope| {
            let runs: Vec<_> = (0..RUNS).map(|_| scope.spawn(run)).collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        assert_eq!(all.iter().filter(|run| run.is_ok()).count(), 1, "{all:?}");
        for refused in all.into_iter().filter_map(Result::err) {
            assert!(refused.ends_with("is being written by another run"), "{refused}");
        }
    }
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
}

/// Asking beforehand refuses what a run would, and leaves everything as it was.
#[test]
fn a_check_refuses_what_a_run_refuses() {
    let scratch = Scratch::new("check");
    let target = scratch.path().join("model");
    let job = json!({ "plan": "a" });
    let check = |manner| Workspace::check(&target, &job, false, manner).map_err(|error| error.to_string());
    let found = check(Manner::default()).unwrap();
    assert!(found.free.is_none_or(|free| free > 0) && found.reused == 0);
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    let space = open(&target, Manner::default()).unwrap();
    space.note(&[(0, None)]).unwrap();
    let admits = |manner: Manner| manner.admits(&target).map_err(|error| error.to_string());
    for busy in [check(RESUME).map(|_| ()), admits(FORCE)] {
        assert!(busy.unwrap_err().ends_with("is being written by another run"));
    }
    drop(space);
    for left in [check(Manner::default()).map(|_| ()), admits(Manner::default())] {
        assert!(left.unwrap_err().ends_with("is left of an interrupted run"));
    }
    assert!(admits(FORCE).is_ok());
    assert!(check(RESUME).is_ok() && check(FORCE).is_ok());
    let other = Workspace::check(&target, &json!({ "plan": "b" }), false, RESUME).unwrap_err();
    assert!(other.to_string().ends_with("was begun with another plan"), "{other}");
    let partial = scratch.path().join(".model.partial");
    fs::write(partial.join("diary.txt"), "dear").unwrap();
    for others in [check(FORCE).map(|_| ()), admits(FORCE)] {
        assert!(others.unwrap_err().ends_with("holds files of somebody else's"));
    }
    fs::remove_file(partial.join("diary.txt")).unwrap();
    fill(&open(&target, FORCE).unwrap().out(), "new");
    fs::rename(partial.join("out"), &target).unwrap();
    assert!(check(Manner::default()).unwrap_err().ends_with("is there already"));
}
