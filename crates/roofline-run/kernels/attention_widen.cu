// Rows of a cache of 8-bit numbers as 16-bit ones, for attention of many new tokens, which multiplies such: what it reads of a
// cache is little beside what it multiplies. Keys and values of every KV head, the first `starts[sequence] + fresh` rows of
// `capacity`; a block has ROWS of either.
//
//   HEAD_DIM; CACHE: E4M3, E5M2 or INT8 with a bfloat16 scale per row; ROWS; HALF, CHAINED

constexpr int PIECES = HEAD_DIM / 16; // of 16 numbers of a row

static __device__ __forceinline__ float widened(u32 code) {
#if CACHE == E4M3
    return from_e4m3((u8)code);
#elif CACHE == E5M2
    return from_fp16((u16)(code << 8));
#else
    return (float)(signed char)code;
#endif
}

static __device__ __forceinline__ uint2 widened(u32 four, float scale) {
    return make_uint2(pair_16(widened(four & 255) * scale, widened(four >> 8 & 255) * scale),
                      pair_16(widened(four >> 16 & 255) * scale, widened(four >> 24) * scale));
}

extern "C" __global__ void __launch_bounds__(256)
    attention_widen(const uint4* k, const uint4* v, const u16* k_scales,
                    const u16* v_scales, uint4* __restrict__ wide_k, uint4* __restrict__ wide_v,
                    const int* __restrict__ starts, int kv_heads, int capacity, int fresh) {
    chain_release();
    chain_wait();
    int chunks = (capacity + ROWS - 1) / ROWS, part = blockIdx.x / 2, unit = part / chunks;
    int first = part % chunks * ROWS, rows = min(ROWS, starts[unit / kv_heads] + fresh - first);
    bool values = blockIdx.x % 2;
    u64 before = (u64)unit * capacity + first;
    const uint4* from = (values ? v : k) + before * PIECES;
    const u16* scales = (values ? v_scales : k_scales) + before;
    uint4* to = (values ? wide_v : wide_k) + before * PIECES * 2;
    for (int at = threadIdx.x; at < rows * PIECES; at += 256) {
        uint4 codes = from[at];
        float scale = from_bf16(scales[at / PIECES]);
        uint2 a = widened(codes.x, scale), b = widened(codes.y, scale), c = widened(codes.z, scale), d = widened(codes.w, scale);
        to[2 * at] = make_uint4(a.x, a.y, b.x, b.y), to[2 * at + 1] = make_uint4(c.x, c.y, d.x, d.y);
    }
}
