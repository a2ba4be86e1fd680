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
//   TALL    queries of a tile           CAUSAL  whether a token sees only what came before it
//   WINDOWED, CAPPED, SINKS, PAGED      what there is beside
//
// A tile is TALL queries of one head. Tiles that see most keys come first, and heads that share keys are neighbours.

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
    int sequences, heads, kv_heads, capacity, fresh, window;

    __device__ __forceinline__ int tiles() const { return (fresh + TALL - 1) / TALL * sequences * heads; }
    // The first row of a sequence's keys of a head, and how far apart pages are.
    __device__ __forceinline__ u64 row(int sequence, int head) const {
        return (u64)(sequence * kv_heads + head / (heads / kv_heads)) * capacity;
    }
};

struct Tile {
    int sequence, head, first; // its first query
    int before, keys;          // keys that the sequence had before, and has
    int lowest, highest;       // blocks of keys that any of its queries sees

    __device__ __forceinline__ Tile(const Shape& shape, const int* starts, int index) {
        int across = shape.sequences * shape.heads, tiles = (shape.fresh + TALL - 1) / TALL;
        sequence = index % across / shape.heads, head = index % shape.heads;
        first = (tiles - 1 - index / across) * TALL;
        before = starts[sequence], keys = before + shape.fresh;
        highest = ((CAUSAL ? min(before + first + TALL, keys) : keys) - 1) / KEYS;
        lowest = WINDOWED ? max(before + first + 1 - shape.window, 0) / KEYS : 0;
    }

    // Whether some of the queries from `row` to `end` do not see all keys of a block.
    __device__ __forceinline__ bool partial(const Shape& shape, int row, int end, int block) const {
        int from = block * KEYS, to = from + KEYS;
        return to > (CAUSAL ? min(before + row + 1, keys) : keys) || WINDOWED && from < before + end - shape.window;
    }
};

// Scores are held as products leave them: with t = lane % 4, number i is that of key i / 4 * 8 + 2t + i % 2 with the first of
// a thread's two rows or, where i / 2 is odd, with the second, which is 8 further.

// Takes away what is not seen; `key` is the first key of this thread, `row` its first query.
template <int N>
static __device__ __forceinline__ void hide(float (&scores)[N], const Tile& tile, int window, int row, int key) {
#pragma unroll
    for (int side = 0; side < 2; side++) {
        int end = CAUSAL ? min(tile.before + row + 8 * side + 1, tile.keys) : tile.keys;
        int from = tile.before + row + 8 * side + 1 - window;
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
    __device__ __forceinline__ void finish(float (&factor)[2], const float* sinks, int head) {
#pragma unroll
        for (int side = 0; side < 2; side++) {
            float sum = total[side];
            sum += __shfl_xor_sync(0xffffffff, sum, 1);
            sum += __shfl_xor_sync(0xffffffff, sum, 2);
            float shrink = 1;
            if (SINKS) {
                float sink = sinks[head] * LOG2_E, most = fmaxf(sink, base[side]);
                shrink = power_of_2(base[side] - most);
                sum = sum * shrink + power_of_2(sink - most);
            }
            factor[side] = __fdividef(shrink, sum);
        }
    }
};

// Outputs of a thread's two rows, rounded and written, 16 bytes at a time: four threads that have two features each of four
// pieces give each other what makes a piece.
template <int N>
static __device__ __forceinline__ void write_out(const float (&sums)[N], const float (&factor)[2], const Shape& shape, const Tile& tile,
                                                 int row, u16* out) {
    int t = threadIdx.x % 4;
#pragma unroll
    for (int side = 0; side < 2; side++) {
        int token = tile.first + row + 8 * side;
        u16* to = out + (((u64)tile.sequence * shape.fresh + token) * shape.heads + tile.head) * HEAD_DIM;
        bool there = token < shape.fresh;
#pragma unroll
        for (int from = 0; from < HEAD_DIM / 8; from += 4) {
            u32 own[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = min(from + i, HEAD_DIM / 8 - 1) * 4 + 2 * side;
                own[i] = rounded(sums[at] * factor[side], sums[at + 1] * factor[side]);
            }
#pragma unroll
            for (int step = 1; step < 4; step *= 2)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if ((i & step) == 0) {
                        u32 other = __shfl_xor_sync(0xffffffff, t & step ? own[i] : own[i + step], step);
                        if (t & step)
                            own[i] = other;
                        else
                            own[i + step] = other;
                    }
            if (there && from + t < HEAD_DIM / 8) *(uint4*)(to + (from + t) * 8) = make_uint4(own[0], own[1], own[2], own[3]);
        }
    }
}
