//! What is refused, and in which words.

use std::fs;

use serde_json::{Value, json};

use crate::made::{
    Tensors, checkpoint, checkpoint_of, contents, names, roofline, said, shown, temporary, tensors, write,
};

/// Everything that must be refused: what is said, and that nothing is left behind.
#[test]
fn refusals() {
    let folder = temporary("refusals");
    let source = checkpoint(&folder, 1);
    let source_text = source.to_str().unwrap();
    let model = source.join("model.safetensors");
    let good = fs::read(&model).unwrap();
    let target = folder.join("out");
    let to = target.to_str().unwrap();
    let mut said = Vec::new();
    let mut refused = |what: &str, arguments: &[&str], left: &[&str]| {
        let output = roofline(arguments);
        assert!(!output.status.success(), "{what}: {}", shown(&output, &folder));
        said.push(format!("# {what}\n{}", shown(&output, &folder)));
        assert_eq!(names(&folder), left, "{what} left something behind");
    };
    let quantize = |plan| ["quantize", source_text, "--plan", plan, "--to", to];
    refused("an unknown scheme", &quantize("w4a61"), &["tiny"]);
    refused("a scheme of another layout", &[&quantize("q4_k_m")[..], &["--as", "torchao"]].concat(), &["tiny"]);
    refused("a method that does not suit", &[&quantize("w4a16")[..], &["--method", "hqq"]].concat(), &["tiny"]);
    refused("an unknown method", &[&quantize("w4a16")[..], &["--method", "spqr"]].concat(), &["tiny"]);
    refused("a role that a layout cannot store", &quantize("w4a16,head=q8_0"), &["tiny"]);
    refused("four-bit activations that need data", &quantize("nvfp4"), &["tiny"]);
    refused("a plan that is not there", &quantize("plan.toml"), &["tiny"]);
    refused("no such checkpoint", &["quantize", "nowhere", "--plan", "w4a16", "--to", to], &["tiny"]);
    refused(
        "into the source",
        &["quantize", source_text, "--plan", "w4a16", "--to", &format!("{source_text}/out")],
        &["tiny"],
    );
    refused(
        "over the source",
        &["quantize", source_text, "--plan", "w4a16", "--to", source_text, "--force"],
        &["tiny"],
    );
    refused(
        "nowhere to write",
        &["quantize", source_text, "--plan", "w4a16", "--to", &format!("{to}/deep/er")],
        &["tiny"],
    );
    fs::write(&model, &good[..good.len() - 100]).unwrap();
    refused("a truncated file", &quantize("w4a16"), &["tiny"]);
    fs::write(&model, &good[..4]).unwrap();
    refused("four bytes", &quantize("w4a16"), &["tiny"]);
    let far =
        String::from_utf8_lossy(&good[8..200]).replacen("[0,32768]", "[9223372036854775808,9223372036854808576]", 1);
    let mut bytes = (far.len() as u64).to_le_bytes().to_vec();
    bytes.extend(far.as_bytes());
    fs::write(&model, bytes).unwrap();
    refused("a header that is cut short", &quantize("w4a16"), &["tiny"]);
    let changed = |change: &dyn Fn(&mut Tensors)| {
        let mut all = tensors(1);
        change(&mut all);
        write(&model, &all);
    };
    changed(&|all| all[9].3[0..2].copy_from_slice(&[0xc0, 0x7f]));
    refused("a weight that is not a number", &quantize("w4a16"), &["tiny"]);
    changed(&|all| all[9].3[514..516].copy_from_slice(&[0x80, 0xff]));
    refused("an infinite weight", &quantize("nvfp4a16"), &["tiny"]);
    changed(&|all| {
        all[9].2 = vec![512, 200];
        all[9].3.truncate(512 * 200 * 2);
    });
    refused("columns that are no multiple of the group", &quantize("w4a16"), &["tiny"]);
    changed(&|all| all[9].1 = "I16");
    refused("weights that are integers", &quantize("w4a16"), &["tiny"]);
    fs::write(&model, &good).unwrap();
    fs::create_dir(&target).unwrap();
    fs::write(target.join("diary.txt"), "dear").unwrap();
    refused("a target that is no checkpoint", &[&quantize("w4a16")[..], &["--force"]].concat(), &["out", "tiny"]);
    assert_eq!(fs::read_to_string(target.join("diary.txt")).unwrap(), "dear");
    insta::assert_snapshot!("refusals", said.join("\n\n"));
}

/// What looks tokens up in codes is torchao alone, and not in all of them.
#[test]
fn an_embedding_is_quantized_where_something_loads_it() {
    let folder = temporary("embedding");
    let untied = checkpoint_of(&folder, "untied", &json!({}), &tensors(1));
    let tied = checkpoint_of(&folder, "tied", &json!({ "tie_word_embeddings": true }), &tensors(1));
    let mut headless = tensors(1);
    headless.retain(|(name, ..)| name != "lm_head.weight");
    let headless = checkpoint_of(&folder, "headless", &json!({}), &headless);
    for (source, layout, scheme, reason) in [
        (&untied, "torchao", "w8a16", None),
        (&untied, "torchao", "int4-g128-zp16", Some("torchao cannot look tokens up in INT4")),
        (&untied, "compressed-tensors", "w8a16", Some("what loads compressed-tensors quantizes products alone")),
        (&tied, "torchao", "w8a16", Some("is the output head, too")),
        (&headless, "torchao", "w8a16", Some("is the output head, too")),
        (&headless, "compressed-tensors", "w8a16", Some("is the output head, too")),
    ] {
        let (plan, target) = (format!("{scheme},embedding={scheme}"), folder.join("out"));
        let to = target.to_str().unwrap();
        let output = roofline(&["quantize", source, "--plan", &plan, "--as", layout, "--to", to, "--force"]);
        if let Some(reason) = reason {
            assert_eq!(output.status.code(), Some(2), "{}", shown(&output, &folder));
            assert!(said(&output).contains("weight `model.embed_tokens.weight`: "), "{}", said(&output));
            assert!(said(&output).contains(reason), "{}", said(&output));
        } else {
            assert!(output.status.success(), "{}", shown(&output, &folder));
            let config: Value = serde_json::from_slice(&contents(&target)["config.json"]).unwrap();
            assert_eq!(config["quantization_config"]["include_input_output_embeddings"], true);
        }
    }
}

/// A part of a weight in codes: its name, type, shape and bytes of an element.
type Part = (&'static str, &'static str, Vec<usize>, usize);

/// Codes that are not known are neither quantized again nor copied as if they were weights; they can be looked at.
#[test]
fn codes_of_unknown_kinds_are_refused() {
    let folder = temporary("unknown");
    let stem = "model.layers.0.self_attn.q_proj";
    let at = tensors(1).iter().position(|(name, ..)| *name == format!("{stem}.weight")).unwrap();
    let kinds: [(&str, Vec<Part>); 4] = [
        // GPTQ of a width that no width is, FP8 with two scales, packed integers in an order of their own, and bytes with zero
        // points.
        (
            "gptq",
            vec![
                ("qweight", "I32", vec![32, 256], 4),
                ("qzeros", "I32", vec![2, 40], 4),
                ("scales", "F16", vec![2, 256], 2),
            ],
        ),
        (
            "smoothed",
            vec![
                ("weight", "F8_E4M3", vec![256, 256], 1),
                ("weight_scale", "BF16", vec![2], 2),
                ("input_scale", "BF16", vec![1], 2),
            ],
        ),
        (
            "ordered",
            vec![
                ("weight_packed", "I32", vec![256, 32], 4),
                ("weight_scale", "BF16", vec![256, 2], 2),
                ("weight_shape", "I64", vec![2], 8),
                ("weight_g_idx", "I32", vec![256], 4),
            ],
        ),
        (
            "shifted",
            vec![
                ("weight", "I8", vec![256, 256], 1),
                ("weight_scale", "BF16", vec![256, 1], 2),
                ("weight_zero_point", "I8", vec![256, 1], 1),
            ],
        ),
    ];
    for (kind, parts) in kinds {
        let mut all = tensors(1);
        all.remove(at);
        for (part, dtype, shape, size) in parts {
            // 256 x 256, where the shape is said.
            let bytes = if part == "weight_shape" {
                [256u64, 256].iter().flat_map(|dim| dim.to_le_bytes()).collect()
            } else {
                vec![0; shape.iter().product::<usize>() * size]
            };
            all.push((format!("{stem}.{part}"), dtype, shape, bytes));
        }
        let declared = json!({ "quantization_config": { "quant_method": kind } });
        let source = checkpoint_of(&folder, kind, &declared, &all);
        for plan in ["bf16", "w4a16", "q8_0"] {
            let output = roofline(&["quantize", &source, "--plan", plan, "--to", folder.join("out").to_str().unwrap()]);
            assert_eq!(output.status.code(), Some(2), "{kind} {plan}: {}", shown(&output, &folder));
            let expected = format!("weight `{stem}.weight`: is in codes of a kind that this program does not know");
            assert!(said(&output).contains(&expected), "{kind} {plan}: {}", said(&output));
        }
        let output = roofline(&["inspect", &source]);
        assert!(output.status.success(), "{kind}: {}", shown(&output, &folder));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("fit no scheme this program knows"), "{kind}: {text}");
    }
}

#[test]
fn one_shard_of_several_is_looked_at_but_not_quantized() {
    let folder = temporary("shard");
    let source = checkpoint(&folder, 1);
    let shard = source.join("model-00001-of-00004.safetensors");
    fs::rename(source.join("model.safetensors"), &shard).unwrap();
    let shard = shard.to_str().unwrap();
    let output = roofline(&["quantize", shard, "--plan", "w4a16", "--to", folder.join("out").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", shown(&output, &folder));
    assert!(said(&output).contains("is one of 4 shards"), "{}", said(&output));
    assert!(roofline(&["inspect", shard]).status.success());
}
