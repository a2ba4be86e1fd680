//! What a checkpoint holds, from its headers alone, and what about it is suspicious.

mod contradictions;

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::{
    Checkpoint, Container, Dtype, Error, Result,
    checkpoint::open_regular,
    gguf,
    site::{Site, pattern},
    stored::{StoredTensor, Unknown},
};
use contradictions::contradictions;

/// A checkpoint at a glance.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Inspection {
    /// What it is called.
    pub name: String,
    /// "safetensors", "PyTorch" or "GGUF".
    pub container: &'static str,
    /// Its files of weights, with their bytes.
    pub files: Vec<(String, u64)>,
    /// How many numbers it holds, without those that are in codes nobody here understands.
    pub parameters: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Of these, the bytes of codes that are not understood: what they stand for is not among the parameters.
    pub bytes_not_understood: u64,
    /// Stored bits per parameter, scales and all.
    pub bits_per_weight: f64,
    /// What the configuration says of the quantization.
    pub quantization: Option<Value>,
    /// What the files say of themselves.
    pub metadata: Vec<(String, String)>,
    /// Every tensor; a weight in codes is one.
    pub tensors: Vec<Tensor>,
    /// What a careful reader would ask about.
    pub suspicious: Vec<String>,
}

/// A tensor, or a weight and what is stored for it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "InspectedTensor")]
pub struct Tensor {
    /// Its name, or what it was called before it was coded.
    pub name: String,
    /// What it is for.
    pub role: &'static str,
    /// Which layer it is in.
    pub layer: Option<u64>,
    /// Its shape, outermost dimension first.
    pub shape: Vec<u64>,
    /// Whether it is what it says; else it is a part of codes, and no number in it is a parameter.
    pub understood: bool,
    /// How it is stored.
    pub format: String,
    /// Bytes, with everything stored for it.
    pub bytes: u64,
    /// Bits per number; none where it is not known what stands for one.
    pub bits_per_weight: f64,
}

/// Inspects a checkpoint's folder, a file of weights, an index of shards or a GGUF file, whatever its name.
pub fn inspect(path: &Path) -> Result<Inspection> {
    let named = path.extension().is_some_and(|extension| extension == "gguf");
    let container =
        if path.is_file() { Container::of(&open_regular(path, "checkpoint")?, path)? } else { Container::Safetensors };
    if named || container == Container::Gguf { gguf(path) } else { folder(path) }
}

fn gguf(path: &Path) -> Result<Inspection> {
    let header = gguf::Header::read(path)?;
    let tensors: Vec<Tensor> = header
        .tensors
        .iter()
        .map(|tensor| {
            let shape = tensor.dims.iter().rev().copied().collect();
            Tensor::new(&tensor.name, shape, tensor.ty.to_string(), tensor.bytes().unwrap_or(0))
        })
        .collect();
    let metadata = header.metadata.iter().map(|(key, value)| (key.clone(), value.to_string())).collect();
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let length = std::fs::metadata(path).map_err(Error::file("read", path))?.len();
    let mut suspicious = Vec::new();
    let architecture = header.get("general.architecture").and_then(gguf::Value::as_str);
    match architecture {
        None => suspicious.push("no key says which architecture it is: llama.cpp will not load it".to_owned()),
        Some(architecture) => {
            let stated = header.get(&format!("{architecture}.block_count")).and_then(gguf::Value::as_u64);
            let layers = tensors.iter().filter_map(|tensor| tensor.layer).max().map_or(0, |last| last + 1);
            if stated.is_some_and(|stated| stated != layers) {
                suspicious.push(format!("it says it has {} layers, and the weights {layers}", stated.unwrap_or(0)));
            }
        }
    }
    if header.get("tokenizer.ggml.tokens").is_none() {
        suspicious.push("there is no tokenizer: no runtime can turn text into tokens".to_owned());
    }
    Ok(Inspection::new(name.clone(), "GGUF", vec![(name, length)], None, metadata, tensors, suspicious))
}

fn folder(path: &Path) -> Result<Inspection> {
    let checkpoint = Checkpoint::open_part(path)?;
    let mut tensors = Vec::new();
    let (all, unknown) = StoredTensor::survey(&checkpoint)?;
    let parts: HashSet<&str> = unknown.iter().map(|unknown| unknown.part.as_str()).collect();
    for stored in &all {
        let shape: Vec<u64> = stored.shape.iter().map(|dim| *dim as u64).collect();
        let tensor = Tensor::new(&stored.name, shape, stored.format().to_owned(), stored.bytes());
        tensors.push(if parts.contains(stored.name.as_str()) { tensor.part() } else { tensor });
    }
    let mut metadata: BTreeMap<String, String> = BTreeMap::new();
    let named: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    for (key, text) in checkpoint.shards.iter().flat_map(|shard| &shard.header.metadata) {
        // torchao puts a line there for every tensor; those are told by the tensors' formats.
        if !named.contains(key.as_str()) && key != "tensor_names" {
            metadata.insert(key.clone(), text.clone());
        }
    }
    let files = checkpoint.shards.iter().map(|shard| {
        let name = shard.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Ok((name, shard.length()?))
    });
    // Older versions of ModelOpt have it in a file of its own.
    let beside = checkpoint.folder.join("hf_quant_config.json");
    let quantization =
        ["quantization_config", "quantization"].iter().find_map(|key| checkpoint.config.get(*key)).cloned();
    let quantization = quantization.or_else(|| crate::checkpoint::read_json(&beside, "hf_quant_config.json").ok());
    let suspicious = suspicions(&checkpoint, &tensors, &all, &unknown);
    let files = files.collect::<Result<_>>()?;
    let metadata = metadata.into_iter().collect();
    let container = checkpoint.shards.first().map_or(Container::Safetensors, |shard| shard.container).name();
    Ok(Inspection::new(checkpoint.name(), container, files, quantization, metadata, tensors, suspicious))
}

impl Tensor {
    fn new(name: &str, shape: Vec<u64>, format: String, bytes: u64) -> Self {
        let site = Site::of(name, shape.len());
        let elements: u64 = shape.iter().product();
        let bits_per_weight = if elements == 0 { 0.0 } else { 8.0 * bytes as f64 / elements as f64 };
        let (name, role, layer) = (name.to_owned(), site.role.name(), site.layer);
        Self { name, role, layer, shape, understood: true, format, bytes, bits_per_weight }
    }

    /// The same as a part of codes: what its bytes stand for is not known.
    fn part(self) -> Self {
        let format = format!("{}, a part of codes", self.format);
        Self { understood: false, format, bits_per_weight: 0.0, ..self }
    }

    /// How many numbers of the model it holds or stands for, as far as that is known.
    pub fn elements(&self) -> u64 {
        if self.understood { self.shape.iter().product() } else { 0 }
    }
}

impl Inspection {
    fn new(
        name: String,
        container: &'static str,
        files: Vec<(String, u64)>,
        quantization: Option<Value>,
        metadata: Vec<(String, String)>,
        tensors: Vec<Tensor>,
        suspicious: Vec<String>,
    ) -> Self {
        let parameters = tensors.iter().map(Tensor::elements).sum();
        let bytes: u64 = tensors.iter().map(|tensor| tensor.bytes).sum();
        let bytes_not_understood: u64 =
            tensors.iter().filter(|tensor| !tensor.understood).map(|tensor| tensor.bytes).sum();
        let understood = bytes - bytes_not_understood;
        let bits_per_weight = if parameters == 0 { 0.0 } else { 8.0 * understood as f64 / parameters as f64 };
        Self {
            name,
            container,
            files,
            parameters,
            bytes,
            bytes_not_understood,
            bits_per_weight,
            quantization,
            metadata,
            tensors,
            suspicious,
        }
    }
}

/// What does not fit together, in words.
fn suspicions(
    checkpoint: &Checkpoint,
    tensors: &[Tensor],
    stored: &[StoredTensor<'_>],
    unknown: &[Unknown],
) -> Vec<String> {
    let config = &checkpoint.config;
    let mut found = Vec::new();
    let coded: Vec<&Tensor> =
        tensors.iter().filter(|tensor| tensor.understood && Dtype::named(&tensor.format).is_none()).collect();
    let declared = config.get("quantization_config").and_then(|config| config.get("quant_method"));
    let declared = declared.map(|method| method.as_str().unwrap_or("an unnamed method").to_owned());
    // MLX names no method.
    let declared = declared.or_else(|| config.get("quantization").map(|_| "mlx".to_owned()));
    match (&declared, coded.len()) {
        (None, 1..) if !checkpoint.folder.join("hf_quant_config.json").exists() => found.push(format!(
            "{} weights are in codes, but config.json has no quantization_config: loaders will take the codes for weights",
            coded.len()
        )),
        (Some(method), 0)
            if unknown.is_empty()
                && matches!(
                    method.as_str(),
                    "compressed-tensors" | "torchao" | "bitsandbytes" | "mlx" | "gptq" | "awq" | "fp8"
                ) =>
        {
            found.push(format!("config.json says it is quantized with {method}, but no weight is stored that way"));
        }
        _ => {}
    }
    if let Some(first) = unknown.first() {
        let count = unknown.len();
        found.push(format!(
            "{count} parts of quantized weights fit no scheme this program knows, such as `{}`: what they stand for is \
             not among the parameters",
            first.part
        ));
    }
    if let Some(empty) = tensors.iter().find(|tensor| tensor.understood && tensor.elements() == 0) {
        found.push(format!("`{}` is empty", empty.name));
    }
    found.extend(contradictions(config, tensors, stored));
    let single = tensors.iter().filter(|tensor| tensor.format == "F32" && tensor.shape.len() == 2).count();
    if single > 0 {
        found.push(format!("{single} matrices are stored in FP32: twice the bytes that 16 bit would take"));
    }
    let files = checkpoint.companions().unwrap_or_default();
    let has = |name: &str| files.iter().any(|path| path.file_name().is_some_and(|file| file == name));
    if !has("config.json") {
        found.push("there is no config.json: nothing says what model this is".to_owned());
    } else if !has("tokenizer.json") && !has("tokenizer.model") && !has("vocab.json") {
        found.push("there is no tokenizer: no runtime can turn text into tokens".to_owned());
    }
    if let Ok([first, ..]) = checkpoint.outsiders().as_deref() {
        found.push(format!("`{}` is a link that leads out of the model, and would not be copied", first.display()));
    }
    if let Some((stated, real)) = stated_size(checkpoint) {
        found.push(format!("the index says the tensors take {stated} bytes; they take {real}"));
    }
    found
}

/// The size that an index states, and the real one, where they differ.
fn stated_size(checkpoint: &Checkpoint) -> Option<(u64, u64)> {
    let path = checkpoint.folder.join(crate::checkpoint::INDEX);
    let index: Value = path.exists().then(|| crate::checkpoint::read_json(&path, "index of shards").ok()).flatten()?;
    let stated = index.get("metadata")?.get("total_size")?.as_u64()?;
    let real = checkpoint.bytes();
    (checkpoint.shards.len() > 1 && stated != real).then_some((stated, real))
}

/// One line for tensors that differ in nothing but their layer.
pub fn kinds(tensors: &[Tensor]) -> Vec<(String, Vec<&Tensor>)> {
    let mut order: Vec<String> = Vec::new();
    let mut groups: BTreeMap<String, Vec<&Tensor>> = BTreeMap::new();
    for tensor in tensors {
        let key = format!("{} {:?} {}", pattern(&tensor.name), tensor.shape, tensor.format);
        if !groups.contains_key(&key) {
            order.push(key.clone());
        }
        groups.entry(key).or_default().push(tensor);
    }
    order
        .into_iter()
        .filter_map(|key| {
            let name = key.split(' ').next().unwrap_or_default().to_owned();
            groups.remove(&key).map(|tensors| (name, tensors))
        })
        .collect()
}
