//! The way through a model: each layer is observed, quantized, kept, and passed by all samples before the next one.

use std::{
    collections::{BTreeMap, HashMap},
    fs, mem,
    path::PathBuf,
    sync::Arc,
};

use super::{
    Tuning, awq,
    fold::Tensors,
    gptq::{Compensation, Order},
    layer::{KeptLayer, Layer, Made, read_all},
    moments::Moments,
    smooth,
};
use crate::{
    Error, Method, QuantizeJob, Result,
    coding::{Coding, Matrix, Numbers},
    job::{Code, Item, Work},
    observed::{Observed, Pass, Replaced},
    rows::{Factors, InMemory, Plain, Rows, Scaled},
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
            apply(job, &own, layer)?;
        }
        let more = notes.len().saturating_sub(MOST_NOTES);
        notes.truncate(MOST_NOTES);
        if more > 0 {
            notes.push(format!("and {more} more layers of which the like is to be said"));
        }
        job.notes.extend(notes);
        Ok(())
    }

    fn path(&self, layer: usize) -> PathBuf {
        self.folder.join(format!("layer-{layer:04}.safetensors"))
    }

    /// What the method makes of a layer.
    fn make(&self, job: &QuantizeJob<'_>, observed: &mut dyn Observed, layer: usize) -> Result<Layer> {
        let products = Products::of(job, layer);
        let mut inputs: BTreeMap<Input, Moments> = BTreeMap::new();
        // Only GPTQ runs a layer again, with what it made of it.
        let moves_on = self.method != Method::Gptq && layer + 1 < observed.layers();
        observed.run(Pass { layer, replaced: &Replaced::new(), moves_on }, &mut |seen| {
            if self.watch.cancelled() {
                return Err(Error::Cancelled);
            }
            if !seen.modules.iter().any(|module| products.0.contains_key(module)) {
                return Ok(());
            }
            let key = (seen.modules.to_vec(), seen.expert);
            let fresh = || match self.method {
                Method::SmoothQuant => Moments::without_products(seen.columns),
                _ => Moments::new(seen.columns),
            };
            inputs.entry(key).or_insert_with(fresh).add(seen, self.threads)
        })?;
        let mut made = Layer::default();
        let few = products.forget_rare(&mut inputs, layer);
        made.notes.extend(few);
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
        for fold in tensors.folds(inputs, awq) {
            let factors = if awq {
                awq::factors(&fold, &tensors, self.threads)?
            } else {
                smooth::factors(&fold, &tensors, self.tuning.alpha, self.threads)?
            };
            if let Some(factors) = factors {
                tensors.put(&fold, &factors, &mut made.tensors);
            }
        }
        if !awq {
            return Ok(());
        }
        for ((modules, _), moments) in inputs {
            for module in modules {
                let Some(item) = tensors.item(module) else { continue };
                let Work::Code(code) = &item.work else { continue };
                let Some(grid) = code.coding.grid().filter(|_| code.lossy) else { continue };
                let own = made.tensors.entry(item.name.clone()).or_default();
                let factors = own.factors.clone().unwrap_or_default();
                let mut importance = moments.importance();
                for (own, factor) in importance.iter_mut().zip(factors.columns.iter().flatten()) {
                    *own /= factor * factor;
                }
                let weights = read_all(&Scaled { inner: &*code.rows, factors } as &dyn Rows, self.threads)?;
                own.chosen = Some(awq::clipped(&weights, &importance, &*grid, self.threads));
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
        for ((modules, _), moments) in inputs {
            let of = || format!("layer {layer}: the inputs of `{}`", modules[0]);
            let Some(compensation) = Compensation::new(moments, order, damping, self.threads) else {
                made.notes.push(format!("{} cannot be factored: it is rounded to nearest", of()));
                continue;
            };
            if compensation.dead > 0 {
                let count = compensation.dead;
                made.notes.push(format!(
                    "{} are zero {count} times in every token: their weights are rounded to nearest",
                    of()
                ));
            }
            if compensation.damping > damping {
                made.notes.push(format!(
                    "{} are nearly singular: damping was raised to {}",
                    of(),
                    compensation.damping
                ));
            }
            for module in modules {
                let Some((item, code, grid)) = products.code(job, module, moments.columns) else { continue };
                let weights = read_all(&*code.rows, self.threads)?;
                let chosen = compensation.round(&weights, &*grid, self.threads);
                made.tensors.insert(item.name.clone(), Made { chosen: Some(chosen), factors: None });
            }
        }
        Ok(())
    }

    /// What runs in the place of a layer's weights: what they decode to.
    fn replaced(&self, job: &QuantizeJob<'_>, kept: &KeptLayer, layer: usize) -> Result<Replaced> {
        let mut replaced = Replaced::new();
        if self.method != Method::Gptq {
            return Ok(replaced);
        }
        for item in job.items.iter().filter(|item| item.site.layer == Some(layer as u64)) {
            let Work::Code(code) = &item.work else { continue };
            let Some(grid) = code.coding.grid() else { continue };
            let matrix = code.matrix();
            if let Some(chosen) = kept.chosen(&item.name, matrix, grid.group(matrix.columns)) {
                let numbers = InMemory::new(matrix, chosen.values(&*grid)?);
                replaced.insert(item.name.clone(), Arc::new(numbers));
            }
        }
        Ok(replaced)
    }
}

/// The quantized products of a layer, by their modules.
pub(super) struct Products(pub(super) HashMap<String, usize>);

impl Products {
    fn of(job: &QuantizeJob<'_>, layer: usize) -> Self {
        let quantized = |item: &Item<'_>| matches!(&item.work, Work::Code(code) if code.lossy);
        let own = job.items.iter().enumerate().filter(|(_, item)| item.site.layer == Some(layer as u64));
        Self(own.filter(|(_, item)| quantized(item)).map(|(at, item)| (item.site.module.clone(), at)).collect())
    }

    /// A product of so many inputs, and the grid of its codes.
    pub(super) fn code<'j>(
        &self,
        job: &'j QuantizeJob<'_>,
        module: &str,
        columns: usize,
    ) -> Option<(&'j Item<'j>, &'j Code<'j>, Box<dyn crate::coding::Grid>)> {
        let item = job.items.get(*self.0.get(module)?)?;
        let Work::Code(code) = &item.work else { return None };
        let grid = code.coding.grid().filter(|_| code.matrix().columns == columns)?;
        Some((item, code, grid))
    }

    /// Takes away what too few tokens have reached, and says which that is: experts, as a rule.
    fn forget_rare(&self, inputs: &mut BTreeMap<Input, Moments>, layer: usize) -> Option<String> {
        inputs.retain(|_, moments| moments.tokens * INPUTS_PER_TOKEN >= moments.columns as u64);
        let seen: std::collections::HashSet<&str> =
            inputs.keys().flat_map(|(modules, _)| modules.iter().map(String::as_str)).collect();
        let mut rare: Vec<&str> = self.0.keys().map(String::as_str).filter(|module| !seen.contains(module)).collect();
        rare.sort_unstable();
        let first = rare.first()?;
        let others = if rare.len() > 1 { format!(" and {} more", rare.len() - 1) } else { String::new() };
        Some(format!("layer {layer}: too few tokens reach `{first}`{others}: they are rounded to nearest"))
    }
}

/// Gives the items of a layer what was made of them.
fn apply(job: &mut QuantizeJob<'_>, kept: &KeptLayer, layer: usize) -> Result<()> {
    for item in job.items.iter_mut().filter(|item| item.site.layer == Some(layer as u64)) {
        if let Some(factors) = kept.factors(&item.name)? {
            multiply(item, factors)?;
        }
        if let Work::Code(code) = &mut item.work
            && let Some(grid) = code.coding.grid()
        {
            let matrix = code.matrix();
            code.chosen = kept.chosen(&item.name, matrix, grid.group(matrix.columns)).map(Box::new);
        }
    }
    Ok(())
}

/// From now on a tensor is read times its factors; one that would be copied is coded in its own type.
fn multiply(item: &mut Item<'_>, factors: Factors) -> Result<()> {
    match &mut item.work {
        Work::Code(code) => {
            let nothing = Box::new(InMemory::new(Matrix { rows: 0, columns: 0 }, Vec::new()));
            let inner = mem::replace(&mut code.rows, nothing);
            code.rows = Box::new(Scaled { inner, factors });
        }
        Work::Copy { shard, entry, to } => {
            let (rows, coding) = (Plain::new(shard, entry)?, Arc::new(Numbers(entry.dtype)));
            let unfit = |reason| Error::Weight { name: item.name.clone(), reason, hint: None };
            let parts = coding.parts(rows.matrix()).map_err(unfit)?.into_iter().map(|part| (part, *to)).collect();
            item.work = Work::Code(Code {
                rows: Box::new(Scaled { inner: rows, factors }),
                coding,
                scheme: entry.dtype.name().to_owned(),
                lossy: false,
                fused: Vec::new(),
                importance: None,
                chosen: None,
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
    let mut layers: BTreeMap<u64, BTreeMap<String, u64>> = BTreeMap::new();
    let (mut widest, mut largest) = (0, 0);
    for item in &job.items {
        let (Work::Code(code), Some(layer)) = (&item.work, item.site.layer) else { continue };
        if code.lossy {
            let columns = code.matrix().columns;
            // Products of one input share what is kept of it.
            let input = item.site.fused().into_iter().next().unwrap_or_default();
            let kept = if method == Method::SmoothQuant { 0 } else { Moments::bytes(columns) };
            layers.entry(layer).or_default().insert(input, kept);
            widest = widest.max(if method == Method::Gptq { Compensation::bytes(columns) } else { kept });
            largest = largest.max(item.weights());
        }
    }
    let inputs = layers.values().map(|layer| layer.values().sum::<u64>()).max().unwrap_or(0);
    inputs + widest + 3 * 4 * largest
}
