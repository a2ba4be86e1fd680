//! Rows that move: new keys and values into the cache, in its format, and tokens' rows out of the embedding.

#![allow(unsafe_code, clippy::inline_always)]

use roofline_isa::{
    Kernel, Vector, launch,
    number::{to_e4m3, to_e5m2},
};

use super::{Elementwise, PIECE, Pointers, Target, plain, split, target};
use crate::cpu::{
    kernels::{
        convert::{narrow, widen},
        element::Kind,
    },
    pool::Pool,
    tensor::Tensor,
    unsupported::Unsupported,
};

impl Elementwise {
    /// Writes row `i` of `x` to row `slots[i]` of a cache, rounded to its format. A scale per row is
    /// `absmax / largest code`, rounded up to BF16 so that nothing is clipped, as `Format::encode` chooses it.
    ///
    /// # Panics
    ///
    /// When a slot is outside of the cache or given twice.
    pub fn kv_write(
        &self,
        pool: &mut Pool,
        x: Tensor<'_>,
        slots: &[usize],
        cache: Target<'_>,
    ) -> Result<(), Unsupported> {
        let from = plain("input", &x)?;
        let Some(to) = Kind::of(cache.format) else {
            return Err(Unsupported(format!("a KV cache in {} has no CPU kernel that writes it", cache.format)));
        };
        let row = (x.columns * to.bytes()).max(1);
        let rows = cache.codes.len() / row;
        assert_eq!(cache.codes.len() % row, 0, "the cache has no whole rows");
        assert!(!to.scaled() || cache.scales.len() == 2 * rows, "the cache has another number of scales");
        let mut sorted = slots.to_vec();
        sorted.sort_unstable();
        assert!(
            sorted.len() == x.rows && sorted.last().is_none_or(|last| *last < rows),
            "a slot is outside of the cache"
        );
        assert!(sorted.windows(2).all(|pair| pair[0] != pair[1]), "a slot is given twice");
        let Target { codes, scales, .. } = cache;
        let (a, out, scales) = (x.codes.as_ptr(), codes.as_mut_ptr(), scales.as_mut_ptr());
        let pointers = Pointers { a, b: std::ptr::null(), out, scales };
        let bytes = x.rows * x.columns * (from.bytes() + to.bytes());
        split(pool, x.rows, 1, bytes, |part| {
            let pointers = &pointers;
            launch(self.isa, Write { pointers: *pointers, kinds: (from, to), width: x.columns, slots, part });
        });
        Ok(())
    }

    /// Copies row `tokens[i]` of `table` to row `i` of `out`.
    ///
    /// # Panics
    ///
    /// When a token is outside of the table.
    pub fn embedding(
        &self,
        pool: &mut Pool,
        table: Tensor<'_>,
        tokens: &[usize],
        out: Target<'_>,
    ) -> Result<(), Unsupported> {
        let from = plain("embedding", &table)?;
        let to = target(&out, tokens.len() * table.columns)?;
        assert!(tokens.iter().all(|token| *token < table.rows), "a token is outside of the embedding");
        let codes = out.codes;
        let (a, out) = (table.codes.as_ptr(), codes.as_mut_ptr());
        let pointers = Pointers { a, b: std::ptr::null(), out, scales: std::ptr::null_mut() };
        let bytes = tokens.len() * table.columns * (from.bytes() + to.bytes());
        split(pool, tokens.len(), 1, bytes, |part| {
            let pointers = &pointers;
            launch(self.isa, Lookup { pointers: *pointers, kinds: (from, to), width: table.columns, tokens, part });
        });
        Ok(())
    }
}

struct Lookup<'a> {
    pointers: Pointers,
    kinds: (Kind, Kind),
    width: usize,
    tokens: &'a [usize],
    part: std::ops::Range<usize>,
}

impl Kernel for Lookup<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            for row in self.part {
                let from = self.pointers.a.add(self.tokens[row] * self.width * self.kinds.0.bytes());
                let to = self.pointers.out.add(row * self.width * self.kinds.1.bytes());
                cast::<V>(self.kinds, from, self.width, to);
            }
        }
    }
}

/// Copies a row, by way of FP32 where the formats differ.
///
/// # Safety
///
/// The processor has `V`'s instruction set; `from` has `width` elements of the first kind, and `to` room for as many of
/// the second.
#[inline(always)]
unsafe fn cast<V: Vector>(kinds: (Kind, Kind), from: *const u8, width: usize, to: *mut u8) {
    unsafe {
        if kinds.0 == kinds.1 {
            return std::ptr::copy_nonoverlapping(from, to, width * kinds.0.bytes());
        }
        let mut piece = [0f32; PIECE];
        let mut start = 0;
        while start < width {
            let n = PIECE.min(width - start);
            widen::<V>(kinds.0, from.add(start * kinds.0.bytes()), n, piece.as_mut_ptr());
            narrow::<V>(kinds.1, piece.as_ptr(), n, to.add(start * kinds.1.bytes()));
            start += n;
        }
    }
}

struct Write<'a> {
    pointers: Pointers,
    kinds: (Kind, Kind),
    width: usize,
    slots: &'a [usize],
    part: std::ops::Range<usize>,
}

impl Kernel for Write<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            for row in self.part.clone() {
                let from = self.pointers.a.add(row * self.width * self.kinds.0.bytes());
                let slot = self.slots[row];
                let to = self.pointers.out.add(slot * self.width * self.kinds.1.bytes());
                if self.kinds.1.scaled() {
                    self.quantize::<V>(from, to, self.pointers.scales.add(2 * slot));
                } else {
                    cast::<V>(self.kinds, from, self.width, to);
                }
            }
        }
    }
}

impl Write<'_> {
    /// Stores a row with a scale of its own.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set; `from` has `width` elements of the first kind; there is room for as
    /// many of the second at `to`, and for a BF16 number at `scale_at`.
    #[inline(always)]
    unsafe fn quantize<V: Vector>(&self, from: *const u8, to: *mut u8, scale_at: *mut u8) {
        unsafe {
            let (from_kind, to_kind) = self.kinds;
            let mut piece = [0f32; PIECE];
            let mut largest = V::zero();
            let mut start = 0;
            while start < self.width {
                let n = PIECE.min(self.width - start);
                widen::<V>(from_kind, from.add(start * from_kind.bytes()), n, piece.as_mut_ptr());
                piece[n..n.next_multiple_of(V::LANES)].fill(0.0);
                let mut at = 0;
                while at < n {
                    largest = largest.max(V::load(piece.as_ptr().add(at)).abs());
                    at += V::LANES;
                }
                start += n;
            }
            let code = scale_above(largest.maximum() / largest_code(to_kind));
            scale_at.cast::<[u8; 2]>().write(code.to_le_bytes());
            let scale = f32::from_bits(u32::from(code) << 16);
            let mut start = 0;
            while start < self.width {
                let n = PIECE.min(self.width - start);
                widen::<V>(from_kind, from.add(start * from_kind.bytes()), n, piece.as_mut_ptr());
                let divisor = V::splat(scale);
                let mut at = 0;
                while at < n {
                    let value = V::load(piece.as_ptr().add(at)).div(divisor);
                    value.store(piece.as_mut_ptr().add(at));
                    if to_kind == Kind::Int8 && at + V::LANES <= n {
                        value.store_i8(to.add(start + at));
                    }
                    at += V::LANES;
                }
                let codes = std::slice::from_raw_parts_mut(to.add(start), n);
                let pairs = codes.iter_mut().zip(&piece[..n]);
                match to_kind {
                    Kind::E4m3 => pairs.for_each(|(code, value)| *code = to_e4m3(*value)),
                    Kind::E5m2 => pairs.for_each(|(code, value)| *code = to_e5m2(*value)),
                    _ => {
                        let rest = pairs.skip(n - n % V::LANES);
                        rest.for_each(|(code, value)| *code = (value.round_ties_even() as i8).cast_unsigned());
                    }
                }
                start += n;
            }
        }
    }
}

/// What the largest magnitude of a row is divided by: all 256 codes of an integer are in use.
fn largest_code(kind: Kind) -> f32 {
    match kind {
        Kind::E4m3 => 448.0,
        Kind::E5m2 => 57_344.0,
        _ => 127.5,
    }
}

/// The smallest BF16 number that is not below `ideal`; one for a row of zeros.
fn scale_above(ideal: f32) -> u16 {
    if ideal == 0.0 || ideal.is_nan() {
        return 0x3f80;
    }
    let bits = ideal.to_bits();
    (bits >> 16) as u16 + u16::from(bits & 0xffff != 0)
}
