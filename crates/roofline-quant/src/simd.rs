//! One body, compiled for each width of vectors, chosen when the program runs.
//!
//! The kernels are plain loops over slices and fixed arrays that the compiler turns into vector code. It may only use
//! the instructions it was told of, so each kernel is compiled three times. Rust never fuses a product with a sum on
//! its own, so all three give the same bits.

/// Declares a function whose body is compiled for AVX-512, for AVX2 and for any CPU. Everything the body calls must be
/// `#[inline(always)]`, or it is compiled for any CPU only.
macro_rules! widest {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$generic:ident: $bound:path>)? ($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name $(<$generic: $bound>)? ($($arg: $type),*) $(-> $ret)? {
            #[inline(always)]
            fn any $(<$generic: $bound>)? ($($arg: $type),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c")]
                fn avx512 $(<$generic: $bound>)? ($($arg: $type),*) $(-> $ret)? {
                    any $(::<$generic>)? ($($arg),*)
                }
                #[target_feature(enable = "avx2,f16c")]
                fn avx2 $(<$generic: $bound>)? ($($arg: $type),*) $(-> $ret)? {
                    any $(::<$generic>)? ($($arg),*)
                }
                match $crate::simd::level() {
                    // SAFETY: the features were detected.
                    #[expect(unsafe_code, reason = "calls what was compiled for features that were just detected")]
                    $crate::simd::Level::Avx512 => return unsafe { avx512 $(::<$generic>)? ($($arg),*) },
                    // SAFETY: as above.
                    #[expect(unsafe_code, reason = "calls what was compiled for features that were just detected")]
                    $crate::simd::Level::Avx2 => return unsafe { avx2 $(::<$generic>)? ($($arg),*) },
                    $crate::simd::Level::Any => {}
                }
            }
            any $(::<$generic>)? ($($arg),*)
        }
    };
}
pub(crate) use widest;

/// Which of the three compilations runs.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// 512-bit vectors.
    Avx512,
    /// 256-bit vectors.
    Avx2,
    /// What every CPU of the architecture has.
    Any,
}

/// The widest this CPU has.
#[cfg(target_arch = "x86_64")]
pub(crate) fn level() -> Level {
    use std::arch::is_x86_feature_detected as has;
    #[cfg(test)]
    if let Some(level) = tests::forced() {
        return level;
    }
    if has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq") && has!("f16c") {
        Level::Avx512
    } else if has!("avx2") && has!("f16c") {
        Level::Avx2
    } else {
        Level::Any
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::Level;

    thread_local! {
        static FORCED: Cell<Option<Level>> = const { Cell::new(None) };
    }

    pub(crate) fn forced() -> Option<Level> {
        FORCED.get()
    }

    /// What `body` gives with each compilation this CPU can run.
    pub(crate) fn at_every_level<T>(body: impl Fn() -> T) -> Vec<T> {
        let widest = super::level();
        let levels = [Level::Any, Level::Avx2, Level::Avx512];
        levels
            .into_iter()
            .take_while(|level| *level == Level::Any || widest == *level || widest == Level::Avx512)
            .map(|level| {
                FORCED.set(Some(level));
                let result = body();
                FORCED.set(None);
                result
            })
            .collect()
    }
}
