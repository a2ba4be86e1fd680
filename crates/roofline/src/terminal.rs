//! Somebody at a terminal, who follows a verb at work: notes as they come, and a bar on standard error where that is one.

use std::{
    io::{self, IsTerminal, Write},
    sync::{
        Arc, Mutex, Once, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use roofline_core::wording;
use roofline_verbs::{Note, Watcher};

use crate::report::{Format, style};

/// Kernels, one after the other.
const KERNELS: &str = "{bar:24} {pos}/{len} {elapsed} {wide_msg}";
/// Bytes that are gone through.
const BYTES: &str = "{bar:32} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta} left";

/// The exit code of a program that Ctrl-C ended, as shells count it: 128 and the number of the signal.
pub(crate) const INTERRUPTED: u8 = 130;

/// A watcher with a bar.
pub(crate) struct Terminal {
    bar: Mutex<Option<ProgressBar>>,
    /// Whether text is shown as it comes; else it is a part of the answer only.
    streams: bool,
    /// Whether somebody has seen enough.
    enough: Arc<AtomicBool>,
    /// Signals are waited for once, however many verbs of a row heed them: two who wait would take one Ctrl-C for two.
    heeding: Once,
}

impl Terminal {
    /// Somebody who gets answers in this form.
    pub(crate) fn of(form: Format) -> Self {
        Self { bar: Mutex::default(), streams: form == Format::Text, enough: Arc::default(), heeding: Once::new() }
    }

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

/// What a model says must not drive the terminal.
fn harmless(text: &str) -> String {
    let drives = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t');
    text.chars().map(|letter| if drives(letter) { char::REPLACEMENT_CHARACTER } else { letter }).collect()
}

/// Waits for Ctrl-C: the first ends the work, the second the program.
fn interrupted(enough: &AtomicBool) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    runtime.block_on(async {
        crate::server::signal().await;
        if !enough.swap(true, Ordering::Relaxed) {
            crate::server::signal().await;
        }
    });
    std::process::exit(INTERRUPTED.into());
}

impl Watcher for Terminal {
    fn piece(&self, text: &str) {
        if !self.streams {
            return;
        }
        let mut out = io::stdout().lock();
        let text = if out.is_terminal() { harmless(text) } else { text.to_owned() };
        // Whoever read the text has gone: nobody wants the rest of it.
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            self.enough.store(true, Ordering::Relaxed);
        }
    }

    fn heeds(&self) {
        self.heeding.call_once(|| {
            let enough = Arc::clone(&self.enough);
            thread::spawn(move || interrupted(&enough));
        });
    }

    fn cancelled(&self) -> bool {
        self.enough.load(Ordering::Relaxed)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_breaks_lines_and_nothing_else() {
        assert_eq!(harmless("a\n\tb\u{1b}[31mc\r"), "a\n\tb\u{fffd}[31mc\u{fffd}");
    }
}
