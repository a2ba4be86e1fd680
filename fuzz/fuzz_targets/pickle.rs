//! Checkpoints of PyTorch from anywhere: never a panic, never a tensor outside the file, nothing run.

#![no_main]

use std::io;

use libfuzzer_sys::fuzz_target;
use roofline_quant::pytorch::{Source, tensors};

/// What comes before the pickle and after it in an archive of these two members: so that bytes which are no archive are
/// tried as a pickle.
fn archive(pickle: &[u8]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in [("x/data.pkl", pickle), ("x/data/0", &[0; 64])] {
        let at = (file.len() as u32).to_le_bytes();
        let size = (data.len() as u32).to_le_bytes();
        let middle = [&[0; 12][..], &size, &size, &(name.len() as u16).to_le_bytes(), &[0, 0]].concat();
        file.extend([b"PK\x03\x04\0\0", &middle[..], name.as_bytes(), data].concat());
        directory.extend([b"PK\x01\x02\0\0\0\0", &middle[..], &[0; 10], &at, name.as_bytes()].concat());
    }
    let (at, length) = (file.len() as u32, directory.len() as u32);
    file.extend(directory);
    file.extend([b"PK\x05\x06\0\0\0\0\x02\0\x02\0", &length.to_le_bytes()[..], &at.to_le_bytes(), &[0, 0]].concat());
    file
}

fn look(file: &[u8]) {
    let length = file.len() as u64;
    let read = |bytes: &mut [u8], at: u64| {
        let from = usize::try_from(at).ok().and_then(|at| file.get(at..at.checked_add(bytes.len())?));
        bytes.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    for entry in tensors(&Source { read: &read, length }).unwrap_or_default() {
        assert!(entry.begin <= entry.end && entry.end <= length);
        let elements: u64 = entry.shape.iter().map(|dim| *dim as u64).product();
        assert_eq!(elements * entry.dtype.bytes() as u64, entry.bytes());
    }
}

fuzz_target!(|bytes: &[u8]| {
    look(bytes);
    look(&archive(bytes));
});
