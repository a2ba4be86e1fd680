//! What the libraries themselves store for a small matrix, and a way to compare.

use std::collections::BTreeMap;

use roofline_core::hash::fnv1a;
use serde::Deserialize;

use super::{Block, Coding, Matrix, Placing};
use crate::{Dtype, job::part_bytes, rounding::Bf16, rounding::F16, rounding::Rounding};

/// Vectors made by the libraries; the file says by which.
#[derive(Deserialize)]
pub(crate) struct Golden {
    shape: [usize; 2],
    matrix: String,
    bytes: BTreeMap<String, BTreeMap<String, String>>,
    hashes: BTreeMap<String, BTreeMap<String, String>>,
}

/// Everything one matrix is stored as.
pub(crate) struct Encoded {
    /// Whole tensors by name.
    pub(crate) tensors: BTreeMap<&'static str, Vec<u8>>,
    /// What they decode to.
    pub(crate) decoded: Vec<f32>,
    /// Weights outside the range.
    pub(crate) outside: u64,
}

/// Codes a matrix block by block, as a writer would, and checks that what was stored decodes to what was announced.
pub(crate) fn store(coding: &dyn Coding, values: &[f32], columns: usize, importance: Option<&[f32]>) -> Encoded {
    let rows = values.len() / columns;
    let matrix = Matrix { rows, columns };
    let parts = coding.parts(matrix).unwrap();
    let step = coding.unit().max(3).next_multiple_of(coding.unit());
    let peak = if coding.needs_peak() {
        let blocks = values.chunks(step * columns);
        let gathered = blocks.map(|block| coding.gather(block, crate::number::peak(block)));
        coding.conclude(matrix, &gathered.collect::<Vec<_>>())
    } else {
        0.0
    };
    let mut once = coding.constants(matrix, peak).into_iter();
    let mut whole: Vec<Vec<u8>> = parts
        .iter()
        .map(|part| match part.placing {
            Placing::Once { bytes } => once.next().inspect(|constant| assert_eq!(constant.len(), bytes)).unwrap(),
            _ => vec![0xa5; part.shape.iter().product::<usize>() * part.dtype.bytes()],
        })
        .collect();
    let mut decoded = vec![f32::NAN; values.len()];
    let mut outside = 0;
    for first in (0..rows).step_by(step) {
        let count = step.min(rows - first);
        let mut blocks: Vec<Vec<u8>> = parts
            .iter()
            .map(|part| match part.placing {
                Placing::Once { .. } => Vec::new(),
                _ => vec![0x5a; part_bytes(part, count)],
            })
            .collect();
        let here = first * columns..(first + count) * columns;
        let block = Block { values: &values[here.clone()], columns, peak, importance, chosen: None };
        let mut out: Vec<&mut [u8]> = blocks.iter_mut().map(Vec::as_mut_slice).collect();
        outside += coding.encode(block, &mut out, &mut decoded[here.clone()]);
        for ((part, block), whole) in parts.iter().zip(&mut blocks).zip(&mut whole) {
            match part.placing {
                Placing::Rows { rows, bytes } => whole[first / rows * bytes..][..block.len()].copy_from_slice(block),
                Placing::Flat { columns, run, bytes } => {
                    whole[first * columns / run * bytes..][..block.len()].copy_from_slice(block);
                }
                Placing::Columns { rows: together, bytes, .. } => {
                    let all = rows.div_ceil(together);
                    for (line, block) in block.chunks(count.div_ceil(together) * bytes).enumerate() {
                        whole[(line * all + first / together) * bytes..][..block.len()].copy_from_slice(block);
                    }
                }
                Placing::Once { .. } => block.clone_from(whole),
            }
        }
        let given: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
        let mut back = vec![f32::NAN; here.len()];
        coding.decode(columns, &given, &mut back);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&back), bits(&decoded[here]), "decoding what was stored");
    }
    Encoded { tensors: parts.iter().map(|part| part.name).zip(whole).collect(), decoded, outside }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// As the file of vectors writes a hash.
pub(crate) fn hash(bytes: &[u8]) -> String {
    format!("{:016x}", fnv1a(bytes))
}

impl Golden {
    pub(crate) fn read() -> Self {
        serde_json::from_str(include_str!("../../tests/golden/vectors.json")).unwrap()
    }

    /// Those of bitsandbytes and MLX.
    pub(crate) fn boxes() -> Self {
        serde_json::from_str(include_str!("../../tests/golden/boxes.json")).unwrap()
    }

    /// Replaces bytes of a vector.
    pub(crate) fn replace(&mut self, name: &str, tensor: &str, at: std::ops::Range<usize>, byte: u8) {
        let text = self.bytes.get_mut(name).and_then(|tensors| tensors.get_mut(tensor)).unwrap();
        text.replace_range(2 * at.start..2 * at.end, &hex(&vec![byte; at.len()]));
    }

    /// The upper left of the matrix, in another type.
    pub(crate) fn matrix(&self, dtype: Dtype, rows: usize, columns: usize) -> Vec<f32> {
        let bytes: Vec<u8> = (0..self.matrix.len() / 2)
            .map(|at| u8::from_str_radix(&self.matrix[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        let all: Vec<f32> = bytes.chunks_exact(2).map(Bf16::read).collect();
        let part = all.chunks(self.shape[1]).take(rows).flat_map(|row| &row[..columns]);
        part.map(|value| if dtype == Dtype::F16 { F16::round(*value) } else { *value }).collect()
    }

    /// Compares what `coding` stores with every vector whose name begins with `prefix` (or, where that is empty, with
    /// those of no library's name). Returns how many there were.
    pub(crate) fn compare(&self, prefix: &str, coding: impl Fn(&str, Dtype, usize) -> Box<dyn Coding>) -> usize {
        let mine = |name: &str| if prefix.is_empty() { !name.starts_with("torchao") } else { name.starts_with(prefix) };
        let mut compared = 0;
        for (name, tensors) in self.bytes.iter().filter(|(name, _)| mine(name)) {
            let [rows, columns] = self.shape;
            let values = self.matrix(Dtype::Bf16, rows, columns);
            let stored = store(&*coding(name, Dtype::Bf16, columns), &values, columns, None);
            let found: BTreeMap<_, _> =
                stored.tensors.iter().map(|(name, bytes)| ((*name).to_owned(), hex(bytes))).collect();
            assert_eq!(&found, tensors, "{name}");
            compared += 1;
        }
        for (case, tensors) in self.hashes.iter().filter(|(name, _)| mine(name)) {
            let [name, dtype, rows, columns] = case.split(' ').collect::<Vec<_>>().try_into().unwrap();
            let (dtype, columns) = (Dtype::named(dtype).unwrap(), columns.parse().unwrap());
            let values = self.matrix(dtype, rows.parse().unwrap(), columns);
            let stored = store(&*coding(name, dtype, columns), &values, columns, None);
            let found: BTreeMap<_, _> =
                stored.tensors.iter().map(|(name, bytes)| ((*name).to_owned(), hash(bytes))).collect();
            assert_eq!(&found, tensors, "{case}");
            compared += 1;
        }
        compared
    }
}
