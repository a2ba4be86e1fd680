// Products of few rows, y = x W^T with up to 8 * COLUMNS rows of x: a decode step's linear layers. Weights are read once,
// at their stored size, and widened in registers.
//
// A block owns 16 * TILES rows of W; its warps share the columns, 64 at a time. W is the first operand of
// mma.m16n8k16, so that up to eight rows of x cost what one does. Weights are packed once so that every lane reads the
// numbers of its own fragments with 16-byte loads, 512 contiguous bytes a warp. Which column a number stands for is free
// as long as both operands agree: lane (group, quarter) has columns `place(half, quarter) .. + 8`, for half 0 and 1, so
// that x is read 16 bytes at a time from plain rows.
//
//   STORED   SIXTEEN (what x is), INT8, E4M3, INT4, INT4_ZERO (with zero points), NF4, MXFP4 or NVFP4, each times 16-bit x;
//            BOTH_INT8 or BOTH_E4M3, times x of the same kind
//   GROUP    columns that share a scale, 0 for a scale per row of W
//   COLUMNS  blocks of eight rows of x        TILES  blocks of 16 rows of W per warp
//   WARPS    warps per block                  DEPTH  steps of 64 columns that are asked for at once
//   FUNCTION IDENTITY: y = x W^T; SILU: y = silu(x W^T); GATED: tiles alternate between a gate and what it multiplies,
//            y = silu(x G^T) * (x W^T)
//   SPLIT    blocks that share the columns of the same rows: a cluster, which adds up in shared memory
//   WIDE     1: y is FP32                     CHAINED  as in chain.cuh
//   EXPERTS  1: row `blockIdx.y` of y is of the expert that `choice` says: one of many matrices, each `*_stride` bytes after the
//            other, times row `blockIdx.y / active` of x
//   ADDS     1: results are added to the residual stream, FP32, from `stream` to `sums`; y is that times the weights of the
//            norm behind it, and `squares_out` has the sum of squares of every 16 numbers of a row
//   ROUNDED  1: x was rounded to 8 bit, and has a scale for each row: codes beside BOTH_INT8 and BOTH_E4M3, and what they stand for
//            as 16 bit beside E4M3, where tensor units would widen codes again. 2: x is of 16 bit as it came. Every block rounds
//            all of it in shared memory while its first weights are on their way: cheaper than a kernel in front that does it once
//   FACTORED 1: x is such a y, not divided by its root mean square yet: results are, by `squares`. A norm's only sum over a
//            row is so left to the kernels on both sides of it, and the norm needs none of its own.

#ifndef WIDE
#define WIDE 0
#endif
#ifndef EXPERTS
#define EXPERTS 0
#endif
#ifndef ADDS
#define ADDS 0
#endif
#ifndef FACTORED
#define FACTORED 0
#endif
#ifndef ROUNDED
#define ROUNDED BYTES
#endif
#define NARROWS (ROUNDED == 2)
// Sixteen bytes of x in a step: they are eight columns, or sixteen.
#define X_STEP (BYTES ? 4 : 8)

// One step's bytes, with its scales.
struct Step {
    uint4 weights[TILES][VECTORS];
    u32 scales[TILES];
    u32 more[TILES];
};

// What every tile adds to its sums for symmetric INT4: -136 (-1032) times the sum of x.
#define BIASED (STORED == INT4)
// Scales that are applied to the sums of their columns.
#define APART (GROUP != 0 && STORED != NVFP4)
#define LANES (32 * WARPS)
#define STRIDE (SPLIT * WARPS)

#if NARROWS
// The largest magnitude of a row as the bits of its 16-bit number, and the scale that follows.
static __device__ __forceinline__ u32 row_scale_of(u32 largest) {
    return row_scale(from_16((u16)largest), STORED == BOTH_INT8 ? TOP_INT8 : TOP_E4M3);
}

// Rounds `m` rows of `steps` times 64 numbers: eight for each lane and turn, twice read, of which the second comes from a cache.
template <int THREADS>
static __device__ __forceinline__ void narrow_rows(const uint4* x, uint4* codes, u32* largest, int m, int steps, int pitch) {
    int words = steps * 8;
    for (int row = 0; row < m; row++) {
        // Magnitudes are in the order of their bits.
        u32 low = 0, high = 0;
        for (int at = threadIdx.x; at < words; at += THREADS) {
            uint4 eight = x[row * words + at];
            low = max(max(low, eight.x & 0x7fff), max(eight.y & 0x7fff, max(eight.z & 0x7fff, eight.w & 0x7fff)));
            high = max(max(high, eight.x & 0x7fff0000), max(eight.y & 0x7fff0000, max(eight.z & 0x7fff0000, eight.w & 0x7fff0000)));
        }
        low = warp_most(max(low, high >> 16));
        if (threadIdx.x % 32 == 0) atomicMax(largest + row, low);
    }
    __syncthreads();
    for (int row = 0; row < m; row++) {
        float inverse = 1 / from_bf16((u16)row_scale_of(largest[row]));
        for (int at = threadIdx.x; at < words; at += THREADS) {
            uint4 eight = x[row * words + at];
#if BYTES
            ((uint2*)(codes + row * pitch))[at] = make_uint2(four_codes<STORED == BOTH_INT8>(eight.x, eight.y, inverse),
                                                             four_codes<STORED == BOTH_INT8>(eight.z, eight.w, inverse));
#else
            codes[row * pitch + at] = make_uint4(rounded_e4m3(eight.x, inverse), rounded_e4m3(eight.y, inverse),
                                                 rounded_e4m3(eight.z, inverse), rounded_e4m3(eight.w, inverse));
#endif
        }
    }
    __syncthreads();
}
#endif

static __device__ __forceinline__ void cluster_wait() {
#if SPLIT > 1
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// A number in the shared memory of block `block` of the cluster.
static __device__ __forceinline__ Sum shared_of(const Sum* own, u32 block) {
    u32 value = 0, address = (u32)__cvta_generic_to_shared(own);
#if SPLIT > 1
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %1, %2; ld.shared::cluster.u32 %0, [there];}"
                 : "=r"(value)
                 : "r"(address), "r"(block));
#endif
    return *(Sum*)&value;
}

extern "C" __global__ void
#if SPLIT > 1
    __cluster_dims__(SPLIT, 1, 1)
#endif
        __launch_bounds__(LANES)
            gemv_packed(const uint4* __restrict__ weights, const char* __restrict__ scales, const char* __restrict__ zeros,
                 const u16* x, const u16* x_scales, u16* __restrict__ y, int rows, int steps, int m,
                 float tensor
#if FACTORED
                 , const float* squares, float epsilon
#endif
#if ADDS
                 , const float* stream_in, float* __restrict__ stream_out, const float* __restrict__ norm,
                 float* __restrict__ squares_out
#endif
#if EXPERTS
                 , const int* choice, u64 weight_stride, u64 scale_stride, u64 zero_stride, int active
#endif
    ) {
    chain_release();
#if EXPERTS
    // Who goes where is known only now.
    chain_wait();
    u64 expert = choice[blockIdx.y];
    weights = (const uint4*)((const char*)weights + expert * weight_stride), scales += expert * scale_stride, zeros += expert * zero_stride;
    x += (u64)(blockIdx.y / active) * steps * 64, y += (u64)blockIdx.y * rows * (WIDE ? 2 : 1);
#endif
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, quarter = lane % 4;
    int part = blockIdx.x % SPLIT, tiles = (rows + 15) / 16 * (FUNCTION == GATED ? 2 : 1);
    int start = part * WARPS + warp;
#if STORED == NF4
    fill_nf4(threadIdx.x, LANES);
    __syncthreads();
    // A table is worth several tiles: there are no more blocks than fit the GPU at once.
    for (int first = blockIdx.x / SPLIT * TILES; first < tiles; first += gridDim.x / SPLIT * TILES) {
#else
    {
        int first = blockIdx.x / SPLIT * TILES;
#endif

    constexpr int scale_bytes = SCALE_BYTES, zero_bytes = ZERO_BYTES;
    int pairs = GROUP == 128 ? (steps + 1) / 2 * 2 : steps;
    int even = GROUP == 128 ? start / 2 * 2 : start;
    const uint4* weights_at[TILES];
    const char *scales_at[TILES], *zeros_at[TILES];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        u64 own = min(first + tile, tiles - 1);
        weights_at[tile] = weights + (own * steps + start) * (32 * VECTORS) + lane;
        int place = STORED == NVFP4 ? 2 * lane : STORED == NF4 ? 8 * group : 4 * group;
        scales_at[tile] = scales + (own * pairs + even) * scale_bytes + place;
        zeros_at[tile] = zeros + (own * pairs + even) * zero_bytes + (GROUP == 32 ? 2 : 1) * group;
    }
    constexpr int x_step = X_STEP;
    const uint4* x_at[COLUMNS];
#if NARROWS
    // Rows lie half of the banks apart.
    extern __shared__ uint4 codes[];
    __shared__ u32 largest[8 * COLUMNS];
    int pitch = steps * x_step + 4;
    if (threadIdx.x < 8 * COLUMNS) largest[threadIdx.x] = 0;
    __syncthreads();
#endif
#pragma unroll
    for (int block = 0; block < COLUMNS; block++) {
        u64 row = min(8 * block + group, m - 1);
        u64 own = start * x_step + (BYTES ? quarter : place(0, quarter) / 8);
#if NARROWS
        x_at[block] = codes + row * pitch + own;
#else
        x_at[block] = (const uint4*)x + row * steps * x_step + own;
#endif
    }
    constexpr int apart = (place(1, 0) - place(0, 0)) / 8;

    // Steps `offset` strides from where the pointers are.
    auto load = [&](Step& step, int offset) {
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (int i = 0; i < VECTORS; i++)
                step.weights[tile][i] = stream(weights_at[tile] + offset * STRIDE * 32 * VECTORS + 32 * i);
            const char* from = scales_at[tile] + offset * STRIDE * scale_bytes;
#if STORED == NVFP4
            step.scales[tile] = *(const u16*)from;
#elif STORED == NF4
            uint2 both = *(const uint2*)from;
            step.scales[tile] = both.x, step.more[tile] = both.y;
#elif GROUP != 0
            step.scales[tile] = *(const u32*)from;
#endif
#if GROUP == 32 && STORED != MXFP4
            step.more[tile] = *(const u32*)(from + 32);
#elif STORED == INT4_ZERO
            step.more[tile] = *(const u8*)(zeros_at[tile] + offset * STRIDE * zero_bytes);
#endif
        }
    };

    Sum sums[TILES][COLUMNS][4];
#pragma unroll
    for (int i = 0; i < TILES * COLUMNS * 4; i++) ((Sum*)sums)[i] = 0;

#if BYTES
    auto multiply = [&](const Step& step, int offset) {
#pragma unroll
        for (int block = 0; block < COLUMNS; block++) {
            uint4 input = x_at[block][offset * STRIDE * x_step];
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                mma_bytes(sums[tile][block], step.weights[tile][0], input.x, input.y);
                mma_bytes(sums[tile][block], step.weights[tile][1], input.z, input.w);
            }
        }
    };
#else
    auto multiply = [&](const Step& step, int offset) {
        uint4 inputs[COLUMNS][2];
        float bias[2][COLUMNS][4];
#pragma unroll
        for (int block = 0; block < COLUMNS; block++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint4 input = x_at[block][offset * STRIDE * x_step + half * apart];
                if (LIFTED) {
                    const u32 up = BOTH(0x5f80), none = BOTH(0x8000);
                    input = make_uint4(fma2(input.x, up, none), fma2(input.y, up, none), fma2(input.z, up, none),
                                       fma2(input.w, up, none));
                }
                inputs[block][half] = input;
                float(&sum)[4] = bias[GROUP == 32 ? half : 0][block];
                if (APART && (half == 0 || GROUP == 32)) sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
                if (BIASED) {
                    const u32 constant = HALF ? BOTH(0xe408) : BOTH(0xc308), all[4] = {constant, constant, constant, constant};
                    mma(sum, all, input.x, input.y);
                    mma(sum, all, input.z, input.w);
                }
            }
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            u32 zero[2];
            u32 scale[2] = {RAISED, RAISED};
#if STORED == INT4_ZERO && GROUP == 32
            u32 both = *(const u16*)(zeros_at[tile] + offset * STRIDE * zero_bytes);
#elif STORED == INT4_ZERO
            u32 both = step.more[tile];
#elif STORED == NVFP4
            scales_nvfp4(step.scales[tile], scale);
#endif
#if STORED == NF4
            // All of a step's lookups first, so that none waits for the one before.
            u32 wide[4][4];
#pragma unroll
            for (int at = 0; at < 4; at++) widen(step.weights[tile], at, zero, scale, wide[at]);
#endif
            float parts[COLUMNS][4];
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int i = 0; i < COLUMNS * 4; i++)
                    if (APART && (half == 0 || GROUP == 32)) ((float*)parts)[i] = ((float*)bias[GROUP == 32 ? half : 0])[i];
#if STORED == INT4_ZERO
                // -(128 + zero), or -(1024 + zero) as half: the zero point is the low bits of the mantissa.
                zero[0] = BOTH((both >> (GROUP == 32 ? 8 * half : 0) & 15) | (HALF ? 0xe400 : 0xc300));
                zero[1] = BOTH((both >> (GROUP == 32 ? 8 * half + 4 : 4) & 15) | (HALF ? 0xe400 : 0xc300));
#endif
#pragma unroll
                for (int quad = 0; quad < 2; quad++) {
#if STORED == NF4
                    const u32(&w)[4] = wide[2 * half + quad];
#else
                    u32 w[4];
                    widen(step.weights[tile], 2 * half + quad, zero, scale, w);
#endif
#pragma unroll
                    for (int block = 0; block < COLUMNS; block++) {
                        uint4 input = inputs[block][half];
                        u32 b0 = quad ? input.z : input.x, b1 = quad ? input.w : input.y;
                        mma(APART ? parts[block] : sums[tile][block], w, b0, b1);
                    }
                }
                if (!APART || (GROUP != 32 && half == 0)) continue;
                float factors[2];
#if STORED == MXFP4
                factors[0] = __uint_as_float((half ? step.scales[tile] << 7 : step.scales[tile] << 23) & 0x7f800000);
                factors[1] = __uint_as_float((half ? step.scales[tile] >> 1 : step.scales[tile] << 15) & 0x7f800000);
#elif STORED == NF4
                factors[0] = __uint_as_float(step.scales[tile]), factors[1] = __uint_as_float(step.more[tile]);
#else
                u32 pair = GROUP == 32 && half ? step.more[tile] : step.scales[tile];
                factors[0] = __uint_as_float(pair << 16), factors[1] = __uint_as_float(pair & 0xffff0000);
#endif
#pragma unroll
                for (int block = 0; block < COLUMNS; block++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        sums[tile][block][i] = fmaf(parts[block][i], factors[i / 2], sums[tile][block][i]);
            }
        }
    };

#endif

    // Two sets of steps, one on its way while the other is multiplied. `at` is where the pointers are.
    Step ping[DEPTH], pong[DEPTH];
    int at = start;
    auto fetch = [&](Step(&set)[DEPTH], int offset) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            if (at + (offset + i) * STRIDE < steps) load(set[i], offset + i);
    };
    auto consume = [&](Step(&set)[DEPTH]) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            if (at + i * STRIDE < steps) multiply(set[i], i);
        at += DEPTH * STRIDE;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            weights_at[tile] += DEPTH * STRIDE * 32 * VECTORS;
            scales_at[tile] += DEPTH * STRIDE * scale_bytes;
            zeros_at[tile] += DEPTH * STRIDE * zero_bytes;
        }
#pragma unroll
        for (int block = 0; block < COLUMNS; block++) x_at[block] += DEPTH * STRIDE * x_step;
    };
    fetch(ping, 0);
    // Results of this thread, up to ROUNDS: rows of W side by side in a warp, so that what is written is side by side too.
    constexpr int own = COLUMNS * 128, step = FUNCTION == GATED ? 2 : 1;
    constexpr int ROUNDS = (TILES / step * own + LANES * SPLIT - 1) / (LANES * SPLIT);
    struct Result {
        int at, tile, column, out;
        bool there;
    };
    auto result_of = [&](int round) {
        int at = threadIdx.x + (part + round * SPLIT) * LANES, tile = at / own * step;
        int column = at / 16 % (8 * COLUMNS), out = (first + tile) / step * 16 + at % 16;
        bool there = at < TILES / step * own && column < m && out < rows && first + tile < tiles;
        return Result{at % own, tile, column, out, there};
    };
#if ADDS
    float before[ROUNDS], norms[ROUNDS];
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        Result to = result_of(round);
        norms[round] = to.there ? norm[to.out] : 0;
    }
#endif
#if !EXPERTS
    // Weights are on their way; x may still be written.
    chain_wait();
#endif
#if NARROWS
    narrow_rows<LANES>((const uint4*)x, codes, largest, m, steps, pitch);
#endif
#if ADDS
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        Result to = result_of(round);
        before[round] = to.there ? stream_in[(u64)to.column * rows + to.out] : 0;
    }
#endif
#if FACTORED
    // A warp looks after row `warp` of x, and what comes of its squares at once is on its way while products run.
    __shared__ float factors[8 * COLUMNS];
    int parts = steps * 4;
    float4 early[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int at = (lane + 32 * i) * 4;
        early[i] = make_float4(0, 0, 0, 0);
        if (warp < m && at < parts) early[i] = *(const float4*)(squares + warp * parts + at);
    }
#endif
    while (at < steps) {
        fetch(pong, DEPTH);
        consume(ping);
        if (at >= steps) break;
        fetch(ping, DEPTH);
        consume(pong);
    }

#if FACTORED
    for (int row = warp; row < m; row += WARPS) {
        float sum = 0;
        if (row == warp)
#pragma unroll
            for (int i = 0; i < 2; i++) sum += early[i].x + early[i].y + early[i].z + early[i].w;
        for (int at = (row == warp ? 256 : 0) + lane; at < parts; at += 32) sum += squares[row * parts + at];
        sum = warp_sum(sum);
        if (lane == 0) factors[row] = rsqrtf(sum / (16 * parts) + epsilon);
    }
#endif
    // The warps' sums, one word per lane and value; then the blocks'.
    __shared__ Sum shares[WARPS][TILES * COLUMNS * 4][32];
#pragma unroll
    for (int i = 0; i < TILES * COLUMNS * 4; i++) shares[warp][i][lane] = ((Sum*)sums)[i];
    __syncthreads();
    // Value `at` of a tile.
    auto total = [&](int tile, int at, bool all) {
        int column = at / 16 % (8 * COLUMNS), row = at % 16;
        int value = (tile * COLUMNS + column / 8) * 4 + row / 8 * 2 + column % 2;
        int owner = row % 8 * 4 + column % 8 / 2;
        Sum sum = 0;
#pragma unroll
        for (int i = 0; i < (SPLIT > 1 && all ? SPLIT : WARPS); i++)
            sum += SPLIT > 1 && all ? shared_of(&shares[0][value][owner], i) : shares[i][value][owner];
        if (SPLIT > 1 && !all) shares[0][value][owner] = sum;
        float scale = tensor * LOWERED;
        if (STORED == INT8 || STORED == E4M3 || BYTES) scale *= from_bf16(((const u16*)scales)[(first + tile) * 16 + row]);
#if NARROWS
        scale *= from_bf16((u16)row_scale_of(largest[column]));
#elif ROUNDED
        scale *= from_bf16(x_scales[column]);
#endif
#if FACTORED
        scale *= factors[column];
#endif
        return (float)sum * scale;
    };
    if (SPLIT > 1) {
        for (int at = threadIdx.x; at < TILES * own; at += LANES)
            if (at / 16 % (8 * COLUMNS) < m && first + at / own < tiles) total(at / own, at % own, false);
        cluster_wait();
    }
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        Result to = result_of(round);
        if (!to.there) continue;
        float result = total(to.tile, to.at, true);
        if (FUNCTION != IDENTITY) result = result / (1.0f + __expf(-result));
        if (FUNCTION == GATED) result *= total(to.tile + 1, to.at, true);
        u64 place = (u64)to.column * rows + to.out;
#if ADDS
        float sum = before[round] + result, square = sum * sum;
        stream_out[place] = sum;
        result = sum * norms[round];
        // Rows are whole sixteens, so that half a warp is there or is not.
#pragma unroll
        for (int far = 8; far > 0; far /= 2) square += __shfl_xor_sync(0xffffu << (lane & 16), square, far);
        if (to.out % 16 == 0) squares_out[to.column * (rows / 16) + to.out / 16] = square;
#endif
        if (WIDE)
            ((float*)y)[place] = result;
        else
            y[place] = to_16(result);
    }
    if (SPLIT > 1) cluster_wait();
    if (STORED == NF4) __syncthreads();
    }
}
