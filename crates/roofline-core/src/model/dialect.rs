//! Configurations from before the names of fields were agreed on: GPT-2, GPT-J, OPT, Falcon, DBRX.

use serde::Deserialize;

use super::config::Config;
use crate::{Dim, Result};

/// What DBRX says of attention.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct DbrxAttention {
    kv_n_heads: Option<u64>,
}

/// What DBRX says of its experts.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct DbrxExperts {
    ffn_hidden_size: Option<u64>,
    moe_num_experts: Option<u64>,
    moe_top_k: Option<u64>,
}

/// OPT looks its positions up two places further on.
const OPT_OFFSET: u64 = 2;

impl Config {
    /// The same in today's names, where `family` has names of its own.
    pub(super) fn in_new_names(mut self, family: &str) -> Self {
        match family {
            "gpt2" | "gptj" => {
                self.hidden_size = self.hidden_size.or(self.n_embd);
                self.num_hidden_layers = self.num_hidden_layers.or(self.n_layer);
                self.num_attention_heads = self.num_attention_heads.or(self.n_head);
                self.max_position_embeddings = self.max_position_embeddings.or(self.n_positions);
                self.intermediate_size = self.intermediate_size.or(self.n_inner).or(times_four(self.hidden_size));
                let head = self.hidden_size.zip(self.num_attention_heads).map(|(width, heads)| width / heads.max(1));
                let share = self.rotary_dim.zip(head).map(|(turned, head)| turned as f64 / head.max(1) as f64);
                self.partial_rotary_factor = self.partial_rotary_factor.or(share);
            }
            "opt" => self.intermediate_size = self.intermediate_size.or(self.ffn_dim),
            "falcon" => {
                let shared = self.multi_query.unwrap_or(true).then_some(1);
                self.num_key_value_heads = self.num_key_value_heads.or(shared);
                self.intermediate_size = self.intermediate_size.or(times_four(self.hidden_size));
            }
            "dbrx" => {
                self.hidden_size = self.hidden_size.or(self.d_model);
                self.num_hidden_layers = self.num_hidden_layers.or(self.n_layers);
                self.num_attention_heads = self.num_attention_heads.or(self.n_heads);
                self.max_position_embeddings = self.max_position_embeddings.or(self.max_seq_len);
                let (attention, experts) =
                    (self.attn_config.clone().unwrap_or_default(), self.ffn_config.clone().unwrap_or_default());
                self.num_key_value_heads = self.num_key_value_heads.or(attention.kv_n_heads);
                self.intermediate_size = self.intermediate_size.or(experts.ffn_hidden_size);
                self.num_experts = self.num_experts.or(experts.moe_num_experts);
                self.num_experts_per_tok = self.num_experts_per_tok.or(experts.moe_top_k);
            }
            _ => {}
        }
        self
    }

    /// What makes this a variant whose layers are not known, although its family is.
    pub(super) fn variant(&self, family: &str) -> Option<&'static str> {
        let odd = |said: Option<bool>, usual: bool| said.is_some_and(|said| said != usual);
        match family {
            "falcon" if odd(self.new_decoder_architecture, false) => {
                Some("Falcon layers of the new architecture (40B, 180B) are not known")
            }
            "falcon" if odd(self.parallel_attn, true) || odd(self.bias, false) || odd(self.multi_query, true) => {
                Some("Falcon layers that are not side by side, with biases or with keys of every head are not known")
            }
            "opt" if self.word_embed_proj_dim.is_some_and(|width| Some(width) != self.hidden_size) => {
                Some("OPT layers behind a projection of the embedding (350M) are not known")
            }
            _ => None,
        }
    }

    /// The position vectors that a family learns.
    pub(super) fn positions(&self, family: &str) -> Result<Option<Dim>> {
        let most = self.max_position_embeddings;
        let count = match family {
            "gpt2" => most,
            "opt" => most.map(|most| most.saturating_add(OPT_OFFSET)),
            _ => None,
        };
        count.map(|count| Dim::new("max_position_embeddings", count)).transpose()
    }
}

fn times_four(width: Option<u64>) -> Option<u64> {
    width.map(|width| width.saturating_mul(4))
}

#[cfg(test)]
mod tests {
    use crate::{
        Model,
        model::{AttentionLayer, FeedForward},
    };

    /// The names that the checkpoints use, beside what Hugging Face counts in them.
    #[test]
    fn older_names_are_understood() {
        let gpt2 = r#"{"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
            "vocab_size": 50257, "n_ctx": 1024}"#;
        assert_eq!(Model::from_config(gpt2, "x").unwrap().parameters(), 124_439_808);
        let opt = r#"{"model_type": "opt", "hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12,
            "num_attention_heads": 12, "vocab_size": 50272, "max_position_embeddings": 2048}"#;
        assert_eq!(Model::from_config(opt, "x").unwrap().parameters(), 125_239_296);
        let falcon = r#"{"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
            "multi_query": true, "vocab_size": 65024}"#;
        let falcon = Model::from_config(falcon, "x").unwrap();
        assert_eq!(falcon.parameters(), 6_921_720_704);
        assert!(falcon.anatomy.falcon);
        let AttentionLayer::Grouped { heads, kv_heads, head_dim, .. } = falcon.layers[0].attention else { panic!() };
        assert_eq!((heads.get(), kv_heads.get(), head_dim.get()), (71, 1, 64));
    }

    /// Members of a family that are made otherwise are refused, not counted wrongly.
    #[test]
    fn variants_are_refused() {
        let falcon = r#"{"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
            "num_kv_heads": 8, "new_decoder_architecture": true, "multi_query": true, "vocab_size": 65024}"#;
        let why = |text: &str| Model::from_config(text, "x").unwrap_err().to_string();
        assert!(why(falcon).contains("new architecture"), "{}", why(falcon));
        let rw = falcon.replace("\"new_decoder_architecture\": true", "\"parallel_attn\": false");
        assert!(why(&rw).contains("side by side"), "{}", why(&rw));
        let opt = r#"{"model_type": "opt", "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24,
            "word_embed_proj_dim": 512, "num_attention_heads": 16, "vocab_size": 50272, "max_position_embeddings": 2048}"#;
        assert!(why(opt).contains("projection of the embedding"), "{}", why(opt));
    }

    /// GPT-J turns 64 of 256 features; DBRX nests what it says of attention and experts.
    #[test]
    fn parts_and_nests() {
        let AttentionLayer::Grouped { rotary_dim, head_dim, .. } = Model::find("gpt-j-6b").unwrap().layers[0].attention
        else {
            panic!()
        };
        assert_eq!((rotary_dim.get(), head_dim.get()), (64, 256));
        let FeedForward::Experts { experts, active, inner, .. } = Model::find("dbrx").unwrap().layers[0].feed_forward
        else {
            panic!()
        };
        assert_eq!((experts.get(), active.get(), inner.get()), (16, 4, 10_752));
    }

    /// Position vectors are parameters and take memory, and no kernel turns anything.
    #[test]
    fn learned_positions_replace_the_turning() {
        let model = Model::find("opt-125m").unwrap();
        assert_eq!(model.positions.map(crate::Dim::get), Some(2050));
        let lowering = crate::model::Lowering { fused: false, ..crate::model::Lowering::default() };
        let graph = model.graph(crate::model::Workload::decode(1, 16).unwrap(), lowering).unwrap();
        assert!(graph.nodes.iter().all(|node| node.site != "rope"));
    }
}
