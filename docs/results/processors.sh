#!/usr/bin/env bash
# What 2026-11-16-processors.md shows: kernels beside reading and multiplying at the same moment, on this processor held to
# AVX2 and unheld; and ggml's kernels in the same run, where GGML names a folder with its benchmarks (see ggml/).
#
#   cargo build --release -p roofline-run --example kernels
#   docs/results/processors.sh target/release/examples/kernels > figures.txt
set -u
kernels=$1
threads=$(nproc)
for isa in avx2 ''; do
  export ROOFLINE_ISA=$isa
  echo "## kernels, ROOFLINE_ISA='$isa'"
  "$kernels" gemv all 1
  "$kernels" gemv fp32,bf16,fp16,int8,fp8,int4-g128,q8_0,q4_k,q6_k,w8a8 1 16384
  "$kernels" thin all 8
  "$kernels" thin bf16,int4-g128,q4_k 2,4,16
  "$kernels" gemm fp32,bf16,int8,int4-g128,w8a8 128,1024
done
unset ROOFLINE_ISA
if [ -n "${GGML:-}" ]; then
  for build in avx2 ${GGML_WIDEST:-native}; do
    isa=''; [ "$build" = avx2 ] && isa=avx2
    for _ in 1 2 3; do
      echo "## beside ggml, $build"
      GGML_BENCH_HUGE=1 GGML_BENCH_PIN=1 GGML_BENCH_TYPES=Q8_0,Q4_0,Q4_K GGML_BENCH_M=1,8 "$GGML/ggml_bench_$build" "$threads" 1 repack 2>&1 | grep -E "^ggml|mean"
      ROOFLINE_ISA=$isa "$kernels" gemv q8_0,q4_0,q4_k 1
      ROOFLINE_ISA=$isa "$kernels" thin q8_0,q4_0,q4_k 8
    done
  done
fi
