// How blocks divide a product on Hopper, how they add up what they shared, and how sums leave registers.
//
// A cluster of CLUSTER blocks multiplies CLUSTER * HEIGHT rows of W with ROWS rows of x: a field. The first fields are
// shared: their stages, field after field, are divided evenly over all clusters, so that every multiprocessor has as much to
// read. The rest come in `whole` rounds in which each cluster has a field of its own.

#define CLUSTERS (gridDim.x / CLUSTER)

// What a cluster does, piece after piece: stages `first` to `last` of field `field`. Their number is known beforehand: of a
// loop that ends by a condition found on the way the compiler does not see that all lanes leave it together, and it then
// copies every matrix descriptor into uniform registers once more (16 and 32 rows took 14 % longer).
struct Work {
    // Stages of a field; fields that are shared; stages of each cluster, and clusters that have one more.
    u32 per_field, shared, each, more;
    u32 at, end;
    int pieces, field, first, last;

    __device__ Work(int fields, int whole, int stages) {
        u32 me = blockIdx.x / CLUSTER;
        per_field = stages, shared = fields - whole * CLUSTERS;
        each = shared * stages / CLUSTERS, more = shared * stages % CLUSTERS;
        at = me * each + min(me, more), end = at + each + (me < more);
        pieces = whole + (at < end ? (end - 1) / stages - at / stages + 1 : 0);
        field = first = last = 0;
    }

    __device__ void next() {
        bool part = at < end;
        // Whole ones come last, a round of all clusters apart.
        field = part ? at / per_field : last == 0 || field < (int)shared ? shared + blockIdx.x / CLUSTER : field + CLUSTERS;
        first = part ? at % per_field : 0;
        last = part ? min(per_field, first + (end - at)) : per_field;
        at += part ? last - first : 0;
    }

    // The cluster that has stage `stage` of the shared ones.
    __device__ u32 owner(u32 stage) const {
        u32 larger = more * (each + 1);
        return stage < larger ? stage / (each + 1) : more + (stage - larger) / each;
    }
};

// Adds up the sums of all clusters that share a field, always in the same order. True is only for the one that has the field's
// first stages, with all sums: the others leave theirs in `partial` and raise a flag. A cluster begins with the field that others
// have begun, and ends with the one that it begins, so that whoever waits here mostly finds what it waits for. A cluster leaves
// sums once at most, before it waits for anybody, so that all come to their end however many of them run at a time.
static __device__ __forceinline__ bool gather(Sum (&sums)[TILES * ROWS / 2], const Work& work, Sum* partial, u32* flags) {
    if (work.last - work.first == work.per_field) return true;
    constexpr int quads = TILES * ROWS / 8;
    struct alignas(16) Quad {
        Sum sums[4];
    };
    u32 me = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER;
    u32 start = work.field * work.per_field;
    u32 from = work.owner(start), to = work.owner(start + work.per_field - 1);
    Quad* parts = (Quad*)partial + threadIdx.x;
    auto part = [&](u32 cluster) { return parts + (u64)(cluster * CLUSTER + rank) * quads * CONSUMERS; };
    // By a vote, so that the compiler sees that all lanes go the same way and keeps using uniform registers.
    if (__any_sync(0xffffffff, me != from)) {
        Quad* own = part(me);
#pragma unroll
        for (int i = 0; i < quads; i++) own[i * CONSUMERS] = *(const Quad*)(sums + 4 * i);
        __threadfence();
        asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
        if (threadIdx.x == 0) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flags + blockIdx.x), "r"(1) : "memory");
        return false;
    }
    // All at once: one by one they would be waited for as often as there are others.
    for (u32 other = from + 1 + threadIdx.x; other <= to; other += CONSUMERS) {
        u32* flag = flags + other * CLUSTER + rank;
        u32 raised = 0;
        while (!raised) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(raised) : "l"(flag) : "memory");
        // Lowered for the next launch.
        *flag = 0;
    }
    asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
#pragma unroll 4
    for (u32 cluster = from + 1; cluster <= to; cluster++) {
        const Quad* other = part(cluster);
#pragma unroll
        for (int i = 0; i < quads; i++) {
            uint4 bits = __ldcg((const uint4*)(other + i * CONSUMERS));
            const Quad& more = *(const Quad*)&bits;
#pragma unroll
            for (int j = 0; j < 4; j++) sums[4 * i + j] += more.sums[j];
        }
    }
    return true;
}

// Rows of x whose results a warpgroup has in shared memory at once, and bytes from one to the next: 64 results, and 16 that
// keep rows in different banks.
#define TURN 16
#define PITCH 144
#define OUT_BYTES (GROUPS * TURN * PITCH)

// Scales sums and writes them: through shared memory, so that results of a row of x go out 128 bytes at a time.
static __device__ __forceinline__ void write(const Sum (&sums)[TILES * ROWS / 2], u8* out, const char* scales, const u16* x_scales, u16* y,
                                             int x_first, int w_first, int rows, int m, float tensor) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, team = threadIdx.x / 128, group = lane / 4, quarter = lane % 4;
    u8* own = out + team * TURN * PITCH;
#if BYTES
    // All at once: one by one they would be waited for as often as there are turns. First nobody may read the last ones.
    __shared__ float x_by[ROWS];
    asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
    for (int i = threadIdx.x; i < ROWS; i += CONSUMERS) x_by[i] = from_bf16(__ldcg(x_scales + min(x_first + i, m - 1)));
    asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
#endif
    // Four matrices of 8 x 8: W's rows 0 to 7 and 8 to 15, for eight rows of x and the next eight.
    u32 to = shared_address(own) + (lane / 16 * 8 + lane % 8) * PITCH + warp * 32 + lane / 8 % 2 * 16;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        int first = w_first + (team * TILES + tile) * 64;
        float scale[2] = {tensor, tensor};
        if (ROW_SCALES)
#pragma unroll
            for (int i = 0; i < 2; i++) scale[i] *= from_bf16(((const u16*)scales)[min(first + warp * 16 + group + 8 * i, rows - 1)]);
#pragma unroll
        for (int turn = 0; turn < ROWS; turn += TURN) {
            asm volatile("bar.sync %0, 128;" ::"r"(2 + team) : "memory");
#pragma unroll
            for (int two = 0; two < TURN; two += 16) {
                u32 pairs[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const Sum* both = sums + tile * (ROWS / 2) + (turn + two) / 2 + 2 * i;
                    float by[2] = {scale[i % 2], scale[i % 2]};
#if BYTES
#pragma unroll
                    for (int j = 0; j < 2; j++) by[j] *= x_by[turn + two + i / 2 * 8 + 2 * quarter + j];
#endif
                    pairs[i] = pair_16((float)both[0] * by[0], (float)both[1] * by[1]);
                }
                asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to + two * PITCH), "r"(pairs[0]),
                             "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                             : "memory");
            }
            asm volatile("bar.sync %0, 128;" ::"r"(2 + team) : "memory");
            int place = first + threadIdx.x % 8 * 8;
#pragma unroll
            for (int line = 0; line < TURN; line += 16) {
                int row = line + threadIdx.x % 128 / 8, x_row = x_first + turn + row;
                if (x_row >= m || place >= rows) continue;
                const uint4* from = (const uint4*)(own + row * PITCH + threadIdx.x % 8 * 16);
                u16* result = y + (u64)x_row * rows + place;
                if (rows % 8 == 0)
                    *(uint4*)result = *from;
                else
#pragma unroll 1
                    for (int i = 0; i < min(8, rows - place); i++) result[i] = ((const u16*)from)[i];
            }
        }
    }
}
