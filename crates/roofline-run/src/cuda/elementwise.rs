//! Kernels that touch each element a few times: which program of `kernels/elementwise.cu` runs, and how it is launched.

use roofline_core::{
    Dim, Format, Math, Op, Precision,
    measurement::{Kernel, Path},
    op::{Attention, ElementwiseKind},
};

use super::{gpu::Recipe, row_format::RowFormat};

const SOURCE: &str = concat!(
    include_str!("../../kernels/common.cuh"),
    include_str!("../../kernels/narrow.cuh"),
    include_str!("../../kernels/elementwise.cu")
);

/// Numbers that a thread loads at once.
const EIGHT: usize = 8;
/// Threads of a flat kernel's block, and loads of each thread: the fastest of seven pairs on an H200.
const FLAT: usize = 128;
const PIECES: usize = 2;
/// Heads that a thread turns by the same angles: more of them leave a single token too few threads.
const TURNED: usize = 2;
/// Widest row that the registers of a block hold.
const WIDEST: usize = 32_768;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    Norm,
    Rope,
    Residual,
    KvWrite,
    Embedding,
    Gated,
    Activation,
    Softmax,
}

impl Does {
    const fn site(self) -> &'static str {
        match self {
            Self::Norm => ElementwiseKind::Norm.site(),
            Self::Rope => ElementwiseKind::Rope.site(),
            Self::Residual => ElementwiseKind::Residual.site(),
            Self::KvWrite => ElementwiseKind::KvWrite.site(),
            Self::Embedding => ElementwiseKind::Embedding.site(),
            Self::Gated => ElementwiseKind::GatedActivation.site(),
            Self::Activation => ElementwiseKind::Activation.site(),
            Self::Softmax => "softmax",
        }
    }

    /// Input tensors.
    pub(super) const fn inputs(self) -> usize {
        if matches!(self, Self::Residual | Self::Gated) { 2 } else { 1 }
    }
}

/// A kernel over rows, with its formats.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) does: Does,
    pub(super) input: Format,
    pub(super) output: Format,
    pub(super) tokens: usize,
    /// Rows per token.
    pub(super) vectors: usize,
    pub(super) width: usize,
}

impl Rows {
    /// Or why there is no kernel.
    pub(super) fn of(op: &Op, formats: &Precision) -> Result<Self, String> {
        use ElementwiseKind as Kind;
        let Precision { activations, kv, output, query, .. } = *formats;
        let (does, input, output, tokens, vectors, width) = match op {
            Op::Elementwise(shape) => {
                let (does, input, output) = match shape.kind {
                    Kind::Norm => (Does::Norm, query, activations),
                    Kind::Rope => (Does::Rope, query, query),
                    Kind::Residual => (Does::Residual, query, query),
                    Kind::KvWrite => (Does::KvWrite, query, kv),
                    Kind::Embedding => (Does::Embedding, query, query),
                    Kind::GatedActivation => (Does::Gated, output, activations),
                    Kind::Activation => (Does::Activation, output, activations),
                };
                (does, input, output, shape.tokens, shape.vectors, shape.width)
            }
            Op::Softmax(shape) => {
                let width = scores(shape)?;
                let tokens = u128::from(shape.batch.get()) * u128::from(shape.queries.get());
                (Does::Softmax, query, query, tokens, shape.heads, width)
            }
            _ => return Err("this touches elements more than a few times".to_owned()),
        };
        let (vectors, width) = (vectors.get() as usize, width.get() as usize);
        let elements = usize::try_from(tokens).ok().and_then(|tokens| tokens.checked_mul(vectors)?.checked_mul(width));
        let Some(elements) = elements.filter(|elements| *elements < 1 << 40) else {
            return Err(format!("{tokens} x {vectors} rows of {width} are more than memory can hold"));
        };
        let rows = Self { does, input, output, tokens: elements / vectors / width, vectors, width };
        let sixteen = matches!(input, Format::FP16 | Format::BF16);
        if !sixteen || rows.written().is_none() {
            return Err(format!("no element-wise kernel goes from {input} to {output}"));
        }
        if does == Does::Rope && !width.is_multiple_of(2) {
            return Err(format!("heads of {width} features cannot be turned in halves"));
        }
        if rows.by_row() && width > WIDEST {
            return Err(format!("rows of {width} are too wide for the kernel, which holds {WIDEST} in registers"));
        }
        Ok(rows)
    }

    pub(super) fn kernel(&self) -> Kernel {
        let Self { input, output, .. } = self;
        let to = if input == output { String::new() } else { format!(" to {output}") };
        Kernel { name: format!("{} {input}{to}", self.does.site()), path: Path::Native, math: Math::Fp32 }
    }

    pub(super) fn rows(&self) -> usize {
        self.tokens * self.vectors
    }

    /// How rows are written; none where the kernel does not.
    fn written(&self) -> Option<RowFormat> {
        let plain = matches!(self.does, Does::Rope | Does::Residual | Does::Embedding | Does::Softmax);
        RowFormat::of(self.output, self.input).filter(|format| !plain || *format == RowFormat::Sixteen)
    }

    /// Whether rows are stored with a scale.
    pub(super) fn scaled(&self) -> bool {
        self.output != self.input
    }

    /// Whether the kernel needs to see whole rows.
    fn by_row(&self) -> bool {
        let flat = matches!(self.does, Does::Residual | Does::Gated | Does::Activation);
        self.does != Does::Rope && (self.scaled() || !flat)
    }

    /// Threads that hold a row, and loads of each: several for wide rows, whose sums then pass fewer threads.
    fn lanes(&self) -> (usize, usize) {
        let pieces = self.width.div_ceil(EIGHT);
        let lanes = match pieces {
            0..=32 => pieces.next_power_of_two(),
            33..=1024 => (pieces.next_power_of_two() / 2).min(256),
            1025..=2048 => 512,
            _ => 1024,
        };
        if self.by_row() { (lanes, pieces.div_ceil(lanes)) } else { (1, 1) }
    }

    /// Threads of a block.
    pub(super) fn threads(&self) -> usize {
        if self.by_row() { self.lanes().0.max(128) } else { FLAT }
    }

    /// Blocks of a launch.
    pub(super) fn blocks(&self) -> usize {
        if self.by_row() {
            self.rows().div_ceil(self.threads() / self.lanes().0)
        } else if self.does == Does::Rope {
            (self.tokens * self.vectors.div_ceil(TURNED) * (self.width / 2).div_ceil(EIGHT)).div_ceil(FLAT)
        } else {
            (self.rows() * self.width).div_ceil(FLAT * PIECES * EIGHT)
        }
    }

    pub(super) fn recipe(&self) -> Recipe {
        let (lanes, chunks) = self.lanes();
        let function = match self.does {
            Does::Norm => "rms_norm",
            Does::Rope => "rope",
            Does::Residual => "residual",
            Does::KvWrite | Does::Embedding => "rows_moved",
            Does::Gated | Does::Activation if self.scaled() => "rows_activated",
            Does::Gated => "gated",
            Does::Activation => "activation",
            Does::Softmax => "softmax",
        };
        let mut defines = self.written().unwrap_or(RowFormat::Sixteen).defines("OUTPUT");
        defines.extend([
            ("HALF", i64::from(self.input == Format::FP16)),
            ("LANES", lanes as i64),
            ("CHUNKS", chunks as i64),
            ("BLOCK", self.threads() as i64),
            ("FLAT", FLAT as i64),
            ("PIECES", PIECES as i64),
            ("TURNED", TURNED as i64),
        ]);
        Recipe { source: SOURCE, function, defines, shared: 0 }
    }
}

/// Scores per row, where all rows have the same number.
fn scores(shape: &Attention) -> Result<Dim, String> {
    if !shape.causal {
        return Ok(shape.context);
    }
    if shape.queries == Dim::ONE {
        return Ok(shape.window.map_or(shape.context, |window| window.min(shape.context)));
    }
    Err("rows of causal scores have different lengths, which no softmax kernel takes".to_owned())
}

/// Programs that may be compiled here, for a test that needs no GPU.
pub(super) fn sources() -> Vec<(String, Recipe)> {
    let mut all = Vec::new();
    for (input, output) in [
        (Format::BF16, Format::BF16),
        (Format::FP16, Format::FP16),
        (Format::BF16, Format::FP8),
        (Format::BF16, Format::INT8),
    ] {
        for width in [128, 14_336] {
            let rows = Rows { does: Does::Norm, input, output, tokens: 1, vectors: 1, width };
            all.push((format!("rows of {width} from {input} to {output}"), rows.recipe()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_threads() {
        for width in [1, 8, 100, 128, 136, 512, 4096, 5120, 8192, 14_336, WIDEST] {
            for does in [Does::Norm, Does::KvWrite, Does::Softmax] {
                let rows = Rows { does, input: Format::BF16, output: Format::BF16, tokens: 3, vectors: 5, width };
                let (lanes, chunks) = rows.lanes();
                assert!(lanes.is_power_of_two() && lanes * chunks * EIGHT >= width && chunks <= 4, "{width}");
                assert!(rows.threads() <= 1024 && rows.threads().is_multiple_of(lanes));
                assert!(rows.blocks() * rows.threads() / lanes >= 15);
            }
        }
    }
}
