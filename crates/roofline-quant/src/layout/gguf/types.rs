//! Which type each tensor of a GGUF file gets: what the plan says, and where that is a recipe of llama.cpp's, what it would
//! have made.

use roofline_core::{Role, model::Anatomy, plan::Mix, precision::PrecisionSpec};

use super::super::{Layout, Target as SchemeTarget};
use crate::{
    Dtype, Error, Result,
    ggml::Type,
    gguf::family::Family,
    gguf::model::{Target, is_matrix, recipe_role},
    plan::{Asked, Wanted, plain},
    site::Site,
};

/// A plan for the types of a file.
pub(super) struct Types<'p> {
    asked: Asked<'p>,
    anatomy: Anatomy,
    /// What is not named, where the plan is a type of plain numbers.
    rest: Option<Type>,
    /// None where the table of families has it not.
    family: Option<&'static Family>,
    /// Whether there is an importance matrix, which changes a few types of recipes.
    weighed: bool,
}

impl<'p> Types<'p> {
    pub(super) fn new(
        asked: Asked<'p>,
        anatomy: Anatomy,
        family: Option<&'static Family>,
        weighed: bool,
    ) -> Result<Self> {
        let rest = asked.plan.precision().and_then(plain).and_then(Type::of);
        if let Some(precision) = asked.plan.precision() {
            stored(precision, None)?;
        }
        Ok(Self { asked, anatomy, rest, family, weighed })
    }

    /// What a user should know.
    pub(super) fn notes(&self) -> Option<String> {
        let narrowed = self.asked.plan.rules().iter().any(|rule| {
            let named = rule.selector.fits(Role::Router, Some(0), 1, None);
            named && rule.precision.formats().weights.is_some_and(|weights| weights.nominal_bits() < 16)
        });
        (self.anatomy.experts > 0 && narrowed)
            .then(|| "llama.cpp reads routers in F32, and so they are written, whatever the plan says".to_owned())
    }

    /// The type of a tensor of these dimensions, columns first, of `dtype` in the checkpoint.
    pub(super) fn of(&self, site: &Site, target: &Target, dims: &[u64], dtype: Dtype) -> Result<Type> {
        if !is_matrix(&target.name, dims.len()) {
            return Ok(Type::F32);
        }
        Ok(self.wanted(site, target, dims)?.unwrap_or(kept(dtype)))
    }

    /// The type that a matrix is to have; none where it is kept as it is.
    pub(super) fn wanted(&self, site: &Site, target: &Target, dims: &[u64]) -> Result<Option<Type>> {
        let columns = dims.first().copied().unwrap_or(1);
        let role = recipe_role(&target.name);
        let ty = match self.asked.at(site) {
            Wanted::Kept => self.rest,
            Wanted::As(precision) => stored(precision, Some(site.role))?,
            Wanted::Mixed(mix) => {
                let of = if self.weighed { Mix::type_with_importance } else { Mix::type_of };
                let format = of(mix, role, target.layer, columns, &self.anatomy);
                Some(Type::of(format).ok_or_else(|| Error::Plan(format!("{format} is no type of GGUF")))?)
            }
        };
        if ty == Some(Type::Nvfp4) && role == Role::Embedding {
            return Err(Error::unsupported(
                "gguf cannot store `embedding` as nvfp4: llama.cpp has no scale for a table of tokens",
                "keep it, or take `mxfp4a16` or `q8_0`",
            ));
        }
        if ty == Some(Type::Nvfp4) && !self.scaled(&target.name) {
            return Err(Error::unsupported(
                format!(
                    "gguf cannot store `{}` as nvfp4: llama.cpp does not multiply by its scale in models of the family {}",
                    target.name,
                    self.family.map_or("none", |family| family.arch)
                ),
                "take `mxfp4a16`, or `attention=nvfp4a16` with another type for the rest",
            ));
        }
        Ok(ty)
    }

    /// Whether llama.cpp multiplies by the scale of an NVFP4 tensor of that name. It reads one for all of these, and passes it on
    /// in all models for the attention and the output, and in some for the feed-forward (`src/models` of llama.cpp, as
    /// llama-cpp-python 0.3.36 has it).
    fn scaled(&self, name: &str) -> bool {
        let stem = name.rsplit('.').nth(1).unwrap_or_default();
        let attention = matches!(stem, "attn_q" | "attn_k" | "attn_v" | "attn_qkv" | "attn_output" | "output");
        attention
            || (self.family.is_some_and(|family| family.scales) && matches!(stem, "ffn_gate" | "ffn_up" | "ffn_down"))
    }

    /// `general.file_type`, a hint for people that loaders do not need, and the word for it in names of files. `dtype` is the
    /// checkpoint's own.
    pub(super) fn file(&self, dtype: Dtype) -> (u32, String) {
        let plan = self.asked.plan;
        let named = plan.mix().map(|mix| (of_mix(mix), mix.name().to_uppercase()));
        named.unwrap_or_else(|| {
            let weights = plan.precision().and_then(|precision| precision.formats().weights);
            let ty = weights.and_then(Type::of).unwrap_or(kept(dtype));
            (of_type(ty), ty.name().to_owned())
        })
    }
}

/// The type of a precision's weights; none where they are kept.
fn stored(precision: &PrecisionSpec, role: Option<Role>) -> Result<Option<Type>> {
    let formats = precision.formats();
    let scheme = |weights| Layout::Gguf.scheme_at(role, weights, formats.activations);
    let scheme = formats.weights.map(scheme).transpose()?;
    Ok(scheme.and_then(|scheme| if let SchemeTarget::Gguf(ty) = scheme.target { Some(ty) } else { None }))
}

/// The type of what stays as it is.
fn kept(dtype: Dtype) -> Type {
    match dtype {
        Dtype::Bf16 => Type::Bf16,
        Dtype::F16 => Type::F16,
        _ => Type::F32,
    }
}

/// llama.cpp's number for a recipe.
fn of_mix(mix: Mix) -> u32 {
    match mix {
        Mix::Q4_0 => 2,
        Mix::Q4_1 => 3,
        Mix::Q8_0 => 7,
        Mix::Q5_0 => 8,
        Mix::Q5_1 => 9,
        Mix::Q2K => 10,
        Mix::Q3KSmall => 11,
        Mix::Q3KMedium => 12,
        Mix::Q3KLarge => 13,
        Mix::Q4KSmall => 14,
        Mix::Q4KMedium => 15,
        Mix::Q5KSmall => 16,
        Mix::Q5KMedium => 17,
        Mix::Q6K => 18,
        Mix::Iq2ExtraExtraSmall => 19,
        Mix::Iq2ExtraSmall => 20,
        Mix::Iq3ExtraSmall => 22,
        Mix::Iq3ExtraExtraSmall => 23,
        Mix::Iq1Small => 24,
        Mix::Iq4Nl => 25,
        Mix::Iq3Small => 26,
        Mix::Iq3Medium => 27,
        Mix::Iq2Small => 28,
        Mix::Iq2Medium => 29,
        Mix::Iq4Xs => 30,
        Mix::Iq1Medium => 31,
    }
}

/// Its number for files of mostly one type: that of the recipe with the fewest others.
fn of_type(ty: Type) -> u32 {
    match ty {
        Type::F16 => 1,
        Type::Bf16 => 32,
        Type::Mxfp4 => 38,
        Type::Nvfp4 => 39,
        // The small recipes come after the medium ones.
        _ => Mix::ALL.into_iter().rev().find(|mix| Type::of(mix.base()) == Some(ty)).map_or(0, of_mix),
    }
}

#[cfg(test)]
mod tests {
    use roofline_core::Plan;
    use serde_json::{Value, json};

    use super::*;
    use crate::gguf::{Files, model::Model};

    /// The type that a plan gives a tensor of a model in BF16.
    fn of(plan: &str, name: &str, columns: usize, more: &Value) -> Result<Type, String> {
        let mut config = json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": 2, "tie_word_embeddings": false,
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let tied = config["tie_word_embeddings"] == json!(true);
        let tokenizer =
            br#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}, "pre_tokenizer": null}"#;
        let files = Files { tokenizer: Some(tokenizer), ..Files::default() };
        let model = Model::new("small", &config, &files, !tied).unwrap();
        let plan: Plan = plan.parse().unwrap();
        let dimensions = if name.contains("norm") || name.ends_with("bias") { 1 } else { 2 };
        let site = Site::of(name, dimensions);
        let (last, head) = (Site::of("model.layers.7.mlp.up_proj.weight", 2), Site::of("lm_head.weight", 2));
        let sites = [&site, &last, &head];
        let asked = Asked::new(&plan, &config, sites.into_iter().take(if tied { 2 } else { 3 }));
        let types = Types::new(asked, model.anatomy(), Some(model.family), false).map_err(|error| error.to_string())?;
        let target = model.tensor(name).unwrap().remove(0);
        let dims = &[columns as u64, 1][..dimensions];
        types.of(&site, &target, dims, Dtype::Bf16).map_err(|error| error.to_string())
    }

    const TABLE: &str = "model.embed_tokens.weight";
    const HEAD: &str = "lm_head.weight";
    const UP: &str = "model.layers.1.mlp.up_proj.weight";
    const FIRST: &str = "model.layers.0.mlp.up_proj.weight";
    const NORM: &str = "model.layers.0.input_layernorm.weight";

    #[test]
    fn plans_are_types() {
        for (plan, name, expected) in [
            // A recipe, and what a rule makes of it.
            ("q4_k_m", HEAD, Type::Q6K),
            ("q4_k_m", TABLE, Type::Q4K),
            ("q4_k_m,head=q8_0", HEAD, Type::Q8_0),
            ("q4_k_m,head=q8_0", UP, Type::Q4K),
            ("q4_0,layers.0-1=q8_0", FIRST, Type::Q8_0),
            ("q4_0,layers.0-1=q8_0", "model.layers.2.mlp.up_proj.weight", Type::Q4_0),
            ("q4_0,layers.-1=keep", "model.layers.7.mlp.up_proj.weight", Type::Bf16),
            ("q4_0,*.up_proj=fp16", UP, Type::F16),
            ("q5_1", UP, Type::Q5_1),
            ("q3_k", UP, Type::Q3K),
            ("q2_k", "model.layers.1.mlp.down_proj.weight", Type::Q3K),
            // A type for the layers alone keeps the ends as they are.
            ("q4_k/bf16", UP, Type::Q4K),
            ("q4_k/bf16", HEAD, Type::Bf16),
            ("nvfp4a16", UP, Type::Nvfp4),
            ("nvfp4a16", TABLE, Type::Bf16),
            ("mxfp4a16,head=q8_0,embedding=q8_0", HEAD, Type::Q8_0),
            ("mxfp4a16,head=q8_0,embedding=q8_0", TABLE, Type::Q8_0),
            ("mxfp4a16,head=q8_0,embedding=q8_0", UP, Type::Mxfp4),
            ("ffn=q8_0", UP, Type::Q8_0),
            ("ffn=q8_0", HEAD, Type::Bf16),
            // Numbers are those of everything but what llama.cpp reads in F32.
            ("fp16", HEAD, Type::F16),
            ("fp32", UP, Type::F32),
            ("bf16,head=q8_0", HEAD, Type::Q8_0),
            ("fp16", NORM, Type::F32),
            ("nvfp4a16", NORM, Type::F32),
            ("bf16", "model.layers.0.self_attn.q_proj.bias", Type::F32),
        ] {
            assert_eq!(of(plan, name, 256, &json!({})), Ok(expected), "{plan} {name}");
        }
        // A tied head is the embedding.
        let tied = json!({"tie_word_embeddings": true});
        assert_eq!(of("q4_0,head=q8_0", TABLE, 256, &tied), Ok(Type::Q8_0));
        assert_eq!(of("q4_0", TABLE, 256, &tied), Ok(Type::Q6K));
        // Routers are in F32 whatever is said.
        let mixtral = json!({"architectures": ["MixtralForCausalLM"], "num_local_experts": 8});
        let (router, expert) =
            ("model.layers.0.block_sparse_moe.gate.weight", "model.layers.1.block_sparse_moe.experts.3.w2.weight");
        assert_eq!(of("*=q8_0", router, 256, &mixtral), Ok(Type::F32));
        assert_eq!(of("q4_0,experts=q8_0", expert, 256, &mixtral), Ok(Type::Q8_0));
        assert_eq!(of("q4_0,experts=q8_0", "model.layers.1.self_attn.q_proj.weight", 256, &mixtral), Ok(Type::Q4_0));
        // Rows that 256 does not divide.
        assert_eq!(of("q5_k_s", UP, 288, &json!({})), Ok(Type::Q5_1));
        assert_eq!(of("q3_k_s", UP, 288, &json!({})), Ok(Type::Q4_0));
    }

    /// llama.cpp reads the scales of Qwen2's feed-forward and does nothing with them: logits are off by as much as they are
    /// large. Its attention is fine.
    #[test]
    fn scales_that_llama_cpp_leaves_out_are_refused() {
        let qwen = json!({"architectures": ["Qwen2ForCausalLM"]});
        let query = "model.layers.1.self_attn.q_proj.weight";
        assert_eq!(of("nvfp4a16", query, 256, &qwen), Ok(Type::Nvfp4));
        let said = of("nvfp4a16", UP, 256, &qwen).unwrap_err();
        assert!(said.contains("llama.cpp") && said.contains("blk.1.ffn_up.weight") && said.contains("qwen2"), "{said}");
        assert_eq!(of("nvfp4a16", UP, 256, &json!({"architectures": ["Qwen3ForCausalLM"]})), Ok(Type::Nvfp4));
    }

    /// A rule that would narrow a router is answered; one that keeps it is not.
    #[test]
    fn routers_that_stay_wide_are_told() {
        let of = |plan: &str| {
            let config = json!({
                "architectures": ["MixtralForCausalLM"], "hidden_size": 256, "num_hidden_layers": 1,
                "num_attention_heads": 4, "rms_norm_eps": 1e-5, "vocab_size": 2, "num_local_experts": 8,
            });
            let tokenizer =
                br#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}, "pre_tokenizer": null}"#;
            let files = Files { tokenizer: Some(tokenizer), ..Files::default() };
            let model = Model::new("small", &config, &files, true).unwrap();
            let plan: Plan = plan.parse().unwrap();
            Types::new(Asked::new(&plan, &config, std::iter::empty()), model.anatomy(), Some(model.family), false)
                .unwrap()
                .notes()
                .is_some()
        };
        assert!(of("q4_0,router=q8_0") && of("*=q8_0"));
        assert!(!of("q4_0,router=keep,head=q8_0") && !of("q4_0"));
    }

    #[test]
    fn what_gguf_does_not_have_is_refused_by_name() {
        for (plan, name, said) in [
            ("int4-g32/bf16,head=q8_0", UP, "gguf cannot store int4-g32"),
            ("q4_0,head=w8a16", HEAD, "gguf cannot store `head` as int8"),
            ("nvfp4", UP, "gguf cannot store nvfp4 with nvfp4 activations"),
            ("q4_0,up=mxfp4", UP, "gguf cannot store `up` as mxfp4 with mxfp4 activations"),
            ("nvfp4a16,embedding=nvfp4a16", TABLE, "no scale for a table of tokens"),
        ] {
            let error = of(plan, name, 256, &json!({})).unwrap_err();
            assert!(error.contains(said), "{plan}: {error}");
        }
    }

    #[test]
    fn numbers_of_files_are_those_of_llama_cpp() {
        assert_eq!(Mix::ALL.map(of_mix).iter().sum::<u32>(), 2 + 3 + (7..=31).sum::<u32>() - 21);
        assert_eq!((of_type(Type::Q4K), of_type(Type::Q5K), of_type(Type::Q3K)), (14, 16, 11));
        assert_eq!((of_type(Type::Q8_0), of_type(Type::F32), of_type(Type::Nvfp4)), (7, 0, 39));
        assert_eq!((of_type(Type::Iq3Xxs), of_type(Type::Iq2Xs), of_type(Type::Iq2S)), (23, 20, 29));
    }
}
