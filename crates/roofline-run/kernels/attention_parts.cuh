// What `attention.cu` is made of: the division of its work, products on the tensor units, and the way of cached rows
// through registers and shared memory. `attention.cu` says what for.

// Whether the cache is of 8-bit numbers, with a scale per row.
#define SCALED (CACHE != SIXTEEN)

constexpr int THREADS = 32 * WARPS;
constexpr int ROW = HEAD_DIM * (SCALED ? 1 : 2);
constexpr int PIECES = ROW / 16;
constexpr int PIECE = SCALED ? 16 : 8; // numbers in 16 bytes
constexpr int PITCH = (PIECES + 7) / 8 * 8; // pieces from row to row in the queue
// Four threads share a row of keys as an operand, eight a row of values: of a narrow one each takes half a piece.
constexpr bool NARROW = PIECES <= 4;
constexpr int K_LOADS = (PIECES + 3) / 4, V_LOADS = (PIECES + 7) / 8;
constexpr int V_PIECE = NARROW ? PIECE / 2 : PIECE; // numbers of a row of values that a thread takes at once
constexpr int ROWS = KEYS / 8; // neighbouring keys that are the same thread's
constexpr int STEP = 2 * KEYS * PITCH; // pieces of a step: keys, then values
constexpr int SLOTS = DEPTH ? DEPTH : 1; // steps of a warp that shared memory holds
constexpr int COPIES = KEYS * PIECES / 32; // pieces of a step's keys that a thread copies, and as many of its values
constexpr int HEADS = 8 * TILES;
constexpr float NOTHING = -1e30f; // finite, so that no difference is NaN
constexpr float LOG2_E = 1.4426950408889634f;
constexpr int AHEAD = 8;          // shares that are on the way at once when they are added up
static_assert(ROW % 16 == 0, "rows are whole pieces");
static_assert(KEYS * PIECES % 32 == 0, "a step is whole copies of a warp");
static_assert(KEYS % 16 == 0 && (!SCALED || KEYS == 32), "a lane holds the scales of one row");

// [warp][step % SLOTS][K, V][key][piece]; in the end the warps' outputs, [warp][head][feature] as floats.
extern __shared__ uint4 queue[];

static __device__ __forceinline__ float power_of_2(float value) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

// A score, as a power of two, bounded by a tanh.
static __device__ __forceinline__ float bounded(float score, float cap) {
    float top = cap * LOG2_E, inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1 + power_of_2(score * (2 / cap))));
    return top - 2 * top * inverse;
}

// 8-bit numbers are exact as halves, so they are multiplied as such, whatever the queries are.
constexpr bool AS_HALF = HALF || SCALED;

static __device__ __forceinline__ u32 operand(float low, float high) {
    return AS_HALF ? (u32)to_fp16(low) | (u32)to_fp16(high) << 16 : (u32)to_bf16(low) | (u32)to_bf16(high) << 16;
}

static __device__ __forceinline__ float number(u32 bits) { return AS_HALF ? from_fp16((u16)bits) : from_bf16((u16)bits); }

// c[16 x 8] += a[16 x 16] * b[16 x 8]. With g = lane / 4 and t = lane % 4 a thread holds a[g][2t, 2t+1], a[g+8][2t, 2t+1] and
// both 8 columns further, b[2t, 2t+1][g] and 8 rows further, c[g][2t, 2t+1] and c[g+8][2t, 2t+1].
static __device__ __forceinline__ void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if TENSOR_16
#if HALF || SCALED
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#else
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#endif
    asm(MMA "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#elif !defined(PORTABLE) && (HALF || SCALED)
#define MMA "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
    asm(MMA : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(b0));
    asm(MMA : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a2), "r"(a3), "r"(b1));
#else
    const u32 a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
    int lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
    for (int part = 0; part < 8; part++) {
        int from = part / 2, side = part % 2;
        u32 upper = __shfl_sync(0xffffffff, a[2 * side], lane - t + from);
        u32 lower = __shfl_sync(0xffffffff, a[2 * side + 1], lane - t + from);
        u32 left = __shfl_sync(0xffffffff, b[side], 8 * t + from);
        u32 right = __shfl_sync(0xffffffff, b[side], 8 * t + 4 + from);
#pragma unroll
        for (int shift = 0; shift < 32; shift += 16) {
            c[0] += number(upper >> shift) * number(left >> shift);
            c[1] += number(upper >> shift) * number(right >> shift);
            c[2] += number(lower >> shift) * number(left >> shift);
            c[3] += number(lower >> shift) * number(right >> shift);
        }
    }
#endif
}

// An 8 x 8 matrix of 16-bit numbers, two neighbours of a row per thread, transposed.
static __device__ __forceinline__ u32 transposed(u32 pair) {
    u32 result;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
    return result;
}

#if CACHE == E4M3 && (defined(PORTABLE) || __CUDA_ARCH__ < 890)
constexpr float REST = 256.0f; // what `widened` leaves to the scales: the difference of the exponents' biases
#else
constexpr float REST = 1.0f;
#endif

// Two of four 8-bit numbers as halves: the first two, or the last two.
static __device__ __forceinline__ u32 widened(u32 four, bool last) {
#if CACHE == E4M3 && !defined(PORTABLE) && __CUDA_ARCH__ >= 890
    u32 pair;
    if (last)
        asm("{.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, high;}" : "=r"(pair) : "r"(four));
    else
        asm("{.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, low;}" : "=r"(pair) : "r"(four));
    return pair;
#elif CACHE == E4M3
    u32 high = __byte_perm(four, 0, last ? 0x3424 : 0x1404);
    return (high & 0x80008000) | (high >> 1 & 0x3f803f80);
#elif CACHE == E5M2
    return __byte_perm(four, 0, last ? 0x3424 : 0x1404);
#else
    // 1024 + (code + 128) is a half with the code in its last bits.
    u32 biased = __byte_perm(four ^ 0x80808080, 0x64646464, last ? 0x4342 : 0x4140), pair;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(biased), "r"(0x64806480));
    return pair;
#endif
}

// 16 bytes of the cache: of one that this kernel or one of its chain writes, by a load that is not older than the write.
static __device__ __forceinline__ uint4 piece_of(const uint4* from) {
#if TURNED || CHAINED
    uint4 value;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
#else
    return stream(from);
#endif
}

static __device__ __forceinline__ void put(u32 to, uint4 piece) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(piece.x), "r"(piece.y), "r"(piece.z), "r"(piece.w)
                 : "memory");
}

static __device__ __forceinline__ void copy(u32 to, const uint4* from) {
#if TENSOR_16
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#else
    put(to, piece_of(from));
#endif
}

static __device__ __forceinline__ uint4 taken(u32 from) {
    uint4 piece;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                 : "r"(from)
                 : "memory");
    return piece;
}

// What a thread takes of a row of values at once.
static __device__ __forceinline__ uint4 taken_value(u32 from) {
    if (!NARROW) return taken(from);
    uint4 piece = make_uint4(0, 0, 0, 0);
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(piece.x), "=r"(piece.y) : "r"(from) : "memory");
    return piece;
}

// Where pieces of rows are in a step of the queue, in bytes. Thread (g, t) takes piece t + 4i of keys g * ROWS + (0 .. ROWS),
// and piece g + 8i, or half piece g of a narrow row, of the values that belong to g = 2t and 2t + 1. Threads take pieces
// together, of different rows; so that these are in different banks, pieces of a row change places, by an exclusive or that
// depends on the row.
struct Places {
    u32 even, odd, values; // what this thread takes: keys, for even i and odd i, and values; the rest are constants

    __device__ __forceinline__ Places() {
        int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        even = (g * ROWS * PITCH + t + g % 2 * 4) * 16, odd = (g * ROWS * PITCH + t - g % 2 * 4) * 16;
        int piece = NARROW ? g / 2 : g;
        values = (KEYS * PITCH + 2 * t * ROWS * PITCH + (piece ^ 2 * t)) * 16 + (NARROW ? g % 2 * 8 : 0);
    }

    __device__ __forceinline__ u32 key(int row, int load) const {
        return (load % 2 ? odd : even) + (row * PITCH + 4 * load) * 16;
    }

    __device__ __forceinline__ u32 value(int row, int load) const {
        return values + ((row % 2 * ROWS + row / 2) * PITCH + 8 * load) * 16;
    }

    // Where the piece goes that this thread copies as its `at`-th.
    static __device__ __forceinline__ u32 target(int at, bool value) {
        int lane = threadIdx.x % 32, own = at * 32 + lane;
        // The copies of a warp at a time are rows that change places alike.
        constexpr bool ALIKE = 32 % PIECES == 0 && 32 / PIECES <= ROWS || PIECES % 32 == 0;
        int key = ALIKE ? at * 32 / PIECES : own / PIECES, swap = value ? key / ROWS / 2 * 2 : key / ROWS % 2 * 4;
        int place = PITCH == PIECES ? own ^ swap : own / PIECES * PITCH + (own % PIECES ^ swap);
        return (place + (value ? KEYS * PITCH : 0)) * 16;
    }
};

// The keys and values of a step on their way; pieces past the last one are the last one again.
template <bool WHOLE>
static __device__ __forceinline__ void fetch(u32 slot, const uint4* k, const uint4* v, u32 first, u32 last) {
    int lane = threadIdx.x % 32;
    k += WHOLE ? first + lane : 0, v += WHOLE ? first + lane : 0;
#pragma unroll
    for (int at = 0; at < COPIES; at++)
        copy(slot + Places::target(at, false), k + (WHOLE ? at * 32 : min(first + at * 32 + lane, last)));
#pragma unroll
    for (int at = 0; at < COPIES; at++)
        copy(slot + Places::target(at, true), v + (WHOLE ? at * 32 : min(first + at * 32 + lane, last)));
}

// The keys or the values of a step on their way to registers, and from there to shared memory.
struct Held {
    uint4 pieces[COPIES];
    // Both fit the registers, else values are asked for when keys have left.
    static constexpr bool BOTH = 2 * COPIES <= 18;

    template <bool WHOLE> __device__ __forceinline__ void load(const uint4* cache, u32 first, u32 last) {
        int lane = threadIdx.x % 32;
        cache += WHOLE ? first + lane : 0;
#pragma unroll
        for (int at = 0; at < COPIES; at++)
            pieces[at] = piece_of(cache + (WHOLE ? at * 32 : min(first + at * 32 + lane, last)));
    }

    __device__ __forceinline__ void store(u32 slot, bool values) const {
#pragma unroll
        for (int at = 0; at < COPIES; at++) put(slot + Places::target(at, values), pieces[at]);
    }
};

static __device__ __forceinline__ void end_of_step() {
#if TENSOR_16
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for all copies of a warp but those of the last LEFT steps.
template <int LEFT> static __device__ __forceinline__ void arrival() {
#if TENSOR_16
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
    __syncwarp();
}

static __device__ __forceinline__ u32 word(const uint4& piece, int at) {
    return at == 0 ? piece.x : at == 1 ? piece.y : at == 2 ? piece.z : piece.w;
}

// Queries of one thread as second operands: those of head g, in the places where keys have the same features. Halves made of
// bfloat16 are brought into range by a power of two, which `factor` takes back.
struct Queries {
    u32 pairs[TILES][K_LOADS][PIECE / 2];
    float factor[TILES][2];

    __device__ __forceinline__ Queries(const u16* q, int heads, float scale) {
        int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            int head = 8 * tile + g;
            u32 largest = 0;
#pragma unroll
            for (int load = 0; load < K_LOADS; load++)
#pragma unroll
                for (int at = 0; at < PIECE / 2; at++) {
                    int feature = (t + 4 * load) * PIECE + 2 * at;
                    bool there = head < heads && feature < HEAD_DIM;
                    u32 pair = there ? *(const u32*)(q + head * HEAD_DIM + feature) : 0;
                    pairs[tile][load][at] = pair;
                    largest = max(largest, max(pair & 0x7fff, pair >> 16 & 0x7fff));
                }
            float own = scale;
            if (SCALED && !HALF) {
                largest = max(largest, __shfl_xor_sync(0xffffffff, largest, 1));
                largest = max(largest, __shfl_xor_sync(0xffffffff, largest, 2));
                u32 exponent = min(max(largest >> 7, 1), 253);
                own *= __uint_as_float(exponent << 23);
                float into_range = __uint_as_float((254 - exponent) << 23);
#pragma unroll
                for (int load = 0; load < K_LOADS; load++)
#pragma unroll
                    for (int at = 0; at < PIECE / 2; at++) {
                        u32& pair = pairs[tile][load][at];
                        pair = operand(low_16(pair) * into_range, high_16(pair) * into_range);
                    }
            }
#pragma unroll
            for (int side = 0; side < 2; side++) factor[tile][side] = __shfl_sync(0xffffffff, own, 8 * t + 4 * side);
        }
    }
};
