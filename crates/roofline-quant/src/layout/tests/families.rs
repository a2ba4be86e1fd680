//! Names, experts and towers of families that differ from Llama. What is expected here is what `family_matrix.py` loads.

use serde_json::Value;

use super::*;
use crate::{Runtime, job::Companion, quantize, safetensors::Header};

/// A checkpoint of that configuration, whose numbers count up from one tensor to the next.
fn model(scratch: &Scratch, config: &Value, dtype: Dtype, tensors: &[(&str, &[usize])]) -> Checkpoint {
    std::fs::write(scratch.path().join("config.json"), config.to_string()).unwrap();
    let mut next = 0u16;
    let mut numbers = |shape: &[usize]| {
        let count = shape.iter().product::<usize>();
        let values = (0..count).map(|_| {
            next = (next + 1) % 251;
            f32::from(next) / 64.0
        });
        let bytes = |value: f32| match dtype {
            Dtype::F32 => value.to_le_bytes().to_vec(),
            // Numbers of a few bits are exact in both; a shift is not needed for those of FP16, which nobody reads here.
            _ => value.to_le_bytes()[2..].to_vec(),
        };
        values.flat_map(bytes).collect::<Vec<u8>>()
    };
    let tensors: Vec<(&str, Dtype, &[usize], Vec<u8>)> =
        tensors.iter().map(|(name, shape)| (*name, dtype, *shape, numbers(shape))).collect();
    write(&scratch.path().join(SINGLE), &tensors);
    Checkpoint::open(scratch.path()).unwrap()
}

/// The configuration that is written, or why nothing is.
fn config(checkpoint: &Checkpoint, layout: Layout, plan: &str, runtime: Option<Runtime>) -> Result<Value, String> {
    let plan: Plan = plan.parse().unwrap();
    let job = layout.job(checkpoint, &Request { runtime, ..request(layout, &plan) });
    let job = job.map_err(|error| format!("{error}; {}", error.hint().unwrap_or_default()))?;
    let (_, companion) = job.companions.iter().find(|(name, _)| name == "config.json").unwrap();
    let Companion::Bytes(bytes) = companion else { panic!("config.json is written anew") };
    Ok(serde_json::from_slice(bytes).unwrap())
}

/// A language model beside a tower that sees, as Gemma 3 is released.
fn seeing(scratch: &Scratch) -> Checkpoint {
    let config =
        json!({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "dtype": "bfloat16"});
    let tensors: &[(&str, &[usize])] = &[
        ("language_model.model.embed_tokens.weight", &[16, 128]),
        ("language_model.model.layers.0.mlp.up_proj.weight", &[128, 128]),
        ("language_model.model.layers.0.mlp.down_proj.weight", &[128, 128]),
        ("language_model.model.layers.1.mlp.up_proj.weight", &[128, 128]),
        ("vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight", &[128, 64]),
        ("multi_modal_projector.mm_input_projection_weight", &[64, 128]),
    ];
    model(scratch, &config, Dtype::Bf16, tensors)
}

/// transformers calls them `model.vision_tower...` and `model.language_model.layers...`: names of the checkpoint alone left the
/// tower without scales.
#[test]
fn towers_are_left_out_under_every_name() {
    let scratch = Scratch::new("towers");
    let checkpoint = seeing(&scratch);
    let written = config(&checkpoint, Layout::CompressedTensors, "w4a16,layers.0.up=keep", None).unwrap();
    let said = &written["quantization_config"];
    assert_eq!(
        said["ignore"],
        json!([
            "language_model.model.layers.0.mlp.up_proj",
            "lm_head",
            "model.language_model.layers.0.mlp.up_proj",
            r"re:(.*\.)?vision_tower\..*",
        ])
    );
    assert_eq!(said["config_groups"]["group_0"]["targets"], json!(["Linear"]));
    // Two schemes go by names, each in both forms.
    let written = config(&checkpoint, Layout::CompressedTensors, "w4a16,layers.1=fp8", None).unwrap();
    let targets = &written["quantization_config"]["config_groups"]["group_0"]["targets"];
    let names = ["language_model.model.layers.1.mlp.up_proj", "model.language_model.layers.1.mlp.up_proj"];
    assert_eq!(targets, &json!(names));
}

/// The library's metadata go by modules, its tensors by the checkpoint's names, and both are found again.
#[test]
fn torchao_speaks_of_modules() {
    let scratch = Scratch::new("modules");
    let checkpoint = seeing(&scratch);
    let plan: Plan = "w8a16".parse().unwrap();
    let target = std::env::temp_dir().join(format!("roofline-quant-modules-out-{}", std::process::id()));
    quantize(&checkpoint, &Request { target: target.clone(), ..request(Layout::Torchao, &plan) }, &|_: u64| {})
        .unwrap();
    let file = std::fs::File::open(target.join(SINGLE)).unwrap();
    let header = Header::read(&file, &target).unwrap();
    let name = "model.language_model.layers.0.mlp.up_proj.weight";
    let said = header.metadata.iter().find(|(key, _)| key == name).unwrap();
    assert!(said.1.contains("Int8Tensor"), "{}", said.1);
    let stored = "language_model.model.layers.0.mlp.up_proj._weight_qdata";
    assert!(header.tensors.iter().any(|tensor| tensor.name == stored));
    let written = Checkpoint::open(&target).unwrap();
    let kept = &written.config["quantization_config"]["modules_to_not_convert"];
    assert_eq!(kept, &json!([r"(?:.*\.)?vision_tower"]));
    let all = StoredTensor::all(&written).unwrap();
    assert_eq!(all.iter().filter(|stored| stored.is_coded()).count(), 3);
    std::fs::remove_dir_all(target).unwrap();
}

/// A model with two experts in each of two layers.
fn experts(scratch: &Scratch) -> Checkpoint {
    let config = json!({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]});
    let mut names = vec!["model.layers.0.self_attn.q_proj.weight".to_owned()];
    for layer in 0..2 {
        names.push(format!("model.layers.{layer}.block_sparse_moe.gate.weight"));
        for (expert, part) in [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)] {
            names.push(format!("model.layers.{layer}.block_sparse_moe.experts.{expert}.w{part}.weight"));
        }
    }
    let tensors: Vec<(&str, &[usize])> = names.iter().map(|name| (name.as_str(), &[128, 128][..])).collect();
    model(scratch, &config, Dtype::Bf16, &tensors)
}

/// Each of these loads as random numbers, as garbage or not at all in transformers 5.22, and is refused by its name; what
/// vLLM takes is written for vLLM alone.
#[test]
fn experts_that_a_runtime_cannot_load_are_refused() {
    let scratch = Scratch::new("experts");
    let checkpoint = experts(&scratch);
    let said = |plan: &str, runtime| config(&checkpoint, Layout::CompressedTensors, plan, runtime);
    for plan in [
        "w4a16",
        "int4-channel",
        "w8a16",
        "fp8",
        "mxfp4a16",
        "w4a16,attention=fp8",
        "fp8,experts=keep",
        "fp8,layers.0=keep",
    ] {
        assert!(said(plan, None).is_ok(), "{plan}: {:?}", said(plan, None));
    }
    for (plan, reason, by_vllm) in [
        ("nvfp4a16", "passes over their scales of whole tensors", true),
        ("int8", "looks for packed words", true),
        ("mxfp8", "looks for packed words", true),
        ("fp8-block", "does not apply their scales of blocks", true),
        ("int4-g128-zp", "does not find their zero points", false),
        ("fp8,down=w8a16", "loads experts of one scheme", false),
        ("w4a16,experts=keep", "finds plain experts only where the rest is `fp8`", true),
        ("w4a16,layers.0=keep", "does not find the experts that the plan leaves plain", true),
        ("w4a16,layers.1=fp8", "loads experts of one scheme", true),
    ] {
        let error = said(plan, None).unwrap_err();
        assert!(error.starts_with("transformers") && error.contains(reason), "{plan}: {error}");
        assert_eq!(error.contains("`⟨runtime vllm⟩`"), by_vllm, "{plan}: {error}");
        assert_eq!(said(plan, Some(Runtime::Vllm)).is_ok(), by_vllm, "{plan}");
    }
    let error = said("w4a16", Some(Runtime::LlamaCpp)).unwrap_err();
    assert!(error.starts_with("llama.cpp does not load compressed-tensors"), "{error}");
    // Experts go by a pattern, by which transformers finds their scheme.
    let written = said("w4a16,attention=fp8", None).unwrap();
    let groups = &written["quantization_config"]["config_groups"];
    assert_eq!(groups["group_1"]["targets"], json!([r"re:.*\.experts\.\d+\..*"]));
    assert_eq!(groups["group_0"]["targets"], json!(["model.layers.0.self_attn.q_proj"]));
    // Kept ones are left out layer by layer, under both names.
    let written = said("fp8,layers.0.experts=keep", None).unwrap();
    let ignore = written["quantization_config"]["ignore"].as_array().unwrap().clone();
    for pattern in [r"re:model\.layers\.0\.block_sparse_moe\.experts\..*", r"re:model\.layers\.0\.mlp\.experts\..*"] {
        assert!(ignore.contains(&json!(pattern)), "{ignore:?}");
    }
    let error = config(&checkpoint, Layout::Torchao, "w8a16", None).unwrap_err();
    assert!(error.starts_with("transformers loads experts of torchao checkpoints only plain"), "{error}");
    assert!(config(&checkpoint, Layout::Torchao, "w8a16,experts=keep", None).is_ok());
}

/// transformers makes modules of Llama 4's stacked experts wherever weights are quantized, and finds stacks no more.
#[test]
fn llama_4_has_its_experts_apart() {
    let scratch = Scratch::new("llama4");
    let config = json!({"model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"]});
    let tensors: &[(&str, &[usize])] = &[
        ("model.layers.0.feed_forward.experts.gate_up_proj", &[2, 128, 256]),
        ("model.layers.0.feed_forward.experts.down_proj", &[2, 128, 128]),
        ("model.layers.0.self_attn.q_proj.weight", &[128, 128]),
    ];
    let checkpoint = model(&scratch, &config, Dtype::F32, tensors);
    let target = std::env::temp_dir().join(format!("roofline-quant-llama4-out-{}", std::process::id()));
    let plan: Plan = "w8a16,experts=keep".parse().unwrap();
    let request = Request { target: target.clone(), ..request(Layout::CompressedTensors, &plan) };
    quantize(&checkpoint, &request, &|_: u64| {}).unwrap();
    let written = Checkpoint::open(&target).unwrap();
    let name = "model.layers.0.feed_forward.experts.1.up_proj.weight";
    let mut all = StoredTensor::all(&written).unwrap();
    let names: Vec<&str> =
        all.iter().map(|stored| stored.name.as_str()).filter(|name| name.contains("experts")).collect();
    assert_eq!(names.len(), 6);
    let at = all.iter().position(|stored| stored.name == name).unwrap();
    let (mut one, mut stack) = (vec![0.0; 128 * 128], vec![0.0; 2 * 128 * 256]);
    let spare = &mut crate::rows::Spare::default();
    all.remove(at).into_rows().unwrap().read(0..128, spare, &mut one).unwrap();
    let mut source = StoredTensor::all(&checkpoint).unwrap();
    let at = source.iter().position(|stored| stored.name.ends_with("gate_up_proj")).unwrap();
    source.remove(at).into_rows().unwrap().read(0..256, spare, &mut stack).unwrap();
    // Row and column of the second expert's way up.
    for (row, column) in [(0, 0), (5, 7), (127, 127)] {
        assert_eq!(one[row * 128 + column], stack[(128 + column) * 256 + 128 + row]);
    }
    // bitsandbytes' loader takes them apart as well, and then finds nothing.
    let error = self::config(&checkpoint, Layout::Bitsandbytes, "nf4,experts=keep", None).unwrap_err();
    assert!(error.contains("neither in stacks nor one by one"), "{error}");
    // And the way back.
    let back = target.with_extension("back");
    let plan: Plan = "fp32".parse().unwrap();
    let request = Request { target: back.clone(), ..super::request(Layout::Plain, &plan) };
    quantize(&written, &request, &|_: u64| {}).unwrap();
    let restored = Checkpoint::open(&back).unwrap();
    let bytes = |checkpoint: &Checkpoint, name: &str| {
        let tensors = checkpoint.tensors();
        let (shard, entry) = tensors[name];
        let mut bytes = vec![0; entry.bytes() as usize];
        shard.read(entry, 0, &mut bytes).unwrap();
        (entry.shape.clone(), bytes)
    };
    for (name, _) in &tensors[..2] {
        assert!(bytes(&restored, name) == bytes(&checkpoint, name), "{name}");
    }
    std::fs::remove_dir_all(target).unwrap();
    std::fs::remove_dir_all(back).unwrap();
}

/// Stacks that nothing takes apart are refused unless the plan keeps them.
#[test]
fn stacks_are_kept_by_a_rule_alone() {
    let scratch = Scratch::new("stacks");
    let tensors: &[(&str, &[usize])] = &[
        ("model.layers.0.mlp.experts.gate_up_proj", &[2, 128, 256]),
        ("model.layers.0.self_attn.q_proj.weight", &[128, 128]),
    ];
    let checkpoint = model(&scratch, &json!({"model_type": "gpt_oss"}), Dtype::Bf16, tensors);
    for layout in [Layout::CompressedTensors, Layout::Torchao] {
        let error = config(&checkpoint, layout, "w8a16", None).unwrap_err();
        assert!(error.contains("in a stack") && error.contains("`w8a16,experts=keep`"), "{error}");
        assert!(config(&checkpoint, layout, "w8a16,experts=keep", None).is_ok());
    }
}

/// What loads NVFP4 and MXFP4 gives weights in BF16, and a model of another type then multiplies two kinds of numbers.
#[test]
fn four_bit_floats_are_loaded_in_bfloat16() {
    let scratch = Scratch::new("bfloat16");
    let said = json!({"model_type": "llama", "torch_dtype": "float16", "text_config": {"dtype": "float16"}});
    let tensors: &[(&str, &[usize])] = &[("model.layers.0.self_attn.q_proj.weight", &[128, 128])];
    let checkpoint = model(&scratch, &said, Dtype::F16, tensors);
    for (plan, expected) in [("nvfp4a16", "bfloat16"), ("mxfp4a16", "bfloat16"), ("w4a16", "float16")] {
        let written = config(&checkpoint, Layout::CompressedTensors, plan, None).unwrap();
        assert_eq!(written["torch_dtype"], expected, "{plan}");
        assert_eq!(written["text_config"]["dtype"], expected, "{plan}");
    }
}

/// Falcon's products read and transpose their weights themselves.
#[test]
fn falcon_has_its_own_products() {
    let scratch = Scratch::new("falcon");
    let tensors: &[(&str, &[usize])] = &[("transformer.h.0.mlp.dense_h_to_4h.weight", &[128, 128])];
    let checkpoint = model(&scratch, &json!({"model_type": "falcon"}), Dtype::Bf16, tensors);
    assert!(config(&checkpoint, Layout::Torchao, "w8a16", None).unwrap_err().contains("transposes"));
    assert!(config(&checkpoint, Layout::Gptq, "w4a16", None).unwrap_err().contains("does not find GPTQ's codes"));
    let said = |plan: &str, runtime| config(&checkpoint, Layout::CompressedTensors, plan, runtime);
    assert!(said("w8a16", None).unwrap_err().contains("does not find packed codes"));
    assert!(said("w8a16", Some(Runtime::Vllm)).is_ok() && said("fp8", None).is_ok());
}
