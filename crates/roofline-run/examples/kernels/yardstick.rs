//! What the machine does at best: loops that only read, and loops that only multiply. A kernel's share of these says how
//! good it is, on this machine and at this moment.

#![allow(unsafe_code)]

use roofline_core::Math;
use roofline_run::cpu::{
    ceilings,
    pool::Pool,
    simd::{Level, Simd},
};

/// Multiplies in registers on every thread, `rounds` times a fixed number of operations, with the unit that `math` names.
/// Returns the operations of all threads together; none where there is no such unit or no loop for it.
pub(crate) fn multiply(pool: &mut Pool, simd: Simd, math: Math, rounds: u64) -> Option<u64> {
    let (kernel, per_round) = unit(simd, math)?;
    // SAFETY: chosen by what the processor has.
    pool.run(|_| unsafe { kernel(rounds) });
    Some(pool.threads() as u64 * rounds * per_round)
}

type Loop = unsafe fn(u64);

#[cfg(target_arch = "x86_64")]
fn unit(simd: Simd, math: Math) -> Option<(Loop, u64)> {
    match math {
        // 24 independent sums of 16 lanes, two operations each.
        Math::Fp32 if simd.level == Level::Avx512 => Some((fma_avx512, 24 * 16 * 2)),
        Math::Fp32 if simd.level == Level::Avx2 => Some((fma_avx2, 12 * 8 * 2)),
        Math::Bf16 | Math::Int8 if simd.amx => {
            ceilings::tile_loop(math).map(|(run, operations)| (run as Loop, operations as u64))
        }
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn unit(_: Simd, _: Math) -> Option<(Loop, u64)> {
    None
}

#[cfg(target_arch = "x86_64")]
macro_rules! fma_loop {
    ($name:ident, $features:literal, $count:literal, $set:ident, $fma:ident, $vector:ty) => {
        #[target_feature(enable = $features)]
        unsafe fn $name(rounds: u64) {
            use std::arch::x86_64::{$fma, $set};
            let (factor, term) = ($set(0.999), $set(0.001));
            // Unlike each other, so that no compiler computes one for all.
            let mut sums: [$vector; $count] = std::array::from_fn(|index| $set(std::hint::black_box(index as f32)));
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = $fma(*sum, factor, term);
                }
            }
            std::hint::black_box(&sums);
        }
    };
}

#[cfg(target_arch = "x86_64")]
fma_loop!(fma_avx512, "avx512f", 24, _mm512_set1_ps, _mm512_fmadd_ps, std::arch::x86_64::__m512);
#[cfg(target_arch = "x86_64")]
fma_loop!(fma_avx2, "avx2,fma", 12, _mm256_set1_ps, _mm256_fmadd_ps, std::arch::x86_64::__m256);
