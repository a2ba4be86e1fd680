//! Evaluations, as a user meets them: figures in every form, and runs that were interrupted and go on.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use common::{answer, command, said, temporary};
use serde_json::Value;

/// A Llama of 131 tokens with a tokenizer.
const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../roofline-engine/tests/data/llama");

/// A place with a text, where the program keeps its things.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let folder = temporary(&format!("evaluate-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let words: Vec<String> = (0..60).map(|at| format!("the cat number {at} sat on the mat.\n")).collect();
        fs::write(folder.join("text.txt"), words.concat()).unwrap();
        Self(folder)
    }

    fn command(&self, more: &[&str]) -> Command {
        let text = self.0.join("text.txt");
        let own = ["evaluate", LLAMA, "--text", text.to_str().unwrap(), "--window", "64", "--threads", "1"];
        let mut command = command(&[&own[..], more].concat());
        command.env("ROOFLINE_CONFIG_DIR", self.0.join("home"));
        command
    }

    fn run(&self, more: &[&str]) -> Output {
        self.command(more).output().unwrap()
    }

    /// The same under a limit of bytes for each file, in a shell that does `first`.
    fn limited(&self, first: &str, more: &[&str]) -> Output {
        let own = self.command(more);
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg(format!("{first} ulimit -f 8; exec \"$0\" \"$@\""))
            .arg(own.get_program())
            .args(own.get_args());
        shell.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?)))).output().unwrap()
    }

    fn states(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.join("home/evaluations")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The answer, but for how long it took.
fn json(output: &Output) -> Value {
    let mut told = answer(output);
    for path in ["/seconds", "/original/seconds"] {
        if let Some(seconds) = told.pointer_mut(path) {
            *seconds = Value::Null;
        }
    }
    told
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).unwrap().matches('\n').count()
}

#[test]
fn figures_in_every_form() {
    let place = Place::new("forms");
    let told = json(&place.run(&["--against", LLAMA, "--json"]));
    for field in ["perplexity", "perplexity_low", "llama_cpp_perplexity", "kl_divergence", "top1_agreement", "ratio"] {
        assert!(told[field].is_f64(), "{field}: {told}");
    }
    assert_eq!((told["kl_divergence"].as_f64(), told["top1_agreement"].as_f64()), (Some(0.0), Some(1.0)));
    assert_eq!((&told["window"], &told["stride"], &told["bos"]), (&64.into(), &32.into(), &1.into()));
    assert!(told["original"]["perplexity"].is_f64() && told["text"]["hash"].is_string());
    let text = String::from_utf8(place.run(&["--against", LLAMA]).stdout).unwrap();
    for word in
        ["llama against llama, on text.txt", "perplexity", "as llama.cpp counts", "KL divergence", "after layer"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
    let csv = String::from_utf8(place.run(&["--csv"]).stdout).unwrap();
    let mut rows = csv.lines();
    assert!(rows.next().unwrap().contains("perplexity,") && rows.count() == 1, "{csv}");
    let plans = String::from_utf8(place.run(&["--csv", "--plan", "w8a16", "--method", "rtn,mse"]).stdout).unwrap();
    assert_eq!(plans.lines().count(), 3, "{plans}");
    let markdown = String::from_utf8(place.run(&["--md", "--plan", "w8a16"]).stdout).unwrap();
    assert!(markdown.contains("| w8a16"), "{markdown}");
    assert!(place.states().is_empty(), "what is finished leaves nothing to go on with");
}

/// A page is written once, whole, and only replaced where that is asked for.
#[test]
fn a_page_of_what_was_lost() {
    let place = Place::new("page");
    let page = place.0.join("lost.html");
    let asked = ["--plan", "w8a16", "--html", page.to_str().unwrap()];
    let output = place.run(&asked);
    assert!(output.status.success(), "{}", said(&output));
    let html = fs::read_to_string(&page).unwrap();
    assert!(
        html.starts_with("<!doctype html>") && html.ends_with("</html>\n") && html.contains("<svg"),
        "{}",
        html.len()
    );
    let again = place.run(&asked);
    assert_eq!(again.status.code(), Some(2));
    assert!(said(&again).contains("--force"), "{}", said(&again));
    assert!(place.run(&[&asked[..], &["--force"]].concat()).status.success());
}

/// A process that is killed in the middle of a line goes on to the very same answer.
#[cfg(target_os = "linux")]
#[test]
fn what_was_killed_goes_on() {
    let place = Place::new("killed");
    let whole = json(&place.run(&["--json"]));
    let killed = place.limited("", &["--json"]);
    assert!(!killed.status.success() && killed.stdout.is_empty());
    let [state] = &place.states()[..] else { panic!("{:?}", place.states()) };
    let kept = lines(state);
    assert!(kept > 0 && !fs::read_to_string(state).unwrap().ends_with('\n'), "cut within a line");
    assert_eq!(json(&place.run(&["--json", "--resume"])), whole);
    assert!(place.states().is_empty());
}

/// A disk that is full is said with what to do about it, and what was finished is whole.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_costs_nothing_that_is_done() {
    let place = Place::new("full");
    let whole = json(&place.run(&["--json", "--against", LLAMA]));
    let full = place.limited("trap '' XFSZ;", &["--json", "--against", LLAMA]);
    assert_eq!(full.status.code(), Some(1), "{}", said(&full));
    assert!(said(&full).contains("evaluations") && said(&full).contains("windows are kept: the same with `--resume`"));
    let [state] = &place.states()[..] else { panic!("{:?}", place.states()) };
    assert!(lines(state) > 0 && fs::read_to_string(state).unwrap().ends_with('\n'), "whole lines only");
    // Other windows are another evaluation, which has nothing to go on from.
    let other = place.run(&["--json", "--against", LLAMA, "--stride", "16", "--resume"]);
    assert!(other.status.success(), "{}", said(&other));
    assert_eq!(place.states().len(), 1);
    assert_eq!(json(&place.run(&["--json", "--against", LLAMA, "--resume"])), whole);
    assert!(place.states().is_empty());
}
