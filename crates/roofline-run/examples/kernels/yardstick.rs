//! What the machine does at best: loops that only read, and loops that only multiply. A kernel's share of these says how
//! good it is, on this machine and at this moment.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use roofline_core::Math;
use roofline_run::cpu::{
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
        // Four tiles of 16 x 16 sums over 64 bytes.
        Math::Bf16 if simd.amx => Some((tiles_bf16, 4 * 2 * 16 * 16 * 32)),
        Math::Int8 if simd.amx => Some((tiles_int8, 4 * 2 * 16 * 16 * 64)),
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

/// What `ldtilecfg` reads: palette 1, and 16 rows of 64 bytes for each of eight registers.
#[cfg(target_arch = "x86_64")]
#[repr(align(64))]
struct Configuration([u8; 64]);

#[cfg(target_arch = "x86_64")]
static FULL: Configuration = {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        bytes[16 + 2 * tile] = 64;
        bytes[48 + tile] = 16;
        tile += 1;
    }
    Configuration(bytes)
};

/// Four tiles of numbers that look random: zeros are multiplied about a third faster than numbers are, and no product is
/// of zeros. Of every other byte only the sign and the bits in `top` are kept, which makes BF16 numbers finite.
#[cfg(target_arch = "x86_64")]
fn operands(top: u8) -> [u8; 4096] {
    let mut state = 1u32;
    std::array::from_fn(|index| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let byte = (state >> 24) as u8;
        if top == 0xff || index % 2 == 0 { byte } else { byte & 0x80 | top & (byte | 0x3e) }
    })
}

#[cfg(target_arch = "x86_64")]
macro_rules! tile_loop {
    ($name:ident, $instruction:literal, $top:literal) => {
        unsafe fn $name(rounds: u64) {
            if rounds == 0 {
                return;
            }
            let operands = operands($top);
            // SAFETY: tiles were granted; the registers are configured here and released at the end.
            unsafe {
                std::arch::asm!(
                    "ldtilecfg [{full}]",
                    "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    "tileloadd tmm4, [{operands} + {line}]",
                    "tileloadd tmm5, [{operands} + {line} + 1024]",
                    "tileloadd tmm6, [{operands} + {line} + 2048]",
                    "tileloadd tmm7, [{operands} + {line} + 3072]",
                    "2:",
                    concat!($instruction, " tmm0, tmm4, tmm6"),
                    concat!($instruction, " tmm1, tmm4, tmm7"),
                    concat!($instruction, " tmm2, tmm5, tmm6"),
                    concat!($instruction, " tmm3, tmm5, tmm7"),
                    "dec {rounds}",
                    "jnz 2b",
                    "tilerelease",
                    full = in(reg) &raw const FULL.0,
                    operands = in(reg) operands.as_ptr(),
                    line = in(reg) 64usize,
                    rounds = inout(reg) rounds => _,
                    options(nostack, readonly),
                );
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
tile_loop!(tiles_bf16, "tdpbf16ps", 0x3f);
#[cfg(target_arch = "x86_64")]
tile_loop!(tiles_int8, "tdpbssd", 0xff);
