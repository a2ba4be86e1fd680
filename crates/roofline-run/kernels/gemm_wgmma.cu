// Products of more rows, y = x W^T, on Hopper: weights packed as for few rows, read once per ROWS rows of x, widened in
// registers, multiplied by wgmma with x in shared memory.
//
// A block multiplies HEIGHT rows of W with ROWS rows of x at a time. One warp has the copy engine fill a ring of STAGES
// stages, each STEPS units of 128 bytes of every row of x, and the weights beside them. GROUPS warpgroups each widen and
// multiply 64 * TILES rows of W. Blocks of a cluster have different rows of W and the same x, of which each fetches a part
// for all: what the second-level cache hands out is what limits 64 rows and more.
//
// The kernel before may still run while the ring fills with weights, which no kernel writes (griddepcontrol, of use where the
// launch allows it): only x is waited for, and everything that is written.
//
//   STORED, GROUP, HALF as in packed.cuh
//   ROWS    rows of x per block, what wgmma takes at once        TILES     blocks of 64 rows of W per warpgroup
//   GROUPS  warpgroups that multiply                             STEPS     units per stage
//   STAGES  stages of the ring                                   CLUSTER   blocks that share x
//   AHEAD   stages whose weights are asked for before x may be: all that is asked for before it has to come before it, too
//   SPLIT   blocks, and SIDES warpgroups of each, that share a field: gemm_share.cuh
//   `whole` rounds of fields that are not shared: gemm_share.cuh; GROUPED products find their number themselves
//   GATED   y = silu(x G^T) * (x W^T), of a gate's rows and behind them as many others, whole 64s; both are rounded to 16 bit first

// Threads that copy. A warp of them is enough, but only a warpgroup can leave its registers to those that multiply.
#define COPIERS 128
#define PER_COPIER 32
#define PER_CONSUMER (GROUPS == 2 ? 232 : GROUPS == 3 ? 160 : 112)

static __device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `most` are under way.
#define wgmma_wait(most) asm volatile("wgmma.wait_group.sync.aligned " #most ";" ::: "memory")

static __device__ __forceinline__ void cluster_sync() {
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

// The part of x that a block fetches for its cluster: whole units where a stage has enough of them, or else rows.
#define BY_UNITS (STEPS % CLUSTER == 0)
#define X_PART (X_BYTES / CLUSTER)

static __device__ __forceinline__ void fetch_x(u32 stage, u32 barrier, const Map* map, int x_first, int unit) {
    int rank = blockIdx.x % CLUSTER;
    int row = x_first + (BY_UNITS ? 0 : rank * (ROWS / CLUSTER));
    unit += BY_UNITS ? rank * (STEPS / CLUSTER) : 0;
#if CLUSTER > 1
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], "
        "%6;" ::"r"(stage + rank * X_PART),
        "l"(map), "r"(0), "r"(row), "r"(unit), "r"(barrier), "h"((u16)((1 << CLUSTER) - 1))
        : "memory");
#else
    map_copy(stage, map, row, unit, barrier);
#endif
}

// Tells all blocks that may write here that one warp has read it.
static __device__ __forceinline__ void release(u32 barrier, int lane) {
#if CLUSTER > 1
    if (lane < CLUSTER)
        asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(
                         barrier),
                     "r"(lane)
                     : "memory");
#else
    if (lane == 0) barrier_arrive(barrier);
#endif
}

extern "C" __global__ void
#if CLUSTER * SPLIT > 1
__cluster_dims__(CLUSTER * SPLIT, 1, 1)
#endif
__launch_bounds__(CONSUMERS + COPIERS, 1)
    gemm_packed(const u8* __restrict__ weights, const char* __restrict__ scales,
                const __grid_constant__ Map map, const u8* __restrict__, const u16* x_scales, u16* __restrict__ y,
                Sum* __restrict__ partial, u32* __restrict__ flags, int rows, int units, int x_units, int m, int whole, float tensor,
                float lift
#if GROUPED
                , const int* starts, int matrices, u64 matrix_bytes
#endif
    ) {
    extern __shared__ u8 dynamic[];
    __shared__ u64 barriers[2 * STAGES + NEAR];
    u8* ring = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
    u32 full = shared_address(barriers), empty = full + 8 * STAGES, base = shared_address(ring);

    int high = (rows + CLUSTER * HEIGHT - 1) / (CLUSTER * HEIGHT), tiles = (rows + 15) / 16;
#if GROUPED
    asm volatile("griddepcontrol.wait;" ::: "memory");
    int across = count_tiles(starts, matrices), fields = high * across;
    // The last round that all clusters have a field of their own in, and what is left over, are shared.
    whole = max(fields / (int)CLUSTERS - (fields % CLUSTERS > 0), 0);
    auto tile_of = [&](int field) { return find_tile(field % across, starts, matrices); };
#else
    int across = (m + ROWS - 1) / ROWS, fields = high * across;
    auto tile_of = [&](int field) { return Tile{field % across * ROWS, m, 0}; };
    constexpr u64 matrix_bytes = 0;
#endif
    // There are whole stages of units.
    Work work(fields, whole, units / STEPS);
    auto w_first = [&](int field) { return (field / across * CLUSTER + (int)blockIdx.x % CLUSTER) * HEIGHT; };

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 4 * GROUPS * CLUSTER);
        if (NEAR) barrier_init(full + 16 * STAGES, SPLIT > 1 ? 1 : (SIDES - 1) * 4 * GROUPS / SIDES);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
    }
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#if STORED == NF4
    // Teams of 128, which all write the same.
    fill_nf4(threadIdx.x % 128, 128);
#endif
    cluster_sync();
#if SPLIT > 1
    if (threadIdx.x == 0 && blockIdx.x % SPLIT == 0) barrier_expect(full + 16 * STAGES, (SPLIT * SIDES - 1) * HEIGHT * ROWS * 4);
    // Waited for where the others are written to.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif

    if (threadIdx.x >= CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PER_COPIER));
        if (threadIdx.x < CONSUMERS + 32) {
            int lane = threadIdx.x % 32;
            auto fetch_weights = [&](int slot, int field, int matrix, int stage) {
                constexpr u32 bytes = STEPS / PAIR * CHUNK;
                if (lane == 0) barrier_expect(full + 8 * slot, BLOCKS * bytes + X_BYTES);
                __syncwarp();
                if (lane < BLOCKS) {
                    u64 own = min(w_row(w_first(field), lane, rows) / 16 / BLOCK, (tiles - 1) / BLOCK);
                    bulk_copy(base + slot * STAGE_BYTES + X_BYTES + lane * bytes,
                              weights + matrix * matrix_bytes + (own * units + stage * STEPS) / PAIR * CHUNK, bytes, full + 8 * slot);
                }
            };
            Work ahead = work;
            int asked = 0;
            for (int piece = 0; piece < ahead.pieces && asked < AHEAD; piece++) {
                ahead.next();
                int matrix = tile_of(ahead.field).matrix;
#pragma unroll 1
                for (int stage = ahead.first; stage < ahead.last && asked < AHEAD; stage++) fetch_weights(asked++, ahead.field, matrix, stage);
            }
            asm volatile("griddepcontrol.wait;" ::: "memory");
            u32 slot = 0, turn = 0;
            for (int piece = 0; piece < work.pieces; piece++) {
                work.next();
                Tile tile = tile_of(work.field);
#pragma unroll 1
                for (int stage = work.first; stage < work.last; stage++) {
                    if (turn > 0) barrier_wait(empty + 8 * slot, (turn - 1) % 2);
                    if (asked-- <= 0) fetch_weights(slot, work.field, tile.matrix, stage);
                    if (lane == 0) fetch_x(base + slot * STAGE_BYTES, full + 8 * slot, &map, tile.first, stage * STEPS);
                    if (++slot == STAGES) slot = 0, turn++;
                }
            }
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(PER_CONSUMER));
        asm volatile("griddepcontrol.wait;" ::: "memory");
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = lane / 4;
        // First tile of 16 rows of this warp in its block; then every fourth. Its first unit of a stage; then every SIDES'th.
        int team = threadIdx.x / 128, mine = team / SIDES * TILES * 4 + warp, side = SIDES > 1 ? __shfl_sync(0xffffffff, team % SIDES, 0) : 0;
        // SBO: 1024 bytes from one 8 rows to the next; swizzled over 128 bytes.
        u64 layout = (u64)1 << 62 | (u64)64 << 32 | (u64)1 << 16;
        u32 slot = 0, turn = 0;
        for (int piece = 0; piece < work.pieces; piece++) {
            work.next();
            Sum sums[TILES][ROWS / 2];
#pragma unroll
            for (int i = 0; i < TILES * ROWS / 2; i++) ((Sum*)sums)[i] = 0;
            u32 before = 0;
            // Packed weights of a unit and tile with their scales, and the numbers as they are multiplied: two sets that take
            // turns, so that one is made while the other is multiplied.
            uint4 packed[2][WORDS];
            Scale scale[2];
            u32 w[2][4][4];
            constexpr int turns = STEPS / SIDES * TILES;
            auto multiply = [&](int begin, int stage) {
                barrier_wait(full + 8 * slot, turn % 2);
                const u8* here = ring + slot * STAGE_BYTES;
                u64 inputs = (layout | (base + slot * STAGE_BYTES) >> 4) + side * (ROWS * 8);
                auto unpack = [&](int at) {
                    int unit = at / TILES * SIDES + side;
                    load_packed(here, mine + 4 * (at % TILES), unit, lane, packed[(at + begin) % 2]);
                    scale[(at + begin) % 2] = load_scale(here, mine + 4 * (at % TILES), unit, group);
                };
                unpack(0);
#pragma unroll
                for (int now = 0; now < turns; now++) {
                    int tile = now % TILES, step = now / TILES, after = now + 1, set = (now + begin) % 2;
                    if (!AS_STORED && after < turns) unpack(after);
                    prepare(packed[set], scale[set], lift, w[set]);
                    wgmma_fence();
#pragma unroll
                    for (int at = 0; at < 4; at++) wgmma(sums[tile], w[set][at], inputs + step * SIDES * (ROWS * 8) + at * 2, 1);
                    wgmma_commit();
                    wgmma_wait(1);
                    // All of the stage before has been multiplied.
                    if (now == 0 && stage > work.first) release(empty + 8 * before, lane);
                    // What is multiplied as it is stored is multiplied from the registers it is loaded into, and they may not
                    // be written while it is: the set to load is the one whose product has just been waited for.
                    if (AS_STORED && after < turns) unpack(after);
                }
                before = slot;
                if (++slot == STAGES) slot = 0, turn++;
            };
            // A piece has a stage at least, and the compiler has to know: where sums may be those of no stage, it copied them out of
            // the registers that products still under way were writing. Where a stage has an odd number of turns, the next begins
            // with the other set.
            int stage = work.first;
            if (turns % 2 == 1) {
                for (; stage + 1 < work.last; stage += 2) multiply(0, stage), multiply(1, stage + 1);
                for (; stage < work.last; stage++) multiply(0, stage);
            } else {
                do multiply(0, stage);
                while (++stage < work.last);
            }
            wgmma_wait(0);
            release(empty + 8 * before, lane);
            Sum(&flat)[TILES * ROWS / 2] = *(Sum(*)[TILES * ROWS / 2]) sums;
#if NEAR
            bool all = gather_near(flat, base + STAGES * STAGE_BYTES + OUT_BYTES, full + 16 * STAGES);
#else
            bool all = gather(flat, work, partial, flags);
#endif
            if (all) {
                Tile tile = tile_of(work.field);
                write(flat, ring + STAGES * STAGE_BYTES, scales + (u64)tile.matrix * rows * 2, x_scales, y, tile.first, w_first(work.field), rows,
                      tile.end, tensor);
            }
        }
    }
    // Nobody leaves while others may still write to its barriers.
    if (CLUSTER > 1) cluster_sync();
}
