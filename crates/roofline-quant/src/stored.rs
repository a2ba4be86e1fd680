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
mod tests {
    use super::*;
    use crate::{
        checkpoint::{SINGLE, tests::write},
        scratch::Scratch,
    };

    type Tensors<'a> = Vec<(&'a str, Dtype, &'a [usize], Vec<u8>)>;

    fn open(scratch: &Scratch, config: &str, tensors: &Tensors<'_>) -> Checkpoint {
        std::fs::write(scratch.path().join("config.json"), config).unwrap();
        write(&scratch.path().join(SINGLE), tensors);
        Checkpoint::open(scratch.path()).unwrap()
    }

    /// A matrix of 4 rows of packed integers whose `weight_shape` is as given.
    fn packed<'a>(words: &'a [usize; 2], shape: [u64; 2], scales: &'a [usize; 2]) -> Tensors<'a> {
        let bytes = |shape: &[usize; 2], size: usize| vec![0; shape.iter().product::<usize>() * size];
        let shape_bytes = shape.iter().flat_map(|dim| dim.to_le_bytes()).collect();
        vec![
            ("m.weight_packed", Dtype::I32, words, bytes(words, 4)),
            ("m.weight_scale", Dtype::Bf16, scales, bytes(scales, 2)),
            ("m.weight_shape", Dtype::I64, &[2], shape_bytes),
        ]
    }

    #[test]
    fn packed_words_must_be_as_many_as_the_shape_says() {
        let scratch = Scratch::new("packed");
        for (words, shape, scales, scheme) in [
            ([4, 16], [4, 128], [4, 4], Some("INT4 in groups of 32")),
            ([4, 16], [4, 121], [4, 1], Some("INT4 per channel")),
            ([4, 32], [4, 128], [4, 1], Some("INT8 per channel")),
            // Three bits take other words, two columns could be either, groups must be whole.
            ([4, 12], [4, 128], [4, 1], None),
            ([4, 1], [4, 2], [4, 1], None),
            ([4, 16], [4, 128], [4, 3], None),
            ([4, 16], [5, 128], [4, 1], None),
            // Eight times this wraps to 64.
            ([4, 1], [4, (1 << 61) + 8], [4, 1], None),
            ([4, 1], [4, u64::MAX], [4, 1], None),
            ([4, 16], [4, 0], [4, 1], None),
            ([0, 1 << 61], [0, 1 << 63], [0, 1], None),
            ([0, 1 << 60], [0, 1 << 63], [0, 1], None),
        ] {
            let checkpoint = open(&scratch, "{}", &packed(&words, shape, &scales));
            let (all, unknown) = Stored::survey(&checkpoint).unwrap();
            if let Some(scheme) = scheme {
                assert!(unknown.is_empty());
                assert!(matches!(&all[..], [Stored::Coded(coded)] if coded.scheme == scheme), "{shape:?}");
            } else {
                assert_eq!((all.len(), unknown.len()), (3, 3), "{shape:?}");
                assert!(Stored::all(&checkpoint).is_err());
            }
        }
    }

    #[test]
    fn parts_that_a_scheme_does_not_have_are_not_ignored() {
        let scratch = Scratch::new("more");
        let plain = packed(&[4, 16], [4, 128], &[4, 1]);
        for (name, dtype, shape) in [
            ("m.weight_g_idx", Dtype::I32, &[128usize][..]),
            ("m.weight_global_scale", Dtype::F32, &[1]),
            ("m.weight", Dtype::Bf16, &[4]),
        ] {
            let mut tensors = plain.clone();
            tensors.push((name, dtype, shape, vec![0; shape[0] * dtype.bytes()]));
            let said = Stored::all(&open(&scratch, "{}", &tensors)).map(|_| ()).unwrap_err().to_string();
            assert!(said.starts_with("weight `m.weight`: is in codes of a kind"), "{name}: {said}");
        }
        // Neither another module nor what scales activations is part of it.
        let mut tensors = plain;
        tensors.push(("m.weights.weight", Dtype::Bf16, &[1], vec![0; 2]));
        tensors.push(("m.input_global_scale", Dtype::F32, &[1], vec![0; 4]));
        assert_eq!(Stored::all(&open(&scratch, "{}", &tensors)).unwrap().len(), 3);
        // INT8 bytes with zero points.
        let bytes: Tensors<'_> = vec![
            ("m.weight", Dtype::I8, &[4, 8], vec![0; 32]),
            ("m.weight_scale", Dtype::Bf16, &[4, 1], vec![0; 8]),
            ("m.weight_zero_point", Dtype::I8, &[4, 1], vec![0; 4]),
        ];
        let checkpoint = open(&scratch, "{}", &bytes);
        assert_eq!(Stored::survey(&checkpoint).unwrap().1.len(), 2, "the scale and the zero point");
        assert_eq!(Stored::all(&open(&scratch, "{}", &bytes[..2].to_vec())).unwrap().len(), 1);
    }

    #[test]
    fn codes_are_known_by_their_names_or_where_the_configuration_says_there_are_any() {
        let scratch = Scratch::new("codes");
        let declared = r#"{"quantization_config": {"quant_method": "x"}}"#;
        for (name, dtype, shape, undeclared, known) in [
            ("m.qweight", Dtype::I32, &[2usize, 2][..], false, false),
            ("m.weight.absmax", Dtype::F32, &[2], false, false),
            ("m.weight", Dtype::F8E4M3, &[2, 2], true, false),
            ("m.weight", Dtype::U32, &[2, 2], true, false),
            ("m.experts.down_proj_blocks", Dtype::U8, &[2, 2, 2, 2], true, false),
            ("m.position_ids", Dtype::I64, &[1, 8], true, true),
            ("m.mask", Dtype::Bool, &[2, 2], true, true),
            // Weight norm's, of models that speak.
            ("m.weight_g", Dtype::F32, &[2, 1], true, true),
            ("m.weight", Dtype::Bf16, &[2, 2], true, true),
        ] {
            let tensors = vec![(name, dtype, shape, vec![0; shape.iter().product::<usize>() * dtype.bytes()])];
            assert_eq!(Stored::all(&open(&scratch, "{}", &tensors)).is_ok(), undeclared, "{name}");
            assert_eq!(Stored::all(&open(&scratch, declared, &tensors)).is_ok(), known, "{name}");
        }
    }

    #[test]
    fn fine_grained_fp8_is_decoded() {
        let scratch = Scratch::new("fine");
        // 0x38 is 1, 0xc0 is -2: a row of each in every block of 128 x 128, cut at 130 x 140.
        let codes: Vec<u8> = (0..130 * 140).map(|at| if at / 140 % 2 == 0 { 0x38 } else { 0xc0 }).collect();
        let scales = [0.5f32, 3.0, 0.25, 7.0].iter().flat_map(|scale| scale.to_le_bytes()).collect::<Vec<_>>();
        let tensors: Tensors<'_> =
            vec![("m.weight", Dtype::F8E4M3, &[130, 140], codes), ("m.weight_scale_inv", Dtype::F32, &[2, 2], scales)];
        let config = |side: u32| format!(r#"{{"quantization_config": {{"weight_block_size": [{side}, {side}]}}}}"#);
        let checkpoint = open(&scratch, &config(128), &tensors);
        let all = Stored::all(&checkpoint).unwrap();
        let [Stored::Coded(weight)] = &all[..] else { panic!("{}", all.len()) };
        assert_eq!((weight.name.as_str(), weight.scheme.as_str()), ("m.weight", "FP8 in blocks of 128 x 128"));
        let mut out = vec![0.0; 3 * 140];
        weight.read(127..130, &mut Spare::default(), &mut out).unwrap();
        // Row 127 is of -2 in the upper blocks, 128 of 1 and 129 of -2 in the lower.
        assert_eq!([out[0], out[127], out[128], out[139]], [-1.0, -1.0, -6.0, -6.0]);
        assert_eq!([out[140], out[140 + 128], out[280], out[280 + 139]], [0.25, 7.0, -0.5, -14.0]);
        // Blocks of 100 x 100 have as many scales, and other places.
        assert!(Stored::all(&open(&scratch, &config(100), &tensors)).is_err());
    }
}
