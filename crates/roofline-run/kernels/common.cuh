// Numbers and small pieces that every kernel family uses. Compiled by NVRTC without any header of the toolkit, so that the
// library alone is enough; 16-bit numbers are their bits.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if !defined(PORTABLE) && __CUDA_ARCH__ >= 800
#define TENSOR_16 1
#else
#define TENSOR_16 0
#endif

static __device__ __forceinline__ float from_bf16(u16 bits) { return __uint_as_float((u32)bits << 16); }

// Round to nearest, ties to even; NaN stays NaN.
static __device__ __forceinline__ u16 to_bf16(float value) {
#if TENSOR_16
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
}

static __device__ __forceinline__ float from_fp16(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

static __device__ __forceinline__ u16 to_fp16(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// E4M3 without infinities: a bfloat16 with the exponent's bias 120 too low, which one multiplication mends, subnormals
// and all. 0x7f and 0xff are NaN and never stored.
static __device__ __forceinline__ float from_e4m3(u8 bits) {
    u32 sign = (u32)(bits & 0x80) << 24, rest = (u32)(bits & 0x7f) << 20;
    return __uint_as_float(sign | rest) * __uint_as_float(0x7b800000);
}

// The type of 16-bit numbers a kernel was compiled for: HALF is 0 for bfloat16, 1 for IEEE half.
#ifndef HALF
#define HALF 0
#endif

static __device__ __forceinline__ float from_16(u16 bits) { return HALF ? from_fp16(bits) : from_bf16(bits); }
static __device__ __forceinline__ u16 to_16(float value) { return HALF ? to_fp16(value) : to_bf16(value); }

// Two 16-bit numbers in a word, the first in the low half.
static __device__ __forceinline__ float low_16(u32 pair) {
    return HALF ? from_fp16((u16)pair) : __uint_as_float(pair << 16);
}
static __device__ __forceinline__ float high_16(u32 pair) {
    return HALF ? from_fp16((u16)(pair >> 16)) : __uint_as_float(pair & 0xffff0000);
}
static __device__ __forceinline__ u32 pair_16(float low, float high) { return (u32)to_16(low) | (u32)to_16(high) << 16; }

// 16 bytes that nobody reads again soon: past the first-level cache.
static __device__ __forceinline__ uint4 stream(const uint4* from) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
    return value;
}

static __device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    return value;
}

static __device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, step));
    return value;
}

static __device__ __forceinline__ u32 warp_most(u32 value) {
#if TENSOR_16
    return __reduce_max_sync(0xffffffff, value);
#else
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = max(value, __shfl_xor_sync(0xffffffff, value, step));
    return value;
#endif
}
