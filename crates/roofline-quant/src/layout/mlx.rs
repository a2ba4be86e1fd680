//! MLX: what `mlx_lm.convert` writes, and mlx-lm and LM Studio load.
//!
//! mlx-lm has a class of its own for each family, which renames what a checkpoint of transformers holds and refuses
//! tensors that it does not know. The families here are those whose classes were read: names are theirs after renaming, and
//! experts are stacked, since a class stacks them only where they are not quantized.

mod config;

use std::{collections::BTreeMap, sync::Arc};

use roofline_core::{Format, Plan};

use super::{Layout, Scheme, Target, asked, folder, parts, quantized_already, shard_of, sites, wanted};
use crate::{
    Checkpoint, Error, Method, QuantizeJob, Result,
    coding::{
        Coding, Matrix, Numbers, Part,
        mlx::{self as coded, Scheme as Coded},
    },
    job::{Code, Item, Place, Work},
    number::is_number,
    origin::Origin,
    plan::is_tied,
    rows::{Rows, Stacked},
    site::Site,
    stored::{Kind, StoredTensor},
};

const fn scheme(
    name: &'static str,
    aliases: &'static [&'static str],
    summary: &'static str,
    weights: Format,
    stored: Coded,
) -> Scheme {
    Scheme { name, aliases, summary, weights, activations: None, target: Target::Mlx(stored) }
}

const fn affine(bits: u8, group: u32) -> Coded {
    Coded::Affine { bits, group, centred: false }
}

const fn centred(bits: u8, group: u32) -> Coded {
    Coded::Affine { bits, group, centred: true }
}

const INT8: Format = Format::INT8.in_groups(64);
const INT6: Format = Format::INT6_G64;
const INT4: Format = Format::INT4_G128;
const INT3: Format = Format::INT3_G64;
const INT2: Format = Format::INT2_G64;

macro_rules! affine {
    ($name:literal, $aliases:expr, $bits:literal, $group:literal, $format:expr) => {
        scheme(
            $name,
            $aliases,
            concat!("INT", $bits, " in groups of ", $group, " with 16-bit biases; 16-bit activations"),
            $format.in_groups($group).with_wide_zeros(),
            affine($bits, $group),
        )
    };
}

macro_rules! centred {
    ($name:literal, $aliases:expr, $bits:literal, $group:literal, $format:expr) => {
        scheme(
            $name,
            $aliases,
            concat!("INT", $bits, " in groups of ", $group, ", symmetric, with the biases that MLX needs all the same"),
            $format.in_groups($group),
            centred($bits, $group),
        )
    };
}

/// Every scheme this layout has.
pub(super) const SCHEMES: &[Scheme] = &[
    affine!("int4-g64-zp16", &["mlx-4bit"], 4, 64, INT4),
    affine!("int4-g32-zp16", &[], 4, 32, INT4),
    affine!("int4-g128-zp16", &["int4wo", "int4-weight-only"], 4, 128, INT4),
    affine!("int8-g64-zp16", &["mlx-8bit"], 8, 64, INT8),
    affine!("int8-g32-zp16", &[], 8, 32, INT8),
    affine!("int8-g128-zp16", &[], 8, 128, INT8),
    affine!("int6-g64-zp16", &["mlx-6bit"], 6, 64, INT6),
    affine!("int6-g32-zp16", &[], 6, 32, INT6),
    affine!("int6-g128-zp16", &[], 6, 128, INT6),
    affine!("int3-g64-zp16", &["mlx-3bit"], 3, 64, INT3),
    affine!("int3-g32-zp16", &[], 3, 32, INT3),
    affine!("int3-g128-zp16", &[], 3, 128, INT3),
    affine!("int2-g64-zp16", &["mlx-2bit"], 2, 64, INT2),
    affine!("int2-g32-zp16", &[], 2, 32, INT2),
    affine!("int2-g128-zp16", &[], 2, 128, INT2),
    centred!("w4a16", &["int4", "int4-g128", "w4a16-g128"], 4, 128, INT4),
    centred!("int4-g64", &["w4a16-g64"], 4, 64, INT4),
    centred!("int4-g32", &["w4a16-g32"], 4, 32, INT4),
    centred!("int8-g128", &["w8a16-g128"], 8, 128, INT8),
    centred!("int3", &["int3-g64", "w3a16"], 3, 64, INT3),
    centred!("int2", &["int2-g64", "w2a16"], 2, 64, INT2),
    scheme("mxfp4a16", &[], "E2M1 in blocks of 32 with powers of two; 16-bit activations", Format::MXFP4, Coded::Mxfp4),
    scheme("mxfp8a16", &[], "E4M3 in blocks of 32 with powers of two; 16-bit activations", Format::MXFP8, Coded::Mxfp8),
    scheme(
        "nvfp4a16",
        &[],
        "E2M1 in blocks of 16 with E4M3 scales and none per tensor; 16-bit activations",
        Format::NVFP4,
        Coded::Nvfp4,
    ),
];

/// Families whose tensors mlx-lm has by the names that transformers gives them.
const SAME: [&str; 12] = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo2",
    "granite",
    "starcoder2",
    "glm4",
];
/// Families whose experts it has in stacks, and the names of their projections: gate, up and down.
const STACKING: [(&str, [&str; 3]); 4] = [
    ("mixtral", ["w1", "w3", "w2"]),
    ("qwen2_moe", ["gate_proj", "up_proj", "down_proj"]),
    ("qwen3_moe", ["gate_proj", "up_proj", "down_proj"]),
    ("olmoe", ["gate_proj", "up_proj", "down_proj"]),
];
/// What the projections are called in a stack.
const STACKED: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// A tensor of the output: one of the source, or those of all experts of a layer.
struct Tensor<'a> {
    /// Without `.weight`, for what is a module.
    site: Site,
    name: String,
    shard: usize,
    sources: Vec<StoredTensor<'a>>,
    stacked: bool,
    coded: Option<(&'static Scheme, Arc<dyn Coding>, Vec<Part>)>,
}

/// What writing the checkpoint takes.
pub(super) fn job<'a>(checkpoint: &'a Checkpoint, plan: &Plan, method: Method) -> Result<QuantizeJob<'a>> {
    let family = Family::of(checkpoint)?;
    let all = sites(checkpoint)?;
    let (asked, mut notes) = asked(plan, checkpoint, &all);
    let head = all.iter().any(|(_, site)| site.role == roofline_core::Role::Head);
    let tied = is_tied(&checkpoint.config, head);
    let mut tensors: BTreeMap<String, Tensor<'a>> = BTreeMap::new();
    for (stored, site) in all {
        if stored.is_coded() {
            return Err(quantized_already(checkpoint, &stored));
        }
        // mlx-lm has no head where the embedding is one, and takes no tensor that it does not know.
        if tied && site.role == roofline_core::Role::Head {
            continue;
        }
        let scheme = wanted(Layout::Mlx, &asked, &site, stored.dtype)?;
        let coding = scheme.map(|scheme| coding(scheme, &stored, method)).transpose()?;
        let place = family.place(&stored.name)?;
        let shard = shard_of(checkpoint, &stored);
        let Some(stack) = place else {
            let parts = coding.as_ref().map(|coding| parts(&stored, &**coding)).transpose()?;
            let coded = scheme.zip(coding).zip(parts).map(|((scheme, coding), parts)| (scheme, coding, parts));
            let name = stored.name.clone();
            let tensor = Tensor { site, name: name.clone(), shard, sources: vec![stored], stacked: false, coded };
            tensors.insert(name, tensor);
            continue;
        };
        let coded = scheme.zip(coding).map(|(scheme, coding)| (scheme, coding, Vec::new()));
        let tensor = tensors.entry(stack.name.clone()).or_insert_with(|| {
            let module = stack.name.strip_suffix(".weight").unwrap_or(&stack.name).to_owned();
            let site = Site { module, ..site };
            Tensor { site, name: stack.name.clone(), shard, sources: Vec::new(), stacked: true, coded: coded.clone() }
        });
        tensor.join(stack.expert, stored, coded.as_ref().map(|(scheme, ..)| *scheme))?;
    }
    for tensor in tensors.values_mut().filter(|tensor| tensor.stacked) {
        tensor.settle(family.experts)?;
    }
    let schemes: Vec<&Scheme> = tensors.values().filter_map(|tensor| Some(tensor.coded.as_ref()?.0)).collect();
    if schemes.is_empty() {
        return Err(Error::unsupported(
            format!("nothing to do: the plan `{plan}` leaves every weight of this model as it is"),
            "`⟨roofline inspect⟩` lists the weights and their roles; mlx-lm loads plain safetensors as they are",
        ));
    }
    notes.extend(advice(&schemes));
    notes.extend(checkpoint.left_out()?);
    write(checkpoint, tensors.into_values().collect(), tied, notes)
}

fn coding(scheme: &Scheme, stored: &StoredTensor<'_>, method: Method) -> Result<Arc<dyn Coding>> {
    if !is_number(stored.dtype) {
        let reason = format!("is stored as {}, which is not a floating-point number", stored.dtype);
        return Err(stored.refuse(reason, Some("keep it with `⟨keep⟩`")));
    }
    let Target::Mlx(coded) = scheme.target else { unreachable!("a scheme of this layout") };
    coded::coding(coded, stored.dtype, method).map(Arc::from)
}

/// What to know about the schemes that were asked for.
fn advice(schemes: &[&Scheme]) -> Vec<String> {
    let mut notes = Vec::new();
    let symmetric =
        schemes.iter().find(|scheme| matches!(scheme.target, Target::Mlx(Coded::Affine { centred: true, .. })));
    if let Some(scheme) = symmetric {
        let (format, group) = (scheme.weights, scheme.weights.block().unwrap_or(64));
        let bits = format.nominal_bits();
        notes.push(format!(
            "MLX stores a bias with every scale: `int{bits}-g{group}-zp16` takes as many bytes as `{}` and loses less",
            scheme.name
        ));
    }
    if schemes.iter().any(|scheme| scheme.target == Target::Mlx(Coded::Nvfp4)) {
        notes.push(
            "MLX's NVFP4 has no scale per tensor, so that small weights have coarse scales: `mxfp4a16` and `int4-g64-zp16` \
             lose less where most weights are below 0.1"
                .to_owned(),
        );
    }
    notes
}

/// Where a tensor of the source goes that does not keep its name.
struct Stack {
    name: String,
    expert: usize,
}

/// What is known of a family.
struct Family {
    projections: Option<[&'static str; 3]>,
    /// How many experts a layer has.
    experts: usize,
}

impl Family {
    fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let config = &checkpoint.config;
        let name = config["model_type"].as_str().unwrap_or_default();
        let projections = STACKING.iter().find(|(family, _)| *family == name).map(|(_, projections)| *projections);
        if projections.is_none() && !SAME.contains(&name) {
            let known: Vec<&str> = SAME.into_iter().chain(STACKING.map(|(family, _)| family)).collect();
            let what = if name.is_empty() {
                "config.json names no `model_type`, and mlx-lm goes by it".to_owned()
            } else {
                format!("how mlx-lm names the tensors of a `{name}` is not known to this program")
            };
            let hint = format!("known are {}; `mlx_lm.convert` takes the plain checkpoint", known.join(", "));
            return Err(Error::unsupported(what, hint));
        }
        let count = ["num_local_experts", "num_experts"].iter().find_map(|key| config[*key].as_u64()).unwrap_or(0);
        Ok(Self { projections, experts: usize::try_from(count).unwrap_or(0) })
    }

    /// The stack that an expert's weight belongs to; none for what is no expert's.
    fn place(&self, name: &str) -> Result<Option<Stack>> {
        let Some((start, rest)) = name.split_once(".experts.") else { return Ok(None) };
        let mut words = rest.split('.');
        let found = (words.next().and_then(|word| word.parse().ok()), words.next(), words.next(), words.next());
        let known = match (found, self.projections) {
            ((Some(expert), Some(projection), Some("weight"), None), Some(projections)) => projections
                .iter()
                .position(|known| *known == projection)
                .map(|at| Stack { name: format!("{start}.switch_mlp.{}.weight", STACKED[at]), expert }),
            _ => None,
        };
        let refuse = || Error::Weight {
            name: name.to_owned(),
            reason: "is an expert's by its name, and mlx-lm has no place for it in this family".to_owned(),
            hint: Some("save the model with a current transformers first, which stores experts apart".to_owned()),
        };
        known.map(Some).ok_or_else(refuse)
    }
}

impl<'a> Tensor<'a> {
    /// Takes in an expert.
    fn join(&mut self, expert: usize, stored: StoredTensor<'a>, scheme: Option<&'static Scheme>) -> Result<()> {
        let own = self.coded.as_ref().map(|(scheme, ..)| scheme.name);
        if own != scheme.map(|scheme| scheme.name) {
            let reason = "is stored otherwise than other experts of its layer, which mlx-lm has in one tensor";
            return Err(stored.refuse(reason, Some("give all experts of a layer the same scheme")));
        }
        let fits =
            self.sources.first().is_none_or(|first| (&first.shape, first.dtype) == (&stored.shape, stored.dtype));
        if !fits {
            return Err(stored.refuse("has another shape or type than other experts of its layer", None));
        }
        // Names come in the order of their text: 10 before 2.
        let at = self.sources.partition_point(|other| number_of(&other.name) < expert);
        self.sources.insert(at, stored);
        Ok(())
    }

    /// Checks that all experts are there, and finds the shapes of the whole.
    fn settle(&mut self, experts: usize) -> Result<()> {
        let Some(first) = self.sources.first() else { return Ok(()) };
        let complete = self.sources.iter().enumerate().all(|(at, source)| number_of(&source.name) == at);
        if !complete || self.sources.len() != experts {
            let reason =
                format!("is one of {} experts of its layer, and config.json has {experts}", self.sources.len());
            return Err(first.refuse(reason, None));
        }
        if let Some((_, coding, parts)) = &mut self.coded {
            *parts = super::parts(first, &**coding)?;
            for part in parts {
                part.shape.insert(0, experts);
            }
        }
        Ok(())
    }

    /// The names, types and shapes that are stored.
    fn stored(&self) -> Vec<(String, crate::Dtype, Vec<usize>)> {
        match (&self.coded, self.sources.first()) {
            (Some((_, _, parts)), _) => {
                let named =
                    |part: &Part| (format!("{}.{}", self.site.module, part.name), part.dtype, part.shape.clone());
                parts.iter().map(named).collect()
            }
            (None, Some(first)) => {
                let experts = Some(self.sources.len()).filter(|_| self.stacked);
                let shape = experts.into_iter().chain(first.shape.iter().copied()).collect();
                vec![(self.name.clone(), first.dtype, shape)]
            }
            (None, None) => Vec::new(),
        }
    }
}

/// The number of an expert.
fn number_of(name: &str) -> usize {
    let rest = name.split_once(".experts.").map_or("", |(_, rest)| rest);
    rest.split('.').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Everything that will be written.
fn write<'a>(
    checkpoint: &'a Checkpoint,
    tensors: Vec<Tensor<'a>>,
    tied: bool,
    notes: Vec<String>,
) -> Result<QuantizeJob<'a>> {
    let mut folder = folder::Folder::new(checkpoint.shards.len());
    for tensor in &tensors {
        for (name, dtype, shape) in tensor.stored() {
            folder.add(tensor.shard, name, dtype, &shape);
        }
    }
    let laid_out = folder.lay_out(&[("format".to_owned(), "mlx".to_owned())])?;
    let config = config::of(
        &checkpoint.config,
        tied,
        tensors.iter().filter_map(|tensor| {
            let (scheme, ..) = tensor.coded.as_ref()?;
            let Target::Mlx(coded) = scheme.target else { return None };
            Some((tensor.site.module.as_str(), coded))
        }),
    )?;
    let mut items = Vec::new();
    for tensor in tensors {
        let names: Vec<String> = tensor.stored().into_iter().map(|(name, ..)| name).collect();
        let places: Vec<Place> = names.iter().filter_map(|name| laid_out.places.get(name).copied()).collect();
        add(tensor, &places, &mut items)?;
    }
    let companions = folder::companions(checkpoint, &config, laid_out.index)?;
    Ok(QuantizeJob { files: laid_out.files, items, companions, notes, nearest: Vec::new() })
}

/// The items of a tensor whose parts have these places.
fn add<'a>(tensor: Tensor<'a>, places: &[Place], items: &mut Vec<Item<'a>>) -> Result<()> {
    let Tensor { site, name, sources, coded, stacked, .. } = tensor;
    if let Some((scheme, coding, parts)) = coded {
        let mut origins: Vec<Origin> = Vec::new();
        for source in sources.iter().filter(|_| stacked) {
            let first = origins.last().map_or(0, |above| above.rows.end);
            origins.push(Origin::whole(&source.name, source.shape.first().copied().unwrap_or(0)).below(first));
        }
        let rows = sources.into_iter().map(StoredTensor::into_rows).collect::<Result<Vec<Box<dyn Rows + 'a>>>>()?;
        let parts = parts.into_iter().zip(places.iter().copied()).collect();
        let fused = vec![items.len()];
        let scheme = scheme.name.to_owned();
        let code = Code {
            rows: Stacked::of(rows),
            coding,
            scheme,
            lossy: true,
            fused,
            importance: None,
            chosen: None,
            origins,
            parts,
        };
        items.push(Item { name, site, work: Work::Code(code) });
        return Ok(());
    }
    let Some(start) = places.first() else { return Ok(()) };
    let mut offset = start.offset;
    for source in sources {
        let to = Place { offset, ..*start };
        let (name, bytes) = (source.name.clone(), source.elements() * source.dtype.bytes() as u64);
        let work = match source.kind {
            Kind::Plain((shard, entry)) => Work::Copy { shard, entry, to },
            _ => numbers(source, to, items.len())?,
        };
        items.push(Item { name, site: site.clone(), work });
        offset += bytes;
    }
    Ok(())
}

/// Numbers that do not lie in a tensor of their own, as they are.
fn numbers(source: StoredTensor<'_>, to: Place, item: usize) -> Result<Work<'_>> {
    let (coding, scheme): (Arc<dyn Coding>, String) = (Arc::new(Numbers(source.dtype)), source.dtype.to_string());
    let columns = source.shape.last().copied().unwrap_or(1);
    let matrix = Matrix { rows: source.elements() as usize / columns.max(1), columns };
    let parts = coding.parts(matrix).map_err(|reason| source.refuse(reason, None))?;
    let parts = parts.into_iter().map(|part| (part, to)).collect();
    let rows = source.into_rows()?;
    Ok(Work::Code(Code {
        rows,
        coding,
        scheme,
        lossy: false,
        fused: vec![item],
        importance: None,
        chosen: None,
        origins: Vec::new(),
        parts,
    }))
}
