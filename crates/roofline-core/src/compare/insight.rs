//! The sentence to take home, made from the numbers.

use super::{Pair, SpeedupPair};
use crate::{Dim, Op, predict::Bound};

/// Below this an error needs no second look.
const NEAR: f64 = 0.15;

/// What precisions gain, where they lose, and what size does to the error where size is all that varies.
pub(super) fn insight(pairs: &[Pair], speedups: &[SpeedupPair], losses: &[SpeedupPair]) -> Option<String> {
    let all: Vec<String> = speedup(pairs, speedups).into_iter().chain(loss(losses)).chain(sizes(pairs)).collect();
    (!all.is_empty()).then(|| all.join(" "))
}

/// Operators that a sentence names for a loss; further ones are counted.
const NAMED: usize = 3;

/// Formats that are stored narrower and ran slower: from what to what, how much, and where.
fn loss(losses: &[SpeedupPair]) -> Option<String> {
    let mut kinds: Vec<(&str, &str)> = Vec::new();
    for loss in losses {
        if !kinds.contains(&(&loss.from, &loss.to)) {
            kinds.push((&loss.from, &loss.to));
        }
    }
    let kind = |(from, to): &(&str, &str)| {
        let here: Vec<&SpeedupPair> = losses.iter().filter(|loss| loss.from == *from && loss.to == *to).collect();
        let speed = |loss: Option<&&SpeedupPair>| loss.map(|loss| format!("{:.2}", loss.measured)).unwrap_or_default();
        // The worst is the first.
        let (worst, best) = (speed(here.first()), speed(here.last()));
        let range = if worst == best { worst } else { format!("{worst} to {best}") };
        let subjects: Vec<&str> = here.iter().take(NAMED).map(|loss| loss.subject.as_str()).collect();
        let more = here.len() - subjects.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{to} ran at {range} times the speed of {from} in {}{more}", subjects.join(", "))
    };
    let kinds: Vec<String> = kinds.iter().map(kind).collect();
    (!kinds.is_empty()).then(|| format!("Narrower, yet slower: {}.", kinds.join("; ")))
}

/// What kernels that take a bad way on purpose show: the worst speed-up among them.
pub(super) fn demonstration(speedups: &[SpeedupPair]) -> Option<String> {
    let cast = speedups.iter().filter(|speedup| speedup.emulated);
    let worst = cast.min_by(|one, other| one.measured.total_cmp(&other.measured))?;
    let SpeedupPair { subject, from, to, measured, .. } = worst;
    Some(format!(
        "{to} casts its weights to memory before it multiplies, a bad way that is shown on purpose: {measured:.2} times the \
         speed of {from} in {subject}. It is no part of the verdict."
    ))
}

/// For each precision, whether the error of square matrix-vector products changes with their size. Nothing where other
/// kernels are among the pairs.
fn sizes(pairs: &[Pair]) -> Vec<String> {
    let side = |pair: &Pair| match pair.observation.op {
        Op::Linear(linear) if linear.m == Dim::ONE && linear.n == linear.k => Some(linear.n.get()),
        _ => None,
    };
    let Some(sides) = pairs.iter().map(side).collect::<Option<Vec<u64>>>() else { return Vec::new() };
    let mut labels: Vec<String> = Vec::new();
    for pair in pairs {
        if !labels.contains(&pair.label()) {
            labels.push(pair.label());
        }
    }
    let sentence = |label: &String| {
        let here = sides.iter().zip(pairs).filter(|(_, pair)| pair.label() == *label);
        let mut errors: Vec<(u64, f64)> = here.map(|(side, pair)| (*side, pair.error())).collect();
        errors.sort_by_key(|(side, _)| *side);
        trend(label, &errors)
    };
    labels.iter().filter_map(sentence).collect()
}

/// How errors go from the smallest size to the largest, and from which size on they stay small.
fn trend(label: &str, errors: &[(u64, f64)]) -> Option<String> {
    let ((smallest, first), (largest, last)) = (*errors.first()?, *errors.last()?);
    if smallest == largest {
        return None;
    }
    let goes = if last < first { "falls" } else { "grows" };
    let far = errors.iter().rposition(|(_, error)| *error >= NEAR);
    let near = match far.map(|far| errors.get(far + 1)) {
        None => "is below 15 % at every size".to_owned(),
        Some(Some((side, _))) => format!("stays below 15 % from {side} on"),
        Some(None) => "never stays below 15 %".to_owned(),
    };
    let percent = |error: f64| format!("{:.1} %", error * 100.0);
    let (first, last) = (percent(first), percent(last));
    Some(format!("The error of {label} {goes} from {first} at {smallest} to {last} at {largest} and {near}."))
}

/// What the widest speed-up of a memory-bound product says, and what happens to it where the units are the limit.
fn speedup(pairs: &[Pair], speedups: &[SpeedupPair]) -> Option<String> {
    let limited = |subject: &str, precision: &str, wanted: Bound| {
        let product = |pair: &&Pair| matches!(pair.observation.op, Op::Linear(_) | Op::ActivatedLinear(_));
        let same = |pair: &&Pair| pair.subject() == subject && pair.label() == precision;
        pairs.iter().filter(product).find(same).is_some_and(|pair| pair.bound() == wanted)
    };
    // Both ends of a speed-up must wait for the same thing, or one sentence cannot explain it.
    let bound = |wanted: Bound| {
        let both = |speedup: &&SpeedupPair| {
            limited(&speedup.subject, &speedup.from, wanted) && limited(&speedup.subject, &speedup.to, wanted)
        };
        let told = |speedup: &&SpeedupPair| !speedup.emulated;
        speedups.iter().filter(told).filter(both).max_by(|one, other| one.ideal.total_cmp(&other.ideal))
    };
    let memory = bound(Bound::Memory).map(|best| {
        format!(
            "{} is memory-bound: from {} to {} the bytes shrink {:.1} times, and it ran {:.1} times as fast ({:.1} predicted)",
            best.subject, best.from, best.to, best.ideal, best.measured, best.predicted
        )
    });
    let compute = bound(Bound::Compute).map(|best| {
        format!(
            "{} is compute-bound: from {} to {} the ideal gain is {:.1} times, measured {:.1}",
            best.subject, best.from, best.to, best.ideal, best.measured
        )
    });
    match (memory, compute) {
        (Some(memory), Some(compute)) => Some(format!("{memory}. {compute}.")),
        (Some(one), None) | (None, Some(one)) => Some(format!("{one}.")),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        compare::{Comparison, Observation, compare, samples},
        measurement::Path,
        predict::Tier,
    };

    fn compared(all: &[Observation]) -> Comparison {
        compare(all, &samples::machine(), Tier::Ideal).unwrap()
    }

    /// The sentence about products of these shapes that are so far off.
    fn said(shapes: &[(u64, u64, u64)], errors: &[f64]) -> Option<String> {
        let all = shapes.iter().zip(errors).map(|(shape, error)| samples::product("bf16", *shape, 1.0 + error));
        compared(&all.collect::<Vec<_>>()).insight
    }

    #[test]
    fn sizes_have_an_answer() {
        let squares = [4096, 1024, 2048, 8192].map(|side| (1, side, side));
        for (errors, sentence) in [
            ([0.14, 1.2, 0.5, 0.05], "falls from 120.0 % at 1024 to 5.0 % at 8192 and stays below 15 % from 4096 on."),
            ([0.1, 0.05, 0.2, 0.3], "grows from 5.0 % at 1024 to 30.0 % at 8192 and never stays below 15 %."),
            ([0.1, 0.14, 0.12, 0.08], "falls from 14.0 % at 1024 to 8.0 % at 8192 and is below 15 % at every size."),
        ] {
            assert_eq!(said(&squares, &errors), Some(format!("The error of bf16 {sentence}")));
        }
        // One size says nothing about size, and neither do other shapes.
        assert_eq!(said(&squares[..1], &[0.1]), None);
        assert_eq!(said(&[(1, 1024, 1024), (1, 2048, 1024)], &[0.1, 0.2]), None);
        assert_eq!(said(&[(1, 1024, 1024), (8, 2048, 2048)], &[0.1, 0.2]), None);
    }

    #[test]
    fn a_format_that_loses_is_named() {
        let (row, rows) = ((1, 8192, 8192), (4096, 4096, 4096));
        let all = [
            samples::product("bf16", row, 1.0),
            samples::product("w4a16", row, 1.0),
            samples::product("bf16", rows, 1.0),
            samples::product("w4a16", rows, 4.0),
        ];
        let insight = compared(&all).insight.unwrap();
        let loss = "Narrower, yet slower: w4a16 ran at 0.25 times the speed of bf16 in gemm 4096 x 4096 x 4096.";
        assert!(insight.ends_with(loss), "{insight}");
        // Several operators are one statement.
        let both = [samples::product("bf16", row, 1.0), samples::product("w4a16", row, 8.0)];
        let insight = compared(&[&both[..], &all[2..]].concat()).insight.unwrap();
        let loss =
            "w4a16 ran at 0.25 to 0.48 times the speed of bf16 in gemm 4096 x 4096 x 4096, gemv 1 x 8192 x 8192.";
        assert!(insight.ends_with(loss), "{insight}");
        assert!(!compared(&all[..3]).insight.unwrap().contains("slower"));
    }

    #[test]
    fn a_bad_way_is_told_apart() {
        let row = (1, 8192, 8192);
        let mut cast = samples::product("w8a16", row, 8.0);
        cast.path = Some(Path::CastEmulated);
        let Comparison { insight, demonstration, losses, .. } = compared(&[samples::product("bf16", row, 1.0), cast]);
        assert_eq!((insight, losses), (None, Vec::new()));
        let told = demonstration.unwrap();
        assert!(told.starts_with("w8a16 (cast) casts") && told.contains("0.25 times the speed of bf16"), "{told}");
    }
}
