//! What is said where silence would mislead: about matrices that stay wide, files that are not there, numbers that are none.

use std::fs;

use serde_json::{Value, json};

use crate::made::{
    HIDDEN, INNER, Tensors, VOCABULARY, Weights, checkpoint, checkpoint_of, contents, roofline, said, shown, temporary,
    tensors, write,
};

/// The tensors of a small model, with more of them.
fn with(more: &[(&str, &[usize])]) -> Tensors {
    let mut all = tensors(1);
    let mut weights = Weights(3);
    for (name, shape) in more {
        all.push(((*name).to_owned(), "BF16", shape.to_vec(), weights.bf16(shape.iter().product())));
    }
    all
}

/// What a run prints.
fn ran(folder: &std::path::Path, source: &str, more: &[&str]) -> String {
    let target = folder.join("out");
    let to = target.to_str().unwrap();
    let output = roofline(&[&["quantize", source, "--to", to, "--force"], more].concat());
    assert!(output.status.success(), "{}", shown(&output, folder));
    // However the lines are broken.
    String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Matrices whose names tell no role stay wide, and every kind of them is named with its count and its share, unless
/// somebody asked for that.
#[test]
fn every_large_matrix_that_is_left_alone_is_named() {
    let folder = temporary("left");
    let all = with(&[
        ("model.layers.0.mixer.x_proj.weight", &[64, HIDDEN]),
        ("model.layers.1.mixer.x_proj.weight", &[64, HIDDEN]),
        // Too small for a scale of its own, a norm, and a bias of many experts.
        ("model.layers.0.mixer.small.weight", &[4, HIDDEN]),
        ("model.layers.0.mixer.norm.weight", &[HIDDEN]),
        ("model.layers.0.mlp.experts.gate_up_proj_bias", &[64, HIDDEN]),
        ("model.layers.0.mixer.table", &[64, HIDDEN]),
        ("visual.blocks.0.attn.qkv.weight", &[HIDDEN, HIDDEN]),
        ("visual.blocks.1.attn.qkv.weight", &[HIDDEN, HIDDEN]),
    ]);
    let source = checkpoint_of(&folder, "left", &json!({}), &all);
    let text = ran(&folder, &source, &["--plan", "w4a16"]);
    let parameters: usize = all.iter().map(|(_, _, shape, _)| shape.iter().product::<usize>()).sum();
    let share = |count: usize| format!("{:.1} %", 100.0 * count as f64 / parameters as f64);
    let kind = format!("`model.layers.*.mixer.x_proj` (2 of them, {})", share(2 * 64 * HIDDEN));
    assert!(text.contains(&kind), "{kind}: {text}");
    assert!(text.contains("`*.x_proj=w4a16`"), "{text}");
    assert!(text.contains(&format!("`model.layers.*.mixer.table` (1 of them, {})", share(64 * HIDDEN))), "{text}");
    let tower = format!("2 matrices of what sees or hears are left as they are: {}", share(2 * HIDDEN * HIDDEN));
    assert!(text.contains(&tower), "{tower}: {text}");
    for other in ["mixer.small", "mixer.norm`", "gate_up_proj_bias", "visual.blocks", "embed_tokens`", "lm_head`"] {
        assert!(!text.contains(other), "{other}: {text}");
    }
    // What was asked for is no news.
    let text = ran(&folder, &source, &["--plan", "w4a16,*.x_proj=w8a16"]);
    assert!(!text.contains("mixer.x_proj`"), "{text}");
    let text = ran(&folder, &source, &["--plan", "w4a16", "--keep", "*.x_proj", "--keep", "visual.*"]);
    assert!(!text.contains("mixer.x_proj`") && !text.contains("sees or hears"), "{text}");
}

/// Families with words of their own: what is a product in them is quantized.
#[test]
fn products_of_other_families_are_quantized() {
    let folder = temporary("families");
    let all = with(&[
        ("model.layers.0.mlp.c_fc.weight", &[INNER, HIDDEN]),
        ("model.layers.0.mlp.c_proj.weight", &[HIDDEN, INNER]),
        ("model.layers.0.mixer.in_proj.weight", &[INNER, HIDDEN]),
        ("model.layers.0.linear_attn.in_proj_qkvz.weight", &[INNER, HIDDEN]),
    ]);
    let source = checkpoint_of(&folder, "other", &json!({ "model_type": "starcoder2" }), &all);
    let text = ran(&folder, &source, &["--plan", "w4a16", "--all"]);
    for name in ["mlp.c_fc", "mlp.c_proj", "mixer.in_proj", "linear_attn.in_proj_qkvz"] {
        assert!(text.contains(&format!("model.layers.0.{name}.weight")), "{name}: {text}");
    }
    assert!(!text.contains("left as they are"), "{text}");
}

/// GPT-2's code has its matrices transposed: they are kept, it is said, and a rule that asks for them is refused.
#[test]
fn transposed_matrices_are_never_quantized() {
    let folder = temporary("transposed");
    let mut all = with(&[
        ("transformer.h.0.attn.c_attn.weight", &[HIDDEN, 3 * HIDDEN]),
        ("transformer.h.0.mlp.c_fc.weight", &[HIDDEN, INNER]),
        ("transformer.wpe.weight", &[64, HIDDEN]),
    ]);
    let more = json!({ "model_type": "gpt2" });
    let source = checkpoint_of(&folder, "mixed", &more, &all);
    let text = ran(&folder, &source, &["--plan", "w4a16"]);
    assert!(text.contains("transposed (Conv1D): `transformer.h.*.attn.c_attn`"), "{text}");
    let arguments = ["--plan", "w4a16,*.c_fc=w4a16", "--to", "nowhere"];
    let output = roofline(&[&["quantize", &source][..], &arguments].concat());
    assert!(said(&output).contains("`transformer.h.0.mlp.c_fc.weight`: is stored transposed"), "{}", said(&output));
    all.retain(|(name, ..)| name.starts_with("transformer."));
    let source = checkpoint_of(&folder, "gpt2", &more, &all);
    let output = roofline(&["quantize", &source, "--plan", "w4a16", "--to", "nowhere"]);
    assert_eq!(output.status.code(), Some(2), "{}", shown(&output, &folder));
    assert!(said(&output).contains("matrices transposed (Conv1D)"), "{}", said(&output));
}

/// Codes without a configuration are of no use, so they are not written; numbers are.
#[test]
fn without_a_configuration_only_numbers_are_written() {
    let folder = temporary("bare");
    let source = checkpoint(&folder, 1);
    fs::remove_file(source.join("config.json")).unwrap();
    let source = source.to_str().unwrap();
    let target = folder.join("out");
    for (plan, layout) in [("w4a16", "compressed-tensors"), ("w8a16", "torchao"), ("q8_0", "gguf")] {
        let output = roofline(&["quantize", source, "--plan", plan, "--as", layout, "--to", target.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{}", shown(&output, &folder));
        assert!(said(&output).contains("has no config.json"), "{}", said(&output));
        assert!(said(&output).contains("put the model's own config.json beside its weights"), "{}", said(&output));
        assert!(!target.exists());
    }
    assert!(roofline(&["quantize", source, "--plan", "f32", "--to", target.to_str().unwrap()]).status.success());
}

/// Code that a tokenizer's configuration names goes with the checkpoint; so do the licence and where it comes from.
#[test]
fn code_and_licence_go_with_the_checkpoint() {
    let folder = temporary("licence");
    let source = checkpoint(&folder, 1);
    fs::write(source.join("tokenization_tiny.py"), "class Tiny: pass\n").unwrap();
    let text = source.to_str().unwrap();
    let target = folder.join("out");
    let arguments = ["quantize", text, "--plan", "w4a16", "--force", "--to", target.to_str().unwrap()];
    assert!(roofline(&arguments).status.success());
    assert!(!target.join("tokenization_tiny.py").exists(), "nobody names it");
    let map = json!({ "auto_map": { "AutoTokenizer": ["tokenization_tiny.Tiny", null] } });
    fs::write(source.join("tokenizer_config.json"), map.to_string()).unwrap();
    fs::write(source.join("LICENSE"), "you may\n").unwrap();
    let card =
        "---\nlicense: other\nlicense_name: tiny\nlicense_link: https://example.com/a b\ntags:\n- x\n---\n# Tiny\n";
    fs::write(source.join("README.md"), card).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(source.join("config.json")).unwrap()).unwrap();
    config["_name_or_path"] = "someone/Tiny-1".into();
    fs::write(source.join("config.json"), config.to_string()).unwrap();
    assert!(roofline(&arguments).status.success());
    let written = contents(&target);
    assert_eq!(written["tokenization_tiny.py"], b"class Tiny: pass\n");
    assert_eq!(written["LICENSE"], b"you may\n");
    let card = String::from_utf8_lossy(&written["README.md"]);
    let expected = "---\nbase_model: someone/Tiny-1\nbase_model_relation: quantized\nlicense: other\nlicense_name: tiny\n\
                    license_link: \"https://example.com/a b\"\ntags:\n- compressed-tensors\n- w4a16\n---\n\n# ";
    assert!(card.starts_with(expected), "{card}");
}

/// What is copied is looked at, too: a number that is none is named wherever it is.
#[test]
fn a_kept_number_that_is_none_is_named() {
    let folder = temporary("none");
    // The embedding's row 3, column 5; and the last of a norm.
    for (tensor, at, code, expected) in [
        (0, 3 * HIDDEN + 5, [0xc0, 0x7f], "`model.embed_tokens.weight`: is NaN in row 3, column 5"),
        (1, HIDDEN - 1, [0x80, 0xff], "`model.layers.0.input_layernorm.weight`: is infinite in row 0, column 255"),
    ] {
        let mut all = tensors(1);
        all[tensor].3[2 * at..2 * at + 2].copy_from_slice(&code);
        let source = checkpoint_of(&folder, "none", &json!({}), &all);
        for plan in ["w4a16", "bf16,head=fp32"] {
            let target = folder.join("out");
            let output = roofline(&["quantize", &source, "--plan", plan, "--to", target.to_str().unwrap()]);
            assert_eq!(output.status.code(), Some(2), "{plan}: {}", shown(&output, &folder));
            assert!(said(&output).contains(expected), "{plan}: {}", said(&output));
            assert!(!target.exists());
        }
        fs::remove_dir_all(folder.join("none")).unwrap();
    }
}

/// A torchao checkpoint has one scheme; what is advised instead can really be done.
#[test]
fn a_mix_is_sent_where_it_can_be_stored() {
    let folder = temporary("mixes");
    let source = checkpoint(&folder, 1);
    let source = source.to_str().unwrap();
    for (plan, expected) in [
        ("w8a16,down=int8-g128", "use `--as compressed-tensors`, which stores all of them"),
        ("fp8a16,down=w8a16", "no layout stores all of them in one checkpoint"),
    ] {
        let output = roofline(&["quantize", source, "--plan", plan, "--as", "torchao", "--to", "nowhere"]);
        assert!(said(&output).contains(expected), "{plan}: {}", said(&output));
    }
    let target = folder.join("out");
    let arguments = ["quantize", source, "--plan", "w8a16,down=int8-g128", "--as", "compressed-tensors", "--to"];
    assert!(roofline(&[&arguments[..], &[target.to_str().unwrap()]].concat()).status.success());
}

/// What a configuration says of a model and the tensors do not.
#[test]
fn contradictions_are_told() {
    let folder = temporary("contradictions");
    let suspicious = |source: &str| -> Vec<String> {
        let output = roofline(&["inspect", source, "--json"]);
        assert!(output.status.success(), "{}", said(&output));
        let inspected: Value = serde_json::from_slice(&output.stdout).unwrap();
        inspected["suspicious"].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let good = checkpoint_of(&folder, "good", &json!({}), &tensors(1));
    assert_eq!(suspicious(&good), [""; 0]);
    for (more, expected) in [
        (
            json!({ "num_attention_heads": 8, "head_dim": 64 }),
            "num_attention_heads of 8 with 64 numbers each, and `q_proj` 256 rows",
        ),
        (json!({ "num_key_value_heads": 4 }), "num_key_value_heads of 4 with 64 numbers each, and `k_proj` 128 rows"),
        (json!({ "intermediate_size": 1024 }), "intermediate_size of 1024, and a layer's `gate_proj` one of 512"),
        (json!({ "vocab_size": 65 }), "vocab_size of 65, and the embedding one of 64"),
        (json!({ "num_hidden_layers": 2 }), "has 2 layers, and the weights 1"),
    ] {
        let source = checkpoint_of(&folder, "bad", &more, &tensors(1));
        let told = suspicious(&source);
        assert!(matches!(&told[..], [one] if one.contains(expected)), "{expected}: {told:?}");
        fs::remove_dir_all(source).unwrap();
    }
    let (moe, all) = crate::made::mixtral();
    let mut wrong = moe.clone();
    wrong["num_local_experts"] = 16.into();
    assert_eq!(suspicious(&checkpoint_of(&folder, "moe", &moe, &all)), [""; 0]);
    let told = suspicious(&checkpoint_of(&folder, "fewer", &wrong, &all));
    assert!(matches!(&told[..], [one] if one.contains("num_local_experts of 16, and a layer 12 experts")), "{told:?}");
    // Scales for 128, and a configuration that declares 64.
    let target = folder.join("coded");
    assert!(roofline(&["quantize", &good, "--plan", "w4a16", "--to", target.to_str().unwrap()]).status.success());
    assert_eq!(suspicious(target.to_str().unwrap()), [""; 0]);
    let path = target.join("config.json");
    let text = fs::read_to_string(&path).unwrap().replace("\"group_size\": 128", "\"group_size\": 64");
    fs::write(&path, text).unwrap();
    let told = suspicious(target.to_str().unwrap());
    let expected = "declares groups of 64, and 7 weights have a scale for every 128";
    assert!(matches!(&told[..], [one] if one.contains(expected)), "{told:?}");
    // A table of positions is no vocabulary.
    let mut all = with(&[("a_first.wpe.weight", &[1024, HIDDEN])]);
    all.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    let source = checkpoint_of(&folder, "positions", &json!({ "vocab_size": VOCABULARY }), &all);
    assert_eq!(suspicious(&source), [""; 0]);
}

/// Words that hold codes are no parameters, and neither is what goes with them.
#[test]
fn codes_that_are_not_understood_are_no_parameters() {
    let folder = temporary("uncounted");
    let stem = "model.layers.0.self_attn.q_proj";
    let mut all = tensors(1);
    let at = all.iter().position(|(name, ..)| *name == format!("{stem}.weight")).unwrap();
    all.remove(at);
    let plain: usize = all.iter().map(|(_, _, shape, _)| shape.iter().product::<usize>()).sum();
    let path = folder.join("model.safetensors");
    // A packing that nobody has: its words, what shifts them, what scales them and in which order.
    let parts: [(&str, &str, Vec<usize>, usize); 4] = [
        ("qweight", "I32", vec![31, 256], 4),
        ("qzeros", "I32", vec![3, 31], 4),
        ("scales", "F16", vec![3, 256], 2),
        ("g_idx", "I32", vec![256], 4),
    ];
    let mut bytes = 0;
    for (part, dtype, shape, size) in parts {
        let zeros = vec![0; shape.iter().product::<usize>() * size];
        bytes += zeros.len();
        all.push((format!("{stem}.{part}"), dtype, shape, zeros));
    }
    write(&path, &all);
    let output = roofline(&["inspect", path.to_str().unwrap(), "--json"]);
    let inspected: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(inspected["parameters"], json!(plain), "{}", shown(&output, &folder));
    assert_eq!(inspected["bytes_not_understood"], json!(bytes));
    let output = roofline(&["inspect", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("whose parameters are not among those above"), "{text}");
    assert!(text.contains("I32, a part of codes"), "{text}");
}
