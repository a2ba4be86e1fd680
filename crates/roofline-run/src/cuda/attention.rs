//! Attention of one new token per sequence over its cache: which program of `kernels/attention.cu` runs, and how its work
//! is divided.

use roofline_core::{
    Dim, Format, Math,
    measurement::{Kernel, Path},
    op::{self, Cache},
};

use super::{gpu::Recipe, row_format::RowFormat};

const SOURCE: &str = concat!(
    include_str!("../../kernels/common.cuh"),
    include_str!("../../kernels/chain.cuh"),
    include_str!("../../kernels/narrow.cuh"),
    include_str!("../../kernels/rope.cuh"),
    include_str!("../../kernels/attention_parts.cuh"),
    include_str!("../../kernels/attention.cu")
);

/// Keys per sequence, and blocks of a launch, that the kernel counts to.
const MOST_KEYS: u64 = 1 << 24;
/// Widest head whose outputs fit the registers.
const WIDEST: usize = 256;
/// Query heads that the tensor unit takes at a time.
const TILE: usize = 8;
/// Shares of a head's keys at most: one block adds them all up.
const MOST_SPLITS: usize = 128;
/// Shared memory that the kernel has of its own, at most: 16 heads of 128 features or 8 of 256 that it turns (4096 bytes), and
/// what 8 warps and all of them together know of 16 heads (1152 bytes).
const OWN: usize = 8192;

/// An attention's kernel, and its dimensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decode {
    pub(super) stored: RowFormat,
    pub(super) half: bool,
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) width: usize,
    pub(super) context: usize,
    /// The first key that is seen.
    pub(super) first: usize,
    pub(super) beside: Beside,
}

/// What a kernel is compiled for beside the operator itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a macro of the kernel")]
pub(super) struct Beside {
    /// Whether keys are counted in the GPU's memory: a graph of calls may then be replayed while contexts grow, up to
    /// `context`, for which work is divided.
    pub(super) lengths: bool,
    /// Whether scores are bounded.
    pub(super) capped: bool,
    /// Whether a head has one score more, that no value belongs to.
    pub(super) sinks: bool,
    /// Rows of a page of the cache, a multiple of 32; none where a sequence's rows follow each other.
    pub(super) page: Option<usize>,
    /// Whether it may start before the kernel in front of it has ended.
    pub(super) chained: bool,
    /// Whether queries and the new key are turned on the way, and how.
    pub(super) turned: Option<Turned>,
}

/// How queries, keys and values go from their product into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Turned {
    /// Features that are turned.
    pub(super) rotary: usize,
    /// Whether queries and keys are normed.
    pub(super) normed: bool,
}

/// How a kernel divides its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Division {
    pub(super) warps: usize,
    /// Steps that a warp's queue holds; without a queue the next step waits in registers.
    pub(super) depth: usize,
    /// Blocks per multiprocessor that registers must leave room for.
    blocks: usize,
    /// Blocks that share a head's keys.
    pub(super) splits: usize,
    /// Whether they are a cluster, and add up what they found in shared memory.
    cluster: bool,
}

impl Division {
    pub(super) fn words(self) -> String {
        let Self { warps, depth, splits, cluster, .. } = self;
        format!(" {warps}w{depth}d{splits}{}", if cluster { 'c' } else { 's' })
    }
}

/// A block's warps, and the steps that their queues hold.
#[derive(Clone, Copy, Debug)]
struct Form {
    warps: usize,
    depth: usize,
}

/// Forms worth trying, best first on an H200: the queue where there are few keys, the last one for little shared memory.
const FORMS: [Form; 4] = [
    Form { warps: 8, depth: 0 },
    Form { warps: 4, depth: 0 },
    Form { warps: 4, depth: 2 },
    Form { warps: 2, depth: 0 },
];
/// Forms of blocks that are a cluster, where few heads leave most of the GPU idle; and how many share a head's keys.
const CLUSTERS: [(Form, usize); 3] =
    [(Form { warps: 8, depth: 2 }, 8), (Form { warps: 4, depth: 2 }, 8), (Form { warps: 8, depth: 2 }, 4)];
/// How many of the others are tried.
const TRIED: usize = 3;
/// Blocks of a launch, per mille of the waves they run in, that are nearly as good as all.
const FULL: usize = 950;

impl Decode {
    /// Or why there is no kernel.
    pub(super) fn of(shape: &op::Attention, query: Format, kv: Format) -> Result<Self, String> {
        let shape = shape.checked().map_err(|error| error.to_string())?;
        let cache = match shape.cache {
            Cache::Separate => kv,
            Cache::Expanded => query,
            Cache::Latent => return Err("there is no kernel for attention over a latent cache".to_owned()),
        };
        if shape.queries != Dim::ONE {
            return Err(format!("attention of {} new tokens per sequence has a kernel of its own", shape.queries));
        }
        if !matches!(query, Format::FP16 | Format::BF16) {
            return Err(format!("queries in {query} have no attention kernel: use bf16 or fp16"));
        }
        let Some(stored) = RowFormat::of(cache, query) else {
            return Err(format!("a KV cache in {cache} has no kernel: use {query}, fp8-e4m3, fp8-e5m2 or int8"));
        };
        let [batch, heads, kv_heads, width, context] =
            [shape.batch, shape.heads, shape.kv_heads, shape.head_dim, shape.context].map(|dim| dim.get() as usize);
        let whole = if stored == RowFormat::Sixteen { 8 } else { 16 };
        if shape.value_dim != shape.head_dim || width > WIDEST || !width.is_multiple_of(whole) {
            return Err(format!(
                "heads of {width} and {} features have no attention kernel: equal multiples of {whole} up to {WIDEST} do",
                shape.value_dim
            ));
        }
        if shape.context.get() > MOST_KEYS || batch.saturating_mul(heads) > 1 << 22 {
            return Err(format!("{batch} sequences of {context} keys are past what the kernel counts to"));
        }
        let window = shape.window.filter(|_| shape.causal).map_or(context, |window| window.get() as usize);
        let (half, first) = (query == Format::FP16, context.saturating_sub(window));
        Ok(Self { stored, half, batch, heads, kv_heads, width, context, first, beside: Beside::default() })
    }

    /// The kernel on a GPU of generation `major`.
    pub(super) fn kernel(&self, major: u32) -> Kernel {
        // 8-bit numbers are multiplied as halves, and bfloat16 without a tensor unit for it as FP32.
        let math = match (self.half || self.stored != RowFormat::Sixteen, major) {
            (true, _) => Math::Fp16,
            (false, 8..) => Math::Bf16,
            _ => Math::Fp32,
        };
        let path = if self.stored == RowFormat::Sixteen { Path::Native } else { Path::FusedDequant };
        Kernel { name: format!("attention decode {:?}", self.stored).to_lowercase(), path, math }
    }

    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Tiles of query heads per block: two where a group has them and registers hold them.
    fn tiles(&self) -> usize {
        if self.group() > TILE && self.width <= 128 { 2 } else { 1 }
    }

    /// Blocks that share the query heads of a KV head.
    pub(super) fn groups(&self) -> usize {
        self.group().div_ceil(TILE * self.tiles())
    }

    /// Blocks without a division of keys.
    pub(super) fn units(&self) -> usize {
        self.batch * self.kv_heads * self.groups()
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.width * if self.stored == RowFormat::Sixteen { 2 } else { 1 }
    }

    /// Keys of a step: enough that a warp copies whole rows at a time.
    fn keys(&self) -> usize {
        let narrow = self.width <= 64 || !self.width.is_multiple_of(16);
        if self.stored == RowFormat::Sixteen && !narrow { 16 } else { 32 }
    }

    /// Shared memory that a block may ask for beside the kernel's own, where it may have `block` bytes in all.
    pub(super) fn shared_room(block: u32) -> usize {
        (block as usize).saturating_sub(OWN)
    }

    /// Bytes of shared memory of a block.
    pub(super) fn shared(&self, warps: usize, depth: usize) -> usize {
        let pitch = self.row_bytes().next_multiple_of(128);
        let outputs = TILE * self.tiles() * self.width * 4;
        warps * (depth.max(1) * 2 * self.keys() * pitch).max(outputs)
    }

    /// Blocks per multiprocessor: registers of warps without a queue are to hold 64 KB of the cache together.
    fn blocks(&self, warps: usize, depth: usize) -> usize {
        let pieces = self.keys() * self.row_bytes() / 512;
        let warps_at_once = match (depth, self.tiles(), pieces) {
            (1.., ..) => warps,
            (0, 1, ..=4) => 16,
            (0, 1, ..=6) | (0, 2, ..=4) => 12,
            _ => 8,
        };
        (warps_at_once / warps).max(1)
    }

    /// Splits that may be best with room for `slots` blocks at once, `most` at most: as few as fill the last wave of blocks
    /// nearly, and half a wave, because each share of the keys costs the time to add it up.
    fn splits(&self, slots: usize, most: usize) -> Vec<usize> {
        let up_to = |waves: usize| (waves * slots / self.units()).clamp(1, most);
        let full = |splits: usize| {
            let blocks = self.units() * splits;
            blocks * 1000 / blocks.next_multiple_of(slots)
        };
        let mut all = vec![(up_to(1) / 2).max(1)];
        for waves in [1, 2, 4, 8] {
            let last = up_to(waves);
            let best = (up_to(waves / 2)..=last).rev().max_by_key(|splits| full(*splits)).unwrap_or(last);
            all.push(best);
            if full(best) >= FULL {
                break;
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Divisions to try. Keys are shared where there are fewer heads than multiprocessors, or where the last wave of blocks
    /// would be nearly empty.
    pub(super) fn divisions(&self, multiprocessors: usize, shared: usize, clusters: bool) -> Vec<Division> {
        let steps = (self.context - self.first).div_ceil(self.keys());
        let fits = |form: &&Form| self.shared(form.warps, form.depth) <= shared;
        let mut all = Vec::new();
        for &Form { warps, depth } in FORMS.iter().filter(fits).take(TRIED) {
            let blocks = self.blocks(warps, depth);
            let slots = multiprocessors * blocks.min(shared / self.shared(warps, depth));
            let splits = self.splits(slots, steps.div_ceil(warps).min(MOST_SPLITS));
            all.extend(splits.into_iter().map(|splits| Division { warps, depth, blocks, splits, cluster: false }));
        }
        for (form @ Form { warps, depth }, splits) in CLUSTERS {
            let few = self.units() * splits <= 2 * multiprocessors && steps >= splits;
            if clusters && few && fits(&&form) {
                all.push(Division { warps, depth, blocks: self.blocks(warps, depth), splits, cluster: true });
            }
        }
        all
    }

    /// The division that was fastest most often on an H200, for who does not try: one wave of blocks, and smaller ones where
    /// there are more heads than multiprocessors.
    pub(super) fn usual(&self, multiprocessors: usize, shared: usize) -> Option<Division> {
        let all = self.divisions(multiprocessors, shared, false);
        let warps = if self.units() <= multiprocessors { 8 } else { 4 };
        let formed = || all.iter().copied().filter(|it| (it.warps, it.depth) == (warps, 0));
        let in_a_wave = |it: &Division| self.units() * it.splits <= multiprocessors * it.blocks;
        formed().filter(in_a_wave).max_by_key(|it| it.splits).or(formed().next()).or(all.first().copied())
    }

    pub(super) fn recipe(&self, division: Division) -> Recipe {
        let Division { warps, depth, blocks, .. } = division;
        let mut defines = self.stored.defines("CACHE");
        defines.extend([
            ("HEAD_DIM", self.width as i64),
            ("HALF", i64::from(self.half)),
            ("TILES", self.tiles() as i64),
            ("KEYS", self.keys() as i64),
            ("WARPS", warps as i64),
            ("DEPTH", depth as i64),
            ("BLOCKS", blocks as i64),
            ("LENGTHS", i64::from(self.beside.lengths)),
            ("CAPPED", i64::from(self.beside.capped)),
            ("SINKS", i64::from(self.beside.sinks)),
            ("PAGED", self.beside.page.unwrap_or(0) as i64),
            ("CHAINED", i64::from(self.beside.chained)),
            ("CLUSTER", if division.cluster { division.splits as i64 } else { 0 }),
            ("TURNED", i64::from(self.beside.turned.is_some())),
            ("ROTARY", self.beside.turned.map_or(self.width, |turned| turned.rotary) as i64),
            ("NORMED", i64::from(self.beside.turned.is_some_and(|turned| turned.normed))),
        ]);
        let shared = self.shared(warps, depth) as u32;
        Recipe { source: SOURCE, function: "attention_decode", defines, shared }
    }

    /// Bytes of what blocks leave for the last one: outputs, largest score and sum of each head.
    pub(super) fn shares(&self, division: Division) -> usize {
        self.units() * division.splits * TILE * self.tiles() * (self.width + 2) * 4
    }

    /// Bytes of the counters, of which every KV head of every sequence has some.
    pub(super) fn counters(&self) -> usize {
        self.units() * 4
    }
}

/// Programs that may be compiled here, for a test that needs no GPU.
pub(super) fn sources() -> Vec<(String, Recipe)> {
    let stored = [RowFormat::Sixteen, RowFormat::E4m3, RowFormat::E5m2, RowFormat::Int8];
    let mut all = Vec::new();
    for (at, stored) in stored.into_iter().enumerate() {
        for (place, (width, group)) in [(64, 4), (80, 1), (128, 16), (256, 2)].into_iter().enumerate() {
            // Each kind of cache meets both kinds of queries.
            let half = (at + place) % 2 == 0;
            for (warps, depth) in [(4, 0), (4, 2)] {
                // Options are there with one of them.
                let more = depth > 0;
                let page = (more && at % 2 == 1).then_some(64);
                let turned = (more && page.is_none()).then_some(Turned { rotary: 64, normed: at == 0 });
                let capped = more && at % 2 == 0;
                let beside = Beside { lengths: more, capped, sinks: more, page, chained: more, turned };
                let (heads, context) = (8 * group, 4096);
                let decode = Decode { stored, half, batch: 1, heads, kv_heads: 8, width, context, first: 0, beside };
                let blocks = decode.blocks(warps, depth);
                // Clusters are of one generation only, and the last kind of cache meets them.
                let cluster = more && at == 3 && width == 128;
                let division = Division { warps, depth, blocks, splits: if cluster { 8 } else { 1 }, cluster };
                let name = format!("attention {stored:?} half {half} {width} x {group} depth {depth}");
                all.push((name, decode.recipe(division)));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a block may have from Turing to Blackwell: divisions leave room for what the kernel has of its own, which costs
    /// none of them on any of these.
    #[test]
    fn divisions_leave_room_for_the_kernels_own() {
        for block in [64, 99, 163, 227].map(|size| size << 10) {
            let shared = Decode::shared_room(block);
            for (stored, step) in [(RowFormat::Sixteen, 8), (RowFormat::Int8, 16)] {
                for (width, group) in
                    (step..=WIDEST).step_by(step).flat_map(|width| [1, 4, 16].map(|group| (width, group)))
                {
                    let (batch, heads, beside) = (1, group, Beside::default());
                    let decode = Decode {
                        stored,
                        half: false,
                        batch,
                        heads,
                        kv_heads: 1,
                        width,
                        context: 4096,
                        first: 0,
                        beside,
                    };
                    let divisions = decode.divisions(132, shared, true);
                    assert!(block < 99 << 10 || !divisions.is_empty(), "{width} in {block}");
                    assert!(divisions.iter().all(|it| decode.shared(it.warps, it.depth) + OWN <= block as usize));
                    assert_eq!(divisions, decode.divisions(132, block as usize - OWN / 2, true), "{width} in {block}");
                }
            }
        }
    }

    #[test]
    fn blocks_fill_the_gpu_and_fit_its_shared_memory() {
        let decode = |batch, context, width| Decode {
            stored: RowFormat::Sixteen,
            half: false,
            batch,
            heads: 32,
            kv_heads: 8,
            width,
            context,
            first: 0,
            beside: Beside::default(),
        };
        // One long sequence has 8 heads for 132 multiprocessors, and many short ones have more than enough.
        let long = decode(1, 131_072, 128).divisions(132, 223 << 10, true);
        assert!(long.iter().any(|division| (division.warps, division.splits) == (8, 16)));
        assert!(decode(64, 2048, 128).divisions(132, 223 << 10, true).iter().all(|division| division.splits <= 2));
        let usual = |batch, context| decode(batch, context, 128).usual(132, 223 << 10).map(|it| (it.warps, it.splits));
        assert_eq!([usual(1, 131_072), usual(8, 16_384), usual(64, 4096)], [Some((8, 16)), Some((8, 2)), Some((4, 1))]);
        for (width, shared) in [(64, 60 << 10), (128, 60 << 10), (256, 60 << 10), (256, 223 << 10)] {
            let divisions = decode(1, 100, width).divisions(40, shared, true);
            let largest = divisions.iter().map(|it| decode(1, 100, width).shared(it.warps, it.depth)).max();
            assert!(largest.is_some_and(|largest| largest <= shared), "{width} in {shared}");
        }
        // A step per warp at least: one key needs no second block.
        // Clusters are for few heads.
        assert!(long.iter().any(|division| division.cluster) && !long.is_empty());
        assert!(!decode(64, 2048, 128).divisions(132, 223 << 10, true).iter().any(|division| division.cluster));
        assert!(decode(1, 1, 128).divisions(132, 223 << 10, true).iter().all(|division| division.splits == 1));
    }
}
