//! The description of a CUDA kernel, in TOML: where its text is, what it computes, how it is started.
//!
//! ```toml
//! source = "gemv_bf16.cu"              # beside this file
//! entry = "gemv_bf16"                  # extern "C" __global__
//! op = "gemv"                          # gemv, gemm or attention
//! precision = "bf16"
//! n = [4096, 14336]                    # a number, a list, or a range such as "1024..8192"
//! k = 4096
//! block = 256                          # or three of them
//! grid = "ceil_div(n, 8)"
//! arguments = ["x", "w", "y", "n", "k"]
//! ```

mod fields;

use std::path::{Path, PathBuf};

use roofline_core::{
    Dim, Error as Core, Graph,
    op::{Attention, Cache, Linear},
};
use toml::Table;

use self::fields::{FIELDS, Fields, is_identifier};
use super::{
    cuda_kernel::{Argument, CudaKernel},
    expression::evaluate,
    operands::Operands,
};
use crate::{Error, Result};

/// Longest manifest.
const LONGEST: usize = 64 * 1024;
/// Threads of a block, and blocks of a grid, that CUDA allows in each dimension (Programming Guide, table of technical
/// specifications per compute capability).
const BLOCK: [u64; 3] = [1024, 1024, 64];
const GRID: [u64; 3] = [(1 << 31) - 1, 65_535, 65_535];
/// Threads of a block in all.
const THREADS: u64 = 1024;
/// More shared memory than any block has.
const SHARED: u64 = 1 << 20;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A matrix times a vector.
    Gemv,
    /// A matrix times several.
    Gemm,
    /// Attention over a cache.
    Attention,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Gemv, Self::Gemm, Self::Attention];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gemv => "gemv",
            Self::Gemm => "gemm",
            Self::Attention => "attention",
        }
    }

    /// Its dimensions, and what each is where it is left out.
    const fn dims(self) -> &'static [(&'static str, Option<Default>)] {
        match self {
            Self::Gemv => &[("n", None), ("k", None)],
            Self::Gemm => &[("m", None), ("n", None), ("k", None)],
            Self::Attention => &[
                ("heads", None),
                ("head_dim", None),
                ("context", None),
                ("batch", Some(Default::One)),
                ("kv_heads", Some(Default::Heads)),
                ("queries", Some(Default::One)),
            ],
        }
    }

    /// Arrays that it may have at any precision.
    const fn arrays(self) -> &'static [&'static str] {
        match self {
            Self::Gemv | Self::Gemm => {
                &["x", "x_scales", "x_zeros", "x_tensor", "w", "w_scales", "w_zeros", "w_tensor"]
            }
            Self::Attention => &["q", "k", "k_scales", "k_zeros", "k_tensor", "v", "v_scales", "v_zeros", "v_tensor"],
        }
    }
}

/// What a dimension is that is left out.
#[derive(Clone, Copy)]
enum Default {
    One,
    Heads,
}

/// The dimensions of one measurement, by their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape(Vec<(&'static str, u64)>);

impl Shape {
    fn dim(&self, name: &'static str) -> Result<Dim> {
        let value = self.0.iter().find(|(known, _)| *known == name).map_or(1, |(_, value)| *value);
        Ok(Dim::new(name, value)?)
    }

    /// The names and their values, for an expression.
    fn names(&self) -> Vec<(&str, u64)> {
        self.0.iter().map(|(name, value)| (*name, *value)).collect()
    }
}

/// A description that was read and makes sense by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Where it was read.
    pub path: PathBuf,
    /// What the kernel is called in answers.
    pub name: String,
    /// The file with the program, relative to the manifest.
    pub source: PathBuf,
    /// What is computed.
    pub kind: Kind,
    /// The precision, as it was written.
    pub precision: String,
    /// Whether every query sees every key.
    full: bool,
    shapes: Vec<Shape>,
    entry: String,
    arguments: Vec<String>,
    block: Vec<String>,
    grid: Vec<String>,
    shared: String,
    defines: Vec<(String, String)>,
}

impl Manifest {
    /// Reads `text`, which was found at `path`.
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let refuse =
            |reason: String, hint: &str| Error::Manifest { path: path.to_owned(), reason, hint: hint.to_owned() };
        if text.len() > LONGEST {
            let reason = format!("{} bytes are too long for a manifest", text.len());
            return Err(refuse(reason, &format!("{LONGEST} at most")));
        }
        let table: Table = toml::from_str(text).map_err(|error| {
            let line =
                error.span().and_then(|span| text.get(..span.start)).map(|before| before.matches('\n').count() + 1);
            let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            refuse(format!("{place}{}", error.message()), "it is TOML")
        })?;
        let fields = Fields { table: &table, path };
        if let Some(unknown) = table.keys().find(|name| !FIELDS.contains(&name.as_str())) {
            let short: String = unknown.chars().take(80).collect();
            let reason = Core::unknown("field", &short, FIELDS, "").to_string();
            return Err(refuse(reason, &format!("fields: {}", FIELDS.join(", "))));
        }
        let op = fields.text("op")?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == op);
        let kind = kind.ok_or_else(|| fields.refused("op", "it is gemv, gemm or attention"))?;
        let entry = fields.text("entry")?;
        if !is_identifier(&entry) {
            return Err(fields.refused("entry", "it is the name of a function in C"));
        }
        let source = PathBuf::from(fields.text("source")?);
        let stray = FIELDS[5..14]
            .iter()
            .find(|name| table.contains_key(**name) && !kind.dims().iter().any(|(known, _)| known == *name));
        if let Some(stray) = stray {
            let dims: Vec<&str> = kind.dims().iter().map(|(name, _)| *name).collect();
            return Err(fields.refused(stray, &format!("{} has the dimensions {}", kind.name(), dims.join(", "))));
        }
        if kind != Kind::Attention && table.contains_key("causal") {
            return Err(fields.refused("causal", "only attention has a mask"));
        }
        let manifest = Self {
            path: path.to_owned(),
            name: fields.optional("name")?.unwrap_or_else(|| entry.clone()),
            source,
            kind,
            precision: fields.text("precision")?,
            full: !fields.truth("causal", true)?,
            shapes: fields.shapes(kind)?,
            entry,
            arguments: fields.arguments(kind)?,
            block: fields.counts("block")?,
            grid: fields.counts("grid")?,
            shared: fields.count("shared")?,
            defines: fields.defines()?,
        };
        // What does not depend on the GPU is wrong before one is looked for.
        for shape in &manifest.shapes {
            manifest.graph(shape).map_err(|error| refuse(error.to_string(), "change its dimensions"))?;
            manifest.geometry(shape, 1)?;
        }
        Ok(manifest)
    }

    /// The shapes to measure.
    pub fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    /// The operator of a shape.
    pub fn graph(&self, shape: &Shape) -> Result<Graph> {
        Ok(match self.kind {
            Kind::Gemv | Kind::Gemm => {
                Graph::linear(Linear { m: shape.dim("m")?, n: shape.dim("n")?, k: shape.dim("k")? })
            }
            Kind::Attention => {
                let attention = Attention {
                    batch: shape.dim("batch")?,
                    heads: shape.dim("heads")?,
                    kv_heads: shape.dim("kv_heads")?,
                    head_dim: shape.dim("head_dim")?,
                    value_dim: shape.dim("head_dim")?,
                    queries: shape.dim("queries")?,
                    context: shape.dim("context")?,
                    causal: !self.full,
                    window: None,
                    cache: Cache::Separate,
                };
                Graph::attention(attention.checked()?, true)
            }
        })
    }

    /// The kernel for a shape with these operands, of the program `source`, on a GPU of so many multiprocessors.
    pub fn kernel(
        &self,
        shape: &Shape,
        operands: &Operands,
        source: String,
        multiprocessors: u32,
    ) -> Result<CudaKernel> {
        let (block, grid, shared, defines) = self.geometry(shape, multiprocessors)?;
        let known: Vec<String> = operands.parts().into_iter().map(|part| part.name).collect();
        let argument = |name: &String| {
            if name == "y" {
                return Ok(Argument::Output);
            }
            if known.contains(name) {
                return Ok(Argument::Array(name.clone()));
            }
            // Arrays go before dimensions: attention has keys called `k`.
            match shape.0.iter().find(|(dim, _)| dim == name) {
                Some((dim, value)) => Ok(Argument::Count(dim, *value as i32)),
                None => Err(self.refused(
                    format!("`arguments`: {} has no array `{name}`", self.precision),
                    &format!("it has {}", known.join(", ")),
                )),
            }
        };
        Ok(CudaKernel {
            name: self.name.clone(),
            source,
            folder: self.path.parent().map(|folder| folder.join(&self.source)).and_then(|file| {
                file.parent()
                    .map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder }.to_owned())
            }),
            entry: self.entry.clone(),
            block,
            grid,
            shared,
            arguments: self.arguments.iter().map(argument).collect::<Result<_>>()?,
            defines,
        })
    }

    /// Threads, blocks, shared memory and macros of a shape, within what CUDA allows.
    #[expect(clippy::type_complexity, reason = "four counts that are made together")]
    fn geometry(&self, shape: &Shape, multiprocessors: u32) -> Result<([u32; 3], [u32; 3], u32, Vec<(String, i64)>)> {
        let mut names = shape.names();
        names.push(("multiprocessors", multiprocessors.into()));
        let block = self.three("block", &self.block, &names, BLOCK)?;
        let threads: u64 = block.iter().map(|count| u64::from(*count)).product();
        if threads > THREADS {
            let reason = format!("`block` has {threads} threads");
            return Err(self.refused(reason, &format!("a block has {THREADS} at most")));
        }
        names.push(("threads", threads));
        let grid = self.three("grid", &self.grid, &names, GRID)?;
        let shared = self.value("shared", &self.shared, &names)?;
        if shared > SHARED {
            let reason = format!("`shared` is {shared} bytes");
            return Err(self.refused(reason, "no block has that much: 227 KiB on an H200, 48 KiB anywhere"));
        }
        let define = |(name, text): &(String, String)| {
            let value = self.value(&format!("defines.{name}"), text, &names)?;
            let value = i64::try_from(value)
                .map_err(|_| self.refused(format!("`defines.{name}` is {value}"), "a macro is at most 2^63 - 1"))?;
            Ok((name.clone(), value))
        };
        Ok((block, grid, shared as u32, self.defines.iter().map(define).collect::<Result<_>>()?))
    }

    fn three(&self, field: &str, texts: &[String], names: &[(&str, u64)], most: [u64; 3]) -> Result<[u32; 3]> {
        let mut three = [1; 3];
        for (at, text) in texts.iter().enumerate() {
            let value = self.value(field, text, names)?;
            if !(1..=most[at]).contains(&value) {
                let axis = ["x", "y", "z"][at];
                let reason = format!("`{field}` is {value} in {axis}");
                return Err(self.refused(reason, &format!("it is from 1 to {} there", most[at])));
            }
            three[at] = value as u32;
        }
        Ok(three)
    }

    fn value(&self, field: &str, text: &str, names: &[(&str, u64)]) -> Result<u64> {
        evaluate(text, names).map_err(|reason| {
            let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
            let hint = format!("whole numbers, + - * / % ( ), ceil_div, min and max of {}", known.join(", "));
            self.refused(format!("`{field}` is `{text}`, which {reason}"), &hint)
        })
    }

    fn refused(&self, reason: String, hint: &str) -> Error {
        Error::Manifest { path: self.path.clone(), reason, hint: hint.to_owned() }
    }
}

#[cfg(test)]
mod tests;
