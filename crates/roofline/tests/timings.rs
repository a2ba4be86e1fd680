//! Timings of others through the program: fitted, scored, and refused where they are no timings.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{fs, io::Read, path::PathBuf};

use common::{command, json, roofline, said, temporary};
use flate2::read::GzDecoder;

const GEMM: &str = "device,framework,version,kernel_source,gemm_dtype,m,n,k,latency_us";

/// A file of the repository, unpacked.
fn published(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/results/timings").join(name);
    let mut text = String::new();
    GzDecoder::new(fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    text
}

/// The first line, and those that begin so.
fn slice(text: &str, beginnings: &[&str]) -> String {
    let mut lines = text.lines();
    let header = lines.next().unwrap();
    let own = lines.filter(|line| beginnings.iter().any(|beginning| line.starts_with(beginning)));
    std::iter::once(header).chain(own).fold(String::new(), |all, line| all + line + "\n")
}

/// What ships is what the timings give: one kernel of one device here, all of them by `cargo xtask calibrations --check`.
#[test]
fn a_shipped_kernel_is_what_its_timings_give() {
    let folder = temporary("fit");
    let file = folder.join("prompts.csv");
    fs::write(&file, slice(&published("context_attention.csv.gz"), &["a100_sxm,trtllm,"])).unwrap();
    let rows = folder.join("rows.csv");
    let told = json(&[
        "calibrate",
        "--from",
        file.to_str().unwrap(),
        "--write",
        folder.to_str().unwrap(),
        "--rows",
        rows.to_str().unwrap(),
        "--json",
    ]);
    let read = |path: PathBuf| fs::read_to_string(path).unwrap().parse::<toml::Table>().unwrap();
    let kernels = |table: &toml::Table| table["terms"]["kernels"].as_array().unwrap().clone();
    let made = kernels(&read(folder.join("a100_sxm_80gb.trtllm.toml")));
    let shipped =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../roofline-core/data/calibrations/a100_sxm_80gb.trtllm.toml");
    let shipped = kernels(&read(shipped));
    let same = shipped.iter().find(|kernel| kernel["op"].as_str() == Some("context_attention")).unwrap();
    assert_eq!((made.len(), &made[0]), (1, same));
    // What is told is what is written, and every timing has its line.
    let kernel = &told["calibrations"][0]["kernels"][0];
    assert_eq!(kernel["rows"], 350);
    assert!(kernel["coverage80"].as_f64().unwrap() > 0.7 && kernel["terms"].as_u64().unwrap() <= 12);
    let rows = fs::read_to_string(rows).unwrap();
    assert_eq!(rows.lines().count(), 351);
    assert!(rows.starts_with("device,stack,op,dtype,library,m,n,k,"), "{}", rows.lines().next().unwrap());
}

/// The form that whoever scores a file relies on.
#[test]
fn a_file_is_scored_by_group_and_unknown_devices_are_listed() {
    let folder = temporary("check");
    let file = folder.join("gemm.csv");
    let mut text = slice(&published("gemm.csv.gz"), &["h200_sxm,vllm,", "b200_sxm,trtllm,"]);
    text += "frobnicator_9000,vllm,1,x,bfloat16,16,4096,4096,20\n";
    text += "frobnicator_9000,sglang,1,x,bfloat16,16,4096,4096,20\n";
    text += "h200_sxm,vllm,1,x,int3,16,4096,4096,20\n";
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let told = json(&["calibrate", "--check", file, "--json"]);
    let groups = told["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 7);
    for group in groups.iter().chain([&told["total"]]) {
        for name in ["median", "mean", "p90", "coverage80", "ideal_mean"] {
            let share = group[name].as_f64().unwrap();
            assert!((0.0..1.5).contains(&share), "{name}: {group}");
        }
        assert!(group["mean"].as_f64().unwrap() < group["ideal_mean"].as_f64().unwrap(), "{group}");
    }
    for group in groups {
        assert!(["h200_sxm", "b200_sxm"].contains(&group["device"].as_str().unwrap()));
        assert_eq!((group["op"].as_str(), group["rows"].as_u64()), (Some("gemm"), Some(900)));
        assert!(group["framework"].is_string() && group["dtype"].is_string());
    }
    assert_eq!(told["total"]["rows"], 6300);
    let skipped = told["skipped"].as_array().unwrap();
    let rows = |device: &str| -> Vec<u64> {
        skipped.iter().filter(|one| one["device"] == device).map(|one| one["rows"].as_u64().unwrap()).collect()
    };
    assert_eq!((rows("frobnicator_9000"), rows("h200_sxm")), (vec![2], vec![1]), "{skipped:?}");
    // Without the correction errors are others; with what was timed elsewhere they are larger.
    let mean = |more: &str| json(&["calibrate", "--check", file, more, "--json"])["total"]["mean"].as_f64().unwrap();
    let own = told["total"]["mean"].as_f64().unwrap();
    assert!(mean("--plain") > own);
    let moved = json(&["calibrate", "--check", file, "--transfer", "--json"]);
    assert!(moved["total"]["mean"].as_f64().unwrap() > own);
    let from = |device: &str| {
        let of = moved["groups"].as_array().unwrap().iter().find(|group| group["device"] == device).unwrap();
        (of["from"].as_str().unwrap().to_owned(), of["basis"].as_str().unwrap().to_owned())
    };
    assert_eq!(from("b200_sxm"), ("gb200".to_owned(), "transferred".to_owned()));
    assert_eq!(from("h200_sxm").1, "transferred");
}

/// Whatever a file has in it, the answer is an answer or a sentence.
#[test]
fn files_that_are_no_timings_are_refused_with_a_reason() {
    let folder = temporary("hostile");
    let row = |latency: &str, m: &str| format!("{GEMM}\nh200_sxm,vllm,1,x,bfloat16,{m},4096,4096,{latency}\n");
    let cases = [
        ("nothing", String::new(), "neither timings"),
        ("missing", "device,framework,m,n,latency_us\nh200_sxm,vllm,1,2,3\n".to_owned(), "no column `attn_dtype`"),
        ("half", "device,framework,gemm_dtype,m,n,latency_us\n".to_owned(), "no column `k`"),
        ("nan", row("NaN", "16"), "line 2: `NaN` is out of range"),
        ("negative", row("-3", "16"), "line 2: `-3` is out of range"),
        ("nought", row("0", "16"), "line 2: `0` is out of range"),
        ("huge", row("20", "1e300"), "line 2: `1e300` is out of range"),
        ("infinite", row("inf", "16"), "line 2: `inf` is out of range"),
        ("words", row("fast", "16"), "line 2: `fast` is no number"),
        ("short", format!("{GEMM}\nh200_sxm,vllm\n"), "2 fields"),
        ("binary", "\u{0}\u{1}\u{2},\u{3}\n\u{4}".to_owned(), "neither timings"),
    ];
    for (name, text, reason) in cases {
        let file = folder.join(format!("{name}.csv"));
        fs::write(&file, text).unwrap();
        let output = roofline(&["calibrate", "--check", file.to_str().unwrap(), "--json"]);
        assert_eq!(output.status.code(), Some(2), "{name}: {}", said(&output));
        assert!(said(&output).contains(reason), "{name}: {}", said(&output));
    }
    // A header alone has no rows, and says so; nothing can be fitted to it, or to a dozen rows.
    let empty = folder.join("empty.csv");
    fs::write(&empty, format!("{GEMM}\n")).unwrap();
    let empty = empty.to_str().unwrap();
    assert_eq!(json(&["calibrate", "--check", empty, "--json"])["total"]["rows"], 0);
    let refused = |arguments: &[&str], reason: &str| {
        let output = command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains(reason), "{}", said(&output));
    };
    refused(&["calibrate", "--from", empty], "nothing in these files could be fitted");
    let few = folder.join("few.csv");
    fs::write(&few, (1..12).fold(row("20", "16"), |all, m| all + &format!("h200_sxm,vllm,1,x,fp8,{m},64,64,9\n")))
        .unwrap();
    refused(&["calibrate", "--from", few.to_str().unwrap()], "too few");
    refused(&["calibrate", "--check", folder.to_str().unwrap()], "not a regular file");
}
