// Numbers of 8 bit, of which a row shares a scale.

// Round to nearest, ties to even, in a float of MANTISSA bits with a largest code, by adding half of what is cut off.
template <int MANTISSA, int BIAS, int TOP> static __device__ __forceinline__ u32 rounded(float value) {
    u32 sign = __float_as_uint(value) >> 24 & 0x80, bits = __float_as_uint(value) & 0x7fffffff;
    constexpr int CUT = 23 - MANTISSA;
    u32 normal = ((bits + (1u << (CUT - 1)) - 1 + (bits >> CUT & 1)) >> CUT) - ((127 - BIAS) << MANTISSA);
    u32 small = (u32)__float2int_rn(fabsf(value) * (float)(1u << (BIAS - 1 + MANTISSA)));
    return sign | min(bits < (u32)(128 - BIAS) << 23 ? small : normal, (u32)TOP);
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
