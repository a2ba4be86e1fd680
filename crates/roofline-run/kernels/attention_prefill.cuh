// What both kernels of attention over many new tokens share: how queries are divided, which keys they see, and how scores
// become weights.
//
// Queries are rows of `q_pitch` numbers, head after head; token t of sequence s is row s * fresh + t. Keys and values are
// [sequence][kv head][capacity][feature], or pages of PAGED rows, [page][kv head][row][feature], which `table` names:
// [sequence][capacity / PAGED]. `starts` counts the tokens that a sequence had before these `fresh` ones, whose keys are there
// as well. Outputs are [token][head][feature]. `scale` has log2(e) in it; `cap` bounds scores by a tanh; a sink is one more
// score of a head, which nothing is added for.
//
//   HEAD_DIM, HALF                      KEYS    of a block, which are multiplied at once
//   TALL    rows of a tile              CAUSAL  whether a token sees only what came before it
//   PACK    heads of a tile             WINDOWED, CAPPED, SINKS, PAGED: what there is beside
//   SHARES  whether `splits` teams of threads share the keys of a tile, for too few tiles to fill a GPU
//
// A tile has PACK heads that share keys, token after token: few tokens fill it then, too. Tiles that see most keys come first,
// and such that share keys are neighbours. The last of the teams that share a tile adds up what all have left in `shares`;
// `counters` are zeros before and after.

constexpr int SPAN = TALL / PACK; // tokens of a tile; rows that are left over come to nothing

constexpr float LOG2_E = 1.4426950408889634f;
// How far a score may exceed, in powers of two, what weights are relative to: outputs are scaled anew only past that.
constexpr float SLACK = 8;
#define INFINITE __int_as_float(0x7f800000)

static __device__ __forceinline__ float power_of_2(float value) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

// Two numbers in a word, the first in the low half.
static __device__ __forceinline__ u32 rounded(float low, float high) {
    u32 pair;
#if HALF
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
    return pair;
}

// What a launch was asked for.
struct Shape {
    int sequences, heads, kv_heads, capacity, fresh, window, splits;

    // Tiles, or shares of them.
    __device__ __forceinline__ int items() const {
        return (fresh + SPAN - 1) / SPAN * sequences * (heads / PACK) * (SHARES ? splits : 1);
    }
    // The first row of a sequence's keys of a head.
    __device__ __forceinline__ u64 row(int sequence, int head) const {
        return (u64)(sequence * kv_heads + head / (heads / kv_heads)) * capacity;
    }
};

struct Tile {
    int sequence, head, first; // its first head and token
    int before, keys;          // keys that the sequence had before, and has
    int lowest, highest;       // blocks of keys that any of its queries sees
    int index, split, sharing; // its number, which of its shares this is, and of how many

    __device__ __forceinline__ Tile(const Shape& shape, const int* starts, int item) {
        index = SHARES ? item / shape.splits : item, split = SHARES ? item % shape.splits : 0;
        int packs = shape.heads / PACK, across = shape.sequences * packs, tiles = (shape.fresh + SPAN - 1) / SPAN;
        sequence = index % across / packs, head = index % packs * PACK;
        first = (tiles - 1 - index / across) * SPAN;
        before = starts[sequence], keys = before + shape.fresh;
        highest = ((CAUSAL ? min(before + first + SPAN, keys) : keys) - 1) / KEYS;
        lowest = WINDOWED ? max(before + first + 1 - shape.window, 0) / KEYS : 0;
        sharing = 1;
        if (SHARES) {
            int blocks = highest - lowest + 1, last = highest;
            sharing = min(shape.splits, blocks);
            highest = last - blocks * split / sharing, lowest = last - blocks * (split + 1) / sharing + 1;
        }
    }

    // Whether there is nothing to do, because there are fewer blocks than shares.
    __device__ __forceinline__ bool idle() const { return SHARES && split >= sharing; }

    // The token of a row, from the first of its sequence on.
    __device__ __forceinline__ int token(int row) const { return first + row / PACK; }

    // Whether some of the rows from `row` to `last` do not see all keys of a block.
    __device__ __forceinline__ bool partial(const Shape& shape, int row, int last, int block) const {
        int from = block * KEYS, to = from + KEYS;
        return to > (CAUSAL ? min(before + token(row) + 1, keys) : keys) || WINDOWED && from < before + token(last) + 1 - shape.window;
    }
};

// Scores are held as products leave them: with t = lane % 4, number i is that of key i / 4 * 8 + 2t + i % 2 with the first of
// a thread's two rows or, where i / 2 is odd, with the second, which is 8 further.

// Takes away what is not seen; `key` is the first key of this thread, `row` its first row.
template <int N>
static __device__ __forceinline__ void hide(float (&scores)[N], const Tile& tile, int window, int row, int key) {
#pragma unroll
    for (int side = 0; side < 2; side++) {
        int place = tile.before + tile.token(row + 8 * side) + 1;
        int end = CAUSAL ? min(place, tile.keys) : tile.keys, from = place - window;
#pragma unroll
        for (int i = 0; i < N; i++) {
            int own = key + i / 4 * 8 + i % 2;
            if (i / 2 % 2 == side && (own >= end || WINDOWED && own < from)) scores[i] = -INFINITE;
        }
    }
}

// Bounds scores, and leaves them as powers of two.
template <int N> static __device__ __forceinline__ void bound(float (&scores)[N], float scale, float cap) {
    float twice = 2 * scale / cap, top = cap * LOG2_E;
#pragma unroll
    for (int i = 0; i < N; i++) {
        float inverse;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1 + power_of_2(scores[i] * twice)));
        scores[i] = top - 2 * top * inverse;
    }
}

// A thread's two rows: the score that weights are relative to, and this thread's part of their sum.
struct Rows {
    float base[2], total[2];

    __device__ __forceinline__ Rows() { base[0] = base[1] = -INFINITE, total[0] = total[1] = 0; }

    // Makes weights of scores. Whether what was added up before has to be multiplied by `shrink`.
    template <int N> __device__ __forceinline__ bool weigh(float (&scores)[N], float scale, float (&shrink)[2]) {
        float most[4], sums[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 4; i++) most[i] = scores[i];
#pragma unroll
        for (int i = 4; i < N; i++) most[i % 4] = fmaxf(most[i % 4], scores[i]);
        float top[2];
#pragma unroll
        for (int side = 0; side < 2; side++) {
            float found = fmaxf(most[2 * side], most[2 * side + 1]);
            found = fmaxf(found, __shfl_xor_sync(0xffffffff, found, 1));
            found = fmaxf(found, __shfl_xor_sync(0xffffffff, found, 2));
            top[side] = found * scale;
        }
        bool higher = __any_sync(0xffffffff, top[0] > base[0] + SLACK || top[1] > base[1] + SLACK);
        if (higher) {
#pragma unroll
            for (int side = 0; side < 2; side++) {
                float next = fmaxf(base[side], top[side]);
                shrink[side] = next == -INFINITE ? 1 : power_of_2(base[side] - next);
                base[side] = next, total[side] *= shrink[side];
            }
        }
        // A row that has seen nothing yet has no base.
        float less[2] = {base[0] == -INFINITE ? 0 : base[0], base[1] == -INFINITE ? 0 : base[1]};
#pragma unroll
        for (int i = 0; i < N; i++) {
            scores[i] = power_of_2(fmaf(scores[i], scale, -less[i / 2 % 2]));
            sums[i % 4] += scores[i];
        }
        total[0] += sums[0] + sums[1], total[1] += sums[2] + sums[3];
        return higher;
    }

    // What outputs are multiplied with in the end.
    __device__ __forceinline__ void finish(float (&factor)[2], const float* sinks, const Tile& tile, int row) {
#pragma unroll
        for (int side = 0; side < 2; side++) {
            float sum = total[side];
            sum += __shfl_xor_sync(0xffffffff, sum, 1);
            sum += __shfl_xor_sync(0xffffffff, sum, 2);
            float shrink = 1;
            if (SINKS) {
                float sink = sinks[tile.head + (row + 8 * side) % PACK] * LOG2_E, most = fmaxf(sink, base[side]);
                shrink = power_of_2(base[side] - most);
                sum = sum * shrink + power_of_2(sink - most);
            }
            factor[side] = __fdividef(shrink, sum);
        }
    }
};

// What a team of THREADS has of a tile: each thread's sums and rows, number after number. Every thread reads only what threads
// of its own number have left.
template <int THREADS, int N>
static __device__ __forceinline__ void leave_share(float* share, int thread, const float (&sums)[N], const Rows& rows) {
#pragma unroll
    for (int i = 0; i < N; i++) share[i * THREADS + thread] = sums[i];
#pragma unroll
    for (int side = 0; side < 2; side++)
        share[(N + side) * THREADS + thread] = rows.base[side], share[(N + 2 + side) * THREADS + thread] = rows.total[side];
}

// All shares in their order, `apart` floats from one to the next.
template <int THREADS, int N>
static __device__ __forceinline__ void add_shares(const float* shares, u64 apart, int sharing, int thread, float (&sums)[N], Rows& rows) {
    float most[2] = {-INFINITE, -INFINITE};
    for (int from = 0; from < sharing; from++)
#pragma unroll
        for (int side = 0; side < 2; side++) most[side] = fmaxf(most[side], __ldcg(shares + from * apart + (N + side) * THREADS + thread));
#pragma unroll
    for (int i = 0; i < N; i++) sums[i] = 0;
    rows.total[0] = rows.total[1] = 0;
    for (int from = 0; from < sharing; from++) {
        const float* share = shares + from * apart + thread;
        float weight[2];
#pragma unroll
        for (int side = 0; side < 2; side++) {
            weight[side] = power_of_2(__ldcg(share + (N + side) * THREADS) - most[side]);
            rows.total[side] += weight[side] * __ldcg(share + (N + 2 + side) * THREADS);
        }
#pragma unroll
        for (int i = 0; i < N; i++) sums[i] += weight[i / 2 % 2] * __ldcg(share + i * THREADS);
    }
    rows.base[0] = most[0], rows.base[1] = most[1];
}

// Whether this team is the last of those that share a tile. `barrier` is the team's own, `told` a place for its threads.
template <int THREADS>
static __device__ __forceinline__ bool last_of(u32* counter, int sharing, int barrier, int* told) {
    __threadfence();
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(THREADS) : "memory");
    if (threadIdx.x % THREADS == 0) {
        bool last = atomicAdd(counter, 1) == sharing - 1;
        if (last) *counter = 0;
        *(volatile int*)told = last;
    }
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(THREADS) : "memory");
    __threadfence();
    return *(volatile int*)told;
}

// Outputs of a thread's two rows, rounded and written, 16 bytes at a time: four threads that have two features each of four
// pieces give each other what makes a piece.
template <int N>
static __device__ __forceinline__ void write_out(const float (&sums)[N], const float (&factor)[2], const Shape& shape, const Tile& tile,
                                                 int row, u16* out) {
    int t = threadIdx.x % 4;
#pragma unroll
    for (int side = 0; side < 2; side++) {
        int own = row + 8 * side, token = tile.token(own);
        u16* to = out + (((u64)tile.sequence * shape.fresh + token) * shape.heads + tile.head + own % PACK) * HEAD_DIM;
        bool there = own < SPAN * PACK && token < shape.fresh;
#pragma unroll
        for (int from = 0; from < HEAD_DIM / 8; from += 4) {
            u32 pairs[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = min(from + i, HEAD_DIM / 8 - 1) * 4 + 2 * side;
                pairs[i] = rounded(sums[at] * factor[side], sums[at + 1] * factor[side]);
            }
#pragma unroll
            for (int step = 1; step < 4; step *= 2)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if ((i & step) == 0) {
                        u32 other = __shfl_xor_sync(0xffffffff, t & step ? pairs[i] : pairs[i + step], step);
                        if (t & step)
                            pairs[i] = other;
                        else
                            pairs[i + step] = other;
                    }
            if (there && from + t < HEAD_DIM / 8) *(uint4*)(to + (from + t) * 8) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
    }
}
