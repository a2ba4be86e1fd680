//! How fast the units multiply when nothing has to be fetched: independent accumulators in registers, on all threads.
//!
//! A fused multiply-add takes four cycles and starts twice per cycle, so eight accumulators keep two units busy; twelve
//! leave room for longer ones.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn, clippy::inline_always)]

use std::{hint::black_box, time::Instant};

use roofline_core::{
    Math,
    units::{FlopRate, Hertz},
};

use super::{Peak, Trials};
use crate::cpu::{
    pool::Pool,
    vector::{Isa, Kernel, Vector, launch},
};

const ACCUMULATORS: usize = 12;
/// Vector units per core that the theory assumes.
const UNITS: f64 = 2.0;
/// What a trial takes at least, in seconds.
const TRIAL: f64 = 2e-3;

/// A unit to measure: a loop, and what one turn of it counts.
pub(super) struct Unit {
    pub(super) math: Math,
    pub(super) name: &'static str,
    /// Runs that many turns.
    pub(super) run: fn(u64),
    /// Operations of a turn.
    pub(super) operations: f64,
    /// Operations per cycle and core that it is built for, where that is known.
    pub(super) per_cycle: Option<f64>,
}

/// A unit with the turns that make a trial long enough, and its rates so far.
pub(super) struct Trial<'a> {
    unit: &'a Unit,
    turns: u64,
    rates: Vec<f64>,
}

impl<'a> Trial<'a> {
    /// One for each unit. The length is found on this thread alone: waiting for others, when threads share a core, would
    /// pass for work.
    pub(super) fn all(units: &'a [Unit], progress: &mut dyn FnMut(&str)) -> Vec<Self> {
        let calibrated = |unit: &'a Unit| {
            progress(&format!("{} by {}", unit.math, unit.name));
            let alone = |turns: u64| {
                let start = Instant::now();
                (unit.run)(turns);
                start.elapsed().as_secs_f64()
            };
            let mut turns = 1000;
            while (0..3).map(|_| alone(turns)).fold(f64::INFINITY, f64::min) < TRIAL {
                turns *= 2;
            }
            Self { unit, turns, rates: Vec::new() }
        };
        units.iter().map(calibrated).collect()
    }

    /// What the trials came to.
    pub(super) fn peak(&self, threads: usize, cores: Option<usize>, clock: Option<Hertz>) -> Peak {
        let cores = cores.map_or(threads, |cores| cores.min(threads)) as f64;
        let rates = Trials(self.rates.clone());
        let theory = self.unit.per_cycle.zip(clock).map(|(rate, clock)| FlopRate::new(rate * clock.value() * cores));
        Peak {
            math: self.unit.math,
            unit: self.unit.name.to_owned(),
            threads,
            best: FlopRate::new(rates.best()),
            median: FlopRate::new(rates.median()),
            worst: FlopRate::new(rates.worst()),
            trials: self.rates.len(),
            theory,
        }
    }
}

/// Trials of all units take turns, so that a disturbance costs each a trial and none all of them.
pub(super) fn turns(pool: &mut Pool, trials: &mut [Trial<'_>], count: usize) {
    for _ in 0..count {
        for trial in trials.iter_mut() {
            let start = Instant::now();
            pool.run(|_| (trial.unit.run)(trial.turns));
            let operations = trial.unit.operations * trial.turns as f64 * pool.threads() as f64;
            trial.rates.push(operations / start.elapsed().as_secs_f64());
        }
    }
}

/// FP32 multiply-adds at any width.
struct Fma(u64);

impl Kernel for Fma {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (x, y) = (V::splat(black_box(1.0)), V::splat(black_box(1e-9)));
        let mut sums = [V::zero(); ACCUMULATORS];
        for _ in 0..self.0 {
            for sum in &mut sums {
                *sum = x.fma(y, *sum);
            }
        }
        let mut total = V::zero();
        for sum in sums {
            total = total.add(sum);
        }
        black_box(total.sum());
    }
}

/// Integers that the plain loop multiplies per turn: more than any vector, and never further away than the first cache.
const INTEGERS: usize = 256;

/// What kernels do with INT8 where there are no instructions for it: widen it once, and whatever the compiler makes of a sum
/// of products.
fn plain_int16(turns: u64) {
    let (left, right) = ([3i16; INTEGERS], [-5i16; INTEGERS]);
    let mut total = 0i32;
    for _ in 0..turns {
        let (left, right) = black_box((&left, &right));
        let products = left.iter().zip(right).map(|(left, right)| i32::from(*left) * i32::from(*right));
        total = total.wrapping_add(products.sum());
    }
    black_box(total);
}

fn plain() -> Unit {
    Unit {
        math: Math::Int8,
        name: "plain INT16 loop",
        run: plain_int16,
        operations: 2.0 * INTEGERS as f64,
        per_cycle: None,
    }
}

/// The units of this processor.
pub(super) fn units() -> Vec<Unit> {
    let isa = Isa::best();
    let lanes = isa.lanes() as f64;
    let vectors = Unit {
        math: Math::Fp32,
        name: match isa {
            Isa::Avx512 => "AVX-512 FMA",
            Isa::Avx2 => "AVX2 FMA",
            Isa::Portable => "vector FMA",
        },
        run: |turns| launch(Isa::best(), Fma(turns)),
        operations: 2.0 * lanes * ACCUMULATORS as f64,
        per_cycle: (isa != Isa::Portable).then_some(2.0 * lanes * UNITS),
    };
    #[cfg(target_arch = "x86_64")]
    let others = x86::units().into_iter().chain(super::tiles::units());
    #[cfg(not(target_arch = "x86_64"))]
    let others = std::iter::once(plain());
    std::iter::once(vectors).chain(others).collect()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::{
        arch::{
            asm,
            x86_64::{
                __m512bh, __m512i, _mm256_dpbusd_avx_epi32, _mm256_fmadd_pd, _mm256_set1_epi8, _mm256_set1_epi16,
                _mm256_set1_pd, _mm256_setzero_pd, _mm256_setzero_si256, _mm512_dpbf16_ps, _mm512_dpbusd_epi32,
                _mm512_fmadd_pd, _mm512_set1_epi8, _mm512_set1_epi16, _mm512_set1_pd, _mm512_setzero_pd,
                _mm512_setzero_ps, _mm512_setzero_si512,
            },
        },
        hint::black_box,
        mem::transmute,
    };

    use roofline_core::Math;

    use super::{ACCUMULATORS, UNITS, Unit, plain};

    macro_rules! spin {
        ($name:ident, $features:literal, $zero:expr, $operand:expr, |$x:ident, $y:ident, $sum:ident| $step:expr) => {
            #[target_feature(enable = $features)]
            unsafe fn $name(turns: u64) {
                let ($x, $y) = black_box(($operand, $operand));
                let mut sums = [$zero; ACCUMULATORS];
                for _ in 0..turns {
                    for sum in &mut sums {
                        let $sum = *sum;
                        *sum = $step;
                    }
                }
                black_box(sums);
            }
        };
    }

    spin!(fp64_512, "avx512f", _mm512_setzero_pd(), _mm512_set1_pd(1e-3), |x, y, sum| _mm512_fmadd_pd(x, y, sum));
    spin!(fp64_256, "avx2,fma", _mm256_setzero_pd(), _mm256_set1_pd(1e-3), |x, y, sum| _mm256_fmadd_pd(x, y, sum));
    spin!(
        bf16_512,
        "avx512f,avx512bf16",
        _mm512_setzero_ps(),
        // SAFETY: both are 512 bits; 0x3c00 is 2^-7 in BF16.
        unsafe { transmute::<__m512i, __m512bh>(_mm512_set1_epi16(0x3c00)) },
        |x, y, sum| _mm512_dpbf16_ps(sum, x, y)
    );
    spin!(
        int8_512,
        "avx512f,avx512vnni",
        _mm512_setzero_si512(),
        _mm512_set1_epi8(1),
        |x, y, sum| _mm512_dpbusd_epi32(sum, x, y)
    );
    spin!(int8_256, "avx2,avxvnni", _mm256_setzero_si256(), _mm256_set1_epi8(1), |x, y, sum| _mm256_dpbusd_avx_epi32(
        sum, x, y
    ));

    /// Pairs of INT16 into INT32, and a sum of those: what kernels do with INT8 where nothing multiplies it as it is. In
    /// assembly, because the product of two registers that never change would be computed once.
    #[target_feature(enable = "avx2")]
    unsafe fn int16_256(turns: u64) {
        let (x, y) = black_box((_mm256_set1_epi16(3), _mm256_set1_epi16(-5)));
        let mut sums = [_mm256_setzero_si256(); ACCUMULATORS];
        for _ in 0..turns {
            for sum in &mut sums {
                // SAFETY: registers only.
                unsafe {
                    asm!(
                        "vpmaddwd {product}, {x}, {y}",
                        "vpaddd {sum}, {sum}, {product}",
                        product = out(ymm_reg) _,
                        x = in(ymm_reg) x,
                        y = in(ymm_reg) y,
                        sum = inout(ymm_reg) *sum,
                        options(nomem, nostack, preserves_flags),
                    );
                }
            }
        }
        black_box(sums);
    }

    /// What multiplies INT8 outside of tiles, best first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Integers {
        Vnni512,
        Vnni256,
        Avx2,
        Plain,
    }

    impl Integers {
        pub(super) fn best() -> Self {
            if is_x86_feature_detected!("avx512vnni") {
                Self::Vnni512
            } else if is_x86_feature_detected!("avxvnni") {
                Self::Vnni256
            } else if is_x86_feature_detected!("avx2") {
                Self::Avx2
            } else {
                Self::Plain
            }
        }

        pub(super) fn unit(self) -> Unit {
            // SAFETY of the calls: as below.
            match self {
                Self::Vnni512 => unit(Math::Int8, "AVX-512 VNNI", |turns| unsafe { int8_512(turns) }, 16.0, 4.0, false),
                Self::Vnni256 => unit(Math::Int8, "AVX-VNNI", |turns| unsafe { int8_256(turns) }, 8.0, 4.0, false),
                Self::Avx2 => unit(Math::Int8, "AVX2 vpmaddwd", |turns| unsafe { int16_256(turns) }, 8.0, 2.0, false),
                Self::Plain => plain(),
            }
        }
    }

    fn unit(math: Math, name: &'static str, run: fn(u64), lanes: f64, dot: f64, known: bool) -> Unit {
        Unit {
            math,
            name,
            run,
            operations: 2.0 * lanes * dot * ACCUMULATORS as f64,
            per_cycle: known.then_some(2.0 * lanes * dot * UNITS),
        }
    }

    pub(super) fn units() -> Vec<Unit> {
        let mut units = Vec::new();
        // SAFETY of the calls: each is listed only where the processor has its features.
        if is_x86_feature_detected!("avx512f") {
            units.push(unit(Math::Fp64, "AVX-512 FMA", |turns| unsafe { fp64_512(turns) }, 8.0, 1.0, true));
        } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            units.push(unit(Math::Fp64, "AVX2 FMA", |turns| unsafe { fp64_256(turns) }, 4.0, 1.0, true));
        }
        if is_x86_feature_detected!("avx512bf16") {
            units.push(unit(Math::Bf16, "AVX-512 BF16", |turns| unsafe { bf16_512(turns) }, 16.0, 2.0, false));
        }
        units.push(Integers::best().unit());
        units
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_counts_what_its_registers_hold() {
        for unit in units() {
            (unit.run)(10);
            let bits = match unit.name {
                name if name.starts_with("AVX-512") => 512.0,
                name if name.starts_with("AVX") => 256.0,
                // Neither tiles nor what the compiler makes of portable code.
                _ => continue,
            };
            let element = match unit.math {
                Math::Fp64 => 64.0,
                Math::Fp32 => 32.0,
                Math::Bf16 => 16.0,
                Math::Int8 => 8.0,
                math => panic!("{math} by {}", unit.name),
            };
            // A product and a sum for each element of each accumulator.
            assert_eq!(unit.operations, 2.0 * bits / element * ACCUMULATORS as f64, "{} by {}", unit.math, unit.name);
            let built = unit.per_cycle.map(|rate| rate * ACCUMULATORS as f64 / UNITS);
            assert!(built.is_none_or(|built| built == unit.operations), "{} by {}", unit.math, unit.name);
        }
    }

    /// Kernels multiply INT8 on every processor, so every processor has a peak for it.
    #[test]
    fn int8_has_a_unit_everywhere() {
        assert!(units().iter().any(|unit| unit.math == Math::Int8));
        let mut without = vec![plain()];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            without.push(x86::Integers::Avx2.unit());
        }
        for (unit, name) in without.iter().zip(["plain INT16 loop", "AVX2 vpmaddwd"]) {
            assert_eq!((unit.math, unit.name), (Math::Int8, name));
            // Twice the turns take about twice the time: nothing was computed before the loop, or not at all.
            let time = |turns: u64| {
                let timed = |_| {
                    let start = Instant::now();
                    (unit.run)(turns);
                    start.elapsed().as_secs_f64()
                };
                (0..9).map(timed).fold(f64::INFINITY, f64::min)
            };
            let ratio = time(40_000) / time(10_000);
            assert!((2.0..8.0).contains(&ratio), "{name}: {ratio}");
        }
    }
}
