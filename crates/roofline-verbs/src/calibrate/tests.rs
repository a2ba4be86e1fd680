//! Short calibrations on a fake processor that somebody else uses, too.

use std::{
    borrow::Cow,
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use roofline_core::{
    Machine,
    compare::{Observation, Verdict, compare},
    hash::fnv1a,
    measurement::{Check, Kernel},
    predict::Tier,
};
use roofline_run::{Backend, Case, Interference, Line, Null};

use super::*;

/// How much slower a kernel is that is disturbed: by more than a calibration may be off.
const SLOWER: f64 = 4.0;

/// What is wrong with every third kernel.
#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    /// Others have the machine when it is measured first.
    Once,
    /// Others have the machine whenever it is measured.
    Always,
    /// It is slow, and nobody is to blame.
    Itself,
}

/// A processor with exact times, but for what is wrong.
struct Shared {
    null: Null,
    wrong: Wrong,
    /// Times that each kernel was measured.
    times: HashMap<String, u32>,
}

impl Backend for Shared {
    fn name(&self) -> &'static str {
        self.null.name()
    }

    fn device(&self) -> &Device {
        self.null.device()
    }

    fn supports(&self, subject: &Subject) -> roofline_run::Result<Kernel> {
        self.null.supports(subject)
    }

    fn prepare(&mut self, subject: &Subject, residency: Residency) -> roofline_run::Result<Box<dyn Case + '_>> {
        let words = subject.words();
        let concerned = fnv1a(words.as_bytes()).is_multiple_of(3);
        let times = self.times.entry(words).or_default();
        *times += 1;
        let shared = concerned && (self.wrong == Wrong::Always || (self.wrong == Wrong::Once && *times == 1));
        let slow = shared || (concerned && self.wrong == Wrong::Itself);
        Ok(Box::new(SharedCase { case: self.null.prepare(subject, residency)?, shared, slow, preemptions: 0 }))
    }
}

struct SharedCase<'a> {
    case: Box<dyn Case + 'a>,
    shared: bool,
    slow: bool,
    preemptions: u64,
}

impl Case for SharedCase<'_> {
    fn kernel(&self) -> Kernel {
        self.case.kernel()
    }

    fn check(&mut self) -> roofline_run::Result<Check> {
        self.case.check()
    }

    fn sample(&mut self) -> roofline_run::Result<Seconds> {
        Ok(self.case.sample()? * if self.slow { SLOWER } else { 1.0 })
    }

    /// The core is taken away a thousand times between any two looks.
    fn interference(&mut self) -> Interference {
        self.preemptions += if self.shared { 1000 } else { 0 };
        Interference { stolen: None, preemptions: Some(self.preemptions) }
    }
}

/// What came of a short calibration.
struct Came {
    calibration: Calibration,
    /// By what it measured, afterwards, on a machine without any of that.
    verdict: Verdict,
    notes: Vec<Note>,
    /// The run, as it is read.
    run: Run,
    /// The most that any kernel was measured.
    times: u32,
}

fn came(wrong: Wrong, name: &str) -> Came {
    let folder = std::env::temp_dir().join(format!("roofline-short-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let path: PathBuf = folder.join("run.jsonl");
    let context = Context::pure();
    let args =
        Measuring { backend: Some(BackendName::Null), quick: true, out: Some(path.clone()), ..Measuring::default() };
    let mut runner = Runner::start(&context, &args, Some("xeon_8480p"), "calibrate").unwrap();
    let device = runner.device().clone();
    let null = || Null::new(device.clone());
    runner.backend = Box::new(Shared { null: null(), wrong, times: HashMap::new() });
    let calibration = measured(&mut runner, &args).unwrap();
    let times = times(&path);
    let run = Run::read(&path).unwrap();
    fs::remove_dir_all(folder).unwrap();
    let machine = Machine::new(device, Stack::Null).calibrated(Some(Cow::Owned(calibration.clone())));
    let observations: Vec<Observation> = run.measurements.iter().map(Observation::from).collect();
    let verdict = compare(&observations, &machine, Tier::Expected).unwrap().totals.verdict;
    Came { calibration, verdict, notes: context.notes(), run, times }
}

/// The most lines that a run has of one kernel.
fn times(path: &Path) -> u32 {
    let mut lines: HashMap<String, u32> = HashMap::new();
    for line in fs::read_to_string(path).unwrap().lines() {
        if let Ok(Line::Measured(measured)) = serde_json::from_str(line) {
            *lines.entry(measured.subject().words()).or_default() += 1;
        }
    }
    lines.into_values().max().unwrap_or(0)
}

#[test]
fn kernels_that_were_disturbed_are_measured_again() {
    let mended = came(Wrong::Once, "once");
    assert!(mended.calibration.quality.mean < 0.1, "{:?}", mended.calibration.quality);
    assert_eq!(mended.verdict, Verdict::Excellent);
    let [note] = &mended.notes[..] else { panic!("{:?}", mended.notes) };
    assert!(note.text.contains("disturbed while") && !note.text.contains("still"), "{}", note.text);
    // Who fits to the run finds what this fit found: each kernel stands once, as it was measured last.
    assert_eq!((mended.times, mended.run.unfinished()), (2, 0));
    let kernels = mended.run.planned.unwrap();
    assert_eq!(mended.run.measurements.len() as u64, kernels);
    assert!(!mended.run.measurements.iter().any(Measurement::is_disturbed));
}

/// Kernels that no repetition makes faster stay as they are, whoever is to blame, and nothing is judged by them.
#[test]
fn what_stays_slow_stays_undecided() {
    let slow = came(Wrong::Itself, "itself");
    assert!(slow.notes.is_empty(), "{:?}", slow.notes);
    let busy = came(Wrong::Always, "always");
    let [note] = &busy.notes[..] else { panic!("{:?}", busy.notes) };
    assert!(note.text.contains("still disturbed"), "{}", note.text);
    for came in [slow, busy] {
        assert!(came.calibration.quality.doubtful(), "{:?}", came.calibration.quality);
        assert_eq!(came.verdict, Verdict::Undecided);
        assert_eq!(came.times, 1, "nothing was faster");
    }
}
