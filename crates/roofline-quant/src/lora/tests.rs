use std::{collections::BTreeMap, fs};

use super::*;
use crate::{
    checkpoint::{SINGLE, tests::write},
    rounding::{Bf16, Rounding},
    rows::{Rows, Spare},
    scratch::Scratch,
};

type Tensors<'a> = Vec<(&'a str, Dtype, &'a [usize], Vec<u8>)>;

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn bf16s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| ((Bf16::round(*value).to_bits() >> 16) as u16).to_le_bytes()).collect()
}

/// A model with a product of three inputs and two outputs in FP32, one in FP8, and a table of four tokens in BF16.
fn model(scratch: &Scratch) -> Checkpoint {
    let tensors: Tensors<'_> = vec![
        ("model.layers.0.q_proj.weight", Dtype::F32, &[2, 3], f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
        ("model.layers.0.q_proj.bias", Dtype::F32, &[2], f32s(&[0.5, 0.25])),
        // 0x38 is 1.
        ("model.layers.0.k_proj.weight", Dtype::F8E4M3, &[2, 3], vec![0x38; 6]),
        ("model.layers.0.k_proj.weight_scale", Dtype::F32, &[1], f32s(&[2.0])),
        ("model.embed_tokens.weight", Dtype::Bf16, &[4, 2], bf16s(&[1.0; 8])),
        ("model.experts.0.down_proj.weight", Dtype::F64, &[1, 1], vec![0; 8]),
    ];
    write(&scratch.path().join(SINGLE), &tensors);
    Checkpoint::open(scratch.path()).unwrap()
}

fn adapter(scratch: &Scratch, name: &str, config: &str, tensors: &Tensors<'_>) -> PathBuf {
    let folder = scratch.path().join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("adapter_config.json"), config).unwrap();
    write(&folder.join("adapter_model.safetensors"), tensors);
    folder
}

const PLAIN: &str = r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 2, "use_dora": false, "modules_to_save": ["x"]}"#;

/// Factors of rank one for a product of three inputs and two outputs: `B A` is `[[1, 2, 3], [10, 20, 30]]`.
fn factors<'a>(a: &'a str, b: &'a str) -> Tensors<'a> {
    vec![(a, Dtype::F32, &[1, 3], f32s(&[1.0, 2.0, 3.0])), (b, Dtype::F32, &[2, 1], f32s(&[1.0, 10.0]))]
}

const A: &str = "base_model.model.model.layers.0.q_proj.lora_A.weight";
const B: &str = "base_model.model.model.layers.0.q_proj.lora_B.weight";

/// What is read of a checkpoint, by name.
fn read(checkpoint: &Checkpoint) -> BTreeMap<String, Vec<f32>> {
    let numbers =
        StoredTensor::all(checkpoint).unwrap().into_iter().filter(|stored| is_number(stored.dtype)).map(|stored| {
            let name = stored.name.clone();
            let rows = stored.into_rows().unwrap();
            let (count, columns) = (rows.matrix().rows, rows.matrix().columns);
            let mut out = vec![0.0; count * columns];
            // One by one, so that a change must know where it is.
            for (row, out) in out.chunks_exact_mut(columns).enumerate() {
                rows.read(row..row + 1, &mut Spare::default(), out).unwrap();
            }
            (name, out)
        });
    numbers.collect()
}

#[test]
fn factors_are_multiplied_and_added() {
    let scratch = Scratch::new("lora-add");
    let q = "model.layers.0.q_proj.weight";
    for (config, scale, names, expected) in [
        // Two, and half of it.
        (PLAIN, 1.0, (A, B), [3.0, 6.0, 9.0, 24.0, 45.0, 66.0]),
        (PLAIN, -0.5, (A, B), [0.0, 0.0, 0.0, -6.0, -15.0, -24.0]),
        // By the names of an adapter in a program, without the head around the model.
        (
            PLAIN,
            1.0,
            ("layers.0.q_proj.lora_A.default.weight", "layers.0.q_proj.lora_B.default.weight"),
            [3.0, 6.0, 9.0, 24.0, 45.0, 66.0],
        ),
        // The first pattern that the name ends in.
        (
            r#"{"r": 8, "lora_alpha": 2, "rank_pattern": {"q_proj": 1}, "alpha_pattern": {"0.q_proj": 3, "q_proj": 5}}"#,
            1.0,
            (A, B),
            [4.0, 8.0, 12.0, 34.0, 65.0, 96.0],
        ),
    ] {
        let mut checkpoint = model(&scratch);
        let folder = adapter(&scratch, "a", config, &factors(names.0, names.1));
        checkpoint.merge(&folder, scale).unwrap();
        assert_eq!(read(&checkpoint)[q], expected, "{config}");
        let [merge] = &checkpoint.merged[..] else { panic!() };
        assert_eq!((&merge.weights[..], merge.bytes_held), (&[q.to_owned()][..], 20));
        // The other tensors are as they were.
        assert_eq!(read(&checkpoint)["model.layers.0.k_proj.weight"], [2.0; 6]);
    }
}

#[test]
fn ranks_are_summed_over_and_rslora_divides_by_the_root() {
    let scratch = Scratch::new("lora-rank");
    let tensors: Tensors<'_> = vec![
        (A, Dtype::F32, &[4, 3], f32s(&[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0])),
        (B, Dtype::F32, &[2, 4], f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])),
    ];
    for (root, factor) in [(false, 1.0), (true, 2.0)] {
        let mut checkpoint = model(&scratch);
        let config = format!(r#"{{"r": 4, "lora_alpha": 4, "use_rslora": {root}}}"#);
        checkpoint.merge(&adapter(&scratch, "a", &config, &tensors), 1.0).unwrap();
        let expected: Vec<f32> = [5.0, 6.0, 7.0, 13.0, 14.0, 15.0]
            .iter()
            .zip([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
            .map(|(delta, weight)| weight + factor * delta)
            .collect();
        assert_eq!(read(&checkpoint)["model.layers.0.q_proj.weight"], expected);
    }
}

#[test]
fn several_adapters_codes_tables_and_whole_tensors() {
    let scratch = Scratch::new("lora-several");
    let mut checkpoint = model(&scratch);
    let first = adapter(&scratch, "first", PLAIN, &factors(A, B));
    let k = "base_model.model.model.layers.0.k_proj.lora_";
    let (a, b) = (format!("{k}A.weight"), format!("{k}B.weight"));
    let mut more = factors(&a, &b);
    // A table of four tokens of two numbers: A has a column for each token, B a row for each number.
    let tokens = "base_model.model.model.embed_tokens.lora_embedding_";
    let (a, b) = (format!("{tokens}A"), format!("{tokens}B"));
    more.push((&a, Dtype::F32, &[1, 4], f32s(&[0.0, 1.0, 2.0, 3.0])));
    more.push((&b, Dtype::F32, &[2, 1], f32s(&[1.0, 10.0])));
    more.push(("base_model.model.model.layers.0.q_proj.base_layer.bias", Dtype::F32, &[2], f32s(&[7.0, 8.0])));
    let second = adapter(&scratch, "second", PLAIN, &more);
    checkpoint.merge(&first, 1.0).unwrap();
    checkpoint.merge(&second, 0.5).unwrap();
    checkpoint.merge(&first, 1.0).unwrap();
    let found = read(&checkpoint);
    assert_eq!(found["model.layers.0.q_proj.weight"], [5.0, 10.0, 15.0, 44.0, 85.0, 126.0]);
    assert_eq!(found["model.layers.0.q_proj.bias"], [7.0, 8.0]);
    assert_eq!(found["model.layers.0.k_proj.weight"], [3.0, 4.0, 5.0, 12.0, 22.0, 32.0]);
    assert_eq!(found["model.embed_tokens.weight"], [1.0, 1.0, 2.0, 11.0, 3.0, 21.0, 4.0, 31.0]);
    // What was replaced is not replaced again, and nothing is lost of what was added before.
    let said = checkpoint.merge(&second, 1.0).unwrap_err().to_string();
    assert!(said.contains("is replaced by one adapter and changed by another"), "{said}");
}

/// Conv1D's weights have their inputs as rows.
#[test]
fn weights_that_are_stored_the_other_way() {
    let scratch = Scratch::new("lora-transposed");
    let mut checkpoint = model(&scratch);
    // Two inputs and three outputs: `A B` is `[[1, 2, 3], [10, 20, 30]]` with the inputs as rows.
    let tensors: Tensors<'_> =
        vec![(A, Dtype::F32, &[1, 2], f32s(&[1.0, 10.0])), (B, Dtype::F32, &[3, 1], f32s(&[1.0, 2.0, 3.0]))];
    let config = r#"{"r": 1, "lora_alpha": 1, "fan_in_fan_out": true}"#;
    checkpoint.merge(&adapter(&scratch, "a", config, &tensors), 1.0).unwrap();
    assert_eq!(read(&checkpoint)["model.layers.0.q_proj.weight"], [2.0, 4.0, 6.0, 14.0, 25.0, 36.0]);
}

#[test]
fn what_is_not_merged_is_refused_by_name() {
    let scratch = Scratch::new("lora-refused");
    let said = |config: &str, tensors: &Tensors<'_>| {
        let folder = adapter(&scratch, "a", config, tensors);
        model(&scratch).merge(&folder, 1.0).unwrap_err().to_string()
    };
    let good = factors(A, B);
    for (config, reason) in [
        (r#"{"peft_type": "LOHA", "r": 1, "lora_alpha": 1}"#, "is of the kind LOHA"),
        (r#"{"r": 1, "lora_alpha": 1, "use_dora": true}"#, "has `use_dora`"),
        (r#"{"r": 1, "lora_alpha": 1, "trainable_token_indices": [1]}"#, "has `trainable_token_indices`"),
        (r#"{"r": 1, "lora_alpha": 1, "init_lora_weights": "pissa_niter_4"}"#, "was begun with `pissa_niter_4`"),
        (r#"{"r": 1, "lora_alpha": 1, "alpha_pattern": {".*q_proj": 3}}"#, "has the pattern `.*q_proj: 3`"),
        (r#"{"r": 2, "lora_alpha": 1}"#, "has the rank 1, and adapter_config.json says 2"),
        (r#"{"lora_alpha": 1}"#, "it is none of LoRA's: missing field `r`"),
    ] {
        let said = said(config, &good);
        assert!(said.contains(reason), "{config}: {said}");
    }
    let with = |name, dtype, shape: &'static [usize]| {
        let bytes = vec![0; shape.iter().product::<usize>() * Dtype::bytes(dtype)];
        let mut all = good.clone();
        all.push((name, dtype, shape, bytes));
        said(PLAIN, &all)
    };
    let nowhere = "base_model.model.model.layers.9.q_proj.lora_A.weight";
    assert!(with(nowhere, Dtype::F32, &[1, 3]).contains("layers.9.q_proj.lora_A.weight"));
    assert!(with("base_model.model.score.weight", Dtype::F32, &[1, 3]).contains("changes `score.weight`, which the"));
    let magnitude = "base_model.model.model.layers.0.q_proj.lora_magnitude_vector.weight";
    assert!(with(magnitude, Dtype::F32, &[2]).contains("lora_magnitude_vector.weight"));
    let bias = "base_model.model.model.layers.0.q_proj.lora_B.bias";
    assert!(with(bias, Dtype::F32, &[2]).contains("lora_B.bias"));
    let wide = "base_model.model.model.layers.0.q_proj.bias";
    assert!(with(wide, Dtype::F32, &[3]).contains("has the shape [2], and the adapter"));
    let other = said(PLAIN, &vec![(A, Dtype::F32, &[1, 4], vec![0; 16]), (B, Dtype::F32, &[2, 1], vec![0; 8])]);
    assert!(other.contains("has the shape [2, 3], and the adapter in"), "{other}");
    let e = "base_model.model.model.experts.0.down_proj.lora_";
    let (a, b) = (format!("{e}A.weight"), format!("{e}B.weight"));
    let double = said(PLAIN, &vec![(&a, Dtype::F32, &[1, 1], vec![0; 4]), (&b, Dtype::F32, &[1, 1], vec![0; 4])]);
    assert!(double.contains("is stored as F64, which an adapter cannot be added to"), "{double}");
    let convolution =
        said(PLAIN, &vec![(A, Dtype::F32, &[1, 3, 1, 1], vec![0; 12]), (B, Dtype::F32, &[2, 1, 1, 1], vec![0; 8])]);
    assert!(convolution.contains("is no matrix"), "{convolution}");
}
