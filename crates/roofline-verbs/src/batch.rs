//! Many whole-model forecasts at once: columns in, columns out, one pass of a model for each row.
//!
//! Every row is told by what tells `predict model`, so the numbers are the same to the last bit. What rows have in common -
//! models, devices, plans, what a plan means for a model on a device - is found once. A row that cannot be predicted has a
//! text instead of numbers, and the others go on: one bad name in a million must not cost the rest.

mod rows;

use std::sync::Arc;

use roofline_core::machine::Basis;

use crate::{Context, Error, Note, Result, request::ModelName};

/// The values of a column: one for all rows, or one for each.
#[derive(Clone, Debug, PartialEq)]
pub enum Column<T> {
    /// The same for every row.
    One(T),
    /// One for each.
    Rows(Vec<T>),
}

impl<T: Copy> Column<T> {
    /// How many rows it has, where it says so.
    fn len(&self) -> Option<usize> {
        match self {
            Self::One(_) => None,
            Self::Rows(values) => Some(values.len()),
        }
    }

    /// The value of a row that is there.
    fn at(&self, row: usize) -> T {
        match self {
            Self::One(value) => *value,
            Self::Rows(values) => values[row],
        }
    }
}

/// A column of names. Names repeat, so each is kept once, and rows say which; none is a name that is left out.
#[derive(Clone, Debug)]
pub struct Names<T> {
    /// The names, each once.
    pub distinct: Vec<Option<T>>,
    /// Which of them a row has.
    pub rows: Column<u32>,
}

impl<T> Names<T> {
    /// One name for all rows.
    pub fn one(name: Option<T>) -> Self {
        Self { distinct: vec![name], rows: Column::One(0) }
    }

    /// Whether rows only speak of names that are there.
    fn is_whole(&self) -> bool {
        let known = |row: &u32| (*row as usize) < self.distinct.len();
        match &self.rows {
            Column::One(row) => known(row),
            Column::Rows(rows) => rows.iter().all(known),
        }
    }
}

/// Columns of one length, and single values that hold for every row.
#[derive(Clone, Debug)]
pub struct Request {
    /// Models, as `predict model` names them.
    pub model: Names<ModelName>,
    /// Devices.
    pub on: Names<String>,
    /// Plans; left out, the first that `predict` would show on the device.
    pub precision: Names<String>,
    /// Sequences side by side. Whatever is no dimension is an error of its row.
    pub batch: Column<f64>,
    /// Tokens of the prompt, or in the cache.
    pub context: Column<f64>,
    /// Which pass; decode where it is left out.
    pub phase: Names<String>,
    /// Which time `tokens_per_s` speaks of.
    pub tier: Names<String>,
}

/// Columns; row `i` is the forecast of row `i` of the request. Where it has an error, numbers are NaN and the rest is none.
#[derive(Default)]
pub struct Answer {
    pub expected_time_us: Vec<f64>,
    pub lo_us: Vec<f64>,
    pub hi_us: Vec<f64>,
    pub ideal_time_us: Vec<f64>,
    pub tokens_per_s: Vec<f64>,
    pub memory_bytes: Vec<f64>,
    pub fits: Vec<Option<bool>>,
    pub basis: Vec<Option<Basis>>,
    /// Why a row has no forecast. Rows that fail for one reason share its text.
    pub error: Vec<Option<Arc<str>>>,
    pub notes: Vec<Note>,
}

/// Every row, on all cores.
pub fn batch(context: &Context, request: &Request) -> Result<Answer> {
    let count = request.rows()?;
    let rows = rows::all(context, request, count)?;
    let mut answer = Answer::with_capacity(count);
    for row in rows {
        answer.push(row);
    }
    Ok(Answer { notes: context.notes(), ..answer })
}

impl Request {
    /// How many rows there are: as many as the columns have, and one where everything is a single value.
    fn rows(&self) -> Result<usize> {
        let Self { model, on, precision, batch, context, phase, tier } = self;
        let lengths = [
            ("model", model.rows.len()),
            ("on", on.rows.len()),
            ("precision", precision.rows.len()),
            ("batch", batch.len()),
            ("context", context.len()),
            ("phase", phase.rows.len()),
            ("tier", tier.rows.len()),
        ];
        let mut columns = lengths.into_iter().filter_map(|(name, length)| Some((name, length?)));
        let (first, count) = columns.next().unwrap_or(("", 1));
        if let Some((other, length)) = columns.find(|(_, length)| *length != count) {
            let message = format!("`{first}` has {count} rows, and `{other}` has {length}");
            return Err(Error::request(message, "columns have one length, and single values hold for every row"));
        }
        let whole = [on, precision, phase, tier].into_iter().all(Names::is_whole) && model.is_whole();
        if whole { Ok(count) } else { Err(Error::request("a row has a name that is not in its column", "")) }
    }
}

impl Answer {
    fn with_capacity(count: usize) -> Self {
        let numbers = || Vec::with_capacity(count);
        Self {
            expected_time_us: numbers(),
            lo_us: numbers(),
            hi_us: numbers(),
            ideal_time_us: numbers(),
            tokens_per_s: numbers(),
            memory_bytes: numbers(),
            fits: Vec::with_capacity(count),
            basis: Vec::with_capacity(count),
            error: Vec::with_capacity(count),
            notes: Vec::new(),
        }
    }

    fn push(&mut self, row: rows::Row) {
        let (numbers, error) = match row {
            Ok(numbers) => (numbers, None),
            Err(error) => (rows::Numbers::NONE, Some(error)),
        };
        self.expected_time_us.push(numbers.expected_time_us);
        self.lo_us.push(numbers.lo_us);
        self.hi_us.push(numbers.hi_us);
        self.ideal_time_us.push(numbers.ideal_time_us);
        self.tokens_per_s.push(numbers.tokens_per_s);
        self.memory_bytes.push(numbers.memory_bytes);
        self.fits.push(numbers.fits);
        self.basis.push(numbers.basis);
        self.error.push(error);
    }
}

#[cfg(test)]
mod tests;
