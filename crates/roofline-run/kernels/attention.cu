// Decode attention: one new query per sequence over a KV cache, `softmax(Q * K^T * scale) * V`, in one launch.
//
// The cache is read once, and that bounds the time. Consecutive threads of a warp read consecutive 16-byte pieces of rows
// (pieces of many rows at once cost a third of the bandwidth) and take those that are their parts of operands out of shared
// memory. On the way there pieces of the next step wait in registers while the present one is computed. With heads of 128
// and large caches such plain loads reach 88 to 99 % of what an H200 reads; copies into a queue in shared memory, of every
// depth tried, reached 75 to 83 %, bulk copies 78 to 87 %; why is not known. A queue of DEPTH steps, filled by asynchronous
// copies, stays for short contexts, where it measured a little faster. No warp waits for another before the end.
//
// Both products have cached rows as their first operand (16 x 16) and 8 query heads of a group as the second (16 x 8):
//   scores   S^T[key][head]     += K[key][feature]   * Q^T[feature][head]
//   outputs  O^T[feature][head] += V^T[feature][key] * P^T[key][head]
// A sum of products does not care about order. So 16 consecutive bytes of a row, which a thread reads at once, are declared
// to be the places of the operand that this thread holds, as long as features of Q and keys of P are renamed alike.
//
// A block takes one of `splits` shares of a KV head's keys `seen_from .. seen_to` and one of `groups` shares of its query
// heads; the last block of a head to finish adds the shares of keys up (flash decoding), or all of them do, a part of the
// features each, where they are a CLUSTER and see each other's shared memory: one way to memory and back is saved, which is a
// sixth of the time of 2048 keys on an H200. Blocks: batch * kv_heads * groups * splits. Queries are [batch][head][feature], sequences `q_pitch` numbers apart, outputs the same without a gap; keys and
// values are [batch][kv head][capacity][feature], scales of 8-bit caches one bfloat16 per row. `scale` has log2(e) in it;
// `cap` bounds scores by a tanh; a sink is one more score of a head, which nothing is added for. `shares` hold HEADS *
// (HEAD_DIM + 2) floats per block; `counters`, one per `splits` blocks, start as zeros and are left as zeros. Shared memory:
// max(SLOTS * STEP * 16, HEADS * HEAD_DIM * 4) bytes per warp.
//
// Where the launch does not know how many keys there are, `lengths` has `added` fewer per sequence, the last `window` of them
// are seen (0: all), and as many blocks do nothing as there are too many. No keys give zeros. A cache may be of pages of PAGED
// rows, [page][kv head][row][feature], which `table` names: [batch][capacity / PAGED]; steps then start where pages may.
//
// Where TURNED, `q` is what the product of queries, keys and values put out, as `rope.cuh` knows it: [batch][query heads, key
// heads, value heads][feature], sequences `q_pitch` numbers apart. Every block turns the queries of its own heads, and the one
// that sees the last key writes it and its value to the cache. Keys of earlier tokens are on their way before that.
//
// Compiled for: HEAD_DIM; CACHE, which is SIXTEEN (as the queries), E4M3, E5M2 or INT8; TILES of 8 query heads per block;
// WARPS per block; KEYS per warp and step; DEPTH of the queue in steps, or 0; BLOCKS per multiprocessor; HALF as in common;
// LENGTHS, CAPPED, SINKS: whether there are such; PAGED, or 0; TURNED, with ROTARY and NORMED; CLUSTER: 0, or what
// `splits` is; CHAINED as in chain.

#if TURNED || CHAINED
#define CACHED
#else
#define CACHED __restrict__
#endif
#if TURNED
static_assert(LENGTHS && !PAGED, "new keys go behind those that are counted, in rows that follow each other");
#endif

// What a warp has seen of its keys: the largest score per head, this thread's part of the sum of powers, and outputs.
struct Seen {
    float largest[TILES][2], total[TILES][2];
    float outputs[TILES][V_LOADS][V_PIECE / 2][4];

    __device__ __forceinline__ Seen() {
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            largest[tile][0] = largest[tile][1] = NOTHING;
            total[tile][0] = total[tile][1] = 0;
#pragma unroll
            for (int at = 0; at < V_LOADS * V_PIECE / 2 * 4; at++) (&outputs[tile][0][0][0])[at] = 0;
        }
    }
};

// A step's scores, their powers of two, and values weighted with them. Keys from `low` to `left` are seen; `scales` are those
// of row + lane in K and V; values may be put in place `before_values`.
template <class Before>
static __device__ __forceinline__ void step(Seen& seen, const Queries& queries, const Places& places, u32 slot, int low, int left,
                                            float2 scales, float cap, Before before_values) {
    int lane = threadIdx.x % 32, g = lane / 4;
    // Two sums per score: half the time that products wait for each other.
    float scores[TILES][KEYS / 16][4] = {}, others[TILES][KEYS / 16][4] = {};
#pragma unroll
    for (int rows = 0; rows < KEYS / 16; rows++)
#pragma unroll
        for (int load = 0; load < K_LOADS; load++) {
            uint4 upper = taken(slot + places.key(2 * rows, load)), lower = taken(slot + places.key(2 * rows + 1, load));
#pragma unroll
            for (int at = 0; at < PIECE / 4; at++) {
                u32 a[4];
#pragma unroll
                for (int side = 0; side < 2; side++) {
                    a[2 * side] = SCALED ? widened(word(upper, at), side) : word(upper, 2 * at + side);
                    a[2 * side + 1] = SCALED ? widened(word(lower, at), side) : word(lower, 2 * at + side);
                }
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    const u32* q = queries.pairs[tile][load] + 2 * at;
                    multiply(at % 2 ? others[tile][rows] : scores[tile][rows], a[0], a[1], a[2], a[3], q[0], q[1]);
                }
            }
        }

    // A value's scale goes into its weight: as an exponent, so that weights stay numbers that a half can hold.
    float k_scale[ROWS], v_shift[ROWS], v_inverse[ROWS];
    float shift = SCALED ? __log2f(scales.y) : 0, inverse = SCALED ? __fdividef(1, scales.y) : 1;
#pragma unroll
    for (int at = 0; at < ROWS; at++) {
        k_scale[at] = SCALED ? __shfl_sync(0xffffffff, scales.x, g * ROWS + at) : 1;
        v_shift[at] = SCALED ? __shfl_sync(0xffffffff, shift, g * ROWS + at) : 0;
        v_inverse[at] = SCALED ? __shfl_sync(0xffffffff, inverse, g * ROWS + at) : 1;
    }
    u32 weights[TILES][KEYS / 16][2];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        float found[2] = {NOTHING, NOTHING};
#pragma unroll
        for (int at = 0; at < ROWS; at++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                float& score = scores[tile][at / 2][at % 2 * 2 + side];
                float factor = queries.factor[tile][side] * k_scale[at];
                score = (score + others[tile][at / 2][at % 2 * 2 + side]) * factor;
                if (CAPPED) score = bounded(score, cap);
                score += v_shift[at];
                if (g * ROWS + at >= left || PAGED && g * ROWS + at < low) score = NOTHING;
                found[side] = fmaxf(found[side], score);
            }
        float shrink[2];
#pragma unroll
        for (int side = 0; side < 2; side++) {
#pragma unroll
            for (int far = 4; far < 32; far *= 2)
                found[side] = fmaxf(found[side], __shfl_xor_sync(0xffffffff, found[side], far));
            found[side] = fmaxf(found[side], seen.largest[tile][side]);
            shrink[side] = power_of_2(seen.largest[tile][side] - found[side]);
            seen.largest[tile][side] = found[side];
        }
        if (__any_sync(0xffffffff, shrink[0] < 1 || shrink[1] < 1)) {
#pragma unroll
            for (int side = 0; side < 2; side++) seen.total[tile][side] *= shrink[side];
#pragma unroll
            for (int at = 0; at < V_LOADS * V_PIECE / 2 * 4; at++)
                (&seen.outputs[tile][0][0][0])[at] *= shrink[at % 2];
        }
#pragma unroll
        for (int at = 0; at < ROWS; at++) {
            float weight[2];
#pragma unroll
            for (int side = 0; side < 2; side++) {
                weight[side] = power_of_2(scores[tile][at / 2][at % 2 * 2 + side] - found[side]);
                seen.total[tile][side] += weight[side] * v_inverse[at];
            }
            weights[tile][at / 2][at % 2] = transposed(operand(weight[0], weight[1]));
        }
    }

    before_values();
#pragma unroll
    for (int rows = 0; rows < KEYS / 16; rows++)
#pragma unroll
        for (int load = 0; load < V_LOADS; load++) {
            uint4 v[4];
#pragma unroll
            for (int at = 0; at < 4; at++)
                v[at] = taken_value(slot + places.value(4 * rows + at, load));
#pragma unroll
            for (int at = 0; at < V_PIECE / 2; at++) {
                // Two features of four keys, keys in pairs.
                u32 a[4];
#pragma unroll
                for (int pair = 0; pair < 2; pair++) {
                    u32 one = word(v[2 * pair], SCALED ? at / 2 : at), other = word(v[2 * pair + 1], SCALED ? at / 2 : at);
                    u32 mixed = SCALED ? __byte_perm(one, other, at % 2 ? 0x7362 : 0x5140) : 0;
                    a[2 * pair] = SCALED ? widened(mixed, false) : __byte_perm(one, other, 0x5410);
                    a[2 * pair + 1] = SCALED ? widened(mixed, true) : __byte_perm(one, other, 0x7632);
                }
#pragma unroll
                for (int tile = 0; tile < TILES; tile++)
                    multiply(seen.outputs[tile][load][at], a[0], a[1], a[2], a[3], weights[tile][rows][0],
                             weights[tile][rows][1]);
            }
        }
}

static __device__ __forceinline__ void store_16(u16* to, float4 values) {
    *(uint2*)to = make_uint2(pair_16(values.x, values.y), pair_16(values.z, values.w));
}

// What outputs are multiplied with, when weights relative to `largest` add up to `total`.
static __device__ __forceinline__ float inverse_of(float largest, float total, const float* sinks, int head) {
    if (SINKS) total += power_of_2(sinks[head] * LOG2_E - largest);
    return LENGTHS && total == 0 ? 0 : 1 / total;
}

static __device__ __forceinline__ void add(float4& sum, float weight, float4 value) {
    sum.x += weight * value.x, sum.y += weight * value.y, sum.z += weight * value.z, sum.w += weight * value.w;
}

static __device__ __forceinline__ void cluster_wait() {
#if CLUSTER
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// Where `own` of this block is in block `rank` of the cluster.
static __device__ __forceinline__ u32 place_in(const void* own, u32 rank) {
    u32 there = (u32)__cvta_generic_to_shared(own);
#if CLUSTER
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(there) : "r"(rank));
#endif
    return there;
}

static __device__ __forceinline__ float4 float4_in(const float* own, u32 rank) {
    float4 value = make_float4(0, 0, 0, 0);
#if CLUSTER
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(place_in(own, rank)));
#endif
    return value;
}

static __device__ __forceinline__ float2 float2_in(const float2* own, u32 rank) {
    float2 value = make_float2(0, 0);
#if CLUSTER
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(place_in(own, rank)));
#endif
    return value;
}

extern "C" __global__ void
#if CLUSTER
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, BLOCKS)
    attention_decode(const u16* q, const uint4* CACHED k, const uint4* CACHED v,
                     const u16* CACHED k_scales, const u16* CACHED v_scales, u16* __restrict__ out,
                     float* __restrict__ shares, u32* __restrict__ counters, const int* __restrict__ lengths,
                     const int* __restrict__ table, const float* __restrict__ sinks, int all_heads, int kv_heads, int q_pitch, int capacity, int seen_from,
                     int seen_to, int added, int window, int splits, int groups, float scale, float cap
#if TURNED
                     , const float* __restrict__ bias, const float* __restrict__ q_norm, const float* __restrict__ k_norm,
                     const float* __restrict__ turns, float epsilon
#endif
    ) {
    chain_release();
#if !TURNED
    chain_wait();
#endif
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int split = blockIdx.x % splits, part = blockIdx.x / splits;
    int unit = part / groups, group = all_heads / kv_heads;
    int before = part % groups * HEADS, heads = min(group - before, HEADS);
    int sequence = unit / kv_heads, first_head = unit % kv_heads * group + before;
    q += (long long)sequence * q_pitch + (TURNED ? 0 : first_head * HEAD_DIM);
    out += ((long long)sequence * all_heads + first_head) * HEAD_DIM;
    // Blocks that share the keys: all, or as many as have a step for each warp.
    int sharing = splits;
    if (LENGTHS) {
        seen_to = lengths[sequence] + added, seen_from = window ? max(seen_to - window, 0) : 0;
    }
    int low = PAGED ? seen_from % KEYS : 0; // keys of the first step that are not seen
    seen_from -= low;
    if (LENGTHS) {
        int most = ((seen_to - seen_from + KEYS - 1) / KEYS + WARPS - 1) / WARPS;
        sharing = max(min(splits, most), 1);
        if (!CLUSTER && split >= sharing) return;
    }
    u64 rows = PAGED ? 0 : (u64)unit * capacity + seen_from;
#if TURNED
    void *new_k = (void*)k, *new_v = (void*)v;
    u16 *new_k_scales = (u16*)k_scales, *new_v_scales = (u16*)v_scales;
#endif
    k += rows * PIECES, v += rows * PIECES, k_scales += rows, v_scales += rows;

    u32 own = (u32)__cvta_generic_to_shared(queue + warp * SLOTS * STEP);
    // Features that do not exist are never copied; they must not be NaN.
    if (PITCH != PIECES) {
        for (int at = lane; at < SLOTS * STEP; at += 32) queue[warp * SLOTS * STEP + at] = make_uint4(0, 0, 0, 0);
        __syncwarp();
    }
    int keys = seen_to - seen_from, steps = (keys + KEYS - 1) / KEYS;
    int first = (int)((long long)steps * split / sharing) + warp;
    // A block of a cluster without keys of its own waits for the others.
    int end = split < sharing ? (int)((long long)steps * (split + 1) / sharing) : 0;
    // The first row of a step.
    auto row_of = [&](int at) {
        if (!PAGED || at >= end) return (u64)at * KEYS;
        int key = seen_from + at * KEYS, page = table[sequence * (capacity / max(PAGED, 1)) + key / max(PAGED, 1)];
        return ((u64)page * kv_heads + unit % kv_heads) * PAGED + key % max(PAGED, 1);
    };
    auto scales_of = [&](int at, u64 begin) {
        if (!SCALED || at >= end) return make_float2(1, 1);
        u64 row = PAGED ? begin + min(lane, keys - 1 - at * KEYS) : min(at * KEYS + lane, keys - 1);
        return make_float2(from_bf16(k_scales[row]) * REST, from_bf16(v_scales[row]) * REST);
    };
    // Behind this, the new key is in the cache, where one of this block's steps is the last one.
#if TURNED
    __shared__ u16 turned[HEADS * HEAD_DIM];
#endif
    auto turn = [&] {
#if TURNED
        int head_of_cache = unit % kv_heads;
        rope::Angles angles(turns, seen_to - 1);
        chain_wait();
        for (int item = warp; item < heads + (end == steps ? 2 : 0); item += WARPS) {
            bool query = item < heads, value = item > heads;
            int place = query ? first_head + item : all_heads + head_of_cache + (value ? kv_heads : 0);
            rope::Head head(q + place * HEAD_DIM, bias ? bias + place * HEAD_DIM : bias);
            if (NORMED && !value) head.norm(query ? q_norm : k_norm, epsilon);
            if (!value) head.turn(angles);
            if (query) head.write(turned + item * HEAD_DIM);
            else head.cache(value ? new_v : new_k, value ? new_v_scales : new_k_scales, (u64)unit * capacity + seen_to - 1);
        }
        __syncthreads();
        q = turned;
#endif
    };
#if DEPTH
    auto ask = [&](int at, int slot) {
        u32 to = own + slot * STEP * 16, from = PAGED ? 0 : at * KEYS * PIECES;
        u64 begin = PAGED ? row_of(at) * PIECES : 0;
        int left = PAGED ? keys - at * KEYS : keys;
        if (at < end && (at + 1) * KEYS <= keys) fetch<true>(to, k + begin, v + begin, from, 0);
        if (at < end && (at + 1) * KEYS > keys) fetch<false>(to, k + begin, v + begin, from, left * PIECES - 1);
        end_of_step();
    };
    // Steps of old keys may be asked for before the new one is there.
    auto begins = [&](bool early) {
#pragma unroll
        for (int at = 0; at < DEPTH - 1; at++)
            if ((!TURNED || first + at * WARPS < steps - 1) == early) ask(first + at * WARPS, at);
    };
    begins(true);
    turn();
    begins(false);
#else
    auto ask = [&](Held& held, const uint4* cache, int at, u64 begin) {
        u32 from = PAGED ? 0 : at * KEYS * PIECES;
        cache += PAGED ? begin * PIECES : 0;
        int left = PAGED ? keys - at * KEYS : keys;
        if (at < end && (at + 1) * KEYS <= keys) held.load<true>(cache, from, 0);
        if (at < end && (at + 1) * KEYS > keys) held.load<false>(cache, from, left * PIECES - 1);
    };
    Held held, values;
    auto begins = [&] {
        ask(held, k, first, row_of(first));
        if (Held::BOTH) ask(values, v, first, row_of(first));
    };
    bool early = !TURNED || first != steps - 1;
    if (early) begins();
    turn();
    if (!early) begins();
#endif
    // Where this step and the next begin, which is known a step before it is needed.
    u64 begin = row_of(first), following = row_of(first + WARPS);
    float2 scales = scales_of(first, begin);
    Queries queries(q, heads, scale);
    Places places;
    Seen seen;
    for (int at = first, slot = 0; at < end; at += WARPS) {
        float2 next = scales_of(at + WARPS, following);
#if DEPTH
        ask(at + (DEPTH - 1) * WARPS, slot == 0 ? DEPTH - 1 : slot - 1);
        arrival<DEPTH - 1>();
        auto before_values = [] {};
#else
        held.store(own, false);
        if (Held::BOTH) values.store(own, true), ask(values, v, at + WARPS, following);
        ask(held, Held::BOTH ? k : v, Held::BOTH ? at + WARPS : at, Held::BOTH ? following : begin);
        __syncwarp();
        auto before_values = [&] {
            if (Held::BOTH) return;
            held.store(own, true);
            ask(held, k, at + WARPS, begin);
            __syncwarp();
        };
#endif
        // What is asked for within the step is of the next one.
        begin = following, following = row_of(at + 2 * WARPS);
        step(seen, queries, places, own + slot * STEP * 16, at == 0 ? low : 0, keys - at * KEYS, scales, cap, before_values);
        slot = slot == SLOTS - 1 ? 0 : slot + 1;
        scales = next;
        __syncwarp();
    }

    // The warps' outputs, added up in shared memory.
    __shared__ float2 states[WARPS][HEADS]; // largest, total
    __shared__ float2 merged[HEADS]; // the same of all warps
    __shared__ bool last;
    float* outputs = (float*)queue;
    arrival<0>();
    __syncthreads();
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            int head = 8 * tile + 2 * t + side;
            float total = seen.total[tile][side];
#pragma unroll
            for (int far = 4; far < 32; far *= 2) total += __shfl_xor_sync(0xffffffff, total, far);
            if (g == 0) states[warp][head] = make_float2(seen.largest[tile][side], total);
#pragma unroll
            for (int load = 0; load < V_LOADS; load++)
#pragma unroll
                for (int at = 0; at < V_PIECE / 2; at++) {
                    int feature = (g + 8 * load) * V_PIECE + 2 * at;
                    const float* pair = seen.outputs[tile][load][at] + side;
                    if (8 * V_LOADS * V_PIECE == HEAD_DIM || feature < HEAD_DIM)
                        *(float2*)(outputs + (warp * HEADS + head) * HEAD_DIM + feature) = make_float2(pair[0], pair[2]);
                }
        }
    __syncthreads();
    constexpr int SHARE = HEADS * (HEAD_DIM + 2); // floats: outputs, then largest and total of each head
    float* share = shares + (u64)blockIdx.x * SHARE;
    for (int at = threadIdx.x; at < heads * HEAD_DIM / 4; at += THREADS) {
        int head = at * 4 / HEAD_DIM;
        float largest = NOTHING, total = 0;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int from = 0; from < WARPS; from++) largest = fmaxf(largest, states[from][head].x);
#pragma unroll
        for (int from = 0; from < WARPS; from++) {
            float weight = power_of_2(states[from][head].x - largest);
            total += weight * states[from][head].y;
            add(sum, weight, *(const float4*)(outputs + from * HEADS * HEAD_DIM + at * 4));
        }
        if (CLUSTER) {
            // Only this thread reads these places of all warps.
            *(float4*)(outputs + at * 4) = sum;
            if (at * 4 % HEAD_DIM == 0) merged[head] = make_float2(largest, total);
        } else if (sharing == 1) {
            float inverse = inverse_of(largest, total, sinks, first_head + head);
            store_16(out + at * 4, make_float4(sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse));
        } else {
            *(float4*)(share + at * 4) = sum;
            if (at * 4 % HEAD_DIM == 0) *(float2*)(share + HEADS * HEAD_DIM + head * 2) = make_float2(largest, total);
        }
    }
#if CLUSTER
    cluster_wait();
    int count = heads * HEAD_DIM / 4, part_of = (count + CLUSTER - 1) / CLUSTER;
    for (int at = split * part_of + threadIdx.x; at < min((split + 1) * part_of, count); at += THREADS) {
        int head = at * 4 / HEAD_DIM;
        float2 state[CLUSTER];
        float4 value[CLUSTER], sum = make_float4(0, 0, 0, 0);
        float largest = NOTHING, total = 0;
#pragma unroll
        for (int from = 0; from < CLUSTER; from++) state[from] = float2_in(merged + head, from), value[from] = float4_in(outputs + at * 4, from);
#pragma unroll
        for (int from = 0; from < CLUSTER; from++) largest = fmaxf(largest, state[from].x);
#pragma unroll
        for (int from = 0; from < CLUSTER; from++) {
            float weight = power_of_2(state[from].x - largest);
            total += weight * state[from].y;
            add(sum, weight, value[from]);
        }
        float inverse = inverse_of(largest, total, sinks, first_head + head);
        store_16(out + at * 4, make_float4(sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse));
    }
    // Nobody leaves while others may still read what it has.
    cluster_wait();
    return;
#endif
    if (sharing == 1) return;

    // The blocks' shares, added up by the last block of this KV head.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(counters + part, 1) == sharing - 1;
    __syncthreads();
    if (!last) return;
    if (threadIdx.x == 0) counters[part] = 0;
    __threadfence();
    share = shares + (u64)part * splits * SHARE;
    for (int at = threadIdx.x; at < heads * HEAD_DIM / 4; at += THREADS) {
        int head = at * 4 / HEAD_DIM;
        float largest = NOTHING, total = 0;
        float4 sum = make_float4(0, 0, 0, 0);
        for (int from = 0; from < sharing; from += AHEAD) {
            float2 state[AHEAD];
            float4 value[AHEAD];
            float before = largest;
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const float* there = share + (u64)min(from + i, sharing - 1) * SHARE;
                state[i] = __ldcg((const float2*)(there + HEADS * HEAD_DIM + head * 2));
                value[i] = __ldcg((const float4*)(there + at * 4));
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) largest = fmaxf(largest, state[i].x);
            float shrink = power_of_2(before - largest);
            total *= shrink, sum.x *= shrink, sum.y *= shrink, sum.z *= shrink, sum.w *= shrink;
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                float weight = from + i < sharing ? power_of_2(state[i].x - largest) : 0;
                total += weight * state[i].y;
                add(sum, weight, value[i]);
            }
        }
        float inverse = inverse_of(largest, total, sinks, first_head + head);
        store_16(out + at * 4, make_float4(sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse));
    }
}
