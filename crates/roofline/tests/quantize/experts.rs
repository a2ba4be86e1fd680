//! Experts: apart, stacked, and what chooses among them.

use serde_json::{Value, json};

use crate::made::{
    EXPERTS, HIDDEN, INNER, Weights, checkpoint_of, contents, floats, mixtral, roofline, said, shown, temporary,
    tensors,
};

/// Experts are stacked in the order of their numbers, whatever their names sort like.
#[test]
fn experts_are_stacked_in_order() {
    let folder = temporary("experts");
    let (config, all) = mixtral();
    let source = checkpoint_of(&folder, "moe", &config, &all);
    for (plan, tolerance) in [("bf16", 0.0), ("q8_0", 0.01)] {
        let target = folder.join(format!("{plan}.gguf"));
        let output = roofline(&["quantize", &source, "--plan", plan, "--to", target.to_str().unwrap()]);
        assert!(output.status.success(), "{}", shown(&output, &folder));
        let file = roofline_quant::gguf::File::open(&target).unwrap();
        for (stacked, part) in [("gate", "w1"), ("down", "w2"), ("up", "w3")] {
            let tensor = file.header.tensor(&format!("blk.0.ffn_{stacked}_exps.weight")).unwrap();
            let (columns, rows) = (tensor.dims[0], tensor.dims[1]);
            assert_eq!(tensor.dims[2], EXPERTS as u64);
            for expert in 0..EXPERTS {
                let name = format!("model.layers.0.block_sparse_moe.experts.{expert}.{part}.weight");
                let (.., bytes) = all.iter().find(|(known, ..)| *known == name).unwrap();
                let first = expert as u64 * rows;
                let mut decoded = vec![0.0; (rows * columns) as usize];
                file.read(tensor, first..first + rows, &mut decoded).unwrap();
                let off = floats(bytes).iter().zip(&decoded).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(off <= tolerance, "{plan} {name}: {off}");
            }
        }
        let router = file.header.tensor("blk.0.ffn_gate_inp.weight").unwrap();
        assert_eq!(router.ty.to_string(), "F32");
    }
    // The number 7 a second time, in another spelling.
    let mut twice = all.clone();
    let eleventh = twice.iter_mut().find(|(name, ..)| name.contains("experts.11.w1")).unwrap();
    eleventh.0 = eleventh.0.replace("experts.11", "experts.07");
    let source = checkpoint_of(&folder, "twice", &config, &twice);
    let target = folder.join("twice.gguf");
    let output = roofline(&["quantize", &source, "--plan", "q8_0", "--to", target.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", shown(&output, &folder));
    assert!(
        said(&output).contains("would be written as `blk.0.ffn_gate_exps.weight` a second time"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_router_is_kept_and_ignored() {
    let folder = temporary("router");
    let (config, all) = mixtral();
    let source = checkpoint_of(&folder, "moe", &config, &all);
    for (layout, plan) in [("compressed-tensors", "w4a16"), ("torchao", "w8a16,experts=keep")] {
        let target = folder.join(layout);
        let to = target.to_str().unwrap();
        let output = roofline(&["quantize", &source, "--plan", plan, "--as", layout, "--to", to]);
        assert!(output.status.success(), "{}", shown(&output, &folder));
        let config: Value = serde_json::from_slice(&contents(&target)["config.json"]).unwrap();
        let quantization = &config["quantization_config"];
        let router = "model.layers.0.block_sparse_moe.gate";
        if layout == "torchao" {
            // By the names that transformers gives its modules.
            let kept = json!(["model.layers.0.mlp.experts", "model.layers.0.mlp.gate"]);
            assert_eq!(quantization["modules_to_not_convert"], kept);
            assert_eq!(quantization["include_input_output_embeddings"], false);
        } else {
            assert_eq!(quantization["ignore"], json!(["lm_head", router, "model.layers.0.mlp.gate"]));
            assert_eq!(quantization["config_groups"]["group_0"]["targets"], json!(["Linear"]));
        }
        let output = roofline(&["inspect", to, "--json"]);
        let inspected: Value = serde_json::from_slice(&output.stdout).unwrap();
        let tensors = inspected["tensors"].as_array().unwrap();
        let format = |name: &str| &tensors.iter().find(|tensor| tensor["name"] == name).unwrap()["format"];
        assert_eq!(format(&format!("{router}.weight")), "BF16");
        let plain = format("model.layers.0.block_sparse_moe.experts.11.w2.weight") == "BF16";
        assert_eq!(plain, layout == "torchao");
    }
}

/// Experts of a layer in one tensor of three dimensions, without a module.
#[test]
fn stacked_experts_are_kept_by_a_rule_and_it_is_said() {
    let folder = temporary("stacked");
    let mut all = tensors(1);
    all.retain(|(name, ..)| !name.contains(".mlp."));
    for (name, shape) in [("gate_up_proj", [4, HIDDEN, 2 * INNER]), ("down_proj", [4, INNER, HIDDEN])] {
        let bytes = Weights(5).bf16(shape.iter().product());
        all.push((format!("model.layers.0.feed_forward.experts.{name}"), "BF16", shape.to_vec(), bytes));
    }
    let source = checkpoint_of(&folder, "stacked", &json!({}), &all);
    let target = folder.join("out");
    let plan = |plan| roofline(&["quantize", &source, "--plan", plan, "--to", target.to_str().unwrap()]);
    let output = plan("w4a16");
    assert!(!output.status.success() && !target.exists());
    assert!(said(&output).contains("`w4a16,experts=keep` quantizes the rest"), "{}", said(&output));
    let output = plan("w4a16,experts=keep");
    assert!(output.status.success(), "{}", shown(&output, &folder));
    // 4 x 256 x 1024 + 4 x 512 x 256 of 1.8 million.
    let note = "2 tensors hold experts in stacks and are kept: 87 % of the parameters stay unquantized";
    assert!(String::from_utf8_lossy(&output.stdout).contains(note), "{}", shown(&output, &folder));
    let config: Value = serde_json::from_slice(&contents(&target)["config.json"]).unwrap();
    let ignore = json!(["lm_head", r"re:model\.layers\.0\.feed_forward\.experts\..*"]);
    assert_eq!(config["quantization_config"]["ignore"], ignore);
    // A rule that names them asks for what cannot be.
    let refused = folder.join("refused");
    let output = roofline(&["quantize", &source, "--plan", "w4a16,down=w8a16", "--to", refused.to_str().unwrap()]);
    assert!(said(&output).contains("in a stack"), "{}", said(&output));
}
