// Products of up to ROWS rows of FP32 x with FP32 weights, y = x W^T: no tensor unit has this precision. A block owns OUTPUTS
// rows of W and its warps share the columns; lanes read 16 bytes side by side.
//
//   ROWS  rows of x        OUTPUTS  rows of W per block        WARPS  warps per block

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    gemv_fp32(const float* __restrict__ weights, const float* __restrict__ x, float* __restrict__ y, int rows, int width, int m) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * OUTPUTS;
    float sums[OUTPUTS][ROWS];
#pragma unroll
    for (int i = 0; i < OUTPUTS * ROWS; i++) ((float*)sums)[i] = 0.0f;
    // Rows are padded to whole vectors, so that every one starts on 16 bytes.
    for (int at = (warp * 32 + lane) * 4; at < width; at += 128 * WARPS) {
        float4 w[OUTPUTS];
#pragma unroll
        for (int out = 0; out < OUTPUTS; out++) {
            uint4 bits = stream((const uint4*)(weights + (u64)min(first + out, rows - 1) * width + at));
            w[out] = *(float4*)&bits;
        }
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            float4 input = *(const float4*)(x + (u64)min(row, m - 1) * width + at);
#pragma unroll
            for (int out = 0; out < OUTPUTS; out++) {
                float& sum = sums[out][row];
                sum = fmaf(w[out].x, input.x, sum), sum = fmaf(w[out].y, input.y, sum);
                sum = fmaf(w[out].z, input.z, sum), sum = fmaf(w[out].w, input.w, sum);
            }
        }
    }
    __shared__ float shares[WARPS][OUTPUTS * ROWS];
#pragma unroll
    for (int i = 0; i < OUTPUTS * ROWS; i++) {
        float sum = warp_sum(((float*)sums)[i]);
        if (lane == 0) shares[warp][i] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < OUTPUTS * ROWS; i += 32 * WARPS) {
        int out = first + i / ROWS, row = i % ROWS;
        if (row >= m || out >= rows) continue;
        float sum = 0.0f;
        for (int other = 0; other < WARPS; other++) sum += shares[other][i];
        y[(u64)row * rows + out] = sum;
    }
}
