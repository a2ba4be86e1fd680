// Weights as they are packed for tensor units, and how they are widened: what products of few rows and of many share.
//
// A tile is 16 rows of W by 64 columns, the first operand of mma.m16n8k16 four times (or of m16n8k32 twice). Every lane
// finds the numbers of its own fragments in 16-byte words, 512 contiguous bytes a warp. Which column a number stands for
// is free as long as both operands agree: lane (group, quarter) has columns `place(half, quarter) .. + 8`, for half 0 and 1.

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
#ifndef TILED
#define TILED 0
#endif
#define LIFTED (STORED == MXFP4 && !HALF && TENSOR_16 && !TILED)

// What sums of bfloat16 are multiplied with because weights were kept too small: an integer of up to eight bits is the bits of a
// bfloat16 that is 2^133 times smaller (its lowest exponent has no hidden bit, and is as dense as the next), but one factor mends
// 2^127 at most.
#define LOWERED (HALF ? 1.0f : STORED == INT8 ? 64.0f : JOINED ? 0x1p49f : TILED && (STORED == INT4 || STORED == INT4_ZERO) ? 64.0f : 1.0f)
#ifndef JOINED
#define JOINED 0
#endif

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
        // 128 + value, as the bits of a bfloat16, is 2^133 times too small, and none of its eight bits is lost.
        w[2 * i] = fma2(word & 0x00ff00ff ^ KEPT(0x00800080), BOTH(0x7f00), BOTH(0xc000));
        w[2 * i + 1] = fma2(word >> 8 & 0x00ff00ff ^ KEPT(0x00800080), BOTH(0x7f00), BOTH(0xc000));
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

#if STORED == NVFP4
// A lane's two scales, E4M3, as 16 bit, and as much again as two 16-bit factors can carry of the elements' own bias.
static __device__ __forceinline__ void scales_nvfp4(u32 stored, u32 (&scale)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 bits = BOTH(i ? stored >> 8 : stored & 0xff);
        u32 wide = fma2(bits << (HALF ? 7 : 4), HALF ? BOTH(0x5c00) : BOTH(0x7b80), BOTH(0x8000));
        scale[i] = fma2(wide, HALF ? BOTH(0x5800) : BOTH(0x7a80), BOTH(0x8000));
    }
}
#endif

// What E2M1's bits are multiplied with, as far as 16 bit can carry it.
#define RAISED (HALF ? BOTH(0x7400) : BOTH(0x5f80))

// Bytes of scales and zero points per tile and step of 64 columns; groups of 128 share them between two steps.
#define SCALE_BYTES (STORED == INT4 || STORED == INT4_ZERO ? 32 * 64 / GROUP : STORED == NF4 || STORED == NVFP4 ? 64 : STORED == MXFP4 ? 32 : 0)
#define ZERO_BYTES (STORED == INT4_ZERO ? 8 * 64 / GROUP : 0)

#if STORED == NF4
// Every thread has bytes of its own; the rotation keeps its stores and its neighbours' in different banks.
static __device__ __forceinline__ void fill_nf4(int thread, int threads) {
    for (int byte = thread % 256; byte < 256; byte += threads) {
        u32 pair = pair_16(nf4[byte % 16], nf4[byte / 16]);
        for (int i = thread / 256; i < 8; i += (threads + 255) / 256)
            *(uint4*)(table + 32 * byte + (i + byte) % 8 * 4) = make_uint4(pair, pair, pair, pair);
    }
}
#endif
