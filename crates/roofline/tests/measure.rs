//! Measuring, comparing and calibrating as a user meets them, on the null backend with its exact fake times; and a short
//! run on the real processor.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use common::{TRIES, answer, killed, shown};

/// A configuration folder of a test's own.
struct Home(PathBuf);

impl Home {
    fn new(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roofline"));
        command.args(arguments.split_whitespace()).env("ROOFLINE_CONFIG_DIR", &self.0).env_remove("ROOFLINE_ISA");
        command.env_remove("COLUMNS").env_remove("CLICOLOR_FORCE").current_dir(&self.0);
        command
    }

    fn run(&self, arguments: &str) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// What was said, without where and when.
    fn shown(&self, arguments: &str) -> String {
        undated(&shown(&self.run(arguments)).replace(self.0.to_str().unwrap(), "HOME"))
    }

    fn json(&self, arguments: &str) -> serde_json::Value {
        answer(&self.run(arguments))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// Dates become `DATE`: `2026-01-02T03:04:05Z`, also as file names write them.
fn undated(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("20") {
        let (before, from) = rest.split_at(at);
        out += before;
        let date = from.get(..20).filter(|date| {
            let shape: String = date.chars().map(|letter| if letter.is_ascii_digit() { '9' } else { letter }).collect();
            shape == "9999-99-99T99:99:99Z" || shape == "9999-99-99T99-99-99Z"
        });
        let (kept, length) = date.map_or(("20", 2), |_| ("DATE", 20));
        out += kept;
        rest = &from[length..];
    }
    out + rest
}

macro_rules! snapshots {
    ($($name:ident: $arguments:expr;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(stringify!($name), Home::new(stringify!($name)).shown($arguments));
        })*
    };
}

snapshots! {
    export_nothing: "export absent.jsonl";
    measure_gemv: "measure gemv --n 4096 --k 4096 --backend null --on h200";
    measure_nothing: "measure --backend null";
    measure_nowhere: "measure gemv --n 4096 --k 4096 --backend null";
    measure_elsewhere: "measure gemv --n 4096 --k 4096 --on h200";
    measure_rates: "measure gemv --n 4096 --k 4096 --backend null --on h200 --bandwidth 1TB/s";
    measure_saturated: "measure --saturate --quick --backend null --on h200";
    measure_saturated_subject: "measure --saturate gemv --n 4096 --k 4096 --backend null --on h200";
    measure_on_before: "measure --on h200 gemv --n 4096 --k 4096 --backend null";
    compare_gemv: "compare gemv --n 4096 --k 4096 --backend null --on h200 --precision bf16,w4a16";
    compare_gemv_all: "compare gemv --n 4096 --k 4096 --backend null --on h200 --precision bf16,w4a16 --all";
    compare_gemv_md: "compare gemv --n 4096 --k 4096 --backend null --on h200 --precision bf16,w4a16 --md";
    compare_gemv_csv: "compare gemv --n 4096 --k 4096 --backend null --on h200 --precision bf16,w4a16 --csv";
    compare_model: "compare model llama-3.2-1b --backend null --on h200 --precision bf16,w4a16 --context 4096";
    compare_sizes: "compare sizes --backend null --on h200 --precision bf16 --n 1024..8192";
    sweep_simulated: "sweep --on h200 --quick";
    sweep_measured: "sweep --measure --backend null --on h200 --quick --precision bf16,fp8,w4a16";
    sweep_without_power: "sweep --measure --backend null --on h200 --quick --energy";
    calibrate_show_nothing: "calibrate --show --on a100";
    calibrate_show_shipped: "calibrate --show --on h200";
    calibrate_validate_nothing: "calibrate --validate 20 --backend null --on h200";
    calibrate_validate_count: "calibrate --validate 0 --backend null --on h200";
    calibrate_seed_alone: "calibrate --seed 4 --backend null --on h200";
}

/// The best of each precision that was asked for; what is stored narrow and multiplied wide only streams.
#[test]
fn saturation_takes_precisions() {
    let home = Home::new("saturation");
    let said = home.json("measure --saturate --backend null --on h200 --precision bf16,w4a16 --json");
    let saturation = &said["saturation"];
    let products = saturation["per_precision"].as_array().unwrap();
    assert_eq!((products.len(), &products[0]["precision"]), (1, &"bf16".into()));
    // The null kernels run at 1 / 1.1 of the roof, less their start.
    let share = products[0]["share"].as_f64().unwrap();
    assert!((0.88..0.92).contains(&share), "{saturation}");
    let rows = said["measurements"].as_array().unwrap();
    let streams = rows.iter().filter(|row| row["site"] == "gemv" && row["precision"] == "w4a16");
    assert_eq!((rows.len(), streams.count()), (6 + 2 * 4, 4));
}

/// What was measured becomes a device: bandwidth and the units that products ran on, the rest as the registry has it.
#[test]
fn saturation_becomes_a_device() {
    let home = Home::new("written");
    let measure = "measure --saturate --quick --backend null --on h200 --precision bf16,fp8 --write-device mine.toml";
    let said = home.json(&format!("{measure} --json"));
    assert_eq!(said["written_device"], "mine.toml");
    let device = &home.json("devices mine.toml --json")["devices"][0];
    let near = |value: &serde_json::Value, expected: &serde_json::Value, unit: f64| {
        let (value, expected) = (value.as_f64().unwrap(), expected.as_f64().unwrap() * unit);
        assert!((value / expected - 1.0).abs() < 1e-3, "{value} is not {expected}");
    };
    let saturation = &said["saturation"];
    near(&device["memory"]["bandwidth"], &saturation["stream"]["bandwidth_gb_s"], 1e9);
    for (at, unit) in ["bf16", "fp8"].iter().enumerate() {
        near(&device["peaks"][unit], &saturation["per_precision"][at]["tflops"], 1e12);
    }
    // The null kernels stay below the roof, so none of these is the registry's.
    let known = &home.json("devices h200 --json")["devices"][0];
    assert!(device["peaks"]["bf16"].as_f64() < known["peaks"]["bf16"].as_f64());
    assert_eq!((&device["peaks"]["int8"], &device["units"]), (&known["peaks"]["int8"], &known["units"]));
    let source = device["source"].as_str().unwrap();
    for part in ["null backend", "Measured: bandwidth, bf16, fp8.", "Not measured: ", "int8", "h200_sxm"] {
        assert!(source.contains(part), "{source}");
    }
    assert!(device["aliases"].as_array().unwrap().is_empty() && device["measured"].is_null());
    let answer = home.json("predict gemv --n 4096 --k 4096 --on mine.toml --precision bf16 --json");
    assert_eq!(answer["estimates"][0]["device"], "mine", "{answer}");

    // Nothing is replaced unasked, and nothing is measured for a file that could not be used.
    let text = fs::read_to_string(home.path("mine.toml")).unwrap();
    let refused = |arguments: &str, reason: &str| {
        let output = home.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(reason), "{said}");
    };
    refused(measure, "mine.toml is there already");
    refused(&measure.replace("mine.toml", "mine.txt"), "does not end in .toml");
    refused(&format!("{measure} --warm --force"), "cold operands");
    refused(&measure.replace("--saturate ", ""), "--saturate");
    assert_eq!(fs::read_to_string(home.path("mine.toml")).unwrap(), text);
    assert!(home.run(&format!("{measure} --force")).status.success());
    // A run that is on disk is enough: nothing is measured again.
    let kept = measure.replace("mine.toml", "again.toml --out run.jsonl");
    home.json(&format!("{kept} --json"));
    let resumed = home.run(&kept.replace("again.toml", "third.toml --resume"));
    assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
    let peaks = |name: &str| home.json(&format!("devices {name} --json"))["devices"][0]["peaks"].clone();
    assert_eq!(peaks("again.toml"), peaks("third.toml"));
}

/// The newcomer's command, on the null backend: everything is there, and the report is one file.
#[test]
fn a_tour_writes_a_run_and_a_report() {
    let home = Home::new("tour");
    let tour = home.json("compare --backend null --on h200 --tier ideal --json");
    assert_eq!((tour["tier"].as_str(), tour["backend"].as_str()), (Some("ideal"), Some("null")));
    let rows = tour["comparisons"].as_array().unwrap();
    assert!(rows.len() > 15, "{}", rows.len());
    for row in rows {
        let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
        let (predicted, measured) = (number("predicted_time_us"), number("measured_time_us"));
        assert!((number("error_pct") - (measured - predicted).abs() / predicted * 100.0).abs() < 1e-9);
        assert!((number("error_vs_measured_pct") - (measured - predicted).abs() / measured * 100.0).abs() < 1e-9);
        // The null kernels take 2 us and 1.1 times the ideal, within one percent.
        assert!((measured / (2.0 + 1.1 * number("ideal_time_us")) - 1.0).abs() < 0.011, "{row}");
    }
    let page = fs::read_to_string(tour["report"].as_str().unwrap()).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg") && page.contains("</html>"));
    // What matters comes first and open, the rest folded.
    let words = [
        "theory against measurement",
        "class=\"word\">",
        "Insight:",
        "Under the roofs of",
        "Time of each kernel",
        "speed-up over bf16",
        "<details><summary>Every kernel",
        "<details><summary>Every speed-up",
        "<details><summary>Environment",
    ];
    let places = words.map(|word| page.find(word).unwrap_or_else(|| panic!("{word}")));
    assert!(places.is_sorted(), "{places:?}");
    // Nothing is asked of the network: the only addresses are names of XML.
    assert!(page.matches("http").count() == page.matches("http://www.w3.org/").count());
    // The same comparison again from the run, on a machine that never saw the device.
    let run = tour["run"].as_str().unwrap();
    let again = Home::new("tour-elsewhere").json(&format!("compare --from {run} --json"));
    assert_eq!(again["comparisons"].as_array().unwrap().len(), rows.len());
    assert_eq!(again["summary"]["verdict"], tour["summary"]["verdict"]);
}

/// A run of products whose four-bit weights cost 83 ps each: a fiftieth of what memory allows for one row.
fn with_slow_weights(run: &str) -> String {
    let line = |line: &str| {
        let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
        let slow = line.get_mut("measured").filter(|measured| {
            let weights = measured["formats"]["weights"].as_str().unwrap();
            weights.starts_with("int4") && measured["op"]["linear"].is_object()
        });
        if let Some(measured) = slow {
            let side = |name: &str| measured["op"]["linear"][name].as_f64().unwrap();
            let more = side("n") * side("k") * 83e-6;
            for sample in measured["samples_us"].as_array_mut().unwrap() {
                *sample = (sample.as_f64().unwrap() + more).into();
            }
        }
        line.to_string() + "\n"
    };
    run.lines().map(line).collect()
}

/// Kernels at a fiftieth of the roof that a calibration knows are well predicted, and that is no praise.
#[test]
fn a_well_predicted_run_of_slow_kernels_is_not_excellent() {
    let home = Home::new("slow");
    let slow = |name: &str| {
        let text = fs::read_to_string(home.path(name)).unwrap();
        fs::write(home.path(name), with_slow_weights(&text)).unwrap();
    };
    assert!(home.run("calibrate --quick --backend null --on xeon_8480p --out grid.jsonl").status.success());
    assert!(home.run("compare --backend null --on xeon_8480p --out tour.jsonl").status.success());
    let fast = home.json("compare --from tour.jsonl --json");
    assert_eq!((&fast["summary"]["verdict"], &fast["slow_kernels"]), (&"excellent".into(), &serde_json::json!([])));
    ["grid.jsonl", "tour.jsonl"].into_iter().for_each(slow);
    assert!(home.run("calibrate --from grid.jsonl").status.success());
    let said = home.json("compare --from tour.jsonl --json");
    let summary = &said["summary"];
    assert!(summary["mean_error_pct"].as_f64().unwrap() < 5.0, "the calibration knows them: {summary}");
    assert_eq!((&summary["verdict"], &summary["prediction"]), (&"mixed".into(), &"excellent".into()));
    let verdict = said["verdict"].as_str().unwrap();
    assert!(verdict.starts_with("MIXED: the prediction was off by "), "{verdict}");
    assert!(verdict.contains("4 kernels are slow: gemv 1 x 4096 x 4096 w4a16 reaches 2 % of its roof, "), "{verdict}");
    let kernels = said["slow_kernels"].as_array().unwrap();
    assert!(kernels.iter().all(|kernel| kernel["precision"] == "w4a16"), "{kernels:?}");
    assert!(kernels.iter().any(|kernel| kernel["of_roof_pct"].as_f64().unwrap() < 3.0), "{kernels:?}");
    let insight = said["insight"].as_str().unwrap();
    assert!(
        insight.contains("Narrower, yet slower: w4a16 ran at 0.09 to 0.19 times the speed of bf16 in "),
        "{insight}"
    );
    assert_eq!(said["losses"].as_array().unwrap().len(), 4);
    let shown = home.shown("compare --from tour.jsonl");
    insta::assert_snapshot!("compare_slow", shown);
    assert!(!shown.contains("EXCELLENT") && !shown.contains("GOOD"));
    let unfolded = home.shown("compare --from tour.jsonl --all");
    assert!(unfolded.contains("slow kernel (4 kernels): "), "{unfolded}");
}

/// Where the calibration is bad, nothing is said about theory, but what to do.
#[test]
fn a_bad_calibration_carries_no_verdict() {
    let home = Home::new("doubtful");
    assert!(home.run("calibrate --quick --backend null --on xeon_8480p").status.success());
    let path = home.path("calibrations").join("xeon_8480p.null.json");
    let mut kept: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let mut said = |mean: f64| {
        kept["quality"]["mean"] = mean.into();
        fs::write(&path, kept.to_string()).unwrap();
        home.json("compare --quick --backend null --on xeon_8480p --json")
    };
    let fine = said(0.2);
    assert_eq!((&fine["summary"]["verdict"], &fine["calibration"]["doubtful"]), (&"excellent".into(), &false.into()));
    let bad = said(0.342);
    assert_eq!((&bad["summary"]["verdict"], &bad["calibration"]["doubtful"]), (&"undecided".into(), &true.into()));
    let verdict = bad["verdict"].as_str().unwrap();
    assert!(
        verdict.starts_with("UNDECIDED: the calibration itself is off by 34.2 % on shapes it never saw"),
        "{verdict}"
    );
    assert!(verdict.contains("Close other programs, run `roofline calibrate`"), "{verdict}");
}

/// Calibrating the null machine finds its two numbers, and predictions use them.
#[test]
fn a_calibration_is_kept_and_used() {
    let home = Home::new("calibrated");
    let made = home.json("calibrate --quick --backend null --on xeon_8480p --json");
    let quality = &made["quality"];
    assert!(quality["mean"].as_f64().unwrap() < 0.03, "{quality}");
    assert!(quality["ideal_mean"].as_f64().unwrap() > 0.08, "{quality}");
    assert!((made["terms"]["launch_s"].as_f64().unwrap() * 1e6 - 2.0).abs() < 0.2, "{}", made["terms"]);
    assert!((made["terms"]["read_bytes_per_s"].as_f64().unwrap() / (307.2e9 / 1.1) - 1.0).abs() < 0.05);
    // The null machine reaches every peak but for a tenth.
    for rate in made["terms"]["rates"].as_array().unwrap() {
        let peak = if rate["math"] == "fp32" { 1.0 } else { 2.0 };
        assert!(rate["flop_per_s"].as_f64().unwrap() > peak * 5e12, "{rate}");
    }

    let predicted =
        home.json("predict gemv --n 4096 --k 4096 --on xeon_8480p --precision fp32,bf16 --stack null --json");
    for row in predicted["estimates"].as_array().unwrap() {
        let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
        assert_eq!((row["tier"].as_str(), row["stack"].as_str()), (Some("expected"), Some("null")));
        let exact = 2.0 + 1.1 * number("ideal_time_us");
        assert!((number("predicted_time_us") / exact - 1.0).abs() < 0.03, "{row}");
        assert!(number("lo_us") <= number("predicted_time_us") && number("predicted_time_us") <= number("hi_us"));
    }
    // Fake times are nobody's expectation unless they are asked for.
    let ours = home.json("predict gemv --n 4096 --k 4096 --on xeon_8480p --precision fp32 --json");
    let (stack, basis) = (&ours["estimates"][0]["stack"], &ours["estimates"][0]["basis"]);
    assert_eq!((stack, basis), (&"roofline".into(), &"prior".into()));
    let ideal =
        home.json("predict gemv --n 4096 --k 4096 --on xeon_8480p --precision fp32 --stack null --tier ideal --json");
    assert_eq!(ideal["estimates"][0]["tier"], "ideal");
    // What no term covers is told by its neighbour, and that is said.
    let uncovered =
        home.json("predict gemv --n 4096 --k 4096 --on xeon_8480p --precision int4-g32-zp/bf16 --stack null --json");
    assert_eq!(uncovered["estimates"][0]["basis"], "transferred");
    // The verdict is on the expected tier, and it is good.
    let compared = home.json("compare --backend null --on xeon_8480p --quick --json");
    assert_eq!((&compared["tier"], &compared["summary"]["verdict"]), (&"expected".into(), &"excellent".into()));
    let model =
        home.json("predict model llama-3.2-1b --on xeon_8480p --precision bf16 --phase decode --stack null --json");
    assert_eq!(model["estimates"][0]["tier"], "expected");

    let shown = home.json("calibrate --show --backend null --on xeon_8480p --json");
    assert_eq!(shown["quality"], made["quality"]);
    assert!(home.run("calibrate --forget --backend null --on xeon_8480p").status.success());
    assert_eq!(home.run("calibrate --show --backend null --on xeon_8480p").status.code(), Some(2));
    // Fitting again to the run on disk gives the same terms.
    let run = fs::read_dir(home.path("runs")).unwrap().map(|entry| entry.unwrap().path());
    let mut run = run.filter(|path| path.to_str().unwrap().ends_with("-calibrate.jsonl"));
    let run = run.next().unwrap();
    let again = home.json(&format!("calibrate --from {} --json", run.display()));
    for name in ["launch_s", "read_bytes_per_s", "write_bytes_per_s"] {
        let value = |made: &serde_json::Value| made["terms"][name].as_f64().unwrap();
        assert!((value(&again) / value(&made) - 1.0).abs() < 0.01, "{name}: samples are kept to the nanosecond");
    }
}

/// A GPU has a grid and a form of its own, and random shapes prove them. The null machine has neither waves nor tiles that rows
/// fill up, nor sums that blocks share, so a form with those is off: little in the median, more for packed products and for sorted experts.
#[test]
fn a_gpu_is_calibrated_and_the_calibration_is_proved() {
    let home = Home::new("proved");
    let made = home.json("calibrate --backend null --on h200 --json");
    let quality = &made["quality"];
    assert!(quality["mean"].as_f64().unwrap() < 0.12 && quality["median"].as_f64().unwrap() < 0.03, "{quality}");
    assert!(quality["families"].as_array().unwrap().len() >= 6, "{quality}");
    assert_eq!(made["terms"]["units"], 132);
    let measured = quality["fitted"].as_u64().unwrap() + quality["held_out"].as_u64().unwrap();
    assert!((690..750).contains(&measured), "{measured} measurements of a tenth to a fifth of a second each");

    let proof = "calibrate --validate 120 --seed 3 --backend null --on h200 --json";
    let proved = home.json(proof);
    let rows = proved["rows"].as_array().unwrap();
    let counts = rows.iter().map(|row| {
        let text = |name: &str| row[name].as_str().unwrap();
        format!("{:18} {:10} {}\n", text("kernels"), text("precision"), row["count"])
    });
    insta::assert_snapshot!("validate_counts", counts.collect::<String>());
    let all = rows.last().unwrap();
    let number = |name: &str| all[name].as_f64().unwrap();
    assert_eq!(all["count"], 120);
    assert!(number("expected_mean_pct") < 10.0 && number("ideal_mean_pct") > 10.0, "{all}");
    assert!(number("expected_median_pct") < 3.0, "{all}");
    assert_eq!(home.json(proof)["rows"], proved["rows"], "the same seed draws the same shapes");
    // Nothing of the proof was in the grid.
    let runs = |verb: &str| -> Vec<String> {
        let files = fs::read_dir(home.path("runs")).unwrap().map(|entry| entry.unwrap().path());
        let file = files.filter(|path| path.to_str().unwrap().ends_with(&format!("-{verb}.jsonl"))).min().unwrap();
        let text = fs::read_to_string(file).unwrap();
        let lines = text
            .lines()
            .filter(|line| line.starts_with("{\"measured\""))
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.map(|line| format!("{} {}", find(&line, "op"), find(&line, "formats"))).collect()
    };
    let grid = runs("calibrate");
    assert!(runs("validate").iter().all(|kernel| !grid.contains(kernel)));
    let text = home.run("calibrate --validate 20 --backend null --on h200");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("random shapes of seed 1") && text.contains("worst"), "{text}");
}

/// The first value called `name`, at any depth.
fn find(value: &serde_json::Value, name: &str) -> String {
    let found = match value {
        serde_json::Value::Object(fields) => fields
            .get(name)
            .map(ToString::to_string)
            .or_else(|| fields.values().map(|field| find(field, name)).find(|text| !text.is_empty())),
        _ => None,
    };
    found.unwrap_or_default()
}

#[test]
fn a_run_goes_on_where_it_stopped() {
    let home = Home::new("resumed");
    let sweep = "sweep --measure --backend null --on h200 --precision bf16,w4a16 --out sweep.jsonl --json";
    let whole = home.json(sweep);
    let path = home.path("sweep.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2 + 20);
    // As a crash would leave it: seven measurements, and the start of the next.
    fs::write(&path, lines[..9].join("\n") + "\n" + &lines[9][..40]).unwrap();
    assert_eq!(home.run(sweep).status.code(), Some(2), "an existing run is not overwritten");
    let output = home.run(&format!("{sweep} --resume"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("resuming with 7 finished measurements"));
    let resumed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(resumed["points"].as_array().unwrap().len(), whole["points"].as_array().unwrap().len());
    let after = fs::read_to_string(&path).unwrap();
    assert_eq!(after.lines().count(), 2 + 20);
    assert!(after.starts_with(&(lines[..9].join("\n") + "\n")), "what was finished is untouched");
    // Another device has no place in the same run.
    let other = home.run("sweep --measure --backend null --on a100 --precision bf16 --out sweep.jsonl --resume");
    assert!(String::from_utf8_lossy(&other.stderr).contains("start a new run"), "{other:?}");
    // Another build or machine may go on, but not without a word.
    let mut header: serde_json::Value = serde_json::from_str(lines[0]).unwrap();
    header["header"]["environment"]["commit"] = "0123abc".into();
    header["header"]["environment"]["machine"]["name"] = "Abacus".into();
    fs::write(&path, format!("{header}\n{}\n", lines[1])).unwrap();
    let output = home.run(&format!("{sweep} --resume"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let commit = find(&serde_json::from_str(lines[0]).unwrap(), "commit").replace('"', "");
    assert!(output.status.success());
    assert!(said.contains(&format!("warning: the run was started with commit 0123abc, this is {commit}")), "{said}");
    assert!(said.contains("warning: the run was started with processor Abacus of "), "{said}");
    assert_eq!(said.matches("warning").count(), 2, "{said}");
    let missing = home.run("sweep --measure --backend null --on h200 --out nowhere.jsonl --resume");
    assert_eq!(missing.status.code(), Some(1));
}

/// What was typed wrong leaves nothing in the way of what is typed next.
#[test]
fn a_run_starts_when_its_subjects_are_known() {
    let home = Home::new("typo");
    for (verb, subject) in
        [("measure", "gemv --n 64 --k 64"), ("compare", "gemv --n 64 --k 64"), ("sweep", "--measure")]
    {
        let typed = |precision: &str| {
            format!("{verb} {subject} --backend null --on h200 --precision {precision} --out {verb}.jsonl")
        };
        assert_eq!(home.run(&typed("fp9")).status.code(), Some(2), "{verb}");
        assert!(!home.path(&format!("{verb}.jsonl")).exists(), "{verb}");
        assert!(home.run(&typed("fp8")).status.success(), "{verb}");
    }
}

/// `kill -9` in the middle of a sweep on the real processor: what was finished is on disk.
#[test]
fn runs_that_start_together_do_not_meet() {
    const RUNS: usize = 8;
    let home = Home::new("together");
    let start = || {
        let mut command = home.command("measure gemv --n 4096 --k 4096 --backend null --on h200 --json");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<_> = (0..RUNS).map(|_| start()).collect();
    let mut runs = std::collections::BTreeSet::new();
    for child in started {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        runs.insert(answer["run"].as_str().unwrap().to_owned());
    }
    assert_eq!(runs.len(), RUNS, "{runs:?}");
    assert!(runs.iter().all(|run| Path::new(run).is_file()), "each says where its own run is: {runs:?}");
}

#[test]
fn a_killed_run_keeps_what_it_finished() {
    let home = Home::new("killed");
    let arguments = "sweep --measure --shapes 1x512x1024,1x1024x1024,2x512x1024,4x512x1024,1x768x1024,1x640x1024 \
                     --precision fp32 --seconds 0.3 --out killed.jsonl";
    let path = home.path("killed.jsonl");
    let finished = |path: &Path| fs::read_to_string(path).map_or(0, |text| text.matches("\n{\"measured\"").count());
    let caught = |_| {
        let _ = fs::remove_file(&path);
        killed(&mut home.command(arguments), || finished(&path) >= 2)
    };
    assert!((0..TRIES).any(caught), "always done before it was killed");
    let kept = finished(&path);
    assert!((2..6).contains(&kept), "{kept} measurements before the end");
    let resumed = home.json(&format!("{arguments} --resume --json"));
    assert_eq!(resumed["points"].as_array().unwrap().len(), 6);
    assert_eq!(finished(&path), 6);
}

#[cfg(unix)]
#[test]
fn a_place_that_cannot_be_written_fails_before_measuring() {
    let home = Home::new("unwritable");
    for place in ["/proc/run.jsonl", "/dev/full/run.jsonl"] {
        for verb in ["sweep --measure", "compare", "compare model llama-3.2-1b", "calibrate"] {
            let output = home.run(&format!("{verb} --out {place}"));
            assert_eq!(output.status.code(), Some(1), "{verb}: {output:?}");
            assert!(output.stdout.is_empty());
        }
    }
    for (verb, code) in [("compare --resume --out absent.jsonl", 1), ("compare --report /proc/report.html", 1)] {
        assert_eq!(home.run(verb).status.code(), Some(code), "{verb}");
    }
    // Where the result is to be kept is looked at before it is measured.
    for verb in ["calibrate --backend null --on xeon_8480p", "devices this --measure", "compare"] {
        let output = home.command(verb).env("ROOFLINE_CONFIG_DIR", "/proc/nowhere").output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{verb}: {output:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("note: measuring"), "{verb}: {output:?}");
    }
    assert!(!home.path("machines").exists(), "nothing was measured");
}

/// Both passes run where none is named, the short one first, and every result says which it belongs to.
#[test]
fn a_model_has_two_passes() {
    let home = Home::new("two_passes");
    let phases = |rows: &serde_json::Value| -> Vec<String> {
        let mut all: Vec<String> =
            rows.as_array().unwrap().iter().map(|row| row["phase"].as_str().unwrap().to_owned()).collect();
        all.dedup();
        all
    };
    let model = "model llama-3.2-1b --backend null --on h200 --precision bf16,w4a16 --context 512";
    let measured = home.json(&format!("measure {model} --out run.jsonl --json"));
    assert_eq!(phases(&measured["measurements"]), ["decode", "prefill"]);
    assert!(measured["subject"].as_str().unwrap().contains("decode and prefill"), "{measured}");
    let compared = home.json("compare --from run.jsonl --tier ideal --json");
    assert_eq!(phases(&compared["comparisons"]), ["decode", "prefill"]);
    let passes = compared["passes"].as_array().unwrap();
    let told: Vec<(&str, &str)> =
        passes.iter().map(|pass| (pass["phase"].as_str().unwrap(), pass["precision"].as_str().unwrap())).collect();
    let all = [("decode", "bf16"), ("decode", "w4a16"), ("prefill", "bf16"), ("prefill", "w4a16")];
    assert_eq!(told, all);
    // The same kernels as when each is asked for alone.
    for phase in ["decode", "prefill"] {
        let alone = home.json(&format!("compare {model} --phase {phase} --json"));
        assert_eq!(phases(&alone["comparisons"]), [phase]);
        let both = passes.iter().filter(|pass| pass["phase"] == phase);
        for (alone, both) in alone["passes"].as_array().unwrap().iter().zip(both) {
            for field in ["precision", "kernels", "missing", "ideal_time_us"] {
                assert_eq!(alone[field], both[field], "{field}");
            }
            // A run keeps nanoseconds.
            let time = |pass: &serde_json::Value| pass["measured_time_us"].as_f64().unwrap();
            assert!((time(alone) / time(both) - 1.0).abs() < 1e-3, "{alone} {both}");
        }
    }
    // In a pass a look-up of a few bytes has no vote of its own.
    let summary = &compared["summary"];
    assert!(summary["mean_error_pct"].as_f64().unwrap() > 1000.0, "{summary}");
    assert!(summary["judged_error_pct"].as_f64().unwrap() < 100.0, "{summary}");
}

/// A script repeats a run: what it measures is what the run measured.
#[cfg(unix)]
#[test]
fn a_run_is_repeated_by_its_script() {
    let home = Home::new("exported");
    let typed = "sweep --measure --shapes 1x512x512,64x512x512 --backend null --on h200 --precision bf16,int8";
    assert!(home.run(&format!("{typed} --out run.jsonl")).status.success());
    let kernels = |path: &str| -> Vec<(String, serde_json::Value)> {
        let text = fs::read_to_string(home.path(path)).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let measured = lines.filter_map(|line| line.get("measured").cloned());
        measured.map(|one| (one["precision"].as_str().unwrap().to_owned(), one["op"].clone())).collect()
    };
    let script = |name: &str| {
        let output = home.run(&format!("export {name}"));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let repeat = |script: &str, folder: &str| {
        fs::create_dir_all(home.path(folder)).unwrap();
        fs::write(home.path("again.sh"), script).unwrap();
        let mut shell = std::process::Command::new("sh");
        shell.arg(home.path("again.sh")).arg(home.path(folder)).env("ROOFLINE", env!("CARGO_BIN_EXE_roofline"));
        shell.env("ROOFLINE_CONFIG_DIR", home.path("."));
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let text = script("run.jsonl");
    assert!(text.starts_with("#!/bin/sh\n") && text.contains(typed) && !text.contains("run.jsonl"), "{text}");
    repeat(&text, "whole");
    assert_eq!(kernels("whole/again-1.jsonl"), kernels("run.jsonl"));
    // A run that does not say how it was made is repeated operator by operator.
    let old = fs::read_to_string(home.path("run.jsonl")).unwrap();
    let (header, rest) = old.split_once('\n').unwrap();
    let mut header: serde_json::Value = serde_json::from_str(header).unwrap();
    header["header"].as_object_mut().unwrap().remove("command").unwrap();
    fs::write(home.path("old.jsonl"), format!("{header}\n{rest}")).unwrap();
    let text = script("old.jsonl");
    assert!(text.contains("measure gemv --n 512 --k 512 --precision bf16,int8 --backend null --on h200_sxm"), "{text}");
    repeat(&text, "apart");
    let mut both = kernels("apart/again-1.jsonl");
    both.extend(kernels("apart/again-2.jsonl"));
    assert_eq!(both, kernels("run.jsonl"));
    // A file is not overwritten.
    assert_eq!(home.run("export run.jsonl -o again.sh").status.code(), Some(2));
}

/// The same products with PyTorch: a program that Python understands, with this program's numbers in it, whose answer this
/// program reads.
#[test]
fn a_run_is_exported_to_python() {
    let home = Home::new("python");
    let cases = |arguments: &str| -> (String, Vec<serde_json::Value>) {
        let output = home.run(&format!("export --python {arguments}"));
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let (_, rest) = text.split_once("CASES = json.loads(r'''").unwrap();
        let cases = serde_json::from_str(rest.split_once("''')").unwrap().0).unwrap();
        (text, cases)
    };
    let (text, all) = cases("--on h200");
    assert_eq!(all.len(), 4 * 5);
    assert!(text.contains("NVIDIA H200") && text.contains("\"h200_sxm\""), "{text}");
    // Bytes and operations are those of a prediction; a product in INT8 writes sums of 32 bits.
    for case in &all {
        let ours = case["precision"].as_str().unwrap().to_lowercase().replace("_e4m3", "");
        let [m, n, k] = ["m", "n", "k"].map(|side| case[side].as_u64().unwrap());
        let output = if ours == "int8" { " --output fp32" } else { "" };
        let question = format!("predict gemm --m {m} --n {n} --k {k} --on h200 -p {ours}{output} --json");
        let estimate = &home.json(&question)["estimates"][0];
        assert_eq!((&case["flops"], &case["bytes"]), (&estimate["flops"], &estimate["bytes"]), "{case}");
    }
    fs::write(home.path("products.py"), &text).unwrap();
    match std::process::Command::new("python3").args(["-m", "py_compile"]).arg(home.path("products.py")).output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) => eprintln!("SKIPPED: the program was not compiled, because python3: {error}"),
    }
    // What it prints is what `compare` takes.
    let benchmarks: Vec<serde_json::Value> = all
        .iter()
        .map(|case| {
            let [m, n, k] = ["m", "n", "k"].map(|side| case[side].as_u64().unwrap());
            let shape = if m == 1 { vec![n, k] } else { vec![m, n, k] };
            let (kind, precision) = (&case["kernel_type"], &case["precision"]);
            serde_json::json!({ "kernel_type": kind, "shape": shape, "precision": precision, "measured_time_us": 1e3 })
        })
        .collect();
    let printed = serde_json::json!({ "hardware_key": "h200_sxm", "environment": {}, "benchmarks": benchmarks });
    fs::write(home.path("measured.json"), printed.to_string()).unwrap();
    let compared = home.json("compare --measured measured.json --on h200 --json");
    assert_eq!(compared["comparisons"].as_array().unwrap().len(), all.len());
    // Of a run, what PyTorch can: the rest is named.
    let run = "measure gemv --n 512 --k 512 --backend null --on h200 --precision bf16,w4a16 --warm --out run.jsonl";
    assert!(home.run(run).status.success());
    let (_, some) = cases("run.jsonl");
    assert_eq!((some.len(), &some[0]["precision"], &some[0]["warm"]), (1, &"BF16".into(), &true.into()));
    let said = String::from_utf8(home.run("export --python run.jsonl").stderr).unwrap();
    assert!(said.contains("w4a16: PyTorch alone has no product in w4a16"), "{said}");
}

/// Every kernel says how far it is from the ridge, and how good its prediction was.
#[test]
fn every_kernel_stands_somewhere_to_the_ridge() {
    let home = Home::new("ridge");
    let said = home.json("compare sizes --backend null --on h200 --precision bf16,fp8 --n 1024..4096 --json");
    let rows = said["comparisons"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        let number = |name: &str| row[name].as_f64().unwrap();
        let distance = number("critical_ai") / number("ai");
        assert!(distance > 100.0 && (number("ridge_distance") / distance - 1.0).abs() < 1e-12, "{row}");
        let error = number("error_pct");
        let grade = if error < 10.0 {
            "good"
        } else if error < 25.0 {
            "fair"
        } else {
            "poor"
        };
        assert_eq!(row["grade"], grade, "{row}");
    }
    let shown = home.run("compare gemm --m 8192 --n 8192 --k 8192 --backend null --on h200 --precision bf16 --all");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("ridge") && shown.contains("13.2x above"), "{shown}");
}

/// What an interrupted run holds is no whole pass, and a run keeps what it was measured with.
#[test]
fn a_run_is_judged_for_what_it_is() {
    let home = Home::new("judged");
    let model = "compare model llama-3.2-1b --backend null --on h200 --precision bf16";
    assert!(home.run(&format!("{model} --out whole.jsonl")).status.success());
    let whole = home.json("compare --from whole.jsonl --json");
    assert_eq!((&whole["passes"][0]["missing"], &whole["residency"]), (&0.into(), &"cold".into()));
    let lines: Vec<String> = fs::read_to_string(home.path("whole.jsonl")).unwrap().lines().map(str::to_owned).collect();
    let half = lines[..5].join("\n") + "\n" + &lines[5][..40];
    fs::write(home.path("half.jsonl"), half).unwrap();
    let output = home.run("compare --from half.jsonl");
    let (shown, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(shown.contains("kinds missing"), "{shown}");
    assert!(said.contains("interrupted after 3 kernels"), "{said}");
    // Another device's roof is named as such.
    let elsewhere = home.json("compare --from whole.jsonl --on a100 --json");
    let subject = elsewhere["subject"].as_str().unwrap();
    assert!(subject.contains("measured on h200") && subject.contains("judged as a100"), "{subject}");
    assert!(home.run("measure gemv --n 512 --k 512 --backend null --on h200 --warm --out warm.jsonl").status.success());
    assert_eq!(home.json("compare --from warm.jsonl --json")["residency"], "warm");
    for flag in ["--warm", "--quick", "--seconds 1", "--out x.jsonl"] {
        let output = home.run(&format!("compare --from whole.jsonl {flag}"));
        assert_eq!(output.status.code(), Some(2), "{flag}: {output:?}");
    }
}

/// One kernel of each family on the real processor, small and short: right, timed, under the roof's explanation.
#[test]
fn the_processor_is_measured() {
    let home = Home::new("processor");
    let gemv = home.json("measure gemv --n 512 --k 1024 --precision fp32,bf16,w8a16,w4a16 --seconds 0.05 --json");
    let rows = gemv["measurements"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "{gemv}");
    for row in rows {
        assert!(row["measured_time_us"].as_f64().unwrap() > 0.0);
        assert!(row["check_error"].as_f64().unwrap() <= row["check_limit"].as_f64().unwrap());
        assert_eq!(row["residency"], "cold");
        assert!(row["samples"].as_u64().unwrap() >= 3);
    }
    let warm = home.json("measure gemv --n 512 --k 1024 --precision fp32 --seconds 0.05 --warm --json");
    assert_eq!(warm["measurements"][0]["residency"], "warm");
    let this = home.json("predict gemv --n 512 --k 1024 --on this --precision fp32 --json");
    assert!(this["estimates"][0]["ideal_time_us"].as_f64().unwrap() > 0.0);
    // Held back it is another machine: what it did with all its instructions is not read, but measured again.
    let arguments = "measure gemv --n 512 --k 1024 --precision w4a16 --seconds 0.05 --out held.jsonl";
    let output = home.command(arguments).env("ROOFLINE_ISA", "portable").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let run: serde_json::Value =
        serde_json::from_str(fs::read_to_string(home.path("held.jsonl")).unwrap().lines().next().unwrap()).unwrap();
    assert_eq!(run["header"]["environment"]["isa"], "portable");
    assert!(run["header"]["device"].as_str().unwrap().contains("t_portable_"), "{run}");
    let kept: Vec<String> = fs::read_dir(home.path("machines"))
        .unwrap()
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    let isa = roofline_isa::Isa::detect();
    assert_eq!(kept.len(), if isa == roofline_isa::Isa::portable() { 1 } else { 2 });
    assert!(kept.iter().any(|text| text.contains("\"isa\": \"portable\"")), "{kept:?}");
    assert!(kept.iter().any(|text| text.contains(&format!("\"isa\": \"{isa}\""))), "{kept:?}");
}

/// A report replaces nothing, least of all the run it is about.
#[test]
fn a_report_goes_to_a_new_file() {
    let home = Home::new("reports");
    let tour = "compare gemv --n 1024 --k 1024 --backend null --on h200 --precision bf16";
    assert!(home.run(&format!("{tour} --out run.html")).status.success());
    assert!(fs::read_to_string(home.path("run.html")).unwrap().starts_with("{\"header\""), "the run is still a run");
    assert!(home.path("run.report.html").exists());
    fs::write(home.path("mine.html"), "precious").unwrap();
    assert_eq!(home.run(&format!("{tour} --report mine.html")).status.code(), Some(2));
    // Nor does the one beside a run that was named.
    assert_eq!(home.run(&format!("{tour} --out mine.jsonl")).status.code(), Some(2));
    assert_eq!(fs::read_to_string(home.path("mine.html")).unwrap(), "precious");
    assert!(!home.path("mine.jsonl").exists());
    assert_eq!(home.run("compare --from run.html --report run.html").status.code(), Some(2));
    assert_eq!(fs::read_to_string(home.path("mine.html")).unwrap(), "precious");
    assert_eq!(home.run(&format!("{tour} --report /proc/report.html")).status.code(), Some(1));
}

#[test]
fn somebody_elses_measurements() {
    let home = Home::new("elsewhere");
    fs::write(home.path("points.csv"), "m,n,k,precision,time_us\n1,4096,4096,fp16,203.4\n1,4096,4096,fp8,34.8\n")
        .unwrap();
    insta::assert_snapshot!("compare_measured", home.shown("compare --measured points.csv --on gb10"));
    insta::assert_snapshot!("compare_measured_nowhere", home.shown("compare --measured points.csv"));
    fs::write(home.path("broken.csv"), "m,n,k,precision,time_us\n1,4096,x,fp16,203.4\n").unwrap();
    insta::assert_snapshot!("compare_measured_broken", home.shown("compare --measured broken.csv --on gb10"));
    insta::assert_snapshot!("compare_from_broken", home.shown("compare --from points.csv"));
    // As a spreadsheet saves it: the mark at the start is no part of the first column's name.
    fs::write(home.path("marked.csv"), "\u{feff}m,n,k,precision,time_us\n512,4096,4096,fp16,203.4\n").unwrap();
    let marked = home.json("compare --measured marked.csv --on gb10 --json");
    assert_eq!(marked["comparisons"][0]["shape"], "gemm 512 x 4096 x 4096");
    fs::write(home.path("long.csv"), "m,n,k,precision,time_us\n1,4096,4096,fp16,203.4\n".repeat(1 << 15)).unwrap();
    let long = home.shown("compare --measured long.csv --on gb10");
    assert!(long.contains("longer than any such file") && long.contains("1 MiB at most; split"), "{long}");
    let other = r#"{"hardware_key":"h200","benchmarks":[{"kernel_type":"gemv","shape":[8,8],"precision":"bf16","measured_time_us":9}]}"#;
    fs::write(home.path("other.json"), other).unwrap();
    let other = home.shown("compare --measured other.json --on gb10");
    assert!(other.contains("measured on `h200`, --on says `gb10`"), "{other}");
}

/// Without a GPU every other command works, and whoever asks for one is told what is missing.
#[test]
fn a_missing_gpu_is_explained() {
    if roofline_run::cuda::present() {
        eprintln!("SKIPPED: there is a GPU here");
        return;
    }
    let home = Home::new("a_missing_gpu_is_explained");
    let output = home.run("measure gemv --n 4096 --k 4096 --backend cuda");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("NVIDIA driver") && said.contains("--backend cpu"), "{said}");
    assert!(fs::read_dir(home.path("runs")).map_or(true, |mut runs| runs.next().is_none()), "a run of nothing is kept");
    let answer = home.json("measure gemv --n 64 --k 64 --precision fp32 --quick --json");
    assert_eq!(answer["backend"], "cpu");
}
