//! What a method made of one layer, in a file of its own: a run that was interrupted takes it from there.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    ops::Range,
    path::Path,
    sync::Arc,
};

use super::{chosen::Chosen, share::share};
use crate::{
    Dtype, Error, Result,
    checkpoint::Shard,
    coding::{Grid, Matrix},
    rows::{Factors, Rows, Spare},
    safetensors::{Entry, Header},
};

/// What was made of one tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Made {
    pub(crate) chosen: Option<Chosen>,
    pub(crate) factors: Option<Factors>,
    /// How much an error in each input channel matters, where the coding goes by it.
    pub(crate) importance: Option<Vec<f32>>,
}

/// What was made of a layer's tensors, by their names, and what to know about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Layer {
    pub(crate) tensors: BTreeMap<String, Made>,
    /// Matrices that are left to rounding to nearest.
    pub(crate) nearest: Vec<String>,
    pub(crate) notes: Vec<String>,
}

/// The names of what is kept of a tensor.
const CODES: &str = "codes";
const SCALES: &str = "scales";
const ZEROS: &str = "zeros";
const COLUMNS: &str = "columns";
const ROWS: &str = "rows";
const OFFSET: &str = "offset";
const IMPORTANCE: &str = "importance";
/// The names of what is kept of a layer.
const NEAREST: &str = "nearest";
const NOTES: &str = "notes";

/// The bytes of numbers.
fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

impl Layer {
    /// Writes it, whole or not at all.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let (mut entries, mut data) = (Vec::new(), Vec::new());
        let mut add = |tensor: &str, part: &str, dtype: Dtype, own: Vec<u8>| {
            let begin = data.len() as u64;
            data.extend(own);
            let end = data.len() as u64;
            let shape = vec![(end - begin) as usize / dtype.bytes()];
            entries.push(Entry { name: format!("{tensor} {part}"), dtype, shape, begin, end });
        };
        for (name, made) in &self.tensors {
            if let Some(Chosen { codes, scales, zeros }) = &made.chosen {
                add(name, CODES, Dtype::U8, codes.clone());
                add(name, SCALES, Dtype::F32, bytes(scales));
                add(name, ZEROS, Dtype::F32, bytes(zeros));
            }
            if let Some(importance) = &made.importance {
                add(name, IMPORTANCE, Dtype::F32, bytes(importance));
            }
            if let Some(Factors { columns, rows, offset }) = &made.factors {
                for (part, numbers) in [(COLUMNS, columns), (ROWS, rows)] {
                    if let Some(numbers) = numbers {
                        add(name, part, Dtype::F32, bytes(numbers));
                    }
                }
                add(name, OFFSET, Dtype::F32, bytes(&[*offset]));
            }
        }
        let list = |name: &str, all: &[String]| (name.to_owned(), serde_json::to_string(all).unwrap_or_default());
        let head = Header::bytes(&[list(NEAREST, &self.nearest), list(NOTES, &self.notes)], &entries);
        let draft = path.with_extension("draft");
        let mut file = File::create(&draft).map_err(Error::file("create", &draft))?;
        let written = file.write_all(&head).and_then(|()| file.write_all(&data)).and_then(|()| file.sync_all());
        written.map_err(Error::file("write", &draft))?;
        fs::rename(&draft, path).map_err(Error::file("write", path))
    }
}

/// A layer where it is kept.
pub(crate) struct KeptLayer {
    shard: Arc<Shard>,
    pub(crate) nearest: Vec<String>,
    pub(crate) notes: Vec<String>,
}

impl KeptLayer {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let shard = Arc::new(Shard::open(path)?);
        let list = |name: &str| {
            let found = shard.header.metadata.iter().find(|(key, _)| key == name);
            found.and_then(|(_, text)| serde_json::from_str(text).ok()).unwrap_or_default()
        };
        let (nearest, notes) = (list(NEAREST), list(NOTES));
        Ok(Self { shard, nearest, notes })
    }

    fn entry(&self, tensor: &str, part: &str) -> Option<&Entry> {
        let name = format!("{tensor} {part}");
        self.shard.header.tensors.iter().find(|entry| entry.name == name)
    }

    fn numbers(&self, tensor: &str, part: &str) -> Result<Option<Vec<f32>>> {
        let Some(entry) = self.entry(tensor, part) else { return Ok(None) };
        let mut bytes = vec![0; entry.bytes() as usize];
        self.shard.read(entry, 0, &mut bytes)?;
        Ok(Some(floats(&bytes)))
    }

    /// What a tensor is multiplied by, if it is.
    pub(crate) fn factors(&self, tensor: &str) -> Result<Option<Factors>> {
        let Some(offset) = self.numbers(tensor, OFFSET)? else { return Ok(None) };
        let offset = offset.first().copied().unwrap_or(0.0);
        Ok(Some(Factors { columns: self.numbers(tensor, COLUMNS)?, rows: self.numbers(tensor, ROWS)?, offset }))
    }

    /// What was made of the matrices of an item, one below the other, by their names; none where nothing was of any of them.
    /// `group` weights of a row share a scale.
    pub(crate) fn chosen(&self, pieces: &[String], matrix: Matrix, group: usize) -> Option<KeptChosen> {
        let matrix = Matrix { rows: matrix.rows / pieces.len().max(1), ..matrix };
        let groups = matrix.columns / group.max(1);
        let piece = |name: &String| {
            let parts = [CODES, SCALES, ZEROS].map(|part| self.entry(name, part).cloned());
            let holds = |part: &Entry, each: usize| part.elements() == (matrix.rows * each) as u64;
            let choice = match parts {
                [Some(codes), Some(scales), Some(zeros)]
                    if holds(&codes, matrix.columns) && holds(&scales, groups) && holds(&zeros, groups) =>
                {
                    Some([codes, scales, zeros])
                }
                _ => None,
            };
            let importance = self.entry(name, IMPORTANCE).cloned();
            Piece { choice, importance: importance.filter(|entry| entry.elements() == matrix.columns as u64) }
        };
        let pieces: Vec<Piece> = pieces.iter().map(piece).collect();
        let made = pieces.iter().any(|piece| piece.choice.is_some() || piece.importance.is_some());
        made.then(|| KeptChosen { shard: Arc::clone(&self.shard), pieces, matrix, groups })
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// What was chosen for a tensor, where it is kept: for all of it, or for each matrix of a stack.
pub struct KeptChosen {
    shard: Arc<Shard>,
    pieces: Vec<Piece>,
    /// The shape of a piece.
    matrix: Matrix,
    groups: usize,
}

/// What is kept of one matrix.
struct Piece {
    /// Codes, scales and zero points.
    choice: Option<[Entry; 3]>,
    importance: Option<Entry>,
}

impl KeptChosen {
    /// How many matrices the tensor is made of.
    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// What was chosen for these rows, which are of one matrix, and how much its inputs matter.
    pub(crate) fn read(&self, rows: Range<usize>) -> Result<(Option<Chosen>, Option<Vec<f32>>)> {
        let at = rows.start / self.matrix.rows.max(1);
        let within = rows.start - at * self.matrix.rows..rows.end - at * self.matrix.rows;
        let Some(piece) = self.pieces.get(at) else { return Ok((None, None)) };
        let numbers = |entry: &Entry, range: Range<usize>| {
            let mut bytes = vec![0; range.len() * 4];
            self.shard.read(entry, (range.start * 4) as u64, &mut bytes)?;
            Ok::<_, Error>(floats(&bytes))
        };
        let importance = piece.importance.as_ref().map(|entry| numbers(entry, 0..self.matrix.columns)).transpose()?;
        let Some([codes, scales, zeros]) = &piece.choice else { return Ok((None, importance)) };
        let columns = self.matrix.columns;
        let groups = within.start * self.groups..within.end * self.groups;
        let mut own = vec![0; within.len() * columns];
        self.shard.read(codes, (within.start * columns) as u64, &mut own)?;
        let (scales, zeros) = (numbers(scales, groups.clone())?, numbers(zeros, groups)?);
        Ok((Some(Chosen { codes: own, scales, zeros }), importance))
    }

    /// What all of a piece stands for; none where nothing was chosen for it.
    pub(crate) fn values(&self, piece: usize, grid: &dyn Grid) -> Result<Option<Vec<f32>>> {
        let (chosen, _) = self.read(piece * self.matrix.rows..(piece + 1) * self.matrix.rows)?;
        Ok(chosen.map(|chosen| chosen.values(grid, self.matrix.columns)))
    }
}

/// All numbers of a matrix, read by that many threads.
pub(crate) fn read_all(rows: &dyn Rows, threads: usize) -> Result<Vec<f32>> {
    const BAND: usize = 128;
    let Matrix { rows: count, columns } = rows.matrix();
    let mut numbers = vec![0.0; count * columns];
    let band = BAND.next_multiple_of(rows.unit());
    let failed = std::sync::Mutex::new(None);
    let bands = numbers.chunks_mut((band * columns).max(1)).enumerate().collect();
    share(threads, bands, |(at, out): (usize, &mut [f32])| {
        let from = at * band;
        if let Err(error) = rows.read(from..(from + band).min(count), &mut Spare::default(), out) {
            failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(error);
        }
    });
    failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(numbers), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_layer_is_read_as_it_was_written() {
        let folder = Scratch::new("layer");
        let chosen =
            Chosen { codes: (0..32).collect(), scales: vec![0.5, 0.25, 2.0, 4.0], zeros: vec![1.0, 2.0, 3.0, 4.0] };
        let factors = Factors { columns: Some(vec![2.0, 3.0]), rows: None, offset: 1.0 };
        let tensors = BTreeMap::from([
            ("a.weight".to_owned(), Made { chosen: Some(chosen.clone()), ..Made::default() }),
            ("c.weight".to_owned(), Made { importance: Some(vec![0.5, 4.0]), ..Made::default() }),
            ("b.weight".to_owned(), Made { factors: Some(factors.clone()), ..Made::default() }),
        ]);
        let path = folder.path().join("layer-0000.safetensors");
        let (nearest, notes) = (vec!["d.weight".to_owned()], vec!["two of them".to_owned()]);
        Layer { tensors, nearest, notes }.write(&path).unwrap();
        let kept = KeptLayer::open(&path).unwrap();
        assert_eq!(
            (&kept.nearest[..], &kept.notes[..]),
            (&["d.weight".to_owned()][..], &["two of them".to_owned()][..])
        );
        assert_eq!(kept.factors("b.weight").unwrap(), Some(factors));
        assert_eq!(kept.factors("a.weight").unwrap(), None);
        let matrix = Matrix { rows: 2, columns: 16 };
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let found = kept.chosen(&named(&["a.weight"]), matrix, 8).unwrap();
        assert_eq!(found.read(0..2).unwrap(), (Some(chosen.clone()), None));
        let second = found.read(1..2).unwrap().0.unwrap();
        assert_eq!((&second.codes[..2], second.scales), (&[16, 17][..], vec![2.0, 4.0]));
        assert!(kept.chosen(&named(&["b.weight"]), matrix, 8).is_none());
        let tall = Matrix { rows: 4, columns: 16 };
        assert!(kept.chosen(&named(&["a.weight"]), tall, 8).is_none());
        // One of a stack, below another that nothing was chosen for.
        let found = kept.chosen(&named(&["b.weight", "a.weight"]), tall, 8).unwrap();
        assert_eq!((found.pieces(), found.read(0..2).unwrap()), (2, (None, None)));
        assert_eq!(found.read(2..4).unwrap().0, Some(chosen));
        // What a type's own search goes by, without codes.
        let found = kept.chosen(&named(&["c.weight"]), Matrix { rows: 3, columns: 2 }, 0).unwrap();
        assert_eq!(found.read(1..3).unwrap(), (None, Some(vec![0.5, 4.0])));
    }
}
