//! Whole models: published parameter counts, caches, and the floors that no forecast may pass.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::HashMap;

use common::{named as device, near};
use roofline_core::{
    Device, Dim, Error, Format, Graph, Machine, Model, Plan,
    format::Sizes,
    machine::Stack,
    model::{self, Lowering, Workload},
    plan::Assignment,
    predict::{Bound, Forecast, predict},
    soundness,
};

fn assigned(precision: &str, model: &Model, device: &Device) -> Assignment {
    precision.parse::<Plan>().unwrap().on(device, Some(&model.anatomy)).unwrap()
}

fn predicted(graph: &Graph, precision: &str, device: &Device) -> Forecast {
    predict(graph, &precision.parse().unwrap(), &Machine::new(device.clone(), Stack::Roofline)).unwrap()
}

fn run(model: &str, precision: &str, workload: Workload, device: &Device) -> Forecast {
    let graph = Model::find(model).unwrap().graph(workload, Lowering::default()).unwrap();
    predicted(&graph, precision, device)
}

#[test]
fn every_model_has_its_published_parameters() {
    assert!(Model::builtin().len() == model::files().len() && model::files().len() >= 128);
    assert_eq!(soundness::models(), Vec::<String>::new());
    for model in Model::builtin() {
        let published = model.published.as_ref().unwrap();
        // Publishers round active counts, and some leave the embedding out.
        if let Some(active) = published.active {
            let embedding = model.vocabulary.get() as f64 * model.hidden.get() as f64;
            let counted = model.active_parameters() as f64;
            let close = |count: f64| (count / active as f64 - 1.0).abs() < 0.03;
            assert!(close(counted) || close(counted - embedding), "{}: {counted}", model.key);
        }
    }
}

#[test]
fn names_are_unique_and_found() {
    let mut owners: HashMap<String, &str> = HashMap::new();
    for model in Model::builtin() {
        for name in model.aliases.iter().chain([&model.key]) {
            assert!(owners.insert(name.replace('_', "-"), &model.key).is_none(), "{name} twice");
            assert_eq!(Model::find(name).unwrap().key, model.key, "{name}");
        }
    }
    let error = Model::find("lama-3-8b").unwrap_err();
    assert_eq!(error.to_string(), "unknown model `lama-3-8b`; did you mean `llama-3-8b`?");
}

/// Bytes of keys and values per token at 16 bit where layers differ; the others are golden values.
#[test]
fn kv_bytes_per_token() {
    let per_token = |model: &str, context: u64| {
        let model = Model::find(model).unwrap();
        let context_dim = Dim::new("context", context).unwrap();
        model.kv_bytes(Dim::ONE, context_dim, Dim::ONE, Format::BF16, Sizes::Exact).value() / context as f64
    };
    // Sliding windows: Mistral v0.1 keeps 4096 tokens in every layer.
    assert_eq!(per_token("mistral-7b", 4096), 131_072.0);
    assert_eq!(per_token("mistral-7b", 40_960), 13_107.2);
    // Gemma 3 27B: 62 layers, one in six global, windows of 1024: 52 windowed, 10 global (16 KV heads of 128).
    let gemma = 2.0 * 16.0 * 128.0 * 2.0;
    assert_eq!(per_token("gemma-3-27b", 102_400) * 102_400.0, gemma * (10.0 * 102_400.0 + 52.0 * 1024.0));
    // gpt-oss 120B: 36 layers, every other one with a window of 128 (8 KV heads of 64).
    assert_eq!(per_token("gpt-oss-120b", 128_000) * 128_000.0, 2.0 * 8.0 * 64.0 * 2.0 * 18.0 * (128_000.0 + 128.0));
}

/// Operations of a decoded token are twice the parameters that meet it (the embedding is a look-up), and attention.
#[test]
fn flops_per_token() {
    let h200 = device("h200");
    for key in [
        "tinyllama-1.1b",
        "llama-2-7b",
        "llama-2-13b",
        "llama-3-8b",
        "llama-3.1-70b",
        "mistral-7b",
        "mixtral-8x7b",
        "qwen2.5-7b",
        "qwen3-30b-a3b",
        "deepseek-v3",
    ] {
        let model = Model::find(key).unwrap();
        let flops = run(key, "bf16", Workload::decode(1, 1).unwrap(), &h200).total.ideal.work.flops.value();
        let embedding = if model.tied { 0.0 } else { model.vocabulary.get() as f64 * model.hidden.get() as f64 };
        // Norms, biases and one key's attention are the difference.
        near(flops, 2.0 * (model.active_parameters() as f64 - embedding), 2e-3);
    }
}

/// Physical floors at 2048 tokens, FP16, batch 1: dense peaks; weights, LM head and cache read once; causal attention.
/// Decode / prefill in ms.
#[test]
fn forecasts_are_the_floor() {
    for (model, gpu, decode, prefill) in [
        ("llama-2-7b", "a100", 7.01, 88.5),
        ("llama-2-7b", "h100", 4.27, 27.9),
        ("llama-3-8b", "a100", 7.49, 95.2),
        ("llama-3-8b", "h100", 4.56, 30.0),
    ] {
        let gpu = device(gpu);
        let time = |workload| run(model, "fp16", workload, &gpu).total.ideal.time().micros() / 1e3;
        near(time(Workload::decode(1, 2048).unwrap()), decode, 0.02);
        near(time(Workload::prefill(1, 2048).unwrap()), prefill, 0.02);
    }
}

/// Llama-3 8B on an H200, decoding at 4096.
#[test]
fn llama_3_8b_on_an_h200() {
    let h200 = device("h200");
    let decode = Workload::decode(1, 4096).unwrap();
    let bf16 = run("llama-3-8b", "bf16", decode, &h200).total.ideal;
    // 7.504e9 weights without the embedding, 16 bit: 15.01 GB, and 0.54 GB of cache.
    near(bf16.work.bytes().value(), 15.01e9 + 0.537e9, 0.001);
    near(bf16.time().micros(), 3248.0, 0.005); // 15,590,623,744 B forgets nothing but counts scores in memory
    assert!(run("llama-3-8b", "w4a16", decode, &h200).total.ideal.time().micros() < 1150.0);
    let prefill = run("llama-3-8b", "bf16", Workload::prefill(1, 2048).unwrap(), &h200).total.ideal;
    assert_eq!(prefill.bound(), Bound::Compute);
}

/// Sums over operators that circulate for Llama-3 8B in FP16. They count a norm per layer instead of two, and leave out
/// rotations, cache writes, the embedding and the last norm; with those taken away ours are the same to the byte.
#[test]
fn eager_sums_match_the_published_ones() {
    let h200 = device("h200");
    let model = Model::find("llama-3-8b").unwrap();
    let sums = |workload, all_logits, causal| {
        let lowering = Lowering { fused: false, all_logits, causal, ..Lowering::default() };
        let forecast = predicted(&model.graph(workload, lowering).unwrap(), "fp16", &h200);
        let counted = |site: &str| match site {
            "rope" | "kv_write" | "embedding" | "final_norm" => 0.0,
            "rmsnorm" => 0.5,
            _ => 1.0,
        };
        let pairs = |site: &str| ["qk_score", "softmax", "sv_prod"].contains(&site);
        let mut sums = (0.0, 0.0, 0.0);
        for kernel in &forecast.kernels {
            let (node, estimate) = (kernel.node, kernel.prediction.ideal);
            sums.0 += counted(node.site) * estimate.work.flops.value();
            sums.1 += counted(node.site) * estimate.work.bytes().value();
            sums.2 += if pairs(node.site) { estimate.work.flops.value() } else { 0.0 };
        }
        sums
    };
    let (flops, bytes, _) = sums(Workload::decode(1, 4096).unwrap(), false, true);
    assert_eq!((flops, bytes), (17_180_065_792.0, 15_590_623_744.0));
    // Prefill: logits for every token, and no causal mask, which would leave S(S+1)/2 of the S^2 pairs.
    let (flops, _, pairs) = sums(Workload::prefill(1, 2048).unwrap(), true, false);
    near(flops, 3.2964e13, 2e-5);
    near(pairs / sums(Workload::prefill(1, 2048).unwrap(), true, true).2, 2.0 * 2048.0 / 2049.0, 1e-12);
    // Mistral 7B's 14,482,931,712 bytes are all parameters but the 65 norms.
    let mistral = Model::find("mistral-7b").unwrap();
    assert_eq!(2 * (mistral.parameters() - 65 * 4096), 14_482_931_712);
}

/// Weights equal the cache at weight bytes / cache bytes per token. 114,512 tokens (28,628 for 4-bit weights) circulates
/// for Llama-3 8B with the embedding counted and the 4-bit head without its 16 bit; 1600 to 7300 is simply wrong.
#[test]
fn kv_crossover() {
    let h200 = device("h200");
    let model = Model::find("llama-3-8b").unwrap();
    let plan = assigned("bf16", &model, &h200);
    let read = roofline_core::units::Bytes::new(2.0 * (model.parameters() as f64 - 128_256.0 * 4096.0));
    let crossover = model.kv_crossover(Dim::ONE, Dim::ONE, plan.kv(), Sizes::Exact, read).unwrap();
    near(crossover as f64, 114_512.0, 0.001);
    // A windowed cache never grows to the weights.
    let mistral = Model::find("mistral-7b").unwrap();
    assert_eq!(mistral.kv_crossover(Dim::ONE, Dim::ONE, plan.kv(), Sizes::Exact, read), None);
}

/// A device known by its bandwidth and one peak runs whole models: what only moves bytes needs no unit.
#[test]
fn a_custom_device_runs_models() {
    let custom = Device::custom(
        "custom",
        "60 GB/s".parse().unwrap(),
        roofline_core::device::Peaks::distinct([(roofline_core::Math::Fp16, "2.7 TFLOP/s".parse().unwrap())]).unwrap(),
        None,
    );
    let time = run("llama-3-8b", "fp16", Workload::decode(1, 1).unwrap(), &custom.unwrap()).total.ideal.time();
    near(time.seconds().value(), 15.0e9 / 60e9, 0.002);
}

/// Written scores are memory, too: 32 heads of 131072^2 / 2 halves, and as many bytes again for the softmax.
#[test]
fn eager_attention_does_not_fit() {
    let h200 = device("h200");
    let model = Model::find("llama-3-8b").unwrap();
    let lowering = Lowering { fused: false, ..Lowering::default() };
    let prefill = Workload::prefill(1, 131_072).unwrap();
    let footprint = model.footprint(prefill, lowering, &assigned("bf16", &model, &h200), Sizes::Exact).unwrap();
    near(footprint.activations.value(), 2.0 * 32.0 * 131_072f64.powi(2) / 2.0 * 2.0, 0.01);
}

/// Few new tokens over a long context run on the compressed vectors; a prompt expands its keys.
#[test]
fn latent_attention_takes_the_cheaper_form() {
    let model = Model::find("deepseek-v2-lite").unwrap();
    let expands = |new, context| {
        let graph = model.graph(Workload::chunk(1, new, context).unwrap(), Lowering::default()).unwrap();
        graph.nodes.iter().any(|node| {
            matches!(node.op, roofline_core::Op::Attention(attention) if attention.cache == roofline_core::op::Cache::Expanded)
        })
    };
    assert!(!expands(1, 4096) && !expands(5, 4096) && expands(4096, 4096) && expands(2048, 4096));
}

#[test]
fn memory_counts_every_expert() {
    let h200 = device("h200");
    let model = Model::find("mixtral-8x7b").unwrap();
    let decode = Workload::decode(1, 1).unwrap();
    let footprint =
        model.footprint(decode, Lowering::default(), &assigned("bf16", &model, &h200), Sizes::Exact).unwrap();
    near(footprint.weights.value(), 2.0 * 46.703e9, 1e-3);
    // One token reads two of eight experts. A hundred read all if they choose evenly, and two if they agree: that is the
    // floor, and the even choice what to expect.
    let total = |batch| run("mixtral-8x7b", "bf16", Workload::decode(batch, 1).unwrap(), &h200).total;
    near(total(1).ideal.work.read.value(), 2.0 * 12.88e9 - 2.0 * 0.131e9, 0.01);
    assert!(total(100).ideal.work.read.value() < 2.0 * 13.5e9);
    assert!(total(100).expected.time.seconds().value() > 2.0 * 46.4e9 / 4.8e12);
}

#[test]
fn footprints_match_the_published_sizes() {
    let h200 = device("h200");
    // NF4 Mistral 7B with 16-bit embedding and head: 4.45 GB by arithmetic, 4.48 GB measured with bitsandbytes.
    let model = Model::find("mistral-7b").unwrap();
    let decode = Workload::decode(1, 1).unwrap();
    let nf4 = model.footprint(decode, Lowering::default(), &assigned("nf4", &model, &h200), Sizes::Exact).unwrap();
    near(nf4.weights.value(), 4.45e9, 0.005);
    for model in Model::builtin() {
        let bf16 = model.footprint(decode, Lowering::default(), &assigned("bf16", model, &h200), Sizes::Exact).unwrap();
        near(bf16.weights.value(), 2.0 * model.parameters() as f64, 1e-3);
    }
}

#[test]
fn what_fits() {
    let (h200, l4, a100) = (device("h200"), device("l4"), device("a100"));
    let model = Model::find("llama-3.1-70b").unwrap();
    let fits = |precision: &str, device: &Device, ranks: u64| {
        let lowering = Lowering { ranks: Dim::new("ranks", ranks).unwrap(), ..Lowering::default() };
        let decode = Workload::decode(1, 4096).unwrap();
        model.longest_context(decode, lowering, &assigned(precision, &model, device), Sizes::Exact, device).unwrap()
    };
    // An H200's driver reports 143,771 MiB ("141 GB" are GiB), of which a tenth is kept free: 135.7e9 bytes do not
    // hold 141.1e9 of BF16 weights. Two of them do, and 80 GiB hold four bits and tokens of 327,680 bytes.
    assert_eq!((fits("bf16", &h200, 1), fits("bf16", &a100, 1)), (None, None));
    near(fits("w4a16", &a100, 1).unwrap() as f64, (0.9 * 85_899_345_920.0 - 39.9e9) / 327_680.0, 0.02);
    assert!(fits("bf16", &h200, 2).unwrap() > 100_000);
    assert!(fits("w4a16", &h200, 1).unwrap() > 100_000);
    assert_eq!(fits("w4a16", &l4, 1), None);
}

#[test]
fn tensor_parallel_shares_the_work_and_pays_for_the_exchange() {
    let h200 = device("h200");
    let model = Model::find("llama-3.1-70b").unwrap();
    let decode = Workload::decode(1, 4096).unwrap();
    let time = |ranks: u64| {
        let lowering = Lowering { ranks: Dim::new("ranks", ranks).unwrap(), ..Lowering::default() };
        let graph = model.graph(decode, lowering).unwrap();
        predicted(&graph, "bf16", &h200)
    };
    let (one, two, eight) = (time(1), time(2), time(8));
    assert!(one.kernels.iter().all(|kernel| kernel.node.site != "all_reduce"));
    let reduces =
        |forecast: &Forecast| forecast.kernels.iter().find(|one| one.node.site == "all_reduce").unwrap().node.count;
    assert_eq!(reduces(&two), 160); // two per layer
    // A payload of 16 kB takes 14 steps of 0.6 us among eight: 8.4 us and 64 ns.
    near(eight.total.ideal.network.micros(), 160.0 * (14.0 * 0.6 + 2.0 * 7.0 / 8.0 * 16_384.0 / 450e3), 1e-6);
    assert!(two.total.ideal.time() < one.total.ideal.time() && eight.total.ideal.time() < two.total.ideal.time());
    let time = |forecast: &Forecast| forecast.total.ideal.time().seconds();
    near((time(&eight) - eight.total.ideal.network) / time(&one), 1.0 / 8.0, 0.01);
    let lowering = Lowering { ranks: Dim::new("ranks", 3).unwrap(), ..Lowering::default() };
    assert!(matches!(model.graph(decode, lowering), Err(Error::Shape(_))));
}

/// Unfused, every operator is there; fused, the same products with less traffic.
#[test]
fn fusion_is_another_list_for_the_same_work() {
    let h200 = device("h200");
    let prefill = Workload::prefill(1, 2048).unwrap();
    for model in Model::builtin() {
        let graph = |fused| model.graph(prefill, Lowering { fused, ..Lowering::default() }).unwrap();
        let forecast = |fused| predicted(&graph(fused), "bf16", &h200).total.ideal;
        let (fused, eager) = (forecast(true), forecast(false));
        assert!(fused.time() < eager.time(), "{}", model.key);
        // Norms, rotations and softmax are a few per cent of a small model's operations.
        near(fused.work.flops / eager.work.flops, 1.0, 0.06);
        assert!(graph(true).nodes.len() <= 16, "{}", model.key);
    }
    let sites: Vec<&str> = Model::find("llama-3-8b")
        .unwrap()
        .graph(prefill, Lowering { fused: false, ..Lowering::default() })
        .unwrap()
        .nodes
        .iter()
        .map(|node| node.site)
        .collect();
    let expected = [
        "embedding",
        "rmsnorm",
        "q_proj",
        "k_proj",
        "v_proj",
        "rope",
        "kv_write",
        "qk_score",
        "softmax",
        "sv_prod",
        "o_proj",
        "residual",
        "gate_proj",
        "up_proj",
        "silu_mul",
        "down_proj",
        "final_norm",
        "logit_proj",
    ];
    assert_eq!(sites, expected);
}

/// The same model from both dialects of transformers; an unknown one is named.
#[test]
fn config_json() {
    let four = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
        "rope_theta": 500000.0, "rope_scaling": null, "torch_dtype": "bfloat16", "tie_word_embeddings": false}"#;
    let five = four.replace(
        r#""rope_theta": 500000.0, "rope_scaling": null, "torch_dtype""#,
        r#""rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}, "head_dim": 128, "dtype""#,
    );
    let registered = Model::find("llama-3-8b").unwrap();
    for text in [four, &five] {
        let model = Model::from_config(text, "My Model").unwrap();
        assert_eq!((model.layers.clone(), model.parameters()), (registered.layers.clone(), registered.parameters()));
        assert_eq!(model.key, "my-model");
    }
    let why = |text: &str| Model::from_config(text, "x").unwrap_err().to_string();
    assert_eq!(why(&four.replace("llama", "mamba2")), "unknown architecture `mamba2`");
    assert!(why(&four.replace("32,\n", "1000000000000000000,\n")).contains("num_hidden_layers"));
    assert!(
        why(&four.replace("\"num_hidden_layers\": 32", "\"num_hidden_layers\": 20000"))
            .contains("20000 layers are more")
    );
    assert!(why(&four.replace("\"hidden_size\": 4096,", "")).contains("`hidden_size` is missing"));
    assert!(why(&four.replace("\"hidden_size\": 4096", "\"hidden_size\": -1")).contains("expected u64"));
    assert!(why(&four.replace("\"hidden_size\": 4096", "\"hidden_size\": 0")).contains("outside 1 to"));
    assert!(why(&four.replace("_value_heads\": 8", "_value_heads\": 7")).contains("cannot share"));
    assert!(why("{}").contains("`model_type` is missing"));
    // A mixture without experts is refused, not taken for a dense model; Mixtral's class has a default.
    let mixture = four.replace("llama", "qwen3_moe");
    assert!(why(&mixture).contains("`num_experts` is missing"));
    assert!(why(&mixture.replace("\"hidden_size\"", "\"num_experts\": 0, \"hidden_size\"")).contains("outside 1 to"));
    let mixtral = Model::from_config(&four.replace("llama", "mixtral"), "x").unwrap();
    assert!(mixtral.parameters() > mixtral.active_parameters());
    let odd = "\"sliding_window\": 9, \"layer_types\": [\"linear_attention\"], \"hidden_size\"";
    assert!(why(&four.replace("\"hidden_size\"", odd)).contains("`linear_attention` are not known"));
    // Published Gemma 3 files nest the text part and leave out what its class fills in.
    let gemma = r#"{"model_type": "gemma3", "quantization_config": {"quant_method": "awq"}, "text_config": {"model_type":
        "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}}"#;
    let gemma = Model::from_config(gemma, "x").unwrap();
    assert_eq!(gemma.parameters(), Model::find("gemma-3-4b").unwrap().parameters());
    assert_eq!(gemma.stored.unwrap().precision(), Some("w4a16"));
    assert!(why("[").contains("EOF"));
    let deep = "{\"text_config\": ".repeat(5000);
    assert!(why(&deep).contains("recursion limit"));
}
