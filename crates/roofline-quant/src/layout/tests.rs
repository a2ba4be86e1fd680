mod families;

use std::collections::HashSet;

use roofline_core::{
    plan::{Mix, Selector},
    precision::PrecisionSpec,
};
use serde_json::json;

use super::*;
use crate::{
    checkpoint::{SINGLE, tests::write},
    scratch::Scratch,
};

/// The table of schemes, read both ways: a name means its formats in every verb, and formats have one scheme.
#[test]
fn names_are_formats_and_formats_are_schemes() {
    for layout in Layout::ALL {
        assert_eq!(layout.name().parse::<Layout>().unwrap(), layout);
        let (mut names, mut formats) = (HashSet::new(), HashSet::new());
        for scheme in layout.schemes() {
            assert!(formats.insert((scheme.weights, scheme.activations)), "{layout} {}", scheme.name);
            assert_eq!(layout.scheme_of(scheme.weights, scheme.activations).unwrap().name, scheme.name);
            for name in scheme.aliases.iter().chain([&scheme.name]) {
                assert!(names.insert(*name), "{layout} {name}");
                let meant = name.parse::<PrecisionSpec>().unwrap().formats();
                assert_eq!(meant.weights, Some(scheme.weights), "{layout} {name}");
                let activations = meant.activations.filter(|format| format.nominal_bits() < 16);
                assert_eq!(activations, scheme.activations, "{layout} {name}");
                // What a plan of that name is printed as is a plan of the same.
                let plan: Plan = name.to_uppercase().parse().unwrap();
                assert_eq!(plan.to_string().parse::<Plan>().unwrap().to_string(), plan.to_string(), "{name}");
            }
        }
    }
}

#[test]
fn everything_that_is_listed_is_a_plan() {
    for layout in Layout::ALL {
        let mut seen = HashSet::new();
        for listed in layout.listed() {
            for name in listed.aliases.iter().chain([&listed.name]) {
                let plan: Plan = name.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(plan.to_string(), listed.name.parse::<Plan>().unwrap().to_string(), "{name}");
                assert!(seen.insert(*name), "{layout} {name}");
            }
        }
        let recipes = layout.listed().iter().filter(|listed| Mix::named(listed.name).is_some()).count();
        assert_eq!(recipes, if layout == Layout::Gguf { Mix::ALL.len() } else { 0 });
    }
    for mix in Mix::ALL {
        let listed = Layout::Gguf.listed();
        let listed = listed.iter().find(|listed| listed.name == mix.name()).unwrap();
        assert_eq!((listed.aliases, &*listed.summary), (mix.aliases(), mix.summary()));
    }
}

#[test]
fn a_format_that_is_not_stored_says_what_would_do() {
    let refused = |layout: Layout, name: &str| {
        let formats = name.parse::<PrecisionSpec>().unwrap().formats();
        let error = layout.scheme_of(formats.weights.unwrap(), formats.activations).unwrap_err();
        (error.to_string(), error.hint().unwrap())
    };
    let (what, hint) = refused(Layout::Torchao, "nvfp4a16");
    assert_eq!(what, "torchao cannot store nvfp4");
    assert!(
        hint.starts_with("`int4-g64-zp16` takes about as many bits; `⟨as compressed-tensors⟩` has `nvfp4a16`"),
        "{hint}"
    );
    let (_, hint) = refused(Layout::Gguf, "int4-g32");
    assert!(hint.starts_with("`q4_0` takes about as many bits; `⟨as compressed-tensors⟩` has `int4-g32`"), "{hint}");
    assert!(hint.ends_with("`⟨as mlx⟩` has `int4-g32`"), "every layout that has it is named: {hint}");
    let (what, hint) = refused(Layout::Gguf, "int3");
    assert_eq!(what, "gguf cannot store int3-g64");
    assert!(hint.starts_with("`q3_k` takes about as many bits; ") && hint.contains("`⟨as mlx⟩` has `int3`"), "{hint}");
    let (what, hint) = refused(Layout::Mlx, "w8a16");
    assert_eq!(what, "mlx cannot store int8");
    assert!(hint.starts_with("`int8-g128` takes about as many bits; "), "{hint}");
    let (_, hint) = refused(Layout::CompressedTensors, "q8_0/bf16");
    assert_eq!(hint, "`int8-g128` takes about as many bits; `⟨as gguf⟩` has `q8_0`");
    let (_, hint) = refused(Layout::CompressedTensors, "int2");
    assert_eq!(hint, "`⟨as gptq⟩` has `int2`; `⟨as mlx⟩` has `int2`");
    let (_, hint) = refused(Layout::FineGrained, "fp8");
    assert_eq!(hint, "`fp8-block` is what it has; `⟨as compressed-tensors⟩` has `fp8`");
    let (_, hint) = refused(Layout::Awq, "w4a16");
    assert!(
        hint.starts_with("`int4-g128-zp` takes about as many bits; `⟨as compressed-tensors⟩` has `w4a16`"),
        "{hint}"
    );
    let (_, hint) = refused(Layout::Torchao, "fp8");
    assert!(
        hint.starts_with("`fp8a16` leaves the activations as they are; `⟨as compressed-tensors⟩` has `fp8`"),
        "{hint}"
    );
}

#[test]
fn a_plan_has_a_layout() {
    for (plan, layout) in [
        ("w4a16", Layout::CompressedTensors),
        ("w4a16,head=w8a16,kv=fp8", Layout::CompressedTensors),
        ("nvfp4", Layout::CompressedTensors),
        ("fp8a16", Layout::Torchao),
        ("int4wo", Layout::Torchao),
        ("bf16", Layout::Plain),
        ("fp32,head=keep", Layout::Plain),
        ("q4_k_m,head=q8_0", Layout::Gguf),
        ("bf16,head=q8_0", Layout::Gguf),
        ("q8_0/bf16", Layout::Gguf),
        ("*=bf16,experts=mxfp4a16", Layout::CompressedTensors),
        ("nf4-dq", Layout::Bitsandbytes),
        ("mlx-6bit,head=mlx-8bit", Layout::Mlx),
    ] {
        assert_eq!(Layout::of_plan(&plan.parse().unwrap()), layout, "{plan}");
    }
}

const HIDDEN: usize = 256;
const INNER: usize = 512;

/// A Llama of two layers.
fn checkpoint(scratch: &Scratch) -> Checkpoint {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false, "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1,
    });
    std::fs::write(scratch.path().join("config.json"), config.to_string()).unwrap();
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        (0..64).map(|id| (format!("t{id}"), id.into())).collect();
    let tokenizer = json!({
        "added_tokens": [], "pre_tokenizer": { "type": "ByteLevel" },
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
    });
    std::fs::write(scratch.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let mut tensors: Vec<(String, Vec<usize>)> = vec![("model.embed_tokens.weight".to_owned(), vec![64, HIDDEN])];
    for layer in 0..2 {
        let mut add = |name: &str, shape: &[usize]| {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
        };
        add("input_layernorm", &[HIDDEN]);
        for (name, rows) in [("q", HIDDEN), ("k", HIDDEN / 2), ("v", HIDDEN / 2), ("o", HIDDEN)] {
            add(&format!("self_attn.{name}_proj"), &[rows, HIDDEN]);
        }
        add("post_attention_layernorm", &[HIDDEN]);
        for (name, rows, columns) in [("gate", INNER, HIDDEN), ("up", INNER, HIDDEN), ("down", HIDDEN, INNER)] {
            add(&format!("mlp.{name}_proj"), &[rows, columns]);
        }
    }
    tensors.push(("model.norm.weight".to_owned(), vec![HIDDEN]));
    tensors.push(("lm_head.weight".to_owned(), vec![64, HIDDEN]));
    let zeros = |shape: &[usize]| vec![0; 2 * shape.iter().product::<usize>()];
    let tensors: Vec<(&str, Dtype, &[usize], Vec<u8>)> =
        tensors.iter().map(|(name, shape)| (name.as_str(), Dtype::F16, &shape[..], zeros(shape))).collect();
    write(&scratch.path().join(SINGLE), &tensors);
    Checkpoint::open(scratch.path()).unwrap()
}

/// A request for a plan and nothing else.
fn request(layout: Layout, plan: &Plan) -> Request {
    Request::new(plan.clone(), layout, "out".into())
}

/// What becomes of the queries of the first layer, the ways down of the last, and the head; or why not.
fn written(checkpoint: &Checkpoint, layout: Layout, plan: &Plan) -> String {
    let job = match layout.job(checkpoint, &request(layout, plan)) {
        Ok(job) => job,
        Err(error) => return error.to_string(),
    };
    let of = |name: &str| {
        let item = job.items.iter().find(|item| item.name == name).unwrap();
        match &item.work {
            Work::Code(code) => code.scheme.clone(),
            _ => "kept".to_owned(),
        }
    };
    let names = ["model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight", "lm_head.weight"];
    names.map(of).join(" ")
}

/// What becomes of plans in compressed-tensors, safetensors, gguf and torchao: after a `=` what is written, after a `!` what is
/// said, else what the layout says that it cannot store.
const PLANS: [(&str, [&str; 4]); 17] = [
    ("w4a16", ["= w4a16 w4a16 kept", "int4-g128", "int4-g128", "= w4a16 w4a16 kept"]),
    ("w8a16", ["= w8a16 w8a16 kept", "int8", "int8", "= w8a16 w8a16 kept"]),
    ("w4a16-asym", ["= int4-g128-zp int4-g128-zp kept", "int4-g128-zp", "int4-g128-zp", "`down` as int4-g128-zp"]),
    (
        "int4-weight-only",
        ["`down` as int4-g128-zp16", "int4-g128-zp16", "int4-g128-zp16", "= int4-g128-zp16 int4-g128-zp16 kept"],
    ),
    (
        "fp8",
        [
            "= fp8 fp8 kept",
            "fp8-e4m3 with fp8-e4m3 activations",
            "fp8-e4m3 with fp8-e4m3 activations",
            "`down` as fp8-e4m3 with fp8-e4m3 activations",
        ],
    ),
    (
        "nvfp4",
        [
            "! the plan `nvfp4` stores scales for the input of `model.layers.0.mlp.down_proj`, which only data can tell",
            "nvfp4 with nvfp4 activations",
            "nvfp4 with nvfp4 activations",
            "`down` as nvfp4 with nvfp4 activations",
        ],
    ),
    ("nvfp4a16", ["= nvfp4a16 nvfp4a16 kept", "nvfp4", "= nvfp4 nvfp4 f16", "`down` as nvfp4"]),
    (
        "mxfp4",
        [
            "= mxfp4 mxfp4 kept",
            "mxfp4 with mxfp4 activations",
            "mxfp4 with mxfp4 activations",
            "`down` as mxfp4 with mxfp4 activations",
        ],
    ),
    (
        "w4a16,down=w8a16,head=fp8",
        ["= w4a16 w8a16 fp8", "int4-g128", "int4-g128", "`head` as fp8-e4m3 with fp8-e4m3 activations"],
    ),
    ("w4a16,head=q8_0", ["`head` as q8_0", "int4-g128", "int4-g128", "`head` as q8_0"]),
    (
        "q4_k_m,head=q8_0",
        [
            "the recipe `q4_k_m` of llama.cpp",
            "the recipe `q4_k_m` of llama.cpp",
            "= q4_k q6_k q8_0",
            "the recipe `q4_k_m` of llama.cpp",
        ],
    ),
    (
        "q4_0,layers.0=q8_0",
        [
            "the recipe `q4_0` of llama.cpp",
            "the recipe `q4_0` of llama.cpp",
            "= q8_0 q4_0 q6_k",
            "the recipe `q4_0` of llama.cpp",
        ],
    ),
    (
        "q2_k,layers.1=keep",
        [
            "the recipe `q2_k` of llama.cpp",
            "the recipe `q2_k` of llama.cpp",
            "= q2_k f16 q6_k",
            "the recipe `q2_k` of llama.cpp",
        ],
    ),
    ("int4-g32/bf16,head=q8_0", ["`head` as q8_0", "int4-g32", "int4-g32", "`head` as q8_0"]),
    ("bf16", ["nothing", "= bf16 bf16 bf16", "= bf16 bf16 bf16", "nothing"]),
    ("fp32,head=keep", ["`down` as fp32", "= fp32 fp32 kept", "= f32 f32 f16", "`down` as fp32"]),
    ("ffn=w8a16", ["= kept w8a16 kept", "`down` as int8", "`down` as int8", "= kept w8a16 kept"]),
];

/// Every plan is written by a layout as it says, or refused by name. The checkpoint is in FP16, which is what is kept.
#[test]
fn plans_are_written_or_refused_by_name() {
    let scratch = Scratch::new("plans");
    let checkpoint = checkpoint(&scratch);
    for (text, cells) in PLANS {
        let plan: Plan = text.parse().unwrap();
        for (layout, cell) in Layout::ALL.into_iter().zip(cells) {
            let expected = match cell.strip_prefix("= ").or_else(|| cell.strip_prefix("! ")) {
                Some(written) => written.to_owned(),
                None if cell == "nothing" => {
                    format!("nothing to do: the plan `{text}` leaves every weight of this model as it is")
                }
                None => format!("{layout} cannot store {cell}"),
            };
            assert_eq!(written(&checkpoint, layout, &plan), expected, "{text} as {layout}");
        }
    }
}

/// The packings have one scheme for the products of layers, and nothing for anything else.
#[test]
fn packings_take_products_of_layers_alone() {
    let scratch = Scratch::new("packings");
    let checkpoint = checkpoint(&scratch);
    let written = |layout, plan: &str| written(&checkpoint, layout, &plan.parse().unwrap());
    assert_eq!(written(Layout::Gptq, "w4a16"), "w4a16 w4a16 kept");
    assert_eq!(written(Layout::Gptq, "ffn=int3-g128-zp"), "kept int3-g128-zp kept");
    assert_eq!(written(Layout::Awq, "w4a16-asym-g64"), "int4-g64-zp int4-g64-zp kept");
    assert_eq!(written(Layout::FineGrained, "fp8-block,attention=keep"), "kept fp8-block kept");
    let said = written(Layout::Gptq, "w4a16,down=w8a16");
    assert!(said.contains("would be w4a16 beside w8a16, and GPTQ has one scheme for all"), "{said}");
    let said = written(Layout::Awq, "int4-g128-zp,head=int4-g128-zp");
    assert!(said.contains("is no product inside a layer, and transformers loads AWQ there alone"), "{said}");
    let plan = "w4a16".parse().unwrap();
    let asked = Request { ranges: Some(crate::Ranges::default()), ..request(Layout::Gptq, &plan) };
    let error = Layout::Gptq.job(&checkpoint, &asked).err();
    assert!(error.unwrap().to_string().contains("gptq stores no scales of activations"));
}

/// What `⟨keep⟩` adds is one more rule.
#[test]
fn modules_are_kept_by_name() {
    let scratch = Scratch::new("kept");
    let checkpoint = checkpoint(&scratch);
    let plan: Plan = "w4a16".parse().unwrap();
    let plan = plan.with(Selector::Modules("*.q_proj".to_owned()), PrecisionSpec::sixteen());
    assert_eq!(written(&checkpoint, Layout::CompressedTensors, &plan), "kept w4a16 kept");
    let idle = plan.with(Selector::Modules("nowhere".to_owned()), PrecisionSpec::sixteen());
    let job = Layout::CompressedTensors.job(&checkpoint, &request(Layout::CompressedTensors, &idle)).unwrap();
    assert!(job.notes.contains(&"the rule for `nowhere` fits no weight of this model".to_owned()), "{:?}", job.notes);
}

/// bitsandbytes' and MLX's, on the same Llama.
#[test]
fn boxes_are_written_or_refused_by_name() {
    let scratch = Scratch::new("boxes");
    let checkpoint = checkpoint(&scratch);
    for (layout, text, expected) in [
        (Layout::Bitsandbytes, "nf4", "nf4 nf4 kept"),
        (Layout::Bitsandbytes, "nf4,head=nf4,down=keep", "nf4 kept nf4"),
        (Layout::Bitsandbytes, "int8", "int8 int8 kept"),
        (Layout::Bitsandbytes, "w4a16", "bitsandbytes cannot store `down` as int4-g128"),
        (
            Layout::Bitsandbytes,
            "nf4,down=bnb-fp4",
            "a bitsandbytes checkpoint has one scheme, and the plan asks for bnb-fp4 and nf4",
        ),
        (Layout::Mlx, "mlx-4bit,down=mlx-6bit,head=mlx-8bit", "int4-g64-zp16 int6-g64-zp16 int8-g64-zp16"),
        (Layout::Mlx, "int3", "int3 int3 kept"),
        (Layout::Mlx, "int2,layers.1=keep,head=mxfp8a16", "int2 kept mxfp8a16"),
        (Layout::Mlx, "w8a16", "mlx cannot store `down` as int8"),
        (Layout::Mlx, "bf16", "nothing to do: the plan `bf16` leaves every weight of this model as it is"),
    ] {
        assert_eq!(written(&checkpoint, layout, &text.parse().unwrap()), expected, "{text} as {layout}");
    }
}
