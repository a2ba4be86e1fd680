// Small kernels between the products of a model: biases and factors of outputs, activation functions, the choice of experts
// and what they add up to, and a product for weights that no other kernel takes.
//
//   HALF, CHAINED; KIND: the activation function; WIDE: what is read (affine) or written (plain_product) is FP32

#ifndef WIDE
#define WIDE 0
#endif
#ifndef KIND
#define KIND 0
#endif

#define THREADS 256

// Eight neighbours at once.
struct Eight {
    float at[8];

    __device__ __forceinline__ Eight(const u16* from) {
        uint4 bits = *(const uint4*)from;
        u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int i = 0; i < 4; i++) at[2 * i] = low_16(words[i]), at[2 * i + 1] = high_16(words[i]);
    }

    __device__ __forceinline__ void write(u16* to) const {
        *(uint4*)to = make_uint4(pair_16(at[0], at[1]), pair_16(at[2], at[3]), pair_16(at[4], at[5]), pair_16(at[6], at[7]));
    }
};

// y = y * factor + bias, by columns; then bent: cap * tanh(y / cap).
extern "C" __global__ void __launch_bounds__(THREADS)
    affine(void* y, const float* __restrict__ factors, const float* __restrict__ bias, u64 count, int width, float cap) {
    chain_release();
    chain_wait();
    for (u64 at = (u64)blockIdx.x * THREADS + threadIdx.x; at < count; at += (u64)gridDim.x * THREADS) {
        int column = (int)(at % width);
        float value = WIDE ? ((float*)y)[at] : from_16(((u16*)y)[at]);
        if (factors) value *= factors[column];
        if (bias) value += bias[column];
        if (cap > 0) value = cap * tanhf(value / cap);
        if (WIDE)
            ((float*)y)[at] = value;
        else
            ((u16*)y)[at] = to_16(value);
    }
}

// 1: SiLU; 2: GELU by tanh; 3: GELU by erf; 4: gpt-oss's clamped swish, which needs its other half.
static __device__ __forceinline__ float function(float x, float limit) {
#if KIND == 1
    return __fdividef(x, 1 + __expf(-x));
#elif KIND == 2
    return 0.5f * x * (1 + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
#elif KIND == 3
    return 0.5f * x * (1 + erff(x * 0.7071067811865476f));
#else
    x = fminf(x, limit);
    return __fdividef(x, 1 + __expf(-1.702f * x));
#endif
}

// out = function(gate) * up, or function(gate) where there is no `up`. Rows of gate and up start `pitch` apart, their
// numbers are `stride` apart. Biases likewise, of expert `choice[row]` where there are choices.
extern "C" __global__ void __launch_bounds__(THREADS)
    activated(const u16* gate, const u16* up, const float* __restrict__ gate_bias,
              const float* __restrict__ up_bias, const int* choice, u16* __restrict__ out, u64 count, int width, int pitch,
              int stride, int bias_pitch, float limit) {
    chain_release();
    chain_wait();
    auto applied = [&](float x, float other) {
        float result = function(x, limit);
        if (up) result *= KIND == 4 ? fminf(fmaxf(other, -limit), limit) + 1 : other;
        return result;
    };
    u64 start = (u64)blockIdx.x * THREADS + threadIdx.x, threads = (u64)gridDim.x * THREADS;
    // Neighbours without biases, eight at a time.
    if (stride == 1 && width % 8 == 0 && pitch % 8 == 0 && !gate_bias && !up_bias) {
        for (u64 at = start * 8; at < count; at += threads * 8) {
            u64 from = at / width * pitch + at % width;
            Eight x(gate + from), other((up ? up : gate) + from);
#pragma unroll
            for (int i = 0; i < 8; i++) x.at[i] = applied(x.at[i], other.at[i]);
            x.write(out + at);
        }
        return;
    }
    // Both in turns (`up` is one behind `gate`), four pairs at a time.
    if (stride == 2 && up == gate + 1 && width % 4 == 0 && pitch % 8 == 0 && gate_bias && up_bias == gate_bias + 1) {
        for (u64 at = start * 4; at < count; at += threads * 4) {
            u64 row = at / width;
            int column = (int)(at % width) * 2;
            const float* bias = gate_bias + (choice ? (u64)choice[row] * bias_pitch : 0) + column;
            Eight both(gate + row * pitch + column);
            float results[4];
#pragma unroll
            for (int i = 0; i < 4; i++) results[i] = applied(both.at[2 * i] + bias[2 * i], both.at[2 * i + 1] + bias[2 * i + 1]);
            *(uint2*)(out + at) = make_uint2(pair_16(results[0], results[1]), pair_16(results[2], results[3]));
        }
        return;
    }
    for (u64 at = start; at < count; at += threads) {
        u64 row = at / width;
        int column = (int)(at % width) * stride;
        u64 biased = (choice ? (u64)choice[row] * bias_pitch : 0) + column;
        float x = from_16(gate[row * pitch + column]), other = up ? from_16(up[row * pitch + column]) : 0;
        if (gate_bias) x += gate_bias[biased];
        if (up && up_bias) other += up_bias[biased];
        out[at] = to_16(applied(x, other));
    }
}

// The `active` best of `experts` scores of each row, of equal ones the first, and how much of each a token takes: by a
// softmax over the chosen, or over all. One warp per row.
extern "C" __global__ void __launch_bounds__(THREADS)
    route(const float* scores, int* __restrict__ choice, float* __restrict__ weights, int rows, int experts, int active,
          int of_all) {
    chain_release();
    int row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    chain_wait();
    if (row >= rows) return;
    scores += (u64)row * experts;
    float first = -1e30f, total = 0, last = 3e38f;
    int before = -1;
    for (int rank = 0; rank < active; rank++) {
        float best = -3e38f;
        int found = experts;
        // The best behind what was chosen last, by score and then by place.
        for (int at = lane; at < experts; at += 32) {
            float score = scores[at];
            bool behind = score < last || (score == last && at > before);
            if (behind && (score > best || (score == best && at < found))) best = score, found = at;
        }
#pragma unroll
        for (int far = 16; far > 0; far /= 2) {
            float other = __shfl_xor_sync(0xffffffff, best, far);
            int place = __shfl_xor_sync(0xffffffff, found, far);
            if (other > best || (other == best && place < found)) best = other, found = place;
        }
        if (rank == 0) first = best;
        last = best, before = found;
        float power = __expf(best - first);
        if (!of_all) total += power;
        if (lane == 0) choice[(u64)row * active + rank] = min(found, experts - 1), weights[(u64)row * active + rank] = power;
    }
    if (of_all) {
        for (int at = lane; at < experts; at += 32) total += __expf(scores[at] - first);
        total = warp_sum(total);
    }
    __syncwarp();
    for (int at = lane; at < active; at += 32) weights[(u64)row * active + at] /= total;
}

// What the experts of a row put out, weighed and added up, with their biases. `place`, where there is one, says in which row
// of `visited` an expert's output is.
extern "C" __global__ void __launch_bounds__(THREADS)
    combine(const u16* visited, const int* place, const int* choice,
            const float* weights, const float* __restrict__ bias, float* __restrict__ out, u64 count, int width, int active) {
    chain_release();
    chain_wait();
    u64 start = (u64)blockIdx.x * THREADS + threadIdx.x, threads = (u64)gridDim.x * THREADS;
    // Neighbours, eight at a time.
    bool whole = width % 8 == 0;
    for (u64 at = start * 8; whole && at < count; at += threads * 8) {
        u64 row = at / width;
        int column = (int)(at % width);
        float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (int i = 0; i < active; i++) {
            u64 visit = row * active + i, from = place ? (u64)place[visit] : visit;
            const float* own = bias ? bias + (u64)choice[visit] * width + column : nullptr;
            float weight = weights[visit];
            Eight value(visited + from * width + column);
#pragma unroll
            for (int j = 0; j < 8; j++) sums[j] += weight * (own ? value.at[j] + own[j] : value.at[j]);
        }
        ((float4*)(out + at))[0] = make_float4(sums[0], sums[1], sums[2], sums[3]);
        ((float4*)(out + at))[1] = make_float4(sums[4], sums[5], sums[6], sums[7]);
    }
    for (u64 at = start; !whole && at < count; at += threads) {
        u64 row = at / width;
        int column = (int)(at % width);
        float sum = 0;
        for (int i = 0; i < active; i++) {
            u64 visit = row * active + i, from = place ? (u64)place[visit] : visit;
            float value = from_16(visited[from * width + column]);
            if (bias) value += bias[(u64)choice[visit] * width + column];
            sum += weights[visit] * value;
        }
        out[at] = sum;
    }
}

// INT32 sums, with an FP32 scale per row of W and per row of x.
extern "C" __global__ void __launch_bounds__(THREADS)
    scaled(const int* sums, const float* __restrict__ w_scales, const float* x_scales, void* __restrict__ out, int m,
           int n) {
    chain_release();
    chain_wait();
    u64 count = (u64)m * n;
    for (u64 at = (u64)blockIdx.x * THREADS + threadIdx.x; at < count; at += (u64)gridDim.x * THREADS) {
        float value = (float)sums[at] * w_scales[at % n] * x_scales[at / n];
        if (WIDE)
            ((float*)out)[at] = value;
        else
            ((u16*)out)[at] = to_16(value);
    }
}

// Rows of `width` numbers to rows that are `pitch` apart.
extern "C" __global__ void __launch_bounds__(THREADS)
    place(const u16* x, u16* __restrict__ out, u64 count, int width, int pitch) {
    chain_release();
    chain_wait();
    for (u64 at = (u64)blockIdx.x * THREADS + threadIdx.x; at < count; at += (u64)gridDim.x * THREADS)
        out[at / width * pitch + at % width] = x[at];
}

// Visits sorted by expert, those of one expert as they came: for each row the token (`active` visits have one) and the expert,
// for each visit its row, and for each expert its first row, the end of the last behind them. Block e has those of expert e;
// each of its threads has visits that are neighbours.
#define SORTERS 1024
extern "C" __global__ void __launch_bounds__(SORTERS)
    sorted(const int* choice, int* __restrict__ token, int* __restrict__ place, int* __restrict__ owner, int* __restrict__ starts, int visits,
           int active) {
    __shared__ int earlier[SORTERS / 32], own[SORTERS / 32];
    chain_release();
    int expert = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int each = (visits + SORTERS - 1) / SORTERS, first = min((int)threadIdx.x * each, visits), last = min(first + each, visits);
    chain_wait();
    // Visits of experts before this one, and its own.
    int before = 0, here = 0;
    for (int at = first; at < last; at++) before += choice[at] < expert, here += choice[at] == expert;
    int sum = here;
#pragma unroll
    for (int far = 1; far < 32; far *= 2) {
        int other = __shfl_up_sync(0xffffffff, sum, far);
        if (lane >= far) sum += other;
    }
#pragma unroll
    for (int far = 16; far > 0; far /= 2) before += __shfl_xor_sync(0xffffffff, before, far);
    if (lane == 31) earlier[warp] = before, own[warp] = sum;
    __syncthreads();
    int row = sum - here, start = 0;
    for (int i = 0; i < SORTERS / 32; i++) start += earlier[i], row += i < warp ? own[i] : 0;
    row += start;
    for (int at = first; at < last; at++)
        if (choice[at] == expert) token[row] = at / active, place[at] = row, owner[row] = expert, row++;
    if (threadIdx.x == 0) starts[expert] = start;
    if (threadIdx.x == SORTERS - 1 && expert == (int)gridDim.x - 1) starts[gridDim.x] = visits;
}

// Row `from[i]` of x to row i: rows of whole eights.
extern "C" __global__ void __launch_bounds__(THREADS)
    gather(const u16* x, const int* from, u16* __restrict__ out, u64 count, int width) {
    chain_release();
    chain_wait();
    for (u64 at = ((u64)blockIdx.x * THREADS + threadIdx.x) * 8; at < count; at += (u64)gridDim.x * THREADS * 8)
        *(uint4*)(out + at) = *(const uint4*)(x + (u64)from[at / width] * width + at % width);
}

// y = x W^T with plain rows of 16-bit numbers, a warp per output. `choice` where there is one says which expert's matrix row
// i of y is of, and `active` how many rows of y share a row of x.
extern "C" __global__ void __launch_bounds__(THREADS)
    plain_product(const u16* __restrict__ w, const u16* x, const int* choice, void* __restrict__ y, int m, int n,
                  int k, int active) {
    chain_release();
    u64 item = (u64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    chain_wait();
    if (item >= (u64)m * n) return;
    u64 row = item / n, column = item % n;
    if (choice) w += (u64)choice[row] * n * k;
    const u16 *a = w + column * k, *b = x + row / active * k;
    float sum = 0;
    for (int at = threadIdx.x % 32; at < k; at += 32) sum += from_16(a[at]) * from_16(b[at]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) {
        if (WIDE)
            ((float*)y)[item] = sum;
        else
            ((u16*)y)[item] = to_16(sum);
    }
}

// Every row of 16-bit numbers to codes with a scale of its own, for products of 8-bit inputs. 1: INT8, 2: E4M3, 3: what codes of
// E4M3 stand for, as 16 bit. Scales are rounded up to bfloat16, so that nothing is clipped, and written as that and as FP32. One
// block per row.
extern "C" __global__ void __launch_bounds__(THREADS)
    narrowed(const u16* x, u8* __restrict__ out, u16* __restrict__ scales, float* __restrict__ wide, int width, int kind) {
    __shared__ float parts[THREADS / 32];
    chain_release();
    chain_wait();
    x += (u64)blockIdx.x * width, out += (u64)blockIdx.x * width * (kind == 3 ? 2 : 1);
    // Eight numbers at a time where rows are whole eights.
    bool whole = width % 8 == 0;
    float largest = 0;
    for (int at = threadIdx.x * 8; whole && at < width; at += THREADS * 8) {
        Eight eight(x + at);
#pragma unroll
        for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(eight.at[i]));
    }
    for (int at = threadIdx.x; !whole && at < width; at += THREADS) largest = fmaxf(largest, fabsf(from_16(x[at])));
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) largest = fmaxf(largest, parts[i]);
    u32 scale = row_scale(largest, kind == 1 ? TOP_INT8 : TOP_E4M3);
    float inverse = 1 / __uint_as_float(scale << 16);
    auto code = [&](float value) { return kind == 1 ? to_int8(value * inverse) : to_e4m3(value * inverse); };
    for (int at = threadIdx.x * 8; whole && at < width; at += THREADS * 8) {
        if (kind == 3) {
            uint4 pairs = *(const uint4*)(x + at);
            *(uint4*)(out + 2 * at) = make_uint4(rounded_e4m3(pairs.x, inverse), rounded_e4m3(pairs.y, inverse),
                                                 rounded_e4m3(pairs.z, inverse), rounded_e4m3(pairs.w, inverse));
            continue;
        }
        Eight eight(x + at);
        u32 words[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 8; i++) words[i / 4] |= code(eight.at[i]) << i % 4 * 8;
        *(uint2*)(out + at) = make_uint2(words[0], words[1]);
    }
    for (int at = threadIdx.x; !whole && at < width; at += THREADS) {
        float value = from_16(x[at]);
        if (kind == 3)
            ((u16*)out)[at] = to_16(from_e4m3((u8)to_e4m3(value * inverse)));
        else
            out[at] = (u8)code(value);
    }
    if (threadIdx.x == 0) scales[blockIdx.x] = (u16)scale, wide[blockIdx.x] = __uint_as_float(scale << 16);
}
