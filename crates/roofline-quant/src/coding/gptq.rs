//! Weights as GPTQ's packing stores them: transposed, input channels one after another in 32-bit words.
//!
//! `qweight` has a line per word of input channels, `qzeros` and `scales` one per group, and `g_idx` says which group an input
//! channel is of. The first version of the format stores zero points less one - which the unsigned fields cannot
//! hold for a zero point of zero, so that the field before it lends - and the second stores them as they are. Scales are FP16 whatever
//! the model is, as GPTQModel packs them. Rounding is `shifted`'s.

use std::fmt;

use super::{
    Block, Coding, Grid, Matrix, Part, Placing, Unsuited,
    row::{code, expand},
    scales::Span,
    shifted::{Shifted, pack, unpack},
};
use crate::{
    Dtype, Method, Result,
    rounding::{Bf16, F16, F32, Rounding},
};

/// How the weights of a layer are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// 2, 3, 4 or 8.
    pub bits: u8,
    /// Weights that share a scale; a row's where there is none.
    pub group: Option<u32>,
    /// Whether there are zero points.
    pub zero: bool,
}

/// How zero points are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Less one: `gptq`.
    First,
    /// As they are: `gptq_v2`.
    Second,
}

/// The widths that are packed.
pub const WIDTHS: [u8; 4] = [2, 3, 4, 8];
/// What rows and columns must be a multiple of: codes and zero points fill whole words whatever their width.
const WHOLE: usize = 32;

impl Scheme {
    /// How its zero points are stored by this program. One of zero has no place in the first version, so only symmetric
    /// weights, all of one zero point, are stored as that, which more runtimes read.
    pub const fn version(self) -> Version {
        if self.zero { Version::Second } else { Version::First }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bits, group, zero } = self;
        match group {
            None => write!(f, "GPTQ INT{bits} per channel")?,
            Some(group) => write!(f, "GPTQ INT{bits} in groups of {group}")?,
        }
        f.write_str(if *zero { " with zero points" } else { "" })
    }
}

/// The coding of `scheme`, with FP16 scales.
pub fn coding(scheme: Scheme, method: Method) -> Result<Box<dyn Coding>> {
    method.among(&[Method::Rtn], &scheme.to_string())?;
    Ok(Box::new(Gptq::<F16>::new(scheme, scheme.version(), true)))
}

/// What reads a checkpoint of that version with scales of `scale`, and with or without `g_idx`.
pub(crate) fn reading(scheme: Scheme, version: Version, scale: Dtype, indexed: bool) -> Option<Box<dyn Coding>> {
    Some(match scale {
        Dtype::F16 => Box::new(Gptq::<F16>::new(scheme, version, indexed)),
        Dtype::Bf16 => Box::new(Gptq::<Bf16>::new(scheme, version, indexed)),
        Dtype::F32 => Box::new(Gptq::<F32>::new(scheme, version, indexed)),
        _ => return None,
    })
}

/// GPTQ's packing with scales of `S`.
struct Gptq<S> {
    scheme: Scheme,
    version: Version,
    /// Whether there is `g_idx`.
    indexed: bool,
    scale: std::marker::PhantomData<S>,
}

impl<S: Rounding> Gptq<S> {
    fn new(scheme: Scheme, version: Version, indexed: bool) -> Self {
        Self { scheme, version, indexed, scale: std::marker::PhantomData }
    }

    /// Rows whose zero points fill whole words.
    fn together(&self) -> usize {
        if self.scheme.bits == 3 { WHOLE } else { WHOLE / usize::from(self.scheme.bits) }
    }

    /// A one in every field of a word, for fields that fill it.
    fn ones(&self) -> u32 {
        u32::MAX / ((1 << self.scheme.bits) - 1)
    }

    /// Packs zero points, of as many rows as fill whole words.
    fn pack_zeros(&self, zeros: &mut [u8], out: &mut [u8]) {
        let mask = ((1u16 << self.scheme.bits) - 1) as u8;
        if self.version == Version::First {
            for zero in zeros.iter_mut() {
                *zero = zero.wrapping_sub(1) & mask;
            }
        }
        pack(zeros, self.scheme.bits, out);
    }

    /// The zero points in whole words. Fields that fill a word are raised by one as a whole, as GPTQModel does, so that a field that
    /// lent gets back what it gave.
    fn unpack_zeros(&self, packed: &[u8], zeros: &mut [u8]) {
        let bits = self.scheme.bits;
        if self.version == Version::Second {
            return unpack(packed, bits, zeros);
        }
        if bits == 3 {
            unpack(packed, bits, zeros);
            for zero in zeros.iter_mut() {
                *zero = (*zero + 1) & 7;
            }
            return;
        }
        let mut words = packed.to_vec();
        for word in words.as_chunks_mut::<4>().0 {
            *word = u32::from_le_bytes(*word).wrapping_add(self.ones()).to_le_bytes();
        }
        unpack(&words, bits, zeros);
    }
}

/// Whether `index` gives every input channel the group that it is in by its place.
fn in_order(index: &[u8], group: usize) -> bool {
    index
        .as_chunks::<4>()
        .0
        .iter()
        .enumerate()
        .all(|(at, group_of)| u32::from_le_bytes(*group_of) as usize == at / group)
}

impl<S: Rounding> Coding for Gptq<S> {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        let Matrix { rows, columns } = matrix;
        let bits = usize::from(self.scheme.bits);
        let groups = Span::new(self.scheme.group).groups(columns)?;
        for (count, what) in [(rows, "rows"), (columns, "columns")] {
            if !count.is_multiple_of(WHOLE) {
                return Err(format!("has {count} {what}, and GPTQ's kernels take multiples of {WHOLE}"));
            }
        }
        let part =
            |name, dtype, lines: usize, wide: usize, placing| Part { name, dtype, shape: vec![lines, wide], placing };
        let (words, together) = (columns * bits / 32, self.together());
        let lines = |lines, rows, bytes| Placing::Columns { lines, rows, bytes };
        let size = S::DTYPE.bytes();
        let mut parts = vec![
            part("qweight", Dtype::I32, words, rows, lines(words, 1, 4)),
            part("qzeros", Dtype::I32, groups, rows * bits / 32, lines(groups, together, together * bits / 8)),
            part("scales", S::DTYPE, groups, rows, lines(groups, 1, size)),
        ];
        if self.indexed {
            let placing = Placing::Once { bytes: columns * 4 };
            parts.push(Part { name: "g_idx", dtype: Dtype::I32, shape: vec![columns], placing });
        }
        Ok(parts)
    }

    fn unit(&self) -> usize {
        self.together()
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let (columns, rows) = (block.columns, block.rows());
        let Scheme { bits, group, zero } = self.scheme;
        let group = Span::new(group).length(columns);
        let (groups, together, size) = (columns / group, self.together(), S::DTYPE.bytes());
        let whole = rows.next_multiple_of(together);
        let element = Shifted::new(bits);
        let (mut scales, mut zeros, mut codes) = (vec![0.0; groups], vec![0.0; groups], vec![0; columns]);
        let mut words = vec![0; columns * usize::from(bits) / 8];
        let mut lines = vec![0; groups * whole];
        let mut outside = 0;
        for (at, (row, decoded)) in
            block.values.chunks_exact(columns).zip(decoded.chunks_exact_mut(columns)).enumerate()
        {
            outside += if let Some(rows) = block.chosen {
                let into = (&mut scales[..], &mut zeros[..], &mut codes[..]);
                element.take(row, rows.row(at, columns, groups), group, into)
            } else {
                element.choose(row, group, !zero, &mut scales, &mut zeros);
                code(element, row, group, &scales, &zeros, &mut codes)
            };
            pack(&codes, bits, &mut words);
            for (word, line) in words.as_chunks::<4>().0.iter().zip(out[0].chunks_exact_mut(rows * 4)) {
                line[at * 4..][..4].copy_from_slice(word);
            }
            for (which, (scale, zero)) in scales.iter_mut().zip(&zeros).enumerate() {
                *scale = S::round(*scale);
                S::write(*scale, &mut out[2][(which * rows + at) * size..][..size]);
                lines[which * whole + at] = *zero as u8;
            }
            expand(element, &codes, group, &scales, &zeros, decoded);
        }
        let run = whole * usize::from(bits) / 8;
        for (zeros, line) in lines.chunks_exact_mut(whole).zip(out[1].chunks_exact_mut(run)) {
            self.pack_zeros(zeros, line);
        }
        outside
    }

    fn constants(&self, matrix: Matrix, _peak: f32) -> Vec<Vec<u8>> {
        let group = Span::new(self.scheme.group).length(matrix.columns);
        vec![(0..matrix.columns).flat_map(|at| ((at / group) as u32).to_le_bytes()).collect()]
    }

    fn grid(&self) -> Option<Box<dyn Grid>> {
        let Scheme { bits, group, zero } = self.scheme;
        Some(Shifted::new(bits).grid::<S>(Span::new(group), !zero))
    }

    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        let rows = decoded.len() / columns;
        let Scheme { bits, group, .. } = self.scheme;
        let group = Span::new(group).length(columns);
        let (groups, size) = (columns / group, S::DTYPE.bytes());
        let whole = rows.next_multiple_of(self.together());
        let element = Shifted::new(bits);
        let mut lines = vec![0; groups * whole];
        let run = whole * usize::from(bits) / 8;
        for (zeros, line) in lines.chunks_exact_mut(whole).zip(parts[1].chunks_exact(run)) {
            self.unpack_zeros(line, zeros);
        }
        let index = parts.get(3).filter(|index| !in_order(index, group));
        let (mut scales, mut zeros, mut codes) = (vec![0.0; groups], vec![0.0; groups], vec![0; columns]);
        let mut words = vec![0; columns * usize::from(bits) / 8];
        for (at, decoded) in decoded.chunks_exact_mut(columns).enumerate() {
            for (word, line) in words.as_chunks_mut::<4>().0.iter_mut().zip(parts[0].chunks_exact(rows * 4)) {
                word.copy_from_slice(&line[at * 4..][..4]);
            }
            unpack(&words, bits, &mut codes);
            for (which, (scale, zero)) in scales.iter_mut().zip(&mut zeros).enumerate() {
                *scale = S::read(&parts[2][(which * rows + at) * size..][..size]);
                *zero = f32::from(lines[which * whole + at]);
            }
            let Some(index) = index else {
                expand(element, &codes, group, &scales, &zeros, decoded);
                continue;
            };
            for ((value, code), group) in decoded.iter_mut().zip(&codes).zip(index.as_chunks::<4>().0) {
                // Who found these tensors looked whether there are as many groups.
                let group = (u32::from_le_bytes(*group) as usize).min(groups - 1);
                *value = super::grid::Element::value(element, *code, scales[group], zeros[group]);
            }
        }
    }
}
