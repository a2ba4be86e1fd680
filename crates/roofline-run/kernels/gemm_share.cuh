// How blocks divide a product on Hopper, how they add up what they shared, and how sums leave registers.
//
// A cluster of CLUSTER blocks multiplies CLUSTER * HEIGHT rows of W with ROWS rows of x: a field. The first fields are
// shared: their stages, field after field, are divided evenly over all clusters, so that every multiprocessor has as much to
// read. The rest come in `whole` rounds in which each cluster has a field of its own.
//
// Or a cluster is SPLIT blocks, which have the same field and each as many of its stages, and in a block SIDES warpgroups have the
// same rows of W and take units in turns: they add up in the shared memory of the first of them, which costs less than memory
// that all can see, where fields are few enough for all of them to run at once.

#ifndef GATED
#define GATED 0
#endif

#define CLUSTERS (gridDim.x / (CLUSTER * SPLIT))
#define NEAR (SPLIT * SIDES > 1)
#if CLUSTER > 1 && NEAR
#error "blocks of a cluster share x or a field, not both"
#endif

// What a cluster does, piece after piece: stages `first` to `last` of field `field`. Their number is known beforehand: of a
// loop that ends by a condition found on the way the compiler does not see that all lanes leave it together, and it then
// copies every matrix descriptor into uniform registers once more (16 and 32 rows took 14 % longer).
struct Work {
    // Stages of a field; fields that are shared; stages of each cluster, and clusters that have one more.
    u32 per_field, shared, each, more;
    u32 at, end;
    int pieces, field, first, last;

    __device__ Work(int fields, int whole, int stages) {
        per_field = stages;
#if NEAR
        // Of a loop that runs once for certain the compiler makes something else, in which products wait for each other.
        pieces = min(fields, 1);
        field = first = last = at = end = shared = each = more = 0;
#else
        u32 me = blockIdx.x / CLUSTER;
        shared = fields - whole * CLUSTERS;
        each = shared * stages / CLUSTERS, more = shared * stages % CLUSTERS;
        at = me * each + min(me, more), end = at + each + (me < more);
        pieces = whole + (at < end ? (end - 1) / stages - at / stages + 1 : 0);
        field = first = last = 0;
#endif
    }

    __device__ void next() {
#if NEAR
        u32 rank = blockIdx.x % SPLIT;
        field = blockIdx.x / SPLIT, first = per_field * rank / SPLIT, last = per_field * (rank + 1) / SPLIT;
#else
        bool part = at < end;
        // Whole ones come last, a round of all clusters apart.
        field = part ? at / per_field : last == 0 || field < (int)shared ? shared + blockIdx.x / CLUSTER : field + CLUSTERS;
        first = part ? at % per_field : 0;
        last = part ? min(per_field, first + (end - at)) : per_field;
        at += part ? last - first : 0;
#endif
    }

    // The cluster that has stage `stage` of the shared ones.
    __device__ u32 owner(u32 stage) const {
        u32 larger = more * (each + 1);
        return stage < larger ? stage / (each + 1) : more + (stage - larger) / each;
    }
};

#if NEAR
static __device__ __forceinline__ u32 bits_of(float value) { return __float_as_uint(value); }
static __device__ __forceinline__ u32 bits_of(int value) { return (u32)value; }

// Adds up the sums of those that share a field, always in the same order. True is only for the first, with all sums: the others put
// theirs into its shared memory, HEIGHT * ROWS numbers of each at `left`, and its barrier `arrived` counts their bytes, or their
// warps where there is no cluster.
static __device__ __forceinline__ bool gather_near(Sum (&sums)[TILES * ROWS / 2], u32 left, u32 arrived) {
    constexpr int quads = TILES * ROWS / 8, threads = CONSUMERS / SIDES;
    u32 team = threadIdx.x / 128, me = blockIdx.x % SPLIT * SIDES + team % SIDES;
    u32 own = left + (team / SIDES * 128 + threadIdx.x % 128) * 16;
#if SPLIT > 1
    // The first has begun, so that there is somewhere to put them.
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    if (__any_sync(0xffffffff, me > 0)) {
        own += (me - 1) * (HEIGHT * ROWS * 4);
#if SPLIT > 1
        u32 to, there;
        asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(to) : "r"(own));
        asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(there) : "r"(arrived));
#pragma unroll
        for (int i = 0; i < quads; i++)
            asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(
                             to + i * threads * 16),
                         "r"(bits_of(sums[4 * i])), "r"(bits_of(sums[4 * i + 1])), "r"(bits_of(sums[4 * i + 2])),
                         "r"(bits_of(sums[4 * i + 3])), "r"(there)
                         : "memory");
#else
        Sum* to = (Sum*)__cvta_shared_to_generic(own);
#pragma unroll
        for (int i = 0; i < quads * 4; i++) to[i / 4 * threads * 4 + i % 4] = sums[i];
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(arrived);
#endif
        return false;
    }
    barrier_wait(arrived, 0);
    const Sum* others = (const Sum*)__cvta_shared_to_generic(own);
#pragma unroll
    for (int other = 0; other < SPLIT * SIDES - 1; other++)
#pragma unroll
        for (int i = 0; i < quads; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sums[4 * i + j] += others[(other * quads + i) * threads * 4 + j];
    return true;
}
#endif

// Up to 32 rows each number says by itself that it has come, so that no flag has to follow behind it: `partial` is full of what no sum
// is before a launch, and again after it. All bits set is NaN, but not the one that arithmetic makes. Of more rows so much would be
// asked for again and again that those who still multiply would have to wait: these wait for flags, and `partial` is of any value.
#define MARKED (ROWS <= 32)
#define EMPTY 0xffffffff

// Adds up the sums of all clusters that share a field, always in the same order. True is only for the one that has the field's
// first stages, with all sums: the others leave theirs in `partial`. A cluster begins with the field that others have begun, and ends
// with the one that it begins, so that whoever waits here mostly finds what it waits for. A cluster leaves sums once at most, before
// it waits for anybody, so that all come to their end however many of them run at a time.
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
        for (int i = 0; i < quads; i++) {
            // By a copy: of sums that are read as something else the compiler no longer knows that products may write them meanwhile.
            Quad all = *(const Quad*)(sums + 4 * i);
            const uint4& bits = *(const uint4*)&all;
            asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(own + i * CONSUMERS), "r"(bits.x), "r"(bits.y),
                         "r"(bits.z), "r"(bits.w)
                         : "memory");
        }
        if (!MARKED) {
            __threadfence();
            asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
            if (threadIdx.x == 0) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flags + blockIdx.x), "r"(1) : "memory");
        }
        return false;
    }
    if (!MARKED) {
        // All at once: one by one they would be waited for as often as there are others.
        for (u32 other = from + 1 + threadIdx.x; other <= to; other += CONSUMERS) {
            u32* flag = flags + other * CLUSTER + rank;
            u32 raised = 0;
            while (!raised) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(raised) : "l"(flag) : "memory");
            // Lowered for the next launch.
            *flag = 0;
        }
        asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
    }
#pragma unroll 4
    for (u32 cluster = from + 1; cluster <= to; cluster++) {
        Quad* other = part(cluster);
#if MARKED
        uint4 bits[quads];
        bool there;
        do {
            there = true;
#pragma unroll
            for (int i = 0; i < quads; i++) {
                uint4& own = bits[i];
                asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                             : "=r"(own.x), "=r"(own.y), "=r"(own.z), "=r"(own.w)
                             : "l"(other + i * CONSUMERS)
                             : "memory");
            }
#pragma unroll
            for (int i = 0; i < quads; i++)
                there = there && bits[i].x != EMPTY && bits[i].y != EMPTY && bits[i].z != EMPTY && bits[i].w != EMPTY;
        } while (__any_sync(0xffffffff, !there));
#endif
#pragma unroll
        for (int i = 0; i < quads; i++) {
#if MARKED
            *(uint4*)(other + i * CONSUMERS) = make_uint4(EMPTY, EMPTY, EMPTY, EMPTY);
            const Quad& more = *(const Quad*)(bits + i);
#else
            uint4 bits = __ldcg((const uint4*)(other + i * CONSUMERS));
            const Quad& more = *(const Quad*)&bits;
#endif
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

// The first of 64 rows of W, those that team `team` has in its tile `tile`. Where GATED, a field has rows of a gate and behind them as
// many of what it multiplies: the first half of all rows, and the second.
static __device__ __forceinline__ int w_row(int w_first, int at, int rows) {
    constexpr int half = HEIGHT / 128;
    return GATED ? w_first / 2 + at % half * 64 + at / half * (rows / 2) : w_first + at * 64;
}

// silu(gate) * other, of two numbers.
static __device__ __forceinline__ u32 gated(u32 gate, u32 other) {
    float low = low_16(gate), high = high_16(gate);
    return pair_16(low / (1.0f + __expf(-low)) * low_16(other), high / (1.0f + __expf(-high)) * high_16(other));
}

// Scales sums and writes them: through shared memory, so that results of a row of x go out 128 bytes at a time.
static __device__ __forceinline__ void write(const Sum (&sums)[TILES * ROWS / 2], u8* out, const char* scales, const u16* x_scales, u16* y,
                                             int x_first, int w_first, int rows, int m, float tensor) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, team = threadIdx.x / 128, group = lane / 4, quarter = lane % 4;
    u8* own = out + team * TURN * PITCH;
    int width = GATED ? rows / 2 : rows;
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
        int first = w_row(w_first, team / SIDES * TILES + tile, rows);
        float scale[2] = {tensor * LOWERED, tensor * LOWERED};
        if (ROW_SCALES)
#pragma unroll
            for (int i = 0; i < 2; i++) scale[i] *= from_bf16(((const u16*)scales)[min(first + warp * 16 + group + 8 * i, rows - 1)]);
#pragma unroll
        for (int turn = 0; turn < ROWS; turn += TURN) {
            // A gate is read together with what it multiplies, which another team has.
            if (GATED)
                asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
            else
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
            if (GATED)
                asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
            else
                asm volatile("bar.sync %0, 128;" ::"r"(2 + team) : "memory");
            if (GATED && team >= GROUPS / 2) continue;
            int place = first + threadIdx.x % 8 * 8;
#pragma unroll
            for (int line = 0; line < TURN; line += 16) {
                int row = line + threadIdx.x % 128 / 8, x_row = x_first + turn + row;
                if (x_row >= m || place >= width) continue;
                const u8* at = own + row * PITCH + threadIdx.x % 8 * 16;
                uint4 bits = *(const uint4*)at;
                if (GATED) {
                    uint4 other = *(const uint4*)(at + GROUPS / 2 * TURN * PITCH);
                    bits = make_uint4(gated(bits.x, other.x), gated(bits.y, other.y), gated(bits.z, other.z), gated(bits.w, other.w));
                }
                u16* result = y + (u64)x_row * width + place;
                if (width % 8 == 0)
                    *(uint4*)result = bits;
                else
#pragma unroll 1
                    for (int i = 0; i < min(8, width - place); i++) result[i] = ((const u16*)at)[i];
            }
        }
    }
}
