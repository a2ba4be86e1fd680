//! Four bits: `x = w * (1 / amax)` for every 64 weights of the flattened matrix, and the code whose value is nearest; of
//! two that are as near, the lower. The first of two codes lies in the high half of a byte.
//!
//! Twice quantized, the mean of all maxima is taken off them, and what is left is coded the same way in blocks of 256,
//! with the 256 values of the dynamic type.

use std::sync::LazyLock;

use roofline_core::{
    Format,
    format::{BNB_FP4_ASCENDING, NF4, dynamic_values},
};
use serde::Deserialize;

use super::{
    super::{
        Block, Coding, Matrix, Part, Placing, Unsuited,
        grid::Element,
        packing::{pack_nibbles, unpack_nibbles},
        row::{code, expand, peaks},
        scales::{read_scales, write_scales},
    },
    Quantiles,
};
use crate::{
    Dtype,
    kernel_form::{CodesMut, KernelForm},
    rounding::{F32, clamp},
};

/// Weights that share a maximum.
const BLOCK: usize = 64;
/// Maxima that share a maximum.
const SECOND: usize = 256;
/// The least maximum that is divided by.
const LEAST: f32 = 1e-38;
/// Bytes that a number takes as text at most.
const LONGEST_NUMBER: usize = 24;

/// Codes with the maxima of their blocks.
pub(crate) struct Blocks {
    quantiles: Quantiles,
    double: bool,
    /// Weights that share a maximum: 64 unless a file says otherwise.
    block: usize,
    columns: usize,
    /// The model's type, which only the description names.
    dtype: Dtype,
    /// The type that the file says its codes have.
    storage: Dtype,
    /// Bytes of the description in a file; none where it is yet to be written.
    state: Option<usize>,
}

/// What a description says of a weight.
#[derive(Deserialize)]
pub(crate) struct State {
    pub(crate) quant_type: String,
    pub(crate) blocksize: usize,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

impl State {
    /// Whether it is one of a matrix that is read here.
    pub(crate) fn is_known(&self, quantiles: Quantiles) -> bool {
        self.quant_type == quantiles.name()
            && matches!(self.blocksize, 32 | 64 | 128 | 256 | 512 | 1024 | 2048 | 4096)
            && self.nested_blocksize.is_none_or(|second| second == SECOND && self.nested_offset.is_some())
    }
}

impl Blocks {
    pub(super) fn new(quantiles: Quantiles, double: bool, columns: usize, dtype: Dtype) -> Self {
        Self { quantiles, double, block: BLOCK, columns, dtype, storage: Dtype::U8, state: None }
    }

    /// As a file describes them in that many bytes, with codes of the type `storage`.
    pub(crate) fn described(
        state: &State,
        quantiles: Quantiles,
        columns: usize,
        storage: Dtype,
        bytes: usize,
        dtype: Dtype,
    ) -> Self {
        let double = state.nested_blocksize.is_some();
        Self { quantiles, double, block: state.blocksize, columns, dtype, storage, state: Some(bytes) }
    }

    /// The description of a matrix as JSON, with room for any mean.
    fn describe(&self, matrix: Matrix, mean: Option<f32>) -> Vec<u8> {
        let dtype = match self.dtype {
            Dtype::F16 => "float16",
            Dtype::F32 => "float32",
            _ => "bfloat16",
        };
        let (name, block, Matrix { rows, columns }) = (self.quantiles.name(), self.block, matrix);
        let mut text = format!(
            r#"{{"quant_type": "{name}", "blocksize": {block}, "dtype": "{dtype}", "shape": [{rows}, {columns}]"#
        );
        let mut spare = 0;
        if self.double {
            let number = serde_json::Value::from(f64::from(mean.unwrap_or(0.0))).to_string();
            spare = LONGEST_NUMBER.saturating_sub(number.len());
            text += &format!(r#", "nested_blocksize": {SECOND}, "nested_dtype": "float32", "nested_offset": {number}"#);
        }
        text.push('}');
        // The header of a file is written before the mean is known, so there are blanks after it.
        text.extend(std::iter::repeat_n(' ', spare));
        text.into_bytes()
    }

    /// Numbers of the matrix that are coded together.
    fn together(&self) -> usize {
        if self.double { self.block * SECOND } else { self.block }
    }

    /// Codes weights whose maxima are `maxima`.
    fn code(&self, values: &[f32], maxima: &[f32], codes: &mut [u8]) {
        let nearest = Nearest::of(self.quantiles.values(), self.quantiles == Quantiles::Fp4);
        let (inverse, zeros) = (inverses(maxima), vec![0.0; maxima.len()]);
        let whole = values.len() / self.block * self.block;
        code(nearest, &values[..whole], self.block, &inverse, &zeros, &mut codes[..whole]);
        // The library divides in the last block, if it is a short one.
        let last = maxima.last().map_or(LEAST, |last| last.max(LEAST));
        for (value, code) in values[whole..].iter().zip(&mut codes[whole..]) {
            (*code, _) = nearest.code(value / last, 1.0, 0.0);
        }
        nearest.rename(codes);
    }

    /// What codes stand for.
    fn expand(&self, table: [f32; 16], codes: &[u8], maxima: &[f32], decoded: &mut [f32]) {
        let whole = decoded.len() / self.block * self.block;
        let zeros = vec![0.0; maxima.len()];
        expand(Table(table), &codes[..whole], self.block, maxima, &zeros, &mut decoded[..whole]);
        if whole < decoded.len() {
            let (scale, rest) = (&maxima[whole / self.block..], decoded.len() - whole);
            expand(Table(table), &codes[whole..][..rest], rest, scale, &zeros, &mut decoded[whole..]);
        }
    }

    /// The maxima of blocks, the last perhaps of a short one.
    fn maxima(&self, values: &[f32]) -> Vec<f32> {
        let whole = values.len() / self.block * self.block;
        let mut maxima = vec![0.0; values.len().div_ceil(self.block)];
        peaks(&values[..whole], self.block, &mut maxima);
        if whole < values.len() {
            maxima[whole / self.block] = crate::number::peak(&values[whole..]).max(LEAST);
        }
        maxima
    }
}

/// What maxima are multiplied with instead of divided by.
fn inverses(maxima: &[f32]) -> Vec<f32> {
    maxima.iter().map(|max| 1.0 / max.max(LEAST)).collect()
}

/// Sixteen values, and in which order they ascend.
#[derive(Clone, Copy)]
struct Nearest {
    /// Between each value and the next above it.
    middles: [f32; 15],
    renamed: bool,
}

impl Nearest {
    fn of(values: [f32; 16], renamed: bool) -> Self {
        let at = |rank: usize| values[if renamed { usize::from(BNB_FP4_ASCENDING[rank]) } else { rank }];
        Self { middles: std::array::from_fn(|rank| f32::midpoint(at(rank), at(rank + 1))), renamed }
    }

    /// Ranks as codes.
    fn rename(self, codes: &mut [u8]) {
        if self.renamed {
            for code in codes {
                *code = BNB_FP4_ASCENDING[usize::from(*code & 15)];
            }
        }
    }
}

impl Element for Nearest {
    /// The rank of the value, by the inverse of the maximum.
    #[inline(always)]
    fn code(self, weight: f32, inverse: f32, _zero: f32) -> (u8, bool) {
        let x = clamp(weight * inverse, -1.0, 1.0);
        let mut rank = 0u8;
        for middle in self.middles {
            rank += u8::from(x > middle);
        }
        (rank, false)
    }

    fn value(self, _code: u8, _scale: f32, _zero: f32) -> f32 {
        f32::NAN
    }
}

/// Sixteen values by their codes.
#[derive(Clone, Copy)]
struct Table([f32; 16]);

impl Element for Table {
    fn code(self, _weight: f32, _scale: f32, _zero: f32) -> (u8, bool) {
        (0, false)
    }

    #[inline(always)]
    fn value(self, code: u8, scale: f32, _zero: f32) -> f32 {
        self.0[usize::from(code & 15)] * scale
    }
}

/// The middles between the values of the dynamic type.
static DYNAMIC_MIDDLES: LazyLock<Vec<f32>> =
    LazyLock::new(|| dynamic_values().windows(2).map(|pair| f32::midpoint(pair[0], pair[1])).collect());

/// Codes maxima without their mean, in blocks of 256; the last may be a short one. Stores the codes and the second maxima.
fn code_maxima(maxima: &[f32], mean: f32, codes: &mut [u8], second: &mut [f32]) {
    let blocks = maxima.chunks(SECOND).zip(codes.chunks_mut(SECOND));
    for ((maxima, codes), second) in blocks.zip(second) {
        let rest = |max: &f32| max - mean;
        let largest = maxima.iter().map(|max| rest(max).abs()).fold(0.0, f32::max);
        let full = maxima.len() == SECOND;
        *second = if full { largest } else { largest.max(LEAST) };
        let divisor = largest.max(LEAST);
        for (max, code) in maxima.iter().zip(codes) {
            let x = if full { rest(max) * (1.0 / divisor) } else { rest(max) / divisor };
            *code = DYNAMIC_MIDDLES.partition_point(|middle| *middle < x.clamp(-1.0, 1.0)) as u8;
        }
    }
}

/// The maxima that codes stand for.
fn decode_maxima(codes: &[u8], table: &[f32], second: &[f32], mean: f32) -> Vec<f32> {
    let blocks = codes.chunks(SECOND).zip(second);
    blocks.flat_map(|(codes, second)| codes.iter().map(move |code| table[usize::from(*code)] * second + mean)).collect()
}

/// The parts in their order: codes, maxima, values, perhaps those of the maxima, description.
impl Coding for Blocks {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        let Matrix { rows, columns } = matrix;
        if columns == 0 || columns != self.columns {
            return Err(format!("has {columns} columns"));
        }
        let all = rows.checked_mul(columns).ok_or("is too large")?;
        let size = self.storage.bytes();
        let held = 2 * size;
        if self.storage != Dtype::U8 && !all.is_multiple_of(held) {
            return Err(format!("has {all} weights, which fill no whole numbers of {}", self.storage));
        }
        let flat = |run, bytes| Placing::Flat { columns, run, bytes };
        let once = |bytes| Placing::Once { bytes };
        let (codes, blocks) = (all.div_ceil(held), all.div_ceil(self.block));
        let (dtype, bytes) = if self.double { (Dtype::U8, 1) } else { (Dtype::F32, 4) };
        let part = |name, dtype, shape, placing| Part { name, dtype, shape, placing };
        let mut parts = vec![
            part("weight", self.storage, vec![codes, 1], flat(held, size)),
            part("weight.absmax", dtype, vec![blocks], flat(self.block, bytes)),
            part("weight.quant_map", Dtype::F32, vec![16], once(64)),
        ];
        if self.double {
            let second = blocks.div_ceil(SECOND);
            parts.push(part("weight.nested_absmax", Dtype::F32, vec![second], flat(self.together(), 4)));
            parts.push(part("weight.nested_quant_map", Dtype::F32, vec![256], once(1024)));
        }
        let state = self.state.unwrap_or_else(|| self.describe(matrix, None).len());
        parts.push(part(self.quantiles.state(), Dtype::U8, vec![state], once(state)));
        Ok(parts)
    }

    fn unit(&self) -> usize {
        let together = self.together();
        let (mut a, mut b) = (together, self.columns.max(1));
        while b > 0 {
            (a, b) = (b, a % b);
        }
        together / a
    }

    fn needs_peak(&self) -> bool {
        self.double
    }

    /// The sum of the maxima.
    fn gather(&self, values: &[f32], _peak: f32) -> f64 {
        self.maxima(values).iter().map(|max| f64::from(*max)).sum()
    }

    /// Their mean.
    fn conclude(&self, matrix: Matrix, gathered: &[f64]) -> f32 {
        let blocks = (matrix.rows * matrix.columns).div_ceil(self.block);
        (gathered.iter().sum::<f64>() / blocks as f64) as f32
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let values = block.values;
        let mut maxima = self.maxima(values);
        let mut codes = vec![0; values.len()];
        self.code(values, &maxima, &mut codes);
        // An odd last code has that of zero beside it.
        if !codes.len().is_multiple_of(2) {
            let mut zero = [0];
            self.code(&[0.0], &[], &mut zero);
            codes.push(zero[0]);
        }
        pack_nibbles(&codes, 0, out[0]);
        swap_halves(out[0]);
        if self.double {
            let mut second = vec![0.0; maxima.len().div_ceil(SECOND)];
            code_maxima(&maxima, block.peak, out[1], &mut second);
            write_scales::<F32>(&second, out[3]);
            maxima = decode_maxima(out[1], dynamic_values(), &second, block.peak);
        } else {
            write_scales::<F32>(&maxima, out[1]);
        }
        self.expand(self.quantiles.values(), &codes[..values.len()], &maxima, decoded);
        0
    }

    fn constants(&self, matrix: Matrix, peak: f32) -> Vec<Vec<u8>> {
        let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let dynamic = self.double.then(|| bytes(dynamic_values()));
        let values = [bytes(&self.quantiles.values())];
        values.into_iter().chain(dynamic).chain([self.describe(matrix, Some(peak))]).collect()
    }

    fn decode(&self, _columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        let mut table = [0.0; 16];
        read_scales::<F32>(parts[2], &mut table);
        let blocks = decoded.len().div_ceil(self.block);
        let maxima = if self.double {
            let (mut second, mut dynamic) = (vec![0.0; blocks.div_ceil(SECOND)], [0.0; 256]);
            read_scales::<F32>(parts[3], &mut second);
            read_scales::<F32>(parts[4], &mut dynamic);
            // What was believed has a mean; without one, nothing is a number.
            let state = serde_json::from_slice::<State>(parts[5]).ok();
            let mean = state.and_then(|state| state.nested_offset).unwrap_or(f32::NAN);
            decode_maxima(parts[1], &dynamic, &second, mean)
        } else {
            let mut maxima = vec![0.0; blocks];
            read_scales::<F32>(parts[1], &mut maxima);
            maxima
        };
        let mut packed = parts[0].to_vec();
        swap_halves(&mut packed);
        let mut codes = vec![0; decoded.len()];
        unpack_nibbles(&packed, 0, &mut codes);
        self.expand(table, &codes, &maxima, decoded);
    }

    /// NF4 in the usual blocks, once quantized.
    fn kernel_form(&self, matrix: Matrix) -> Option<KernelForm> {
        let usual = self.quantiles == Quantiles::Nf4 && self.block == BLOCK && !self.double;
        if usual { KernelForm::new(Format::NF4, matrix, false) } else { None }
    }

    fn arrange(&self, _columns: usize, parts: &[&[u8]], into: CodesMut<'_>) -> Result<(), Unsuited> {
        let mut table = [0.0; 16];
        read_scales::<F32>(parts[2], &mut table);
        if table != NF4 {
            return Err("has a table of its own for what codes stand for".to_owned());
        }
        into.codes.copy_from_slice(parts[0]);
        swap_halves(into.codes);
        into.scales.copy_from_slice(parts[1]);
        Ok(())
    }
}

/// Swaps the halves of every byte.
fn swap_halves(bytes: &mut [u8]) {
    for byte in bytes {
        *byte = byte.rotate_left(4);
    }
}
