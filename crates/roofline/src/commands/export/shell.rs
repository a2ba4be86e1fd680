//! The commands that made a run, as a POSIX shell script.

use roofline_core::{
    Op,
    measurement::{Measurement, Residency},
    op::{Attention, Cache},
};
use roofline_run::{Header, Run};

use super::{Exported, standard};
use crate::{cli::ExportArgs, failure::Failure};

/// Flags that say where a run goes: a repetition goes to a place of its own.
const PLACES: [&str; 3] = ["--out", "--report", "--resume"];

pub(super) fn shell(args: &ExportArgs, run: Option<&Run>) -> Result<Exported, Failure> {
    let (made, commands, left_out) = if let Some(run) = run {
        let Header { started, device, backend, environment, .. } = &run.header;
        let commit = environment["commit"].as_str().unwrap_or("unknown");
        let made =
            format!("# Repeats a run of {started} on {} ({backend} backend, commit {}).", plain(device), plain(commit));
        let (commands, left_out) = commands(run);
        (made, commands, left_out)
    } else {
        let precision = args.precision.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(",");
        let precision = if precision.is_empty() { String::new() } else { format!(" --precision {precision}") };
        let command = |node: &roofline_core::graph::Node| product(&node.op).map(|words| words + &precision);
        let commands = standard()?.iter().filter_map(command).collect();
        ("# Measures products of one row and of many.".to_owned(), commands, Vec::new())
    };
    let count = commands.len();
    let mut script = format!(
        "#!/bin/sh\n{made}\n# Each command keeps its run in a file of its own, in the folder that is named, or here.\nset -eu\n\
         roofline=\"${{ROOFLINE:-roofline}}\"\nfolder=\"${{1:-.}}\"\n\n"
    );
    for (at, command) in commands.into_iter().enumerate() {
        script += &format!("\"$roofline\" {command} --out \"$folder/again-{}.jsonl\"\n", at + 1);
    }
    for kernel in &left_out {
        script += &format!("# Left out: {}\n", plain(kernel));
    }
    Ok(Exported { language: "sh", script, count, left_out })
}

/// The command itself where the run has it, else one for each operator that was measured, with its precisions.
fn commands(run: &Run) -> (Vec<String>, Vec<String>) {
    if let Some(words) = &run.header.command {
        return (vec![typed(words)], Vec::new());
    }
    let mut operators: Vec<(&Measurement, Vec<&str>)> = Vec::new();
    for measured in &run.measurements {
        let name = measured.precision.as_str();
        match operators.iter_mut().find(|(one, _)| one.op == measured.op && one.residency == measured.residency) {
            Some((_, names)) if names.contains(&name) => {}
            Some((_, names)) => names.push(name),
            None => operators.push((measured, vec![name])),
        }
    }
    let (mut commands, mut left_out) = (Vec::new(), Vec::new());
    for (measured, names) in operators {
        let words = measured.op.words(&measured.site);
        let Some(command) = product(&measured.op).or_else(|| attention(&measured.op)) else {
            left_out.push(format!("{words}: a part of a model, and no command measures it alone"));
            continue;
        };
        let names: Vec<String> = names.into_iter().map(quoted).collect();
        let warm = if measured.residency == Residency::Warm { " --warm" } else { "" };
        let backend = quoted(&run.header.backend);
        let on = if backend == "null" { format!(" --on {}", quoted(&run.header.device)) } else { String::new() };
        commands.push(format!("{command} --precision {} --backend {backend}{on}{warm}", names.join(",")));
    }
    (commands, left_out)
}

/// What was typed, without the place that it went to.
fn typed(words: &[String]) -> String {
    let mut kept = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let flag = word.split('=').next().unwrap_or_default();
        if !PLACES.contains(&flag) {
            kept.push(quoted(word));
        } else if flag == word && flag != "--resume" {
            words.next();
        }
    }
    kept.join(" ")
}

fn product(op: &Op) -> Option<String> {
    let Op::Linear(shape) = op else { return None };
    let (m, n, k) = (shape.m, shape.n, shape.k);
    Some(if m.get() == 1 {
        format!("measure gemv --n {n} --k {k}")
    } else {
        format!("measure gemm --m {m} --n {n} --k {k}")
    })
}

/// Attention that the command line has words for: one width of heads, a cache of its own, no window.
fn attention(op: &Op) -> Option<String> {
    let Op::Attention(shape) = op else { return None };
    let Attention { batch, heads, kv_heads, head_dim, value_dim, queries, context, causal, window, cache } = *shape;
    if head_dim != value_dim || window.is_some() || cache != Cache::Separate {
        return None;
    }
    let causal = if causal { "" } else { " --no-causal" };
    Some(format!(
        "measure attention --batch {batch} --heads {heads} --kv-heads {kv_heads} --head-dim {head_dim} --queries {queries} \
         --context {context}{causal}"
    ))
}

/// A word for a shell: as it is where nothing in it means anything, else between quotes.
fn quoted(word: &str) -> String {
    let harmless = |letter: char| letter.is_ascii_alphanumeric() || "-_./:@=,+".contains(letter);
    if !word.is_empty() && word.chars().all(harmless) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Text of a file that somebody may have sent, for a comment: one line.
fn plain(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repetition_has_a_place_of_its_own() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let measured = "measure gemv --n 64 --k 64 --backend null --on h200";
        assert_eq!(typed(&words(&format!("{measured} --out run.jsonl --resume"))), measured);
        assert_eq!(typed(&words("compare --report=x.html gemv --n 64 --k 64")), "compare gemv --n 64 --k 64");
    }

    #[test]
    fn words_are_words() {
        assert_eq!(quoted("int4-g128/bf16"), "int4-g128/bf16");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("$(rm -r ~)"), "'$(rm -r ~)'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
        assert_eq!(plain("one\nrm -r ~"), "one rm -r ~");
    }
}
