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

#define BYTES (STORED == BOTH_INT8 || STORED == BOTH_E4M3)
#define VECTORS (STORED == SIXTEEN ? 4 : STORED == INT8 || STORED == E4M3 || BYTES ? 2 : 1)
// NVFP4 has a scale per 16 columns: with all 16 of a lane side by side it needs one scale per row and step.
#define place(half, quarter) (STORED == NVFP4 ? 16 * (quarter) + 8 * (half) : 32 * (half) + 8 * (quarter))

static __device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
    u32 d;
#if HALF
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
#elif TENSOR_16
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
#else
    d = pair_16(fmaf(low_16(a), low_16(b), low_16(c)), fmaf(high_16(a), high_16(b), high_16(c)));
#endif
    return d;
}

// c += a b, with a: 16 x 16 numbers of W, b: 16 x 8 numbers of x.
static __device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if TENSOR_16 && HALF
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif TENSOR_16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    // The same sum by shuffles, for chips without these units.
    int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        u32 w[4], low[2], high[2];
#pragma unroll
        for (int i = 0; i < 4; i++) w[i] = __shfl_sync(0xffffffff, a[i], 4 * group + k);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            low[i] = __shfl_sync(0xffffffff, b0, 4 * (2 * quarter + i) + k);
            high[i] = __shfl_sync(0xffffffff, b1, 4 * (2 * quarter + i) + k);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 first = w[i / 2], second = w[i / 2 + 2];
            c[i] += low_16(first) * low_16(low[i % 2]) + high_16(first) * high_16(low[i % 2]) +
                    low_16(second) * low_16(high[i % 2]) + high_16(second) * high_16(high[i % 2]);
        }
    }
#endif
}

#if STORED == BOTH_INT8
typedef int Sum;
#else
typedef float Sum;
#endif

// The same with 32 columns of bytes.
static __device__ __forceinline__ void mma_bytes(Sum (&c)[4], uint4 a, u32 b0, u32 b1) {
#if STORED == BOTH_INT8 && TENSOR_16
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
#elif STORED == BOTH_E4M3 && TENSOR_16 && __CUDA_ARCH__ >= 890
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
#elif STORED == BOTH_INT8 || STORED == BOTH_E4M3
    int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
    u32 words[4] = {a.x, a.y, a.z, a.w};
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 w = __shfl_sync(0xffffffff, words[i / 2 + 2 * half], 4 * group + k);
                u32 x = __shfl_sync(0xffffffff, half ? b1 : b0, 4 * (2 * quarter + i % 2) + k);
                for (int byte = 0; byte < 4; byte++) {
                    u8 one = w >> 8 * byte, other = x >> 8 * byte;
                    if (STORED == BOTH_INT8)
                        c[i] += (int)(signed char)one * (int)(signed char)other;
                    else
                        c[i] += from_e4m3(one) * from_e4m3(other);
                }
            }
#endif
}

// A 16-bit number twice.
#define BOTH(bits) ((u32)(bits) * 0x10001u)
// A constant that the compiler cannot know, and so keeps in a register instead of making it again for every use: blocks
// have one thread in y.
#define KEPT(bits) ((bits) + blockDim.y - 1)
#define ONE (HALF ? BOTH(0x3c00) : BOTH(0x3f80))

#if STORED == NF4
// Pairs of NF4 values by the byte that stands for them, once per lane so that no two lanes meet in a bank: 32 KiB.
static __shared__ u32 table[256 * 32];
static __constant__ float nf4[16] = {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
                                     -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
                                     0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
                                     0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};
#endif

// MXFP4's bits as a bfloat16 are 2^126 too small. Its many weights stay so, the few x are made 2^64 larger, and packed scales
// are 2^62 larger; so x has to stay below 2^63, and scales below 2^66.
#define LIFTED (STORED == MXFP4 && !HALF && TENSOR_16)

// Fragment `at` of a step: the four pairs (row, +8, both again 2 columns on) that a lane multiplies.
static __device__ __forceinline__ void widen(const uint4 (&packed)[VECTORS], int at, const u32 (&zero)[2],
                                             const u32 (&scale)[2], u32 (&w)[4]) {
#if BYTES
    // What is stored is what is multiplied.
#elif STORED == SIXTEEN
    w[0] = packed[at].x, w[1] = packed[at].y, w[2] = packed[at].z, w[3] = packed[at].w;
#elif STORED == INT8 || STORED == E4M3
    uint4 both = packed[at / 2];
    u32 words[2] = {at % 2 ? both.z : both.x, at % 2 ? both.w : both.y};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 word = words[i];
#if STORED == INT8 && HALF
        // 1024 + 128 + value is the half 0x6400 | byte, with the byte's sign bit turned.
        u32 bits = word ^ 0x80808080;
        w[2 * i] = fma2(bits & 0x00ff00ff | KEPT(0x64006400), ONE, BOTH(0xe480));
        w[2 * i + 1] = fma2(bits >> 8 & 0x00ff00ff | KEPT(0x64006400), ONE, BOTH(0xe480));
#elif STORED == INT8
        // 128 + the low seven bits, less 128 or 256 as the sign bit says; each exact in eight bits.
        u32 high = word >> 8;
        w[2 * i] = fma2(word & 0x007f007f | KEPT(0x43004300), ONE, word & 0x00800080 | KEPT(0xc300c300));
        w[2 * i + 1] = fma2(high & 0x007f007f | KEPT(0x43004300), ONE, high & 0x00800080 | KEPT(0xc300c300));
#else
        // Sign, exponent and mantissa where bfloat16 has them; the bias is mended by a multiplication. Per half word the
        // first pair's seven bits are 10 to 4 under the sign in 15; the second's are 14 to 12 and 3 to 0, its sign in 11.
        u32 first = word & 0x87f087f0, second = word << 4 & 0x80f080f0 | word >> 4 & 0x07000700;
#if HALF
        first = first & 0x80008000 | first << 3 & 0x3f803f80, second = second & 0x80008000 | second << 3 & 0x3f803f80;
#endif
        w[2 * i] = fma2(first, HALF ? BOTH(0x5c00) : BOTH(0x7b80), BOTH(0x8000));
        w[2 * i + 1] = fma2(second, HALF ? BOTH(0x5c00) : BOTH(0x7b80), BOTH(0x8000));
#endif
    }
#else
    u32 word = at == 0 ? packed[0].x : at == 1 ? packed[0].y : at == 2 ? packed[0].z : packed[0].w;
#if STORED == INT4 || STORED == INT4_ZERO
    // 128 + code (1024 + code as half) is one bitwise operation. A zero point is one exact subtraction; the 136 (1032) of
    // symmetric codes is the same for all rows, and taken from the sums.
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] = word >> 4 * i & 0x000f000f | KEPT(HALF ? 0x64006400 : 0x43004300);
        if (STORED == INT4_ZERO) w[i] = fma2(w[i], ONE, zero[i % 2]);
    }
#elif STORED == NF4
    u32 own = (u32)__cvta_generic_to_shared(table) + threadIdx.x % 32 * 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 place = __byte_perm(word, 0, 0x4440 + i) * 128 + own;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w[i]) : "r"(place));
    }
#else
    // Per half word: magnitudes at bits 8, 5, 2 and 11 downwards, signs at bits 15, 12, 14 and 13.
    u32 bits[4];
#if HALF
    bits[0] = word << 3 & 0x0e000e00 | word & 0x80008000;
    bits[1] = word << 6 & 0x0e000e00 | word << 3 & 0x80008000;
    bits[2] = word << 9 & 0x0e000e00 | word << 1 & 0x80008000;
    bits[3] = word & 0x0e000e00 | word << 2 & 0x80008000;
#else
    bits[0] = word & 0x81c081c0;
    bits[1] = word << 3 & 0x81c081c0;
    bits[2] = word << 6 & 0x01c001c0 | word << 1 & 0x80008000;
    bits[3] = word >> 3 & 0x01c001c0 | word << 2 & 0x80008000;
#endif
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = LIFTED ? bits[i] : fma2(bits[i], scale[i % 2], BOTH(0x8000));
#endif
#endif
}

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
                 const u16* __restrict__ x, const u16* __restrict__ x_scales, u16* __restrict__ y, int rows, int steps, int m,
                 float tensor) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, quarter = lane % 4;
    int part = blockIdx.x % SPLIT, tiles = (rows + 15) / 16 * (FUNCTION == GATED ? 2 : 1);
    int start = part * WARPS + warp;
#if STORED == NF4
    // Every thread has bytes of its own; the rotation keeps its stores and its neighbours' in different banks.
    for (int byte = threadIdx.x % 256; byte < 256; byte += LANES) {
        u32 pair = pair_16(nf4[byte % 16], nf4[byte / 16]);
        for (int i = threadIdx.x / 256; i < 8; i += (LANES + 255) / 256)
            *(uint4*)(table + 32 * byte + (i + byte) % 8 * 4) = make_uint4(pair, pair, pair, pair);
    }
    __syncthreads();
    // A table is worth several tiles: there are no more blocks than fit the GPU at once.
    for (int first = blockIdx.x / SPLIT * TILES; first < tiles; first += gridDim.x / SPLIT * TILES) {
#else
    {
        int first = blockIdx.x / SPLIT * TILES;
#endif

    // Bytes of scales and zero points per tile and step of 64 columns; groups of 128 share them between two steps.
    constexpr int scale_bytes = STORED == INT4 || STORED == INT4_ZERO ? 32 * 64 / GROUP
                                : STORED == NF4             ? 64
                                : STORED == MXFP4             ? 32
                                : STORED == NVFP4             ? 64
                                                           : 0;
    constexpr int zero_bytes = STORED == INT4_ZERO ? 8 * 64 / GROUP : 0;
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
    // Sixteen bytes of x are eight columns, or sixteen.
    constexpr int x_step = BYTES ? 4 : 8;
    const uint4* x_at[COLUMNS];
#pragma unroll
    for (int block = 0; block < COLUMNS; block++) {
        u64 row = min(8 * block + group, m - 1);
        x_at[block] = (const uint4*)x + (row * steps + start) * x_step + (BYTES ? quarter : place(0, quarter) / 8);
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
            u32 scale[2] = {HALF ? BOTH(0x7400) : BOTH(0x5f80), HALF ? BOTH(0x7400) : BOTH(0x5f80)};
#if STORED == INT4_ZERO && GROUP == 32
            u32 both = *(const u16*)(zeros_at[tile] + offset * STRIDE * zero_bytes);
#elif STORED == INT4_ZERO
            u32 both = step.more[tile];
#elif STORED == NVFP4
            // E4M3 to 16 bit, and as much again as two 16-bit factors can carry of the elements' own bias.
#pragma unroll
            for (int i = 0; i < 2; i++) {
                u32 bits = BOTH(i ? step.scales[tile] >> 8 : step.scales[tile] & 0xff);
                u32 wide = fma2(bits << (HALF ? 7 : 4), HALF ? BOTH(0x5c00) : BOTH(0x7b80), BOTH(0x8000));
                scale[i] = fma2(wide, HALF ? BOTH(0x5800) : BOTH(0x7a80), BOTH(0x8000));
            }
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
    while (at < steps) {
        fetch(pong, DEPTH);
        consume(ping);
        if (at >= steps) break;
        fetch(ping, DEPTH);
        consume(pong);
    }

    // The warps' sums, one word per lane and value; then the blocks'.
    __shared__ Sum shares[WARPS][TILES * COLUMNS * 4][32];
#pragma unroll
    for (int i = 0; i < TILES * COLUMNS * 4; i++) shares[warp][i][lane] = ((Sum*)sums)[i];
    __syncthreads();
    // Value `at`: rows of W side by side in a warp, so that what is written is side by side too.
    auto total = [&](int tile, int at, bool all) {
        int column = at / 16 % (8 * COLUMNS), row = at % 16;
        int value = (tile * COLUMNS + column / 8) * 4 + row / 8 * 2 + column % 2;
        int owner = row % 8 * 4 + column % 8 / 2;
        Sum sum = 0;
#pragma unroll
        for (int i = 0; i < (SPLIT > 1 && all ? SPLIT : WARPS); i++)
            sum += SPLIT > 1 && all ? shared_of(&shares[0][value][owner], i) : shares[i][value][owner];
        if (SPLIT > 1 && !all) shares[0][value][owner] = sum;
        float scale = tensor;
        if (STORED == INT8 || STORED == E4M3 || BYTES) scale *= from_bf16(((const u16*)scales)[(first + tile) * 16 + row]);
        if (BYTES) scale *= from_bf16(x_scales[column]);
        return (float)sum * scale;
    };
    constexpr int own = COLUMNS * 128, step = FUNCTION == GATED ? 2 : 1;
    if (SPLIT > 1) {
        for (int at = threadIdx.x; at < TILES * own; at += LANES)
            if (at / 16 % (8 * COLUMNS) < m && first + at / own < tiles) total(at / own, at % own, false);
        cluster_wait();
    }
    for (int at = threadIdx.x + part * LANES; at < TILES / step * own; at += LANES * SPLIT) {
        int tile = at / own * step, column = at / 16 % (8 * COLUMNS), out = (first + tile) / step * 16 + at % 16;
        if (column >= m || out >= rows || first + tile >= tiles) continue;
        float result = total(tile, at % own, true);
        if (FUNCTION != IDENTITY) result = result / (1.0f + __expf(-result));
        if (FUNCTION == GATED) result *= total(tile + 1, at % own, true);
        y[(u64)column * rows + out] = to_16(result);
    }
    if (SPLIT > 1) cluster_wait();
    if (STORED == NF4) __syncthreads();
    }
}
