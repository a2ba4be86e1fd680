//! Against what llama.cpp's converter and quantizer give.

use roofline_core::plan::Mix;
use serde_json::json;

use super::*;
use crate::gguf::family::Conversion;
use crate::{
    ggml::Type,
    gguf::{Array, Value},
};

struct Golden(Json);

impl Golden {
    fn read() -> Self {
        Self(serde_json::from_str(include_str!("../../../tests/golden/ggml_llama.json")).unwrap())
    }

    /// The model of that name, as its files say.
    fn model(&self, name: &str) -> Model {
        let of = &self.0[name];
        let bytes = |file: &str| of.get(file).map(|content| serde_json::to_vec(content).unwrap());
        let (tokenizer, config) = (bytes("tokenizer.json"), bytes("tokenizer_config.json"));
        let added = bytes("added_tokens.json");
        let pieces = of["tokenizer.model"].as_str().map(|hex| {
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect::<Vec<_>>()
        });
        let files = Files {
            tokenizer: tokenizer.as_deref(),
            config: config.as_deref(),
            sentencepiece: pieces.as_deref(),
            added: added.as_deref(),
            chat_template: of["chat_template.jinja"].as_str(),
        };
        let title = of["metadata"].as_array().unwrap().iter().find(|key| key[0] == "general.name").unwrap();
        Model::new(title[2].as_str().unwrap(), &of["config.json"], &files, true).unwrap()
    }
}

/// A type's name and a value's JSON, as gguf's reader gives them.
fn plain(value: &Value) -> (&'static str, Json) {
    match value {
        Value::String(text) => ("string", json!(text)),
        Value::U32(number) => ("uint32", json!(number)),
        Value::F32(number) => ("float32", json!(f64::from(*number))),
        Value::Bool(yes) => ("bool", json!(yes)),
        Value::Array(Array::String(items)) => ("array/string", json!(items)),
        Value::Array(Array::I32(items)) => ("array/int32", json!(items)),
        Value::Array(Array::F32(items)) => {
            ("array/float32", json!(items.iter().map(|item| f64::from(*item)).collect::<Vec<_>>()))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn metadata_are_those_of_the_converter() {
    let golden = Golden::read();
    for name in ["llama3", "spm"] {
        let model = golden.model(name);
        assert!(model.notes().is_empty(), "{:?}", model.notes());
        let theirs = golden.0[name]["metadata"].as_array().unwrap();
        let size = theirs.iter().find(|key| key[0] == "general.size_label").unwrap()[2].as_str().unwrap();
        let ours = model.metadata(32, size);
        for ((key, value), theirs) in ours.iter().zip(theirs) {
            let (ty, value) = plain(value);
            assert_eq!(
                (key.as_str(), ty, &value),
                (theirs[0].as_str().unwrap(), theirs[1].as_str().unwrap(), &theirs[2])
            );
        }
        assert_eq!(ours.len(), theirs.len(), "{name}");
    }
}

/// A model without much of a vocabulary.
fn small(more: &Json) -> Model {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 9,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 8, "rms_norm_eps": 1e-6,
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let output = config["tie_word_embeddings"] != Json::Bool(true);
    let tokenizer = br#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}, "pre_tokenizer": null}"#;
    Model::new("small", &config, &Files { tokenizer: Some(tokenizer), ..Files::default() }, output).unwrap()
}

#[test]
fn types_are_those_of_the_quantizer() {
    let golden = Golden::read();
    let mut checked = 0;
    for (name, more, tensors) in [
        ("plain", json!({}), &["self_attn.v_proj", "mlp.down_proj", "mlp.up_proj"][..]),
        (
            "tied",
            json!({"tie_word_embeddings": true, "num_hidden_layers": 16, "hidden_size": 288, "num_attention_heads": 6}),
            &["self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj", "mlp.gate_proj"],
        ),
        (
            "mixtral",
            json!({"architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "num_hidden_layers": 3}),
            &["self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "block_sparse_moe.experts.3.w2"],
        ),
    ] {
        let model = small(&more);
        let (anatomy, columns) = (model.anatomy(), if name == "tied" { 288 } else { 256 });
        for (mix, exceptions) in golden.0["mixes"][name].as_object().unwrap() {
            let mix = Mix::named(mix).unwrap();
            let layers = (0..anatomy.order.len()).flat_map(|layer| tensors.iter().map(move |tensor| (layer, tensor)));
            let names = layers.map(|(layer, tensor)| format!("model.layers.{layer}.{tensor}.weight"));
            for name in names.chain(["model.embed_tokens.weight".to_owned(), "lm_head.weight".to_owned()]) {
                let Some(target) = model.tensor(&name).unwrap().pop() else { continue };
                let short = target.name.trim_end_matches(".weight").trim_start_matches("blk.");
                let expected = exceptions.as_object().unwrap().iter();
                let expected = expected.filter(|(_, list)| list.as_str().unwrap().split(' ').any(|one| one == short));
                let expected =
                    expected.map(|(ty, _)| Type::named(ty).unwrap()).next().unwrap_or(Type::of(mix.base()).unwrap());
                let columns = if target.name.contains("ffn_down") { 512 } else { columns };
                let ours = mix.type_of(recipe_role(&target.name), target.layer, columns, &anatomy);
                assert_eq!(Type::of(ours), Some(expected), "{mix:?} {}", target.name);
                checked += 1;
            }
        }
    }
    assert!(checked > 700, "{checked}");
}

/// Whether a list of `attn_v:0,2-4` and `output` has a tensor.
fn has(list: &Json, tensor: &str, layer: Option<usize>) -> bool {
    list.as_str().unwrap().split(' ').any(|one| match (one.split_once(':'), layer) {
        (Some((name, runs)), Some(layer)) => {
            let number = |text: &str| text.parse::<usize>().unwrap();
            let within = |run: &str| {
                let (from, to) = run.split_once('-').unwrap_or((run, run));
                (number(from)..=number(to)).contains(&layer)
            };
            name == tensor && runs.split(',').any(within)
        }
        (None, None) => one == tensor,
        _ => false,
    })
}

/// Without an importance matrix and with one, as `llama-quantize --dry-run` tells.
#[test]
fn types_of_narrow_recipes_are_those_of_the_quantizer() {
    let golden: Json = serde_json::from_str(include_str!("../../../tests/golden/ggml_recipes.json")).unwrap();
    let mut checked = 0;
    for (name, more) in [
        ("plain", json!({})),
        ("shared", json!({"num_hidden_layers": 16, "num_attention_heads": 8})),
        (
            "tied",
            json!({"tie_word_embeddings": true, "num_hidden_layers": 16, "hidden_size": 288, "num_attention_heads": 6,
                "num_key_value_heads": 3}),
        ),
        ("mixtral", json!({"architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "num_hidden_layers": 16})),
        ("four", json!({"architectures": ["MixtralForCausalLM"], "num_local_experts": 4})),
    ] {
        let (anatomy, width) = (small(&more).anatomy(), more["hidden_size"].as_u64().unwrap_or(256));
        let experts = if anatomy.experts > 0 { "_exps" } else { "" };
        let inner = ["gate", "up", "down"].map(|which| format!("ffn_{which}{experts}"));
        let names: Vec<String> =
            ["attn_q", "attn_k", "attn_v", "attn_output"].map(str::to_owned).into_iter().chain(inner).collect();
        let layers =
            (0..anatomy.order.len()).flat_map(|layer| names.iter().map(move |name| (name.as_str(), Some(layer))));
        let ends = ["token_embd", "output"].into_iter().take(if anatomy.tied { 1 } else { 2 }).map(|name| (name, None));
        let all: Vec<(&str, Option<usize>)> = layers.chain(ends).collect();
        for (mix, of) in golden["models"][name].as_object().unwrap() {
            let mix = Mix::named(mix).unwrap();
            for ((tensor, layer), which) in all.iter().flat_map(|one| ["plain", "weighed"].map(|which| (one, which))) {
                let mut listed = of[which].as_object().unwrap().iter();
                let expected = listed.find(|(_, list)| has(list, tensor, *layer));
                let expected = expected.map_or(Type::of(mix.base()), |(ty, _)| Type::named(ty));
                let full = layer.map_or(format!("{tensor}.weight"), |layer| format!("blk.{layer}.{tensor}.weight"));
                let columns = if tensor.contains("ffn_down") { 256 } else { width };
                let type_of = if which == "plain" { Mix::type_of } else { Mix::type_with_importance };
                let ours = type_of(mix, recipe_role(&full), *layer, columns, &anatomy);
                assert_eq!(Type::of(ours), expected, "{name} {mix:?} {which} {full}");
                checked += 1;
            }
        }
    }
    assert!(checked > 6000, "{checked}");
}

#[test]
fn tensors_get_llama_cpps_names() {
    let model = small(&json!({"architectures": ["MixtralForCausalLM"], "num_local_experts": 4}));
    for (theirs, ours, conversion, expert) in [
        ("model.embed_tokens.weight", "token_embd.weight", Conversion::Same, None),
        ("model.norm.weight", "output_norm.weight", Conversion::Same, None),
        ("lm_head.weight", "output.weight", Conversion::Same, None),
        ("model.layers.3.self_attn.q_proj.weight", "blk.3.attn_q.weight", Conversion::QueryPairs, None),
        ("model.layers.3.self_attn.k_proj.bias", "blk.3.attn_k.bias", Conversion::KeyPairs, None),
        ("model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight", Conversion::Same, None),
        ("model.layers.8.post_attention_layernorm.weight", "blk.8.ffn_norm.weight", Conversion::Same, None),
        ("model.layers.8.block_sparse_moe.gate.weight", "blk.8.ffn_gate_inp.weight", Conversion::Same, None),
        (
            "model.layers.8.block_sparse_moe.experts.3.w1.weight",
            "blk.8.ffn_gate_exps.weight",
            Conversion::Expert,
            Some(3),
        ),
        (
            "model.layers.8.block_sparse_moe.experts.0.w2.weight",
            "blk.8.ffn_down_exps.weight",
            Conversion::Expert,
            Some(0),
        ),
    ] {
        let target = model.tensor(theirs).unwrap().remove(0);
        assert_eq!((target.name.as_str(), target.conversion, target.expert), (ours, conversion, expert));
    }
    assert_eq!(model.tensor("model.layers.0.self_attn.rotary_emb.inv_freq").unwrap(), []);
    for unknown in [
        "model.layers.9.mlp.up_proj.weight",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.block_sparse_moe.experts.4.w1.weight",
        "model.layers.0.input_layernorm.bias",
        "model.layers.0.mlp.up_proj.weight_scale",
        "model.layers.x.mlp.up_proj.weight",
        "visual.patch_embed.weight",
    ] {
        assert!(model.tensor(unknown).unwrap_err().to_string().contains(unknown));
    }
    let qwen = small(&json!({"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": true}));
    assert_eq!(qwen.tensor("lm_head.weight").unwrap(), []);
    assert_eq!(qwen.tensor("model.layers.0.self_attn.q_proj.weight").unwrap()[0].conversion, Conversion::Same);
    assert_eq!(qwen.tensor("model.layers.0.self_attn.q_norm.weight").unwrap()[0].name, "blk.0.attn_q_norm.weight");
}

/// One tensor may become two, models that see are written without what sees, and what llama.cpp takes for granted has to be so.
#[test]
fn families_differ() {
    let names = |model: &Model, name: &str| -> Vec<String> {
        model.tensor(name).unwrap().into_iter().map(|target| target.name).collect()
    };
    let latent = json!({"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 64, "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 4});
    let model = small(&latent);
    let unfolds = "model.layers.1.self_attn.kv_b_proj.weight";
    assert_eq!(names(&model, unfolds), ["blk.1.attn_k_b.weight", "blk.1.attn_v_b.weight"]);
    assert_eq!(names(&model, "model.layers.1.mlp.gate.e_score_correction_bias"), ["blk.1.exp_probs_b.bias"]);
    // What guesses further tokens is left out.
    assert!(names(&model, "model.layers.9.eh_proj.weight").is_empty());
    let sees = small(&json!({"architectures": ["Gemma3ForConditionalGeneration"], "tie_word_embeddings": true}));
    assert!(names(&sees, "vision_tower.encoder.layers.0.mlp.fc1.weight").is_empty());
    assert!(sees.notes().iter().any(|note| note.contains("mmproj")));
    assert_eq!(names(&sees, "language_model.model.layers.2.mlp.up_proj.weight"), ["blk.2.ffn_up.weight"]);
    assert_eq!(sees.tensor("language_model.model.norm.weight").unwrap()[0].conversion, Conversion::PlusOne);
    let stacks = small(&json!({"architectures": ["GptOssForCausalLM"], "num_local_experts": 4}));
    assert_eq!(
        names(&stacks, "model.layers.0.mlp.experts.gate_up_proj"),
        ["blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"]
    );
    let code = small(&json!({"architectures": ["Starcoder2ForCausalLM"]}));
    assert_eq!(names(&code, "model.layers.0.input_layernorm.bias"), ["blk.0.attn_norm.bias"]);
    let config = json!({"architectures": ["Qwen3MoeForCausalLM"], "norm_topk_prob": false});
    let said = Model::new("small", &config, &Files::default(), true).unwrap_err().to_string();
    assert!(said.contains("`norm_topk_prob` is false") && said.contains("llama.cpp"), "{said}");
}

#[test]
fn rows_of_heads_follow_from_the_configuration() {
    let model = small(&json!({"head_dim": 32}));
    for (name, rows) in [("q_proj.weight", 128), ("k_proj.weight", 64), ("v_proj.weight", 64), ("k_proj.bias", 64)] {
        let target = model.tensor(&format!("model.layers.0.self_attn.{name}")).unwrap().remove(0);
        assert_eq!(model.rows(&target), Some(rows), "{name}");
    }
    let output = model.tensor("model.layers.0.self_attn.o_proj.weight").unwrap().remove(0);
    assert_eq!(model.rows(&output), None);
}

#[test]
fn sizes_have_two_digits() {
    for (weights, label) in
        [(8_030_261_248, "8.0B"), (70_553_706_496, "71B"), (1_800_000, "1.8M"), (400, "0.40K"), (1_000_001, "1.0M")]
    {
        assert_eq!(size_label(weights, 0, 0), label);
    }
    assert_eq!(size_label(1_000_000_000, 5_600_000_000, 8), "8x6.6B");
}

#[test]
fn configurations_that_contradict_themselves_are_refused() {
    for (more, reason) in [
        (json!({"architectures": ["GPT2LMHeadModel"]}), "GPT2LMHeadModel"),
        (json!({"num_hidden_layers": null}), "num_hidden_layers"),
        (json!({"num_hidden_layers": 4_000_000_000u32}), "4000000000 layers"),
        (json!({"num_attention_heads": 0}), "num_attention_heads"),
        (json!({"rms_norm_eps": null}), "rms_norm_eps"),
        (json!({"num_key_value_heads": 3}), "for 3 of keys"),
        (json!({"rope_scaling": {"type": "magic"}}), "magic"),
        (json!({"head_dim": 4_294_967_294u32}), "heads of 4294967294"),
        (json!({"num_attention_heads": 1000}), "heads of 0"),
        (json!({"vocab_size": 1_u64 << 40}), "2^22"),
        (json!({"vocab_size": 1}), "the token `b` has the number 1, and the vocabulary 1"),
    ] {
        let mut config = json!({"architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 9,
            "num_attention_heads": 4, "rms_norm_eps": 1e-5});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let tokenizer = br#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}}}"#;
        let files = Files { tokenizer: Some(tokenizer), ..Files::default() };
        let said = Model::new("small", &config, &files, true).unwrap_err().to_string();
        assert!(said.contains(reason), "{said:?} lacks {reason:?}");
    }
}

#[test]
fn tokenizers_that_contradict_themselves_are_refused() {
    let config = json!({"architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 9,
        "num_attention_heads": 4, "rms_norm_eps": 1e-5});
    for (tokenizer, reason) in [
        (&b""[..], "EOF"),
        (b"{}", "neither"),
        (br#"{"model": {"type": "Unigram"}}"#, "neither"),
        (br#"{"model": {"type": "BPE"}}"#, "no vocabulary"),
        (br#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}}}"#, "`a` and `b` have the number 0"),
        (br#"{"model": {"type": "BPE", "vocab": {"a": -1}}}"#, "`a` has no number"),
        (br#"{"model": {"type": "BPE", "vocab": {"a": 99999999999}}}"#, "99999999999"),
        (br#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}}"#, "no pair"),
        (br#"{"model": {"type": "BPE", "vocab": {"a": 0}}, "added_tokens": [{"id": 1}]}"#, "no added token"),
    ] {
        let files = Files { tokenizer: Some(tokenizer), ..Files::default() };
        let said = Model::new("small", &config, &files, true).unwrap_err().to_string();
        assert!(said.contains(reason), "{said:?} lacks {reason:?}");
    }
    let files = Files { sentencepiece: Some(b"\xff"), ..Files::default() };
    assert!(Model::new("small", &config, &files, true).unwrap_err().to_string().contains("tokenizer.model"));
}

#[test]
fn a_vocabulary_is_padded_and_an_unknown_split_is_said() {
    let model = small(&json!({}));
    let metadata = model.metadata(15, "1K");
    let value = |key: &str| metadata.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone()).unwrap();
    let Value::Array(Array::String(tokens)) = value("tokenizer.ggml.tokens") else { panic!() };
    assert_eq!((tokens.len(), tokens[2].as_str()), (8, "[PAD2]"));
    assert_eq!(value("tokenizer.ggml.pre"), "default".into());
    assert_eq!(value("general.file_type"), Value::U32(15));
    // What the file leaves out, transformers computes.
    assert_eq!(value("llama.attention.key_length"), Value::U32(64));
    assert!(model.notes()[0].contains("tokenizer.ggml.pre"));
}
