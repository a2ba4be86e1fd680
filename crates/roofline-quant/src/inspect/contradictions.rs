//! What a configuration says of a model, against the tensors that are there. A runtime believes the one and stumbles over
//! the other.

use std::collections::{BTreeMap, BTreeSet};

use roofline_core::Role;
use serde_json::Value;

use super::Tensor;
use crate::stored::{Kind, StoredTensor};

/// Everything that does not fit together, in words.
pub(super) fn contradictions(config: &Value, tensors: &[Tensor], stored: &[StoredTensor<'_>]) -> Vec<String> {
    let quantization = groups(config, stored);
    // Models that see have the language model's dimensions one level down.
    let config = config.get("text_config").unwrap_or(config);
    let stated = Stated(config);
    let mut found = Vec::new();
    let layers = tensors.iter().filter_map(|tensor| tensor.layer).max().map_or(0, |last| last + 1);
    // Layers that guess the token after the next are counted apart.
    let more = stated.number(&["num_nextn_predict_layers"]).unwrap_or(0);
    let differs = |stated: &u64| *stated != layers && stated.checked_add(more) != Some(layers);
    if let Some(stated) = stated.number(&["num_hidden_layers", "n_layer"]).filter(differs) {
        found.push(format!("config.json has {stated} layers, and the weights {layers}"));
    }
    found.extend(embedding(&stated, tensors));
    found.extend(heads(&stated, tensors));
    found.extend(inner(&stated, tensors));
    found.extend(experts(&stated, tensors));
    found.extend(quantization);
    found
}

/// A configuration, asked for numbers.
struct Stated<'a>(&'a Value);

impl Stated<'_> {
    /// The first of these keys that has anything, if that is a number; where it is a list, layers differ and nothing is
    /// compared.
    fn number(&self, keys: &[&str]) -> Option<u64> {
        keys.iter().find_map(|key| self.0.get(key).filter(|value| !value.is_null())).and_then(Value::as_u64)
    }

    fn has(&self, key: &str) -> bool {
        self.0.get(key).is_some_and(|value| !value.is_null())
    }
}

fn embedding(stated: &Stated<'_>, tensors: &[Tensor]) -> Vec<String> {
    let mut found = Vec::new();
    let embedding = tensors.iter().find(|tensor| tensor.understood && tensor.role == Role::Embedding.name());
    if let Some([rows, columns]) = embedding.and_then(|tensor| tensor.shape.first_chunk()) {
        for (key, keys, stored) in
            [("vocab_size", &["vocab_size"][..], *rows), ("hidden_size", &["hidden_size", "n_embd"], *columns)]
        {
            if let Some(stated) = stated.number(keys).filter(|stated| *stated != stored) {
                found.push(format!("config.json has a {key} of {stated}, and the embedding one of {stored}"));
            }
        }
    }
    let tied = stated.0.get("tie_word_embeddings").and_then(Value::as_bool);
    let head = tensors.iter().any(|tensor| tensor.role == Role::Head.name());
    if tied == Some(false) && !head && embedding.is_some() {
        found.push("there is no output head, and config.json says the embedding does not stand in for it".to_owned());
    }
    found
}

/// The value that most layers have of a dimension of the modules of that name: in some models a few differ.
fn usual(tensors: &[Tensor], module: &str, dimension: usize, which: impl Fn(&Tensor) -> bool) -> Option<u64> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    let end = format!(".{module}.weight");
    let of = |tensor: &&Tensor| {
        tensor.understood
            && tensor.layer.is_some()
            && tensor.shape.len() == 2
            && tensor.name.ends_with(&end)
            && which(tensor)
    };
    for tensor in tensors.iter().filter(of) {
        *counts.entry(tensor.shape[dimension]).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(value, _)| value)
}

/// Heads of queries, keys and values. Heads of several sizes, compressed ones and queries with a gate are another matter.
fn heads(stated: &Stated<'_>, tensors: &[Tensor]) -> Vec<String> {
    let gated = stated.0.get("attn_output_gate").and_then(Value::as_bool) == Some(true)
        || stated.0.get("model_type").and_then(Value::as_str).is_some_and(|family| family.starts_with("qwen3_next"));
    if ["kv_lora_rank", "qk_nope_head_dim", "global_head_dim", "block_configs"].iter().any(|key| stated.has(key)) {
        return Vec::new();
    }
    let Some(count) = stated.number(&["num_attention_heads", "n_head"]).filter(|count| *count > 0) else {
        return Vec::new();
    };
    let hidden = stated.number(&["hidden_size", "n_embd"]);
    let Some(size) = stated.number(&["head_dim"]).or_else(|| hidden.map(|hidden| hidden / count)) else {
        return Vec::new();
    };
    let keys = stated.number(&["num_key_value_heads"]).unwrap_or(count);
    let mut found = Vec::new();
    for (module, key, number) in [
        ("q_proj", "num_attention_heads", count * if gated { 2 } else { 1 }),
        ("k_proj", "num_key_value_heads", keys),
        ("v_proj", "num_key_value_heads", keys),
    ] {
        let Some(rows) = usual(tensors, module, 0, |_| true) else { continue };
        if number.checked_mul(size) != Some(rows) {
            found.push(format!(
                "config.json has a {key} of {} with {size} numbers each, and `{module}` {rows} rows",
                if module == "q_proj" { count } else { keys }
            ));
        }
    }
    found.dedup_by_key(|text| text.replace("`v_proj`", "`k_proj`"));
    found
}

/// The width of feed-forward blocks, and of experts.
fn inner(stated: &Stated<'_>, tensors: &[Tensor]) -> Vec<String> {
    let expert = |tensor: &Tensor| tensor.name.contains(".experts.");
    let shared = |tensor: &Tensor| tensor.name.contains("shared_expert");
    let dense: &[&str] = if stated.has("intermediate_size_mlp") {
        &["intermediate_size_mlp"]
    } else {
        &["intermediate_size", "n_inner"]
    };
    let mut found = Vec::new();
    for (of_experts, keys) in [(false, dense), (true, &["moe_intermediate_size", "intermediate_size"][..])] {
        let which = |tensor: &Tensor| expert(tensor) == of_experts && !shared(tensor);
        let pairs = [("gate_proj", 0), ("up_proj", 0), ("w1", 0), ("c_fc", 0), ("down_proj", 1), ("w2", 1)];
        let stored = pairs.into_iter().find_map(|(module, at)| Some((module, usual(tensors, module, at, which)?)));
        let key = keys.iter().find(|key| stated.has(key));
        let (Some((module, stored)), Some(key)) = (stored, key) else { continue };
        if let Some(number) = stated.number(&[key]).filter(|number| *number != stored) {
            let whose = if of_experts { "an expert's" } else { "a layer's" };
            found.push(format!("config.json has a {key} of {number}, and {whose} `{module}` one of {stored}"));
        }
    }
    found
}

/// How many experts a layer has: apart, by their numbers, or in a stack.
fn experts(stated: &Stated<'_>, tensors: &[Tensor]) -> Option<String> {
    let keys = ["num_local_experts", "num_experts", "n_routed_experts"];
    let key = keys.into_iter().find(|key| stated.has(key))?;
    let number = stated.number(&[key])?;
    let mut apart: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    let mut stacks = BTreeSet::new();
    for tensor in tensors.iter().filter(|tensor| tensor.understood) {
        let (Some(layer), Some((_, after))) = (tensor.layer, tensor.name.split_once(".experts.")) else { continue };
        match after.split('.').next().and_then(|word| word.parse().ok()) {
            Some(expert) => drop(apart.entry(layer).or_default().insert(expert)),
            None if tensor.shape.len() == 3 => stacks.extend(tensor.shape.first()),
            None => {}
        }
    }
    let counts = apart.values().map(|experts| experts.len() as u64).chain(stacks);
    let other = counts.filter(|count| *count != number).max()?;
    Some(format!("config.json has a {key} of {number}, and a layer {other} experts"))
}

/// The sizes of groups that share a scale, where the configuration says one and the scales another.
fn groups(config: &Value, stored: &[StoredTensor<'_>]) -> Option<String> {
    let declared = declared(config);
    if declared.is_empty() {
        return None;
    }
    let others: Vec<(&str, usize)> = stored
        .iter()
        .filter_map(|one| Some((one.name.as_str(), group(one)?)))
        .filter(|(_, group)| !declared.contains(&(*group as u64)))
        .collect();
    let (name, group) = others.first()?;
    let declared: Vec<String> = declared.iter().map(u64::to_string).collect();
    Some(format!(
        "config.json declares groups of {}, and {} weights have a scale for every {group}, such as `{name}`",
        declared.join(" and "),
        others.len()
    ))
}

/// Every size of groups that a configuration has, in the words of any library.
fn declared(config: &Value) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    let config_of = |key: &str| config.get(key).unwrap_or(&Value::Null);
    for one in ["quantization_config", "compression_config", "quantization"].map(config_of) {
        found.extend(one["group_size"].as_u64());
        let groups = one["config_groups"].as_object().into_iter().flat_map(|groups| groups.values());
        found.extend(groups.filter_map(|group| group["weights"]["group_size"].as_u64()));
        let data = &one["quant_type"]["default"]["_data"];
        found.extend(data["group_size"].as_u64());
        found.extend(data["granularity"]["_data"]["group_size"].as_u64());
    }
    found.retain(|group| *group > 0);
    found
}

/// How many weights of a row share a scale, by the shapes of what is stored; none where all do, or squares.
fn group(stored: &StoredTensor<'_>) -> Option<usize> {
    let Kind::Coded(coded) = &stored.kind else { return None };
    let matrix = coded.rows.matrix();
    let ends = ["weight_scale", ".scales"];
    let (_, scale) = coded.parts.iter().find(|(_, entry)| ends.iter().any(|end| entry.name.ends_with(end)))?;
    let [down, across] = scale.shape[..] else { return None };
    let groups = match () {
        () if stored.format().contains("blocks of 128") => return None,
        () if down == matrix.rows => across,
        () if across == matrix.rows => down,
        () => return None,
    };
    (groups > 1 && matrix.columns.is_multiple_of(groups)).then(|| matrix.columns / groups)
}
