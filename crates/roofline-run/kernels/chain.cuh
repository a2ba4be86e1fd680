// Kernels of a model follow each other in one stream. Where CHAINED, a kernel may start while the one before it still runs:
// it does what needs nobody (its addresses, its weights), and waits before it reads or writes what others write or read.
// The wait is for the end of the kernel before, which itself has waited for the one before that.
//
// What kernels of a chain write for each other is never `const __restrict__`: that promises that nobody writes it while the
// kernel runs, and such reads may come from a first-level cache that an earlier kernel has filled on the same multiprocessor.

#ifndef CHAINED
#define CHAINED 0
#endif

static __device__ __forceinline__ void chain_wait() {
#if CHAINED && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// From here on the next kernel may start, as far as there is room for it.
static __device__ __forceinline__ void chain_release() {
#if CHAINED && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
