//! Weights as a checkpoint stores them: plain numbers, or codes with their scales in tensors of their own.
//!
//! What a weight is coded as follows from the tensors that are there - their names, types and shapes - and is believed
//! only if they are exactly those the coding would have written. Codes that are not believed are never taken for
//! weights: who wants to decode is refused, who only looks is told.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    Checkpoint, Dtype, Error, Method, Result,
    checkpoint::Shard,
    coding::{Coding, Matrix, Part, Placing, compressed_tensors as ct, torchao as ao},
    job::{Rows, Spare, part_bytes},
    safetensors::Entry,
};

/// A tensor where it lies.
pub type Located<'a> = (&'a Shard, &'a Entry);

/// What a checkpoint holds.
pub enum Stored<'a> {
    /// A tensor as it is.
    Plain(Located<'a>),
    /// A matrix in codes.
    Coded(Coded<'a>),
}

/// A matrix in codes.
pub struct Coded<'a> {
    /// What it was called before: `M.weight`.
    pub name: String,
    /// How it is coded, in words.
    pub scheme: String,
    /// Its shape.
    pub matrix: Matrix,
    coding: Box<dyn Coding>,
    parts: Vec<(Part, Located<'a>)>,
}

impl<'a> Stored<'a> {
    /// What it is called, or was before it was coded.
    pub fn name(&self) -> &str {
        match self {
            Self::Plain((_, entry)) => &entry.name,
            Self::Coded(coded) => &coded.name,
        }
    }

    /// Its shape, or that of what it stands for.
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Plain((_, entry)) => entry.shape.clone(),
            Self::Coded(coded) => vec![coded.matrix.rows, coded.matrix.columns],
        }
    }

    /// The tensor itself, or the first of several.
    pub fn first(&self) -> Located<'a> {
        match self {
            Self::Plain(located) => *located,
            Self::Coded(coded) => coded.parts[0].1,
        }
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Plain((_, entry)) => entry.bytes(),
            Self::Coded(coded) => coded.stored(),
        }
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
                    "start from the original checkpoint; compressed-tensors, torchao and HF's FP8 in blocks can be decoded"
                        .to_owned(),
                ),
            }),
        }
    }

    /// Everything in a checkpoint, in the order of names, and which of it are codes of a kind that is not known: their
    /// tensors are given as they are.
    pub fn survey(checkpoint: &'a Checkpoint) -> Result<(Vec<Self>, Vec<Unknown>)> {
        let tensors = checkpoint.tensors();
        let mut taken = BTreeSet::new();
        let mut all = BTreeMap::new();
        let mut take = |coded: Coded<'a>| {
            taken.extend(coded.parts.iter().map(|(_, (_, entry))| entry.name.as_str()));
            all.insert(coded.name.clone(), Self::Coded(coded));
        };
        let square = has_usual_blocks(&checkpoint.config);
        let declared = declared_bits(&checkpoint.config);
        for name in tensors.keys() {
            let scaled = name.rsplit_once('.').filter(|(_, part)| matches!(*part, "weight_scale" | SCALE_INVERSE));
            let Some((module, part)) = scaled else { continue };
            let found = if part == SCALE_INVERSE {
                fine_grained(module, &tensors)
            } else {
                compressed(module, &tensors, declared)?
            };
            if let Some(coded) = found.filter(|coded| square || !coded.scheme.contains("blocks")) {
                take(coded);
            }
        }
        flattened(checkpoint, &tensors).into_iter().for_each(take);
        let declared = declares_quantization(&checkpoint.config);
        let mut unknown = Vec::new();
        for (name, located) in &tensors {
            if !taken.contains(name) {
                unknown.extend(Unknown::of(located.1, declared));
                all.insert((*name).to_owned(), Self::Plain(*located));
            }
        }
        Ok((all.into_values().collect(), unknown))
    }
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
        const PARTS: [&str; 16] = [
            ".weight_packed",
            ".weight_scale",
            ".weight_scale_inv",
            ".weight_scale_2",
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

/// A dimension that can be computed with: products of two, and bits of one, have room in 64 bits. Only a file without
/// data can claim more.
fn sensible(dim: usize) -> bool {
    (1..=u32::MAX as usize).contains(&dim)
}

/// Whether a module has parts of a weight beside those that a coding takes, which therefore mean something else.
fn has_more(module: &str, tensors: &BTreeMap<&str, Located<'_>>, parts: &[(Part, Located<'_>)]) -> bool {
    let start = format!("{module}.");
    let of_module = tensors.range(start.as_str()..).map(|(name, _)| *name).take_while(|name| name.starts_with(&start));
    let mut of_weight = of_module.filter(|name| {
        let part = &name[start.len()..];
        part == "weight" || ["weight_", "weight.", "_weight_"].iter().any(|prefix| part.starts_with(prefix))
    });
    of_weight.any(|name| !parts.iter().any(|(_, (_, entry))| entry.name == name))
}

/// The weight of a module as compressed-tensors stores it, if its tensors are those of a known scheme and no others.
fn compressed<'a>(
    module: &str,
    tensors: &BTreeMap<&str, Located<'a>>,
    declared: Option<u8>,
) -> Result<Option<Coded<'a>>> {
    let find = |part: &str| tensors.get(format!("{module}.{part}").as_str()).copied();
    let (packed, weight) = (find("weight_packed"), find("weight"));
    let Some((_, scale)) = find("weight_scale") else { return Ok(None) };
    let Some((_, codes)) = packed.or(weight) else { return Ok(None) };
    let ([rows, stored], [_, groups]) = (&codes.shape[..], &scale.shape[..]) else { return Ok(None) };
    let (rows, stored, groups) = (*rows, *stored, *groups);
    let double = stored.saturating_mul(2);
    let (scheme, columns) = match (packed.is_some(), codes.dtype, scale.dtype) {
        (true, Dtype::I32, _) => {
            let Some(columns) = columns(find("weight_shape"), rows)? else { return Ok(None) };
            let Some((bits, group)) = packing(stored, columns, groups, declared) else { return Ok(None) };
            (ct::Scheme::Int { bits, group, zero: find("weight_zero_point").is_some() }, columns)
        }
        (true, Dtype::U8, Dtype::F8E4M3) => (ct::Scheme::Nvfp4, double),
        (true, Dtype::U8, Dtype::U8) => (ct::Scheme::Mxfp4, double),
        (false, Dtype::I8, _) => (ct::Scheme::Int8Channel, stored),
        (false, Dtype::F8E4M3, Dtype::U8) => (ct::Scheme::Mxfp8, stored),
        (false, Dtype::F8E4M3, _) if scale.shape == [rows, 1] => (ct::Scheme::Fp8Channel, stored),
        (false, Dtype::F8E4M3, _) => (ct::Scheme::Fp8Block, stored),
        _ => return Ok(None),
    };
    Ok(coded(module, tensors, scheme, Matrix { rows, columns }, scale.dtype, find))
}

/// The weight of a module in HF's fine-grained FP8: blocks of 128 x 128 as compressed-tensors has them, but for the
/// name of their scales and, most often, their type.
fn fine_grained<'a>(module: &str, tensors: &BTreeMap<&str, Located<'a>>) -> Option<Coded<'a>> {
    let find = |part: &str| {
        let part = if part == "weight_scale" { SCALE_INVERSE } else { part };
        tensors.get(format!("{module}.{part}").as_str()).copied()
    };
    let ((_, codes), (_, scale)) = (find("weight")?, find("weight_scale")?);
    let [rows, columns] = codes.shape[..] else { return None };
    coded(module, tensors, ct::Scheme::Fp8Block, Matrix { rows, columns }, scale.dtype, find)
}

/// A weight of that scheme, if the tensors that `find` finds are all of it.
fn coded<'a>(
    module: &str,
    tensors: &BTreeMap<&str, Located<'a>>,
    scheme: ct::Scheme,
    matrix: Matrix,
    scale: Dtype,
    find: impl Fn(&str) -> Option<Located<'a>>,
) -> Option<Coded<'a>> {
    if !sensible(matrix.rows) || !sensible(matrix.columns) {
        return None;
    }
    // Block scales have no type of the model's; what they decode to does not depend on it.
    let dtype = if matches!(scale, Dtype::F16 | Dtype::F32) { scale } else { Dtype::Bf16 };
    let coding = ct::coding(scheme, dtype, Method::Rtn).ok()?;
    let parts = matching(&*coding, matrix, find).filter(|parts| !has_more(module, tensors, parts))?;
    Some(Coded { name: format!("{module}.weight"), scheme: scheme.to_string(), matrix, coding, parts })
}

/// The width of integers that a configuration declares, where it declares one for all.
fn declared_bits(config: &serde_json::Value) -> Option<u8> {
    let groups = config.get("quantization_config")?.get("config_groups")?.as_object()?;
    let mut bits = groups.values().map(|group| group.get("weights")?.get("num_bits")?.as_u64());
    let first = bits.next()??;
    bits.all(|other| other == Some(first)).then(|| u8::try_from(first).ok()).flatten()
}

/// The width of packed integers and how many share a scale, from how many words and scales a row has. Widths other than
/// 4 and 8 are not known, and a row so short that it could be of either is what the configuration declares.
fn packing(words: usize, columns: usize, groups: usize, declared: Option<u8>) -> Option<(u8, Option<u32>)> {
    let bits = match (words == columns.div_ceil(8), words == columns.div_ceil(4)) {
        (true, false) => 4,
        (false, true) => 8,
        (true, true) => declared.filter(|bits| matches!(bits, 4 | 8))?,
        (false, false) => return None,
    };
    let group = (groups > 1).then_some(columns / groups.max(1));
    if group.is_some_and(|group| group * groups != columns) {
        return None;
    }
    Some((bits, group.map(u32::try_from).transpose().ok()?))
}

/// The weights that torchao flattened, by what the metadata says of them. Every shard says the same of all.
fn flattened<'a>(checkpoint: &Checkpoint, tensors: &BTreeMap<&str, Located<'a>>) -> Vec<Coded<'a>> {
    let described: BTreeMap<&str, &str> = checkpoint
        .shards
        .iter()
        .flat_map(|shard| &shard.header.metadata)
        .filter_map(|(name, text)| Some((name.strip_suffix(".weight")?, text.as_str())))
        .collect();
    let mut all = Vec::new();
    for (module, text) in described {
        let Ok(described) = serde_json::from_str::<Described>(text) else { continue };
        let find = |part: &str| tensors.get(format!("{module}._weight_{part}").as_str()).copied();
        let Some((_, codes)) = find("qdata") else { continue };
        let [rows, stored] = codes.shape[..] else { continue };
        let group = described.data.block_size.map(|[_, group]| group);
        let (scheme, columns) = match described.kind.as_str() {
            "Int8Tensor" => (ao::Scheme::Int8 { group: group.filter(|group| *group as usize != stored) }, stored),
            "Float8Tensor" => (ao::Scheme::Float8, stored),
            "IntxUnpackedToInt8Tensor" => {
                let group = group.filter(|group| *group as usize != stored);
                // Whether zero points are zero changes nothing about how they are read.
                (ao::Scheme::Intx { bits: described.data.bits(), group, zero: true }, stored)
            }
            "Int4Tensor" => (ao::Scheme::Int4 { group: group.unwrap_or(0) }, stored.saturating_mul(2)),
            _ => continue,
        };
        if !sensible(rows) || !sensible(columns) {
            continue;
        }
        let dtype = match described.data.dtype.map(|dtype| dtype.data).as_deref() {
            Some("float16") => Dtype::F16,
            Some("float32") => Dtype::F32,
            _ => Dtype::Bf16,
        };
        // Plain INT4 names the type of the activations; its scales have the model's own.
        let scale = find("scale").map(|(_, scale)| scale.dtype);
        let dtype = scale.filter(|_| matches!(scheme, ao::Scheme::Int4 { .. })).unwrap_or(dtype);
        let Ok(coding) = ao::coding(scheme, dtype, Method::Rtn) else { continue };
        let matrix = Matrix { rows, columns };
        let Some(parts) = matching(&*coding, matrix, find) else { continue };
        if !has_more(module, tensors, &parts) {
            all.push(Coded { name: format!("{module}.weight"), scheme: scheme.to_string(), matrix, coding, parts });
        }
    }
    all
}

/// What torchao's metadata says of a weight.
#[derive(Deserialize)]
struct Described {
    #[serde(rename = "_type")]
    kind: String,
    #[serde(rename = "_data", default)]
    data: Attributes,
}

#[derive(Default, Deserialize)]
struct Attributes {
    block_size: Option<[u32; 2]>,
    #[serde(alias = "activation_dtype")]
    dtype: Option<Named>,
    target_dtype: Option<Named>,
}

impl Attributes {
    /// The width of `torch.int4` and its like.
    fn bits(&self) -> u8 {
        let name = self.target_dtype.as_ref().and_then(|dtype| dtype.data.strip_prefix("int"));
        name.and_then(|bits| bits.parse().ok()).unwrap_or(8)
    }
}

#[derive(Deserialize)]
struct Named {
    #[serde(rename = "_data")]
    data: String,
}

/// The second number of `weight_shape`, if the first is as expected: packed words do not say how many codes they hold.
fn columns(shape: Option<Located<'_>>, rows: usize) -> Result<Option<usize>> {
    let Some((shard, entry)) = shape.filter(|(_, entry)| entry.dtype == Dtype::I64 && entry.shape == [2]) else {
        return Ok(None);
    };
    let mut bytes = [0; 16];
    shard.read(entry, 0, &mut bytes)?;
    let [first, second] =
        [0, 8].map(|at| bytes[at..at + 8].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte)));
    Ok(usize::try_from(second).ok().filter(|second| first == rows as u64 && sensible(*second)))
}

/// The stored tensors that `coding` would have written, if they are there with the right types and shapes.
fn matching<'a>(
    coding: &dyn Coding,
    matrix: Matrix,
    find: impl Fn(&str) -> Option<Located<'a>>,
) -> Option<Vec<(Part, Located<'a>)>> {
    let parts = coding.parts(matrix).ok()?;
    let found = parts.into_iter().map(|part| {
        let (shard, entry) = find(part.name)?;
        (entry.dtype == part.dtype && entry.shape == part.shape).then_some((part, (shard, entry)))
    });
    found.collect()
}

impl Rows for Coded<'_> {
    fn matrix(&self) -> Matrix {
        self.matrix
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        let (unit, columns) = (self.coding.unit(), self.matrix.columns);
        // Codes come in whole units of rows.
        let whole = rows.start / unit * unit..rows.end.next_multiple_of(unit).min(self.matrix.rows);
        let mut bytes = Vec::new();
        for (part, (shard, entry)) in &self.parts {
            bytes.push(part_of(part, shard, entry, &whole, self.matrix.rows)?);
        }
        let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        if whole == rows {
            self.coding.decode(columns, &slices, out);
        } else {
            spare.rows.resize(whole.len() * columns, 0.0);
            self.coding.decode(columns, &slices, &mut spare.rows);
            out.copy_from_slice(&spare.rows[(rows.start - whole.start) * columns..][..rows.len() * columns]);
        }
        Ok(())
    }

    fn stored(&self) -> u64 {
        self.parts.iter().map(|(_, (_, entry))| entry.bytes()).sum()
    }

    fn unit(&self) -> usize {
        self.coding.unit()
    }
}

/// The bytes of a part that belong to these rows.
fn part_of(part: &Part, shard: &Shard, entry: &Entry, rows: &Range<usize>, all: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; part_bytes(part, rows.len())];
    match part.placing {
        Placing::Rows { rows: unit, bytes: size } => {
            shard.read(entry, (rows.start / unit * size) as u64, &mut bytes)?;
        }
        Placing::Columns { lines, bytes: size } => {
            let run = rows.len() * size;
            for line in 0..lines {
                let from = ((line * all + rows.start) * size) as u64;
                shard.read(entry, from, &mut bytes[line * run..(line + 1) * run])?;
            }
        }
        Placing::Once { .. } => shard.read(entry, 0, &mut bytes)?,
    }
    Ok(bytes)
}

impl Coded<'_> {
    /// An error that names the weight.
    pub fn refuse(&self, reason: impl Into<String>) -> Error {
        Error::Weight { name: self.name.clone(), reason: reason.into(), hint: None }
    }
}

#[cfg(test)]
mod tests;
