//! `roofline recommend` as a user meets it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{roofline, shown};

fn recommend(arguments: &str) -> String {
    shown(&roofline(&[&["recommend"][..], &arguments.split_whitespace().collect::<Vec<_>>()].concat()))
}

macro_rules! snapshots {
    ($($name:ident: $arguments:expr;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(stringify!($name), recommend($arguments));
        })*
    };
}

snapshots! {
    // What people ask of small and large devices.
    edge_decode: "model llama-3-8b --on jetson_orin_nano --memory-limit 8GB --phase decode --context 4096";
    desk_decode: "model llama-3-8b --on gb10 --phase decode";
    prompt_on_h100: "model llama-3-8b --on h100_sxm --phase prefill --context 2048";
    edge_at_seven_watts: "gemv --n 4096 --k 4096 --on jetson_orin_nano@7W";
    request_on_h200: "model llama-3.1-8b --on h200 --prompt 512 --generate 256 --tier ideal";
    throughput_within_quality: "model llama-3-8b --on b200 --goal throughput --max-quality-loss 2%";
    desk_prompt: "model llama-3-8b --on gb10 --phase prefill --context 2048 --runtime vllm";
    edge_for_energy: "model llama-3-8b --on jetson_orin_nano --goal energy --context 2048";
    energy_by_fitted_terms: "model llama-3.1-8b --on h200 --goal energy --batch 8";
    cheapest: "model llama-3.1-8b --on h100_sxm --runtime vllm --goal cost --price 2.50 --max-quality-loss 3%";
    explained: "model qwen2.5-7b --on rtx_4090 --explain --plot --runtime vllm";
    explained_prompt: "model llama-3.1-8b --on h100_sxm --phase prefill --explain";
    any_quality: "model llama-3-8b --on h100_sxm --context 131072 --batch 4 --any-quality";
    unknown_runtime: "model llama-3-8b --on h200 --runtime tensorrt";
    cost_without_price: "model llama-3-8b --on h200 --goal cost";
    no_price: "model llama-3-8b --on h200 --goal cost --price 0";
    two_cards: "model llama-3.1-70b --on rtx_4090";
    one_card: "model llama-3.1-70b --on rtx_4090 --tp 1";
    two_h100: "model llama-3.1-70b --on h100_sxm --tp 2 --prompt 1024 --generate 256 --goal throughput";
    three_cards: "model llama-3.1-70b --on h100_sxm --tp 3";
    released: "model gpt-oss-20b --on rtx_4090 --stack roofline";
    limit_above: "model llama-3.2-1b --on jetson_orin_nano --memory-limit 80GB";
    whole_plan: "model llama-3-8b --on h100_sxm --allow fp8,ffn=w4a16,kv=fp8-e4m3";
    own_chip: "gemm --m 2048 --n 8192 --k 8192 --bandwidth 3TB/s --peak fp16=100TFLOP/s --peak fp8=2PFLOP/s --peak fp4=8PFLOP/s";
    own_chip_any_quality: "gemm --m 2048 --n 8192 --k 8192 --bandwidth 3TB/s --peak fp16=100TFLOP/s --peak fp8=2PFLOP/s --peak fp4=8PFLOP/s --any-quality";
    own_chip_model: "model llama-3-8b --bandwidth 3TB/s --peak fp16=100TFLOP/s --peak fp8=2PFLOP/s --phase prefill";
    tensor_unit: "model llama-3.1-8b --on tpu_v5e";
    nothing_fits: "model llama-3.1-405b --on jetson_orin_nano";
    nothing_fits_the_limit: "model llama-3-8b --on h200 --memory-limit 4GB";
    model_as_csv: "model llama-3.2-1b --on a100_sxm_80gb --csv --runtime transformers";
    product_as_json: "gemv --n 4096 --k 4096 --on jetson_orin_nano --json";
    zero_memory: "gemv --n 4096 --k 4096 --on h200 --memory-limit 0GB";
    contradictory: "model llama-3-8b --on h200 --allow fp8 --deny fp8";
    unknown_precision: "model llama-3-8b --on h200 --deny fp9";
}
