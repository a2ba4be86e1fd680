//! Which operator started which kernel, and what each took.
//!
//! A kernel and the call that started it share a correlation; the operator is the innermost one that was open on the thread
//! of that call. Where the call is missing, newer profilers note the operator's own number at the kernel. What has neither,
//! and what a recorded graph started all at once, belongs to no operator, and keeps its own name.

use std::collections::HashMap;

use super::events::{Events, Kernel, Operator};

/// Times that a profiler rounds differ by less than this, in microseconds.
const ROUNDING: f64 = 0.002;

/// Operators within operators that are looked through; programs have a dozen.
const DEEPEST: usize = 1000;

/// What took time: all of one operator, or of one kernel that no operator started.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) by_operator: bool,
    pub(super) calls: u64,
    pub(super) kernels: u64,
    pub(super) time: f64,
    /// The kernels that ran for it, by time.
    pub(super) kernel_names: Vec<String>,
    /// Calls whose shape is known: the place of the shape, whether tensor cores rounded to TF32, and each call's time.
    pub(super) shapes: Vec<Shape>,
}

/// Calls of one shape.
pub(super) struct Shape {
    pub(super) place: u32,
    pub(super) rounded: bool,
    pub(super) times: Vec<f64>,
}

/// Kernels' names of a row that are told.
const MOST_NAMES: usize = 3;

#[derive(Default)]
struct Gathered {
    calls: u64,
    kernels: u64,
    time: f64,
    names: HashMap<u32, f64>,
    shapes: HashMap<(u32, bool), Vec<f64>>,
}

/// One call of an operator.
#[derive(Default)]
struct Call {
    time: f64,
    kernels: u64,
    rounded: bool,
}

/// Operators in the order of their threads and starts, each with the one around it.
struct Nesting {
    operators: Vec<Operator>,
    parents: Vec<Option<usize>>,
    /// Whether an operator within it has the formula: then the work is there.
    hollow: Vec<bool>,
    /// Its time without that of operators within it.
    own: Vec<f64>,
}

impl Nesting {
    fn new(mut operators: Vec<Operator>) -> Self {
        operators
            .sort_by(|a, b| a.thread.cmp(&b.thread).then(a.start.total_cmp(&b.start)).then(b.end.total_cmp(&a.end)));
        let mut own: Vec<f64> = operators.iter().map(|operator| operator.end - operator.start).collect();
        let mut parents = vec![None; operators.len()];
        let mut hollow = vec![false; operators.len()];
        let mut open: Vec<usize> = Vec::new();
        for (at, operator) in operators.iter().enumerate() {
            let around = |outer: &Operator| outer.thread == operator.thread && outer.end + ROUNDING >= operator.end;
            while open.last().is_some_and(|last| !around(&operators[*last])) {
                open.pop();
            }
            if let Some(parent) = open.last().copied() {
                parents[at] = Some(parent);
                own[parent] = (own[parent] - (operator.end - operator.start)).max(0.0);
                if operator.known {
                    // Whoever is marked had everybody around it marked then.
                    let mut outer = Some(parent);
                    while let Some(place) = outer.filter(|place| !hollow[*place]) {
                        hollow[place] = true;
                        outer = parents[place];
                    }
                }
            }
            open.push(at);
        }
        Self { operators, parents, hollow, own }
    }

    /// The innermost operator that was open on a thread at a time.
    fn innermost(&self, thread: u32, time: f64) -> Option<usize> {
        let before = |operator: &Operator| (operator.thread, operator.start) <= (thread, time);
        let mut at = self.operators.partition_point(before).checked_sub(1);
        for _ in 0..DEEPEST {
            let place = at?;
            let operator = &self.operators[place];
            if operator.thread != thread {
                return None;
            }
            if operator.end >= time {
                return Some(place);
            }
            at = self.parents[place];
        }
        None
    }

    fn shape(&self, at: usize) -> Option<u32> {
        self.operators[at].shape.filter(|_| !self.hollow[at])
    }
}

/// Everything that took time, the longest first.
pub(super) fn rows(events: &mut Events) -> Vec<Row> {
    let nesting = Nesting::new(std::mem::take(&mut events.operators));
    let mut gathered: HashMap<(u32, bool), Gathered> = HashMap::new();
    if events.kernels.is_empty() {
        on_processor(&nesting, &mut gathered);
    } else {
        on_device(events, &nesting, &mut gathered);
    }
    let row = |((name, by_operator), found): ((u32, bool), Gathered)| {
        let Gathered { calls, kernels, time, names, shapes } = found;
        let mut names: Vec<(u32, f64)> = names.into_iter().collect();
        names.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let mut shapes: Vec<Shape> =
            shapes.into_iter().map(|((place, rounded), times)| Shape { place, rounded, times }).collect();
        shapes.sort_by_key(|shape| (shape.place, shape.rounded));
        Row {
            name: events.names.text(name).to_owned(),
            by_operator,
            calls,
            kernels,
            time,
            kernel_names: names.iter().take(MOST_NAMES).map(|(name, _)| events.names.text(*name).to_owned()).collect(),
            shapes,
        }
    };
    let mut rows: Vec<Row> = gathered.into_iter().map(row).collect();
    rows.sort_by(|a, b| b.time.total_cmp(&a.time).then_with(|| a.name.cmp(&b.name)));
    rows
}

/// A trace of the processor alone: what each operator took itself.
fn on_processor(nesting: &Nesting, gathered: &mut HashMap<(u32, bool), Gathered>) {
    for (at, operator) in nesting.operators.iter().enumerate() {
        let row = gathered.entry((operator.name, true)).or_default();
        row.calls += 1;
        row.time += nesting.own[at];
        if let Some(shape) = nesting.shape(at) {
            row.shapes.entry((shape, false)).or_default().push(nesting.own[at]);
        }
    }
}

/// A trace of a device: the kernels of each operator.
fn on_device(events: &Events, nesting: &Nesting, gathered: &mut HashMap<(u32, bool), Gathered>) {
    let launches: HashMap<u64, Option<usize>> = events
        .launches
        .iter()
        .map(|launch| {
            let operator = if launch.graph { None } else { nesting.innermost(launch.thread, launch.start) };
            (launch.correlation, operator)
        })
        .collect();
    let numbered: HashMap<u64, usize> =
        nesting.operators.iter().enumerate().filter_map(|(at, operator)| Some((operator.external?, at))).collect();
    let operator_of = |kernel: &Kernel| match kernel.correlation.and_then(|id| launches.get(&id)) {
        Some(found) => *found,
        None => kernel.external.and_then(|id| numbered.get(&id)).copied(),
    };
    let mut calls: HashMap<usize, Call> = HashMap::new();
    for kernel in &events.kernels {
        let time = kernel.end - kernel.start;
        let operator = operator_of(kernel);
        let key = operator.map_or((kernel.name, false), |at| (nesting.operators[at].name, true));
        let row = gathered.entry(key).or_default();
        row.kernels += 1;
        row.time += time;
        *row.names.entry(kernel.name).or_default() += time;
        match operator {
            None => row.calls += 1,
            Some(at) => {
                let call = calls.entry(at).or_default();
                call.time += time;
                call.kernels += 1;
                call.rounded |= rounds(events.names.text(kernel.name));
            }
        }
    }
    for (at, call) in calls {
        let row = gathered.entry((nesting.operators[at].name, true)).or_default();
        row.calls += 1;
        if let Some(shape) = nesting.shape(at) {
            row.shapes.entry((shape, call.rounded)).or_default().push(call.time);
        }
    }
}

/// Whether a kernel says that it multiplies FP32 on tensor cores, which round it to TF32.
fn rounds(kernel: &str) -> bool {
    kernel.contains("tf32") || kernel.contains("s1688")
}

/// When a device worked and when it waited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Occupation {
    pub(super) device: u64,
    pub(super) span: f64,
    pub(super) busy: f64,
    pub(super) gaps: u64,
    pub(super) longest: f64,
}

/// The occupation of each device between its first kernel and the end of its last.
pub(super) fn occupations(kernels: &[Kernel]) -> Vec<Occupation> {
    let mut sorted: Vec<&Kernel> = kernels.iter().collect();
    sorted.sort_by(|a, b| a.device.cmp(&b.device).then(a.start.total_cmp(&b.start)));
    let mut found: Vec<Occupation> = Vec::new();
    let mut end = 0.0;
    for kernel in sorted {
        match found.last_mut().filter(|last| last.device == kernel.device) {
            None => {
                let length = kernel.end - kernel.start;
                found.push(Occupation { device: kernel.device, span: length, busy: length, ..Occupation::default() });
                end = kernel.end;
            }
            Some(last) => {
                let gap = kernel.start - end;
                if gap > ROUNDING {
                    last.gaps += 1;
                    last.longest = last.longest.max(gap);
                }
                let added = (kernel.end - end).max(0.0);
                last.span += added;
                last.busy += added.min(kernel.end - kernel.start);
                end = end.max(kernel.end);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operator(name: u32, start: f64, end: f64, known: bool) -> Operator {
        Operator { thread: 1, name, start, end, shape: known.then_some(0), known, external: None }
    }

    /// `linear` around `t` and `addmm`, and `add` behind: own times add up, and the work is in the inner product.
    #[test]
    fn operators_within_operators() {
        let all = vec![
            operator(0, 0.0, 10.0, true),
            operator(2, 3.0, 9.0, true),
            operator(1, 1.0, 2.0, false),
            operator(3, 12.0, 13.0, false),
        ];
        let nesting = Nesting::new(all);
        assert_eq!(nesting.own, [3.0, 1.0, 6.0, 1.0]);
        assert_eq!(nesting.parents, [None, Some(0), Some(0), None]);
        assert_eq!((0..4).map(|at| nesting.shape(at)).collect::<Vec<_>>(), [None, None, Some(0), None]);
        let at = |time| nesting.innermost(1, time);
        assert_eq!(
            [at(0.5), at(1.5), at(2.5), at(5.0), at(11.0), at(12.5), at(99.0)],
            [Some(0), Some(1), Some(0), Some(2), None, Some(3), None]
        );
        assert_eq!(nesting.innermost(2, 5.0), None);
        assert_eq!(nesting.innermost(0, 5.0), None);
    }

    #[test]
    fn gaps_are_where_no_stream_works() {
        let kernel = |device, start, end| Kernel { name: 0, start, end, device, correlation: None, external: None };
        // Two streams overlap, one kernel lies within another, then the device waits for 5 us.
        let all = [
            kernel(0, 0.0, 10.0),
            kernel(0, 8.0, 12.0),
            kernel(0, 9.0, 10.0),
            kernel(0, 17.0, 20.0),
            kernel(1, 3.0, 4.0),
        ];
        let found = occupations(&all);
        assert_eq!(found[0], Occupation { device: 0, span: 20.0, busy: 15.0, gaps: 1, longest: 5.0 });
        assert_eq!((found[1].device, found[1].span, found[1].busy), (1, 1.0, 1.0));
    }
}
