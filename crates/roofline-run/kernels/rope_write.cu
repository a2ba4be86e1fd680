// Behind the product of queries, keys and values: biases, norms of heads, turns by position, and the way into the cache. One
// warp per row and head; a head's features are pairs (i, i + ROTARY / 2) that are turned, and then those that are not.
//
// `projected` has rows of `pitch` numbers: query heads, key heads, value heads. `table` has ROTARY / 2 cosines and as many
// sines per position. Row r is token r % step of sequence first + r / step, at `positions[r]`. The cache is
// [sequence][kv head][capacity][HEAD_DIM], with a bfloat16 scale per row where it is of 8-bit numbers.
//
//   HEAD_DIM, ROTARY; NORMED: queries and keys are normed; CACHE: SIXTEEN, E4M3, E5M2 or INT8; HALF, CHAINED

#define PAIRS ((ROTARY / 2 + 31) / 32)
#define REST ((HEAD_DIM - ROTARY + 31) / 32)
#define PLAIN (REST > 0 ? REST : 1)

#if CACHE != SIXTEEN
constexpr float LARGEST = CACHE == E4M3 ? 448 : CACHE == E5M2 ? 57344 : 127.5f;

// Round to nearest, ties to even, in a float of MANTISSA bits with a largest code.
template <int MANTISSA, int BIAS, int TOP> static __device__ __forceinline__ u32 narrowed(float value) {
    u32 sign = __float_as_uint(value) >> 24 & 0x80, bits = __float_as_uint(value) & 0x7fffffff;
    constexpr int CUT = 23 - MANTISSA;
    u32 normal = ((bits + (1u << (CUT - 1)) - 1 + (bits >> CUT & 1)) >> CUT) - ((127 - BIAS) << MANTISSA);
    u32 small = (u32)__float2int_rn(fabsf(value) * (float)(1u << (BIAS - 1 + MANTISSA)));
    return sign | min(bits < (u32)(128 - BIAS) << 23 ? small : normal, (u32)TOP);
}

static __device__ __forceinline__ u8 code(float value) {
#if CACHE == E4M3
    return (u8)narrowed<3, 7, 0x7e>(value);
#elif CACHE == E5M2
    return (u8)narrowed<2, 15, 0x7b>(value);
#else
    return (u8)max(-128, min(127, __float2int_rn(value)));
#endif
}
#endif

struct Head {
    float low[PAIRS], high[PAIRS], rest[PLAIN];
};

// Every feature a lane holds, with the place where it belongs.
template <class Does> static __device__ __forceinline__ void each(Head& head, Does does) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        int at = lane + 32 * i;
        if (at >= ROTARY / 2) continue;
        does(head.low[i], at), does(head.high[i], at + ROTARY / 2);
    }
#pragma unroll
    for (int i = 0; i < REST; i++) {
        int at = ROTARY + lane + 32 * i;
        if (at < HEAD_DIM) does(head.rest[i], at);
    }
}

extern "C" __global__ void __launch_bounds__(128)
    rope_write(const u16* __restrict__ projected, const float* __restrict__ bias, const float* __restrict__ q_norm,
               const float* __restrict__ k_norm, const float* __restrict__ table, const int* __restrict__ positions,
               u16* __restrict__ queries, void* __restrict__ keys, void* __restrict__ values, u16* __restrict__ key_scales,
               u16* __restrict__ value_scales, int rows, int heads, int kv_heads, int capacity, int first, int step, float epsilon) {
    chain_release();
    int all = heads + 2 * kv_heads, lane = threadIdx.x % 32;
    u64 item = (u64)blockIdx.x * 4 + threadIdx.x / 32;
    bool there = item < (u64)rows * all;
    int row = there ? (int)(item / all) : 0, place = there ? (int)(item % all) : 0;
    bool query = place < heads, value = place >= heads + kv_heads;
    // Positions and angles are nobody's result: they come while the kernel before still runs.
    int position = positions[row];
    float cosine[PAIRS], sine[PAIRS];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        int at = min(lane + 32 * i, ROTARY / 2 - 1);
        cosine[i] = table ? table[(u64)position * ROTARY + at] : 1, sine[i] = table ? table[(u64)position * ROTARY + ROTARY / 2 + at] : 0;
    }
    chain_wait();
    if (!there) return;
    const u16* from = projected + ((u64)row * all + place) * HEAD_DIM;
    Head head;
    each(head, [&](float& x, int at) { x = from_16(from[at]) + (bias ? bias[place * HEAD_DIM + at] : 0); });
    if (NORMED && !value) {
        const float* weight = query ? q_norm : k_norm;
        float squares = 0;
        each(head, [&](float& x, int) { squares += x * x; });
        float factor = rsqrtf(warp_sum(squares) / HEAD_DIM + epsilon);
        each(head, [&](float& x, int at) { x *= factor * weight[at]; });
    }
    if (!value) {
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            float low = head.low[i], high = head.high[i];
            if (lane + 32 * i >= ROTARY / 2) continue;
            head.low[i] = low * cosine[i] - high * sine[i];
            head.high[i] = high * cosine[i] + low * sine[i];
        }
    }
    if (query) {
        u16* to = queries + ((u64)row * heads + place) * HEAD_DIM;
        each(head, [&](float& x, int at) { to[at] = to_16(x); });
        return;
    }
    int own = (place - heads) % kv_heads;
    u64 slot = ((u64)(first + row / step) * kv_heads + own) * capacity + position;
#if CACHE == SIXTEEN
    u16* to = (u16*)(value ? values : keys) + slot * HEAD_DIM;
    each(head, [&](float& x, int at) { to[at] = to_16(x); });
#else
    float largest = 0;
    each(head, [&](float& x, int) { largest = fmaxf(largest, fabsf(x)); });
    // Rounded up to bfloat16, so that nothing is clipped.
    u32 ideal = __float_as_uint(warp_max(largest) / LARGEST), scale = ideal == 0 ? 0x3f80 : (ideal + 0xffff) >> 16;
    float inverse = 1 / __uint_as_float(scale << 16);
    u8* to = (u8*)(value ? values : keys) + slot * HEAD_DIM;
    each(head, [&](float& x, int at) { to[at] = code(x * inverse); });
    if (lane == 0) (value ? value_scales : key_scales)[slot] = (u16)scale;
#endif
}
