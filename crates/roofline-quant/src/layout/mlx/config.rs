//! The configuration as mlx-lm reads it: its codes, and what newer versions of transformers write elsewhere than it looks.
//!
//! Where mlx-lm finds nothing it takes a default, and a model with another base of its rotary embeddings, or with the
//! embedding in place of its head, computes something else without a word.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::{Error, Result, coding::mlx::Scheme};

/// The configuration of a checkpoint whose modules have these schemes.
pub(super) fn of<'m>(
    config: &Value,
    tied: bool,
    modules: impl Iterator<Item = (&'m str, Scheme)> + Clone,
) -> Result<Value> {
    let mut config = config.clone();
    let Some(map) = config.as_object_mut() else { return Ok(config) };
    map.insert("tie_word_embeddings".to_owned(), tied.into());
    rotary(map);
    experts(map);
    layers(map)?;
    let quantization = quantization(modules);
    map.insert("quantization".to_owned(), quantization.clone());
    map.insert("quantization_config".to_owned(), quantization);
    Ok(config)
}

/// The scheme of most modules, and those of others by their names.
fn quantization<'m>(modules: impl Iterator<Item = (&'m str, Scheme)> + Clone) -> Value {
    let terms = |scheme: Scheme| {
        let (group, bits, mode) = scheme.terms();
        json!({ "group_size": group, "bits": bits, "mode": mode })
    };
    let mut counts: BTreeMap<String, (usize, Value)> = BTreeMap::new();
    for (_, scheme) in modules.clone() {
        let own = terms(scheme);
        counts.entry(own.to_string()).or_insert((0, own)).0 += 1;
    }
    let most = counts.into_values().max_by_key(|(count, _)| *count).map_or(Value::Null, |(_, terms)| terms);
    let mut all = most.as_object().cloned().unwrap_or_default();
    for (module, scheme) in modules {
        let own = terms(scheme);
        if own != most {
            all.insert(module.to_owned(), own);
        }
    }
    Value::Object(all)
}

/// The bases and scaling of rotary embeddings, one for all layers or one for each kind.
fn rotary(map: &mut Map<String, Value>) {
    let Some(Value::Object(parameters)) = map.get("rope_parameters").cloned() else { return };
    let full = parameters.get("full_attention").and_then(Value::as_object).unwrap_or(&parameters);
    let mut found = vec![("rope_theta", full.get("rope_theta").cloned())];
    found.push(("partial_rotary_factor", full.get("partial_rotary_factor").cloned()));
    let sliding = parameters.get("sliding_attention").and_then(|sliding| sliding.get("rope_theta"));
    found.push(("rope_local_base_freq", sliding.cloned()));
    let scaled = full.get("rope_type").is_some_and(|kind| kind != "default");
    found.push(("rope_scaling", scaled.then(|| Value::Object(full.clone()))));
    for (key, value) in found {
        if let Some(value) = value.filter(|_| map.get(key).is_none_or(Value::is_null)) {
            map.insert(key.to_owned(), value);
        }
    }
}

/// How many experts there are, by both of the names that there are for it.
fn experts(map: &mut Map<String, Value>) {
    const NAMES: [&str; 2] = ["num_experts", "num_local_experts"];
    let Some(count) = NAMES.iter().find_map(|name| map.get(*name)).cloned() else { return };
    for name in NAMES {
        map.entry(name).or_insert_with(|| count.clone());
    }
}

/// Which layers of a Gemma 3 see everything: mlx-lm knows every so many of them, the last of each run.
fn layers(map: &mut Map<String, Value>) -> Result<()> {
    let Some(kinds) = map.get("layer_types").and_then(Value::as_array).cloned() else { return Ok(()) };
    if map.get("model_type").is_none_or(|family| family != "gemma3_text") {
        return Ok(());
    }
    let is_full = |kind: &Value| kind == "full_attention";
    // Without one that sees everything, any run longer than the model will do.
    let run = kinds.iter().position(is_full).map_or(kinds.len() + 1, |first| first + 1);
    let regular = kinds.iter().enumerate().all(|(at, kind)| is_full(kind) == ((at + 1) % run == 0));
    if !regular {
        return Err(Error::unsupported(
            "mlx-lm takes every n-th layer of a Gemma 3 for one that sees everything, and this one's `layer_types` differ",
            "`⟨as gguf⟩` or `⟨as compressed-tensors⟩` keep them",
        ));
    }
    map.insert("sliding_window_pattern".to_owned(), run.into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: Scheme = Scheme::Affine { bits: 4, group: 64, centred: false };
    const EIGHT: Scheme = Scheme::Affine { bits: 8, group: 32, centred: false };

    fn written(config: &Value) -> Value {
        of(config, false, [("a", FOUR), ("b", EIGHT), ("c", FOUR)].into_iter()).unwrap()
    }

    #[test]
    fn modules_that_differ_are_named() {
        let config = written(&json!({}));
        let four = json!({ "group_size": 64, "bits": 4, "mode": "affine",
                           "b": { "group_size": 32, "bits": 8, "mode": "affine" } });
        assert_eq!((&config["quantization"], &config["quantization_config"]), (&four, &four));
        // mlx-lm takes the embedding for the head of a Llama that does not say.
        assert_eq!(config["tie_word_embeddings"], false);
    }

    /// mlx-lm's Llama reads `rope_theta` alone, and takes 10000 where there is none.
    #[test]
    fn bases_are_where_mlx_looks() {
        let plain = written(&json!({ "rope_parameters": { "rope_theta": 5e5, "rope_type": "default" } }));
        assert_eq!((&plain["rope_theta"], &plain["rope_scaling"]), (&json!(5e5), &Value::Null));
        let scaled = json!({ "rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0 });
        let config = written(&json!({ "rope_parameters": scaled.clone() }));
        assert_eq!((&config["rope_theta"], &config["rope_scaling"]), (&json!(5e5), &scaled));
        // What is stated already stays.
        let stated = written(&json!({ "rope_theta": 7.0, "rope_parameters": { "rope_theta": 5e5 } }));
        assert_eq!(stated["rope_theta"], 7.0);
        let kinds = json!({ "full_attention": { "rope_theta": 1e6, "rope_type": "linear", "factor": 8.0 },
                            "sliding_attention": { "rope_theta": 1e4, "rope_type": "default" } });
        let gemma = written(&json!({ "rope_parameters": kinds }));
        assert_eq!((&gemma["rope_theta"], &gemma["rope_local_base_freq"]), (&json!(1e6), &json!(1e4)));
        assert_eq!(gemma["rope_scaling"]["factor"], 8.0);
    }

    /// transformers has one name for all families, mlx-lm the family's own.
    #[test]
    fn experts_have_both_names() {
        let config = written(&json!({ "num_local_experts": 8 }));
        assert_eq!((&config["num_experts"], &config["num_local_experts"]), (&json!(8), &json!(8)));
        assert_eq!(written(&json!({})).get("num_experts"), None);
    }

    #[test]
    fn layers_that_see_everything_are_regular() {
        let gemma = |kinds: &[&str]| json!({ "model_type": "gemma3_text", "layer_types": kinds });
        let (sliding, full) = ("sliding_attention", "full_attention");
        assert_eq!(written(&gemma(&[sliding, full, sliding]))["sliding_window_pattern"], 2);
        assert_eq!(written(&gemma(&[sliding, sliding]))["sliding_window_pattern"], 3);
        let odd = of(&gemma(&[full, sliding, sliding]), true, [("a", FOUR)].into_iter());
        assert!(odd.unwrap_err().to_string().starts_with("mlx-lm takes every n-th layer"));
    }
}
