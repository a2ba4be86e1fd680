// Kernels that touch each element a few times: memory bounds them all, so each reads and writes 16 bytes at a time, with as
// many accesses on the way as registers allow. Numbers are 16 bit in memory and FP32 in between.
//
// Flat kernels see no rows: sums and activations. Row kernels hold a row in the registers of LANES threads, CHUNKS times 8
// numbers each: norms, softmax, lookups, and whatever is stored with a scale per row.
//
// Compiled for: LANES (a power of two) and CHUNKS with LANES * CHUNKS * 8 >= width, and BLOCK threads (LANES or a multiple of
// them and of 32), for row kernels; OUTPUT (SIXTEEN, or E4M3, E5M2 or INT8 with a scale per row) of those that can write with a
// scale; FLAT threads and PIECES of 8 numbers for each, for flat kernels; TURNED heads that a thread turns by the same angles;
// HALF as in common.

struct Eight {
    float at[8];
};

static __device__ __forceinline__ Eight unpacked(uint4 bits) {
    const u32 pair[4] = {bits.x, bits.y, bits.z, bits.w};
    Eight values;
#pragma unroll
    for (int i = 0; i < 4; i++) values.at[2 * i] = low_16(pair[i]), values.at[2 * i + 1] = high_16(pair[i]);
    return values;
}

static __device__ __forceinline__ uint4 packed(const Eight& values) {
    const float* at = values.at;
    return make_uint4(pair_16(at[0], at[1]), pair_16(at[2], at[3]), pair_16(at[4], at[5]), pair_16(at[6], at[7]));
}

// Eight numbers as they are stored, of which `count` are there. Only where rows start at 16 bytes are there `whole` ones. They
// are unpacked by whoever uses them: a load whose result is not looked at at once can wait beside others.
static __device__ __forceinline__ uint4 load(const u16* from, int count, bool whole) {
    if (count >= 8 && whole) return stream((const uint4*)from);
    u32 bits[8];
#pragma unroll
    for (int i = 0; i < 8; i++) bits[i] = i < count ? from[i] : 0;
    return make_uint4(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16, bits[4] | bits[5] << 16, bits[6] | bits[7] << 16);
}

static __device__ __forceinline__ void store(u16* to, const Eight& values, int count, bool whole) {
    if (count >= 8 && whole) {
        *(uint4*)to = packed(values);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < count) to[i] = to_16(values.at[i]);
}

static __device__ __forceinline__ float silu(float value) { return __fdividef(value, 1 + __expf(-value)); }

// Flat kernels.

template <bool TWO, bool ALL, class Does>
static __device__ __forceinline__ void flat_part(const u16* a, const u16* b, u16* out, u64 first, u64 count, Does does) {
    uint4 x[PIECES], y[PIECES];
    int left[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        u64 at = first + i * FLAT * 8;
        left[i] = ALL ? 8 : (int)min(count - min(at, count), (u64)8);
        x[i] = load(a + at, left[i], true);
        y[i] = TWO ? load(b + at, left[i], true) : x[i];
    }
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        Eight values = unpacked(x[i]), others = unpacked(y[i]);
#pragma unroll
        for (int j = 0; j < 8; j++) values.at[j] = does(values.at[j], others.at[j]);
        store(out + first + i * FLAT * 8, values, left[i], true);
    }
}

template <bool TWO, class Does>
static __device__ __forceinline__ void flat(const u16* a, const u16* b, u16* out, u64 count, Does does) {
    u64 start = (u64)blockIdx.x * (FLAT * PIECES * 8), first = start + threadIdx.x * 8;
    if (start + FLAT * PIECES * 8 <= count)
        flat_part<TWO, true>(a, b, out, first, count, does);
    else
        flat_part<TWO, false>(a, b, out, first, count, does);
}

extern "C" __global__ void __launch_bounds__(FLAT) residual(const u16* a, const u16* b, u16* out, u64 count) {
    flat<true>(a, b, out, count, [](float x, float y) { return x + y; });
}

extern "C" __global__ void __launch_bounds__(FLAT) activation(const u16* a, u16* out, u64 count) {
    flat<false>(a, nullptr, out, count, [](float x, float) { return silu(x); });
}

extern "C" __global__ void __launch_bounds__(FLAT) gated(const u16* gate, const u16* up, u16* out, u64 count) {
    flat<true>(gate, up, out, count, [](float x, float y) { return silu(x) * y; });
}

// Rotary positions: feature i with feature i + width / 2. `table` has width / 2 cosines, then as many sines, per position; a
// thread turns the same 8 pairs of up to TURNED heads of one token, which share them.
extern "C" __global__ void __launch_bounds__(FLAT)
    rope(const u16* x, const float* table, const u32* positions, u16* out, u64 tokens, int heads, int width) {
    int half = width / 2, parts = (half + 7) / 8, bundles = (heads + TURNED - 1) / TURNED;
    u64 index = (u64)blockIdx.x * FLAT + threadIdx.x;
    int part = (int)(index % parts), bundle = (int)(index / parts % bundles);
    u64 token = index / parts / bundles;
    if (token >= tokens) return;
    int at = 8 * part, count = min(half - at, 8);
    bool whole = half % 8 == 0;
    u64 row = token * heads + bundle * TURNED;
    uint4 lows[TURNED], highs[TURNED];
#pragma unroll
    for (int head = 0; head < TURNED; head++) {
        u64 start = (row + min(head, heads - 1 - bundle * TURNED)) * width + at;
        lows[head] = load(x + start, count, whole), highs[head] = load(x + start + half, count, whole);
    }
    const float* angles = table + (u64)positions[token] * width + at;
    float cosine[8], sine[8];
#pragma unroll
    for (int i = 0; i < 8; i++) cosine[i] = i < count ? angles[i] : 1, sine[i] = i < count ? angles[half + i] : 0;
#pragma unroll
    for (int head = 0; head < TURNED; head++) {
        u64 start = (row + head) * width + at;
        if (bundle * TURNED + head >= heads) continue;
        Eight low = unpacked(lows[head]), high = unpacked(highs[head]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float real = low.at[i], imaginary = high.at[i];
            low.at[i] = real * cosine[i] - imaginary * sine[i];
            high.at[i] = imaginary * cosine[i] + real * sine[i];
        }
        store(out + start, low, count, whole), store(out + start + half, high, count, whole);
    }
}

// Row kernels.

// Over the LANES threads of a row. A block has one row where a row has several warps.
template <class Join> static __device__ __forceinline__ float over_row(float value, Join join) {
#pragma unroll
    for (int far = 1; far < (LANES < 32 ? LANES : 32); far *= 2)
        value = join(value, __shfl_xor_sync(0xffffffff, value, far));
    if (LANES > 32) {
        constexpr int ROW_WARPS = (LANES + 31) / 32;
        __shared__ float parts[BLOCK / 32];
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
        __syncthreads();
        int first = threadIdx.x / 32 / ROW_WARPS * ROW_WARPS;
        value = parts[first];
#pragma unroll
        for (int warp = 1; warp < ROW_WARPS; warp++) value = join(value, parts[first + warp]);
    }
    return value;
}

static __device__ __forceinline__ float sum_of_row(float value) {
    return over_row(value, [](float x, float y) { return x + y; });
}

static __device__ __forceinline__ float largest_of_row(float value) {
    return over_row(value, [](float x, float y) { return fmaxf(x, y); });
}

// The rows of a block: which one, whether it is there, and where this thread's numbers are.
struct Place {
    u64 row;
    bool there, whole;
    int lane, width;

    __device__ __forceinline__ Place(u64 rows, int width) : width(width) {
        u64 asked = (u64)blockIdx.x * (BLOCK / LANES) + threadIdx.x / LANES;
        row = min(asked, rows - 1), there = asked < rows, whole = width % 8 == 0, lane = threadIdx.x % LANES;
    }

    // Loads of a warp are consecutive.
    __device__ __forceinline__ int start(int chunk) const { return (chunk * LANES + lane) * 8; }
    __device__ __forceinline__ int count(int chunk) const { return min(max(width - start(chunk), 0), 8); }

    // A row's numbers as they are stored, zeros past its end.
    __device__ __forceinline__ void read(uint4 (&bits)[CHUNKS], const u16* from, u64 row) const {
        from += row * width;
        if (whole) {
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk++)
                bits[chunk] = start(chunk) < width ? stream((const uint4*)(from + start(chunk))) : make_uint4(0, 0, 0, 0);
        } else {
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk++) bits[chunk] = load(from + start(chunk), count(chunk), whole);
        }
    }
};

#if OUTPUT != SIXTEEN
constexpr float LARGEST = OUTPUT == E4M3 ? TOP_E4M3 : OUTPUT == E5M2 ? TOP_E5M2 : TOP_INT8;

static __device__ __forceinline__ u32 code(float value) {
    return OUTPUT == E4M3 ? to_e4m3(value) : OUTPUT == E5M2 ? to_e5m2(value) : to_int8(value);
}

static __device__ __forceinline__ u32 codes(float a, float b, float c, float d) {
#if OUTPUT != INT8 && !defined(PORTABLE) && __CUDA_ARCH__ >= 890
#define NARROW(KIND) asm("{.reg .b16 low, high;\n" \
                         "cvt.rn.satfinite." KIND ".f32 low, %2, %1;\ncvt.rn.satfinite." KIND ".f32 high, %4, %3;\n" \
                         "mov.b32 %0, {low, high};}" : "=r"(four) : "f"(a), "f"(b), "f"(c), "f"(d))
    u32 four;
#if OUTPUT == E4M3
    NARROW("e4m3x2");
#else
    NARROW("e5m2x2");
#endif
    return four;
#else
    return code(a) | code(b) << 8 | code(c) << 16 | code(d) << 24;
#endif
}
#endif

// A finished row to row `to` of the output, with its scale where there is one: absmax / largest code, rounded up to bfloat16
// so that nothing is clipped; one for a row of zeros.
static __device__ __forceinline__ void finish(const Place& place, Eight (&values)[CHUNKS], u8* out, u16* scales, u64 to) {
    u64 row = to * place.width;
#if OUTPUT != SIXTEEN
    float largest = 0;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < place.count(chunk)) largest = fmaxf(largest, fabsf(values[chunk].at[i]));
    u32 scale = row_scale(largest_of_row(largest), LARGEST);
    float inverse = 1 / __uint_as_float(scale << 16);
    if (!place.there) return;
    if (place.lane == 0) scales[to] = (u16)scale;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        u8* at = out + row + place.start(chunk);
        float* value = values[chunk].at;
#pragma unroll
        for (int i = 0; i < 8; i++) value[i] *= inverse;
        uint2 eight = make_uint2(codes(value[0], value[1], value[2], value[3]), codes(value[4], value[5], value[6], value[7]));
        if (place.whole && place.count(chunk) == 8) {
            *(uint2*)at = eight;
            continue;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < place.count(chunk)) at[i] = (u8)((i < 4 ? eight.x : eight.y) >> i % 4 * 8);
    }
#else
    if (!place.there) return;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++)
        store((u16*)out + row + place.start(chunk), values[chunk], place.count(chunk), place.whole);
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    rms_norm(const u16* x, const u16* weight, u8* out, u16* scales, u64 rows, int width, float epsilon) {
    Place place(rows, width);
    uint4 bits[CHUNKS], weights[CHUNKS];
    Eight values[CHUNKS];
    float squares = 0;
    place.read(bits, x, place.row);
    place.read(weights, weight, 0);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        values[chunk] = unpacked(bits[chunk]);
#pragma unroll
        for (int i = 0; i < 8; i++) squares += values[chunk].at[i] * values[chunk].at[i];
    }
    float factor = rsqrtf(sum_of_row(squares) / width + epsilon);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        Eight by = unpacked(weights[chunk]);
#pragma unroll
        for (int i = 0; i < 8; i++) values[chunk].at[i] *= factor * by.at[i];
    }
    finish(place, values, out, scales, place.row);
}

extern "C" __global__ void __launch_bounds__(BLOCK) softmax(const u16* x, u8* out, u16* scales, u64 rows, int width) {
    Place place(rows, width);
    uint4 bits[CHUNKS];
    Eight values[CHUNKS];
    float largest = -1e30f, total = 0;
    place.read(bits, x, place.row);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        values[chunk] = unpacked(bits[chunk]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i >= place.count(chunk)) values[chunk].at[i] = -1e30f;
            largest = fmaxf(largest, values[chunk].at[i]);
        }
    }
    largest = largest_of_row(largest);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
        for (int i = 0; i < 8; i++) total += values[chunk].at[i] = __expf(values[chunk].at[i] - largest);
    float inverse = 1 / sum_of_row(total);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
        for (int i = 0; i < 8; i++) values[chunk].at[i] *= inverse;
    finish(place, values, out, scales, place.row);
}

// Row `from[i]` of `x` (or row i) to row `to[i]` of `out` (or row i): lookups in an embedding, writes to a KV cache.
extern "C" __global__ void __launch_bounds__(BLOCK)
    rows_moved(const u16* x, const u32* from, const u32* to, u8* out, u16* scales, u64 rows, int width) {
    Place place(rows, width);
    u64 source = from ? from[place.row] : place.row;
    uint4 bits[CHUNKS];
    Eight values[CHUNKS];
    place.read(bits, x, source);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) values[chunk] = unpacked(bits[chunk]);
    finish(place, values, out, scales, to ? to[place.row] : place.row);
}

// `silu(gate)`, times `up` where there is one, with a scale per row.
extern "C" __global__ void __launch_bounds__(BLOCK)
    rows_activated(const u16* gate, const u16* up, u8* out, u16* scales, u64 rows, int width) {
    Place place(rows, width);
    uint4 gates[CHUNKS], ups[CHUNKS];
    Eight values[CHUNKS];
    place.read(gates, gate, place.row);
    if (up) place.read(ups, up, place.row);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        values[chunk] = unpacked(gates[chunk]);
        Eight other = unpacked(ups[chunk]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float value = silu(values[chunk].at[i]);
            values[chunk].at[i] = up ? value * other.at[i] : value;
        }
    }
    finish(place, values, out, scales, place.row);
}
