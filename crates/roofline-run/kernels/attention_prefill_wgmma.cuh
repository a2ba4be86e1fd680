// The two products of attention on Hopper's tensor units, for a warpgroup: 64 queries with KEYS keys, both in shared memory,
// and weights of 64 queries, in registers, with KEYS values of HEAD_DIM features. They run on while the warps do something
// else. Registers are named in the text, hence the lists.

#if HALF
#define WGMMA_KIND "k16.f32.f16.f16"
#else
#define WGMMA_KIND "k16.f32.bf16.bf16"
#endif

#define D0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define D1 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define D2 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define D3 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define D4 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define D5 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define D6 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define D7 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define D8 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define D9 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define D10 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define D11 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define D12 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define D13 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define D14 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define D15 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define D_32 D0 D1 D2 D3
#define D_40 D_32 D4
#define D_48 D_40 D5
#define D_64 D_48 D6 D7
#define D_88 D_64 D8 D9 D10
#define D_128 D_88 D11 D12 D13 D14 D15
#define F_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F_16(i) F_4(i), F_4(i + 4), F_4(i + 8), F_4(i + 12)
#define F_32 F_16(0), F_16(16)
#define F_40 F_32, F_4(32), F_4(36)
#define F_48 F_32, F_16(32)
#define F_64 F_48, F_16(48)
#define F_88 F_64, F_16(64), F_4(80), F_4(84)
#define F_128 F_64, F_16(64), F_16(80), F_16(96), F_16(112)
#define STRING(text) #text
#define VALUE(text) STRING(text)

static __device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `most` are under way.
#define wgmma_wait(most) asm volatile("wgmma.wait_group.sync.aligned " #most ";" ::: "memory")

// d[query][key] (+)= q[query][feature] k[key][feature] for 16 features.
#define KEYS_WITH(count, at_q, at_k, at_add)                                                                                     \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " at_add ", 0;\nwgmma.mma_async.sync.aligned.m64n" VALUE(KEYS) WGMMA_KIND      \
                 " {" D_##count "}, " at_q ", " at_k ", p, 1, 1, 0, 0;\n}"                                                       \
                 : F_##count                                                                                                     \
                 : "l"(q), "l"(k), "r"(add))

static __device__ __forceinline__ void multiply_keys(float (&d)[KEYS / 2], u64 q, u64 k, int add) {
#if KEYS == 64
    KEYS_WITH(32, "%32", "%33", "%34");
#elif KEYS == 128
    KEYS_WITH(64, "%64", "%65", "%66");
#elif KEYS == 176
    KEYS_WITH(88, "%88", "%89", "%90");
#endif
}

// d[query][feature] (+)= weights[query][key] v[key][feature] for 16 keys.
#define VALUES_WITH(count, at_weights, at_v, at_add)                                                                             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " at_add ", 0;\nwgmma.mma_async.sync.aligned.m64n" VALUE(HEAD_DIM) WGMMA_KIND  \
                 " {" D_##count "}, {" at_weights "}, " at_v ", p, 1, 1, 1;\n}"                                                  \
                 : F_##count                                                                                                     \
                 : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "l"(v), "r"(add))

static __device__ __forceinline__ void multiply_values(float (&d)[HEAD_DIM / 2], const u32* weights, u64 v, int add) {
#if HEAD_DIM == 64
    VALUES_WITH(32, "%32,%33,%34,%35", "%36", "%37");
#elif HEAD_DIM == 80
    VALUES_WITH(40, "%40,%41,%42,%43", "%44", "%45");
#elif HEAD_DIM == 96
    VALUES_WITH(48, "%48,%49,%50,%51", "%52", "%53");
#elif HEAD_DIM == 128
    VALUES_WITH(64, "%64,%65,%66,%67", "%68", "%69");
#elif HEAD_DIM == 256
    VALUES_WITH(128, "%128,%129,%130,%131", "%132", "%133");
#endif
}
