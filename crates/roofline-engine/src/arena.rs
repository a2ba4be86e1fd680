//! Memory for weights: a few large mappings, cut into matrices. A mapping of its own would leave the last of its huge pages
//! half empty, which is a tenth of a small model.

use std::sync::Mutex;

use roofline_run::cpu::Buffer;

use crate::{Error, Result};

/// Bytes of a mapping. What is not touched of it takes no memory.
const MAPPING: usize = 256 << 20;
/// A cache line: where matrices start.
const LINE: usize = 64;

/// Where matrices get their memory.
pub(crate) struct Arena(Mutex<Buffer>);

impl Arena {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Mutex::new(Buffer::zeroed(0).ok_or_else(|| Error::memory(0, "nothing"))?)))
    }

    /// Zeroed bytes for `what`.
    pub(crate) fn take(&self, bytes: usize, what: &str) -> Result<Buffer> {
        let refuse = || Error::memory(bytes as u64, what);
        let mut rest = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let whole = bytes.checked_next_multiple_of(LINE).ok_or_else(refuse)?;
        if whole > rest.len() {
            // What is larger than half a mapping would waste as much of it.
            if whole > MAPPING / 2 {
                return Buffer::zeroed(bytes).ok_or_else(refuse);
            }
            *rest = Buffer::zeroed(MAPPING).ok_or_else(refuse)?;
        }
        Ok(rest.take_front(whole).take_front(bytes))
    }
}
