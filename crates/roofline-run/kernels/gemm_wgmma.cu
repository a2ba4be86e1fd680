// Products of more rows, y = x W^T, on Hopper: weights packed as for few rows, read once per ROWS rows of x, widened in
// registers, multiplied by wgmma with x in shared memory.
//
// A block owns HEIGHT rows of W and ROWS rows of x. One warp has the copy engine fill a ring of STAGES stages, each STEPS
// units of 128 bytes of every row of x, and the weights beside them. GROUPS warpgroups each widen and multiply 64 * TILES
// rows of W.
//
//   STORED, GROUP, HALF as in packed.cuh
//   ROWS    rows of x per block, what wgmma takes at once        TILES   blocks of 64 rows of W per warpgroup
//   GROUPS  warpgroups that multiply                             STEPS   units per stage
//   STAGES  stages of the ring
//   `split` blocks share the columns of the same rows


static __device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `most` are under way.
#define wgmma_wait(most) asm volatile("wgmma.wait_group.sync.aligned " #most ";" ::: "memory")

extern "C" __global__ void __launch_bounds__(CONSUMERS + 128, 1)
    gemm_packed(const u8* __restrict__ weights, const char* __restrict__ scales,
                const __grid_constant__ Map map, const u8* __restrict__, const u16* __restrict__ x_scales, u16* __restrict__ y,
                Sum* __restrict__ partial, u32* __restrict__ counters, int rows, int units, int x_units, int m, int split, float tensor,
                float lift) {
    extern __shared__ u8 dynamic[];
    __shared__ u64 barriers[2 * STAGES];
    u8* ring = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
    u32 full = shared_address(barriers), empty = full + 8 * STAGES, base = shared_address(ring);

    int part = blockIdx.x % split, across = (m + ROWS - 1) / ROWS, block = blockIdx.x / split;
    int x_first = block % across * ROWS, w_first = block / across * HEIGHT;
    int tiles = (rows + 15) / 16;
    // There are whole stages of units.
    int share = (units / STEPS + split - 1) / split * STEPS;
    int begin = min(part * share, units), stages = min(share, units - begin) / STEPS;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 4 * GROUPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
#if STORED == NF4
    // Teams of 128, which all write the same.
    fill_nf4(threadIdx.x % 128, 128);
#endif
    __syncthreads();

    if (threadIdx.x >= CONSUMERS) {
#if GROUPS > 1
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
#endif
        int lane = threadIdx.x - CONSUMERS;
        for (int stage = 0; stage < (lane < 32 ? stages : 0); stage++) {
            int slot = stage % STAGES;
            if (stage >= STAGES) barrier_wait(empty + 8 * slot, (stage / STAGES - 1) % 2);
            fill_stage(base + slot * STAGE_BYTES, full + 8 * slot, &map, x_first, weights, w_first, tiles, begin + stage * STEPS, units,
                       lane);
        }
        __syncwarp();
    } else {
        // What a multiprocessor has, less what the copying warpgroup keeps.
#if GROUPS == 2
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
#elif GROUPS == 3
        asm volatile("setmaxnreg.inc.sync.aligned.u32 152;");
#elif GROUPS == 4
        asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
#endif
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = lane / 4, quarter = lane % 4;
        int mine = threadIdx.x / 128 * TILES * 4 + warp;  // First tile of 16 rows of this warp in its block; then every fourth.

        Sum sums[TILES][ROWS / 2];
#pragma unroll
        for (int i = 0; i < TILES * ROWS / 2; i++) ((Sum*)sums)[i] = 0;

        // SBO: 1024 bytes from one 8 rows to the next; swizzled over 128 bytes.
        u64 layout = (u64)1 << 62 | (u64)64 << 32 | (u64)1 << 16;
        for (int stage = 0; stage < stages; stage++) {
            int slot = stage % STAGES;
            barrier_wait(full + 8 * slot, stage / STAGES % 2);
            u64 inputs = layout | (base + slot * STAGE_BYTES) >> 4;
            // Packed weights of a unit and tile with their scales, those of the next on their way.
            uint4 packed[2][WORDS];
            Scale scale[2];
            auto unpack = [&](int turn, int tile, int step) {
                load_packed(ring + slot * STAGE_BYTES, mine + 4 * tile, step, lane, packed[turn]);
                scale[turn] = load_scale(ring + slot * STAGE_BYTES, mine + 4 * tile, step, group);
            };
            unpack(0, 0, 0);
            // The numbers of a unit as they are multiplied, those of the next beside them.
            u32 w[2][4][4];
#pragma unroll
            for (int step = 0; step < STEPS; step++)
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    int here = step * TILES + tile, after = here + 1;
                    if (after < STEPS * TILES) unpack(after % 2, after % TILES, after / TILES);
                    prepare(packed[here % 2], scale[here % 2], lift, w[here % 2]);
                    wgmma_fence();
#pragma unroll
                    for (int at = 0; at < 4; at++) wgmma(sums[tile], w[here % 2][at], inputs + step * (ROWS * 8) + at * 2, 1);
                    wgmma_commit();
                    wgmma_wait(1);
                    // All of the stage before has been multiplied.
                    if (here == 0 && stage > 0 && lane == 0) barrier_arrive(empty + 8 * ((stage - 1) % STAGES));
                }
            // Two sets of numbers take turns, and the next stage begins with the first. Where they are multiplied as they are
            // stored, the next stage would load into registers that are still read.
            if (STEPS * TILES % 2 == 1 || BYTES) wgmma_wait(0);
        }
        wgmma_wait(0);

        // Sums to shared memory, a row of x after the other; then the blocks' together, and out.
        Sum* out = (Sum*)ring;
        asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++)
                out[(i / 4 * 8 + 2 * quarter + i % 2) * LINE + (mine + 4 * tile) * 16 + group + i / 2 % 2 * 8] = sums[tile][i];
        asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
        finish(out, partial, counters, scales, x_scales, y, block, part, split, x_first, w_first, rows, m, tensor);
    }
}
