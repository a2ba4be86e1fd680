// What happens to a head of queries, keys or values behind their product: a bias, a norm, a turn by its position, and the way
// into the cache. A warp has a head; its features are pairs (i, i + ROTARY / 2) that are turned, and then those that are not.
//
//   HEAD_DIM, ROTARY; NORMED: queries and keys are normed; CACHE: SIXTEEN, E4M3, E5M2 or INT8; HALF

namespace rope {

constexpr int PAIRS = (ROTARY / 2 + 31) / 32, PLAIN = (HEAD_DIM - ROTARY + 31) / 32;

// Cosines and sines of a position, those that a lane needs.
struct Angles {
    float cosine[PAIRS], sine[PAIRS];

    // `table` has ROTARY / 2 cosines and as many sines per position; without one nothing is turned.
    __device__ __forceinline__ Angles(const float* table, int position) {
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            int at = min((int)threadIdx.x % 32 + 32 * i, ROTARY / 2 - 1);
            cosine[i] = table ? table[(u64)position * ROTARY + at] : 1;
            sine[i] = table ? table[(u64)position * ROTARY + ROTARY / 2 + at] : 0;
        }
    }
};

struct Head {
    float low[PAIRS], high[PAIRS], rest[PLAIN > 0 ? PLAIN : 1];

    // Every feature a lane holds, with the place where it belongs.
    template <class Does> __device__ __forceinline__ void each(Does does) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            int at = lane + 32 * i;
            if (at >= ROTARY / 2) continue;
            does(low[i], at), does(high[i], at + ROTARY / 2);
        }
#pragma unroll
        for (int i = 0; i < PLAIN; i++) {
            int at = ROTARY + lane + 32 * i;
            if (at < HEAD_DIM) does(rest[i], at);
        }
    }

    __device__ __forceinline__ Head(const u16* from, const float* bias) {
        each([&](float& x, int at) { x = from_16(from[at]) + (bias ? bias[at] : 0); });
    }

    __device__ __forceinline__ void norm(const float* weight, float epsilon) {
        float squares = 0;
        each([&](float& x, int) { squares += x * x; });
        float factor = rsqrtf(warp_sum(squares) / HEAD_DIM + epsilon);
        each([&](float& x, int at) { x *= factor * weight[at]; });
    }

    __device__ __forceinline__ void turn(const Angles& angles) {
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            if ((int)threadIdx.x % 32 + 32 * i >= ROTARY / 2) continue;
            float cosine = angles.cosine[i], sine = angles.sine[i], left = low[i], right = high[i];
            low[i] = left * cosine - right * sine;
            high[i] = right * cosine + left * sine;
        }
    }

    __device__ __forceinline__ void write(u16* to) {
        each([&](float& x, int at) { to[at] = to_16(x); });
    }

    // As row `slot` of a cache.
    __device__ __forceinline__ void cache(void* rows, u16* scales, u64 slot) {
#if CACHE == SIXTEEN
        write((u16*)rows + slot * HEAD_DIM);
#else
        float largest = 0;
        each([&](float& x, int) { largest = fmaxf(largest, fabsf(x)); });
        u32 scale = row_scale(warp_max(largest), CACHE == E4M3 ? TOP_E4M3 : CACHE == E5M2 ? TOP_E5M2 : TOP_INT8);
        float inverse = 1 / __uint_as_float(scale << 16);
        u8* to = (u8*)rows + slot * HEAD_DIM;
        each([&](float& x, int at) {
            float value = x * inverse;
            to[at] = (u8)(CACHE == E4M3 ? to_e4m3(value) : CACHE == E5M2 ? to_e5m2(value) : to_int8(value));
        });
        if (threadIdx.x % 32 == 0) scales[slot] = (u16)scale;
#endif
    }
};

} // namespace rope
