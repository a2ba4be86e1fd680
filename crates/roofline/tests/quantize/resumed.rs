//! Runs that are killed or fail, and what they leave.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::made::{Weights, all_of, checkpoint, command, contents, names, roofline, shown, temporary};

/// Killed at random moments: the input is whole, there is no target or a whole one, and resuming ends with the same bytes.
#[test]
fn a_killed_run_is_resumed() {
    const MOMENTS: usize = 24;
    let folder = temporary("killed");
    // 30 MB in 24 layers: long enough to be killed in the middle, and in several waves.
    let source = checkpoint(&folder, 24);
    let before = contents(&source);
    let source = source.to_str().unwrap();
    // A folder, one with scales that fused weights share, one with transposed parts, a single file, one with a mean that
    // is found first, and one whose words hold parts of codes.
    let variants = [
        ("out", ["--plan", "w4a16-asym", "--method", "mse"]),
        ("shared", ["--plan", "nvfp4a16", "--method", "four-over-six"]),
        ("lines", ["--plan", "int4-weight-only", "--as", "torchao"]),
        ("out.gguf", ["--plan", "q4_k_m", "--as", "gguf"]),
        ("mean", ["--plan", "nf4-dq", "--as", "bitsandbytes"]),
        ("words", ["--plan", "int3", "--as", "mlx"]),
    ];
    let (mut interrupted, mut resumed) = (0, 0);
    let mut moments = Weights(99);
    for (name, options) in variants {
        let target = folder.join(name);
        let arguments = [&["quantize", source, "--to", target.to_str().unwrap()][..], &options].concat();
        let start = Instant::now();
        assert!(roofline(&arguments).status.success());
        let whole = start.elapsed();
        let expected = all_of(&target);
        for _ in 0..MOMENTS / variants.len() {
            if target.is_dir() {
                fs::remove_dir_all(&target).unwrap();
            } else {
                fs::remove_file(&target).unwrap();
            }
            let mut child = command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            sleep(whole.mul_f64(f64::from((moments.next() * 20.0).abs().fract())).max(Duration::from_millis(1)));
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(contents(Path::new(source)), before, "the input is whole");
            if target.exists() {
                assert_eq!(all_of(&target), expected, "a target is whole");
                let _ = fs::remove_dir_all(folder.join(format!(".{name}.partial")));
                continue;
            }
            interrupted += 1;
            let partial = folder.join(format!(".{name}.partial"));
            let journal = fs::read_to_string(partial.join("journal.jsonl")).unwrap_or_default();
            resumed += usize::from(!journal.is_empty());
            if partial.join("job.json").exists() && partial.join("journal.jsonl").exists() {
                let refused = roofline(&arguments);
                assert_eq!(refused.status.code(), Some(2), "{}", shown(&refused, &folder));
                assert!(shown(&refused, &folder).contains("continue it with `--resume`"));
            }
            let output = roofline(&[&arguments[..], &["--resume"]].concat());
            assert!(output.status.success(), "{}", shown(&output, &folder));
            assert_eq!(all_of(&target), expected, "the same bytes in the end");
            assert!(!partial.exists());
        }
    }
    assert!(
        interrupted > 5 && resumed > 0,
        "{interrupted} of {MOMENTS} were interrupted, {resumed} had something to resume"
    );
}

/// A write that fails in the middle, here because of a limit on the size of files.
#[cfg(unix)]
#[test]
fn a_failed_write_leaves_nothing_behind() {
    let folder = temporary("full");
    let source = checkpoint(&folder, 1);
    let script = "trap '' XFSZ; ulimit -f 64; exec \"$@\"";
    let program = env!("CARGO_BIN_EXE_roofline");
    let target = folder.join("out");
    let arguments = [source.to_str().unwrap(), "--plan", "w4a16", "--to", target.to_str().unwrap()];
    let output = Command::new("sh").args(["-c", script, "sh", program, "quantize"]).args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", shown(&output, &folder));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("model.safetensors`: File too large"),
        "{}",
        shown(&output, &folder)
    );
    assert_eq!(names(&folder), ["tiny"]);
}
