// Products of some rows, y = x W^T, by mma: up to about 64 on Hopper, where wgmma takes over, and any number elsewhere. Weights
// are read once per ROWS rows of x and widened in registers.
//
// A block owns HEIGHT rows of W and ROWS rows of x; each of its WARPS warps multiplies 16 * TILES rows of W with all of x. A
// ring of STAGES stages, each STEPS units, is filled by the copy engine at the word of one more warp; by all threads where
// there is no such engine.
//
//   STORED, GROUP, HALF as in packed.cuh, with x of 16 bit
//   ROWS    rows of x per block                   TILES   blocks of 16 rows of W per warp
//   WARPS   warps that multiply                   STEPS   units per stage
//   STAGES  stages of the ring                    APART   1: scales of groups multiply sums
//   `split` blocks share the columns of the same rows

#define ENGINE (__CUDA_ARCH__ >= 900)
#define THREADS (CONSUMERS + (ENGINE ? 32 : 0))

// Four 8 x 16-byte matrices of shared memory, a row of one at each lane's address.
static __device__ __forceinline__ void load_matrices(u32 (&to)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

// 16 bytes to shared memory, under way until waited for where the chip can do that.
static __device__ __forceinline__ void copy_16(u32 to, const void* from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#else
    uint4 value = *(const uint4*)from;
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w) : "memory");
#endif
}

static __device__ __forceinline__ void copies_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

static __device__ __forceinline__ void copies_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm_packed(const u8* __restrict__ weights, const char* __restrict__ scales,
                const __grid_constant__ Map map, const u8* x, const u16* x_scales, u16* __restrict__ y,
                Sum* __restrict__ partial, u32* __restrict__ counters, int rows, int units, int x_units, int m, int split, float tensor,
                float lift
#if GROUPED
                , const int* starts, int matrices, u64 matrix_bytes
#endif
    ) {
    extern __shared__ u8 dynamic[];
    u8* ring = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
    u32 base = shared_address(ring);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, quarter = lane % 4;
    int part = blockIdx.x % split, block = blockIdx.x / split, tiles = (rows + 15) / 16;
#if GROUPED
    int across = count_tiles(starts, matrices);
    // There are as many blocks as there may be tiles at most.
    if (block >= (rows + HEIGHT - 1) / HEIGHT * across) return;
    Tile taken = find_tile(block % across, starts, matrices);
    weights += taken.matrix * matrix_bytes, scales += (u64)taken.matrix * rows * 2;
#else
    int across = (m + ROWS - 1) / ROWS;
    Tile taken = {block % across * ROWS, m, 0};
#endif
    int x_first = taken.first, w_first = block / across * HEIGHT;
    // There are whole stages of units.
    int share = (units / STEPS + split - 1) / split * STEPS;
    int begin = min(part * share, units), stages = min(share, units - begin) / STEPS;
#if STORED == NF4
    // Teams of 128, which all write the same.
    fill_nf4(threadIdx.x % 128, 128);
#endif
#if ENGINE
    __shared__ u64 barriers[2 * STAGES];
    u32 full = shared_address(barriers), empty = full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, WARPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp == WARPS) {
        for (int stage = 0; stage < stages; stage++) {
            int slot = stage % STAGES;
            if (stage >= STAGES) barrier_wait(empty + 8 * slot, (stage / STAGES - 1) % 2);
            fill_stage(base + slot * STAGE_BYTES, full + 8 * slot, &map, x_first, weights, w_first, tiles, begin + stage * STEPS, units,
                       lane);
        }
        __syncwarp();
        return;
    }
#else
    auto fill = [&](int stage) {
        u32 to = base + stage % STAGES * STAGE_BYTES;
        int first = begin + stage * STEPS;
        for (int at = threadIdx.x; stage < stages && at < ROWS * 8 * STEPS; at += CONSUMERS) {
            int chunk = at % 8, row = at / 8 % ROWS, unit = first + at / 8 / ROWS;
            u32 place = to + (at / 8) * 128 + (chunk ^ row % 8) * 16;
            if (unit < x_units)
                copy_16(place, x + ((u64)min(x_first + row, m - 1) * x_units + unit) * 128 + chunk * 16);
            else
                asm volatile("st.shared.v4.u32 [%0], {%1,%1,%1,%1};" ::"r"(place), "r"(0) : "memory");
        }
        for (int at = threadIdx.x; stage < stages && at < W_BYTES / 16; at += CONSUMERS) {
            constexpr int words = STEPS / PAIR * CHUNK / 16;
            u64 own = min(w_first / 16 / BLOCK + at / words, (tiles - 1) / BLOCK);
            copy_16(to + X_BYTES + at * 16, weights + (own * units + first) / PAIR * CHUNK + at % words * 16);
        }
        copies_commit();
    };
    for (int stage = 0; stage < STAGES - 1; stage++) fill(stage);
#endif

    Sum sums[TILES][ROWS / 8][4];
#pragma unroll
    for (int i = 0; i < TILES * ROWS / 2; i++) ((Sum*)sums)[i] = 0;
    // A lane's row and 16 bytes of the four matrices: rows 0 to 7, both halves of 32 bytes; then rows 8 to 15.
    u32 x_row = lane / 16 * 8 + lane % 8, x_chunk = lane / 8 % 2;

    for (int stage = 0; stage < stages; stage++) {
        int slot = stage % STAGES;
#if ENGINE
        barrier_wait(full + 8 * slot, stage / STAGES % 2);
#else
        copies_wait();
        __syncthreads();
        fill(stage + STAGES - 1);
#endif
        const u8* here = ring + slot * STAGE_BYTES;
        u32 inputs = base + slot * STAGE_BYTES + x_row * 128;
#if APART
        float parts[TILES][ROWS / 8][4];
#endif
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            u32 w[TILES][4][4];
            Scale scale[TILES];
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                uint4 packed[WORDS];
                load_packed(here, warp * TILES + tile, step, lane, packed);
                scale[tile] = load_scale(here, warp * TILES + tile, step, group);
                prepare(packed, scale[tile], lift, w[tile]);
            }
#if APART
            // Half units whose sums are scaled together start here.
            constexpr int span = GROUP == 128 ? 4 : GROUP == 64 ? 2 : 1;
#endif
#pragma unroll
            for (int at = 0; at < 4; at++) {
#if APART
                if ((4 * step + at) % (2 * span) == 0)
#pragma unroll
                    for (int i = 0; i < TILES * ROWS / 2; i++) ((float*)parts)[i] = 0.0f;
#endif
#pragma unroll
                for (int pair = 0; pair < ROWS / 16; pair++) {
                    u32 b[4];
                    load_matrices(b, inputs + (step * ROWS + 16 * pair) * 128 + ((2 * at + x_chunk) ^ lane % 8) * 16);
#pragma unroll
                    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
                        for (int i = 0; i < 2; i++) {
#if APART
                            mma(parts[tile][2 * pair + i], w[tile][at], b[2 * i], b[2 * i + 1]);
#else
                            mma(sums[tile][2 * pair + i], w[tile][at], b[2 * i], b[2 * i + 1]);
#endif
                        }
                }
#if APART
                if ((4 * step + at) % (2 * span) == 2 * span - 1)
#pragma unroll
                    for (int tile = 0; tile < TILES; tile++) {
                        float by[2];
                        factors(scale[tile], at / 2, by);
#pragma unroll
                        for (int i = 0; i < ROWS / 2; i++)
                            sums[tile][i / 4][i % 4] = fmaf(parts[tile][i / 4][i % 4], by[i / 2 % 2], sums[tile][i / 4][i % 4]);
                    }
#endif
            }
        }
#if ENGINE
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + 8 * slot);
#endif
    }

    Sum* out = (Sum*)ring;
    asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++)
            out[(i / 4 * 8 + 2 * quarter + i % 2) * LINE + (warp * TILES + tile) * 16 + group + i / 2 % 2 * 8] = sums[tile][i / 4][i % 4];
    asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
    finish(out, partial, counters, scales, x_scales, y, block, part, split, x_first, w_first, rows, taken.end, tensor);
}
