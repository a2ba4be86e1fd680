//! Rows that move: new keys and values into the cache, in its format, and tokens' rows out of the embedding.

#![allow(unsafe_code, clippy::inline_always)]

use roofline_isa::{
    Kernel, Vector, launch,
    number::{to_e4m3, to_e5m2},
};

use super::{Elementwise, Heads, PIECE, Pointers, Target, plain, split, target};
use crate::cpu::{
    kernels::{
        convert::{narrow, widen},
        element::Kind,
        linear::Decoder,
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
        self.kv_write_heads(pool, (x, Heads::dense(1, x.columns)), slots, cache)
    }

    /// The same for heads inside of wider rows: there is a slot for each head of each token.
    ///
    /// # Panics
    ///
    /// When a slot is outside of the cache or given twice.
    pub fn kv_write_heads(
        &self,
        pool: &mut Pool,
        (x, heads): (Tensor<'_>, Heads),
        slots: &[usize],
        cache: Target<'_>,
    ) -> Result<(), Unsupported> {
        let count = x.rows * heads.count;
        let from = heads.input(&x)?;
        let Some(to) = Kind::of(cache.format) else {
            return Err(Unsupported(format!("a KV cache in {} has no CPU kernel that writes it", cache.format)));
        };
        let row = (heads.width * to.bytes()).max(1);
        let rows = cache.codes.len() / row;
        assert_eq!(cache.codes.len() % row, 0, "the cache has no whole rows");
        assert!(!to.scaled() || cache.scales.len() == 2 * rows, "the cache has another number of scales");
        let mut sorted = slots.to_vec();
        sorted.sort_unstable();
        assert!(
            sorted.len() == count && sorted.last().is_none_or(|last| *last < rows),
            "a slot is outside of the cache"
        );
        assert!(sorted.windows(2).all(|pair| pair[0] != pair[1]), "a slot is given twice");
        let Target { codes, scales, .. } = cache;
        let (a, out, scales) = (x.codes.as_ptr(), codes.as_mut_ptr(), scales.as_mut_ptr());
        let pointers = Pointers { a, b: std::ptr::null(), out, scales };
        let bytes = count * heads.width * (from.bytes() + to.bytes());
        split(pool, count, 1, bytes, |part| {
            let pointers = &pointers;
            launch(self.isa, Write { pointers: *pointers, kinds: (from, to), heads, slots, part });
        });
        Ok(())
    }

    /// Copies heads from where they lie to where they are wanted, in the format that is wanted there.
    ///
    /// # Panics
    ///
    /// When shapes disagree.
    pub fn copy_heads(
        &self,
        pool: &mut Pool,
        (x, from): (Tensor<'_>, Heads),
        (out, to): (Target<'_>, Heads),
    ) -> Result<(), Unsupported> {
        assert_eq!((from.count, from.width), (to.count, to.width), "the heads have different shapes");
        let kinds = (from.input(&x)?, to.output(&out, x.rows)?);
        let (a, out) = (x.codes.as_ptr(), out.codes.as_mut_ptr());
        let pointers = Pointers { a, b: std::ptr::null(), out, scales: std::ptr::null_mut() };
        let rows = x.rows * from.count;
        split(pool, rows, 1, rows * from.width * (kinds.0.bytes() + kinds.1.bytes()), |part| {
            let pointers = &pointers;
            launch(self.isa, Move { pointers: *pointers, kinds, from, to, part });
        });
        Ok(())
    }

    /// Copies row `tokens[i]` of `table`, which may be stored in any format that products read, to row `i` of `out`.
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
        let to = target(&out, tokens.len() * table.columns)?;
        assert!(tokens.iter().all(|token| *token < table.rows), "a token is outside of the embedding");
        let codes = out.codes;
        let (a, out) = (table.codes.as_ptr(), codes.as_mut_ptr());
        let pointers = Pointers { a, b: std::ptr::null(), out, scales: std::ptr::null_mut() };
        if Kind::plain(table.format).is_none() {
            let (decoder, width) = (Decoder::new(table)?, table.columns);
            split(pool, tokens.len(), 1, tokens.len() * width * (4 + to.bytes()), |part| {
                let pointers = &pointers;
                launch(self.isa, Decode { pointers: *pointers, decoder: &decoder, kind: to, width, tokens, part });
            });
            return Ok(());
        }
        let from = plain("embedding", &table)?;
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

struct Decode<'a> {
    pointers: Pointers,
    decoder: &'a Decoder<'a>,
    kind: Kind,
    width: usize,
    tokens: &'a [usize],
    part: std::ops::Range<usize>,
}

impl Kernel for Decode<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let mut piece = [0f32; PIECE];
            for row in self.part {
                let mut start = 0;
                while start < self.width {
                    let n = PIECE.min(self.width - start);
                    self.decoder.decode(self.tokens[row], start, &mut piece[..n]);
                    let to = self.pointers.out.add((row * self.width + start) * self.kind.bytes());
                    narrow::<V>(self.kind, piece.as_ptr(), n, to);
                    start += n;
                }
            }
        }
    }
}

struct Move {
    pointers: Pointers,
    kinds: (Kind, Kind),
    from: Heads,
    to: Heads,
    part: std::ops::Range<usize>,
}

impl Kernel for Move {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            for row in self.part {
                let from = self.pointers.a.add(self.from.at(row) * self.kinds.0.bytes());
                let to = self.pointers.out.add(self.to.at(row) * self.kinds.1.bytes());
                cast::<V>(self.kinds, from, self.from.width, to);
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
pub(super) unsafe fn cast<V: Vector>(kinds: (Kind, Kind), from: *const u8, width: usize, to: *mut u8) {
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
    heads: Heads,
    slots: &'a [usize],
    part: std::ops::Range<usize>,
}

impl Kernel for Write<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            for row in self.part.clone() {
                let from = self.pointers.a.add(self.heads.at(row) * self.kinds.0.bytes());
                let slot = self.slots[row];
                let to = self.pointers.out.add(slot * self.heads.width * self.kinds.1.bytes());
                if self.kinds.1.scaled() {
                    self.quantize::<V>(from, to, self.pointers.scales.add(2 * slot));
                } else {
                    cast::<V>(self.kinds, from, self.heads.width, to);
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
            while start < self.heads.width {
                let n = PIECE.min(self.heads.width - start);
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
            while start < self.heads.width {
                let n = PIECE.min(self.heads.width - start);
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
