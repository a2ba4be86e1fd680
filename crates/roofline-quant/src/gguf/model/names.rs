//! What llama.cpp calls the tensors of a checkpoint.

use std::path::Path;

use serde_json::Value as Json;

use super::{
    super::family::{Conversion, Family, Line, matches, within},
    Model, flat,
};
use crate::{Error, Result, site};

/// More layers than any model has; a loop over them stays short.
const MOST_LAYERS: u64 = 10_000;
/// More experts than any model has.
const MOST_EXPERTS: u64 = 1 << 16;

/// Where a tensor of the checkpoint goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name in the GGUF file. An NVFP4's scale is called the same with `.scale` for `.weight`.
    pub name: String,
    /// In which layer.
    pub layer: Option<usize>,
    /// What happens to its numbers.
    pub conversion: Conversion,
    /// Which of the experts it is, where those are stacked into one tensor of a third dimension.
    pub expert: Option<usize>,
}

/// The names of a model's tensors, which its configuration says.
#[derive(Clone, Debug)]
pub struct Names {
    family: &'static Family,
    /// Layers.
    pub(super) layers: usize,
    /// Experts of a layer; none where there is one feed-forward for all.
    pub experts: usize,
    /// Whether keys and values are unfolded from less.
    latent: bool,
    /// Whether the embeddings are used twice.
    pub(super) tied: bool,
    /// Whether it sees or hears as well, with tensors that llama.cpp wants in a file of their own.
    pub(super) senses: bool,
}

impl Names {
    /// Those of the model of a `config.json`. `output` is whether the checkpoint has a matrix for the output.
    pub fn new(config: &Json, output: bool) -> Result<Self> {
        let wrong = |reason: String| Error::malformed(Path::new("config.json"), "config.json", reason);
        let class = config["architectures"][0].as_str().unwrap_or("none");
        let family = Model::family(config)?;
        let config = flat(config, family);
        let known = |key: &str| config[key].as_u64().filter(|number| *number > 0);
        let layers =
            known("num_hidden_layers").ok_or_else(|| wrong("it has no whole `num_hidden_layers`".to_owned()))?;
        if layers > MOST_LAYERS {
            return Err(wrong(format!("it has {layers} layers")));
        }
        let experts = ["num_local_experts", "num_experts", "n_routed_experts"];
        let experts = experts.into_iter().find_map(known).unwrap_or(0);
        if experts > MOST_EXPERTS {
            return Err(wrong(format!("it has {experts} experts")));
        }
        Ok(Self {
            family,
            layers: layers as usize,
            experts: experts as usize,
            latent: known("kv_lora_rank").is_some(),
            tied: !output || config["tie_word_embeddings"].as_bool().unwrap_or(false),
            senses: class.ends_with("ForConditionalGeneration"),
        })
    }

    /// Where a tensor of the checkpoint goes; nowhere for what llama.cpp computes itself, has already, or wants elsewhere.
    pub fn tensor(&self, name: &str) -> Result<Vec<Target>> {
        let unknown = || Error::Weight {
            name: name.to_owned(),
            reason: format!("is not known in a model of the family {}", self.family.arch),
            hint: None,
        };
        let inner = within(name);
        let computed = [".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias"];
        if (self.senses && site::sees(name)) || computed.iter().any(|end| inner.ends_with(end)) {
            return Ok(Vec::new());
        }
        let found = |rest: &str, lines: &mut dyn Iterator<Item = &'static Line>, layer: Option<usize>| {
            let mut targets = Vec::new();
            for line in lines {
                let exact = line.gguf.contains('.');
                let (stem, kind) = if exact { (rest, "") } else { rest.rsplit_once('.').unwrap_or((rest, "")) };
                let Some(expert) = matches(line.hf, stem) else { continue };
                let free = matches!(line.gguf, "attn_q" | "attn_k" | "attn_v" | "attn_qkv");
                let bias = kind == "bias" && (free || self.family.biases.contains(&line.gguf));
                if !(exact || kind == "weight" || bias) || expert.is_some_and(|at| at >= self.experts) {
                    continue;
                }
                let prefix = layer.map_or_else(String::new, |layer| format!("blk.{layer}."));
                let suffix = if exact { String::new() } else { format!(".{kind}") };
                let name = format!("{prefix}{}{suffix}", line.gguf);
                targets.push(Target { name, layer, conversion: line.conversion, expert });
            }
            targets
        };
        if let Some(rest) = inner.strip_prefix(self.family.layers) {
            let (layer, rest) = rest.split_once('.').ok_or_else(unknown)?;
            let layer = layer.parse::<usize>().map_err(|_| unknown())?;
            // DeepSeek's last layers, which guess further tokens, are read by no runtime of this family.
            if layer >= self.layers && self.latent {
                return Ok(Vec::new());
            }
            let targets = found(rest, &mut self.family.lines(), Some(layer).filter(|at| *at < self.layers));
            return if targets.is_empty() || layer >= self.layers { Err(unknown()) } else { Ok(targets) };
        }
        let mut targets = found(&inner, &mut self.family.whole.iter(), None);
        if targets.is_empty() {
            // Gemma's head is its embedding, even where a file has both.
            return if inner == "lm_head.weight" && self.tied { Ok(targets) } else { Err(unknown()) };
        }
        targets.retain(|target| !(self.tied && target.name == "output.weight"));
        Ok(targets)
    }
}
