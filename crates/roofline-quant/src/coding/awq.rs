//! Weights as AWQ's packing stores them: 4-bit codes transposed, eight output channels to a 32-bit word in the order that its
//! kernels unpack them fastest in.
//!
//! `qweight` has a line per input channel, `qzeros` and `scales` one per group. Rounding is `shifted`'s, with
//! zero points.

use std::{fmt, marker::PhantomData};

use super::{
    Block, Coding, Grid, Matrix, Part, Placing, Unsuited,
    row::{code, expand},
    scales::Span,
    shifted::Shifted,
};
use crate::{
    Dtype, Method, Result,
    rounding::{Bf16, F16, F32, Rounding},
};

/// How the weights of a layer are stored: 4 bits with zero points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// Weights that share a scale.
    pub group: u32,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AWQ INT4 in groups of {}", self.group)
    }
}

/// Which of eight rows the fields of a word are of, from the low end.
const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
/// Rows that share a word.
const TOGETHER: usize = ORDER.len();

/// The coding of `scheme`, with FP16 scales.
pub fn coding(scheme: Scheme, method: Method) -> Result<Box<dyn Coding>> {
    method.among(&[Method::Rtn], &scheme.to_string())?;
    Ok(Box::new(Awq::<F16>(scheme, PhantomData)))
}

/// What reads a checkpoint with scales of `scale`.
pub(crate) fn reading(scheme: Scheme, scale: Dtype) -> Option<Box<dyn Coding>> {
    Some(match scale {
        Dtype::F16 => Box::new(Awq::<F16>(scheme, PhantomData)),
        Dtype::Bf16 => Box::new(Awq::<Bf16>(scheme, PhantomData)),
        Dtype::F32 => Box::new(Awq::<F32>(scheme, PhantomData)),
        _ => return None,
    })
}

/// AWQ's packing with scales of `S`.
struct Awq<S>(Scheme, PhantomData<S>);

impl<S: Rounding> Awq<S> {
    fn span(&self) -> Span {
        Span::Group(self.0.group as usize)
    }
}

/// Ors the codes of the row that is `at` of its eight into words that are `stride` words apart.
fn put(codes: impl Iterator<Item = u8>, at: usize, words: &mut [u8], stride: usize) {
    let field = ORDER.iter().position(|row| *row == at).unwrap_or(0);
    for (code, word) in codes.zip(words.chunks_mut(stride * 4)) {
        word[field / 2] |= code << (field % 2 * 4);
    }
}

/// The codes that [`put`] put there.
fn get(words: &[u8], at: usize, stride: usize) -> impl Iterator<Item = u8> {
    let field = ORDER.iter().position(|row| *row == at).unwrap_or(0);
    words.chunks(stride * 4).map(move |word| word[field / 2] >> (field % 2 * 4) & 15)
}

impl<S: Rounding> Coding for Awq<S> {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        let Matrix { rows, columns } = matrix;
        let groups = self.span().groups(columns)?;
        if !rows.is_multiple_of(TOGETHER) {
            return Err(format!("has {rows} rows, and AWQ packs {TOGETHER} in a word"));
        }
        let part = |name, dtype, lines, wide, rows, bytes| {
            let placing = Placing::Columns { lines, rows, bytes };
            Part { name, dtype, shape: vec![lines, wide], placing }
        };
        Ok(vec![
            part("qweight", Dtype::I32, columns, rows / TOGETHER, TOGETHER, 4),
            part("qzeros", Dtype::I32, groups, rows / TOGETHER, TOGETHER, 4),
            part("scales", S::DTYPE, groups, rows, 1, S::DTYPE.bytes()),
        ])
    }

    fn unit(&self) -> usize {
        TOGETHER
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let (columns, rows) = (block.columns, block.rows());
        let group = self.span().length(columns);
        let (groups, size, stride) = (columns / group, S::DTYPE.bytes(), rows.div_ceil(TOGETHER));
        let element = Shifted::new(4);
        let (mut scales, mut zeros, mut codes) = (vec![0.0; groups], vec![0.0; groups], vec![0; columns]);
        let mut outside = 0;
        out[0].fill(0);
        out[1].fill(0);
        for (at, (row, decoded)) in
            block.values.chunks_exact(columns).zip(decoded.chunks_exact_mut(columns)).enumerate()
        {
            outside += if let Some(rows) = block.chosen {
                let into = (&mut scales[..], &mut zeros[..], &mut codes[..]);
                element.take(row, rows.row(at, columns, groups), group, into)
            } else {
                element.choose(row, group, false, &mut scales, &mut zeros);
                code(element, row, group, &scales, &zeros, &mut codes)
            };
            let word = at / TOGETHER * 4;
            put(codes.iter().copied(), at % TOGETHER, &mut out[0][word..], stride);
            put(zeros.iter().map(|zero| *zero as u8), at % TOGETHER, &mut out[1][word..], stride);
            for (which, scale) in scales.iter_mut().enumerate() {
                *scale = S::round(*scale);
                S::write(*scale, &mut out[2][(which * rows + at) * size..][..size]);
            }
            expand(element, &codes, group, &scales, &zeros, decoded);
        }
        outside
    }

    fn grid(&self) -> Option<Box<dyn Grid>> {
        Some(Shifted::new(4).grid::<S>(self.span(), false))
    }

    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        let rows = decoded.len() / columns;
        let group = self.span().length(columns);
        let (groups, size, stride) = (columns / group, S::DTYPE.bytes(), rows.div_ceil(TOGETHER));
        let (mut scales, mut zeros, mut codes) = (vec![0.0; groups], vec![0.0; groups], vec![0; columns]);
        for (at, decoded) in decoded.chunks_exact_mut(columns).enumerate() {
            let word = at / TOGETHER * 4;
            for (code, found) in codes.iter_mut().zip(get(&parts[0][word..], at % TOGETHER, stride)) {
                *code = found;
            }
            for (zero, found) in zeros.iter_mut().zip(get(&parts[1][word..], at % TOGETHER, stride)) {
                *zero = f32::from(found);
            }
            for (which, scale) in scales.iter_mut().enumerate() {
                *scale = S::read(&parts[2][(which * rows + at) * size..][..size]);
            }
            expand(Shifted::new(4), &codes, group, &scales, &zeros, decoded);
        }
    }
}
