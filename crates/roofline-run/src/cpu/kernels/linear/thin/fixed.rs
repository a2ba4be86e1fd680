//! Weights that are small integers, times `x` in fixed point.
//!
//! Widening weights to FP32 and multiplying them takes longer than reading them. Products of integers take a third of that,
//! so `x` is turned to fixed point first: of each step, a power of two times 16-bit integers. BF16 and FP16 numbers within
//! 2^-6 or 2^-3 of a step's largest lose nothing, smaller ones at most 2^-15 of it: a fraction of what being stored in 16
//! bits lost before. FP32 is two such rows, the second of what the first left, and as exact as FP32 sums are.
//!
//! `sum w*x = s * sum (code - offset) * x`: what the offset adds is where integer sums start from, negated. Where groups
//! have zero points or minima of their own, `min * sum x` is taken off in FP32.

use std::{marker::PhantomData, ops::Range};

use roofline_core::Math;
use roofline_isa::{Dot, DotKernel, Isa, Level, Operands, Vector, launch_dot};

use super::{
    super::weights::Stored,
    At, Fill, Job, Lane, Shape, Tile, columns,
    form::{self, Form, visit},
};

/// What the largest of a step becomes: products of a lane's share of a group fit 31 bits with the widest weights.
const LARGEST: f32 = 16_383.0;
/// Elements of the longest step.
const STEP: usize = 256;

/// Where the parts of a block of `x` are.
struct Block<V, D, F>(PhantomData<(V, D, F)>);

impl<V: Vector, D: Dot<V>, F: Form> Block<V, D, F> {
    const PRODUCTS: usize = 2 * F::STEP;
    const STARTS: bool = F::OFFSET != 0 || (F::SIGNED && D::OFFSET != 0);

    #[inline(always)]
    fn groups() -> usize {
        F::STEP / (F::registers::<V>() * V::BYTES)
    }
    #[inline(always)]
    fn starts() -> usize {
        Self::PRODUCTS
    }
    #[inline(always)]
    fn sums() -> usize {
        Self::starts() + if Self::STARTS { Self::groups() * V::BYTES } else { 0 }
    }
    #[inline(always)]
    fn scale() -> usize {
        Self::sums() + if F::MINS > 0 { 64 } else { 0 }
    }
    #[inline(always)]
    fn size() -> usize {
        (Self::scale() + 4).next_multiple_of(64)
    }
}

/// See the module.
struct Fixed<V, D, F>(PhantomData<(V, D, F)>);

impl<V: Vector, D: Dot<V>, F: Form> Tile for Fixed<V, D, F> {
    const CODES: usize = F::CODES;
    const SCALES: usize = F::SCALES;
    type Sum = V;

    #[inline(always)]
    fn block() -> usize {
        Block::<V, D, F>::size()
    }

    #[inline(always)]
    unsafe fn zero() -> V {
        unsafe { V::zero() }
    }

    #[inline(always)]
    unsafe fn step<const R: usize, const M: usize>(at: [At; R], x: *const u8, pitch: usize, sums: &mut [[V; M]; R]) {
        unsafe {
            type B<V, D, F> = Block<V, D, F>;
            let groups = B::<V, D, F>::groups();
            let mut open = [F::open::<V>(at[0]); R];
            for r in 1..R {
                open[r] = F::open::<V>(at[r]);
            }
            // With one group its sums go where they belong at once; with several they meet here first.
            let mut parts = [[V::zero(); M]; R];
            for group in 0..groups {
                let mut products = [[D::nothing(); M]; R];
                if B::<V, D, F>::STARTS {
                    for m in 0..M {
                        let start = D::start(x.add(m * pitch + B::<V, D, F>::starts() + group * V::BYTES).cast());
                        for r in 0..R {
                            products[r][m] = start;
                        }
                    }
                }
                for register in 0..F::registers::<V>() {
                    let here = x.add((group * F::registers::<V>() + register) * 2 * V::BYTES);
                    let mut weights = [F::weights::<V, D>(&open[0], group, register); R];
                    for r in 1..R {
                        weights[r] = F::weights::<V, D>(&open[r], group, register);
                    }
                    for m in 0..M {
                        let numbers = D::numbers(here.add(m * pitch));
                        for r in 0..R {
                            products[r][m] = D::add(products[r][m], weights[r], numbers);
                        }
                    }
                }
                for r in 0..R {
                    if groups == 1 {
                        for m in 0..M {
                            let own = V::splat(*x.add(m * pitch + B::<V, D, F>::scale()).cast::<f32>());
                            let scale = if F::SCALED { F::scale::<V>(&open[r], group).mul(own) } else { own };
                            sums[r][m] = V::floats(D::totals(products[r][m])).fma(scale, sums[r][m]);
                        }
                    } else {
                        let scale = F::scale::<V>(&open[r], group);
                        for m in 0..M {
                            parts[r][m] = V::floats(D::totals(products[r][m])).fma(scale, parts[r][m]);
                        }
                    }
                }
            }
            for m in 0..M {
                if groups > 1 {
                    let own = V::splat(*x.add(m * pitch + B::<V, D, F>::scale()).cast::<f32>());
                    for r in 0..R {
                        sums[r][m] = parts[r][m].fma(own, sums[r][m]);
                    }
                }
                let mut first = 0;
                while first < F::MINS {
                    let taken = V::load(x.add(m * pitch + B::<V, D, F>::sums()).cast::<f32>().add(first));
                    for r in 0..R {
                        sums[r][m] = V::load(F::mins(&open[r]).add(first)).fma(taken, sums[r][m]);
                    }
                    first += V::LANES;
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

impl<F: Form> DotKernel for Describe<'_, F> {
    #[inline(always)]
    unsafe fn run<V: Vector, D: Dot<V>>(self) {
        type B<V, D, F> = Block<V, D, F>;
        let registers = F::registers::<V>();
        let element = |at: usize| {
            let (register, place) = (at / V::BYTES, at % V::BYTES);
            F::element::<V>(register / registers, register % registers, D::byte(place)) as u16
        };
        *self.0 = Shape {
            step: F::STEP,
            block: B::<V, D, F>::size(),
            order: (0..F::STEP).map(element).collect(),
            registers,
            offset: F::OFFSET + if F::SIGNED { D::OFFSET } else { 0 },
            starts: B::<V, D, F>::starts(),
            mins: F::MINS,
            sums: B::<V, D, F>::sums(),
            scale: B::<V, D, F>::scale(),
            unit: F::UNIT,
        };
    }
}

/// Lays out `x`; one for all forms, since it is done once where weights are read thousands of times.
struct Fix<'a>(&'a Fill<'a>);

impl DotKernel for Fix<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, D: Dot<V>>(self) {
        unsafe {
            let fill = self.0;
            let mut values = Aligned([0.0f32; STEP]);
            for step in fill.steps.clone() {
                fill.values::<V>(step, values.0.as_mut_ptr());
                for part in 0..fill.parts {
                    let to = fill.to.add(part * fill.pitch + step * fill.shape.block);
                    fix::<V, D>(values.0.as_mut_ptr(), fill.shape, to);
                }
            }
        }
    }
}

#[repr(align(64))]
struct Aligned<T>(T);

/// Writes a block of `values`, and leaves what it does not hold.
///
/// # Safety
///
/// The processor has `V`'s instruction set and `D`'s; `values` has `shape.step` numbers, and `to` room for a block of
/// `shape`.
#[inline(always)]
unsafe fn fix<V: Vector, D: Dot<V>>(values: *mut f32, shape: &Shape, to: *mut u8) {
    unsafe {
        let vectors = shape.step / V::LANES;
        let mut largest = V::zero();
        for index in 0..vectors {
            largest = largest.max(V::load(values.add(index * V::LANES)).abs());
        }
        // A power of two, so that numbers of 16 bits are whole where they are large; neither it nor its inverse is subnormal.
        let exponent = (largest.maximum().to_bits() >> 23).clamp(16, 250);
        let (inverse, scale) =
            (f32::from_bits((127 + 127 + 13 - exponent) << 23), f32::from_bits((exponent - 13) << 23));
        let mut whole = Aligned([0i16; STEP]);
        for index in 0..vectors {
            let at = values.add(index * V::LANES);
            let value = V::load(at);
            let rounded = value.mul(V::splat(inverse)).round().min(V::splat(LARGEST));
            rounded.store_i16(whole.0.as_mut_ptr().add(index * V::LANES));
            value.sub(rounded.mul(V::splat(scale))).store(at);
        }
        let mut arranged = Aligned([0i16; STEP]);
        let (from, order) = (whole.0.as_ptr(), shape.order.as_ptr());
        for at in 0..shape.step {
            arranged.0[at % STEP] = *from.add(usize::from(*order.add(at)) % STEP);
        }
        for register in 0..shape.step / V::BYTES {
            D::place(&arranged.0[register * V::BYTES..][..V::BYTES], to.add(register * 2 * V::BYTES));
        }
        if shape.offset != 0 {
            let offset = D::small(V::splat8(shape.offset as u8));
            for group in 0..shape.step / V::BYTES / shape.registers {
                let mut sums = D::nothing();
                for register in group * shape.registers..(group + 1) * shape.registers {
                    sums = D::add(sums, offset, D::numbers(to.add(register * 2 * V::BYTES)));
                }
                let negated = V::add32(V::xor(D::totals(sums), V::splat8(0xff)), V::splat32(1));
                V::store_bits(negated, to.add(shape.starts + group * V::BYTES));
            }
        }
        if let Some(length) = shape.step.checked_div(shape.mins) {
            let sums = to.add(shape.sums).cast::<f32>();
            for index in 0..shape.mins {
                // A part that is shorter than a register: its sum is exact in FP32, too.
                if length < V::BYTES / 2 {
                    let part = &whole.0[index * length..][..length];
                    let sum: i32 = part.iter().map(|number| i32::from(*number)).sum();
                    sums.add(index).write(-(sum as f32) * scale);
                    continue;
                }
                let mut sum = V::no_sums();
                let mut at = index * length;
                while at < (index + 1) * length {
                    sum = V::multiply16(sum, V::bits(whole.0.as_ptr().add(at).cast()), V::splat16(1));
                    at += V::BYTES / 2;
                }
                sums.add(index).write(-V::floats(V::totals(sum)).sum() * scale);
            }
        }
        to.add(shape.scale).cast::<f32>().write(scale * shape.unit);
    }
}

struct Run<'a, F>(&'a Job<'a>, Range<usize>, PhantomData<F>);

impl<F: Form> DotKernel for Run<'_, F> {
    #[inline(always)]
    unsafe fn run<V: Vector, D: Dot<V>>(self) {
        unsafe {
            columns::<V, Fixed<V, D, F>>(self.0, self.1);
        }
    }
}

/// The lane of weights that are integers; none where they are not.
pub(super) fn lane(stored: &Stored) -> Option<Lane> {
    visit(stored, Choose)
}

/// A lane of form `$form` by way of `$operands`.
macro_rules! lane {
    ($form:ident, $operands:ident) => {
        Lane {
            shape: |isa| {
                let mut shape = Shape::default();
                launch_dot(isa, Operands::$operands, Describe::<$form>(&mut shape, PhantomData));
                shape
            },
            fill: |isa, fill| launch_dot(isa, Operands::$operands, Fix(fill)),
            run: |isa, job, rows| launch_dot(isa, Operands::$operands, Run::<$form>(job, rows, PhantomData)),
            math: Math::Int16,
            unit,
        }
    };
}

struct Choose;

impl form::Visitor for Choose {
    type Output = Lane;

    fn bytes<F: Form>(self) -> Lane {
        lane!(F, Mixed)
    }

    fn short<F: Form>(self) -> Lane {
        lane!(F, Short)
    }

    fn words<F: Form>(self) -> Lane {
        lane!(F, Words)
    }
}

/// The instructions that multiply integers, for names of kernels.
pub(super) fn unit(isa: Isa) -> &'static str {
    match isa.level() {
        Level::Avx512 if isa.has_dot() => "avx512-vnni",
        Level::Avx512 => "avx2",
        Level::Neon if isa.has_dot() => "neon-dot",
        level => level.name(),
    }
}
