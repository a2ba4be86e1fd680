//! What the machine does at best: loops that only read, and loops that only multiply. A kernel's share of these says how
//! good it is, on this machine and at this moment.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use roofline_core::Math;
use roofline_run::cpu::{
    ceilings,
    pool::Pool,
    simd::{Level, Simd},
};

/// Reads `bytes` once, every thread a part, in cache lines; returns a value that depends on all of them.
pub(crate) fn read(pool: &mut Pool, bytes: &[u8]) -> u64 {
    let sum = AtomicU64::new(0);
    let avx512 = Simd::detect().level == Level::Avx512;
    pool.split(bytes.len(), 4096, |_, part| {
        let part = &bytes[part];
        #[cfg(target_arch = "x86_64")]
        if avx512 {
            // SAFETY: the processor has AVX-512.
            sum.fetch_xor(unsafe { read_avx512(part) }, Ordering::Relaxed);
            return;
        }
        let _ = avx512;
        sum.fetch_xor(read_plain(part), Ordering::Relaxed);
    });
    sum.into_inner()
}

fn read_plain(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 8];
    for line in bytes.as_chunks::<64>().0 {
        for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum ^= u64::from_le_bytes(*word);
        }
    }
    sums.iter().fold(0, |all, sum| all ^ sum)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn read_avx512(bytes: &[u8]) -> u64 {
    use std::arch::x86_64::{
        _MM_HINT_T0, _mm_prefetch, _mm512_loadu_si512, _mm512_reduce_or_epi64, _mm512_setzero_si512, _mm512_xor_si512,
    };
    const AHEAD: usize = 1024;
    let mut sums = [_mm512_setzero_si512(); 4];
    for lines in bytes.as_chunks::<256>().0 {
        for (index, sum) in sums.iter_mut().enumerate() {
            // SAFETY: 64 bytes of the 256; a prefetch of anything is allowed.
            unsafe {
                let line = lines.as_ptr().add(64 * index);
                _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(AHEAD).cast());
                *sum = _mm512_xor_si512(*sum, _mm512_loadu_si512(line.cast()));
            }
        }
    }
    let all = sums.into_iter().reduce(|a, b| _mm512_xor_si512(a, b)).unwrap_or(sums[0]);
    _mm512_reduce_or_epi64(all) as u64
}

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
