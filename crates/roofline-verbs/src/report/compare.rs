//! A comparison.

mod explanation;
mod page;
mod table;
mod text;
mod trace;

use super::keep;
use crate::{Context, Result, compare};

impl compare::Answer {
    /// As one HTML file.
    pub fn page(&self) -> String {
        page::page(self)
    }

    /// The comparison, with its page written where it goes.
    pub fn with_page(context: &Context, request: &compare::Request) -> Result<Self> {
        let mut answer = compare::compare(context, request)?;
        let page = if answer.report.is_some() { answer.page() } else { String::new() };
        keep(context, &mut answer.report, &mut answer.notes, &page);
        Ok(answer)
    }
}
