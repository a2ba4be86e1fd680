//! Weights as a checkpoint stores them: plain numbers, or codes with their scales in tensors of their own.
//!
//! What a weight is coded as follows from the tensors that are there - their names, types and shapes - and is believed
//! only if they are exactly those the coding would have written.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use serde::Deserialize;

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
    /// The type of its scales, which is most often the model's own.
    pub dtype: Dtype,
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

    /// Everything in a checkpoint, in the order of names.
    pub fn all(checkpoint: &'a Checkpoint) -> Result<Vec<Self>> {
        let tensors = checkpoint.tensors();
        let mut taken = BTreeSet::new();
        let mut all = BTreeMap::new();
        for name in tensors.keys() {
            let Some(module) = name.strip_suffix(".weight_scale") else { continue };
            if let Some(coded) = compressed(module, &tensors)? {
                taken.extend(coded.parts.iter().map(|(_, (_, entry))| entry.name.as_str()));
                all.insert(coded.name.clone(), Self::Coded(coded));
            }
        }
        for (name, coded) in flattened(checkpoint, &tensors) {
            taken.extend(coded.parts.iter().map(|(_, (_, entry))| entry.name.as_str()));
            all.insert(name, Self::Coded(coded));
        }
        for (name, located) in &tensors {
            if !taken.contains(name) {
                all.insert((*name).to_owned(), Self::Plain(*located));
            }
        }
        Ok(all.into_values().collect())
    }
}

/// The weight of a module as compressed-tensors stores it, if its tensors are those of a known scheme.
fn compressed<'a>(module: &str, tensors: &BTreeMap<&str, Located<'a>>) -> Result<Option<Coded<'a>>> {
    let find = |part: &str| tensors.get(format!("{module}.{part}").as_str()).copied();
    let (packed, weight) = (find("weight_packed"), find("weight"));
    let Some((_, scale)) = find("weight_scale") else { return Ok(None) };
    let Some((_, codes)) = packed.or(weight) else { return Ok(None) };
    let ([rows, stored], [_, groups]) = (&codes.shape[..], &scale.shape[..]) else { return Ok(None) };
    let (rows, stored, groups) = (*rows, *stored, *groups);
    let (scheme, columns) = match (packed.is_some(), codes.dtype, scale.dtype) {
        (true, Dtype::I32, _) => {
            let Some(columns) = columns(find("weight_shape"), rows)? else { return Ok(None) };
            let bits = if stored == columns.div_ceil(8) { 4 } else { 8 };
            let group = (groups > 1).then(|| (columns / groups) as u32);
            (ct::Scheme::Int { bits, group, zero: find("weight_zero_point").is_some() }, columns)
        }
        (true, Dtype::U8, Dtype::F8E4M3) => (ct::Scheme::Nvfp4, 2 * stored),
        (true, Dtype::U8, Dtype::U8) => (ct::Scheme::Mxfp4, 2 * stored),
        (false, Dtype::I8, _) => (ct::Scheme::Int8Channel, stored),
        (false, Dtype::F8E4M3, Dtype::U8) => (ct::Scheme::Mxfp8, stored),
        (false, Dtype::F8E4M3, _) if scale.shape == [rows, 1] => (ct::Scheme::Fp8Channel, stored),
        (false, Dtype::F8E4M3, _) => (ct::Scheme::Fp8Block, stored),
        _ => return Ok(None),
    };
    // Block scales have no type of the model's; what they decode to does not depend on it.
    let dtype = if matches!(scale.dtype, Dtype::F16 | Dtype::F32) { scale.dtype } else { Dtype::Bf16 };
    let coding = ct::coding(scheme, dtype, Method::Rtn)?;
    let matrix = Matrix { rows, columns };
    let Some(parts) = matching(&*coding, matrix, find) else { return Ok(None) };
    Ok(Some(Coded { name: format!("{module}.weight"), scheme: scheme.to_string(), matrix, dtype, coding, parts }))
}

/// The weights that torchao flattened, by what the metadata says of them. Every shard says the same of all.
fn flattened<'a>(checkpoint: &Checkpoint, tensors: &BTreeMap<&str, Located<'a>>) -> Vec<(String, Coded<'a>)> {
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
        let dtype = match described.data.dtype.map(|dtype| dtype.data).as_deref() {
            Some("float16") => Dtype::F16,
            Some("float32") => Dtype::F32,
            _ => Dtype::Bf16,
        };
        let Ok(coding) = ao::coding(scheme, dtype, Method::Rtn) else { continue };
        let matrix = Matrix { rows, columns };
        let Some(parts) = matching(&*coding, matrix, find) else { continue };
        let name = format!("{module}.weight");
        all.push((name.clone(), Coded { name, scheme: scheme.to_string(), matrix, dtype, coding, parts }));
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
    Ok((first == rows as u64).then_some(second as usize))
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
