// Weights from plain rows, as files have them, into the order that `gemv_packed.cu` reads, and from there to rows of 16-bit
// numbers, for products of many rows. `packed.cuh` says which lane has which number.
//
// Rows of W repeat after `distinct`. Where TURNS, tiles of the first half of the rows and of the second take turns, so that
// one block has a gate and what it multiplies.
//
//   STORED, GROUP, HALF as in gemv_packed.cu; TURNS

#define TILE_THREADS 256

#define EIGHT_BITS (STORED == INT8 || STORED == E4M3 || BYTES)
#define CODE_BITS (STORED == SIXTEEN ? 16 : EIGHT_BITS ? 8 : 4)

// The row that place `row` of tile `tile` stands for, and whether there is one.
static __device__ __forceinline__ int source_row(int tile, int row, int n, bool& there) {
#if TURNS
    int own = tile / 2 * 16 + row;
    there = own < n / 2;
    return tile % 2 * (n / 2) + own;
#else
    int own = tile * 16 + row;
    there = own < n;
    return own;
#endif
}

static __device__ __forceinline__ u32 code_at(const u8* codes, u64 row, int column, int k) {
    if (column >= k) return 0;
    u64 bytes = ((u64)k * CODE_BITS + 7) / 8;
    const u8* from = codes + row * bytes;
#if CODE_BITS == 16
    return ((const u16*)from)[column];
#elif CODE_BITS == 8
    return from[column];
#else
    return from[column / 2] >> 4 * (column % 2) & 15;
#endif
}

static __device__ __forceinline__ u32 spread_e4m3(u32 code, int i) {
    u32 sign = code >> 7, rest = code & 0x7f;
    return i % 2 == 0 ? sign << 15 | rest << 4 : sign << 11 | (rest >> 4) << 12 | (rest & 15);
}

static __device__ __forceinline__ u32 spread_e2m1(u32 code, int i) {
    const int magnitude[4] = {6, 3, 0, 9}, sign[4] = {15, 12, 14, 13};
    return (code & 7) << magnitude[i] | (code >> 3 & 1) << sign[i];
}

#if !BYTES
// Puts pair (at, i) of a lane's numbers where `widen` takes it from.
static __device__ __forceinline__ void put(u32 (&words)[VECTORS * 4], int at, int i, const u32 (&codes)[2]) {
    u32 pair[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
#if STORED == SIXTEEN || STORED == NF4
        pair[j] = codes[j];
#elif STORED == INT8
        pair[j] = codes[j] << 8 * (i % 2);
#elif STORED == E4M3
        pair[j] = spread_e4m3(codes[j], i);
#elif STORED == INT4
        pair[j] = (codes[j] ^ 8) << 4 * i;
#elif STORED == INT4_ZERO
        pair[j] = codes[j] << 4 * i;
#else
        pair[j] = spread_e2m1(codes[j], i);
#endif
    }
#if STORED == NF4
    words[at] |= (pair[0] | pair[1] << 4) << 8 * i;
#elif STORED == SIXTEEN
    words[at * 4 + i] = pair[0] | pair[1] << 16;
#elif STORED == INT8 || STORED == E4M3
    words[at / 2 * 4 + at % 2 * 2 + i / 2] |= pair[0] | pair[1] << 16;
#else
    words[at] |= pair[0] | pair[1] << 16;
#endif
}
#endif

// One thread per tile, step and lane.
extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    pack_codes(const u8* __restrict__ codes, uint4* __restrict__ out, int n, int k, int distinct, int tiles, int steps) {
    u64 item = (u64)blockIdx.x * TILE_THREADS + threadIdx.x;
    if (item >= (u64)tiles * steps * 32) return;
    int lane = (int)(item % 32), step = (int)(item / 32 % steps), tile = (int)(item / 32 / steps);
    int group = lane / 4, quarter = lane % 4;
    u32 words[VECTORS * 4];
#pragma unroll
    for (int i = 0; i < VECTORS * 4; i++) words[i] = 0;
#pragma unroll
    for (int at = 0; at < (BYTES ? 2 : 4); at++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bool there;
            u64 row = source_row(tile, group + 8 * (i % 2), n, there) % distinct;
#if BYTES
            int column = step * 64 + 16 * quarter + 8 * at + 4 * (i / 2);
            for (int byte = 0; byte < 4; byte++)
                if (there) words[at * 4 + i] |= code_at(codes, row, column + byte, k) << 8 * byte;
#else
            int column = step * 64 + place(at / 2, quarter) + 4 * (at % 2) + 2 * (i / 2);
            u32 pair[2];
#pragma unroll
            for (int j = 0; j < 2; j++) pair[j] = there ? code_at(codes, row, column + j, k) : 0;
            put(words, at, i, pair);
#endif
        }
    out += ((u64)tile * steps + step) * 32 * VECTORS + lane;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) out[32 * i] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
}

// Scales and zero points; one thread per tile and step. `groups` per row of W as it is stored, a line of zero points being
// whole bytes.
extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    pack_scales(const u8* __restrict__ scales, const u8* __restrict__ zeros, u8* __restrict__ out, u8* __restrict__ out_zeros, int n,
                int groups, int distinct, int tiles, int steps) {
    u64 item = (u64)blockIdx.x * TILE_THREADS + threadIdx.x;
    if (item >= (u64)tiles * steps) return;
    int step = (int)(item % steps), tile = (int)(item / steps);
    bool there;
    auto row = [&](int at) { return (u64)source_row(tile, at, n, there) % distinct; };
    auto two = [&](int at, int group) { u64 own = row(at); return there && group < groups ? ((const u16*)scales)[own * groups + group] : (u16)0; };
    auto one = [&](int at, int group) { u64 own = row(at); return there && group < groups ? (u32)scales[own * groups + group] : 0; };
    auto zero = [&](int at, int group) {
        u64 own = row(at);
        return there && group < groups ? (u32)(zeros[own * ((groups + 1) / 2) + group / 2] >> 4 * (group % 2) & 15) : 0;
    };
#if STORED == INT4 || STORED == INT4_ZERO
    if (GROUP == 128 && step % 2) return;
    constexpr int count = GROUP == 32 ? 2 : 1;
    int first = GROUP == 128 ? step / 2 : count * step;
    u64 place = GROUP == 128 ? (u64)tile * ((steps + 1) / 2) + step / 2 : item * count;
    for (int i = 0; i < count; i++)
        for (int at = 0; at < 16; at++) ((u16*)out)[(place + i) * 16 + at] = two(at / 2 + 8 * (at % 2), first + i);
#if STORED == INT4_ZERO
    for (int at = 0; at < 8; at++)
        for (int i = 0; i < count; i++) out_zeros[place * 8 + at * count + i] = (u8)(zero(at, first + i) | zero(at + 8, first + i) << 4);
#endif
#elif STORED == NF4
    for (int at = 0; at < 16; at++) {
        u64 own = row(at / 2 + 8 * (at % 2));
        ((u32*)out)[item * 16 + at] = there && step < groups ? ((const u32*)scales)[own * groups + step] : 0;
    }
#elif STORED == MXFP4
    // Powers of two, larger by what the kernel's x and weights leave over.
    for (int at = 0; at < 8; at++)
        for (int i = 0; i < 4; i++) out[item * 32 + at * 4 + i] = (u8)min(one(at + 8 * (i % 2), 2 * step + i / 2) + (HALF ? 0 : 62), 254u);
#elif STORED == NVFP4
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 2; i++) out[item * 64 + lane * 2 + i] = (u8)one(lane / 4 + 8 * i, 4 * step + lane % 4);
#elif STORED != SIXTEEN
    if (step) return;
    for (int at = 0; at < 16; at++) ((u16*)out)[tile * 16 + at] = two(at, 0);
#endif
}

#if BYTES
// The same for `gemm_parts.cuh`: what is multiplied as it is stored, columns in mma's own order, four tiles of a unit of 128 columns
// side by side. Scales are of rows, and elsewhere. One thread per tile, unit and lane; there are whole fours of tiles.
extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    pack_tiled(const u8* __restrict__ codes, const u8* __restrict__, const u8* __restrict__, u8* __restrict__ out, int n, int k, int,
               int distinct, int tiles, int units) {
    u64 item = (u64)blockIdx.x * TILE_THREADS + threadIdx.x;
    if (item >= (u64)tiles * units * 32) return;
    int lane = (int)(item % 32), unit = (int)(item / 32 % units), tile = (int)(item / 32 / units);
    uint4* to = (uint4*)out + (((u64)(tile / 4) * units + unit) * 4 + tile % 4) * 128 + lane;
    for (int at = 0; at < 4; at++) {
        u32 words[4];
        for (int i = 0; i < 4; i++) {
            bool there;
            u64 row = source_row(tile, lane / 4 + 8 * (i % 2), n, there) % distinct;
            words[i] = 0;
            for (int byte = 0; byte < 4; byte++) {
                int column = unit * 128 + 32 * at + 4 * (lane % 4) + 16 * (i / 2) + byte;
                if (there) words[i] |= code_at(codes, row, column, k) << 8 * byte;
            }
        }
        to[32 * at] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}
#else
// The same for `gemm_parts.cuh`: columns in mma's own order, and all that belongs to four tiles and two units side by side,
// weights, scales, zero points. One thread per tile, unit and lane; there are whole fours of tiles and of units.
extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    pack_tiled(const u8* __restrict__ codes, const u8* __restrict__ scales, const u8* __restrict__ zeros, u8* __restrict__ out, int n, int k,
               int groups, int distinct, int tiles, int units) {
    u64 item = (u64)blockIdx.x * TILE_THREADS + threadIdx.x;
    if (item >= (u64)tiles * units * 32) return;
    int lane = (int)(item % 32), unit = (int)(item / 32 % units), tile = (int)(item / 32 / units);
    int group = lane / 4, quarter = lane % 4, own = unit % 2 * 4 + tile % 4;
    constexpr u64 weights = 8 * 512 * VECTORS, chunk = weights + 8 * (SCALE_BYTES + ZERO_BYTES);
    u8* to = out + ((u64)(tile / 4) * (units / 2) + unit / 2) * chunk;
    u32 words[VECTORS * 4];
#pragma unroll
    for (int i = 0; i < VECTORS * 4; i++) words[i] = 0;
#pragma unroll
    for (int at = 0; at < 4; at++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bool there;
            u64 row = source_row(tile, group + 8 * (i % 2), n, there) % distinct;
            u32 pair[2];
#pragma unroll
            for (int j = 0; j < 2; j++) pair[j] = there ? code_at(codes, row, unit * 64 + 16 * at + 2 * quarter + 8 * (i / 2) + j, k) : 0;
            put(words, at, i, pair);
        }
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        *(uint4*)(to + own * 512 * VECTORS + (32 * i + lane) * 16) = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
    if (lane) return;
    bool there;
    auto row = [&](int at) { return (u64)source_row(tile, at, n, there) % distinct; };
    auto two = [&](int at, int which) { u64 of = row(at); return there && which < groups ? ((const u16*)scales)[of * groups + which] : (u16)0; };
    auto one = [&](int at, int which) { u64 of = row(at); return there && which < groups ? (u32)scales[of * groups + which] : 0; };
    auto zero = [&](int at, int which) {
        u64 of = row(at);
        return there && which < groups ? (u32)(zeros[of * ((groups + 1) / 2) + which / 2] >> 4 * (which % 2) & 15) : 0;
    };
    u8 *scaled = to + weights, *zeroed = to + weights + 8 * SCALE_BYTES;
#if STORED == INT4 || STORED == INT4_ZERO
    if (GROUP == 128 && unit % 2) return;
    constexpr int count = GROUP == 32 ? 2 : 1;
    int first = GROUP == 128 ? unit / 2 : count * unit, place = GROUP == 128 ? tile % 4 : own;
    for (int i = 0; i < count; i++)
        for (int at = 0; at < 16; at++) ((u16*)scaled)[(place * count + i) * 16 + at] = two(at / 2 + 8 * (at % 2), first + i);
#if STORED == INT4_ZERO
    for (int at = 0; at < 8; at++)
        for (int i = 0; i < count; i++) zeroed[(place * 8 + at) * count + i] = (u8)(zero(at, first + i) | zero(at + 8, first + i) << 4);
#endif
#elif STORED == NF4
    for (int at = 0; at < 16; at++) {
        u64 of = row(at / 2 + 8 * (at % 2));
        ((u32*)scaled)[own * 16 + at] = there && unit < groups ? ((const u32*)scales)[of * groups + unit] : 0;
    }
#elif STORED == MXFP4
    for (int at = 0; at < 8; at++)
        for (int i = 0; i < 4; i++) scaled[own * 32 + at * 4 + i] = (u8)min(one(at + 8 * (i % 2), 2 * unit + i / 2) + (HALF ? 0 : 62), 254u);
#elif STORED == NVFP4
    for (int at = 0; at < 16; at++)
        for (int i = 0; i < 4; i++) scaled[own * 64 + at * 4 + i] = (u8)one(at / 2 + 8 * (at % 2), 4 * unit + i);
#endif
}

static __constant__ float levels[16] = {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
                                        -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
                                        0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
                                        0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};
#endif

// Number (at, i, j) of a lane without its scale.
static __device__ __forceinline__ float number(const u32* words, int at, int i, int j, u32 zero) {
#if STORED == SIXTEEN
    return j ? high_16(words[at * 4 + i]) : low_16(words[at * 4 + i]);
#elif STORED == INT8
    return (float)(signed char)(words[at / 2 * 4 + at % 2 * 2 + i / 2] >> (8 * (i % 2) + 16 * j));
#elif STORED == E4M3
    u32 half = words[at / 2 * 4 + at % 2 * 2 + i / 2] >> 16 * j;
    u32 code = i % 2 == 0 ? (half >> 8 & 0x80) | (half >> 4 & 0x7f) : (half >> 4 & 0x80) | (half >> 8 & 0x70) | (half & 15);
    return from_e4m3((u8)code);
#elif STORED == INT4
    return (float)(int)(words[at] >> (4 * i + 16 * j) & 15) - 8.0f;
#elif STORED == INT4_ZERO
    return (float)((int)(words[at] >> (4 * i + 16 * j) & 15) - (int)zero);
#elif STORED == NF4
    return levels[words[at] >> (8 * i + 4 * j) & 15];
#elif BYTES
    return 0;
#else
    const int magnitude[4] = {6, 3, 0, 9}, sign[4] = {15, 12, 14, 13};
    u32 half = words[at] >> 16 * j, code = half >> magnitude[i] & 7;
    // E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
    float value = code < 2 ? 0.5f * code : __uint_as_float((code / 2 + 126) << 23 | (code & 1) << 22);
    return half >> sign[i] & 1 ? -value : value;
#endif
}

// From packed weights to rows of 16-bit numbers, `k` apart; one thread per tile, step and lane. `tensor` as for the product.
extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    unpack(const uint4* __restrict__ weights, const u8* __restrict__ scales, const u8* __restrict__ zeros, u16* __restrict__ out, int n,
           int k, int tiles, int steps, float tensor) {
    u64 item = (u64)blockIdx.x * TILE_THREADS + threadIdx.x;
    if (item >= (u64)tiles * steps * 32) return;
    int lane = (int)(item % 32), step = (int)(item / 32 % steps), tile = (int)(item / 32 / steps);
    int group = lane / 4, quarter = lane % 4;
    u64 own = (u64)tile * steps + step;
    u32 words[VECTORS * 4];
#pragma unroll
    for (int i = 0; i < VECTORS; i++) *(uint4*)(words + 4 * i) = weights[(own * VECTORS + i) * 32 + lane];
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int parity = 0; parity < 2; parity++) {
            bool there;
            u64 row = source_row(tile, group + 8 * parity, n, there);
            float scale = tensor;
            u32 zero = 0;
#if STORED == INT4 || STORED == INT4_ZERO
            constexpr int count = GROUP == 32 ? 2 : 1;
            u64 at = GROUP == 128 ? (u64)tile * ((steps + 1) / 2) + step / 2 : own * count;
            int which = GROUP == 32 ? half : 0;
            scale *= from_bf16(((const u16*)scales)[(at + which) * 16 + group * 2 + parity]);
#if STORED == INT4_ZERO
            zero = zeros[at * 8 + group * count + which] >> 4 * parity & 15;
#endif
#elif STORED == NF4
            scale *= __uint_as_float(((const u32*)scales)[own * 16 + group * 2 + parity]);
#elif STORED == MXFP4
            scale *= exp2f((float)scales[own * 32 + group * 4 + half * 2 + parity] - (HALF ? 127.0f : 189.0f));
#elif STORED == NVFP4
            scale *= from_e4m3(scales[own * 64 + lane * 2 + parity]) / (HALF ? 128.0f : 256.0f);
#elif STORED == INT8 || STORED == E4M3
            scale *= from_bf16(((const u16*)scales)[tile * 16 + group + 8 * parity]);
#endif
            float values[8];
#pragma unroll
            for (int at8 = 0; at8 < 8; at8++) values[at8] = number(words, 2 * half + at8 / 4, parity + 2 * (at8 / 2 % 2), at8 % 2, zero) * scale;
            int column = step * 64 + place(half, quarter);
            if (!there) continue;
            u16* to = out + row * k + column;
            if (k % 8 == 0 && column + 8 <= k)
                *(uint4*)to = make_uint4(pair_16(values[0], values[1]), pair_16(values[2], values[3]), pair_16(values[4], values[5]),
                                         pair_16(values[6], values[7]));
            else
                for (int i = 0; i < 8; i++)
                    if (column + i < k) to[i] = to_16(values[i]);
        }
}
