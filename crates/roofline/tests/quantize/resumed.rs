//! Runs that are killed or fail, and what they leave.

use std::{path::Path, process::Command};

use crate::made::{
    all_of, checkpoint, contents, journaled, killed_before, names, partial, remove, roofline, shown, temporary,
};

/// Killed at once, when it has begun, and after so many tensors: the input is whole, there is no target, and resuming ends with
/// the same bytes.
#[test]
fn a_killed_run_is_resumed() {
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
    for (name, options) in variants {
        let target = folder.join(name);
        let arguments = [&["quantize", source, "--to", target.to_str().unwrap()][..], &options].concat();
        assert!(roofline(&arguments).status.success());
        let (expected, partial) = (all_of(&target), partial(&target));
        for moment in [None, Some(0), Some(1), Some(100)] {
            killed_before(&target, &arguments, || journaled(&partial) >= moment);
            assert_eq!(contents(Path::new(source)), before, "the input is whole");
            let begun = journaled(&partial);
            assert!(begun >= moment, "{name}: {begun:?} of {moment:?} tensors");
            if begun.is_some() {
                let refused = roofline(&arguments);
                assert_eq!(refused.status.code(), Some(2), "{}", shown(&refused, &folder));
                assert!(shown(&refused, &folder).contains("continue it with `--resume`"));
            }
            let output = roofline(&[&arguments[..], &["--resume"]].concat());
            assert!(output.status.success(), "{}", shown(&output, &folder));
            assert_eq!(all_of(&target), expected, "the same bytes in the end");
            assert!(!partial.exists());
        }
        remove(&target);
    }
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
