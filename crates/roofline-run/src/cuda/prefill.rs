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

use super::{compiler::Architecture, gemm_packed::OLDEST, gpu::Recipe, row_format::RowFormat, widen::Widen};

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
const SMALLEST_PAGE: usize = 64;
/// New tokens from which more keys at once measured faster: the part of a block that is not seen then counts little.
const LONG: usize = 4096;
/// Shares of a tile's keys at most: one block adds them all up.
const MOST_SPLITS: usize = 16;

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a macro of the kernel")]
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
    /// Query heads of a tile: all that share keys where tokens alone do not fill it.
    pub(super) pack: usize,
    /// Blocks that share a tile's keys.
    pub(super) splits: usize,
}

/// What a call is for, as far as the division of work depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) sequences: usize,
    /// New tokens of each.
    pub(super) new: usize,
}

/// A GPU, as far as the division of work depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) architecture: Architecture,
    pub(super) multiprocessors: u32,
    /// Bytes of shared memory that a block may have.
    pub(super) shared: u32,
}

impl Form {
    /// Rows of a tile.
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
        let Self { unit, keys, pack, splits } = self;
        match unit {
            Unit::Wgmma { .. } => format!(" wgmma {keys}k{pack}h{splits}s"),
            Unit::Mma { warps, tiles } => format!(" mma {keys}k{warps}w{tiles}t{pack}h{splits}s"),
        }
    }
}

impl Prefill {
    /// For a measurement, with what a cache that is not of 16 bit is widened from; or why there is no kernel.
    pub(super) fn of(shape: &op::Attention, query: Format, kv: Format) -> Result<(Self, Option<Widen>), String> {
        let shape = shape.checked().map_err(|error| error.to_string())?;
        let cache = match shape.cache {
            Cache::Separate => kv,
            Cache::Expanded => query,
            Cache::Latent => return Err("there is no kernel for attention over a latent cache".to_owned()),
        };
        if !matches!(query, Format::FP16 | Format::BF16) {
            return Err(format!("queries in {query} have no attention kernel: use bf16 or fp16"));
        }
        let Some(stored) = RowFormat::of(cache, query) else {
            return Err(format!("a KV cache in {cache} has no kernel: use {query}, fp8-e4m3, fp8-e5m2 or int8"));
        };
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
        let widen = Widen { stored, half: plan.half, kv_heads, width, chained: false };
        Ok((plan.checked()?, (stored != RowFormat::Sixteen).then_some(widen)))
    }

    /// The same, unless no kernel has such heads or pages.
    pub(super) fn checked(self) -> Result<Self, String> {
        if !WIDTHS.contains(&self.width) {
            let all = WIDTHS.map(|width| width.to_string()).join(", ");
            return Err(format!(
                "heads of {} features have no attention kernel of several tokens: {all} do",
                self.width
            ));
        }
        if let Some(page) = self.page.filter(|page| *page < SMALLEST_PAGE || !page.is_power_of_two()) {
            return Err(format!("pages of {page} rows have no kernel: powers of two from {SMALLEST_PAGE} on do"));
        }
        Ok(self)
    }

    pub(super) fn kernel(&self, widen: Option<Widen>) -> Kernel {
        let math = if self.half { Math::Fp16 } else { Math::Bf16 };
        let stored = widen.map_or(RowFormat::Sixteen, |widen| widen.stored);
        let path = if widen.is_some() { Path::CastEmulated } else { Path::Native };
        Kernel { name: format!("attention prefill {stored:?}").to_lowercase(), path, math }
    }

    /// Forms for a call, best first; or why there is none.
    pub(super) fn forms(&self, room: Room, extent: Extent) -> Result<Vec<Form>, String> {
        let Room { architecture, multiprocessors, shared } = room;
        if architecture < OLDEST {
            return Err(format!(
                "attention of several new tokens needs compute capability {}.{} or later, and this GPU has {}.{}",
                OLDEST.major, OLDEST.minor, architecture.major, architecture.minor
            ));
        }
        let divided = |unit: Unit, keys: usize| {
            let mut form = Form { unit, keys, pack: 1, splits: 1 };
            // Whole tiles of tokens measured up to a quarter faster than such of several heads, but only with wgmma.
            if matches!(unit, Unit::Mma { .. }) || extent.new < form.tall() {
                form.pack = self.heads / self.kv_heads;
            }
            let tiles = self.tiles(form, extent);
            form.splits = (multiprocessors as usize / tiles).clamp(1, MOST_SPLITS);
            form
        };
        let wgmma = |keys, stages| divided(Unit::Wgmma { stages }, keys);
        let mma = |keys, warps, tiles| divided(Unit::Mma { warps, tiles }, keys);
        let mut all = Vec::new();
        if architecture == (Architecture { major: 9, minor: 0 }) {
            match self.width {
                256 => all.push(wgmma(64, 2)),
                // Pages end where blocks of this many keys do not.
                128 if self.page.is_none() && extent.new < LONG => all.extend([wgmma(128, 2), wgmma(176, 2)]),
                128 if self.page.is_none() => all.extend([wgmma(176, 2), wgmma(128, 2)]),
                _ => all.push(wgmma(128, 2)),
            }
        } else if self.width == 256 {
            all.extend([mma(32, 4, 1), mma(16, 4, 1)]);
        } else {
            // Warps with twice as many queries read shared memory half as often; where that has no room, fewer do.
            all.extend([mma(64, 4, 2), mma(32, 4, 2), mma(64, 4, 1)]);
        }
        all.retain(|form| self.shared(*form) + OWN <= shared as usize && form.pack <= form.tall());
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
            ("PACK", number(form.pack)),
            ("SHARES", i64::from(form.splits > 1)),
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
    pub(super) fn tiles(&self, form: Form, extent: Extent) -> usize {
        extent.new.div_ceil(form.tall() / form.pack) * extent.sequences * (self.heads / form.pack)
    }

    /// Bytes of what blocks leave for each other, and of counters, that are enough for every call.
    pub(super) fn scratch(&self, multiprocessors: u32) -> [usize; 2] {
        // Shares are made where they are no more than multiprocessors, of the tallest tile: outputs and two numbers more of
        // each of a thread's two rows, which four threads have. Two counters for all, and two for each tile.
        const TALLEST: usize = 128;
        let most = multiprocessors as usize;
        [most * TALLEST * (self.width + 8) * 4, 8 + 8 * most]
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
            let room = Room { architecture, multiprocessors: 108, shared };
            for new in [2048, 16] {
                let forms = plan.forms(room, Extent { sequences: 1, new }).unwrap_or_default();
                let programs =
                    forms.iter().map(|form| (format!("attention prefill {width}{}", form.words()), plan.recipe(*form)));
                all.extend(programs.take(if new == 16 { 1 } else { usize::MAX }));
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
            let room = Room { architecture, multiprocessors: 84, shared: kilobytes << 10 };
            for (width, new) in WIDTHS.into_iter().flat_map(|width| [1, 100, 4096].map(|new| (width, new))) {
                let forms = plan(width).forms(room, Extent { sequences: 2, new }).unwrap();
                for form in forms {
                    let recipe = plan(width).recipe(form);
                    assert!(recipe.is_for(architecture), "{width} on {major}.{minor}: {form:?}");
                    assert!(recipe.shared <= kilobytes << 10, "{width} on {major}.{minor}: {}", recipe.shared);
                }
            }
        }
        let turing = Architecture { major: 7, minor: 5 };
        let room = Room { architecture: turing, multiprocessors: 40, shared: 64 << 10 };
        let turing = plan(128).forms(room, Extent { sequences: 1, new: 2 }).unwrap_err();
        assert!(turing.contains("8.0") && turing.contains("7.5"), "{turing}");
    }

    #[test]
    fn tiles_hold_every_query_of_every_head() {
        let form = |pack| Form { unit: Unit::Mma { warps: 4, tiles: 2 }, keys: 64, pack, splits: 1 };
        assert_eq!(plan(128).tiles(form(1), Extent { sequences: 3, new: 129 }), 2 * 3 * 32);
        assert_eq!(plan(128).tiles(form(1), Extent { sequences: 1, new: 128 }), 32);
        // 32 tokens of 4 heads.
        assert_eq!(plan(128).tiles(form(4), Extent { sequences: 1, new: 33 }), 2 * 8);
    }

    #[test]
    fn few_tiles_are_shared_and_many_are_not() {
        let architecture = Architecture { major: 9, minor: 0 };
        let room = Room { architecture, multiprocessors: 132, shared: 227 << 10 };
        let form = |new| plan(128).forms(room, Extent { sequences: 1, new }).unwrap()[0];
        assert_eq!((form(16).pack, form(16).splits), (4, 16));
        assert_eq!((form(64).pack, form(64).splits), (4, 8));
        assert_eq!((form(2048).pack, form(2048).splits), (1, 1));
        for new in [1, 16, 100, 200, 2048] {
            let (form, extent) = (form(new), Extent { sequences: 1, new });
            let [shares, counters] = plan(128).scratch(132);
            let tiles = plan(128).tiles(form, extent);
            if form.splits > 1 {
                assert!(tiles * form.splits * form.tall() * (128 + 8) * 4 <= shares, "{new}");
                assert!(8 + 8 * tiles <= counters, "{new}");
            }
        }
    }

    #[test]
    fn widths_and_pages_without_a_kernel_are_refused() {
        assert!(plan(72).checked().unwrap_err().contains("64, 80, 96, 128, 256"));
        assert!(Prefill { page: Some(48), ..plan(64) }.checked().unwrap_err().contains("48"));
        assert!(Prefill { page: Some(128), ..plan(64) }.checked().is_ok());
    }
}
