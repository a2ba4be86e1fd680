//! Runs in parts, and what joins them.

use std::{
    fs,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::made::{
    TRIES, all_of, checkpoint, command, journaled, killed, names, remove, roofline, said, shown, temporary,
};

/// Three processes at once, one of them killed and gone on with: the bytes and the report of one machine.
#[test]
fn parts_at_once_are_joined() {
    let folder = temporary("parted");
    let source = checkpoint(&folder, 12);
    let source = source.to_str().unwrap();
    for (name, options) in [
        ("out", &["--plan", "w4a16", "--method", "mse", "--max-shard-size", "1MB"][..]),
        ("shared", &["--plan", "nvfp4a16", "--keep", "*.o_proj"][..]),
        ("lines", &["--plan", "int4-weight-only", "--as", "torchao", "--max-shard-size", "2MB"][..]),
        ("out.gguf", &["--plan", "q4_k_m"][..]),
    ] {
        let target = folder.join(name);
        let arguments = [&["quantize", source, "--to", target.to_str().unwrap(), "--json"][..], options].concat();
        let told = |more: &[&str]| -> Value {
            let output = roofline(&[&arguments[..], more].concat());
            assert!(output.status.success(), "{more:?}: {}", said(&output));
            serde_json::from_slice(&output.stdout).unwrap()
        };
        let report = told(&[]);
        let expected = all_of(&target);
        remove(&target);
        let of = |part: &str| -> Command { command(&[&arguments[..], &["--part", part, "--threads", "1"]].concat()) };
        let others = ["1/3", "3/3"].map(|part| of(part).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        let part = folder.join(format!(".{name}.part-2-of-3"));
        let caught = |_| {
            remove(&part);
            killed(&mut of("2/3"), || journaled(&part) > Some(0))
        };
        assert!((0..TRIES).any(caught), "{name}: always done before it was killed");
        for child in others {
            let done = child.wait_with_output().unwrap();
            assert!(done.status.success(), "{name}: {}", said(&done));
        }
        let second = told(&["--part", "2/3", "--resume"]);
        assert_eq!((&second["part"], &second["model"]), (&json!("2/3"), &json!("tiny")));
        assert_eq!(told(&["--join", "--verify"])["weights"], report["weights"], "{name}");
        assert_eq!(all_of(&target), expected, "{name}");
        remove(&target);
    }
    assert_eq!(names(&folder), ["tiny"]);
}

/// What a user sees: a part, a join that has to wait, and values that are none.
#[test]
fn what_parts_say() {
    let folder = temporary("parted-words");
    let source = checkpoint(&folder, 1);
    let target = folder.join("out");
    let arguments = ["quantize", source.to_str().unwrap(), "--plan", "w4a16", "--to", target.to_str().unwrap()];
    let run = |more: &[&str]| shown(&roofline(&[&arguments[..], more].concat()), &folder);
    insta::assert_snapshot!("part", run(&["--part", "1/2"]));
    insta::assert_snapshot!("join_too_early", run(&["--join"]));
    insta::assert_snapshot!("part_again", run(&["--part", "1/2"]));
    insta::assert_snapshot!("part_that_is_none", run(&["--part", "3/2"]));
    insta::assert_snapshot!("part_and_join", run(&["--part", "1/2", "--join"]));
    assert_eq!(names(&folder), [".out.part-1-of-2", "tiny"]);
}

/// The scripts for Slurm, with a queue that runs what it is given at once.
#[cfg(unix)]
#[test]
fn the_scripts_for_slurm() {
    use std::{os::unix::fs::PermissionsExt, path::PathBuf, process::Command};

    const QUEUE: &str = r#"#!/bin/bash
set -euo pipefail
echo "$*" >> "$QUEUE_LOG"
array=""
while [ "$#" -gt 0 ] && [[ "$1" == --* ]]; do
    case "$1" in --array=1-*) array="${1#--array=1-}" ;; esac
    shift
done
if [ -n "$array" ]; then
    for ((task = 1; task <= array; task++)); do
        SLURM_ARRAY_TASK_ID=$task SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_COUNT=$array bash "$@" >&2 &
        tasks+=($!)
    done
    for task in "${tasks[@]}"; do wait "$task"; done
else
    bash "$@" >&2
fi
echo "42;cluster"
"#;
    let scripts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/slurm");
    let mut checked = 0;
    for script in fs::read_dir(&scripts).unwrap().map(|entry| entry.unwrap().path()) {
        assert!(Command::new("bash").arg("-n").arg(&script).status().unwrap().success(), "{}", script.display());
        checked += 1;
    }
    assert_eq!(checked, 3);
    let folder = temporary("slurm");
    let source = checkpoint(&folder, 2);
    let (expected, target, log) = (folder.join("expected"), folder.join("out"), folder.join("log"));
    let source = source.to_str().unwrap();
    let one = ["quantize", source, "--plan", "w4a16", "--method", "mse", "--to", expected.to_str().unwrap()];
    assert!(roofline(&one).status.success());
    let bin = folder.join("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("sbatch"), QUEUE).unwrap();
    fs::set_permissions(bin.join("sbatch"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let submit = |arguments: &[&str]| {
        let mut submit = Command::new("bash");
        submit.arg(scripts.join("submit.sh")).args(arguments).env("PATH", &path).env("QUEUE_LOG", &log);
        submit.env("ROOFLINE", env!("CARGO_BIN_EXE_roofline")).env("ROOFLINE_CONFIG_DIR", "/nonexistent");
        submit.output().unwrap()
    };
    let output = submit(&["3", source, "w4a16", target.to_str().unwrap(), "--method", "mse"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "parts in job 42, joined by job 42\n");
    let queued = fs::read_to_string(&log).unwrap();
    assert!(queued.contains("--array=1-3") && queued.contains("--dependency=afterok:42 "), "{queued}");
    assert_eq!(all_of(&target)["model.safetensors"], all_of(&expected)["model.safetensors"]);
    assert_eq!(names(&folder), ["bin", "expected", "log", "out", "tiny"]);
    // A part that fails: nothing is joined.
    assert!(!submit(&["2", source, "w4a17", folder.join("none").to_str().unwrap()]).status.success());
    assert_eq!(fs::read_to_string(&log).unwrap().lines().count(), 3);
    assert_eq!(submit(&["2", source]).status.code(), Some(2));
}
