// Barriers in shared memory that count bytes, and the copy engine of compute capability 9.0 and later, which reports to them.

static __device__ __forceinline__ u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// Where a tensor is and how it is laid out, made by the driver.
struct alignas(64) Map {
    u64 words[16];
};

static __device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Arrives, and says how many bytes are to come.
static __device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

static __device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

// A box of a table from `column` and `row` on; zeros past its end.
static __device__ __forceinline__ void copy_box(u32 to, const Map* map, int column, int row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void copy_box(u32 to, const Map* map, int column, int row, int layer, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(layer), "r"(barrier)
                 : "memory");
}
