//! Bytes at their places in a file, and the room that a disk has.

use std::{fs::File, io, path::Path};

use crate::{Error, Result};

/// Reads all of `bytes` from a place on. Positioned reads leave no mapped pages behind, so memory stays bounded whatever the size
/// of the file, and a file that another process cuts short is an error instead of a signal.
#[cfg(unix)]
pub fn read_exact_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

/// Reads all of `bytes` from a place on.
#[cfg(windows)]
pub fn read_exact_at(file: &File, mut bytes: &mut [u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                bytes = &mut bytes[read..];
                at += read as u64;
            }
        }
    }
    Ok(())
}

/// Writes all of `bytes` from a place on.
#[cfg(unix)]
pub fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

/// Writes all of `bytes` from a place on.
#[cfg(windows)]
pub fn write_all_at(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, at)?;
        bytes = &bytes[written..];
        at += written as u64;
    }
    Ok(())
}

/// Refuses a disk that is too small.
pub fn enough_space(folder: &Path, needed: u64) -> Result<()> {
    match free_space(folder)? {
        Some(free) if free < needed => Err(Error::Space { path: folder.to_owned(), free, needed }),
        _ => Ok(()),
    }
}

/// Gives a file its room on the disk before anything is written to it, so that nobody else reckons with that; whether it was
/// given. A file system that cannot is left at the promise.
#[cfg(target_os = "linux")]
pub fn allocate(file: &File, bytes: u64) -> io::Result<bool> {
    use rustix::{
        fs::{FallocateFlags, fallocate},
        io::Errno,
    };
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return file.set_len(bytes).map(|()| false),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Other systems are left at the promise.
#[cfg(not(target_os = "linux"))]
pub fn allocate(file: &File, bytes: u64) -> io::Result<bool> {
    file.set_len(bytes).map(|()| false)
}

/// Bytes that are free, where the system tells.
#[cfg(unix)]
pub fn free_space(folder: &Path) -> Result<Option<u64>> {
    let disk =
        rustix::fs::statvfs(folder).map_err(io::Error::from).map_err(Error::file("ask for the space of", folder))?;
    Ok(Some(disk.f_bavail.saturating_mul(disk.f_frsize)))
}

/// Other systems are asked by writing.
#[cfg(not(unix))]
pub fn free_space(_folder: &Path) -> Result<Option<u64>> {
    Ok(None)
}
