//! Weights as a checkpoint stores them: plain numbers, or codes with their scales in tensors of their own.
//!
//! What a weight is coded as follows from the tensors that are there - their names, types and shapes - and is believed
//! only if they are exactly those the coding would have written. Codes that are not believed are never taken for
//! weights: who wants to decode is refused, who only looks is told.

mod bitsandbytes;
mod codes;
mod compressed_tensors;
mod float8;
pub(crate) mod gguf;
mod mlx;
mod modelopt;
mod packed;
mod stacks;
mod torchao;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;

use crate::{
    Checkpoint, Dtype, Error, Result,
    checkpoint::Shard,
    coding::{Coding, Matrix, Part},
    lora::Merged,
    rows::{Plain, Rows},
    safetensors::Entry,
};
use codes::Codes;

/// A tensor where it lies.
pub type Located<'a> = (&'a Shard, &'a Entry);

/// A tensor of the model, as a checkpoint holds it.
pub struct StoredTensor<'a> {
    /// What it is called in a plain checkpoint of its family: `M.weight`, whatever lies in the file.
    pub name: String,
    /// Its shape, or that of what its codes stand for.
    pub shape: Vec<usize>,
    /// The numbers it holds; for codes, those that they were made of or decode to.
    pub dtype: Dtype,
    /// How it lies there.
    pub kind: Kind<'a>,
}

/// How a tensor lies in a file.
pub enum Kind<'a> {
    /// As it is: its bytes can be copied.
    Plain(Located<'a>),
    /// A matrix within a larger tensor of plain numbers.
    Within(Plain<'a>, Located<'a>),
    /// Plain numbers of one tensor or several, in another order.
    Rearranged(Box<dyn Rows + 'a>, Vec<Located<'a>>),
    /// In codes.
    Coded(Coded<'a>),
}

/// A matrix in codes, or several one below the other.
pub struct Coded<'a> {
    /// How it is coded, in words.
    pub scheme: String,
    /// What it decodes to.
    pub rows: Box<dyn Rows + 'a>,
    /// The tensors that it is stored in.
    pub parts: Vec<Located<'a>>,
}

impl<'a> StoredTensor<'a> {
    /// A tensor as it is.
    pub fn plain(located: Located<'a>) -> Self {
        let Entry { name, shape, dtype, .. } = located.1;
        Self { name: name.clone(), shape: shape.clone(), dtype: *dtype, kind: Kind::Plain(located) }
    }

    /// A matrix in codes.
    fn coded(name: String, dtype: Dtype, scheme: String, codes: Codes<'a>) -> Self {
        let Matrix { rows, columns } = codes.matrix;
        let parts = codes.parts.iter().map(|(_, located)| *located).collect();
        let kind = Kind::Coded(Coded { scheme, rows: Box::new(codes), parts });
        Self { name, shape: vec![rows, columns], dtype, kind }
    }

    /// Whether it is in codes.
    pub fn is_coded(&self) -> bool {
        matches!(self.kind, Kind::Coded(_))
    }

    /// How it is stored, in words.
    pub fn format(&self) -> &str {
        match &self.kind {
            Kind::Coded(coded) => &coded.scheme,
            _ => self.dtype.name(),
        }
    }

    /// The tensor itself, or the first of several.
    pub fn first(&self) -> Located<'a> {
        match &self.kind {
            Kind::Plain(located) | Kind::Within(_, located) => *located,
            Kind::Rearranged(_, parts) => parts[0],
            Kind::Coded(coded) => coded.parts[0],
        }
    }

    /// How many numbers it holds or stands for.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|dim| *dim as u64).product()
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> u64 {
        match &self.kind {
            Kind::Plain((_, entry)) => entry.bytes(),
            Kind::Within(plain, _) => plain.stored(),
            Kind::Rearranged(rows, _) => rows.stored(),
            Kind::Coded(coded) => coded.rows.stored(),
        }
    }

    /// Its numbers, row by row.
    pub fn into_rows(self) -> Result<Box<dyn Rows + 'a>> {
        Ok(match self.kind {
            Kind::Plain((shard, entry)) => Box::new(Plain::new(shard, entry)?),
            Kind::Within(plain, _) => Box::new(plain),
            Kind::Rearranged(rows, _) => rows,
            Kind::Coded(coded) => coded.rows,
        })
    }

    /// With what was merged into the checkpoint, where it is in codes; plain numbers are changed as they are read.
    fn changed(mut self, checkpoint: &'a Checkpoint) -> Self {
        let changes = checkpoint.changes.get(&self.name);
        self.kind = match (self.kind, changes) {
            (Kind::Coded(Coded { scheme, rows, parts }), Some(changes)) => {
                Kind::Coded(Coded { scheme, rows: Box::new(Merged { rows, changes }), parts })
            }
            (kind, _) => kind,
        };
        self
    }

    /// An error that names it.
    pub fn refuse(&self, reason: impl Into<String>, hint: Option<&str>) -> Error {
        Error::Weight { name: self.name.clone(), reason: reason.into(), hint: hint.map(str::to_owned) }
    }

    /// Everything in a checkpoint, in the order of names. Codes of a kind that is not known are an error: as plain
    /// tensors they would be copied without what says how to read them.
    pub fn all(checkpoint: &'a Checkpoint) -> Result<Vec<Self>> {
        let (all, unknown) = Self::survey(checkpoint)?;
        match unknown.first() {
            None => Ok(all),
            Some(first) => Err(Error::Weight {
                name: first.weight.clone(),
                reason: format!("is in codes of a kind that this program does not know: `{}` is {}", first.part, first.what),
                hint: Some(
                    "start from the original checkpoint; compressed-tensors, torchao, GPTQ, AWQ, bitsandbytes, MLX, FP8, ModelOpt's \
                     NVFP4 and gpt-oss's MXFP4 can be decoded"
                        .to_owned(),
                ),
            }),
        }
    }

    /// Everything in a checkpoint, in the order of names, and which of it are codes of a kind that is not known: their
    /// tensors are given as they are.
    pub fn survey(checkpoint: &'a Checkpoint) -> Result<(Vec<Self>, Vec<Unknown>)> {
        if let Some(source) = &checkpoint.gguf {
            return Ok((gguf::weights(checkpoint, source)?, Vec::new()));
        }
        let tensors = checkpoint.tensors();
        let mut taken = BTreeSet::new();
        let mut all = BTreeMap::new();
        let mut take = |stored: Self| {
            if let Kind::Coded(coded) = &stored.kind {
                taken.extend(coded.parts.iter().map(|(_, entry)| entry.name.as_str()));
            }
            all.insert(stored.name.clone(), stored.changed(checkpoint));
        };
        let square = has_usual_blocks(&checkpoint.config);
        let declared = compressed_tensors::declared_bits(&checkpoint.config);
        for name in tensors.keys() {
            let scaled = name.rsplit_once('.').filter(|(_, part)| matches!(*part, "weight_scale" | SCALE_INVERSE));
            let Some((module, part)) = scaled else { continue };
            let found = if part == SCALE_INVERSE {
                compressed_tensors::fine_grained(module, &tensors)
            } else {
                compressed_tensors::weight(module, &tensors, declared)?
                    .or_else(|| modelopt::weight(module, &tensors))
                    .or_else(|| float8::weight(module, &tensors))
            };
            if let Some(coded) = found.filter(|stored| square || !stored.format().contains("blocks")) {
                take(coded);
            }
        }
        tensors.keys().filter_map(|name| stacks::experts(name, &tensors)).for_each(&mut take);
        let mlx = mlx::Declared::of(&checkpoint.config);
        for name in tensors.keys() {
            if let Some(coded) = bitsandbytes::four(name, &tensors)? {
                take(coded);
            } else if let Some(module) = name.strip_suffix(".SCB") {
                bitsandbytes::int8(module, &tensors, &checkpoint.config)?.into_iter().for_each(&mut take);
            } else if let Some(module) = name.strip_suffix(".scales") {
                mlx::weights(module, &tensors, &mlx).into_iter().for_each(&mut take);
            }
        }
        torchao::weights(checkpoint, &tensors).into_iter().for_each(&mut take);
        packed::weights(checkpoint, &tensors)?.into_iter().for_each(take);
        let by_mlx = mlx::is_mlx(checkpoint, &mlx);
        let declared = declares_quantization(&checkpoint.config);
        let mut unknown = Vec::new();
        for (name, located) in &tensors {
            if taken.contains(name) {
                continue;
            }
            if let Some(experts) = Some(*located).filter(|_| by_mlx).and_then(mlx::plain_experts) {
                all.extend(experts.into_iter().map(|expert| (expert.name.clone(), expert)));
                continue;
            }
            unknown.extend(Unknown::of(located.1, declared));
            all.insert((*name).to_owned(), Self::plain(*located));
        }
        let kin = Unknown::kin(&unknown, tensors.values().map(|(_, entry)| *entry));
        unknown.extend(kin.into_iter().filter(|part| !taken.contains(part.part.as_str())));
        Ok((all.into_values().collect(), unknown))
    }
}

/// What codes stand for that lie in these tensors.
pub(crate) fn decoded<'a>(
    matrix: Matrix,
    coding: Arc<dyn Coding>,
    parts: Vec<(Part, Located<'a>)>,
) -> Box<dyn Rows + 'a> {
    Box::new(Codes { matrix, coding: Box::new(coding), parts })
}

/// What `weight_scale` is called in HF's fine-grained FP8, DeepSeek's and Qwen's: the multiplier, despite the name.
const SCALE_INVERSE: &str = "weight_scale_inv";

/// Whether a configuration says that weights are in codes.
pub(crate) fn declares_quantization(config: &Value) -> bool {
    // The last is MLX's.
    ["quantization_config", "compression_config", "quantization"].iter().any(|key| config[*key].is_object())
}

/// Whether the blocks of FP8, where the configuration says how large they are, are those of 128 x 128 that are decoded.
/// The shape of the scales does not always tell them from others.
fn has_usual_blocks(config: &Value) -> bool {
    let config = &config["quantization_config"];
    let groups = config["config_groups"].as_object().into_iter().flat_map(|groups| groups.values());
    let sizes = groups.map(|group| &group["weights"]["block_structure"]).chain([&config["weight_block_size"]]);
    sizes.filter(|size| !size.is_null()).all(|size| *size == serde_json::json!([128, 128]))
}

/// A part of codes that no known scheme has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// The weight it most likely belongs to.
    pub weight: String,
    /// The tensor's name.
    pub part: String,
    /// Its type and shape.
    pub what: String,
}

impl Unknown {
    /// What a tensor's name, and its type where the configuration declares codes, give away.
    fn of(entry: &Entry, declared: bool) -> Option<Self> {
        // Of compressed-tensors, HF's FP8, ModelOpt, GPTQ and AWQ, torchao, and bitsandbytes.
        const PARTS: [&str; 20] = [
            ".weight_packed",
            ".weight_scale",
            ".weight_scale_inv",
            ".weight_scale_2",
            ".pre_quant_scale",
            ".weight_global_scale",
            ".weight_zero_point",
            ".weight_g_idx",
            ".weight_shape",
            ".qweight",
            ".qzeros",
            "._weight_qdata",
            "._weight_scale",
            ".weight.absmax",
            ".weight.quant_map",
            ".weight.nested_absmax",
            ".weight.nested_quant_map",
            ".SCB",
            ".weight.quant_state.bitsandbytes__nf4",
            ".weight.quant_state.bitsandbytes__fp4",
        ];
        let Entry { name, dtype, shape, .. } = entry;
        let module = PARTS.iter().find_map(|part| name.strip_suffix(part));
        // Masks and positions are integers, too, but of other types.
        let code = matches!(
            dtype,
            Dtype::U8
                | Dtype::I8
                | Dtype::U16
                | Dtype::I16
                | Dtype::U32
                | Dtype::I32
                | Dtype::F8E4M3
                | Dtype::F8E5M2
                | Dtype::F8E8M0
        );
        if module.is_none() && !(declared && code && shape.len() > 1) {
            return None;
        }
        let weight = module.map_or_else(|| name.clone(), |module| format!("{module}.weight"));
        Some(Self { weight, part: name.clone(), what: format!("{dtype} {shape:?}") })
    }
}

impl Unknown {
    /// What goes with parts that are not known, although its own name and type would not give it away: scales, and what
    /// else a library puts beside its codes.
    fn kin<'e>(unknown: &[Self], tensors: impl Iterator<Item = &'e Entry>) -> Vec<Self> {
        const ENDS: [&str; 8] =
            [".scales", ".biases", ".g_idx", ".SCB", ".weight_format", ".input_scale", ".input_global_scale", ".perm"];
        let known: BTreeSet<&str> = unknown.iter().map(|one| one.part.as_str()).collect();
        let modules: BTreeSet<&str> = unknown.iter().filter_map(|one| one.weight.strip_suffix(".weight")).collect();
        let mut kin = Vec::new();
        for Entry { name, dtype, shape, .. } in tensors.filter(|entry| !known.contains(entry.name.as_str())) {
            let beside = ENDS.iter().find_map(|end| name.strip_suffix(end));
            let below = name.rsplit_once(".weight.").map(|(module, _)| module);
            if let Some(module) = beside.or(below).filter(|module| modules.contains(module)) {
                let what = format!("{dtype} {shape:?}");
                kin.push(Self { weight: format!("{module}.weight"), part: name.clone(), what });
            }
        }
        kin
    }
}

/// A dimension that can be computed with: products of two, and bits of one, have room in 64 bits. Only a file without
/// data can claim more.
fn sensible(dim: usize) -> bool {
    (1..=u32::MAX as usize).contains(&dim)
}

/// Whether a module has parts of a weight beside those that a coding takes, which therefore mean something else.
fn has_more(module: &str, tensors: &BTreeMap<&str, Located<'_>>, parts: &[(Part, Located<'_>)]) -> bool {
    !complete(module, tensors, &parts.iter().map(|(_, located)| *located).collect::<Vec<_>>())
}

/// Whether these are all the parts of its weight that a module has.
fn complete(module: &str, tensors: &BTreeMap<&str, Located<'_>>, parts: &[Located<'_>]) -> bool {
    let start = format!("{module}.");
    let of_module = tensors.range(start.as_str()..).map(|(name, _)| *name).take_while(|name| name.starts_with(&start));
    let mut of_weight = of_module.filter(|name| {
        let part = &name[start.len()..];
        part == "weight" || ["weight_", "weight.", "_weight_"].iter().any(|prefix| part.starts_with(prefix))
    });
    of_weight.all(|name| parts.iter().any(|(_, entry)| entry.name == name))
}

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
