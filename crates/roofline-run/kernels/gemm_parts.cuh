// What both kernels of products of more rows share: how much of what a stage of the ring holds, how it is filled, how a
// lane's weights are widened with their scales, and how sums are written.
//
// Weights are packed as for few rows, but for two things. Which column a number stands for: here mma's own order, so that x
// is taken as it lies. And all that belongs to BLOCK tiles of 16 rows and to PAIR units lies side by side, weights, scales,
// zero points: a copy costs the copy engine some 40 ns whatever it copies. A unit is 128 bytes of a row of x: 64 columns of
// 16 bit, or 128 of 8.

// Threads that multiply.
#ifdef GROUPS
#define CONSUMERS (128 * GROUPS)
#else
#define CONSUMERS (32 * WARPS)
#endif
#define BLOCK 4
// Two, so that groups of 128 columns lie in one piece; without groups it makes no difference to where anything lies.
#define PAIR (BYTES || GROUP == 0 ? 1 : 2)
// 16-byte words of a lane per tile of 16 rows and unit.
#define WORDS (BYTES ? 4 : VECTORS)
#define TILE_BYTES (WORDS * 512)
#define CHUNK (PAIR * BLOCK * (TILE_BYTES + SCALE_BYTES + ZERO_BYTES))
#define BLOCKS (HEIGHT / 16 / BLOCK)
#define W_BYTES (BLOCKS * STEPS / PAIR * CHUNK)
#define X_BYTES (ROWS * 128 * STEPS)
// Copies by x's map start on this many bytes.
#define STAGE_BYTES ((X_BYTES + W_BYTES + 1023) / 1024 * 1024)
// Scales of groups multiply weights, which rounds them to 16 bit once; where APART, they multiply sums, in FP32.
#define SCALED (GROUP != 0 && STORED != NVFP4 && !APART)
// With the subtraction of what symmetric codes are counted from in the same instruction.
#undef JOINED
#define JOINED (SCALED && STORED == INT4 && !HALF)
// Or there is one per row of W.
#define ROW_SCALES (GROUP == 0 && STORED != SIXTEEN)
// What is multiplied is what is stored.
#define AS_STORED (BYTES || STORED == SIXTEEN)
#define LINE (HEIGHT + 4)

static __device__ __forceinline__ u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// Where x is and how it is laid out, made by the driver.
struct alignas(64) Map {
    u64 words[16];
};

#if __CUDA_ARCH__ >= 900
static __device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Arrives, and says how many bytes are to come.
static __device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

static __device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

static __device__ __forceinline__ void bulk_copy(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}

// ROWS rows of x from `row` on, STEPS units of each from `unit` on; zeros past the last of either.
static __device__ __forceinline__ void map_copy(u32 to, const Map* map, int row, int unit, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(0), "r"(row), "r"(unit), "r"(barrier)
                 : "memory");
}
#endif

// Where a stage has what belongs to the block of `tile` and to unit `step`.
static __device__ __forceinline__ const u8* chunk_at(const u8* stage, int tile, int step) {
    return stage + X_BYTES + (tile / BLOCK * (STEPS / PAIR) + step / PAIR) * CHUNK;
}

static __device__ __forceinline__ void load_packed(const u8* stage, int tile, int step, int lane, uint4 (&packed)[WORDS]) {
    const uint4* from = (const uint4*)chunk_at(stage, tile, step) + (step % PAIR * BLOCK + tile % BLOCK) * WORDS * 32 + lane;
#pragma unroll
    for (int i = 0; i < WORDS; i++) packed[i] = from[32 * i];
}

// The scales of a tile's rows `group` and `group + 8` in one unit, as they are stored.
struct Scale {
    u32 first, second, zero;
};

static __device__ __forceinline__ Scale load_scale(const u8* stage, int tile, int step, int group) {
    Scale to = {0, 0, 0};
    // Groups of 128 columns have one in two units.
    int own = GROUP == 128 ? tile % BLOCK * 2 : step % PAIR * BLOCK + tile % BLOCK;
    const u8* scales = chunk_at(stage, tile, step) + PAIR * BLOCK * TILE_BYTES + own * SCALE_BYTES;
    const u8* zeros = chunk_at(stage, tile, step) + PAIR * BLOCK * (TILE_BYTES + SCALE_BYTES) + own * ZERO_BYTES;
#if STORED == NF4 || STORED == NVFP4
    // NVFP4: four of a row, one per 16 columns, then those of the row eight on.
    uint2 both = *(const uint2*)(scales + 8 * group);
    to.first = both.x, to.second = both.y;
#elif GROUP != 0
    to.first = *(const u32*)(scales + 4 * group);
#if GROUP == 32 && STORED != MXFP4
    to.second = *(const u32*)(scales + 32 + 4 * group);
#endif
#endif
#if STORED == INT4_ZERO && GROUP == 32
    to.zero = *(const u16*)(zeros + 2 * group);
#elif STORED == INT4_ZERO
    to.zero = *(zeros + group);
#endif
    return to;
}

// What half `half` of a unit is multiplied with.
static __device__ __forceinline__ void factors(const Scale& from, int half, float (&out)[2]) {
#if STORED == MXFP4
    out[0] = __uint_as_float((half ? from.first << 7 : from.first << 23) & 0x7f800000);
    out[1] = __uint_as_float((half ? from.first >> 1 : from.first << 15) & 0x7f800000);
#elif STORED == NF4
    out[0] = __uint_as_float(from.first), out[1] = __uint_as_float(from.second);
#else
    u32 pair = GROUP == 32 && half ? from.second : from.first;
    out[0] = __uint_as_float(pair << 16), out[1] = __uint_as_float(pair & 0xffff0000);
#endif
}

// Codes of four bits as bfloat16: bits as they are ([`LOWERED`]), 2^133 times too small for the tile's first eight rows and 2^129 for the
// others, whose codes lie four bits higher. What they are counted from, 8 or a zero point, is taken off exactly.
static __device__ __forceinline__ void codes(u32 word, const u32 (&by)[2], const u32 (&from_zero)[2], u32 (&w)[4]) {
    u32 high = word >> 8;
    w[0] = fma2(word & 0x000f000f, by[0], from_zero[0]), w[1] = fma2(word & 0x00f000f0, by[1], from_zero[1]);
    w[2] = fma2(high & 0x000f000f, by[0], from_zero[0]), w[3] = fma2(high & 0x00f000f0, by[1], from_zero[1]);
}

// A unit's four fragments as they are multiplied.
static __device__ __forceinline__ void prepare(const uint4 (&packed)[WORDS], const Scale& from, float lift, u32 (&w)[4][4]) {
    const u32 none = BOTH(0x8000);
    u32 factor[2][2];
#if SCALED
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float by[2];
        factors(from, half, by);
#pragma unroll
        for (int i = 0; i < 2; i++) factor[half][i] = BOTH(to_16(HALF ? by[i] * lift : by[i]));
    }
#if GROUP != 32 && !HALF && (STORED == INT4 || STORED == INT4_ZERO)
    // Stored as they are used.
    factor[0][0] = factor[1][0] = __byte_perm(from.first, 0, 0x1010), factor[0][1] = factor[1][1] = __byte_perm(from.first, 0, 0x3232);
#endif
#endif
#pragma unroll
    for (int at = 0; at < 4; at++) {
#if BYTES
        w[at][0] = packed[at].x, w[at][1] = packed[at].y, w[at][2] = packed[at].z, w[at][3] = packed[at].w;
#elif STORED == INT4 || STORED == INT4_ZERO
        u32 word = at == 0 ? packed[0].x : at == 1 ? packed[0].y : at == 2 ? packed[0].z : packed[0].w;
        u32 both = STORED == INT4 ? 0x88 : from.zero >> (GROUP == 32 ? 8 * (at / 2) : 0), zero[2] = {both & 15, both >> 4 & 15};
#if JOINED
        // With their scales 2^84 and 2^80 times larger, and so 2^49 times smaller than they should be.
        const u32(&own)[2] = factor[at / 2];
        u32 by[2] = {fma2(own[0], BOTH(0x6980), none), fma2(own[1], BOTH(0x6780), none)};
        u32 from_zero[2] = {fma2(own[0], BOTH(0xa880), none), fma2(own[1], BOTH(0xa880), none)};
        codes(word, by, from_zero, w[at]);
#elif !HALF
        u32 by[2] = {BOTH(0x7f00), BOTH(0x7d00)};
        u32 from_zero[2] = {fma2(BOTH(zero[0]), BOTH(0xff00), none), fma2(BOTH(zero[1]), BOTH(0xff00), none)};
        codes(word, by, from_zero, w[at]);
#else
        u32 from_zero[2] = {BOTH(zero[0] | 0xe400), BOTH(zero[1] | 0xe400)};
#pragma unroll
        for (int i = 0; i < 4; i++) w[at][i] = fma2(word >> 4 * i & 0x000f000f | KEPT(0x64006400), ONE, from_zero[i % 2]);
#endif
#else
        u32 unused[2] = {0, 0}, scale[2] = {RAISED, RAISED};
#if STORED == NVFP4
        scales_nvfp4((from.first >> 8 * at & 255) | (from.second >> 8 * at & 255) << 8, scale);
#endif
        widen(packed, at, unused, scale, w[at]);
#endif
#if SCALED && !JOINED
#pragma unroll
        for (int i = 0; i < 4; i++) w[at][i] = fma2(w[at][i], factor[at / 2][i % 2], none);
#endif
    }
}

// Sums in shared memory, LINE apart from one row of x to the next: scaled, and out. Where `split` blocks share the columns,
// each leaves its sums in `partial`, and the last of them adds up all, always in the same order. Called by CONSUMERS threads.
static __device__ __forceinline__ void finish(const Sum* out, Sum* partial, u32* counters, const char* scales, const u16* x_scales, u16* y,
                                              int block, int part, int split, int x_first, int w_first, int rows, int m, float tensor) {
    constexpr int quads = HEIGHT / 4, all = ROWS * quads;
    struct alignas(16) Quad {
        Sum sums[4];
    };
    Quad* parts = (Quad*)partial + (u64)block * split * all;
    if (split > 1) {
        __shared__ u32 arrived;
        for (int at = threadIdx.x; at < all; at += CONSUMERS)
            if (x_first + at / quads < m) parts[part * all + at] = *(const Quad*)(out + at / quads * LINE + at % quads * 4);
        __threadfence();
        asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
        // Counts back to zero, for the next launch.
        if (threadIdx.x == 0) arrived = atomicInc(counters + block, split - 1);
        asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
        if (arrived != split - 1) return;
        __threadfence();
    }
    for (int at = threadIdx.x; at < all; at += CONSUMERS) {
        int column = at / quads, row = at % quads * 4, first = w_first + row;
        if (x_first + column >= m || first >= rows) continue;
        Quad sum = *(const Quad*)(out + column * LINE + row);
        if (split > 1) {
            sum = {0, 0, 0, 0};
            for (int other = 0; other < split; other++) {
                uint4 bits = __ldcg((const uint4*)(parts + other * all + at));
                const Quad& more = *(const Quad*)&bits;
                for (int i = 0; i < 4; i++) sum.sums[i] += more.sums[i];
            }
        }
        float results[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float scale = tensor * LOWERED;
            if (ROW_SCALES) scale *= from_bf16(((const u16*)scales)[min(first + i, rows - 1)]);
            if (BYTES) scale *= from_bf16(x_scales[x_first + column]);
            results[i] = (float)sum.sums[i] * scale;
        }
        u16* to = y + (u64)(x_first + column) * rows + first;
        if (rows % 4 == 0)
            *(uint2*)to = make_uint2(pair_16(results[0], results[1]), pair_16(results[2], results[3]));
        else
            for (int i = 0; i < 4; i++)
                if (first + i < rows) to[i] = to_16(results[i]);
    }
}

// Has the copy engine fill a stage: called by one warp.
static __device__ __forceinline__ void fill_stage(u32 to, u32 barrier, const Map* x, int x_first, const u8* weights, int w_first, int tiles,
                                                  int unit, int units, int lane) {
#if __CUDA_ARCH__ >= 900
    constexpr u32 bytes = STEPS / PAIR * CHUNK;
    if (lane == 0) {
        barrier_expect(barrier, BLOCKS * bytes + X_BYTES);
        map_copy(to, x, x_first, unit, barrier);
    }
    __syncwarp();
    if (lane < BLOCKS) {
        u64 own = min(w_first / 16 / BLOCK + lane, (tiles - 1) / BLOCK);
        bulk_copy(to + X_BYTES + lane * bytes, weights + (own * units + unit) / PAIR * CHUNK, bytes, barrier);
    }
#endif
}
