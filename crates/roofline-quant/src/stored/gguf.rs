//! Tensors of a GGUF file under the names of a plain checkpoint, their rows in the order that it has.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use super::{Coded, Kind, Located, StoredTensor};
use crate::{
    Checkpoint, Dtype, Error, Result,
    checkpoint::Shard,
    coding::Matrix,
    ggml::{self, Type},
    gguf::{
        self,
        family::{Conversion, Family, Line, Share},
        model::Shape,
        source::Source,
    },
    kernel_form::{CodesMut, KernelForm, check},
    rows::{Added, Heads, Ordered, Pairs, Rows, Spare, Stacked, Transposed},
    safetensors::Entry,
};

/// Blocks of one tensor, read row by row.
#[derive(Clone)]
struct Blocks<'a> {
    shard: &'a Shard,
    entry: &'a Entry,
    ty: Type,
    matrix: Matrix,
    scale: f32,
}

impl Rows for Blocks<'_> {
    fn matrix(&self) -> Matrix {
        self.matrix
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        let row = self.ty.bytes(self.matrix.columns as u64).unwrap_or(0);
        spare.bytes.resize(rows.len() * row as usize, 0);
        self.shard.read(self.entry, rows.start as u64 * row, &mut spare.bytes)?;
        if ggml::decode(self.ty, &spare.bytes, self.scale, out) {
            return Ok(());
        }
        let reason = format!("is of the type {}, which is only known by name", self.ty);
        Err(Error::Weight { name: self.entry.name.clone(), reason, hint: None })
    }

    fn stored(&self) -> u64 {
        self.entry.bytes()
    }

    /// The types whose blocks kernels read, and those whose codes and scales only lie together.
    fn kernel_form(&self) -> Option<KernelForm> {
        self.ty.bytes(self.matrix.columns as u64)?;
        KernelForm::new(self.ty.in_kernels()?, self.matrix, false)
    }

    fn read_codes(&self, rows: Range<usize>, into: CodesMut<'_>) -> Result<()> {
        let form = check(self.kernel_form(), &rows, &into)?;
        let row = form.codes + form.scales;
        let from = (rows.start * row) as u64;
        if form.scales == 0 {
            return self.shard.read(self.entry, from, into.codes);
        }
        let mut bytes = vec![0; rows.len() * row];
        self.shard.read(self.entry, from, &mut bytes)?;
        ggml::apart(self.ty, &bytes, into.codes, into.scales);
        Ok(())
    }

    fn tensor_part(&self) -> Result<Vec<u8>> {
        Ok(if self.ty == Type::Nvfp4 { self.scale.to_le_bytes().to_vec() } else { Vec::new() })
    }
}

/// A GGUF file with what is found in it by name.
struct Reader<'a> {
    tensors: BTreeMap<&'a str, (&'a gguf::Tensor, Located<'a>)>,
    shape: Shape,
    taken: BTreeSet<&'a str>,
    all: BTreeMap<String, StoredTensor<'a>>,
}

/// Everything in the file, in the order of names.
pub(super) fn weights<'a>(checkpoint: &'a Checkpoint, source: &'a Source) -> Result<Vec<StoredTensor<'a>>> {
    let Some(family) = source.family else {
        let arch = source.header.get("general.architecture").and_then(gguf::Value::as_str).unwrap_or("none");
        return Err(Error::unsupported(
            format!("the architecture `{arch}` of the GGUF file has no names outside of GGUF here"),
            "make another GGUF file of it with `⟨as gguf⟩`",
        ));
    };
    let shard = checkpoint.shards.first().ok_or_else(|| Error::unsupported("a GGUF file without a file", ""))?;
    let pairs = source.header.tensors.iter().zip(&shard.header.tensors);
    let tensors = pairs.map(|(tensor, entry)| (tensor.name.as_str(), (tensor, (shard, entry)))).collect();
    let mut reader = Reader { tensors, shape: source.shape(), taken: BTreeSet::new(), all: BTreeMap::new() };
    let layers = source.whole("block_count").unwrap_or(0);
    reader.lines(&family.whole.iter().collect::<Vec<_>>(), "", "")?;
    let groups = groups(family, &source.header);
    for layer in 0..layers.min(10_000) {
        reader.lines(&groups, &format!("{}{layer}.", family.layers), &format!("blk.{layer}."))?;
    }
    // Scales go with what they scale, and what stretches a context is in the configuration.
    let computed =
        |name: &str| name.starts_with("rope_f") || matches!(name.rsplit('.').next(), Some("scale" | "input_scale"));
    match reader.tensors.keys().find(|name| !reader.taken.contains(*name) && !computed(name)) {
        None => Ok(reader.all.into_values().collect()),
        Some(name) => Err(Error::Weight {
            name: (*name).to_owned(),
            reason: format!("is not known in a model of the family {}", family.arch),
            hint: Some("make another GGUF file of it with `⟨as gguf⟩`".to_owned()),
        }),
    }
}

/// That something is wrong with a tensor.
fn wrong(name: &str, reason: &str) -> Error {
    Error::Weight { name: name.to_owned(), reason: reason.to_owned(), hint: None }
}

/// The rows of one tensor of the file, as they lie there.
pub(crate) fn rows<'a>(source: &'a Source, shard: &'a Shard, at: usize) -> Result<Box<dyn Rows + 'a>> {
    let (tensor, entry) = (&source.header.tensors[at], &shard.header.tensors[at]);
    let pairs = source.header.tensors.iter().zip(&shard.header.tensors);
    let tensors = pairs.map(|(tensor, entry)| (tensor.name.as_str(), (tensor, (shard, entry)))).collect();
    let reader = Reader { tensors, shape: source.shape(), taken: BTreeSet::new(), all: BTreeMap::new() };
    Ok(Box::new(reader.blocks(tensor, (shard, entry))?))
}

/// The lines of a layer. Of two ways to call a tensor, the one all of whose tensors are there.
fn groups(family: &'static Family, header: &gguf::Header) -> Vec<&'static Line> {
    let there = |line: &Line| header.tensors.iter().any(|tensor| tensor.name.contains(&format!(".{}.", line.gguf)));
    let mut lines: Vec<&'static Line> = Vec::new();
    for group in family.layer {
        for line in *group {
            let rival = lines.iter().position(|other| other.gguf == line.gguf);
            match rival {
                Some(at) if group.iter().all(there) => lines[at] = line,
                Some(_) => {}
                None => lines.push(line),
            }
        }
    }
    lines
}

/// What a line of the table becomes: its rows, its shape, and where it lies.
type RearrangedRows<'a> = (Box<dyn Rows + 'a>, Vec<usize>, Vec<Located<'a>>);

impl<'a> Reader<'a> {
    fn lines(&mut self, lines: &[&'static Line], hf: &str, gguf: &str) -> Result<()> {
        for line in lines {
            if line.gguf.contains('.') {
                self.line(line, format!("{hf}{}", line.hf), &format!("{gguf}{}", line.gguf))?;
                continue;
            }
            for kind in ["weight", "bias"] {
                self.line(line, format!("{hf}{}.{kind}", line.hf), &format!("{gguf}{}.{kind}", line.gguf))?;
            }
        }
        Ok(())
    }

    /// Takes the tensor of one line, with its partner where two are one on the other side.
    fn line(&mut self, line: &Line, hf: String, name: &str) -> Result<()> {
        let Some((tensor, located)) = self.tensors.get(name).copied() else { return Ok(()) };
        self.taken.insert(tensor.name.as_str());
        let Shape { heads, kv_heads, head_dim, experts, .. } = self.shape;
        let blocks = self.blocks(tensor, located)?;
        let dims: Vec<usize> = tensor.dims.iter().rev().map(|dim| *dim as usize).collect();
        // A vector is one row, and its numbers are rows while they are put in order.
        let vector = dims.len() == 1;
        let all = if vector { dims[0] } else { blocks.matrix.rows };
        let upright = |blocks: Blocks<'a>| -> Box<dyn Rows + 'a> {
            if vector { Box::new(Transposed(blocks)) } else { Box::new(blocks) }
        };
        let level = |rows: Box<dyn Rows + 'a>| if vector { Box::new(Transposed(rows)) } else { rows };
        let (rows, shape, parts): RearrangedRows<'a> = match line.conversion {
            // As it lies there, where it can be.
            Conversion::Same if matches!(tensor.ty, Type::F32 | Type::F16 | Type::Bf16) => {
                let kind = Kind::Plain(located);
                self.all.insert(hf.clone(), StoredTensor { name: hf, shape: dims, dtype: located.1.dtype, kind });
                return Ok(());
            }
            Conversion::Same | Conversion::Biases(Share::Whole) => (Box::new(blocks), dims, vec![located]),
            Conversion::PlusOne => (Box::new(Added::new(blocks, -1.0)), dims, vec![located]),
            Conversion::QueryPairs | Conversion::KeyPairs => {
                let heads = if line.conversion == Conversion::QueryPairs { heads } else { kv_heads };
                if !all.is_multiple_of(2 * heads) {
                    return Err(wrong(name, "has rows that are no whole heads"));
                }
                (level(Box::new(Heads::new(upright(blocks), all / heads, Pairs::Parted))), dims, vec![located])
            }
            Conversion::Fused => {
                let order = gguf::joined(heads, kv_heads.min(heads));
                if order.len() * head_dim != all {
                    return Err(wrong(name, "has rows that are no whole heads"));
                }
                (level(Box::new(Ordered::new(upright(blocks), head_dim, order))), dims, vec![located])
            }
            Conversion::Expert => {
                let each = self.each(name, &blocks)?;
                for expert in 0..experts {
                    let name = hf.replacen('*', &expert.to_string(), 1);
                    let rows = Box::new(Ordered::new(blocks.clone(), each, vec![expert]));
                    self.put(name, vec![each, blocks.matrix.columns], tensor.ty, rows, vec![located]);
                }
                return Ok(());
            }
            Conversion::Stack(which @ (Share::Whole | Share::First | Share::Even)) => {
                self.stack(name, &blocks, located, which)?
            }
            Conversion::Biases(Share::Even) => self.biases(name, blocks, located)?,
            Conversion::LatentKey => self.unfolding(name, &blocks, located)?,
            // Taken with their partners.
            Conversion::Stack(_) | Conversion::Biases(_) | Conversion::LatentValue => return Ok(()),
        };
        self.put(hf, shape, tensor.ty, rows, parts);
        Ok(())
    }

    /// Rows of each expert of a stack.
    fn each(&self, name: &str, blocks: &Blocks<'a>) -> Result<usize> {
        let (all, experts) = (blocks.matrix.rows, self.shape.experts);
        let each = all.checked_div(experts).filter(|each| each * experts == all);
        each.ok_or_else(|| wrong(name, "is no stack of as many experts as the metadata say"))
    }

    /// The tensor that is one with `name` on the other side: called the same, with `other` for `own`.
    fn partner(&mut self, name: &str, own: &str, other: &str) -> Result<(Blocks<'a>, Located<'a>)> {
        let found = self.tensors.get(name.replacen(own, other, 1).as_str()).copied();
        let (tensor, located) = found.ok_or_else(|| wrong(name, &format!("has no `{other}` beside it")))?;
        self.taken.insert(tensor.name.as_str());
        Ok((self.blocks(tensor, located)?, located))
    }

    /// A stack of transposed experts: gates and ways up together, or ways down alone.
    fn stack(
        &mut self,
        name: &str,
        blocks: &Blocks<'a>,
        located: Located<'a>,
        which: Share,
    ) -> Result<RearrangedRows<'a>> {
        let (each, experts) = (self.each(name, blocks)?, self.shape.experts);
        let second = if which == Share::Whole { None } else { Some(self.partner(name, "ffn_gate", "ffn_up")?) };
        if second.as_ref().is_some_and(|(other, _)| other.matrix != blocks.matrix) {
            return Err(wrong(name, "has another shape than its partner"));
        }
        let parts: Vec<Located<'a>> = [located].into_iter().chain(second.as_ref().map(|(_, place)| *place)).collect();
        let outputs = each * parts.len();
        let one = |expert: usize| -> Box<dyn Rows + 'a> {
            let of = |blocks: &Blocks<'a>| -> Box<dyn Rows + 'a> {
                Box::new(Ordered::new(blocks.clone(), each, vec![expert]))
            };
            let both = [blocks].into_iter().chain(second.as_ref().map(|(other, _)| other)).map(of);
            let both = Stacked::of(both.collect());
            if which == Share::Even {
                let order = (0..outputs).map(|at| at % 2 * each + at / 2).collect();
                return Box::new(Transposed(Ordered::new(both, 1, order)));
            }
            Box::new(Transposed(both))
        };
        let rows = Stacked::of((0..experts).map(one).collect());
        Ok((rows, vec![experts, blocks.matrix.columns, outputs], parts))
    }

    /// The biases of gates and ways up, in turns.
    fn biases(&mut self, name: &str, blocks: Blocks<'a>, located: Located<'a>) -> Result<RearrangedRows<'a>> {
        let (other, place) = self.partner(name, "ffn_gate", "ffn_up")?;
        if other.matrix != blocks.matrix {
            return Err(wrong(name, "has another shape than its partner"));
        }
        let Matrix { rows, columns } = blocks.matrix;
        let order = (0..2 * columns).map(|at| at % 2 * columns + at / 2).collect();
        let both = Stacked::of(vec![Box::new(Transposed(blocks)), Box::new(Transposed(other))]);
        Ok((Box::new(Transposed(Ordered::new(both, 1, order))), vec![rows, 2 * columns], vec![located, place]))
    }

    /// The matrix that unfolds keys and values: of each head the keys, transposed back, and the values.
    fn unfolding(&mut self, name: &str, keys: &Blocks<'a>, located: Located<'a>) -> Result<RearrangedRows<'a>> {
        let (values, place) = self.partner(name, "attn_k_b", "attn_v_b")?;
        let (heads, rank) = (self.shape.heads, values.matrix.columns);
        let said = self.shape.latent.ok_or_else(|| wrong(name, "is unfolded, and the metadata do not say how"))?;
        let (key, value) = said;
        let keyed = keys.matrix == Matrix { rows: heads * rank, columns: key };
        if !keyed || values.matrix.rows != heads * value {
            return Err(wrong(name, "has another shape than the metadata say"));
        }
        let one = |head: usize| -> Box<dyn Rows + 'a> {
            let keys = Transposed(Ordered::new(keys.clone(), rank, vec![head]));
            Stacked::of(vec![Box::new(keys), Box::new(Ordered::new(values.clone(), value, vec![head]))])
        };
        let rows = Stacked::of((0..heads).map(one).collect());
        Ok((rows, vec![heads * (key + value), rank], vec![located, place]))
    }

    fn put(&mut self, name: String, shape: Vec<usize>, ty: Type, rows: Box<dyn Rows + 'a>, parts: Vec<Located<'a>>) {
        let (dtype, plain) = match ty {
            Type::F32 => (Dtype::F32, true),
            Type::F16 => (Dtype::F16, true),
            Type::Bf16 => (Dtype::Bf16, true),
            _ => (Dtype::Bf16, false),
        };
        let kind = if plain {
            Kind::Rearranged(rows, parts)
        } else {
            Kind::Coded(Coded { scheme: ty.name().to_owned(), rows, parts })
        };
        self.all.insert(name.clone(), StoredTensor { name, shape, dtype, kind });
    }

    fn blocks(&self, tensor: &'a gguf::Tensor, (shard, entry): Located<'a>) -> Result<Blocks<'a>> {
        let wrong = |reason: String| Error::Weight { name: tensor.name.clone(), reason, hint: None };
        if !ggml::decode(tensor.ty, &[], 1.0, &mut []) {
            return Err(wrong(format!("is of the type {}, which is only known by name", tensor.ty)));
        }
        let (columns, weights) = (tensor.columns(), tensor.weights().unwrap_or(0));
        let sizes = usize::try_from(columns).ok().zip(usize::try_from(weights / columns.max(1)).ok());
        let (columns, rows) = sizes
            .filter(|(columns, _)| *columns <= 1 << 24)
            .ok_or_else(|| wrong(format!("has the shape {:?}, too large to be read row by row", tensor.dims)))?;
        let scale = match tensor.name.strip_suffix(".weight").filter(|_| tensor.ty == Type::Nvfp4) {
            Some(stem) => match self.tensors.get(format!("{stem}.scale").as_str()) {
                Some((one, (shard, entry))) if one.ty == Type::F32 && one.weights() == Some(1) => {
                    let mut bytes = [0; 4];
                    shard.read(entry, 0, &mut bytes)?;
                    f32::from_le_bytes(bytes)
                }
                Some(_) => return Err(wrong("has several scales, one for each expert".to_owned())),
                None => 1.0,
            },
            None => 1.0,
        };
        Ok(Blocks { shard, entry, ty: tensor.ty, matrix: Matrix { rows, columns }, scale })
    }
}
