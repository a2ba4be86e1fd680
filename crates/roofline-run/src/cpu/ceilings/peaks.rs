//! How fast the units multiply when nothing has to be fetched: independent accumulators in registers, on all threads.
//!
//! A fused multiply-add takes four cycles and starts twice per cycle, so eight accumulators keep two units busy; twelve
//! leave room for longer ones.

#![allow(unsafe_code, clippy::inline_always)]

use std::{hint::black_box, time::Instant};

use roofline_core::{
    Math,
    units::{FlopRate, Hertz},
};

use roofline_isa::{Dot, DotKernel, Isa, Kernel, Level, Operands, Vector, launch, launch_dot};

use super::{Peak, Trials};
use crate::cpu::pool::Pool;

const ACCUMULATORS: usize = 12;
/// The same where a vector is two of sixteen registers.
const FEW: usize = 4;
/// Vector units per core that the theory assumes.
const UNITS: f64 = 2.0;
/// What a trial takes at least, in seconds.
const TRIAL: f64 = 2e-3;

/// A unit to measure: a loop, and what one turn of it counts.
pub(super) struct Unit {
    pub(super) math: Math,
    pub(super) name: &'static str,
    /// Runs that many turns with its instructions.
    pub(super) run: fn(Isa, u64),
    pub(super) isa: Isa,
    /// Operations of a turn.
    pub(super) operations: f64,
    /// Operations per cycle and core that it is built for, where that is known.
    pub(super) per_cycle: Option<f64>,
}

/// A unit with the turns that make a trial long enough, and its rates so far.
pub(super) struct Trial<'a> {
    unit: &'a Unit,
    turns: u64,
    /// Rates of the first thread by itself, from when the length was found.
    alone: Vec<f64>,
    /// Rates of all threads.
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
                (unit.run)(unit.isa, turns);
                start.elapsed().as_secs_f64()
            };
            let mut turns = 1000;
            let mut took = [0; 3].map(|_| alone(turns));
            while took.into_iter().fold(f64::INFINITY, f64::min) < TRIAL {
                turns *= 2;
                took = [0; 3].map(|_| alone(turns));
            }
            let alone = took.map(|seconds| unit.operations * turns as f64 / seconds).to_vec();
            Self { unit, turns, alone, rates: Vec::new() }
        };
        units.iter().map(calibrated).collect()
    }

    /// What the trials came to. Where all threads together were slower than one by itself, somebody else held the machine, and
    /// what the one reached stands.
    pub(super) fn peak(&self, threads: usize, cores: Option<usize>, clock: Option<Hertz>) -> Peak {
        let cores = cores.map_or(threads, |cores| cores.min(threads)) as f64;
        let (all, one) = (Trials(self.rates.clone()), Trials(self.alone.clone()));
        let (rates, busy) = if one.best() > all.best() { (one, 1) } else { (all, threads) };
        let theory = self.unit.per_cycle.zip(clock).map(|(rate, clock)| FlopRate::new(rate * clock.value() * cores));
        Peak {
            math: self.unit.math,
            unit: self.unit.name.to_owned(),
            threads,
            busy,
            best: FlopRate::new(rates.best()),
            median: FlopRate::new(rates.median()),
            worst: FlopRate::new(rates.worst()),
            trials: rates.0.len(),
            theory,
        }
    }
}

/// Trials of all units take turns, so that a disturbance costs each a trial and none all of them.
pub(super) fn turns(pool: &mut Pool, trials: &mut [Trial<'_>], count: usize) {
    for _ in 0..count {
        for trial in trials.iter_mut() {
            let start = Instant::now();
            pool.run(|_| (trial.unit.run)(trial.unit.isa, trial.turns));
            let operations = trial.unit.operations * trial.turns as f64 * pool.threads() as f64;
            trial.rates.push(operations / start.elapsed().as_secs_f64());
        }
    }
}

/// What the fastest unit for `math` does in about so many seconds, on all threads.
pub(super) fn rate(pool: &mut Pool, isa: Isa, math: Math, seconds: f64) -> Option<f64> {
    let best = units_of(isa).into_iter().filter(|unit| unit.math == math).map(|unit| {
        let mut turns = 1000;
        loop {
            let start = Instant::now();
            pool.run(|_| (unit.run)(isa, turns));
            let took = start.elapsed().as_secs_f64();
            if took >= seconds / 2.0 {
                // The best of three, because the first may have been interrupted.
                let again = (0..2).map(|_| {
                    let start = Instant::now();
                    pool.run(|_| (unit.run)(isa, turns));
                    start.elapsed().as_secs_f64()
                });
                let best = again.fold(took, f64::min);
                return unit.operations * turns as f64 * pool.threads() as f64 / best;
            }
            turns *= if took < seconds / 16.0 { 8 } else { 2 };
        }
    });
    best.reduce(f64::max)
}

/// FP32 multiply-adds at any width.
struct Fma(u64);

impl Kernel for Fma {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
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
}

/// The same by two instructions, of numbers that come from the first cache: the product of two that never change would be computed
/// once, and only be added.
struct MultiplyAdd(u64);

impl Kernel for MultiplyAdd {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            #[repr(align(64))]
            struct Lines([f32; 16 * FEW]);
            let x = Lines([black_box(1.0); 16 * FEW]);
            let (y, mut at) = (V::splat(black_box(1e-9)), x.0.as_ptr());
            let mut sums = [V::zero(); FEW];
            for _ in 0..self.0 {
                at = black_box(at);
                for (index, sum) in sums.iter_mut().enumerate() {
                    *sum = y.fma(V::load(at.add(index * V::LANES)), *sum);
                }
            }
            let mut total = V::zero();
            for sum in sums {
                total = total.add(sum);
            }
            black_box((total.sum(), &x));
        }
    }
}

/// Sums of integer products at any width, as kernels form them: bytes of weights with `x` in 16 bits (`exact`: in 8). `x`
/// comes from the first cache, behind a pointer that the compiler knows nothing of: the product of two registers that never
/// change would be computed once.
struct Products<const SUMS: usize> {
    turns: u64,
    exact: bool,
}

impl<const SUMS: usize> DotKernel for Products<SUMS> {
    #[inline(always)]
    unsafe fn run<V: Vector, D: Dot<V>>(self) {
        unsafe {
            #[repr(align(64))]
            struct Lines([u8; 128 * ACCUMULATORS]);
            let x = Lines([3; 128 * ACCUMULATORS]);
            let weights = D::small(V::splat8(black_box(5)));
            let mut at = x.0.as_ptr();
            if self.exact {
                let mut sums = [V::splat32(0); SUMS];
                for _ in 0..self.turns {
                    at = black_box(at);
                    for (index, sum) in sums.iter_mut().enumerate() {
                        *sum = D::add_exact(*sum, weights, at.add(index * D::EXACT));
                    }
                }
                black_box(sums);
            } else {
                // Sums of words may take two registers.
                let mut sums = [D::nothing(); SUMS];
                for _ in 0..self.turns {
                    at = black_box(at);
                    for (index, sum) in sums.iter_mut().enumerate().take(SUMS / 2) {
                        *sum = D::add(*sum, weights, D::numbers(at.add(index * 2 * V::BYTES)));
                    }
                }
                black_box(sums);
            }
            black_box(&x);
        }
    }
}

/// The same of words that were widened before: what products of many rows multiply. Where widening takes as long as multiplying,
/// that is the limit.
struct Widened(u64);

impl Kernel for Widened {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            #[repr(align(64))]
            struct Lines([u8; 64 * FEW]);
            let x = Lines([3; 64 * FEW]);
            let weights = V::splat16(black_box(5));
            let (mut at, mut sums) = (x.0.as_ptr(), [V::no_sums(); FEW]);
            for _ in 0..self.0 {
                at = black_box(at);
                for (index, sum) in sums.iter_mut().enumerate() {
                    *sum = V::multiply16(*sum, weights, V::bits(at.add(index * V::BYTES)));
                }
            }
            black_box(sums);
            black_box(&x);
        }
    }
}

/// Runs them with as many sums as there are registers for.
fn products(isa: Isa, operands: Operands, turns: u64, exact: bool) {
    match isa.level() {
        Level::Portable => launch_dot(isa, operands, Products::<FEW> { turns, exact }),
        _ => launch_dot(isa, operands, Products::<ACCUMULATORS> { turns, exact }),
    }
}

/// Bytes of weights that an instruction set multiplies at a time.
fn bytes(isa: Isa) -> usize {
    struct Width<'a>(&'a mut usize);
    impl DotKernel for Width<'_> {
        unsafe fn run<V: Vector, D: Dot<V>>(self) {
            *self.0 = V::BYTES;
        }
    }
    let mut width = 0;
    launch_dot(isa, Operands::Bytes, Width(&mut width));
    width
}

/// The units that kernels use on this processor.
pub(super) fn units() -> Vec<Unit> {
    units_of(Isa::best())
}

fn units_of(isa: Isa) -> Vec<Unit> {
    let lanes = isa.lanes() as f64;
    let sums = if isa.level() == Level::Portable { FEW } else { ACCUMULATORS } as f64;
    let vectors = Unit {
        math: Math::Fp32,
        name: match isa.level() {
            Level::Avx512 => "AVX-512 FMA",
            Level::Avx2 => "AVX2 FMA",
            Level::Neon => "NEON FMA",
            Level::Portable if cfg!(target_arch = "x86_64") => "SSE2 mulps + addps",
            Level::Portable => "plain FP32 loop",
        },
        run: |isa, turns| match isa.level() {
            Level::Portable => launch(isa, MultiplyAdd(turns)),
            _ => launch(isa, Fma(turns)),
        },
        isa,
        operations: 2.0 * lanes * sums,
        per_cycle: (isa.level() != Level::Portable).then_some(2.0 * lanes * UNITS),
    };
    let names = match isa.level() {
        Level::Avx512 if isa.has_dot() => ["AVX-512 vpdpbusd", "AVX-512 vpdpwssd"],
        Level::Avx512 | Level::Avx2 => ["AVX2 vpmaddwd", "AVX2 vpmaddwd"],
        Level::Neon if isa.has_dot() => ["NEON SDOT", "NEON SDOT, two digits"],
        Level::Neon => ["NEON SMLAL", "NEON SMLAL"],
        Level::Portable if cfg!(target_arch = "x86_64") => ["SSE2 pmaddwd", "SSE2 pmaddwd"],
        Level::Portable => ["plain INT16 loop", "plain INT16 loop"],
    };
    let integers = 2.0 * bytes(isa) as f64 * sums;
    let int8 = Unit {
        math: Math::Int8,
        name: names[0],
        run: |isa, turns| products(isa, Operands::Bytes, turns, true),
        isa,
        operations: integers,
        per_cycle: None,
    };
    let int16 = Unit {
        math: Math::Int16,
        name: names[1],
        run: |isa, turns| products(isa, Operands::Mixed, turns, false),
        isa,
        operations: integers / 2.0,
        per_cycle: None,
    };
    let mut units = vec![vectors, int8, int16];
    if isa.level() == Level::Portable {
        let run = |isa, turns| launch(isa, Widened(turns));
        let name = "words widened before";
        units.push(Unit { math: Math::Int8, name, run, isa, operations: integers / 2.0, per_cycle: None });
    }
    #[cfg(target_arch = "x86_64")]
    {
        units.extend(x86::units(isa));
        units.extend(super::tiles::units(isa));
    }
    units
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::{
        arch::x86_64::{
            __m512bh, __m512i, _mm256_fmadd_pd, _mm256_set1_pd, _mm256_setzero_pd, _mm512_dpbf16_ps, _mm512_fmadd_pd,
            _mm512_set1_epi16, _mm512_set1_pd, _mm512_setzero_pd, _mm512_setzero_ps,
        },
        hint::black_box,
        mem::transmute,
    };

    use roofline_core::Math;
    use roofline_isa::{Isa, Level};

    use super::{ACCUMULATORS, UNITS, Unit};

    macro_rules! spin {
        ($name:ident, $features:literal, $zero:expr, $operand:expr, |$x:ident, $y:ident, $sum:ident| $step:expr) => {
            #[target_feature(enable = $features)]
            fn $name(turns: u64) {
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

    pub(super) fn units(isa: Isa) -> Vec<Unit> {
        let unit = |math, name, run, lanes: f64, dot: f64, known: bool| Unit {
            math,
            name,
            run,
            isa,
            operations: 2.0 * lanes * dot * ACCUMULATORS as f64,
            per_cycle: known.then_some(2.0 * lanes * dot * UNITS),
        };
        let mut units = Vec::new();
        // SAFETY of the calls: an `Isa` holds only what the processor has.
        match isa.level() {
            Level::Avx512 => {
                units.push(unit(Math::Fp64, "AVX-512 FMA", |_, turns| unsafe { fp64_512(turns) }, 8.0, 1.0, true));
            }
            Level::Avx2 => {
                units.push(unit(Math::Fp64, "AVX2 FMA", |_, turns| unsafe { fp64_256(turns) }, 4.0, 1.0, true));
            }
            _ => {}
        }
        if isa.has_bf16() {
            units.push(unit(Math::Bf16, "AVX-512 BF16", |_, turns| unsafe { bf16_512(turns) }, 16.0, 2.0, false));
        }
        units
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A product and a sum for each element of each accumulator; 16-bit numbers in two digits, or in words, are half as many.
    #[test]
    fn a_turn_counts_what_its_registers_hold() {
        for unit in Isa::restrictions().into_iter().flat_map(units_of) {
            (unit.run)(unit.isa, 10);
            let (bits, sums) = match unit.name {
                name if name.starts_with("AVX-512") => (512.0, ACCUMULATORS),
                name if name.starts_with("AVX") => (256.0, ACCUMULATORS),
                name if name.starts_with("NEON") => (128.0, ACCUMULATORS),
                // Tiles count otherwise.
                _ if unit.isa.level() != Level::Portable => continue,
                _ => (256.0, FEW),
            };
            let element = match unit.math {
                Math::Fp64 => 64.0,
                Math::Fp32 => 32.0,
                Math::Bf16 | Math::Int16 => 16.0,
                Math::Int8 if unit.name.starts_with("words") => 16.0,
                Math::Int8 => 8.0,
                math => panic!("{math} by {}", unit.name),
            };
            assert_eq!(unit.operations, 2.0 * bits / element * sums as f64, "{} by {}", unit.math, unit.name);
            let built = unit.per_cycle.map(|rate| rate * sums as f64 / UNITS);
            assert!(built.is_none_or(|built| built == unit.operations), "{} by {}", unit.math, unit.name);
        }
    }

    /// All threads together are never said to do less than one of them.
    #[test]
    fn a_disturbed_peak_is_that_of_one_thread() {
        let units = units();
        let trial = |rates: &[f64]| Trial { unit: &units[0], turns: 1, alone: vec![3.0, 5.0], rates: rates.to_vec() };
        let peak = trial(&[4.0, 1.0, 2.0]).peak(2, None, None);
        assert_eq!((peak.best.value(), peak.median.value(), peak.worst.value()), (5.0, 4.0, 3.0));
        assert_eq!((peak.threads, peak.busy, peak.trials), (2, 1, 2));
        let peak = trial(&[4.0, 9.0]).peak(2, None, None);
        assert_eq!((peak.best.value(), peak.busy), (9.0, 2));
    }

    /// A name is what peaks of two measurements are told apart by, so none says what another loop was.
    #[test]
    fn what_every_processor_has_is_not_called_fused() {
        let names: Vec<&str> = units_of(Isa::portable()).iter().map(|unit| unit.name).collect();
        assert!(!names.iter().any(|name| name.contains("FMA")), "{names:?}");
        let here = if cfg!(target_arch = "x86_64") { "SSE2" } else { "plain" };
        assert!(names[..3].iter().all(|name| name.starts_with(here)), "{names:?}");
    }

    /// Kernels multiply integers on every processor, so every processor has peaks for them.
    #[test]
    fn integers_have_units_everywhere() {
        for isa in Isa::restrictions() {
            for math in [Math::Fp32, Math::Int16, Math::Int8] {
                assert!(units_of(isa).iter().any(|unit| unit.math == math), "{math} on {isa}");
            }
        }
    }
}
