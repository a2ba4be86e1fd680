//! A GGUF file as a checkpoint: its tensors as byte ranges, and a `config.json` and tokenizer made of its metadata.

use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::{
    Array, File, Header, Tensor, Value,
    family::{FAMILIES, Family, From, Lengths},
    model::Shape,
    rope::Rope,
    tokenizer,
};
use crate::{Dtype, Error, Result, ggml::Type, safetensors};

/// What a GGUF file says beside its tensors.
#[derive(Clone, Debug)]
pub struct Source {
    /// All of it but the data.
    pub header: Header,
    /// Its family; none where the table does not know it, and only another GGUF file can be made of it.
    pub family: Option<&'static Family>,
    /// The files of a tokenizer, by name.
    pub files: Vec<(String, Vec<u8>)>,
}

/// The most numbers of a list that is read out of a tensor.
const LONGEST_LIST: u64 = 1 << 16;

/// More heads, experts or numbers of a head than any model has: what counts them stays short, and products have room.
const MOST: u64 = 1 << 16;

impl Source {
    /// Opens a file: what it says, its tensors as those of a shard, and the configuration of a Hugging Face checkpoint of it.
    pub fn open(path: &Path) -> Result<(Self, safetensors::Header, Json)> {
        let file = File::open(path)?;
        let header = &file.header;
        if header.get("split.count").and_then(Value::as_u64).is_some_and(|count| count > 1) {
            return Err(Error::unsupported(
                format!("`{}` is one of several files", path.display()),
                "join them with llama.cpp's `llama-gguf-split --merge`",
            ));
        }
        let mut tensors = Vec::with_capacity(header.tensors.len());
        for tensor in &header.tensors {
            tensors.push(
                entry(tensor).ok_or_else(|| {
                    Error::malformed(path, "gguf", format!("the tensor `{}` has no size", tensor.name))
                })?,
            );
        }
        let shard = safetensors::Header { metadata: Vec::new(), tensors, start: header.data_start };
        let family = family(header);
        let config = family.map_or_else(|| Ok(json!({})), |family| configuration(&file, family))?;
        let files = tokenizer::files(header);
        Ok((Self { header: file.header, family, files }, shard, config))
    }

    /// A whole number of the metadata, without the architecture's name.
    pub fn whole(&self, key: &str) -> Option<u64> {
        whole(&self.header, key)
    }

    /// Its heads and experts, as far as the order of rows goes by them.
    pub fn shape(&self) -> Shape {
        let number = |key: &str| self.whole(key).map(|number| number.min(MOST) as usize);
        let heads = number("attention.head_count").unwrap_or(1).max(1);
        let kv_heads = number("attention.head_count_kv").unwrap_or(heads).max(1);
        let hidden = self.whole("embedding_length").and_then(|number| usize::try_from(number).ok()).unwrap_or(0);
        let rotary = number("rope.dimension_count");
        let latent = number("attention.key_length_mla").zip(number("attention.value_length_mla"));
        Shape {
            heads,
            kv_heads,
            head_dim: number("attention.key_length").unwrap_or(hidden / heads).clamp(1, MOST as usize),
            experts: number("expert_count").unwrap_or(0),
            latent: latent.map(|(key, value)| (key.saturating_sub(rotary.unwrap_or(0)), value)),
        }
    }
}

/// A tensor as a byte range: plain numbers as what they are, blocks as bytes.
fn entry(tensor: &Tensor) -> Option<safetensors::Entry> {
    let bytes = tensor.bytes()?;
    let dtype = match tensor.ty {
        Type::F32 => Some(Dtype::F32),
        Type::F16 => Some(Dtype::F16),
        Type::Bf16 => Some(Dtype::Bf16),
        _ => None,
    };
    let shape = match dtype {
        Some(_) => tensor.dims.iter().rev().map(|dim| usize::try_from(*dim).ok()).collect::<Option<Vec<_>>>()?,
        None => vec![usize::try_from(bytes).ok()?],
    };
    let end = tensor.offset.checked_add(bytes)?;
    Some(safetensors::Entry {
        name: tensor.name.clone(),
        dtype: dtype.unwrap_or(Dtype::U8),
        shape,
        begin: tensor.offset,
        end,
    })
}

fn whole(header: &Header, key: &str) -> Option<u64> {
    let arch = header.get("general.architecture")?.as_str()?;
    header.get(&format!("{arch}.{key}")).and_then(Value::as_u64)
}

/// The family of a file: of several with one architecture, the last whose own tensors are there.
fn family(header: &Header) -> Option<&'static Family> {
    let arch = header.get("general.architecture")?.as_str()?;
    let has = |stem: &str| header.tensors.iter().any(|tensor| tensor.name.contains(&format!(".{stem}.")));
    let fits = |family: &&&Family| match family.classes[0] {
        "MixtralForCausalLM" => has("ffn_gate_exps"),
        "DeepseekV3ForCausalLM" => has("exp_probs_b"),
        _ => true,
    };
    let found: Vec<&'static Family> = FAMILIES.iter().filter(|family| family.arch == arch).collect();
    found.iter().rev().find(fits).copied()
}

/// The `config.json` that a model of the family would have.
fn configuration(file: &File, family: &'static Family) -> Result<Json> {
    let header = &file.header;
    let wrong = |reason: String| Error::malformed(&file.path, "gguf", reason);
    let mut config = Map::new();
    config.insert("architectures".to_owned(), json!([family.classes[0]]));
    config.insert("model_type".to_owned(), json!(family.model_type));
    let defaults = serde_json::from_str::<Map<String, Json>>(family.defaults).unwrap_or_default();
    let granted = serde_json::from_str::<Map<String, Json>>(family.granted).unwrap_or_default();
    // Of several names, the one that the family has.
    let known: Vec<String> = defaults.keys().cloned().collect();
    let own =
        |names: &[&'static str]| *names.iter().find(|name| known.iter().any(|own| own == *name)).unwrap_or(&names[0]);
    config.extend(defaults);
    config.extend(granted);
    let get = |key: &str| header.get(&format!("{}.{key}", family.arch));
    let number = |key: &str| whole(header, key);
    let real = |key: &str| match get(key) {
        Some(Value::F32(number)) => Some(shortest(*number)),
        other => other.and_then(Value::as_u64).map(|number| number as f64),
    };
    let mut put = |key: &str, value: Option<Json>| {
        if let Some(value) = value {
            config.insert(key.to_owned(), value);
        }
    };
    let heads =
        number("attention.head_count").filter(|heads| *heads > 0).ok_or_else(|| wrong("it has no heads".into()))?;
    let hidden = number("embedding_length").unwrap_or(0);
    let head_dim = number("attention.key_length").unwrap_or(hidden / heads);
    for key in family.keys.iter().flat_map(|group| group.iter()) {
        let name = key.gguf;
        match key.from {
            From::Layers => put("num_hidden_layers", number(name).map(Into::into)),
            From::KvHeads if family.arch == "falcon" => {
                let two = header.tensor("blk.0.attn_norm_2.weight").is_some();
                put("num_kv_heads", number(name).map(Into::into));
                put("new_decoder_architecture", Some(two.into()));
                put("multi_query", Some((number(name) == Some(1)).into()));
                put("bias", Some(false.into()));
            }
            From::KvHeads if number("attention.key_length_mla").is_some() => {
                put("num_key_value_heads", Some(heads.into()));
            }
            From::KvHeads => put("num_key_value_heads", number(name).map(Into::into)),
            From::Rotary => {
                let share =
                    number(name).filter(|rotated| *rotated < head_dim).map(|rotated| rotated as f64 / head_dim as f64);
                put("partial_rotary_factor", share.map(Into::into));
            }
            From::Lengths if family.lengths == Lengths::Never => {}
            From::Lengths => put("head_dim", number("attention.key_length").map(Into::into)),
            From::Whole(names) => put(own(names), number(name).map(Into::into)),
            From::WholeOr("sliding_window", none) => {
                put("sliding_window", number(name).filter(|window| *window != u64::from(none)).map(Into::into));
            }
            From::WholeOr(of, _) => put(of, number(name).map(Into::into)),
            // The second is what is rotated, which a key says alone.
            From::Sum(of, _) => {
                let rotated = number("rope.dimension_count").unwrap_or(0);
                put(of, number(name).map(|sum| sum.saturating_sub(rotated).into()));
            }
            From::Real(names) => put(own(names), real(name).map(Into::into)),
            From::Flag(of) | From::Yes(of) => match get(name) {
                Some(Value::Bool(yes)) => put(of, Some((*yes).into())),
                _ => put(of, Some((matches!(key.from, From::Flag(_))).into())),
            },
            From::Scoring => match number(name) {
                Some(1) => put("scoring_func", Some("softmax".into())),
                Some(2) => put("scoring_func", Some("sigmoid".into())),
                _ => {}
            },
            From::Vocabulary
            | From::Rope
            | From::Base
            | From::RopeTenth(_)
            | From::FileType
            | From::Text(_)
            | From::Number(_) => {}
        }
    }
    let rows = |name: &str| header.tensor(name).and_then(|tensor| tensor.dims.get(1).copied());
    put("vocab_size", rows("token_embd.weight").map(Into::into));
    put("tie_word_embeddings", Some(rows("output.weight").is_none().into()));
    for (key, of) in [("bos", "bos"), ("eos", "eos"), ("padding", "pad")] {
        let id = header.get(&format!("tokenizer.ggml.{key}_token_id")).and_then(Value::as_u64);
        put(&format!("{of}_token_id"), id.map(Into::into));
    }
    let has = |name: &str| header.tensor(name).is_some();
    // Those that say so; the others have biases or have none.
    if matches!(family.arch, "llama" | "granite" | "glm4") {
        put("attention_bias", Some(has("blk.0.attn_q.bias").into()));
        put("mlp_bias", Some(has("blk.0.ffn_up.bias").into()));
    }
    if family.arch.starts_with("gemma") {
        // llama.cpp scales queries by the width of a head, but for the largest models.
        let layers = number("block_count");
        let large = matches!((family.arch, layers), ("gemma2", Some(46)) | ("gemma3", Some(62)));
        put("query_pre_attn_scalar", Some(if large { hidden / heads } else { head_dim }.into()));
    }
    if family.arch == "deepseek2" && number("attention.q_lora_rank").is_none() {
        put("q_lora_rank", Some(Json::Null));
    }
    rope(file, family, &mut config)?;
    Ok(Json::Object(config))
}

/// What the file says of rotary positions, in the dialect of transformers 5.
fn rope(file: &File, family: &Family, config: &mut Map<String, Json>) -> Result<()> {
    let header = &file.header;
    let get = |key: &str| header.get(&format!("{}.rope.{key}", family.arch));
    let real = |key: &str| if let Some(Value::F32(number)) = get(key) { Some(shortest(*number)) } else { None };
    let base = real("freq_base").or_else(|| config.get("rope_theta").and_then(Json::as_f64)).unwrap_or(10000.0);
    let mut rope = Map::new();
    rope.insert("rope_theta".to_owned(), base.into());
    rope.insert("rope_type".to_owned(), "default".into());
    if let Some(share) = config.get("partial_rotary_factor").cloned() {
        rope.insert("partial_rotary_factor".to_owned(), share);
    }
    if let Some(kind) = get("scaling.type").and_then(Value::as_str) {
        let names = [
            ("scaling.factor", "factor"),
            ("scaling.yarn_ext_factor", "extrapolation_factor"),
            ("scaling.yarn_attn_factor", "attention_factor"),
            ("scaling.yarn_beta_fast", "beta_fast"),
            ("scaling.yarn_beta_slow", "beta_slow"),
        ];
        rope.insert("rope_type".to_owned(), kind.into());
        for (key, name) in names {
            if let Some(number) = real(key) {
                rope.insert(name.to_owned(), number.into());
            }
        }
        if let Some(context) = whole(header, "rope.scaling.original_context_length") {
            rope.insert("original_max_position_embeddings".to_owned(), context.into());
        }
        if (family.arch, kind) == ("gpt-oss", "yarn") {
            // A GGUF file has no word for it; every model of this family turns its dimensions so
            // (https://huggingface.co/openai/gpt-oss-20b/blob/main/config.json).
            rope.insert("truncate".to_owned(), false.into());
        }
        if let Some(tenth) = real("scaling.yarn_log_multiplier") {
            let number = shortest((10.0 * tenth) as f32);
            rope.insert("mscale".to_owned(), number.into());
            rope.insert("mscale_all_dim".to_owned(), number.into());
        }
    }
    if let Some(Value::Array(Array::I32(sections))) = get("dimension_sections") {
        rope.insert("mrope_section".to_owned(), json!(sections.iter().take(3).collect::<Vec<_>>()));
    }
    if header.tensor("rope_factors_long.weight").is_some() {
        rope.insert("rope_type".to_owned(), "longrope".into());
        for (tensor, name) in
            [("rope_factors_long.weight", "long_factor"), ("rope_factors_short.weight", "short_factor")]
        {
            let list = list(file, tensor)?;
            rope.insert(name.to_owned(), json!(list.iter().map(|one| shortest(*one)).collect::<Vec<_>>()));
        }
    }
    if header.tensor("rope_freqs.weight").is_some() {
        rope.extend(llama3(&list(file, "rope_freqs.weight")?, base)?);
    }
    let parameters = match real("freq_base_swa") {
        None => Json::Object(rope),
        Some(local) => {
            json!({"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": local}})
        }
    };
    for old in ["rope_theta", "rope_local_base_freq"] {
        config.shift_remove(old);
    }
    config.insert("rope_parameters".to_owned(), parameters);
    Ok(())
}

/// How Llama 3 says these factors: the one way that all of its models have, with a factor of their own.
fn llama3(factors: &[f32], base: f64) -> Result<Map<String, Json>> {
    let factor = factors.iter().copied().fold(1.0f32, f32::max);
    for context in [8192, 4096, 2048, 512, 256] {
        let said = json!({"rope_type": "llama3", "rope_theta": base, "factor": f64::from(factor), "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": context});
        let rope = Rope::new(&json!({"rope_parameters": said}));
        let computed = rope.map(|rope| rope.factors(2 * factors.len())).unwrap_or_default();
        let close = |(one, other): (&f32, &f32)| (one / other - 1.0).abs() < 1e-4;
        if let Json::Object(said) = said
            && computed.iter().any(|(_, list)| list.len() == factors.len() && list.iter().zip(factors).all(close))
        {
            return Ok(said);
        }
    }
    Err(Error::unsupported(
        "the file stretches its context by factors that no `config.json` of Llama 3 would give",
        "make another GGUF file of it with `⟨as gguf⟩`",
    ))
}

/// The numbers of a small tensor.
fn list(file: &File, name: &str) -> Result<Vec<f32>> {
    let wrong = |reason: &str| Error::malformed(&file.path, "gguf", format!("the tensor `{name}` {reason}"));
    let tensor = file.header.tensor(name).ok_or_else(|| wrong("is not there"))?;
    let count = tensor.weights().filter(|count| *count <= LONGEST_LIST).ok_or_else(|| wrong("is no short list"))?;
    let mut numbers = vec![0.0; count as usize];
    let rows = count / tensor.columns().max(1);
    file.read(tensor, 0..rows, &mut numbers)?;
    Ok(numbers)
}

/// The shortest number that is this one in single precision: what a `config.json` said before it was rounded.
fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}
