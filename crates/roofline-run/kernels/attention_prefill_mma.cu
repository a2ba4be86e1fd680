// Attention of many new tokens wherever there is `mma` for 16 bit (compute capability 8.0 and later), after FlashAttention-2
// (Dao 2023): a block has one tile, each warp TILES times 16 of its queries. A block of keys and values is copied while the
// one before it is multiplied.
//
//   WARPS, TILES, BLOCKS per multiprocessor; beside attention_prefill.cuh's

constexpr int THREADS = 32 * WARPS;
constexpr int PIECES = HEAD_DIM / 8; // of 16 bytes of a row
constexpr int PITCH = PIECES + 1;    // odd, so that eight rows are in different banks
static_assert(TALL == 16 * TILES * WARPS && KEYS % 16 == 0 && HEAD_DIM % 16 == 0, "whole products");

// Queries; then twice keys and values. [row][piece]
extern __shared__ uint4 memory[];

// `there` is false for zeros.
static __device__ __forceinline__ void copy(uint4* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

// Four 8 x 8 matrices of 16-bit numbers, whose rows the threads name, 8 each.
static __device__ __forceinline__ void load(u32 (&to)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}
static __device__ __forceinline__ void load_transposed(u32 (&to)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

// c[16 x 8] += a[16 x 16] * b[16 x 8].
static __device__ __forceinline__ void multiply(float* c, const u32* a, u32 b0, u32 b1) {
#if HALF
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#else
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#endif
    asm(MMA "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    attention_prefill(const u16* q, const uint4* k, const uint4* v, u16* __restrict__ out,
                      const int* __restrict__ starts, const int* __restrict__ table, const float* __restrict__ sinks,
                      float* __restrict__ shares, u32* __restrict__ counters, int sequences, int heads, int kv_heads, int capacity, int fresh,
                      int q_pitch, int window, int splits, float scale, float cap) {
    chain_release();
    chain_wait();
    Shape shape = {sequences, heads, kv_heads, capacity, fresh, window, splits};
    Tile tile(shape, starts, blockIdx.x);
    if (tile.idle()) return;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int row = warp * TILES * 16 + lane / 4, key = lane % 4 * 2; // of a tile, of a block
    uint4* ring = memory + TALL * PITCH;

    auto fetch = [&](int slot, int block) {
        uint4* to = ring + slot * 2 * KEYS * PITCH;
        u64 first = shape.row(tile.sequence, tile.head);
#pragma unroll 4
        for (int at = threadIdx.x; at < KEYS * PIECES; at += THREADS) {
            int own = at / PIECES, piece = at % PIECES, place = block * KEYS + own, seen = min(place, tile.keys - 1);
#if PAGED
            int page = table[tile.sequence * (capacity / PAGED) + seen / PAGED];
            u64 from = ((u64)page * kv_heads + tile.head / (heads / kv_heads)) * PAGED + seen % PAGED;
#else
            u64 from = first + seen;
#endif
            copy(to + own * PITCH + piece, k + from * PIECES + piece, true);
            // What was never written may be anything, and nothing times that is not nothing.
            copy(to + (KEYS + own) * PITCH + piece, v + from * PIECES + piece, place < tile.keys);
        }
    };

    q += (u64)(tile.sequence * fresh + tile.first) * q_pitch + tile.head * HEAD_DIM;
    for (int at = threadIdx.x; at < TALL * PIECES; at += THREADS) {
        int own = at / PIECES, piece = at % PIECES;
        bool there = own < SPAN * PACK && tile.token(own) < fresh;
        copy(memory + own * PITCH + piece, q + (there ? (u64)(own / PACK) * q_pitch + own % PACK * HEAD_DIM : 0) + piece * 8, there);
    }
    fetch(0, tile.highest);
    asm volatile("cp.async.commit_group;" ::: "memory");

    // Where this thread's row of each matrix is that it loads.
    u32 base = (u32)__cvta_generic_to_shared(memory), blocks = (u32)__cvta_generic_to_shared(ring);
    u32 queries = base + ((warp * TILES * 16 + lane % 16) * PITCH + lane / 16) * 16;
    u32 keys = blocks + ((lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2) * 16;
    u32 values = blocks + ((KEYS + lane % 16) * PITCH + lane / 16) * 16;

    float sums[TILES][HEAD_DIM / 2];
    Rows rows[TILES];
#pragma unroll
    for (int i = 0; i < TILES * HEAD_DIM / 2; i++) (&sums[0][0])[i] = 0;

    for (int block = tile.highest, slot = 0; block >= tile.lowest; block--, slot ^= 1) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (block > tile.lowest) fetch(slot ^ 1, block - 1);
        asm volatile("cp.async.commit_group;" ::: "memory");
        u32 skip = slot * 2 * KEYS * PITCH * 16;

        float scores[TILES][KEYS / 2];
#pragma unroll
        for (int i = 0; i < TILES * KEYS / 2; i++) (&scores[0][0])[i] = 0;
#pragma unroll
        for (int step = 0; step < HEAD_DIM / 16; step++) {
            u32 a[TILES][4];
#pragma unroll
            for (int i = 0; i < TILES; i++) load(a[i], queries + (i * 16 * PITCH + step * 2) * 16);
#pragma unroll
            for (int at = 0; at < KEYS / 16; at++) {
                u32 b[4];
                load(b, keys + skip + (at * 16 * PITCH + step * 2) * 16);
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    multiply(scores[i] + 8 * at, a[i], b[0], b[1]);
                    multiply(scores[i] + 8 * at + 4, a[i], b[2], b[3]);
                }
            }
        }

        u32 weights[TILES][KEYS / 4];
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            int first = (warp * TILES + i) * 16;
            float shrink[2];
            if (CAPPED) bound(scores[i], scale, cap);
            if (tile.partial(shape, first, first + 15, block)) hide(scores[i], tile, window, row + 16 * i, block * KEYS + key);
            if (rows[i].weigh(scores[i], CAPPED ? 1 : scale, shrink)) {
#pragma unroll
                for (int at = 0; at < HEAD_DIM / 2; at++) sums[i][at] *= shrink[at / 2 % 2];
            }
#pragma unroll
            for (int at = 0; at < KEYS / 4; at++) weights[i][at] = rounded(scores[i][2 * at], scores[i][2 * at + 1]);
        }

#pragma unroll
        for (int step = 0; step < KEYS / 16; step++)
#pragma unroll
            for (int at = 0; at < HEAD_DIM / 16; at++) {
                u32 b[4];
                load_transposed(b, values + skip + (step * 16 * PITCH + at * 2) * 16);
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    multiply(sums[i] + 8 * at, weights[i] + 4 * step, b[0], b[1]);
                    multiply(sums[i] + 8 * at + 4, weights[i] + 4 * step, b[2], b[3]);
                }
            }
    }

    if (SHARES && tile.sharing > 1) {
        constexpr u64 PART = (HEAD_DIM / 2 + 4) * THREADS, SHARE = PART * TILES;
        __shared__ int told;
        float* own = shares + (u64)tile.index * splits * SHARE;
#pragma unroll
        for (int i = 0; i < TILES; i++) leave_share<THREADS>(own + tile.split * SHARE + i * PART, threadIdx.x, sums[i], rows[i]);
        if (!last_of<THREADS>(counters + tile.index, tile.sharing, 1, &told)) return;
#pragma unroll
        for (int i = 0; i < TILES; i++) add_shares<THREADS>(own + i * PART, SHARE, tile.sharing, threadIdx.x, sums[i], rows[i]);
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        float factor[2];
        rows[i].finish(factor, sinks, tile, row + 16 * i);
        write_out(sums[i], factor, shape, tile, row + 16 * i, out);
    }
}
