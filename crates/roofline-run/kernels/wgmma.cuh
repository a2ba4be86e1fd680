// One instruction of Hopper's tensor units: d += a b for 64 rows of W, whose numbers a warpgroup has in registers (a), and
// ROWS rows of x in shared memory (`b` describes where), 32 bytes of each. Runs on while the warps do something else.
// `add` is 0 to overwrite d. Written out per number of rows because registers are named in the text.

#if STORED == BOTH_INT8
#define WGMMA_KIND "k32.s32.s8.s8"
#define WGMMA_TAIL ", p;\n}"
#define SUMMED "+r"
#elif STORED == BOTH_E4M3
#define WGMMA_KIND "k32.f32.e4m3.e4m3"
#define WGMMA_TAIL ", p, 1, 1;\n}"
#define SUMMED "+f"
#elif HALF
#define WGMMA_KIND "k16.f32.f16.f16"
#define WGMMA_TAIL ", p, 1, 1, 0;\n}"
#define SUMMED "+f"
#else
#define WGMMA_KIND "k16.f32.bf16.bf16"
#define WGMMA_TAIL ", p, 1, 1, 0;\n}"
#define SUMMED "+f"
#endif
#define SUMMED_4(i) SUMMED(d[i]), SUMMED(d[i + 1]), SUMMED(d[i + 2]), SUMMED(d[i + 3])
#define SUMMED_16(i) SUMMED_4(i), SUMMED_4(i + 4), SUMMED_4(i + 8), SUMMED_4(i + 12)
#define SUMMED_64(i) SUMMED_16(i), SUMMED_16(i + 16), SUMMED_16(i + 32), SUMMED_16(i + 48)

static __device__ __forceinline__ void wgmma(Sum (&d)[ROWS / 2], const u32 (&a)[4], u64 b, int add) {
#if ROWS == 16
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\nwgmma.mma_async.sync.aligned.m64n16" WGMMA_KIND
                 " {%0,%1,%2,%3,%4,%5,%6,%7},"
                 " {%8,%9,%10,%11}, %12" WGMMA_TAIL
                 : SUMMED_4(0), SUMMED_4(4)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
#elif ROWS == 32
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\nwgmma.mma_async.sync.aligned.m64n32" WGMMA_KIND
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},"
                 " {%16,%17,%18,%19}, %20" WGMMA_TAIL
                 : SUMMED_16(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
#elif ROWS == 64
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64" WGMMA_KIND
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                 " {%32,%33,%34,%35}, %36" WGMMA_TAIL
                 : SUMMED_16(0), SUMMED_16(16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
#elif ROWS == 96
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %53, 0;\nwgmma.mma_async.sync.aligned.m64n96" WGMMA_KIND
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47},"
                 " {%48,%49,%50,%51}, %52" WGMMA_TAIL
                 : SUMMED_16(0), SUMMED_16(16), SUMMED_16(32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
#elif ROWS == 128
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128" WGMMA_KIND
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
                 " {%64,%65,%66,%67}, %68" WGMMA_TAIL
                 : SUMMED_64(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
#elif ROWS == 256
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\nwgmma.mma_async.sync.aligned.m64n256" WGMMA_KIND
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
                 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
                 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127},"
                 " {%128,%129,%130,%131}, %132" WGMMA_TAIL
                 : SUMMED_64(0), SUMMED_64(64)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
#endif
}
