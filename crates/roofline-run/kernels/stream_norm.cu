// The residual stream, in FP32: what a layer's parts put out is added to it, and what the next part reads is its norm. One
// block per row, which it holds in registers: THREADS * CHUNKS * 4 numbers at most.
//
//   EMBED   1: the stream starts as rows of an embedding, by `tokens`, times `scale`
//   ADDED   how many vectors are added (0, 1 or 2); WIDE: they are FP32, else 16 bit
//   POST    1: the first vector is normed before it is added, with `post`
//   NORM    0: none; 1: root mean square; 2: with mean and bias
//   LAST    1: of each `step` rows only the last is normed, as row / step of the output; nothing is added then
//   HALF, CHAINED

struct Row {
    float4 at[CHUNKS];
};

// Four numbers, of which `left` are there; rows of whole fours start at whole fours, others are read one by one.
static __device__ __forceinline__ float4 read(const float* from, int left, bool whole) {
    if (whole) return *(const float4*)from;
    return make_float4(from[0], left > 1 ? from[1] : 0, left > 2 ? from[2] : 0, left > 3 ? from[3] : 0);
}

static __device__ __forceinline__ float4 read_16(const u16* from, int left, bool whole) {
    if (whole) {
        uint2 bits = *(const uint2*)from;
        return make_float4(low_16(bits.x), high_16(bits.x), low_16(bits.y), high_16(bits.y));
    }
    return make_float4(from_16(from[0]), left > 1 ? from_16(from[1]) : 0, left > 2 ? from_16(from[2]) : 0, left > 3 ? from_16(from[3]) : 0);
}

static __device__ __forceinline__ void write(float* to, float4 x, int left, bool whole) {
    if (whole) {
        *(float4*)to = x;
        return;
    }
    to[0] = x.x;
    if (left > 1) to[1] = x.y;
    if (left > 2) to[2] = x.z;
    if (left > 3) to[3] = x.w;
}

static __device__ __forceinline__ void write_16(u16* to, float4 x, int left, bool whole) {
    if (whole) {
        *(uint2*)to = make_uint2(pair_16(x.x, x.y), pair_16(x.z, x.w));
        return;
    }
    to[0] = to_16(x.x);
    if (left > 1) to[1] = to_16(x.y);
    if (left > 2) to[2] = to_16(x.z);
    if (left > 3) to[3] = to_16(x.w);
}

// Sum over the block; `parts` has a place per warp, and is free again after the next barrier.
static __device__ __forceinline__ float block_sum(float value, float* parts) {
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; warp++) sum += parts[warp];
    return sum;
}

static __device__ __forceinline__ float square(float4 x) { return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w; }

static __device__ __forceinline__ float4 times(float4 x, float by, float4 weight) {
    return make_float4(x.x * by * weight.x, x.y * by * weight.y, x.z * by * weight.z, x.w * by * weight.w);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    stream_norm(const int* __restrict__ tokens, const u16* __restrict__ table, float scale, float* stream,
                const void* first, const void* second, const float* __restrict__ post, const float* __restrict__ weight,
                const float* __restrict__ bias, u16* __restrict__ out, int width, int step, float epsilon) {
    __shared__ float parts[3][THREADS / 32];
    chain_release();
    bool whole = width % 4 == 0;
    // Weights are nobody's result: they come while the kernel before still runs.
    Row weights, posts, biases;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        int at = (chunk * THREADS + threadIdx.x) * 4;
        if (at >= width) continue;
        if (NORM) weights.at[chunk] = read(weight + at, width - at, whole);
        if (POST) posts.at[chunk] = read(post + at, width - at, whole);
        if (NORM == 2 && bias) biases.at[chunk] = read(bias + at, width - at, whole);
    }
    chain_wait();
    u64 to = blockIdx.x, row = LAST ? (to + 1) * step - 1 : to;
    Row x;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        int at = (chunk * THREADS + threadIdx.x) * 4;
        x.at[chunk] = make_float4(0, 0, 0, 0);
        if (at >= width) continue;
        if (EMBED) {
            float4 found = read_16(table + (u64)tokens[row] * width + at, width - at, whole);
            x.at[chunk] = make_float4(found.x * scale, found.y * scale, found.z * scale, found.w * scale);
        } else {
            x.at[chunk] = read(stream + row * width + at, width - at, whole);
        }
    }
#pragma unroll
    for (int which = 0; which < ADDED; which++) {
        const void* from = which ? second : first;
        Row more;
        float squares = 0;
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            int at = (chunk * THREADS + threadIdx.x) * 4;
            more.at[chunk] = make_float4(0, 0, 0, 0);
            if (at < width)
                more.at[chunk] = WIDE ? read((const float*)from + row * width + at, width - at, whole)
                                      : read_16((const u16*)from + row * width + at, width - at, whole);
            squares += square(more.at[chunk]);
        }
        float factor = POST && which == 0 ? rsqrtf(block_sum(squares, parts[2]) / width + epsilon) : 1;
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            int at = (chunk * THREADS + threadIdx.x) * 4;
            if (at >= width) continue;
            if (POST && which == 0) more.at[chunk] = times(more.at[chunk], factor, posts.at[chunk]);
            x.at[chunk].x += more.at[chunk].x, x.at[chunk].y += more.at[chunk].y;
            x.at[chunk].z += more.at[chunk].z, x.at[chunk].w += more.at[chunk].w;
        }
    }
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        int at = (chunk * THREADS + threadIdx.x) * 4;
        if ((EMBED || ADDED) && !LAST && at < width) write(stream + row * width + at, x.at[chunk], width - at, whole);
    }
#if NORM
    float mean = 0;
#if NORM == 2
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) mean += x.at[chunk].x + x.at[chunk].y + x.at[chunk].z + x.at[chunk].w;
    mean = block_sum(mean, parts[0]) / width;
#endif
    float squares = 0;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        int left = width - (chunk * THREADS + threadIdx.x) * 4;
        if (left > 0) x.at[chunk].x -= mean;
        if (left > 1) x.at[chunk].y -= mean;
        if (left > 2) x.at[chunk].z -= mean;
        if (left > 3) x.at[chunk].w -= mean;
        squares += square(x.at[chunk]);
    }
    float factor = rsqrtf(block_sum(squares, parts[1]) / width + epsilon);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        int at = (chunk * THREADS + threadIdx.x) * 4;
        if (at >= width) continue;
        float4 y = times(x.at[chunk], factor, weights.at[chunk]);
        if (NORM == 2 && bias) {
            float4 by = biases.at[chunk];
            y.x += by.x, y.y += by.y, y.z += by.z, y.w += by.w;
        }
        write_16(out + to * width + at, y, width - at, whole);
    }
#endif
}
