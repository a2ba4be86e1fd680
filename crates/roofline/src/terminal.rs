//! Somebody at a terminal, who follows a verb at work: notes as they come, and a bar on standard error where that is one.

use std::{
    io::IsTerminal,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use roofline_core::wording;
use roofline_verbs::{Note, Watcher};

use crate::report::style;

/// Kernels, one after the other.
const KERNELS: &str = "{bar:24} {pos}/{len} {elapsed} {wide_msg}";
/// Bytes that are gone through.
const BYTES: &str = "{bar:32} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta} left";

/// A watcher with a bar.
#[derive(Default)]
pub(crate) struct Terminal {
    bar: Mutex<Option<ProgressBar>>,
}

impl Terminal {
    /// The bar, begun where there is none.
    fn bar(&self, length: u64, template: &str) -> ProgressBar {
        let mut bar = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
        bar.get_or_insert_with(|| {
            if !std::io::stderr().is_terminal() {
                return ProgressBar::hidden();
            }
            let bar = ProgressBar::new(length);
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        })
        .clone()
    }
}

impl Watcher for Terminal {
    fn note(&self, note: &Note) {
        let say = || style::talk(note.kind.name(), &wording::flags(&note.text));
        match &*self.bar.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(bar) => bar.suspend(say),
            None => say(),
        }
    }

    fn size(&self, bytes: u64) {
        self.bar(bytes, BYTES);
    }

    fn advance(&self, bytes: u64) {
        if let Some(bar) = &*self.bar.lock().unwrap_or_else(PoisonError::into_inner) {
            bar.inc(bytes);
        }
    }

    fn starts(&self, at: usize, count: usize, words: &str) {
        let bar = self.bar(count as u64, KERNELS);
        bar.set_position(at as u64);
        bar.set_message(words.to_owned());
    }

    fn ends(&self) {
        if let Some(bar) = self.bar.lock().unwrap_or_else(PoisonError::into_inner).take() {
            bar.finish_and_clear();
        }
    }
}
