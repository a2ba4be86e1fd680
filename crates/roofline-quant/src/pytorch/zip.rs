//! The directory of a zip archive whose members are not compressed, so that each is a range of the file.
//!
//! Sizes and places come from the directory at the end, also in its form for more than 4 GB; members that overlap, are
//! compressed, encrypted or named twice are refused. Names are compared, and never used as paths.

use std::{collections::BTreeMap, ops::Range};

use super::Source;

/// The longest directory that is read: 70 bytes for a member.
const LONGEST_DIRECTORY: u64 = 32 << 20;
/// Bytes of the record at the end, without the comment that may follow it.
const END: usize = 22;
/// Bytes of a member's own header, without its name.
const LOCAL: usize = 30;
/// Bytes of a member's entry in the directory, without its name.
const ENTRY: usize = 46;

/// A member's data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) begin: u64,
    pub(super) end: u64,
}

impl Member {
    pub(super) fn bytes(self) -> u64 {
        self.end - self.begin
    }
}

fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    bytes[at..at + size].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Every member, by name.
pub(super) fn members(source: &Source<'_>) -> Result<BTreeMap<String, Member>, String> {
    let (at, count) = directory(source)?;
    if at.end - at.start > LONGEST_DIRECTORY {
        return Err(format!("its directory has more than {LONGEST_DIRECTORY} bytes"));
    }
    let bytes = source.bytes(at.start, at.end - at.start)?;
    let mut left = &bytes[..];
    let mut members = BTreeMap::new();
    let mut spans = Vec::new();
    while !left.is_empty() {
        let (name, local, size) = entry(&mut left)?;
        let begin = data(source, &name, local).map_err(|reason| format!("its member `{name}` {reason}"))?;
        let end = begin.checked_add(size).filter(|end| *end <= at.start);
        let end = end.ok_or_else(|| format!("its member `{name}` ends beyond the others"))?;
        spans.push((local, end));
        if members.insert(name.clone(), Member { begin, end }).is_some() {
            return Err(format!("two members are named `{name}`"));
        }
    }
    if members.len() as u64 != count {
        return Err(format!("its directory has {} members instead of {count}", members.len()));
    }
    spans.sort_unstable();
    if spans.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return Err("its members overlap".to_owned());
    }
    Ok(members)
}

/// Where the directory is, and how many members it has.
fn directory(source: &Source<'_>) -> Result<(Range<u64>, u64), String> {
    let tail = source.length.min((END + usize::from(u16::MAX)) as u64);
    let tail_at = source.length - tail;
    let tail = source.bytes(tail_at, tail)?;
    // The last place where the record fits with its comment, which is all that follows it.
    let is_end = |at: &usize| {
        tail[*at..].starts_with(b"PK\x05\x06") && number(&tail, at + 20, 2) as usize == tail.len() - at - END
    };
    let end = (0..(tail.len() + 1).saturating_sub(END)).rev().find(is_end);
    let end = end.ok_or("it is cut short: a zip archive has its directory at the end")?;
    let (mut count, mut size, mut at) =
        (number(&tail, end + 10, 2), number(&tail, end + 12, 4), number(&tail, end + 16, 4));
    let mut until = tail_at + end as u64;
    if count == u64::from(u16::MAX) || size == u64::from(u32::MAX) || at == u64::from(u32::MAX) {
        let locator = until.checked_sub(20).map(|at| source.bytes(at, 20)).transpose()?.unwrap_or_default();
        if !locator.starts_with(b"PK\x06\x07") {
            return Err("its directory is not where its end says".to_owned());
        }
        until = number(&locator, 8, 8);
        let record = source.bytes(until, 56)?;
        if !record.starts_with(b"PK\x06\x06") {
            return Err("its directory is not where its end says".to_owned());
        }
        (count, size, at) = (number(&record, 32, 8), number(&record, 40, 8), number(&record, 48, 8));
    }
    match at.checked_add(size) {
        Some(end) if end <= until => Ok((at..end, count)),
        _ => Err("its directory is not where its end says".to_owned()),
    }
}

/// The next entry of the directory: a name, where the member begins, and how long its data are.
fn entry(left: &mut &[u8]) -> Result<(String, u64, u64), String> {
    let broken = || "its directory is damaged".to_owned();
    if left.len() < ENTRY || !left.starts_with(b"PK\x01\x02") {
        return Err(broken());
    }
    let length = |at| number(left, at, 2) as usize;
    let (flags, method, lengths) = (length(8), length(10), [length(28), length(30), length(32)]);
    let [mut stored, mut size] = [number(left, 20, 4), number(left, 24, 4)];
    let mut local = number(left, 42, 4);
    let rest = &left[ENTRY..];
    if rest.len() < lengths.iter().sum() {
        return Err(broken());
    }
    let name = String::from_utf8(rest[..lengths[0]].to_vec()).map_err(|_| broken())?;
    // Numbers that do not fit into four bytes follow in a field of their own, in this order.
    let mut wide = wide(&rest[lengths[0]..lengths[0] + lengths[1]]);
    for number in [&mut size, &mut stored, &mut local] {
        if *number == u64::from(u32::MAX) {
            *number = wide.next().ok_or_else(broken)?;
        }
    }
    *left = &rest[lengths.iter().sum()..];
    if flags & 1 != 0 {
        return Err(format!("its member `{name}` is encrypted"));
    }
    if method != 0 || stored != size {
        return Err(format!("its member `{name}` is compressed, and `torch.save` compresses nothing"));
    }
    Ok((name, local, size))
}

/// The numbers of the field for large archives.
fn wide(mut fields: &[u8]) -> impl Iterator<Item = u64> {
    let mut found: &[u8] = &[];
    while fields.len() >= 4 {
        let (kind, size) = (number(fields, 0, 2), number(fields, 2, 2) as usize);
        let field = &fields[4..];
        let size = size.min(field.len());
        if kind == 1 {
            found = &field[..size];
            break;
        }
        fields = &field[size..];
    }
    found.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Where the data of a member begin: after its own header, which has padding of its own length.
fn data(source: &Source<'_>, name: &str, local: u64) -> Result<u64, String> {
    let header = source.bytes(local, LOCAL as u64)?;
    if !header.starts_with(b"PK\x03\x04") || number(&header, 26, 2) as usize != name.len() {
        return Err("is not where the directory says".to_owned());
    }
    let own = source.bytes(local + LOCAL as u64, name.len() as u64)?;
    if own != name.as_bytes() {
        return Err("has another name in its own header".to_owned());
    }
    Ok(local + LOCAL as u64 + name.len() as u64 + number(&header, 28, 2))
}
