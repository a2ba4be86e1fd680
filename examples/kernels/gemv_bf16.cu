// y = W x in BF16: one warp adds up one row of W, with eight numbers to a load and four loads on their way at once.
//
// It is as simple as a kernel can be that still keeps the memory busy; `gemv_bf16.toml` says how it is started, and
// `roofline measure kernel examples/kernels/gemv_bf16.toml` how near the roof it comes.

typedef unsigned short bf16;  // as bits: a kernel that needs no header compiles wherever NVRTC is

__device__ float wide(bf16 number) { return __uint_as_float((unsigned)number << 16); }

__device__ float low(unsigned pair) { return __uint_as_float(pair << 16); }

__device__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ float times(unsigned w, unsigned x, float sum) { return fmaf(high(w), high(x), fmaf(low(w), low(x), sum)); }

// To the nearest, and to the even one of two.
__device__ bf16 narrow(float number) {
    unsigned bits = __float_as_uint(number);
    return (bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

extern "C" __global__ void gemv_bf16(const bf16* __restrict__ x, const bf16* __restrict__ w, bf16* __restrict__ y, int n, int k) {
    const int row = (int)(blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = (int)threadIdx.x % 32;
    if (row >= n) return;
    const bf16* line = w + (long long)row * k;
    float sum = 0;
    // Rows start on 16 bytes where their length is a multiple of eight numbers; others are read one by one.
    const int whole = k % 8 == 0 ? k : 0;
#pragma unroll 4
    for (int at = lane * 8; at < whole; at += 256) {
        const uint4 weights = *reinterpret_cast<const uint4*>(line + at), inputs = *reinterpret_cast<const uint4*>(x + at);
        sum = times(weights.x, inputs.x, times(weights.y, inputs.y, times(weights.z, inputs.z, times(weights.w, inputs.w, sum))));
    }
    for (int at = whole + lane; at < k; at += 32) sum = fmaf(wide(line[at]), wide(x[at]), sum);
    for (int half = 16; half > 0; half /= 2) sum += __shfl_down_sync(0xffffffffu, sum, half);
    if (lane == 0) y[row] = narrow(sum);
}
