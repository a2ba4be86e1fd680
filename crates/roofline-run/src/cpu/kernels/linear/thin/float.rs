//! Weights that become FP32 in a few shifts, times `x` in FP32.
//!
//! * BF16: a dword holds two; the even one is shifted up, the odd one masked.
//! * FP8 (E4M3): a byte's fields, moved to their FP32 places, are a number of 2^-120 times the value. `x` is multiplied by a
//!   power of two so that no product comes near what FP32 cannot hold, and sums are multiplied back.
//!
//! `x` was laid out in the order that weights come out in.

use std::{marker::PhantomData, ops::Range};

use roofline_core::Math;
use roofline_isa::{Isa, Kernel, Vector, launch};

use super::{
    super::{
        weights::{Code, Stored},
        wide::Wide,
    },
    At, Fill, Job, Lane, Shape, Tile, columns,
};
use crate::cpu::kernels::convert::widen;

/// Elements of a step.
const STEP: usize = 64;

/// How weights become vectors.
trait Form {
    /// Bytes of an element.
    const BYTES: usize;
    /// Weights that a dword holds.
    const PER_DWORD: usize = 1;
    /// Vector `index` of a step.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set, and `codes` is a step of weights that has a vector `index`.
    unsafe fn vector<V: Vector>(codes: *const u8, index: usize) -> V;
}

struct Fp32;

impl Form for Fp32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn vector<V: Vector>(codes: *const u8, index: usize) -> V {
        unsafe { V::load(codes.cast::<f32>().add(index * V::LANES)) }
    }
}

struct Fp16;

impl Form for Fp16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn vector<V: Vector>(codes: *const u8, index: usize) -> V {
        unsafe { V::load_fp16(codes.add(2 * index * V::LANES)) }
    }
}

struct Bf16;

impl Form for Bf16 {
    const BYTES: usize = 2;
    const PER_DWORD: usize = 2;
    #[inline(always)]
    unsafe fn vector<V: Vector>(codes: *const u8, index: usize) -> V {
        unsafe {
            let both = V::bits(codes.add(index / 2 * V::BYTES));
            V::as_floats(if index.is_multiple_of(2) {
                V::shl32::<16>(both)
            } else {
                V::and(both, V::splat32(0xffff_0000))
            })
        }
    }
}

struct Fp8;

/// Sign, and the fields of an E4M3 number where FP32 has its last exponent and first mantissa bits.
const E4M3: u32 = 0x87f0_0000;

impl Form for Fp8 {
    const BYTES: usize = 1;
    const PER_DWORD: usize = 4;
    #[inline(always)]
    unsafe fn vector<V: Vector>(codes: *const u8, index: usize) -> V {
        unsafe {
            let four = V::bits(codes.add(index / 4 * V::BYTES));
            // Brought to the top of its dword, then four bits down, where it has room for its sign.
            let top = match index % 4 {
                0 => V::shl32::<24>(four),
                1 => V::shl32::<16>(four),
                2 => V::shl32::<8>(four),
                _ => four,
            };
            V::as_floats(V::and(V::sar32::<4>(top), V::splat32(E4M3)))
        }
    }
}

/// What `x` is multiplied by: nothing but for FP8, where the largest becomes 2^90.
pub(super) fn factor(isa: Isa, stored: &Stored, codes: &[u8], wide: Wide) -> f32 {
    if stored.code != Code::Fp8 {
        return 1.0;
    }
    let mut largest = 0.0f32;
    launch(isa, Largest { codes, wide, found: &mut largest });
    let exponent = (largest.to_bits() >> 23).clamp(91, 250);
    f32::from_bits((127 + 90 + 127 - exponent).min(254) << 23)
}

/// The largest magnitude of a row of `x`.
struct Largest<'a> {
    codes: &'a [u8],
    wide: Wide,
    found: &'a mut f32,
}

impl Kernel for Largest<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let mut values = [0.0f32; 256];
            let mut largest = V::zero();
            for codes in self.codes.chunks(256 * self.wide.bytes()) {
                values.fill(0.0);
                widen::<V>(self.wide.kind(), codes.as_ptr(), codes.len() / self.wide.bytes(), values.as_mut_ptr());
                for index in 0..256 / V::LANES {
                    largest = largest.max(V::load(values.as_ptr().add(index * V::LANES)).abs());
                }
            }
            *self.found = largest.maximum();
        }
    }
}

/// What sums of weights in form `F` are multiplied by.
pub(super) fn unit(stored: &Stored) -> f32 {
    if stored.code == Code::Fp8 { f32::from_bits((127 + 120) << 23) } else { 1.0 }
}

struct Float<V, F>(PhantomData<(V, F)>);

impl<V: Vector, F: Form> Tile for Float<V, F> {
    const CODES: usize = STEP * F::BYTES;
    const SCALES: usize = 0;
    const DEEP: bool = true;
    type Sum = V;

    #[inline(always)]
    fn block() -> usize {
        4 * STEP
    }

    #[inline(always)]
    unsafe fn zero() -> V {
        unsafe { V::zero() }
    }

    #[inline(always)]
    unsafe fn step<const R: usize, const M: usize>(at: [At; R], x: *const u8, pitch: usize, sums: &mut [[V; M]; R]) {
        unsafe {
            // A sum takes four cycles, two of them start in each: fewer than eight rows have a second set of sums.
            let mut others = [[V::zero(); M]; R];
            for index in 0..STEP / V::LANES {
                let mut weights = [V::zero(); R];
                for r in 0..R {
                    weights[r] = F::vector::<V>(at[r].codes, index);
                }
                for m in 0..M {
                    let x = V::load(x.add(m * pitch).cast::<f32>().add(index * V::LANES));
                    for r in 0..R {
                        if R * M < 8 && index % 2 == 1 {
                            others[r][m] = weights[r].fma(x, others[r][m]);
                        } else {
                            sums[r][m] = weights[r].fma(x, sums[r][m]);
                        }
                    }
                }
            }
            if R * M < 8 {
                for r in 0..R {
                    for m in 0..M {
                        sums[r][m] = sums[r][m].add(others[r][m]);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn total(sum: V) -> f32 {
        unsafe { sum.sum() }
    }
}

struct Describe<'a, F>(&'a mut Shape, PhantomData<F>);

impl<F: Form> Kernel for Describe<'_, F> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // Vector `index` holds every `PER_DWORD`th element of as many vectors' worth.
        let element = |at: usize| {
            let (index, lane) = (at / V::LANES, at % V::LANES);
            let (group, within) = (index / F::PER_DWORD, index % F::PER_DWORD);
            // FP8 comes out as bytes 0, 1, 2, 3 of dwords: even words' ones first.
            (group * V::LANES * F::PER_DWORD + lane * F::PER_DWORD + within) as u16
        };
        *self.0 = Shape { step: STEP, block: 4 * STEP, order: (0..STEP).map(element).collect(), ..Shape::default() };
    }
}

struct Place<'a>(&'a Fill<'a>);

impl Kernel for Place<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let fill = self.0;
            let mut values = [0.0f32; STEP];
            for step in fill.steps.clone() {
                fill.values::<V>(step, values.as_mut_ptr());
                let (to, order) = (fill.to.add(step * fill.shape.block).cast::<f32>(), fill.shape.order.as_ptr());
                for at in 0..STEP {
                    to.add(at).write(values[usize::from(*order.add(at)) % STEP]);
                }
            }
        }
    }
}

struct Run<'a, F>(&'a Job<'a>, Range<usize>, PhantomData<F>);

impl<F: Form> Kernel for Run<'_, F> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            columns::<V, Float<V, F>>(self.0, self.1);
        }
    }
}

/// The lane of weights that are floats; none where they are not.
pub(super) fn lane(stored: &Stored) -> Option<Lane> {
    Some(match stored.code {
        Code::Fp32 => of::<Fp32>(),
        Code::Fp16 => of::<Fp16>(),
        Code::Bf16 => of::<Bf16>(),
        Code::Fp8 => of::<Fp8>(),
        _ => return None,
    })
}

fn of<F: Form>() -> Lane {
    Lane {
        shape: |isa| {
            let mut shape = Shape::default();
            launch(isa, Describe::<F>(&mut shape, PhantomData));
            shape
        },
        fill: |isa, fill| launch(isa, Place(fill)),
        run: |isa, job, rows| launch(isa, Run::<F>(job, rows, PhantomData)),
        math: Math::Fp32,
        unit: |isa| isa.level().name(),
    }
}
