#!/usr/bin/env bash
# What the program says and does on a GPU: its own check, forecasts of both times against fresh measurements of both passes
# of a model, and products beside PyTorch's. Run on the machine with the GPU; results go to the folder named.
#
#     docs/results/2026-11-16-h200-forecasts.sh path/to/roofline results/
set -u
roofline=$1 out=$2
export HOME=$(mktemp -d)
mkdir -p "$out"
"$roofline" check > "$out/check.txt" 2>&1; echo "check: exit $?" | tee -a "$out/check.txt"
"$roofline" calibrate --validate 40 --seed 16 --json > "$out/validate.json" 2> "$out/validate.err"
"$roofline" compare model llama-3.1-8b --backend cuda --precision bf16,w4a16 --context 2048 --batch 1 --json \
    --out "$out/model.jsonl" --report "$out/model.html" > "$out/model.json" 2> "$out/model.err"
"$roofline" compare gemm --m 8 --n 14336 --k 4096 --backend cuda --precision bf16,fp8,w4a16 --json > "$out/gemm.json" 2> "$out/gemm.err"
"$roofline" predict model llama-3.1-8b --on h200 --precision bf16,w4a16,q4_k_m --context 2048 --json > "$out/predict.json" 2>&1
"$roofline" export --python --on h200_sxm > "$out/products.py" 2> "$out/export.err" && python3 "$out/products.py" > "$out/torch.json" 2> "$out/torch.err"
"$roofline" compare --measured "$out/torch.json" --on h200 --json > "$out/torch-compared.json" 2> "$out/torch-compared.err"
"$roofline" monitor --once --json > "$out/monitor.json" 2> "$out/monitor.err"
