//! bitsandbytes and MLX as a user meets them: written, looked at and decoded, or refused before a byte is written.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{fs, path::Path, process::Output};

use common::{read, roofline, temporary};
use serde_json::{Value, json};

/// Names and shapes of a file's tensors, all of BF16.
type Shapes = Vec<(String, Vec<usize>)>;

const HIDDEN: usize = 128;

/// A Llama of one layer, with or without experts of its own.
fn shapes(experts: usize) -> Shapes {
    let at = "model.layers.0";
    let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![64, HIDDEN])];
    for name in ["q", "k", "v", "o"] {
        all.push((format!("{at}.self_attn.{name}_proj.weight"), vec![HIDDEN, HIDDEN]));
    }
    for name in ["gate", "up", "down"].into_iter().filter(|_| experts == 0) {
        all.push((format!("{at}.mlp.{name}_proj.weight"), vec![HIDDEN, HIDDEN]));
    }
    for expert in 0..experts {
        let of = |name: &str| format!("{at}.block_sparse_moe.experts.{expert}.{name}.weight");
        all.extend(["w1", "w2", "w3"].map(|name| (of(name), vec![HIDDEN, HIDDEN])));
    }
    if experts > 0 {
        all.push((format!("{at}.block_sparse_moe.gate.weight"), vec![experts, HIDDEN]));
    }
    all.push((format!("{at}.input_layernorm.weight"), vec![HIDDEN]));
    all.push(("model.norm.weight".to_owned(), vec![HIDDEN]));
    all.push(("lm_head.weight".to_owned(), vec![64, HIDDEN]));
    all
}

/// Numbers of a tensor, from its name: each tensor has its own, and all are exact in BF16.
fn numbers(name: &str, count: usize) -> Vec<f32> {
    let seed = name.bytes().fold(7u32, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    (0..count as u32)
        .map(|at| {
            let mixed = (at ^ seed).wrapping_mul(2_654_435_761).rotate_left(15).wrapping_mul(0x85eb_ca6b);
            f32::from((mixed >> 25) as u8) / 512.0 - 0.125
        })
        .collect()
}

fn checkpoint(folder: &Path, name: &str, more: &Value, shapes: &Shapes) -> String {
    let path = folder.join(name);
    fs::create_dir_all(&path).unwrap();
    let mut config = json!({
        "model_type": "llama", "dtype": "bfloat16", "hidden_size": HIDDEN, "intermediate_size": HIDDEN,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64,
        "rms_norm_eps": 1e-5, "rope_parameters": { "rope_theta": 500_000.0, "rope_type": "default" },
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fs::write(path.join("config.json"), config.to_string()).unwrap();
    let bytes = |name: &str, shape: &[usize]| {
        let all = numbers(name, shape.iter().product());
        all.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect()
    };
    let stored = shapes.iter().map(|(name, shape)| (name.clone(), "BF16", shape.clone(), bytes(name, shape)));
    common::write(&path.join("model.safetensors"), &stored.collect());
    path.to_str().unwrap().to_owned()
}

/// All that was printed.
fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// What quantizing says, where it works.
fn quantize(source: &str, plan: &str, to: &Path, more: &[&str]) -> String {
    let to = to.to_str().unwrap();
    let output = roofline(&[&["quantize", source, "--plan", plan, "--to", to], more].concat());
    assert!(output.status.success(), "{plan}: {}", said(&output));
    said(&output)
}

fn config(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap()
}

/// Looked at, a checkpoint has the parameters of its source; decoded, its names and shapes, and numbers that are near.
fn check_both_ways(folder: &Path, written: &Path, shapes: &Shapes, label: &str) {
    let inspected = roofline(&["inspect", written.to_str().unwrap(), "--json"]);
    assert!(inspected.status.success(), "{label}: {}", said(&inspected));
    let inspected: Value = serde_json::from_slice(&inspected.stdout).unwrap();
    let parameters: usize = shapes.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    assert_eq!(inspected["parameters"], parameters, "{label}");
    let suspicious = inspected["suspicious"].to_string();
    assert!(!suspicious.contains("codes") && !suspicious.contains("no scheme"), "{label}: {suspicious}");
    let plain = folder.join("plain");
    let _ = fs::remove_dir_all(&plain);
    quantize(written.to_str().unwrap(), "fp32", &plain, &[]);
    let decoded = read(&plain.join("model.safetensors"));
    assert_eq!(decoded.len(), shapes.len(), "{label}: {:?}", decoded.keys());
    for (name, shape) in shapes {
        let (dtype, found, bytes) = &decoded[name];
        assert_eq!(found, shape, "{label}: {name}");
        let source = numbers(name, shape.iter().product());
        let power = |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>();
        let lost = power(&mut source.iter().zip(common::numbers(dtype, bytes)).map(|(a, b)| a - b));
        assert!(lost < 0.15 * power(&mut source.iter().copied()), "{label}: {name}");
    }
    let config = config(&plain);
    assert!(config.get("quantization").is_none() && config.get("quantization_config").is_none(), "{label}");
}

#[test]
fn written_looked_at_and_decoded() {
    let folder = temporary("both-ways");
    let shapes = shapes(0);
    let source = checkpoint(&folder, "llama", &json!({}), &shapes);
    for (layout, plan, format) in [
        ("bitsandbytes", "nf4", "NF4 in blocks of 64"),
        ("bitsandbytes", "nf4-dq,head=nf4-dq", "NF4 in blocks of 64, twice quantized"),
        ("bitsandbytes", "bnb-fp4", "FP4 of bitsandbytes in blocks of 64"),
        ("bitsandbytes", "int8", "LLM.int8()"),
        ("mlx", "mlx-4bit", "INT4 in groups of 64 with biases"),
        ("mlx", "int3,head=mlx-8bit,embedding=mlx-6bit", "INT3 in groups of 64 with biases"),
        ("mlx", "mxfp4a16,head=mxfp8a16", "MXFP4"),
        ("mlx", "nvfp4a16", "NVFP4 without a scale for the whole"),
    ] {
        let to = folder.join("out");
        let _ = fs::remove_dir_all(&to);
        quantize(&source, plan, &to, &["--as", layout]);
        let looked = said(&roofline(&["inspect", to.to_str().unwrap()]));
        assert!(looked.contains(format), "{plan}: {looked}");
        check_both_ways(&folder, &to, &shapes, &format!("{layout} {plan}"));
    }
}

/// What transformers has to know: which products are not in codes.
#[test]
fn what_is_kept_is_skipped_by_name() {
    let folder = temporary("skipped");
    let source = checkpoint(&folder, "llama", &json!({}), &shapes(0));
    let to = folder.join("out");
    quantize(&source, "nf4-dq,down=keep", &to, &[]);
    let quantization = config(&to)["quantization_config"].clone();
    assert_eq!(quantization["llm_int8_skip_modules"], json!(["lm_head", "model.layers.0.mlp.down_proj"]));
    assert_eq!(
        (&quantization["quant_method"], &quantization["bnb_4bit_use_double_quant"], &quantization["load_in_4bit"]),
        (&json!("bitsandbytes"), &json!(true), &json!(true))
    );
    let query = "model.layers.0.self_attn.q_proj.weight";
    let names: Vec<String> = read(&to.join("model.safetensors"))
        .into_keys()
        .filter_map(|name| Some(name.strip_prefix(query)?.to_owned()))
        .collect();
    let parts = ["", ".absmax", ".nested_absmax", ".nested_quant_map", ".quant_map", ".quant_state.bitsandbytes__nf4"];
    assert_eq!(names, parts);
}

/// mlx-lm has the experts of a layer in one tensor, by number: the tenth after the ninth.
#[test]
fn experts_are_stacked_for_mlx() {
    let folder = temporary("stacked");
    let shapes = shapes(12);
    let more = json!({ "model_type": "mixtral", "num_local_experts": 12, "tie_word_embeddings": false });
    let source = checkpoint(&folder, "mixtral", &more, &shapes);
    let to = folder.join("out");
    quantize(&source, "mlx-8bit,down=keep", &to, &["--as", "mlx"]);
    let stored = read(&to.join("model.safetensors"));
    let at = "model.layers.0.block_sparse_moe.switch_mlp";
    assert_eq!(stored[&format!("{at}.gate_proj.weight")].1, [12, HIDDEN, HIDDEN / 4]);
    assert_eq!(stored[&format!("{at}.gate_proj.scales")].1, [12, HIDDEN, HIDDEN / 64]);
    // The way down is kept: bytes of the source, expert by expert.
    let (dtype, shape, bytes) = &stored[&format!("{at}.down_proj.weight")];
    assert_eq!((dtype.as_str(), &shape[..]), ("BF16", &[12, HIDDEN, HIDDEN][..]));
    for expert in 0..12 {
        let name = format!("model.layers.0.block_sparse_moe.experts.{expert}.w2.weight");
        let first = numbers(&name, 1)[0];
        let own = &bytes[expert * HIDDEN * HIDDEN * 2..];
        assert_eq!(own[..2], ((first.to_bits() >> 16) as u16).to_le_bytes(), "{expert}");
    }
    check_both_ways(&folder, &to, &shapes, "mixtral");
    let config = config(&to);
    assert_eq!(config["quantization"], json!({ "group_size": 64, "bits": 8, "mode": "affine" }));
    // Where mlx-lm looks; without it the base would be 10000 and the head the embedding.
    assert_eq!((&config["rope_theta"], &config["tie_word_embeddings"]), (&json!(500_000.0), &json!(false)));
}

/// transformers has experts in one parameter that bitsandbytes does not know.
#[test]
fn experts_are_kept_for_bitsandbytes() {
    let folder = temporary("kept");
    let shapes = shapes(4);
    let more = json!({ "model_type": "mixtral", "num_local_experts": 4 });
    let source = checkpoint(&folder, "mixtral", &more, &shapes);
    let to = folder.join("out");
    let words = quantize(&source, "nf4", &to, &[]);
    assert!(words.contains("experts are kept, as bitsandbytes in transformers keeps them"), "{words}");
    let expert = "model.layers.0.block_sparse_moe.experts.3.w2.weight";
    assert_eq!(read(&to.join("model.safetensors"))[expert].0, "BF16");
    let skipped = config(&to)["quantization_config"]["llm_int8_skip_modules"].clone();
    assert_eq!(skipped, json!(["experts", "lm_head", "model.layers.0.block_sparse_moe.gate"]));
    check_both_ways(&folder, &to, &shapes, "experts");
}

/// What a runtime would not load, or would load as something else, is refused by the runtime's name, and nothing is left.
#[test]
fn refusals_name_the_runtime() {
    let folder = temporary("refusals");
    let llama = checkpoint(&folder, "llama", &json!({}), &shapes(0));
    let falcon = checkpoint(&folder, "falcon", &json!({ "model_type": "falcon" }), &shapes(0));
    let experts = json!({ "model_type": "mixtral", "num_local_experts": 4 });
    let mixtral = checkpoint(&folder, "mixtral", &experts, &shapes(4));
    let fewer = json!({ "model_type": "mixtral", "num_local_experts": 5 });
    let lacking = checkpoint(&folder, "lacking", &fewer, &shapes(4));
    for (source, plan, layout, words) in [
        (&falcon, "nf4", "bitsandbytes", "transformers cannot load a `falcon` in bitsandbytes' codes"),
        (&mixtral, "nf4,experts=nf4", "bitsandbytes", "transformers loads experts in bitsandbytes' codes from no file"),
        (&mixtral, "*=bf16,experts=nf4", "bitsandbytes", "transformers loads experts"),
        (&llama, "nf4,embedding=nf4", "bitsandbytes", "is a table"),
        (&falcon, "mlx-4bit", "mlx", "how mlx-lm names the tensors of a `falcon` is not known"),
        (&mixtral, "mlx-4bit,*.experts.2.*=mlx-8bit", "mlx", "is stored otherwise than other experts of its layer"),
        (&lacking, "mlx-4bit", "mlx", "is one of 4 experts of its layer, and config.json has 5"),
        (&llama, "w8a16", "mlx", "mlx cannot store `down` as int8"),
        (&llama, "int3", "torchao", "`--as mlx` has `int3`"),
        (&llama, "int2", "compressed-tensors", "`--as mlx` has `int2`"),
    ] {
        let to = folder.join("out");
        let output = roofline(&["quantize", source, "--plan", plan, "--as", layout, "--to", to.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{plan} as {layout}: {}", said(&output));
        assert!(said(&output).contains(words), "{plan} as {layout}: {}", said(&output));
        assert!(!to.exists());
    }
}
