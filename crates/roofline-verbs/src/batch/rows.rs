//! The rows of a batch: what they share is found first, then all cores go through them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use roofline_core::{
    Dim, Error as Core, Machine, Model, Plan,
    machine::Basis,
    model::{Lowering, Workload},
    plan::Assignment,
    predict::{Known, Passed, Prepared, Tier},
};

use super::{Column, Names, Request};
use crate::{
    Context, Error, Result,
    machine::{self, Varies, plans},
    passes::{Setup, Told},
    predict::workload,
    request::Phase,
};

/// Rows that a thread takes at a time.
const CHUNK: usize = 1024;
/// Lines whose kernels a thread keeps.
const LINES: usize = 1024;

/// Why a row has no forecast; rows that fail for one reason share it.
type Reason = Arc<str>;
type Found<T> = std::result::Result<T, Reason>;
/// A row of the answer.
pub(super) type Row = Found<Numbers>;

/// The numbers of a row.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub(super) expected_time_us: f64,
    pub(super) lo_us: f64,
    pub(super) hi_us: f64,
    pub(super) ideal_time_us: f64,
    pub(super) tokens_per_s: f64,
    pub(super) memory_bytes: f64,
    pub(super) fits: Option<bool>,
    pub(super) basis: Option<Basis>,
}

impl Numbers {
    /// Those of a row that has none.
    pub(super) const NONE: Self = Self {
        expected_time_us: f64::NAN,
        lo_us: f64::NAN,
        hi_us: f64::NAN,
        ideal_time_us: f64::NAN,
        tokens_per_s: f64::NAN,
        memory_bytes: f64::NAN,
        fits: None,
        basis: None,
    };
}

/// Everything of a row but its batch and context.
struct Line {
    model: Arc<Model>,
    machine: Arc<Machine>,
    assignment: Assignment,
    phase: Phase,
    tier: Tier,
}

/// Which names a row has: model, device, plan, phase, tier.
type Key = [u32; 5];

/// Every row, in order.
pub(super) fn all(context: &Context, request: &Request, count: usize) -> Result<Vec<Row>> {
    let (lines, at) = lines(context, request, count)?;
    let mut rows: Vec<Row> = vec![Ok(Numbers::NONE); count];
    let work = Work { request, lines, at };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(count.div_ceil(CHUNK));
    let chunks = Mutex::new(rows.chunks_mut(CHUNK).enumerate());
    let go = || {
        let mut kept = Kept::of(work.lines.len(), count);
        // The next chunk is taken before it is worked on, so that the lock is free meanwhile.
        let next = || chunks.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some((chunk, rows)) = next() {
            if context.watcher().cancelled() {
                return;
            }
            for (beyond, row) in rows.iter_mut().enumerate() {
                *row = work.row(chunk * CHUNK + beyond, &mut kept);
            }
        }
    };
    if threads > 1 {
        thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(go))));
    } else {
        go();
    }
    if context.watcher().cancelled() { Err(Error::Cancelled) } else { Ok(rows) }
}

/// Every combination of names that rows have, and which of them each row has.
fn lines(context: &Context, request: &Request, count: usize) -> Result<(Vec<Found<Line>>, Column<u32>)> {
    let Request { model, on, precision, phase, tier, .. } = request;
    let named = Named {
        models: found(context, model, "model", |name| context.model(name).map(Arc::new).map_err(|error| why(&error)))?,
        machines: found(context, on, "device", |name| {
            let device = context.device(name.trim()).map_err(|error| why(&error))?;
            Ok(Arc::new(machine::usual(context, device, None)))
        })?,
        plans: found_or(context, precision, None, |text| one_plan(text).map(Some))?,
        phases: found_or(context, phase, Phase::Decode, |text| text.trim().parse().map_err(|error: Core| why(&error)))?,
        tiers: found_or(context, tier, None, |text| text.trim().parse().map(Some).map_err(|error: Core| why(&error)))?,
    };
    let columns = [&model.rows, &on.rows, &precision.rows, &phase.rows, &tier.rows];
    let key = |row: usize| columns.map(|column| column.at(row));
    if columns.iter().all(|column| column.len().is_none()) {
        return Ok((vec![named.line(key(0))], Column::One(0)));
    }
    let mut lines = Vec::new();
    let mut places: HashMap<Key, u32> = HashMap::new();
    let mut last: Option<(Key, u32)> = None;
    let mut at = Vec::with_capacity(count);
    for row in 0..count {
        let key = key(row);
        let place = match last {
            Some((known, place)) if known == key => place,
            _ => *places.entry(key).or_insert_with(|| {
                lines.push(named.line(key));
                lines.len() as u32 - 1
            }),
        };
        last = Some((key, place));
        at.push(place);
    }
    Ok((lines, Column::Rows(at)))
}

/// What the names of a column stand for, each looked up once; a name that is left out is an error of its rows.
fn found<T, F>(
    context: &Context,
    names: &Names<T>,
    what: &str,
    find: impl Fn(&T) -> Found<F>,
) -> Result<Vec<Found<F>>> {
    let none = || Err(Reason::from(format!("the row names no {what}")));
    looked_up(context, names, |name| name.as_ref().map_or_else(none, &find))
}

/// The same where a name may be left out.
fn found_or<T, F: Clone>(
    context: &Context,
    names: &Names<T>,
    left_out: F,
    find: impl Fn(&T) -> Found<F>,
) -> Result<Vec<Found<F>>> {
    looked_up(context, names, |name| name.as_ref().map_or_else(|| Ok(left_out.clone()), &find))
}

/// Names may be as many as rows, and each takes its time, so whoever asked may stop here, too.
fn looked_up<T, F>(
    context: &Context,
    names: &Names<T>,
    find: impl Fn(&Option<T>) -> Found<F>,
) -> Result<Vec<Found<F>>> {
    let one = |name| if context.watcher().cancelled() { Err(Error::Cancelled) } else { Ok(find(name)) };
    names.distinct.iter().map(one).collect()
}

/// A row has one plan, where `predict` may have several.
fn one_plan(text: &str) -> Found<Plan> {
    let mut plans = Plan::list(text).map_err(|error| why(&error))?;
    match (plans.pop(), plans.len()) {
        (Some(plan), 0) => Ok(plan),
        (_, before) => Err(format!("`{text}` is {} plans, and a row has one", before + 1).into()),
    }
}

fn why(error: &dyn std::error::Error) -> Reason {
    error.to_string().into()
}

/// What the names of a request stand for.
struct Named {
    models: Vec<Found<Arc<Model>>>,
    machines: Vec<Found<Arc<Machine>>>,
    /// None is the device's own first.
    plans: Vec<Found<Option<Plan>>>,
    phases: Vec<Found<Phase>>,
    tiers: Vec<Found<Option<Tier>>>,
}

impl Named {
    fn line(&self, [at, on, precision, phase, tier]: Key) -> Found<Line> {
        let model = Arc::clone(self.models[at as usize].as_ref().map_err(Arc::clone)?);
        let machine = Arc::clone(self.machines[on as usize].as_ref().map_err(Arc::clone)?);
        let own;
        let plan = if let Some(plan) = self.plans[precision as usize].as_ref().map_err(Arc::clone)? {
            plan
        } else {
            own = plans(&[], Varies::Model(&model), &machine.device).map_err(|error| why(&error))?;
            own.first().ok_or_else(|| Reason::from("the device has no plan"))?
        };
        let assignment = plan.on(&machine.device, Some(&model.anatomy)).map_err(|error| why(&error))?;
        let phase = self.phases[phase as usize].clone()?;
        let tier = machine::spoken(self.tiers[tier as usize].clone()?, &machine.device);
        Ok(Line { model, machine, assignment, phase, tier })
    }
}

/// What a thread needs to know.
struct Work<'a> {
    request: &'a Request,
    lines: Vec<Found<Line>>,
    /// Which line a row is on.
    at: Column<u32>,
}

impl Work<'_> {
    fn row<'a>(&'a self, row: usize, kept: &mut Kept<'a>) -> Row {
        let at = self.at.at(row);
        let Line { model, machine, assignment, phase, tier } = self.lines[at as usize].as_ref().map_err(Arc::clone)?;
        let batch = dimension("batch", self.request.batch.at(row))?;
        let context = dimension("context", self.request.context.at(row))?;
        let (lowering, phase, tier) = (Lowering::default(), *phase, *tier);
        let setup = Setup { model, machine, assignment, lowering, phase, tier };
        let told = workload(phase, batch, context).and_then(|workload| {
            let Passed { total, basis, footprint } = kept.pass(at, &setup, workload)?;
            Ok((total, basis, setup.concluded(&total, footprint, workload)))
        });
        let (total, basis, Told { footprint, tokens_per_s, fits }) = told.map_err(|error| why(&error))?;
        Ok(Numbers {
            expected_time_us: total.expected.time.micros(),
            lo_us: total.expected.low.micros(),
            hi_us: total.expected.high.micros(),
            ideal_time_us: total.ideal.time().micros(),
            tokens_per_s,
            memory_bytes: footprint.total().value(),
            fits,
            basis: Some(basis),
        })
    }
}

/// A number of a column as a dimension. Every number that is one is exact in 64 bit.
fn dimension(what: &str, value: f64) -> Found<u64> {
    if value.fract() == 0.0 && (1.0..=Dim::MAX as f64).contains(&value) {
        return Ok(value as u64);
    }
    let is = if value.is_nan() { "no number".to_owned() } else { value.to_string() };
    let rule = Core::NoDimension { text: value.to_string() };
    Err(format!("`{what}` is {is}: {rule}").into())
}

/// What a thread has found out: the kernels of lines, each at the place that its number falls on, and the newer one stays.
/// Memory is flat, however many lines there are.
struct Kept<'a> {
    lines: Vec<Option<(u32, Prepared<'a>)>>,
    kernels: Known,
}

impl<'a> Kept<'a> {
    /// For as many lines and rows.
    fn of(lines: usize, rows: usize) -> Self {
        let mut kept = Self { lines: Vec::new(), kernels: Known::of(rows) };
        kept.lines.resize_with(lines.clamp(1, LINES), || None);
        kept
    }

    /// The pass of the line of that number over a workload.
    fn pass(&mut self, line: u32, setup: &Setup<'a>, workload: Workload) -> roofline_core::Result<Passed> {
        let places = self.lines.len();
        let place = &mut self.lines[line as usize % places];
        let prepared = match place {
            Some((own, prepared)) if *own == line && prepared.takes(workload) => prepared,
            _ => &mut place.insert((line, setup.prepared(workload)?)).1,
        };
        prepared.pass(workload, line, &mut self.kernels)
    }
}
