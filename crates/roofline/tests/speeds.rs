//! Speeds of whole models that people published, through the program: scored, and refused where they are no speeds.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs;

use common::{json, roofline, said, temporary};

const HEADER: &str =
    "source,device,devices,runtime,runtime_family,model,quant,batch,context,phase,generated,tokens_per_s,note";
const SPEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/published/speeds.csv");

#[test]
fn a_file_of_speeds_is_scored() {
    let told = json(&["calibrate", "--check", SPEEDS, "--json"]);
    assert_eq!(told["rows"], 499);
    for name in ["median", "mean", "p90", "coverage80", "ideal_mean"] {
        assert!(told[name].as_f64().is_some_and(|share| share > 0.0), "{name}: {}", told[name]);
    }
    // What the ideal cannot know is what the terms are for.
    assert!(told["mean"].as_f64() < Some(0.2) && told["ideal_mean"].as_f64() > Some(0.5), "{}", told["mean"]);
    let groups = told["groups"].as_array().unwrap();
    let rows: u64 = groups.iter().map(|group| group["rows"].as_u64().unwrap()).sum();
    assert_eq!(rows, 499);
    assert!(told["skipped"].as_array().unwrap().is_empty());
    // Each figure that beats the floor has a sentence.
    for above in told["above_floor"].as_array().unwrap() {
        assert!(above["times"].as_f64() > Some(1.0) && above["because"].as_str().is_some_and(|why| why.len() > 20));
    }
}

#[test]
fn what_nobody_knows_is_counted_and_named_and_what_is_no_file_of_speeds_is_refused() {
    let folder = temporary("speeds");
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let good = "x,rtx_4090,1,llama.cpp-cuda,llama.cpp,llama-3-8b,Q4_K_M,1,512,decode,,127,";
    let others = [
        good.replace("rtx_4090", "abacus"),
        good.replace("llama-3-8b", "eliza"),
        good.replace("Q4_K_M", "secret"),
        good.replace("llama.cpp,", "magic,"),
        good.replace(",127,", ",-3,"),
        good.replace(",127,", ",NaN,"),
    ];
    let some = file("some.csv", &format!("{HEADER}\n{good}\n{}\n", others.join("\n")));
    let told = json(&["calibrate", "--check", &some, "--json"]);
    assert_eq!((told["rows"].as_u64(), told["skipped"].as_array().unwrap().len() >= 5), (Some(1), true), "{told}");
    for (name, text) in [
        ("short.csv", format!("{HEADER}\nx,rtx_4090\n")),
        ("phase.csv", format!("{HEADER}\n{}\n", good.replace("decode", "dream"))),
        ("other.csv", "a,b\n1,2\n".to_owned()),
        ("empty.csv", String::new()),
    ] {
        let output = roofline(&["calibrate", "--check", &file(name, &text)]);
        assert_eq!(output.status.code(), Some(2), "{name}: {}", said(&output));
    }
    let output = roofline(&["calibrate", "--published", &some]);
    assert!(!output.status.success() && said(&output).contains("needs 20"), "{}", said(&output));
}

#[test]
fn the_terms_of_a_runtime_are_told() {
    let told = json(&["calibrate", "--show", "--on", "rtx_4090", "--stack", "llama.cpp", "--json"]);
    assert_eq!(told["stack"], "llama.cpp");
    assert!(told["known"]["figures"].as_u64() > Some(50), "{}", told["known"]);
    assert_eq!(told["rows"].as_array().unwrap().len(), 18);
    let output = roofline(&["predict", "model", "llama-3-8b", "--on", "m2_ultra", "--precision", "q4_k_m"]);
    assert!(said(&output).contains("llama.cpp reaches there"), "{}", said(&output));
}
