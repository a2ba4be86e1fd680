//! Memory that is timed: aligned to huge pages, so that what is measured is the memory and not the page walker.

#![allow(unsafe_code)]

use std::{
    alloc::{Layout, alloc, dealloc},
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
};

/// A huge page on x86-64 and on ARM with 4 KiB granules.
const HUGE_PAGE: usize = 2 << 20;
/// A cache line, which is also the widest vector.
const LINE: usize = 64;

/// Zeroed bytes. Large buffers start on a huge page and ask the kernel for more of them (`MADV_HUGEPAGE`); small ones
/// start on a cache line.
pub struct Buffer {
    start: NonNull<u8>,
    length: usize,
    layout: Layout,
}

impl Buffer {
    /// `length` zeroed bytes, or none where the machine has no room for them.
    pub fn zeroed(length: usize) -> Option<Self> {
        let align = if length >= HUGE_PAGE { HUGE_PAGE } else { LINE };
        let layout = Layout::from_size_align(length.max(1), align).ok()?.pad_to_align();
        // SAFETY: the layout has a non-zero size.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        #[cfg(target_os = "linux")]
        if align == HUGE_PAGE {
            // Before the first touch, which is what decides the size of a page.
            // SAFETY: the range is ours; a refused hint changes nothing but the speed.
            unsafe { libc::madvise(start.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        // SAFETY: as many bytes as were allocated.
        unsafe { start.write_bytes(0, layout.size()) };
        Some(Self { start, length, layout })
    }

    /// A copy of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut buffer = Self::zeroed(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Some(buffer)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `length` initialised bytes that this value owns.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

// SAFETY: it owns its bytes, as a `Vec<u8>` does.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buffer {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_zeroed() {
        for length in [0, 1, 63, 4096, HUGE_PAGE, HUGE_PAGE + 1] {
            let mut buffer = Buffer::zeroed(length).unwrap();
            assert_eq!((buffer.len(), buffer.as_ptr() as usize % LINE), (length, 0));
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(7);
            assert_eq!(&*Buffer::from_bytes(&buffer).unwrap(), &*buffer);
        }
        assert_eq!(Buffer::zeroed(HUGE_PAGE).unwrap().as_ptr() as usize % HUGE_PAGE, 0);
        assert!(Buffer::zeroed(usize::MAX - 1).is_none());
    }
}
