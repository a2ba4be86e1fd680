use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    gguf::model::Names,
    observed::{Observed, Pass, Seen},
    scratch::Scratch,
};

fn matrix(entries: &[(&str, &[f32], &[f32])]) -> Imatrix {
    let entries = entries
        .iter()
        .map(|(name, sums, counts)| ((*name).to_owned(), Entry { sums: sums.to_vec(), counts: counts.to_vec() }))
        .collect::<BTreeMap<_, _>>();
    Imatrix { entries, file: None, datasets: vec!["text.txt".to_owned()], chunks: 3, chunk_size: 512 }
}

fn written(scratch: &Scratch, name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let path = scratch.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// The `.dat` of two entries, by hand.
fn legacy() -> Vec<u8> {
    let mut bytes = 2i32.to_le_bytes().to_vec();
    for (name, calls, numbers) in [("blk.0.attn_q.weight", 4i32, [8.0f32, 2.0]), ("blk.0.ffn_up.weight", 0, [3.0, 1.0])]
    {
        bytes.extend((name.len() as i32).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(calls.to_le_bytes());
        bytes.extend(2i32.to_le_bytes());
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    }
    bytes.extend(7i32.to_le_bytes());
    bytes.extend(4i32.to_le_bytes());
    bytes.extend(b"wiki");
    bytes
}

#[test]
fn both_forms_are_read() {
    let scratch = Scratch::new("imatrix-forms");
    let read = Imatrix::read(&written(&scratch, "old.dat", &legacy())).unwrap();
    assert_eq!((read.len(), read.chunks, read.datasets.as_slice()), (2, 7, &["wiki".to_owned()][..]));
    let importance = |of: &Imatrix, name: &str, stack| of.importance(name, 2, stack).unwrap().unwrap();
    // Numbers are means times pieces; those of no pieces are taken as they are.
    assert_eq!(importance(&read, "blk.0.attn_q.weight", 1), [2.0, 0.5]);
    assert_eq!(importance(&read, "blk.0.ffn_up.weight", 1), [3.0, 1.0]);
    // Of three experts, the second saw nothing: all of its channels count alike.
    let stacked = matrix(&[("blk.1.ffn_up_exps.weight", &[2.0, 4.0, 0.0, 0.0, 9.0, 3.0], &[2.0, 0.0, 3.0])]);
    let path = scratch.path().join("new.gguf");
    stacked.write(&path, false).unwrap();
    let back = Imatrix::read(&path).unwrap();
    assert_eq!(back.file.as_deref(), Some("new.gguf"));
    assert_eq!(Imatrix { file: None, ..back.clone() }, stacked);
    assert_eq!(importance(&back, "blk.1.ffn_up_exps.weight", 3), [1.0, 2.0, 1.0, 1.0, 3.0, 1.0]);
    let one = back.importance_of_expert("blk.1.ffn_up_exps.weight", 2, 2, 3);
    assert_eq!(one.unwrap().unwrap(), [3.0, 1.0]);
    assert!(back.importance("blk.9.attn_q.weight", 2, 1).unwrap().is_none());
    // What is there is not replaced unasked.
    assert_eq!(stacked.write(&path, false).unwrap_err().kind(), "exists");
    stacked.write(&path, true).unwrap();
}

/// What `gguf-dump` of llama.cpp's own file shows: the keys, and tensors in the order of names with trailing ones left out.
#[test]
fn files_are_laid_out_as_llama_cpp_does() {
    let scratch = Scratch::new("imatrix-layout");
    let made = matrix(&[("b", &[1.0, 2.0], &[3.0]), ("a", &[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0])]);
    let file = gguf::File::open(&written(&scratch, "a.gguf", &made.bytes().unwrap())).unwrap();
    let tensors: Vec<(&str, &[u64])> =
        file.header.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.dims.as_slice())).collect();
    let expected: [(&str, &[u64]); 4] =
        [("a.in_sum2", &[2, 2]), ("a.counts", &[1, 2]), ("b.in_sum2", &[2]), ("b.counts", &[1])];
    assert_eq!(tensors, expected);
    let keys: Vec<&str> = file.header.metadata.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["general.type", "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"]);
}

#[test]
fn what_is_no_importance_matrix_is_refused_in_words() {
    let scratch = Scratch::new("imatrix-refused");
    let refused = |name: &str, bytes: &[u8]| {
        let error = Imatrix::read(&written(&scratch, name, bytes)).unwrap_err();
        assert!(error.is_input(), "{error}");
        error.to_string()
    };
    assert!(refused("empty", b"").contains("ends too early"));
    assert!(refused("words", b"this is no matrix").contains("entry 0 of"));
    assert!(refused("minus", &(-1i32).to_le_bytes()).contains("says -1 entries"));
    let all = legacy();
    assert!(refused("cut", &all[..40]).contains("ends too early"));
    let mut long = all.clone();
    long[4..8].copy_from_slice(&i32::MAX.to_le_bytes());
    assert!(refused("long", &long).contains("letters of a name"));
    let mut wide = all.clone();
    wide[4 + 4 + 19 + 4..][..4].copy_from_slice(&i32::MAX.to_le_bytes());
    assert!(refused("wide", &wide).contains("ends too early"));
    for (name, made, said) in [
        ("nan", matrix(&[("a", &[f32::NAN], &[1.0])]), "has the sum NaN"),
        ("infinite", matrix(&[("a", &[f32::INFINITY], &[1.0])]), "has the sum inf"),
        ("below", matrix(&[("a", &[-1.0], &[1.0])]), "has the sum -1"),
        ("counts", matrix(&[("a", &[1.0], &[f32::NAN])]), "has the count NaN"),
        ("none", matrix(&[]), "it has no entries"),
    ] {
        assert!(refused(name, &made.bytes().unwrap()).contains(said), "{name}");
    }
    // Sums without counts.
    let head = gguf::head(&[], &[("a.in_sum2".to_owned(), vec![1], Type::F32)]).unwrap();
    let mut bytes = head.bytes;
    bytes.resize(head.length as usize, 0);
    assert!(refused("alone", &bytes).contains("has no `a.counts` beside it"));
}

#[test]
fn one_of_another_shape_is_of_another_model() {
    let made = matrix(&[("blk.0.attn_q.weight", &[1.0; 8], &[1.0])]);
    let error = made.importance("blk.0.attn_q.weight", 6, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "weight `blk.0.attn_q.weight`: has 6 input channels, and the importance matrix speaks of 8"
    );
    assert!(error.hint().unwrap().contains("another model"));
    // Of a model with fewer or with more experts, whether their tokens are counted apart, as of now, or together, as before.
    for (sums, counts) in [(8, 4), (32, 16), (8, 1), (32, 1)] {
        let made = matrix(&[("blk.0.ffn_up_exps.weight", &vec![1.0; sums], &vec![1.0; counts])]);
        let error = made.importance_of_expert("blk.0.ffn_up_exps.weight", 2, 7, 8).unwrap_err().to_string();
        assert!(error.contains("8 experts of 2 input channels") && error.ends_with(&sums.to_string()), "{error}");
        assert!(made.importance("blk.0.ffn_up_exps.weight", 2, 8).is_err());
    }
    // Three experts of four channels are no matrix of twelve.
    let made = matrix(&[("blk.0.attn_q.weight", &[1.0; 12], &[1.0; 3])]);
    assert!(made.importance("blk.0.attn_q.weight", 12, 1).is_err());
    let made = matrix(&[("blk.0.ffn_up_exps.weight", &[1.0, 2.0, 3.0, 4.0], &[1.0])]);
    assert_eq!(made.importance_of_expert("blk.0.ffn_up_exps.weight", 2, 1, 2).unwrap().unwrap(), [3.0, 4.0]);
    assert_eq!(made.importance_of_expert("blk.0.ffn_up_exps.weight", 4, 1, 2).unwrap().unwrap(), [1.0, 2.0, 3.0, 4.0]);
}

/// A folder that cannot be written to is left as it is, and so is a file of somebody else's beside.
#[test]
fn what_cannot_be_written_leaves_nothing() {
    let scratch = Scratch::new("imatrix-places");
    let made = matrix(&[("a", &[1.0], &[1.0])]);
    let path = scratch.path().join("new.gguf");
    let left = scratch.path().join("new.gguf.0.part");
    fs::write(&left, "dear").unwrap();
    made.write(&path, false).unwrap();
    assert_eq!(fs::read_to_string(&left).unwrap(), "dear");
    fs::create_dir(scratch.path().join("folder")).unwrap();
    assert!(made.write(&scratch.path().join("folder"), true).is_err());
    assert!(made.write(&scratch.path().join("none/new.gguf"), false).is_err());
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 3, "no draft is left");
}

/// Two layers of a Mixtral of two experts, one of which is sent every other token.
struct Told;

impl Observed for Told {
    fn layers(&self) -> usize {
        2
    }

    fn samples(&self) -> Vec<usize> {
        vec![4, 4]
    }

    fn memory(&self) -> u64 {
        0
    }

    fn run(&mut self, pass: Pass<'_>, each: &mut dyn FnMut(Seen<'_>) -> Result<()>) -> Result<()> {
        let module = |rest: &str| format!("model.layers.{}.{rest}", pass.layer);
        for sample in 0..2u8 {
            let values: Vec<f32> = (0..8u8).map(|at| f32::from(at + sample)).collect();
            let modules = ["self_attn.q_proj", "self_attn.k_proj"].map(module);
            each(Seen { modules: &modules, expert: None, tokens: &[0, 1, 2, 3], columns: 2, values: &values })?;
            let modules = [module("block_sparse_moe.experts.1.w1")];
            each(Seen { modules: &modules, expert: Some(1), tokens: &[0, 2], columns: 2, values: &values[..4] })?;
        }
        Ok(())
    }
}

/// Sums by hand: of the first channel 0 + 4 + 16 + 36 and 1 + 9 + 25 + 49; the expert sees the first two rows of each, 0 + 4 and 1 + 9.
#[test]
fn sums_are_of_squares_and_experts_have_their_own() {
    let config = json!({"architectures": ["MixtralForCausalLM"], "num_hidden_layers": 2, "num_local_experts": 2});
    let names = Names::new(&config, true).unwrap();
    let mut done = Vec::new();
    let made = collect(&mut Told, &names, "text.txt", &mut |at, of| done.push((at, of))).unwrap();
    assert_eq!(done, [(1, 2), (2, 2)]);
    assert_eq!((made.chunks, made.chunk_size), (2, 4));
    let names: Vec<&str> = made.entries.keys().map(String::as_str).collect();
    let layer = |at: usize| ["attn_k", "attn_q", "ffn_gate_exps"].map(|stem| format!("blk.{at}.{stem}.weight"));
    assert_eq!(names, [layer(0), layer(1)].concat());
    let query = &made.entries["blk.1.attn_q.weight"];
    assert_eq!((query.sums.as_slice(), query.counts.as_slice()), (&[140.0, 204.0][..], &[8.0][..]));
    let expert = &made.entries["blk.0.ffn_gate_exps.weight"];
    assert_eq!((expert.sums.as_slice(), expert.counts.as_slice()), (&[0.0, 0.0, 14.0, 30.0][..], &[0.0, 4.0][..]));
}

/// Llama 4 has its experts in stacks, which compressed-tensors writes one by one; llama.cpp knows them by stacks of its own.
#[test]
fn experts_taken_apart_are_known_by_their_stacks() {
    let config = json!({"architectures": ["Llama4ForCausalLM"], "num_hidden_layers": 1, "num_local_experts": 2});
    let names = Names::new(&config, true).unwrap();
    let stack = |part: &str| format!("blk.0.ffn_{part}_exps.weight");
    let (gate, up, down) = (stack("gate"), stack("up"), stack("down"));
    let made = matrix(&[
        (&gate, &[1.0, 2.0, 3.0, 4.0], &[1.0, 1.0]),
        (&up, &[5.0, 6.0, 7.0, 8.0], &[1.0, 1.0]),
        (&down, &[9.0, 10.0], &[1.0, 1.0]),
    ]);
    let of = |name: &str, columns| {
        let name = format!("model.layers.0.feed_forward.experts.{name}.weight");
        importance_of(&made, &names, &name, columns, None).unwrap()
    };
    assert_eq!(of("1.gate_proj", 2), Some(vec![3.0, 4.0]));
    assert_eq!(of("0.up_proj", 2), Some(vec![5.0, 6.0]));
    assert_eq!(of("1.down_proj", 1), Some(vec![10.0]));
    assert_eq!(of("2.up_proj", 2), None);
}

proptest! {
    /// Whatever bytes there are, they are an answer or an error, and neither takes long.
    #[test]
    fn bytes_are_never_trusted(bytes in prop::collection::vec(any::<u8>(), 0..400), at in 0usize..80, value in any::<i32>()) {
        let scratch = Scratch::new("imatrix-fuzz");
        let _ = Imatrix::read(&written(&scratch, "random", &bytes));
        let mut changed = legacy();
        changed[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let _ = Imatrix::read(&written(&scratch, "changed", &changed));
        let mut changed = matrix(&[("a", &[1.0, 2.0], &[3.0])]).bytes().unwrap();
        changed[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let _ = Imatrix::read(&written(&scratch, "changed.gguf", &changed));
    }
}
