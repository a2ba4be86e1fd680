//! What is stored how, in one text: the same for a plan and for a checkpoint that was made by it.

use super::{Plan, Selector, Stored};
use crate::{Format, model::Anatomy, role::Role};

/// What 16 bit and more are called: models are trained in them, and lose nothing by which one it is.
const WIDE: &str = "16";

/// The word for a weight in that format which is multiplied by activations in that one.
pub fn held(weights: Format, activations: Option<Format>) -> String {
    let word = |format: Format| if format.nominal_bits() >= 16 { WIDE.to_owned() } else { format.to_string() };
    match activations.map(word).filter(|activations| activations != WIDE) {
        Some(activations) => format!("{}/{activations}", word(weights)),
        None => word(weights),
    }
}

/// The text for a model of that anatomy, of which `at` tells the [word](held) for a role, in a layer where it is in one, with
/// that many columns. Layers that follow each other and are alike are counted: `value=q6_k,q4_k*2,q6_k`.
pub fn signature(anatomy: &Anatomy, at: impl Fn(Role, Option<u64>, u64) -> String) -> String {
    let mut parts = Vec::new();
    for role in Role::ALL.into_iter().filter(|role| *role <= Role::Embedding) {
        let mut runs: Vec<(String, u64)> = Vec::new();
        let mut add = |word: String| match runs.last_mut() {
            Some((last, count)) if *last == word => *count += 1,
            _ => runs.push((word, 1)),
        };
        match role {
            // A tied head is the embedding.
            Role::Head if anatomy.tied => {}
            Role::Head | Role::Embedding => add(at(role, None, anatomy.hidden)),
            _ => {
                for (layer, group) in anatomy.order.iter().enumerate() {
                    if let Some(columns) = anatomy.columns[usize::from(*group)][role as usize] {
                        add(at(role, Some(layer as u64), columns));
                    }
                }
            }
        }
        let texts: Vec<String> =
            runs.into_iter().map(|(word, count)| if count == 1 { word } else { format!("{word}*{count}") }).collect();
        if !texts.is_empty() {
            let expert = if role.is_expert() { "expert_" } else { "" };
            parts.push(format!("{expert}{role}={}", texts.join(",")));
        }
    }
    parts.join(";")
}

impl Plan {
    /// What it stores how in a model of that anatomy, whatever the cache; none where rules name modules, which only a
    /// checkpoint has.
    pub fn signature(&self, anatomy: &Anatomy) -> Option<String> {
        if self.rules.iter().any(|rule| matches!(rule.selector, Selector::Modules(_))) {
            return None;
        }
        let layers = anatomy.order.len() as u64;
        let at = |role: Role, layer: Option<u64>, columns: u64| {
            // A tied embedding is the head, too: what is said of either holds, and of the head where both are named.
            let stored = match self.at(role, layer, layers, None) {
                Stored::Wide if role == Role::Embedding && anatomy.tied => self.at(Role::Head, None, layers, None),
                stored => stored,
            };
            match stored {
                Stored::Wide => WIDE.to_owned(),
                Stored::As(spec) => {
                    let formats = spec.formats();
                    held(formats.weights.unwrap_or(Format::BF16), formats.activations)
                }
                Stored::Mixed(mix) => {
                    held(mix.usual_type(role, layer.map(|layer| layer as usize), columns, anatomy), None)
                }
            }
        };
        Some(signature(anatomy, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;

    fn of(model: &str, plan: &str) -> String {
        plan.parse::<Plan>().unwrap().signature(&Model::find(model).unwrap().anatomy).unwrap()
    }

    #[test]
    fn a_text_says_what_is_stored_how() {
        let products = |word: &str| {
            let roles = ["query", "key", "value", "output", "gate", "up", "down"];
            roles.map(|role| format!("{role}={word}*32")).join(";") + ";head=16;embedding=16"
        };
        assert_eq!(of("llama-3-8b", "bf16"), products("16"));
        assert_eq!(of("llama-3-8b", "w4a16"), products("int4-g128"));
        assert_eq!(of("llama-3-8b", "int8"), products("int8/int8"));
        // Whose number 16 bit is, and what the cache is in, makes no difference.
        assert_eq!(of("llama-3-8b", "fp16"), of("llama-3-8b", "bf16"));
        assert_eq!(of("llama-3-8b", "w4a16,kv=fp8-e4m3"), of("llama-3-8b", "w4a16"));
    }

    #[test]
    fn which_layers_counts() {
        assert_ne!(of("llama-3-8b", "w4a16,layers.0-1=bf16"), of("llama-3-8b", "w4a16,layers.30-31=bf16"));
        // `favoured`: the first and the last eighth of 32 layers, and every third.
        let mix = of("llama-3-8b", "q4_k_m");
        assert!(mix.contains("query=q4_k*32;") && mix.contains("value=q6_k*4,q4_k*2,q6_k,"), "{mix}");
        assert!(mix.ends_with("head=q6_k;embedding=q4_k"), "{mix}");
    }

    #[test]
    fn tied_heads_and_experts() {
        let tied = of("qwen2.5-0.5b", "w4a16,head=q8_0");
        assert!(tied.ends_with(";embedding=q8_0") && !tied.contains("head="), "{tied}");
        assert!(of("mixtral-8x7b", "bf16,experts=w4a16").contains(";expert_up=int4-g128*32;"));
        let modules: Plan = "w4a16,*.down_proj=w8a16".parse().unwrap();
        assert_eq!(modules.signature(&Model::find("llama-3-8b").unwrap().anatomy), None);
    }
}
