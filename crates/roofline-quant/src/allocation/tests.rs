use std::fs;

use roofline_core::{Plan, Role, plan::Selector, precision::PrecisionSpec};
use serde_json::json;

use super::*;
use crate::{
    Checkpoint, Dtype, Layout, Request, Runtime, checkpoint::tests::write, quantize::prepare, scratch::Scratch,
};

const LAYERS: usize = 3;
/// Inputs of a matrix, and rows of the embedding.
const HIDDEN: usize = 256;
const WORDS: usize = 12;

/// A Llama of three layers whose weights look random, with a tied head.
fn checkpoint(folder: &Scratch) -> Checkpoint {
    checkpoint_with(folder, &[])
}

/// The same with more matrices of the embedding's shape.
fn checkpoint_with(folder: &Scratch, more: &[&str]) -> Checkpoint {
    let blocks = ["gate", "up", "down"].map(|name| format!("mlp.{name}_proj"));
    checkpoint_of(folder, &json!({}), &blocks, more)
}

/// The same with two experts in each layer, and one that all tokens meet.
fn mixture(folder: &Scratch) -> Checkpoint {
    let of = |expert: &str| ["gate", "up", "down"].map(|name| format!("mlp.{expert}.{name}_proj"));
    let blocks = ["shared_expert", "experts.0", "experts.1"].map(of).concat();
    let config = json!({ "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "num_experts": 2,
        "num_experts_per_tok": 1, "moe_intermediate_size": HIDDEN, "shared_expert_intermediate_size": HIDDEN });
    checkpoint_of(folder, &config, &blocks, &[])
}

/// A model of three layers with these feed-forward matrices in each, and words of its own in its configuration.
fn checkpoint_of(folder: &Scratch, own: &serde_json::Value, blocks: &[String], more: &[&str]) -> Checkpoint {
    let mut config = json!({ "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
        "hidden_size": HIDDEN, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
        "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "vocab_size": WORDS, "tie_word_embeddings": true });
    config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        (0..WORDS).map(|at| (format!("{}", char::from(b'a' + at as u8)), at.into())).collect();
    let tokenizer = json!({ "model": { "type": "BPE", "vocab": vocabulary, "merges": [] }, "pre_tokenizer": null });
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let matrix = [HIDDEN, HIDDEN];
    let mut tensors =
        vec![("model.embed_tokens".to_owned(), vec![WORDS, HIDDEN]), ("model.norm".to_owned(), vec![HIDDEN])];
    tensors.extend(more.iter().map(|name| ((*name).to_owned(), vec![WORDS, HIDDEN])));
    for layer in 0..LAYERS {
        let attention = ["q", "k", "v", "o"].map(|name| format!("self_attn.{name}_proj"));
        let products = attention.iter().chain(blocks);
        tensors.extend(products.map(|name| (format!("model.layers.{layer}.{name}"), matrix.to_vec())));
        let norms = ["input_layernorm", "post_attention_layernorm"];
        tensors.extend(norms.map(|name| (format!("model.layers.{layer}.{name}"), vec![HIDDEN])));
    }
    let mut state = 1u64;
    let mut number = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5).to_bits()
    };
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .into_iter()
        .map(|(name, shape)| {
            let numbers = (0..shape.iter().product::<usize>()).map(|_| (number() >> 16) as u16);
            (format!("{name}.weight"), shape, numbers.flat_map(u16::to_le_bytes).collect())
        })
        .collect();
    let tensors: Vec<(&str, Dtype, &[usize], Vec<u8>)> = tensors
        .iter()
        .map(|(name, shape, bytes)| (name.as_str(), Dtype::Bf16, shape.as_slice(), bytes.clone()))
        .collect();
    write(&folder.path().join("model.safetensors"), &tensors);
    Checkpoint::open(folder.path()).unwrap()
}

/// A search without a model: what is lost is the part of its bits that a portion loses, the later the more.
struct Tried<'a> {
    trial: Trial<'a>,
    offers: Vec<Vec<Offer>>,
    losses: Vec<Vec<f64>>,
}

impl<'a> Tried<'a> {
    fn new(checkpoint: &'a Checkpoint, layout: Layout, threads: usize) -> Self {
        let target = std::env::temp_dir().join("roofline-quant-allocation.gguf");
        Self::of(checkpoint, Request { threads, ..Request::new(Plan::sixteen(), layout, target) })
    }

    fn of(checkpoint: &'a Checkpoint, request: Request) -> Self {
        let trial = Trial::new(checkpoint, request).unwrap();
        let rated: Vec<_> = (0..trial.portions().len()).map(|at| trial.rated(at).unwrap()).collect();
        let offers = trial.worthwhile(Goal::Bits(16.0), &rated);
        let loss = |at: usize, own: &[Offer], offer: &Offer| {
            let widest = own.last().unwrap().bytes as f64;
            (1 + at) as f64 * (1.0 - offer.bytes as f64 / widest).exp2()
        };
        let losses = offers.iter().enumerate().map(|(at, own)| own.iter().map(|offer| loss(at, own, offer)).collect());
        Self { losses: losses.collect(), offers, trial }
    }

    fn fitted(&self, goal: Goal) -> crate::Result<Fitted> {
        self.trial.fitted(goal, &self.offers, &self.losses)
    }
}

/// Every portion is offered each width, and what is said to be kept takes what it took: 16 bits, in every layer.
#[test]
fn kept_weights_take_what_they_took() {
    let folder = Scratch::new("allocation-kept");
    let checkpoint = checkpoint(&folder);
    for layout in [Layout::Gguf, Layout::CompressedTensors, Layout::Mlx] {
        let tried = Tried::new(&checkpoint, layout, 2);
        for (portion, own) in tried.trial.portions().iter().zip(&tried.offers) {
            let matrices = if portion.layers.is_some() { portion.roles.len() * HIDDEN } else { WORDS };
            let kept = own.last().unwrap();
            assert_eq!((kept.format, kept.bytes), ("keep", (2 * matrices * HIDDEN) as u64), "{layout} {portion}");
            let narrow = portion.layers.is_some() || layout != Layout::CompressedTensors;
            assert!(!narrow || own.len() > 3, "{layout} {portion}: {own:?}");
        }
    }
}

/// A larger aim is never met by a smaller file; none is over its aim, and most of it is used.
#[test]
fn sizes_grow_with_what_is_aimed_at() {
    let folder = Scratch::new("allocation-grows");
    let checkpoint = checkpoint(&folder);
    for (layout, aims) in [
        (Layout::Gguf, &[3.0, 4.3, 5.0, 6.0, 8.6, 12.0][..]),
        (Layout::CompressedTensors, &[4.6, 6.0, 8.6, 12.0]),
        (Layout::Mlx, &[3.5, 5.0, 8.6, 12.0]),
    ] {
        let tried = Tried::new(&checkpoint, layout, 2);
        let mut before = 0;
        for bits in aims {
            let found = tried.fitted(Goal::Bits(*bits)).unwrap();
            let got = 8.0 * found.tensors as f64 / tried.trial.weights() as f64;
            assert!(got <= *bits && got > 0.96 * bits, "{layout}: {got} of {bits}, {}", found.plan);
            assert!(found.tensors > before, "{layout}: {bits}");
            before = found.tensors;
            // The size that a plan was found to take is enough to find it, and not one byte less.
            let whole = tried.fitted(Goal::Bytes(found.bytes)).unwrap();
            assert!(whole.bytes <= found.bytes, "{layout}: {whole:?} {found:?}");
            let less = tried.fitted(Goal::Bytes(found.bytes - 1)).unwrap();
            assert!(less.bytes < found.bytes, "{layout}: {less:?}");
        }
    }
}

/// What cannot be is refused with what could.
#[test]
fn what_is_too_small_is_told() {
    let folder = Scratch::new("allocation-small");
    let checkpoint = checkpoint(&folder);
    let tried = Tried::new(&checkpoint, Layout::Gguf, 1);
    let told = tried.fitted(Goal::Bits(1.0)).unwrap_err().to_string();
    let least = told.split_whitespace().find_map(|word| word.parse::<f64>().ok()).unwrap();
    let smallest = tried.fitted(Goal::Bits(least)).unwrap();
    assert!(tried.fitted(Goal::Bits(least - 0.002)).is_err(), "{told}");
    let told = tried.fitted(Goal::Bytes(1000)).unwrap_err().to_string();
    assert!(told.contains(&format!("takes {} B at least", smallest.bytes)) && told.contains("1000 B"), "{told}");
    assert_eq!(tried.fitted(Goal::Bytes(smallest.bytes)).unwrap(), smallest);
}

#[test]
fn threads_change_nothing() {
    let folder = Scratch::new("allocation-threads");
    let checkpoint = checkpoint(&folder);
    let (one, two) = (Tried::new(&checkpoint, Layout::Gguf, 1), Tried::new(&checkpoint, Layout::Gguf, 2));
    assert_eq!(one.offers, two.offers);
    assert_eq!(one.fitted(Goal::Bits(4.7)).unwrap(), two.fitted(Goal::Bits(4.7)).unwrap());
}

/// What is kept is kept whatever is chosen, and the size is met with it: a role, and one matrix of a role.
#[test]
fn what_is_kept_counts() {
    let folder = Scratch::new("allocation-keep");
    let checkpoint = checkpoint(&folder);
    for layout in [Layout::Gguf, Layout::CompressedTensors, Layout::Mlx] {
        let target = std::env::temp_dir().join("roofline-quant-allocation.gguf");
        let kept =
            |plan: Plan, pattern: &str| plan.with(Selector::Modules(pattern.to_owned()), PrecisionSpec::sixteen());
        let plan = kept(kept(Plan::sixteen(), "*.down_proj"), "model.layers.1.self_attn.v_proj");
        let tried = Tried::of(&checkpoint, Request::new(plan, layout, target));
        assert!(tried.trial.portions().iter().all(|portion| !portion.roles.contains(&Role::Down)), "{layout}");
        let found = tried.fitted(Goal::Bits(8.0)).unwrap();
        let bits = 8.0 * found.tensors as f64 / tried.trial.weights() as f64;
        assert!(bits <= 8.0 && bits > 7.0, "{layout}: {bits}");
        let text = found.plan.to_string();
        assert!(text.ends_with("*.down_proj=16bit,model.layers.1.self_attn.v_proj=16bit"), "{text}");
        // Beside a quarter of the weights in 16 bits, and with them alone: less than any other choice.
        let least = tried.fitted(Goal::Bits(1.0)).unwrap_err().to_string();
        let without = Tried::new(&checkpoint, layout, 1).fitted(Goal::Bits(1.0)).unwrap_err().to_string();
        let bits = |told: &str| told.split_whitespace().find_map(|word| word.parse::<f64>().ok()).unwrap();
        assert!(bits(&least) > bits(&without) + 1.0, "{least}; {without}");
    }
    let all = Plan::sixteen().with(Selector::Modules("*".repeat(2)), PrecisionSpec::sixteen());
    let refused = Trial::new(&checkpoint, Request::new(all, Layout::Mlx, "none".into())).err().unwrap().to_string();
    assert!(refused.contains("every weight of this model is kept"), "{refused}");
}

/// A copy of the embedding that stands where a head would has no format of its own, and no weights where it is not written.
#[test]
fn a_tied_head_is_the_embedding() {
    let folders = [Scratch::new("allocation-tied"), Scratch::new("allocation-copy")];
    let plain = checkpoint(&folders[0]);
    let copied = checkpoint_with(&folders[1], &["lm_head"]);
    for layout in [Layout::Gguf, Layout::Mlx] {
        let [plain, copied] = [&plain, &copied].map(|checkpoint| Tried::new(checkpoint, layout, 2));
        assert_eq!(copied.trial.portions(), plain.trial.portions());
        assert_eq!(copied.trial.weights(), plain.trial.weights(), "{layout}");
        let [plain, copied] = [plain, copied].map(|tried| tried.fitted(Goal::Bits(6.0)).unwrap().plan);
        assert!(copied == plain && !copied.to_string().contains("head"), "{layout}: {copied}");
    }
}

/// What a runtime loads as one is of one format, whatever is lost by that: queries, keys and values for vLLM, experts for those that
/// stack them, and everything where there is one scheme.
#[test]
fn runtimes_load_what_is_chosen() {
    let folders = [Scratch::new("allocation-dense"), Scratch::new("allocation-mixture")];
    let (dense, mixture) = (checkpoint(&folders[0]), mixture(&folders[1]));
    let layouts = [
        (&dense, Layout::CompressedTensors, Some(Runtime::Vllm)),
        (&dense, Layout::CompressedTensors, None),
        (&dense, Layout::Gptq, None),
        (&dense, Layout::Awq, None),
        (&dense, Layout::Bitsandbytes, None),
        (&mixture, Layout::CompressedTensors, Some(Runtime::Vllm)),
        (&mixture, Layout::CompressedTensors, Some(Runtime::Transformers)),
        (&mixture, Layout::CompressedTensors, None),
    ];
    for (checkpoint, layout, runtime) in layouts {
        let order = Request { runtime, threads: 2, ..Request::new(Plan::sixteen(), layout, "none".into()) };
        let tried = Tried::of(checkpoint, order.clone());
        let least = tried.fitted(Goal::Bits(0.5)).unwrap_err().to_string();
        let least = least.split_whitespace().find_map(|word| word.parse::<f64>().ok()).unwrap();
        let mut plans = Vec::new();
        for more in [0.0, 0.3, 1.0, 2.5, 4.0] {
            let found = tried.fitted(Goal::Bits(least + more)).unwrap();
            let bits = 8.0 * found.tensors as f64 / tried.trial.weights() as f64;
            assert!(bits <= least + more, "{layout} for {runtime:?}: {bits} of {least} + {more}");
            let job = prepare(checkpoint, &Request { plan: found.plan.clone(), ..order.clone() }).unwrap();
            let refused: Vec<&String> = job
                .notes
                .iter()
                .filter(|note| {
                    note.contains("refuses") && runtime != Some(Runtime::Transformers)
                        || note.contains("fits no weight")
                })
                .collect();
            assert!(refused.is_empty(), "{layout} for {runtime:?}, {}: {refused:?}", found.plan);
            plans.push(found.plan.to_string());
        }
        plans.dedup();
        assert!(plans.len() > 3, "{layout} for {runtime:?}: {plans:?}");
    }
}

/// What is no number is so in every format, and is said before hours are spent on them.
#[test]
fn numbers_that_are_none_are_refused() {
    let folder = Scratch::new("allocation-nan");
    let _ = checkpoint(&folder);
    let path = folder.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let start = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    bytes[start..start + 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let trial = Trial::new(&checkpoint, Request::new(Plan::sixteen(), Layout::Mlx, "none".into())).unwrap();
    let told = (0..trial.portions().len()).find_map(|at| trial.rated(at).err());
    let told = told.map(|error| (error.to_string(), error.hint().unwrap())).unwrap();
    assert!(told.0.contains("embed_tokens") && told.0.contains("is NaN") && told.1.contains("damaged"), "{told:?}");
}
