// Numbers of 8 bit, of which a row shares a scale.

// Round to nearest, ties to even, in a float of MANTISSA bits with a largest code, by adding half of what is cut off.
template <int MANTISSA, int BIAS, int TOP> static __device__ __forceinline__ u32 rounded(float value) {
    u32 sign = __float_as_uint(value) >> 24 & 0x80, bits = __float_as_uint(value) & 0x7fffffff;
    constexpr int CUT = 23 - MANTISSA;
    u32 normal = ((bits + (1u << (CUT - 1)) - 1 + (bits >> CUT & 1)) >> CUT) - ((127 - BIAS) << MANTISSA);
    u32 small = (u32)__float2int_rn(fabsf(value) * (float)(1u << (BIAS - 1 + MANTISSA)));
    u32 code = min(bits < (u32)(128 - BIAS) << 23 ? small : normal, (u32)TOP);
    // What is not a number stays none.
    return sign | (bits > 0x7f800000 ? 0x7f : code);
}

static __device__ __forceinline__ u32 to_e4m3(float value) { return rounded<3, 7, 0x7e>(value); }
static __device__ __forceinline__ u32 to_e5m2(float value) { return rounded<2, 15, 0x7b>(value); }
static __device__ __forceinline__ u32 to_int8(float value) { return (u32)max(-128, min(127, __float2int_rn(value))) & 0xff; }

// What a row's largest magnitude is brought to; INT8 uses all 256 codes.
constexpr float TOP_E4M3 = 448, TOP_E5M2 = 57344, TOP_INT8 = 127.5f;

// The bits of a row's scale, rounded up to bfloat16 so that nothing is clipped; a row of zeros has 1.
static __device__ __forceinline__ u32 row_scale(float largest, float top) {
    u32 ideal = __float_as_uint(largest / top);
    return ideal == 0 ? 0x3f80 : (ideal + 0xffff) >> 16;
}

// Four codes of two pairs of 16-bit numbers times `by`.
template <bool INTEGERS> static __device__ __forceinline__ u32 four_codes(u32 first, u32 second, float by) {
    float a = low_16(first) * by, b = high_16(first) * by, c = low_16(second) * by, d = high_16(second) * by;
    if (INTEGERS) return to_int8(a) | to_int8(b) << 8 | to_int8(c) << 16 | to_int8(d) << 24;
#if __CUDA_ARCH__ >= 890
    u16 low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
    return (u32)low | (u32)high << 16;
#else
    return to_e4m3(a) | to_e4m3(b) << 8 | to_e4m3(c) << 16 | to_e4m3(d) << 24;
#endif
}

// A pair of 16-bit numbers times `by`, each rounded to what a code of E4M3 stands for.
static __device__ __forceinline__ u32 rounded_e4m3(u32 pair, float by) {
    float a = low_16(pair) * by, b = high_16(pair) * by;
#if __CUDA_ARCH__ >= 890
    u16 codes;
    u32 halves;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(b), "f"(a));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
    return HALF ? halves : pair_16(from_fp16((u16)halves), from_fp16((u16)(halves >> 16)));
#else
    return pair_16(from_e4m3(to_e4m3(a)), from_e4m3(to_e4m3(b)));
#endif
}
