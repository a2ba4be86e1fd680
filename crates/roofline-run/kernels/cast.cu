// INT8 weights with a BF16 scale per row, written out as 16-bit numbers: the first half of what a kernel does that casts
// before it multiplies. It is here to be measured against the kernels that do not.

extern "C" __global__ void cast(const u8* __restrict__ codes, const u16* __restrict__ scales, u16* __restrict__ out, int rows,
                                int width) {
    u64 count = (u64)rows * width / 8;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (u64)gridDim.x * blockDim.x) {
        uint2 packed = ((const uint2*)codes)[at];
        float scale = from_bf16(scales[at * 8 / width]);
        u32 words[2] = {packed.x, packed.y}, pairs[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            signed char low = (signed char)(words[i / 2] >> 16 * (i % 2)), high = (signed char)(words[i / 2] >> (16 * (i % 2) + 8));
            pairs[i] = pair_16((float)low * scale, (float)high * scale);
        }
        ((uint4*)out)[at] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
}

// INT32 sums to 16 bit, with a BF16 scale per row of W and per row of x: cuBLASLt leaves that to another kernel.
extern "C" __global__ void scale(const int* __restrict__ sums, const u16* __restrict__ w_scales,
                                 const u16* __restrict__ x_scales, u16* __restrict__ out, int m, int n) {
    u64 count = (u64)m * n;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (u64)gridDim.x * blockDim.x) {
        int row = at / n, column = at % n;
        out[at] = to_16((float)sums[at] * from_bf16(w_scales[column]) * from_bf16(x_scales[row]));
    }
}
