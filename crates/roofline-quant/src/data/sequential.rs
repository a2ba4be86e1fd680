//! The way through a model: each layer is observed, quantized, kept, and passed by all samples before the next one.

use std::{
    collections::{BTreeMap, HashSet},
    fs, mem,
    path::PathBuf,
    sync::Arc,
};

use super::{
    Tuning, awq,
    fold::Tensors,
    gptq::{Compensation, Order},
    layer::{KeptLayer, Layer, read_all},
    moments::Moments,
    pieces::{Piece, Products, keys},
    smooth,
};
use crate::{
    Error, Method, QuantizeJob, Result,
    coding::{Coding, Matrix, Numbers},
    job::{Code, Item, Work},
    observed::{Observed, Pass, Replaced},
    roundtrip::roundtrip,
    rows::{Band, Factors, InMemory, Plain, Rows, Scaled, Stacked},
    site::Site,
    stream::Progress,
};

/// Inputs for each token that a product must have seen: with fewer, what it saw says little about most of them.
const INPUTS_PER_TOKEN: u64 = 8;
/// Notes that are told one by one.
const MOST_NOTES: usize = 8;

/// What is done with every layer, and with what.
pub(crate) struct Sequence<'s> {
    pub(crate) method: Method,
    pub(crate) tuning: Tuning,
    /// Whether norms multiply by `1 + w`.
    pub(crate) plus_one: bool,
    /// Where layers are kept.
    pub(crate) folder: PathBuf,
    pub(crate) threads: usize,
    pub(crate) watch: &'s dyn Progress,
}

/// The inputs that products share: the modules that read them, and which expert they are.
pub(super) type Input = (Vec<String>, Option<usize>);

impl Sequence<'_> {
    /// Lets the method choose for every layer, and the job take what it chose. Layers that an interrupted run has kept are
    /// taken as they are.
    pub(crate) fn run(&self, job: &mut QuantizeJob<'_>, observed: &mut dyn Observed) -> Result<()> {
        fs::create_dir_all(&self.folder).map_err(Error::file("create", &self.folder))?;
        let layers = observed.layers();
        let kept = (0..layers).take_while(|layer| self.path(*layer).exists()).count();
        let mut notes = Vec::new();
        for layer in 0..layers {
            if self.watch.cancelled() {
                return Err(Error::Cancelled);
            }
            self.watch.starts(layer, layers);
            let needed = kept < layers && layer + 1 < layers;
            if layer >= kept {
                self.make(job, observed, layer)?.write(&self.path(layer))?;
            }
            let own = KeptLayer::open(&self.path(layer))?;
            if needed && (self.method == Method::Gptq || layer < kept) {
                let replaced = self.replaced(job, &own, layer)?;
                observed.run(Pass { layer, replaced: &replaced, moves_on: true }, &mut |_| Ok(()))?;
            }
            notes.extend(own.notes.iter().cloned());
            job.nearest.extend(own.nearest.iter().cloned());
            apply(job, &own, layer)?;
        }
        let more = notes.len().saturating_sub(MOST_NOTES);
        notes.truncate(MOST_NOTES);
        if more > 0 {
            notes.push(format!("and {more} more notes on layers after these"));
        }
        job.notes.extend(notes);
        Ok(())
    }

    fn path(&self, layer: usize) -> PathBuf {
        self.folder.join(format!("layer-{layer:04}.safetensors"))
    }

    /// What the method makes of a layer.
    fn make(&self, job: &QuantizeJob<'_>, observed: &mut dyn Observed, layer: usize) -> Result<Layer> {
        let products = Products::of_layer(job, layer);
        let mut inputs: BTreeMap<Input, Moments> = BTreeMap::new();
        // Only GPTQ runs a layer again, with what it made of it.
        let moves_on = self.method != Method::Gptq && layer + 1 < observed.layers();
        observed.run(Pass { layer, replaced: &Replaced::new(), moves_on }, &mut |seen| {
            if self.watch.cancelled() {
                return Err(Error::Cancelled);
            }
            if !seen.modules.iter().any(|module| products.has(module, seen.expert)) {
                return Ok(());
            }
            let key = (seen.modules.to_vec(), seen.expert);
            let fresh = || match self.method {
                Method::SmoothQuant => Moments::without_products(seen.columns),
                _ => Moments::new(seen.columns),
            };
            inputs.entry(key).or_insert_with(fresh).add(seen, self.threads)
        })?;
        let rare = forget_rare(&products, &mut inputs);
        let mut made = Layer::default();
        if let Some(rare) = several(&rare) {
            // SmoothQuant rounds all to nearest; what differs is the inputs.
            let so = match self.method {
                Method::SmoothQuant => "their inputs are not looked at",
                _ => "they are rounded to nearest",
            };
            made.notes.push(format!("layer {layer}: too few tokens reach {rare}: {so}"));
        }
        if self.method != Method::SmoothQuant {
            made.nearest = rare;
        }
        match self.method {
            Method::Awq | Method::SmoothQuant => self.rescale(job, layer, &inputs, &mut made)?,
            _ => self.round(job, layer, &products, &inputs, &mut made)?,
        }
        Ok(made)
    }

    /// Factors wherever there is a place for them, and for AWQ codes of what is multiplied by them.
    fn rescale(
        &self,
        job: &QuantizeJob<'_>,
        layer: usize,
        inputs: &BTreeMap<Input, Moments>,
        made: &mut Layer,
    ) -> Result<()> {
        let Some(tensors) = Tensors::of(job, layer, self.plus_one) else { return Ok(()) };
        let awq = self.method == Method::Awq;
        let folds = tensors.folds(inputs, awq);
        if folds.is_empty() && !inputs.is_empty() {
            made.notes.push(format!("layer {layer}: there is no norm or product that factors could go into"));
        }
        // Inputs that stay as they are need not be easy to round.
        for fold in folds.into_iter().filter(|fold| awq || tensors.rounds_inputs(fold)) {
            let factors = if awq {
                awq::factors(&fold, &tensors, self.threads)?
            } else {
                smooth::factors(&fold, &tensors, self.tuning.alpha, self.threads)?
            };
            if let Some(factors) = factors {
                tensors.put(&fold, factors, &mut made.tensors)?;
            }
        }
        if !awq {
            return Ok(());
        }
        let products = Products::of_layer(job, layer);
        for ((modules, expert), moments) in inputs {
            for piece in modules.iter().flat_map(|module| products.of(module, *expert)) {
                let Some(code) = piece.code(job) else { continue };
                let own = made.tensors.entry(piece.key.clone()).or_default();
                let factors = own.factors.clone().unwrap_or_default();
                let scale = factors.columns.as_deref().unwrap_or_default();
                let importance = awq::scaled_back(moments.importance_for_scales(), scale);
                let Some(grid) = code.coding.grid() else {
                    own.importance = code.coding.weighs().then_some(importance);
                    continue;
                };
                let weights = read_all(&Scaled { inner: piece.rows(code), factors } as &dyn Rows, self.threads)?;
                own.chosen = Some(awq::clipped(&weights, &importance, &*grid, self.threads));
                own.importance = grid.by_rows().then_some(importance);
            }
        }
        Ok(())
    }

    /// GPTQ's codes of every product.
    fn round(
        &self,
        job: &QuantizeJob<'_>,
        layer: usize,
        products: &Products,
        inputs: &BTreeMap<Input, Moments>,
        made: &mut Layer,
    ) -> Result<()> {
        let Tuning { act_order, damping, .. } = self.tuning;
        let order = if act_order { Order::Activations } else { Order::Natural };
        let mut doubts = Doubts::default();
        for ((modules, expert), moments) in inputs {
            let readers = || modules.iter().flat_map(|module| products.of(module, *expert));
            let Some(first) = readers().next().map(Piece::name) else { continue };
            let Some(compensation) = Compensation::new(moments, order, damping, self.threads) else {
                doubts.unfactored.push(first);
                made.nearest.extend(readers().map(Piece::name));
                continue;
            };
            if compensation.dead > 0 {
                doubts.dead.push(first.clone());
                doubts.channels += compensation.dead;
            }
            if compensation.damping > damping {
                doubts.damped.push(first);
                doubts.damping = doubts.damping.max(compensation.damping);
            }
            for piece in modules.iter().flat_map(|module| products.of(module, *expert)) {
                let Some(code) = piece.code(job).filter(|code| code.matrix().columns == moments.columns) else {
                    made.nearest.push(piece.name());
                    continue;
                };
                let own = made.tensors.entry(piece.key.clone()).or_default();
                let Some(grid) = code.coding.grid() else {
                    own.importance = code.coding.weighs().then(|| compensation.importance.clone());
                    continue;
                };
                let weights = read_all(&piece.rows(code) as &dyn Rows, self.threads)?;
                own.chosen = Some(compensation.round(&weights, &*grid, self.threads));
                own.importance = grid.by_rows().then(|| compensation.importance.clone());
            }
        }
        made.notes.extend(doubts.notes(layer));
        Ok(())
    }

    /// What runs in the place of a layer's weights: what they decode to, in the order and under the names of the source.
    fn replaced(&self, job: &QuantizeJob<'_>, kept: &KeptLayer, layer: usize) -> Result<Replaced> {
        let mut replaced = Replaced::new();
        if self.method != Method::Gptq {
            return Ok(replaced);
        }
        let products = Products::with_kept(job, layer);
        for (tensor, pieces) in products.tensors() {
            let codes: Vec<_> = pieces.iter().filter_map(|piece| Some((*piece, piece.code(job)?))).collect();
            // Where a part of a tensor is not among what is written, all of it runs as it was.
            let rows: usize = pieces.iter().map(|piece| piece.origin.rows.len()).sum();
            let last = pieces.iter().map(|piece| piece.origin.order.source(piece.origin.rows.len().max(1) - 1)).max();
            let lossy = codes.iter().any(|(_, code)| code.lossy);
            if !lossy || codes.len() < pieces.len() || last.is_none_or(|last| last >= rows) {
                continue;
            }
            let columns = codes[0].1.matrix().columns;
            let mut whole = vec![0.0; rows * columns];
            for (piece, code) in codes {
                let values = self.decoded(piece, code, kept)?;
                for (row, values) in values.chunks_exact(columns).enumerate() {
                    whole[piece.origin.order.source(row) * columns..][..columns].copy_from_slice(values);
                }
            }
            replaced.insert(tensor.to_owned(), Arc::new(InMemory::new(Matrix { rows, columns }, whole)));
        }
        Ok(replaced)
    }

    /// What a matrix decodes to: the codes that were chosen for it, those of its own type, or its own numbers.
    fn decoded(&self, piece: &Piece, code: &Code<'_>, kept: &KeptLayer) -> Result<Vec<f32>> {
        let matrix = Matrix { rows: piece.origin.rows.len(), columns: code.matrix().columns };
        let grid = code.coding.grid();
        let group = grid.as_ref().map_or(1, |grid| grid.group(matrix.columns));
        let made = kept.chosen(std::slice::from_ref(&piece.key), matrix, group);
        if let (Some(made), Some(grid)) = (&made, &grid)
            && let Some(values) = made.values(0, &**grid)?
        {
            return Ok(values);
        }
        let weighed = made.map(|made| made.read(0..matrix.rows)).transpose()?.and_then(|(_, importance)| importance);
        let importance = weighed.as_deref().or_else(|| code.importance_of(piece.origin.rows.start));
        let numbers = read_all(&piece.rows(code) as &dyn Rows, self.threads)?;
        if !code.lossy {
            return Ok(numbers);
        }
        roundtrip(&*code.coding, matrix.columns, &numbers, importance, self.threads).map_err(|reason| Error::Weight {
            name: piece.origin.tensor.clone(),
            reason,
            hint: None,
        })
    }
}

/// What about the inputs of a layer is out of the ordinary.
#[derive(Default)]
struct Doubts {
    /// Who reads inputs that cannot be factored.
    unfactored: Vec<String>,
    /// Who reads channels that are zero, and how many those are.
    dead: Vec<String>,
    channels: usize,
    /// Who reads inputs that needed more damping, and the most of it.
    damped: Vec<String>,
    damping: f64,
}

impl Doubts {
    fn notes(&self, layer: usize) -> Vec<String> {
        let Self { unfactored, dead, channels, damped, damping } = self;
        let told = [
            (unfactored, "inputs cannot be factored: what reads them is rounded to nearest".to_owned()),
            (
                dead,
                format!(
                    "channels of inputs are zero in every token, {channels} in all: their weights are rounded to nearest"
                ),
            ),
            (damped, format!("inputs are nearly singular: damping was raised, to {damping} at most")),
        ];
        let told = told.into_iter().filter_map(|(readers, words)| Some((several(readers)?, words)));
        told.map(|(readers, words)| format!("layer {layer}, {readers}: {words}")).collect()
    }
}

/// The first of some names, and how many more there are.
fn several(names: &[String]) -> Option<String> {
    match names {
        [] => None,
        [one] => Some(one.clone()),
        [first, others @ ..] => Some(format!("{first} and {} more", others.len())),
    }
}

/// Gives the items of a layer what was made of them.
fn apply(job: &mut QuantizeJob<'_>, kept: &KeptLayer, layer: usize) -> Result<()> {
    for item in job.items.iter_mut().filter(|item| item.site.layer == Some(layer as u64)) {
        let keys = keys(item);
        let factors = keys.iter().map(|key| kept.factors(key)).collect::<Result<Vec<_>>>()?;
        if factors.iter().any(Option::is_some) {
            multiply(item, factors)?;
        }
        if let Work::Code(code) = &mut item.work
            && code.lossy
        {
            let matrix = code.matrix();
            let group = code.coding.grid().map_or(1, |grid| grid.group(matrix.columns));
            code.chosen = kept.chosen(&keys, matrix, group).map(Box::new);
        }
    }
    Ok(())
}

/// Takes away what too few tokens have reached, and says which that is: experts, as a rule.
fn forget_rare(products: &Products, inputs: &mut BTreeMap<Input, Moments>) -> Vec<String> {
    inputs.retain(|_, moments| moments.tokens * INPUTS_PER_TOKEN >= moments.columns as u64);
    let seen: HashSet<(&str, Option<usize>)> =
        inputs.keys().flat_map(|(modules, expert)| modules.iter().map(|module| (module.as_str(), *expert))).collect();
    products.unseen(&seen)
}

/// How much the inputs of a tensor, or of each of a stack, matter once its weights are multiplied by factors, and they therefore
/// divided: what nothing is chosen for is weighed by it.
fn scaled_importance(known: &[f32], columns: usize, factors: &[Option<Factors>]) -> Vec<f32> {
    let known: Vec<&[f32]> = known.chunks_exact(columns.max(1)).collect();
    let stack = known.len().max(factors.len());
    let one = |at: usize| {
        let factors = factors[at * factors.len() / stack].as_ref().and_then(|own| own.columns.as_deref());
        awq::scaled_back(known[at * known.len() / stack].to_vec(), factors.unwrap_or_default())
    };
    (0..stack).flat_map(one).collect()
}

/// From now on a tensor is read times its factors, those of each matrix in it; one that would be copied is coded in its own type.
fn multiply(item: &mut Item<'_>, mut factors: Vec<Option<Factors>>) -> Result<()> {
    match &mut item.work {
        Work::Code(code) => {
            let nothing = Box::new(InMemory::new(Matrix { rows: 0, columns: 0 }, Vec::new()));
            let inner = Arc::new(mem::replace(&mut code.rows, nothing));
            let each = inner.matrix().rows / factors.len().max(1);
            let columns = inner.matrix().columns;
            code.importance = code.importance.take().map(|known| scaled_importance(&known, columns, &factors));
            let pieces = factors.into_iter().enumerate().map(|(at, factors)| {
                let inner = Band::new(Arc::clone(&inner), at * each, each);
                Box::new(Scaled { inner, factors: factors.unwrap_or_default() }) as Box<dyn Rows>
            });
            code.rows = Stacked::of(pieces.collect());
        }
        Work::Copy { shard, entry, to } => {
            let (rows, coding) = (Plain::new(shard, entry)?, Arc::new(Numbers(entry.dtype)));
            let unfit = |reason| Error::Weight { name: item.name.clone(), reason, hint: None };
            let parts = coding.parts(rows.matrix()).map_err(unfit)?.into_iter().map(|part| (part, *to)).collect();
            item.work = Work::Code(Code {
                rows: Box::new(Scaled { inner: rows, factors: factors.pop().flatten().unwrap_or_default() }),
                coding,
                scheme: entry.dtype.name().to_owned(),
                lossy: false,
                fused: Vec::new(),
                importance: None,
                chosen: None,
                origins: Vec::new(),
                parts,
            });
        }
        Work::Literal { .. } => {}
    }
    Ok(())
}

/// Bytes of memory that a method holds at most beside the model: what is kept of the inputs of a layer, the widest of them
/// factored, and the numbers of a matrix.
pub(crate) fn memory(job: &QuantizeJob<'_>, method: Method) -> u64 {
    let mut layers: BTreeMap<u64, BTreeMap<(String, Option<usize>), u64>> = BTreeMap::new();
    let (mut widest, mut largest) = (0, 0);
    for item in &job.items {
        let (Work::Code(code), Some(layer)) = (&item.work, item.site.layer) else { continue };
        if code.lossy {
            let columns = code.matrix().columns;
            let kept = if method == Method::SmoothQuant { 0 } else { Moments::bytes(columns) };
            let origins = item.origins();
            for origin in &origins {
                // Products of one input share what is kept of it.
                let site = Site { module: origin.module().to_owned(), ..item.site.clone() };
                let input = (site.fused().into_iter().next().unwrap_or_default(), origin.expert);
                layers.entry(layer).or_default().insert(input, kept);
            }
            widest = widest.max(match method {
                Method::Gptq => Compensation::bytes(columns),
                Method::Awq => awq::bytes(columns),
                _ => kept,
            });
            largest = largest.max(item.weights());
        }
    }
    let inputs = layers.values().map(|layer| layer.values().sum::<u64>()).max().unwrap_or(0);
    inputs + widest + 3 * 4 * largest
}

/// Bytes of disk that the files of all layers take: a byte for each code, a scale and a zero point for each group, and how much
/// inputs matter.
pub(crate) fn kept(job: &QuantizeJob<'_>, method: Method) -> u64 {
    let of_item = |item: &Item<'_>| {
        let (Work::Code(code), Some(_)) = (&item.work, item.site.layer) else { return 0 };
        let (weights, columns) = (item.weights(), code.matrix().columns);
        let choice = code.coding.grid().filter(|_| code.lossy && method != Method::SmoothQuant);
        let choice = choice.map_or(0, |grid| weights + 8 * weights / grid.group(columns).max(1) as u64);
        choice + (4 * columns * item.origins().len()) as u64
    };
    job.items.iter().map(of_item).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a stack of two of which the first is multiplied, and of two channels once and for each.
    #[test]
    fn importance_goes_down_as_weights_go_up() {
        let by = |columns: &[f32]| Some(Factors { columns: Some(columns.to_vec()), ..Factors::default() });
        let twice = by(&[2.0, 1.0]);
        assert_eq!(scaled_importance(&[8.0, 3.0], 2, std::slice::from_ref(&twice)), [2.0, 3.0]);
        assert_eq!(scaled_importance(&[8.0, 3.0], 2, &[twice.clone(), None]), [2.0, 3.0, 8.0, 3.0]);
        assert_eq!(
            scaled_importance(&[8.0, 3.0, 4.0, 1.0], 2, &[twice.clone(), by(&[1.0, 0.5])]),
            [2.0, 3.0, 4.0, 4.0]
        );
        assert_eq!(scaled_importance(&[8.0, 3.0, 4.0, 1.0], 2, &[twice]), [2.0, 3.0, 1.0, 1.0]);
    }
}
