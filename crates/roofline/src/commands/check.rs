//! `roofline check`: this program against what is known without it.
//!
//! An installed program has no source tree to run tests in. What decides whether its answers can be believed is small
//! enough to look at in place: the numbers that the formulas must give, the data that it carries, the kernels that this
//! machine's processor and GPU would run, and that all its faces understand a question the same way.

mod data;
mod faces;
mod kernels;

use std::time::Instant;

use roofline_core::golden::golden;
use roofline_verbs::Context;
use serde::Serialize;

use crate::{
    cli::CheckArgs,
    failure::Failure,
    report::{Align, Cell, Format, Report, Section, Table, emit},
};

/// Everything that was looked at.
#[derive(Serialize)]
struct Checked {
    version: &'static str,
    commit: Option<&'static str>,
    passed: usize,
    failed: usize,
    skipped: usize,
    seconds: f64,
    checks: Vec<Check>,
    /// Whether the text has every line, not only those that matter.
    #[serde(skip)]
    unfolded: bool,
}

#[derive(Serialize)]
struct Check {
    part: &'static str,
    name: String,
    expected: String,
    found: String,
    status: Status,
    /// Why the expected is that, or what to do about what was found.
    why: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Failed,
    Skipped,
}

impl Status {
    fn of(right: bool) -> Self {
        if right { Self::Ok } else { Self::Failed }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
        }
    }
}

impl Check {
    /// Something of which nothing should be wrong.
    fn faults(part: &'static str, name: &str, looked_at: usize, faults: &[String]) -> Self {
        let found = match faults {
            [] => format!("{looked_at}, all of them"),
            [first] => first.clone(),
            [first, ..] => format!("{first}; and {} more", faults.len() - 1),
        };
        let status = Status::of(faults.is_empty() && looked_at > 0);
        Self { part, name: name.to_owned(), expected: "nothing is wrong".to_owned(), found, status, why: None }
    }
}

pub(crate) fn run(context: &Context, args: &CheckArgs, form: Format) -> Result<(), Failure> {
    let start = Instant::now();
    let mut checks = numbers()?;
    checks.extend(data::checks());
    checks.extend(kernels::checks(context));
    checks.extend(faces::checks());
    let count = |status: Status| checks.iter().filter(|check| check.status == status).count();
    let (passed, failed, skipped) = (count(Status::Ok), count(Status::Failed), count(Status::Skipped));
    let of = checks.len();
    let checked = Checked {
        version: env!("CARGO_PKG_VERSION"),
        commit: roofline_run::environment::COMMIT,
        passed,
        failed,
        skipped,
        seconds: (start.elapsed().as_secs_f64() * 1e3).round() / 1e3,
        checks,
        unfolded: args.all,
    };
    emit(&checked, form)?;
    if failed > 0 { Err(Failure::Check { failed, of }) } else { Ok(()) }
}

/// What the formulas must give.
fn numbers() -> Result<Vec<Check>, Failure> {
    let digits = |value: f64, tolerance: f64| {
        if tolerance == 0.0 && value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.5}") }
    };
    let check = |one: roofline_core::golden::Golden| Check {
        part: "numbers",
        status: Status::of(one.holds()),
        expected: digits(one.expected, one.tolerance),
        found: digits(one.found, one.tolerance),
        name: one.name,
        why: Some(one.why),
    };
    Ok(golden()?.into_iter().map(check).collect())
}

impl Report for Checked {
    const ROWS: &'static str = "checks";

    fn sections(&self) -> Vec<Section> {
        let mut sections = vec![Section::Heading(format!("roofline {} checks itself", self.version))];
        let shown = |check: &&Check| self.unfolded || check.part != "numbers" || check.status != Status::Ok;
        let mut table = Table::default()
            .column("check", Align::Left, 0)
            .column("expected", Align::Left, 1)
            .column("found", Align::Left, 0)
            .column("", Align::Left, 0);
        let right = self.checks.iter().filter(|check| !shown(check)).count();
        if right > 0 {
            let cells = ["numbers: known without this program", "as derived or published"];
            table.row(cells.map(Cell::from).into_iter().chain([format!("{right}, all of them").into(), "ok".into()]));
        }
        for check in self.checks.iter().filter(shown) {
            table.row([
                format!("{}: {}", check.part, check.name).into(),
                check.expected.as_str().into(),
                check.found.as_str().into(),
                check.status.word().into(),
            ]);
        }
        sections.push(Section::Table(table));
        let why = |check: &&Check| check.status != Status::Ok || self.unfolded;
        let whys = self.checks.iter().filter(why).filter_map(|check| Some((check, check.why.as_ref()?)));
        let lines: Vec<(String, String)> =
            whys.map(|(check, why)| (format!("{}: {}", check.part, check.name), why.clone())).collect();
        if !lines.is_empty() {
            sections.push(Section::Facts(lines));
        }
        let Self { passed, failed, skipped, seconds, .. } = self;
        let more = if self.unfolded { "" } else { " --all shows every number with its reason." };
        sections.push(Section::Paragraph(format!(
            "{passed} ok, {failed} failed, {skipped} skipped in {seconds:.1} s.{more}"
        )));
        sections
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_fail_and_so_does_nothing_to_look_at() {
        assert!(Check::faults("data", "files", 3, &[]).status == Status::Ok);
        assert!(Check::faults("data", "files", 0, &[]).status == Status::Failed, "nothing was there");
        let one = Check::faults("data", "files", 3, &["a: bad".to_owned(), "b: bad".to_owned()]);
        assert!(one.status == Status::Failed);
        assert_eq!(one.found, "a: bad; and 1 more");
    }

    #[test]
    fn a_failed_check_is_shown_and_told_by_the_exit_code() {
        let check = |status, name: &str| {
            let (expected, found, why) = ("1".to_owned(), "2".to_owned(), Some("because".to_owned()));
            Check { part: "numbers", name: name.to_owned(), expected, found, status, why }
        };
        let checks = vec![check(Status::Ok, "right"), check(Status::Failed, "wrong")];
        let (version, commit, seconds) = ("0", None, 0.0);
        let checked = Checked { version, commit, passed: 1, failed: 1, skipped: 0, seconds, checks, unfolded: false };
        let text = crate::report::render(&checked, Format::Text).unwrap();
        assert!(text.contains("numbers: wrong") && text.contains("FAILED") && text.contains("because"), "{text}");
        assert!(!text.contains("numbers: right"), "what is as it should be is one line: {text}");
        let failure = Failure::Check { failed: 1, of: 2 };
        assert_eq!(failure.message(), "1 of 2 checks failed");
        assert_eq!(format!("{:?}", failure.report(Format::Json)), format!("{:?}", std::process::ExitCode::from(1)));
    }
}
