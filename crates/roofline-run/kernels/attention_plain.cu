// Attention for heads that no fast kernel takes, of any width up to 256: one warp per query and head goes through its keys, a
// few at a time, and keeps what it has seen of them. Right first; rows of few features make it slow.
//
//   HEAD_DIM; CACHE: SIXTEEN, E4M3, E5M2 or INT8 with a bfloat16 scale per row; HALF, CHAINED
//   Query t of sequence s sees keys up to `starts[s] + t`, the last `window` of them.

#define FEATURES ((HEAD_DIM + 31) / 32)

static __device__ __forceinline__ float cached(const void* cache, u64 at) {
#if CACHE == SIXTEEN
    return from_16(((const u16*)cache)[at]);
#elif CACHE == INT8
    return (float)((const signed char*)cache)[at];
#elif CACHE == E4M3
    return from_e4m3(((const u8*)cache)[at]);
#else
    return from_fp16((u16)((u16)((const u8*)cache)[at] << 8));
#endif
}

extern "C" __global__ void __launch_bounds__(128)
    attention_plain(const u16* q, const void* keys, const void* values,
                    const u16* key_scales, const u16* value_scales, const int* __restrict__ starts,
                    const float* __restrict__ sinks, u16* __restrict__ out, int rows, int heads, int kv_heads, int capacity, int first,
                    int step, int window, float scale, float cap) {
    chain_release();
    u64 item = (u64)blockIdx.x * 4 + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    chain_wait();
    if (item >= (u64)rows * heads) return;
    int row = (int)(item / heads), head = (int)(item % heads), sequence = row / step;
    int end = starts[sequence] + row % step + 1, begin = max(0, end - window);
    u64 base = ((u64)(first + sequence) * kv_heads + head / (heads / kv_heads)) * capacity;
    float query[FEATURES], sum[FEATURES], largest = sinks ? sinks[head] : -1e30f, total = sinks ? 1.0f : 0.0f;
#pragma unroll
    for (int i = 0; i < FEATURES; i++) {
        int at = lane + 32 * i;
        query[i] = at < HEAD_DIM ? from_16(q[item * HEAD_DIM + at]) * scale : 0;
        sum[i] = 0;
    }
    for (int key = begin; key < end; key++) {
        float score = 0;
#pragma unroll
        for (int i = 0; i < FEATURES; i++) {
            int at = lane + 32 * i;
            if (at < HEAD_DIM) score += query[i] * cached(keys, (base + key) * HEAD_DIM + at);
        }
        score = warp_sum(score);
        if (CACHE != SIXTEEN) score *= from_bf16(key_scales[base + key]);
        if (cap > 0) score = cap * tanhf(score / cap);
        float now = fmaxf(largest, score), shrink = __expf(largest - now), weight = __expf(score - now);
        largest = now, total = total * shrink + weight;
        float by = CACHE != SIXTEEN ? weight * from_bf16(value_scales[base + key]) : weight;
#pragma unroll
        for (int i = 0; i < FEATURES; i++) {
            int at = lane + 32 * i;
            sum[i] *= shrink;
            if (at < HEAD_DIM) sum[i] += by * cached(values, (base + key) * HEAD_DIM + at);
        }
    }
#pragma unroll
    for (int i = 0; i < FEATURES; i++) {
        int at = lane + 32 * i;
        if (at < HEAD_DIM) out[item * HEAD_DIM + at] = to_16(sum[i] / total);
    }
}
