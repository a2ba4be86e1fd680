//! Where a weight sits in a model, read off its name.

use roofline_core::Role;

/// A weight's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The module's name: the tensor's without `.weight`.
    pub module: String,
    /// What it is for.
    pub role: Role,
    /// Which layer it is in, if in one.
    pub layer: Option<u64>,
}

/// The last words of modules, and what they are for; in an expert they are for the same there. From the models of the
/// transformers library.
const MODULES: [(&str, Role); 67] = [
    ("embed_tokens", Role::Embedding),
    ("wte", Role::Embedding),
    ("word_embeddings", Role::Embedding),
    ("embed_in", Role::Embedding),
    ("tok_embeddings", Role::Embedding),
    // Positions are looked up and added, as a bias is: nothing multiplies by them.
    ("wpe", Role::Vector),
    ("embed_positions", Role::Vector),
    ("lm_head", Role::Head),
    ("embed_out", Role::Head),
    ("output_layer", Role::Head),
    ("q_proj", Role::Query),
    ("q_a_proj", Role::Query),
    ("q_b_proj", Role::Query),
    ("k_proj", Role::Key),
    ("v_proj", Role::Value),
    ("kv_a_proj_with_mqa", Role::Key),
    ("kv_b_proj", Role::Value),
    ("qkv_proj", Role::Query),
    ("query_key_value", Role::Query),
    ("Wqkv", Role::Query),
    ("wqkv", Role::Query),
    // Attention without a cache reads its input here: Qwen3-Next's, with the gate of its output.
    ("in_proj_qkvz", Role::Query),
    ("in_proj_qkv", Role::Query),
    ("o_proj", Role::Output),
    ("out_proj", Role::Output),
    ("dense", Role::Output),
    ("wo", Role::Output),
    ("in_proj_z", Role::Gate),
    ("gate_proj", Role::Gate),
    ("w1", Role::Gate),
    ("gate_up_proj", Role::Gate),
    ("up_proj", Role::Up),
    ("w3", Role::Up),
    ("fc1", Role::Up),
    ("fc_in", Role::Up),
    ("dense_h_to_4h", Role::Up),
    ("down_proj", Role::Down),
    ("w2", Role::Down),
    ("fc2", Role::Down),
    ("fc_out", Role::Down),
    ("dense_4h_to_h", Role::Down),
    ("router", Role::Router),
    // GGUF's words.
    ("token_embd", Role::Embedding),
    ("output", Role::Head),
    ("attn_q", Role::Query),
    ("attn_k", Role::Key),
    ("attn_v", Role::Value),
    ("attn_qkv", Role::Query),
    ("attn_output", Role::Output),
    ("ffn_gate", Role::Gate),
    ("ffn_up", Role::Up),
    ("ffn_down", Role::Down),
    ("ffn_gate_exps", Role::ExpertGate),
    ("ffn_up_exps", Role::ExpertUp),
    ("ffn_down_exps", Role::ExpertDown),
    ("ffn_gate_inp", Role::Router),
    ("ffn_gate_inp_shexp", Role::Router),
    ("ffn_gate_shexp", Role::Gate),
    ("ffn_up_shexp", Role::Up),
    ("ffn_down_shexp", Role::Down),
    ("attn_q_a", Role::Query),
    ("attn_q_b", Role::Query),
    ("attn_kv_a_mqa", Role::Key),
    ("attn_kv_b", Role::Value),
    ("attn_k_b", Role::Value),
    ("attn_v_b", Role::Value),
    ("rope_freqs", Role::Vector),
];

impl Site {
    /// The place of the tensor `name` with that many dimensions.
    pub fn of(name: &str, dimensions: usize) -> Self {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let words: Vec<&str> = module.split('.').collect();
        let number = |at: usize| words.get(at + 1).and_then(|word| word.parse::<u64>().ok());
        let tower = words.iter().any(|word| is_tower(word));
        let layer = words.iter().position(|word| matches!(*word, "layers" | "h" | "blocks" | "blk")).and_then(number);
        let layer = layer.filter(|_| !tower);
        let expert = words.contains(&"experts");
        let of_expert = |role: Role| if expert { role.of_expert() } else { role };
        let last = words.last().copied().unwrap_or_default();
        let known = MODULES.iter().find(|(word, _)| *word == last).map(|(_, role)| *role);
        let known = known.or_else(|| by_parents(&words));
        let role = match known {
            // Stacked experts are parameters of their module, without a module each.
            _ if dimensions < 2 || !(name.ends_with(".weight") || is_stack(module)) => Role::Vector,
            _ if tower => Role::Other,
            Some(role) => of_expert(role),
            // A gate with nothing after it chooses experts.
            None if matches!(last, "gate" | "shared_expert_gate") => Role::Router,
            None if last.contains("norm") => Role::Vector,
            None => Role::Other,
        };
        Self { module: module.to_owned(), role, layer }
    }

    /// Whether it is a matrix product inside a layer: what a precision's name speaks of.
    pub fn is_layer_product(&self) -> bool {
        self.layer.is_some() && self.role.is_layer_product()
    }

    /// Whether it holds all experts of a layer in one tensor of three dimensions, as Llama 4 and gpt-oss do.
    pub fn is_stack(&self) -> bool {
        is_stack(&self.module)
    }

    /// Where the experts of its layer are, of which it is one, a part of one or all: `M.experts`.
    pub(crate) fn experts(&self) -> Option<&str> {
        let at = self.module.find(".experts.")?;
        Some(&self.module[..at + ".experts".len()])
    }

    /// Whether it is a matrix of one expert of many, with a number of its own.
    pub(crate) fn is_expert(&self) -> bool {
        matches!(self.role, Role::ExpertGate | Role::ExpertUp | Role::ExpertDown) && !self.is_stack()
    }

    /// The part of its name that says it sees or hears, or encodes, if it does: a model of its own, which no plan speaks of.
    pub(crate) fn tower(&self) -> Option<&str> {
        self.module.split('.').find(|word| is_tower(word))
    }

    /// Whether it is what GPT-2's modules are called: in its kin they hold their matrices transposed, in others not.
    pub(crate) fn is_of_gpt2(&self) -> bool {
        let mut words = self.module.rsplit('.');
        words.next().is_some_and(|last| matches!(last, "c_attn" | "c_fc" | "c_proj" | "q_attn"))
    }

    /// What runtimes fuse it with, itself included: queries, keys and values read the same input, as do gate and way up.
    /// Fused weights share whatever there is once per tensor.
    pub fn fused(&self) -> Vec<String> {
        const FAMILIES: [&[&str]; 4] = [
            &["q_proj", "k_proj", "v_proj"],
            &["gate_proj", "up_proj"],
            &["w1", "w3"],
            &["q_a_proj", "kv_a_proj_with_mqa"],
        ];
        let last = self.module.rsplit('.').next().unwrap_or_default();
        // With its dot, where there is one.
        let parent = &self.module[..self.module.len() - last.len()];
        let family = FAMILIES.iter().find(|family| family.contains(&last));
        family.map_or_else(
            || vec![self.module.clone()],
            |family| family.iter().map(|word| format!("{parent}{word}")).collect(),
        )
    }
}

/// A name with `*` for every number in it: what layers and experts have in common.
pub(crate) fn pattern(name: &str) -> String {
    let words = name.split('.').map(|word| if word.parse::<u64>().is_ok() { "*" } else { word });
    words.collect::<Vec<_>>().join(".")
}

/// The role of a word that means something only below certain others. `c_fc` in `layers` is Starcoder2's and a product like
/// any; in `h` it may be GPT-2's, which stores its matrices the other way round. What mixes tokens without attention
/// (Mamba) reads its input where attention reads its queries.
fn by_parents(words: &[&str]) -> Option<Role> {
    let [.., parent, last] = words else { return None };
    match (*parent, *last) {
        ("mlp", "c_fc") if words.contains(&"layers") => Some(Role::Up),
        ("mlp", "c_proj") if words.contains(&"layers") => Some(Role::Down),
        ("mixer" | "mamba", "in_proj") => Some(Role::Query),
        _ => None,
    }
}

/// Whether a tensor belongs to a part that sees or hears.
pub(crate) fn sees(name: &str) -> bool {
    name.split('.').any(is_tower)
}

/// Whether a module of that name sees or hears, or brings what was seen or heard to the language model: a model of its
/// own, and not the one that a plan speaks of. So is an encoder, whatever it encodes.
fn is_tower(word: &str) -> bool {
    const SENSES: [&str; 7] = ["vision", "visual", "image", "img", "audio", "speech", "qformer"];
    let word = word.to_lowercase();
    // `encoder_attn` is a decoder's.
    word.split('_').next_back() == Some("encoder")
        || word.split('_').any(|part| SENSES.iter().any(|sense| part.starts_with(sense)))
        || ["multi_modal", "multimodal", "mm_projector"].iter().any(|start| word.starts_with(start))
}

/// Whether a tensor of that name, without `.weight`, holds all the experts: no number says which.
fn is_stack(module: &str) -> bool {
    let mut words = module.rsplit('.');
    let last = words.next().unwrap_or_default();
    words.next() == Some("experts") && matches!(last, "gate_up_proj" | "gate_proj" | "up_proj" | "down_proj")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_well_known_models() {
        let site = |name: &str| Site::of(name, 2);
        let role = |name: &str| site(name).role;
        assert_eq!(role("model.embed_tokens.weight"), Role::Embedding);
        assert_eq!(role("lm_head.weight"), Role::Head);
        let query = site("model.layers.31.self_attn.q_proj.weight");
        assert_eq!((query.role, query.layer), (Role::Query, Some(31)));
        assert!(query.is_layer_product());
        // Mixtral and Qwen call the router "gate"; DeepSeek's has a bias beside its weight.
        assert_eq!(role("model.layers.0.block_sparse_moe.gate.weight"), Role::Router);
        assert_eq!(role("model.layers.0.mlp.gate.weight"), Role::Router);
        assert_eq!(role("model.layers.0.mlp.gate.e_score_correction_bias"), Role::Vector);
        let expert = site("model.layers.3.block_sparse_moe.experts.7.w2.weight");
        assert_eq!((expert.role, expert.layer), (Role::ExpertDown, Some(3)));
        assert!(expert.is_expert());
        assert_eq!(expert.experts(), Some("model.layers.3.block_sparse_moe.experts"));
        assert_eq!(role("blk.3.ffn_up_exps.weight"), Role::ExpertUp);
        // An expert that all tokens share is none of many.
        assert_eq!(role("model.layers.3.mlp.shared_expert.up_proj.weight"), Role::Up);
        assert_eq!(Site::of("model.layers.0.input_layernorm.weight", 1).role, Role::Vector);
        assert_eq!(Site::of("model.layers.0.self_attn.q_proj.bias", 1).role, Role::Vector);
        // A tower that sees is not ours to touch, convolutions and layers alike.
        assert!(!site("visual.patch_embed.proj.weight").is_layer_product());
        let seeing = site("vision_tower.vision_model.encoder.layers.30.self_attn.q_proj.weight");
        assert_eq!((seeing.role, seeing.layer), (Role::Other, None));
        for tower in [
            "model.multi_modal_projector.linear_1.weight",
            "model.mm_projector.0.weight",
            "model.embed_vision.embedding_projection.weight",
            "speech_encoder.layers.0.self_attn.q_proj.weight",
            "model.encoder.layers.0.self_attn.q_proj.weight",
            "Qformer.bert.layers.0.attention.q_proj.weight",
            "img_processor.layers.0.mlp.fc1.weight",
            "model.image_newline_proj.layers.0.mlp.fc1.weight",
        ] {
            let site = site(tower);
            assert_eq!((site.role, site.layer), (Role::Other, None), "{tower}");
        }
        assert!(site("language_model.model.layers.0.mlp.up_proj.weight").is_layer_product());
        assert!(site("model.decoder.layers.0.encoder_attn.q_proj.weight").is_layer_product());
        // Llama 4's experts have no modules; their biases are no products.
        let stack = Site::of("model.layers.1.feed_forward.experts.gate_up_proj", 3);
        assert_eq!((stack.role, stack.layer), (Role::ExpertGate, Some(1)));
        assert!(stack.is_stack() && !stack.is_expert());
        assert_eq!(stack.experts(), Some("model.layers.1.feed_forward.experts"));
        assert_eq!(Site::of("model.layers.1.mlp.experts.gate_up_proj_bias", 2).role, Role::Vector);
        assert!(!expert.is_stack() && !site("model.layers.3.mlp.experts.7.up_proj.weight").is_stack());
        // GPT-2 stores its products transposed: what quantizes along rows would quantize the wrong way.
        assert_eq!(role("h.0.attn.c_attn.weight"), Role::Other);
        assert_eq!(role("transformer.h.0.mlp.c_fc.weight"), Role::Other);
        assert!(site("transformer.h.0.mlp.c_fc.weight").is_of_gpt2());
    }

    /// Families whose modules have words of their own, as the transformers library has them.
    #[test]
    fn names_of_other_families() {
        let product = |name: &str, role: Role| {
            let site = Site::of(name, 2);
            assert_eq!(site.role, role, "{name}");
            assert!(site.is_layer_product(), "{name}");
        };
        // Starcoder2's are plain products; so are Falcon's, NeoX's, GPT-J's, MPT's and InternLM2's.
        product("model.layers.0.mlp.c_fc.weight", Role::Up);
        product("model.layers.0.mlp.c_proj.weight", Role::Down);
        product("transformer.h.0.self_attention.query_key_value.weight", Role::Query);
        product("transformer.h.0.self_attention.dense.weight", Role::Output);
        product("transformer.h.0.mlp.dense_h_to_4h.weight", Role::Up);
        product("gpt_neox.layers.0.attention.query_key_value.weight", Role::Query);
        product("gpt_neox.layers.0.mlp.dense_4h_to_h.weight", Role::Down);
        product("transformer.h.0.mlp.fc_in.weight", Role::Up);
        product("transformer.blocks.0.attn.Wqkv.weight", Role::Query);
        product("model.layers.0.attention.wo.weight", Role::Output);
        // Without attention: Mamba's and Qwen3-Next's way in, beside small ones that have no role.
        product("backbone.layers.0.mixer.in_proj.weight", Role::Query);
        product("backbone.layers.0.mixer.out_proj.weight", Role::Output);
        product("model.layers.0.linear_attn.in_proj_qkvz.weight", Role::Query);
        for other in ["backbone.layers.0.mixer.x_proj", "model.layers.0.linear_attn.in_proj_ba"] {
            assert_eq!(Site::of(&format!("{other}.weight"), 2).role, Role::Other, "{other}");
        }
        assert_eq!(Site::of("gpt_neox.embed_in.weight", 2).role, Role::Embedding);
        // A table of positions is no vocabulary.
        assert_eq!(Site::of("transformer.wpe.weight", 2).role, Role::Vector);
        assert_eq!(Site::of("model.decoder.embed_positions.weight", 2).role, Role::Vector);
        assert!(Site::of("model.visual.blocks.0.attn.proj.weight", 2).tower().is_some());
        assert!(Site::of("model.layers.0.mlp.up_proj.weight", 2).tower().is_none());
    }

    #[test]
    fn what_is_fused() {
        let fused = |name: &str| Site::of(name, 2).fused();
        assert_eq!(
            fused("model.layers.0.self_attn.k_proj.weight"),
            ["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj"]
        );
        assert_eq!(fused("a.experts.0.w3.weight"), ["a.experts.0.w1", "a.experts.0.w3"]);
        assert_eq!(fused("model.layers.0.mlp.down_proj.weight"), ["model.layers.0.mlp.down_proj"]);
        assert_eq!(fused("up_proj.weight"), ["gate_proj", "up_proj"]);
    }
}
