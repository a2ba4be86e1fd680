// Whose rows are whose: a product has one matrix for all rows of x; or, where GROUPED, several, with x sorted by matrix.
// `starts` then says in which row those of each matrix begin, and behind the last where they end. Only the GPU knows how many
// rows each has, so tiles of ROWS rows are counted here.

#ifndef GROUPED
#define GROUPED 0
#endif
// Most matrices of a product.
#define MATRICES 512

// A tile: rows `first` to `end` of x, at most ROWS of which are its own, and the matrix they are multiplied with.
struct Tile {
    int first, end, matrix;
};

#if GROUPED
// Tiles of all matrices before each, and of all at last.
static __shared__ int tiles_before[MATRICES + 1];

// Counts them: called by all threads. The result is the same in all lanes, and the compiler sees that it is.
static __device__ __forceinline__ int count_tiles(const int* starts, int matrices) {
    if (threadIdx.x < 32) {
        int lane = threadIdx.x, before = 0;
        for (int first = 0; first < matrices; first += 32) {
            int at = first + lane, own = at < matrices ? (starts[at + 1] - starts[at] + ROWS - 1) / ROWS : 0, sum = own;
#pragma unroll
            for (int far = 1; far < 32; far *= 2) {
                int other = __shfl_up_sync(0xffffffff, sum, far);
                if (lane >= far) sum += other;
            }
            if (at < matrices) tiles_before[at] = before + sum - own;
            before += __shfl_sync(0xffffffff, sum, 31);
        }
        if (lane == 0) tiles_before[matrices] = before;
    }
    __syncthreads();
    return (int)__reduce_max_sync(0xffffffff, (u32)tiles_before[matrices]);
}

static __device__ __forceinline__ Tile find_tile(int tile, const int* starts, int matrices) {
    // The last matrix that has its first tile no later: those without rows have none, and are passed over.
    int low = 0, high = matrices;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (tiles_before[middle] <= tile)
            low = middle;
        else
            high = middle;
    }
    return {starts[low] + (tile - tiles_before[low]) * ROWS, starts[low + 1], low};
}
#endif
