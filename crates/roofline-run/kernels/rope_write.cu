// Behind the product of queries, keys and values of many tokens: what `rope.cuh` says, one warp per row and head.
//
// `projected` has rows of query heads, key heads, value heads. Row r is token r % step of sequence first + r / step, at
// `positions[r]`. The cache is [sequence][kv head][capacity][HEAD_DIM], with a bfloat16 scale per row where it is of 8-bit
// numbers.

extern "C" __global__ void __launch_bounds__(128)
    rope_write(const u16* projected, const float* __restrict__ bias, const float* __restrict__ q_norm,
               const float* __restrict__ k_norm, const float* __restrict__ table, const int* __restrict__ positions,
               u16* __restrict__ queries, void* __restrict__ keys, void* __restrict__ values, u16* __restrict__ key_scales,
               u16* __restrict__ value_scales, int rows, int heads, int kv_heads, int capacity, int first, int step, float epsilon) {
    chain_release();
    int all = heads + 2 * kv_heads;
    u64 item = (u64)blockIdx.x * 4 + threadIdx.x / 32;
    bool there = item < (u64)rows * all;
    int row = there ? (int)(item / all) : 0, place = there ? (int)(item % all) : 0;
    bool query = place < heads, value = place >= heads + kv_heads;
    // Positions and angles are nobody's result: they come while the kernel before still runs.
    int position = positions[row];
    rope::Angles angles(table, position);
    chain_wait();
    if (!there) return;
    rope::Head head(projected + ((u64)row * all + place) * HEAD_DIM, bias ? bias + place * HEAD_DIM : bias);
    if (NORMED && !value) head.norm(query ? q_norm : k_norm, epsilon);
    if (!value) head.turn(angles);
    if (query) {
        head.write(queries + ((u64)row * heads + place) * HEAD_DIM);
        return;
    }
    u64 slot = ((u64)(first + row / step) * kv_heads + (place - heads) % kv_heads) * capacity + position;
    head.cache(value ? values : keys, value ? value_scales : key_scales, slot);
}
