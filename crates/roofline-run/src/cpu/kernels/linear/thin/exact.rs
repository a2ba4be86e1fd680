//! INT8 weights times INT8 `x`, summed exactly in INT32 and scaled once per element of `y`.

use std::{marker::PhantomData, ops::Range};

use roofline_core::Math;
use roofline_isa::{Dot, DotKernel, Operands, Vector, launch_dot};

use super::{At, Fill, Job, Lane, Shape, Tile, columns, fixed};

/// Elements of a step.
const STEP: usize = 128;

struct Exact<V, D>(PhantomData<(V, D)>);

impl<V: Vector, D: Dot<V>> Tile for Exact<V, D> {
    const CODES: usize = STEP;
    const SCALES: usize = 0;
    type Sum = V::Bits;

    #[inline(always)]
    fn block() -> usize {
        STEP / V::BYTES * D::EXACT + if D::OFFSET == 0 { 0 } else { 64 }
    }

    #[inline(always)]
    unsafe fn zero() -> V::Bits {
        unsafe { V::splat32(0) }
    }

    #[inline(always)]
    unsafe fn step<const R: usize, const M: usize>(
        at: [At; R],
        x: *const u8,
        pitch: usize,
        sums: &mut [[V::Bits; M]; R],
    ) {
        unsafe {
            for register in 0..STEP / V::BYTES {
                for r in 0..R {
                    let weights = D::signed(V::bits(at[r].codes.add(register * V::BYTES)));
                    for m in 0..M {
                        sums[r][m] = D::add_exact(sums[r][m], weights, x.add(m * pitch + register * D::EXACT));
                    }
                }
            }
            // What was added to weights so that they can be multiplied, times `x`, is taken off step by step.
            if D::OFFSET != 0 {
                for m in 0..M {
                    let start = V::bits(x.add(m * pitch + STEP / V::BYTES * D::EXACT));
                    for r in 0..R {
                        sums[r][m] = V::add32(sums[r][m], start);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn total(sum: V::Bits) -> f32 {
        unsafe {
            let mut lanes = [0i32; 16];
            V::store_bits(sum, lanes.as_mut_ptr().cast());
            lanes[..V::LANES].iter().fold(0i32, |sum, lane| sum.wrapping_add(*lane)) as f32
        }
    }
}

struct Describe<'a>(&'a mut Shape);

impl DotKernel for Describe<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, D: Dot<V>>(self) {
        let products = STEP / V::BYTES * D::EXACT;
        *self.0 = Shape {
            step: STEP,
            block: Exact::<V, D>::block(),
            order: (0..STEP).map(|at| (at / V::BYTES * V::BYTES + D::byte(at % V::BYTES)) as u16).collect(),
            starts: products,
            offset: D::OFFSET,
            ..Shape::default()
        };
    }
}

struct Place<'a>(&'a Fill<'a>);

impl DotKernel for Place<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, D: Dot<V>>(self) {
        unsafe {
            let fill = self.0;
            for step in fill.steps.clone() {
                let codes = &fill.codes[step * STEP..((step + 1) * STEP).min(fill.k)];
                let mut values = [0i16; STEP];
                for (value, code) in values.iter_mut().zip(codes) {
                    *value = i16::from(code.cast_signed());
                }
                let mut arranged = [0i16; STEP];
                for (to, from) in arranged.iter_mut().zip(&fill.shape.order) {
                    *to = values[usize::from(*from) % STEP];
                }
                let to = fill.to.add(step * fill.shape.block);
                let mut lanes = [0i32; 16];
                for (register, x) in arranged.chunks_exact(V::BYTES).enumerate() {
                    D::place_exact(x, to.add(register * D::EXACT));
                    for (place, value) in x.iter().enumerate() {
                        lanes[D::byte(place) / 4] -= D::OFFSET * i32::from(*value);
                    }
                }
                if D::OFFSET != 0 {
                    std::ptr::copy_nonoverlapping(lanes.as_ptr().cast(), to.add(fill.shape.starts), V::BYTES);
                }
            }
        }
    }
}

struct Run<'a>(&'a Job<'a>, Range<usize>);

impl DotKernel for Run<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, D: Dot<V>>(self) {
        unsafe {
            columns::<V, Exact<V, D>>(self.0, self.1);
        }
    }
}

pub(super) fn lane() -> Lane {
    Lane {
        shape: |isa| {
            let mut shape = Shape::default();
            launch_dot(isa, Operands::Bytes, Describe(&mut shape));
            shape
        },
        fill: |isa, fill| launch_dot(isa, Operands::Bytes, Place(fill)),
        run: |isa, job, rows| launch_dot(isa, Operands::Bytes, Run(job, rows)),
        math: Math::Int8,
        unit: fixed::unit,
    }
}
