//! Attention of many new tokens per sequence: which of `kernels/attention_prefill_wgmma.cu` and
//! `kernels/attention_prefill_mma.cu` runs, and how its work is divided.
//!
//! A plan knows no address and no length. [`Prefill::call`] takes both, so that a measurement and a model ask for the same
//! kernel in the same way.

use roofline_core::{
    Format, Math,
    measurement::{Kernel, Path},
    op::{self, Cache},
};

use super::{compiler::Architecture, gemm_packed::OLDEST, gpu::Recipe};

const WGMMA: &str = concat!(
    include_str!("../../kernels/common.cuh"),
    include_str!("../../kernels/chain.cuh"),
    include_str!("../../kernels/copy_engine.cuh"),
    include_str!("../../kernels/attention_prefill.cuh"),
    include_str!("../../kernels/attention_prefill_wgmma.cuh"),
    include_str!("../../kernels/attention_prefill_wgmma.cu")
);
const MMA: &str = concat!(
    include_str!("../../kernels/common.cuh"),
    include_str!("../../kernels/chain.cuh"),
    include_str!("../../kernels/attention_prefill.cuh"),
    include_str!("../../kernels/attention_prefill_mma.cu")
);
/// Features per head that there are kernels for.
pub(super) const WIDTHS: [usize; 5] = [64, 80, 96, 128, 256];
/// Bytes of a row that lie together in shared memory, where the copy engine fills it.
const UNIT: usize = 128;
/// What aligning shared memory may cost, and what a block has of its own.
const ALIGNED: usize = 1024;
const OWN: usize = 512;
/// Rows of a page, where a cache has pages: what the copy engine takes at once.
pub(super) const SMALLEST_PAGE: usize = 64;

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefill {
    pub(super) half: bool,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) width: usize,
    pub(super) causal: bool,
    /// Whether a token sees only so many keys.
    pub(super) windowed: bool,
    /// Whether scores are bounded.
    pub(super) capped: bool,
    /// Whether a head has one score more, that no value belongs to.
    pub(super) sinks: bool,
    /// Rows of a page of the cache; none where a sequence's rows follow each other.
    pub(super) page: Option<usize>,
    /// Whether it may start before the kernel in front of it has ended.
    pub(super) chained: bool,
}

/// What multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Two warpgroups of 64 queries each, and stages of the rings of keys and values: compute capability 9.0 only.
    Wgmma { stages: usize },
    /// Warps, each with tiles of 16 queries.
    Mma { warps: usize, tiles: usize },
}

/// How a kernel divides its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) unit: Unit,
    /// Keys that are multiplied at once.
    pub(super) keys: usize,
}

impl Form {
    /// Queries of a tile.
    pub(super) fn tall(self) -> usize {
        match self.unit {
            Unit::Wgmma { .. } => 128,
            Unit::Mma { warps, tiles } => 16 * warps * tiles,
        }
    }

    pub(super) fn threads(self) -> u32 {
        match self.unit {
            Unit::Wgmma { .. } => 3 * 128,
            Unit::Mma { warps, .. } => 32 * warps as u32,
        }
    }

    pub(super) fn words(self) -> String {
        match self.unit {
            Unit::Wgmma { stages } => format!(" wgmma {}k{stages}s", self.keys),
            Unit::Mma { warps, tiles } => format!(" mma {}k{warps}w{tiles}t", self.keys),
        }
    }
}

impl Prefill {
    /// For a measurement; or why there is no kernel.
    pub(super) fn of(shape: &op::Attention, query: Format, kv: Format) -> Result<Self, String> {
        let shape = shape.checked().map_err(|error| error.to_string())?;
        let cache = match shape.cache {
            Cache::Separate => kv,
            Cache::Expanded => query,
            Cache::Latent => return Err("there is no kernel for attention over a latent cache".to_owned()),
        };
        if !matches!(query, Format::FP16 | Format::BF16) {
            return Err(format!("queries in {query} have no attention kernel: use bf16 or fp16"));
        }
        if cache != query {
            return Err(format!(
                "attention of {} new tokens per sequence over a cache in {cache} has no kernel: use {query}",
                shape.queries
            ));
        }
        if shape.value_dim != shape.head_dim {
            let (keys, values) = (shape.head_dim, shape.value_dim);
            return Err(format!("heads of {keys} and {values} features have no attention kernel of several tokens"));
        }
        let [batch, heads, kv_heads, width, context, queries] =
            [shape.batch, shape.heads, shape.kv_heads, shape.head_dim, shape.context, shape.queries]
                .map(|dim| dim.get() as usize);
        // Rows are counted in 32 bit.
        let most = i32::MAX as usize / 2;
        let rows = batch.saturating_mul(kv_heads).saturating_mul(context);
        if rows > most || batch.saturating_mul(queries).saturating_mul(heads) > most {
            return Err(format!("{batch} sequences of {context} keys are past what the kernel counts to"));
        }
        let plan = Self {
            half: query == Format::FP16,
            heads,
            kv_heads,
            width,
            causal: shape.causal,
            windowed: shape.causal && shape.window.is_some_and(|window| window < shape.context),
            capped: false,
            sinks: false,
            page: None,
            chained: false,
        };
        plan.checked()
    }

    /// The same, unless no kernel has such heads or pages.
    pub(super) fn checked(self) -> Result<Self, String> {
        if !WIDTHS.contains(&self.width) {
            let all = WIDTHS.map(|width| width.to_string()).join(", ");
            return Err(format!("heads of {} features have no attention kernel of several tokens: {all} do", self.width));
        }
        if let Some(page) = self.page.filter(|page| *page < SMALLEST_PAGE || !page.is_power_of_two()) {
            return Err(format!("pages of {page} rows have no kernel: powers of two from {SMALLEST_PAGE} on do"));
        }
        Ok(self)
    }

    pub(super) fn kernel(&self) -> Kernel {
        let math = if self.half { Math::Fp16 } else { Math::Bf16 };
        Kernel { name: "attention prefill".to_owned(), path: Path::Native, math }
    }

    /// Forms for a GPU whose blocks may have `shared` bytes, best first; or why there is none.
    pub(super) fn forms(&self, architecture: Architecture, shared: u32) -> Result<Vec<Form>, String> {
        if architecture < OLDEST {
            return Err(format!(
                "attention of several new tokens needs compute capability {}.{} or later, and this GPU has {}.{}",
                OLDEST.major, OLDEST.minor, architecture.major, architecture.minor
            ));
        }
        let wgmma = |keys, stages| Form { unit: Unit::Wgmma { stages }, keys };
        let mma = |keys, warps, tiles| Form { unit: Unit::Mma { warps, tiles }, keys };
        let mut all = Vec::new();
        if architecture == (Architecture { major: 9, minor: 0 }) {
            match self.width {
                256 => all.push(wgmma(64, 2)),
                // Pages end where blocks of this many keys do not.
                128 if self.page.is_none() => all.extend([wgmma(128, 2), wgmma(176, 2)]),
                _ => all.push(wgmma(128, 2)),
            }
        } else if self.width == 256 {
            all.extend([mma(32, 4, 1), mma(16, 4, 1)]);
        } else {
            // Warps with twice as many queries read shared memory half as often; where that has no room, fewer do.
            all.extend([mma(64, 4, 2), mma(32, 4, 2), mma(64, 4, 1)]);
        }
        all.retain(|form| self.shared(*form) + OWN <= shared as usize);
        if all.is_empty() {
            return Err(format!("heads of {} features need more shared memory than there is", self.width));
        }
        Ok(all)
    }

    /// Bytes of dynamic shared memory of a block.
    fn shared(&self, form: Form) -> usize {
        match form.unit {
            Unit::Wgmma { stages } => {
                let row = (2 * self.width).next_multiple_of(UNIT);
                ALIGNED + (form.tall() + 2 * stages * form.keys) * row
            }
            // A piece of 16 bytes more per row, so that rows are in different banks.
            Unit::Mma { .. } => (form.tall() + 4 * form.keys) * (2 * self.width + 16),
        }
    }

    pub(super) fn recipe(&self, form: Form) -> Recipe {
        let number = |value: usize| value as i64;
        let mut defines = vec![
            ("HEAD_DIM", number(self.width)),
            ("HALF", i64::from(self.half)),
            ("CAUSAL", i64::from(self.causal)),
            ("WINDOWED", i64::from(self.windowed)),
            ("CAPPED", i64::from(self.capped)),
            ("SINKS", i64::from(self.sinks)),
            ("PAGED", number(self.page.unwrap_or(0))),
            ("CHAINED", i64::from(self.chained)),
            ("KEYS", number(form.keys)),
            ("TALL", number(form.tall())),
        ];
        let (source, more) = match form.unit {
            Unit::Wgmma { stages } => (WGMMA, vec![("GROUPS", 2), ("STAGES", number(stages))]),
            Unit::Mma { warps, tiles } => {
                // Two blocks per multiprocessor where registers allow it, which the compiler is to know.
                (MMA, vec![("TILED", 1), ("WARPS", number(warps)), ("TILES", number(tiles)), ("BLOCKS", 2)])
            }
        };
        defines.extend(more);
        Recipe { source, function: "attention_prefill", defines, shared: self.shared(form) as u32 }
    }

    /// Tiles of a call.
    pub(super) fn tiles(&self, form: Form, sequences: usize, new: usize) -> usize {
        new.div_ceil(form.tall()) * sequences * self.heads
    }
}

/// Programs that may be compiled here, for a test that needs no GPU.
pub(super) fn sources() -> Vec<(String, Recipe)> {
    let hopper = Architecture { major: 9, minor: 0 };
    let ampere = Architecture { major: 8, minor: 0 };
    let mut all = Vec::new();
    for (at, width) in WIDTHS.into_iter().enumerate() {
        // Each option is there with some width and not with another.
        let plan = Prefill {
            half: at % 2 == 1,
            heads: 8,
            kv_heads: 2,
            width,
            causal: at != 2,
            windowed: at % 2 == 0 && at != 2,
            capped: at == 3,
            sinks: at % 3 == 1,
            page: (at == 1).then_some(64),
            chained: at == 3,
        };
        for (architecture, shared) in [(hopper, 227 << 10), (ampere, 163 << 10)] {
            for form in plan.forms(architecture, shared).unwrap_or_default() {
                all.push((format!("attention prefill {width}{}", form.words()), plan.recipe(form)));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(width: usize) -> Prefill {
        Prefill {
            half: false,
            heads: 32,
            kv_heads: 8,
            width,
            causal: true,
            windowed: false,
            capped: false,
            sinks: false,
            page: None,
            chained: false,
        }
    }

    #[test]
    fn every_width_has_a_form_wherever_the_kernels_run() {
        let architectures = [(8, 0, 163), (8, 6, 99), (8, 7, 163), (8, 9, 99), (9, 0, 227), (10, 0, 227), (12, 0, 99)];
        for (major, minor, kilobytes) in architectures {
            let architecture = Architecture { major, minor };
            for width in WIDTHS {
                let forms = plan(width).forms(architecture, kilobytes << 10).unwrap();
                for form in forms {
                    let recipe = plan(width).recipe(form);
                    assert!(recipe.is_for(architecture), "{width} on {major}.{minor}: {form:?}");
                    assert!(recipe.shared <= kilobytes << 10, "{width} on {major}.{minor}: {}", recipe.shared);
                }
            }
        }
        let turing = plan(128).forms(Architecture { major: 7, minor: 5 }, 64 << 10).unwrap_err();
        assert!(turing.contains("8.0") && turing.contains("7.5"), "{turing}");
    }

    #[test]
    fn tiles_hold_every_query_of_every_head() {
        let form = Form { unit: Unit::Mma { warps: 4, tiles: 2 }, keys: 64 };
        assert_eq!(plan(128).tiles(form, 3, 129), 2 * 3 * 32);
        assert_eq!(plan(128).tiles(form, 1, 128), 32);
    }

    #[test]
    fn widths_and_pages_without_a_kernel_are_refused() {
        assert!(plan(72).checked().unwrap_err().contains("64, 80, 96, 128, 256"));
        assert!(Prefill { page: Some(48), ..plan(64) }.checked().unwrap_err().contains("48"));
        assert!(Prefill { page: Some(128), ..plan(64) }.checked().is_ok());
    }
}
