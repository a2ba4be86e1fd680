//! A pipeline.

mod page;
mod text;

use super::keep;
use crate::{Context, Result, pipeline};

impl pipeline::Answer {
    /// As one HTML file.
    pub fn page(&self) -> String {
        page::page(self)
    }

    /// What a pipeline found, with its page written where it goes.
    pub fn with_page(context: &Context, request: &pipeline::Request) -> Result<Self> {
        let mut answer = pipeline::pipeline(context, request)?;
        let page = if answer.report.is_some() { answer.page() } else { String::new() };
        keep(context, &mut answer.report, &mut answer.notes, &page);
        Ok(answer)
    }
}
