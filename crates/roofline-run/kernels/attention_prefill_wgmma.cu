// Attention of many new tokens on Hopper, `softmax(Q K^T * scale) V`, after FlashAttention-3 (Shah et al. 2024).
//
// One warp has the copy engine bring queries, keys and values. GROUPS warpgroups have 64 rows each, and per block of keys
// ask the tensor units for the next block's scores and for the present block's outputs before they make weights of scores:
// these take half as long as the products and would otherwise come on top. That warpgroups also take turns to ask, as in the
// paper, measured no faster on an H200.
//
// Blocks of threads stay, and take the next tile when they have done one: the first of `counters` is the next tile, the second
// how many blocks have finished, then come those of shared tiles. The next tile's queries and keys come in while the present
// one is written.
//
//   STAGES  of the rings of keys and of values; beside attention_prefill.cuh's

constexpr int UNITS = (HEAD_DIM + 63) / 64; // of 128 bytes of a row, which lie together in shared memory
constexpr int CONSUMERS = 128 * GROUPS;
constexpr u32 Q_BYTES = TALL * UNITS * 128, BLOCK_BYTES = KEYS * UNITS * 128;
static_assert(GROUPS == 2 && TALL == 64 * GROUPS, "a warpgroup has 64 rows, and registers for two are asked for");

// How the tensor units find rows: swizzled over 128 bytes, 1024 bytes from one 8 rows to the next. Values are read across
// rows: the next 64 features of a key are a unit further.
constexpr u64 ALONG = (u64)1 << 62 | (u64)64 << 32 | (u64)1 << 16;
constexpr u64 ACROSS = (u64)1 << 62 | (u64)64 << 32 | (u64)(KEYS * 8) << 16;

// One thread's, for as long as there are tiles. `base` is where queries are, then keys, then values.
struct Source {
    const Map *q, *k, *v;
    const int* table;
    u32 base, full, empty; // barriers: of queries, of each stage of keys, of each stage of values
    int filled;

    // A block of keys or of values.
    __device__ __forceinline__ void fill(const Map* map, int which, int turn, const Shape& shape, const Tile& tile, int block) {
        int slot = 1 + which * STAGES + turn % STAGES;
        if (turn >= STAGES) barrier_wait(empty + 8 * slot, (turn / STAGES - 1) % 2);
        barrier_expect(full + 8 * slot, BLOCK_BYTES);
        u32 to = base + Q_BYTES + (slot - 1) * BLOCK_BYTES;
#if PAGED
        constexpr int ROWS = PAGED < KEYS ? PAGED : KEYS;
        int head = tile.head / (shape.heads / shape.kv_heads), pages = shape.capacity / PAGED;
#pragma unroll
        for (int part = 0; part < KEYS / ROWS; part++) {
            int key = block * KEYS + part * ROWS;
            // Past the last page nothing is seen, whatever is there.
            int page = table[tile.sequence * pages + min(key, tile.keys - 1) / PAGED];
            int row = (page * shape.kv_heads + head) * PAGED + key % PAGED;
#pragma unroll
            for (int unit = 0; unit < UNITS; unit++)
                copy_box(to + (unit * KEYS + part * ROWS) * 128, map, unit * 64, row, full + 8 * slot);
        }
#else
        int row = (int)shape.row(tile.sequence, tile.head) + block * KEYS;
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) copy_box(to + unit * KEYS * 128, map, unit * 64, row, full + 8 * slot);
#endif
    }

    __device__ __forceinline__ void fill(const Shape& shape, const Tile& tile) {
        barrier_expect(full, SPAN * PACK * UNITS * 128);
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++)
            copy_box(base + unit * TALL * 128, q, unit * 64, tile.head, tile.sequence * shape.fresh + tile.first, full);
        int blocks = tile.highest - tile.lowest + 1;
        for (int at = 0; at <= blocks; at++) {
            if (at < blocks) fill(k, 0, filled + at, shape, tile, tile.highest - at);
            if (at > 0) fill(v, 1, filled + at - 1, shape, tile, tile.highest - at + 1);
        }
        filled += blocks;
    }
};

// Sets rows of values to zero from `from` on: what was never written may be anything, and nothing times that is not nothing.
static __device__ __forceinline__ void clear_values(u8* values, int from) {
    for (int at = threadIdx.x; at < (KEYS - from) * UNITS * 8; at += CONSUMERS) {
        int row = from + at / 8 % (KEYS - from), unit = at / 8 / (KEYS - from);
        *(uint4*)(values + (unit * KEYS + row) * 128 + at % 8 * 16) = make_uint4(0, 0, 0, 0);
    }
    asm volatile("fence.proxy.async.shared::cta;\nbar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 128, 1)
    attention_prefill(const __grid_constant__ Map q_map, const __grid_constant__ Map k_map, const __grid_constant__ Map v_map,
                      u16* __restrict__ out, const int* __restrict__ starts, const int* __restrict__ table,
                      const float* __restrict__ sinks, float* __restrict__ shares, u32* __restrict__ counters, int sequences, int heads,
                      int kv_heads, int capacity, int fresh, int window, int splits, float scale, float cap) {
    extern __shared__ u8 dynamic[];
    __shared__ u64 barriers[2 + 4 * STAGES];
    __shared__ int announced, told[GROUPS]; // the tile whose queries are there, or -1; who was last
    u8* memory = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
    u32 full = shared_address(barriers), empty = full + 8 * (1 + 2 * STAGES), base = shared_address(memory);
    Shape shape = {sequences, heads, kv_heads, capacity, fresh, window, splits};
    int items = shape.items();

    if (threadIdx.x == 0) {
        for (int i = 0; i < 1 + 2 * STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 4 * GROUPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    chain_release();
    chain_wait();

    if (threadIdx.x >= CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == CONSUMERS) {
            Source source = {&q_map, &k_map, &v_map, table, base, full, empty, 0};
            for (int turn = 0, item = blockIdx.x, next;; item = next) {
                next = item < items ? (int)(gridDim.x + atomicAdd(counters, 1)) : 0;
                if (item < items && Tile(shape, starts, item).idle()) continue;
                if (turn > 0) barrier_wait(empty, (turn - 1) % 2);
                turn++;
                *(volatile int*)&announced = item < items ? item : -1;
                if (item >= items) break;
                source.fill(shape, Tile(shape, starts, item));
            }
            barrier_arrive(full);
            if (atomicAdd(counters + 1, 1) == gridDim.x - 1) counters[0] = counters[1] = 0;
        }
    } else {
        // What a multiprocessor has, less what the copying warpgroup keeps.
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        int lane = threadIdx.x % 32, group = threadIdx.x / 128;
        int row = threadIdx.x / 32 * 16 + lane / 4, key = lane % 4 * 2; // of a tile, of a block
        u64 queries = ALONG | (base + group * 64 * 128) >> 4;
        u64 keys = ALONG | (base + Q_BYTES) >> 4, values = ACROSS | (base + Q_BYTES + STAGES * BLOCK_BYTES) >> 4;
        float scores[KEYS / 2], sums[HEAD_DIM / 2];
        u32 weights[KEYS / 4];

        auto ask_scores = [&](int slot) {
            wgmma_fence();
#pragma unroll
            for (int at = 0; at < HEAD_DIM / 16; at++)
                multiply_keys(scores, queries + at / 4 * (TALL * 8) + at % 4 * 2,
                              keys + slot * (BLOCK_BYTES >> 4) + at / 4 * (KEYS * 8) + at % 4 * 2, at > 0);
            wgmma_commit();
        };
        auto ask_outputs = [&](int slot) {
            wgmma_fence();
#pragma unroll
            for (int at = 0; at < KEYS / 16; at++)
                multiply_values(sums, weights + 4 * at, values + slot * (BLOCK_BYTES >> 4) + at * 128, 1);
            wgmma_commit();
        };
        auto leave = [&](int slot) {
            if (lane == 0) barrier_arrive(empty + 8 * slot);
        };
        auto take_weights = [&] {
#pragma unroll
            for (int i = 0; i < KEYS / 4; i++) weights[i] = rounded(scores[2 * i], scores[2 * i + 1]);
        };

        for (int turn = 0, used = 0;; turn++) {
            barrier_wait(full, turn % 2);
            int item = *(volatile int*)&announced;
            if (item < 0) break;
            Tile tile(shape, starts, item);
            Rows rows;
            float shrink[2];
            auto weigh = [&](int block) {
                if (CAPPED) bound(scores, scale, cap);
                if (tile.partial(shape, group * 64, group * 64 + 63, block)) hide(scores, tile, window, row, block * KEYS + key);
                return rows.weigh(scores, CAPPED ? 1 : scale, shrink);
            };

            barrier_wait(full + 8 * (1 + used % STAGES), used / STAGES % 2);
            ask_scores(used % STAGES);
            if (tile.keys < (tile.highest + 1) * KEYS) {
                barrier_wait(full + 8 * (1 + STAGES + used % STAGES), used / STAGES % 2);
                clear_values(memory + Q_BYTES + (STAGES + used % STAGES) * BLOCK_BYTES, tile.keys - tile.highest * KEYS);
            }
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; i++) sums[i] = 0;
            wgmma_wait(0);
            leave(1 + used % STAGES);
            weigh(tile.highest);
            take_weights();

            for (int block = tile.highest - 1; block >= tile.lowest; block--) {
                int ahead = used + 1;
                barrier_wait(full + 8 * (1 + ahead % STAGES), ahead / STAGES % 2);
                ask_scores(ahead % STAGES);
                barrier_wait(full + 8 * (1 + STAGES + used % STAGES), used / STAGES % 2);
                ask_outputs(used % STAGES);
                wgmma_wait(1);
                leave(1 + ahead % STAGES);
                bool higher = weigh(block);
                wgmma_wait(0);
                leave(1 + STAGES + used % STAGES);
                if (higher) {
#pragma unroll
                    for (int i = 0; i < HEAD_DIM / 2; i++) sums[i] *= shrink[i / 2 % 2];
                }
                take_weights();
                used = ahead;
            }
            leave(0);
            barrier_wait(full + 8 * (1 + STAGES + used % STAGES), used / STAGES % 2);
            ask_outputs(used % STAGES);
            wgmma_wait(0);
            leave(1 + STAGES + used % STAGES);
            used++;
            if (SHARES && tile.sharing > 1) {
                constexpr u64 SHARE = (HEAD_DIM / 2 + 4) * 128;
                u64 team = (u64)tile.index * GROUPS + group;
                float* own = shares + team * splits * SHARE;
                leave_share<128>(own + tile.split * SHARE, threadIdx.x % 128, sums, rows);
                if (!last_of<128>(counters + 2 + team, tile.sharing, 2 + group, told + group)) continue;
                add_shares<128>(own, SHARE, tile.sharing, threadIdx.x % 128, sums, rows);
            }
            float factor[2];
            rows.finish(factor, sinks, tile, row);
            write_out(sums, factor, shape, tile, row, out);
        }
    }
}
