//! Plain loops, compiled for each width.

/// Declares a function whose body is compiled for AVX-512, for AVX2 and for any CPU, and chosen when the program runs.
///
/// The body is a plain loop over slices and fixed arrays that the compiler turns into vector code; it may only use the
/// instructions it was told of. Everything the body calls must be `#[inline(always)]`, or it is compiled for any CPU only.
/// Rust never fuses a product with a sum on its own, so all three give the same bits.
#[macro_export]
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
                match $crate::current().level() {
                    // SAFETY: an `Isa` holds only what the processor has.
                    #[expect(unsafe_code, reason = "calls what was compiled for features that the processor has")]
                    $crate::Level::Avx512 => return unsafe { avx512 $(::<$generic>)? ($($arg),*) },
                    // SAFETY: as above.
                    #[expect(unsafe_code, reason = "calls what was compiled for features that the processor has")]
                    $crate::Level::Avx2 => return unsafe { avx2 $(::<$generic>)? ($($arg),*) },
                    _ => {}
                }
            }
            any $(::<$generic>)? ($($arg),*)
        }
    };
}

use std::cell::Cell;

use crate::Isa;

thread_local! {
    static FORCED: Cell<Option<Isa>> = const { Cell::new(None) };
}

/// What [`widest!`] runs with on this thread.
#[doc(hidden)]
pub fn current() -> Isa {
    FORCED.get().unwrap_or_else(Isa::best)
}

/// What `body` gives at every restriction of this processor, for tests of [`widest!`] functions called on this thread.
pub fn at_every_level<T>(body: impl Fn() -> T) -> Vec<T> {
    let run = |isa: &Isa| {
        FORCED.set(Some(*isa));
        let result = body();
        FORCED.set(None);
        result
    };
    Isa::restrictions().iter().map(run).collect()
}
