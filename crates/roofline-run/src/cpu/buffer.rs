//! Memory that is timed: aligned to huge pages, so that what is measured is the memory and not the page walker.

#![allow(unsafe_code)]

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
    sync::Arc,
};

/// A huge page on x86-64 and on ARM with 4 KiB granules.
const HUGE_PAGE: usize = 2 << 20;
/// A cache line, which is also the widest vector.
const LINE: usize = 64;

/// Zeroed bytes. Large buffers start on a huge page, ask the kernel for more of them (`MADV_HUGEPAGE`), and are not touched
/// before their user touches them: the first touch decides which socket a page belongs to. Small ones start on a cache
/// line.
pub struct Buffer {
    start: NonNull<u8>,
    length: usize,
    /// What it is a part of, given back with the last part.
    memory: Arc<Memory>,
}

/// How the memory was come by, and so how it is given back.
enum Memory {
    Allocated {
        start: NonNull<u8>,
        layout: Layout,
    },
    #[cfg(unix)]
    Mapped {
        address: *mut libc::c_void,
        bytes: usize,
    },
}

impl Buffer {
    /// `length` zeroed bytes, or none where the machine has no room for them.
    pub fn zeroed(length: usize) -> Option<Self> {
        #[cfg(unix)]
        if length >= HUGE_PAGE {
            return Self::mapped(length);
        }
        let layout = Layout::from_size_align(length.max(1), LINE).ok()?.pad_to_align();
        // SAFETY: the layout has a non-zero size.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, length, memory: Arc::new(Memory::Allocated { start, layout }) })
    }

    /// Fresh pages from the kernel, which are zero.
    #[cfg(unix)]
    fn mapped(length: usize) -> Option<Self> {
        let bytes = length.checked_next_multiple_of(HUGE_PAGE)?.checked_add(HUGE_PAGE)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping of no file.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return None;
        }
        let start = address.cast::<u8>().map_addr(|address| address.next_multiple_of(HUGE_PAGE));
        #[cfg(target_os = "linux")]
        // SAFETY: the range is ours; a refused hint changes nothing but the speed.
        unsafe {
            libc::madvise(start.cast(), length, libc::MADV_HUGEPAGE);
        }
        Some(Self { start: NonNull::new(start)?, length, memory: Arc::new(Memory::Mapped { address, bytes }) })
    }

    /// The first `bytes` bytes; the rest stays. Many matrices in one mapping leave no page of it half empty. The rest starts
    /// on a cache line if `bytes` is a multiple of 64.
    ///
    /// # Panics
    ///
    /// When there are fewer bytes.
    #[must_use]
    pub fn take_front(&mut self, bytes: usize) -> Self {
        assert!(bytes <= self.length, "a buffer of {} bytes has no {bytes} to give", self.length);
        let front = Self { start: self.start, length: bytes, memory: Arc::clone(&self.memory) };
        // SAFETY: within the buffer, or one past its end.
        self.start = unsafe { self.start.add(bytes) };
        self.length -= bytes;
        front
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

impl Drop for Memory {
    fn drop(&mut self) {
        match *self {
            // SAFETY: allocated with this layout, and nobody has a part of it any more.
            Self::Allocated { start, layout } => unsafe { dealloc(start.as_ptr(), layout) },
            #[cfg(unix)]
            // SAFETY: mapped with this address and length, and nobody has a part of it any more.
            Self::Mapped { address, bytes } => {
                let _ = unsafe { libc::munmap(address, bytes) };
            }
        }
    }
}

// SAFETY: only an address to give back.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}
// SAFETY: it owns its bytes, as a `Vec<u8>` does; parts of one mapping do not overlap.
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

    #[test]
    fn parts_outlive_each_other() {
        for length in [300, HUGE_PAGE + 300] {
            let mut second = Buffer::zeroed(length).unwrap();
            let mut first = second.take_front(128);
            let empty = second.take_front(0);
            first.fill(1);
            second.fill(2);
            assert_eq!((first.len(), second.len(), empty.len()), (128, length - 128, 0));
            drop((first, empty));
            assert!(second.iter().all(|byte| *byte == 2));
        }
    }
}
