//! Where factors between a layer's tensors go that change nothing but how hard they are to round: products read their inputs
//! times a factor per channel, and what makes those inputs divides by it.
//!
//! Inputs come from a norm, whose weights can take any factor; from the values, which attention only averages; or from the
//! way up, which a gate only multiplies. Nothing else is linear enough.

use std::{collections::BTreeMap, sync::Arc};

use roofline_core::Role;

use super::{
    layer::{Made, read_all},
    moments::Moments,
    pieces::{Piece, Products},
    rounds_inputs,
    sequential::Input,
};
use crate::{
    Error, QuantizeJob, Result,
    coding::{Coding, Grid, Matrix, Numbers},
    job::{Item, Work},
    origin::Order,
    roundtrip::roundtrip,
    rows::{Factors, InMemory, Plain, Rows, Scaled},
};

/// A product that reads some inputs.
#[derive(Clone)]
pub(super) struct Reader<'m> {
    pub(super) module: String,
    /// Which expert, where the module holds all of them.
    pub(super) expert: Option<usize>,
    /// What was seen of its inputs.
    pub(super) moments: Option<&'m Moments>,
}

/// A place for factors.
pub(super) struct Fold<'m> {
    /// Products that read the inputs. All of them take part, quantized or not.
    pub(super) readers: Vec<Reader<'m>>,
    /// Tensors whose columns are divided: the vectors of a norm.
    vectors: Vec<String>,
    /// Modules whose rows are divided, with their biases.
    before: Option<String>,
}

/// The tensors of a layer.
pub(super) struct Tensors<'j> {
    job: &'j QuantizeJob<'j>,
    products: Products,
    /// `model.layers.3.`
    prefix: String,
    /// What a norm's weights stand for more than they say.
    offset: f32,
}

impl<'j> Tensors<'j> {
    pub(super) fn of(job: &'j QuantizeJob<'j>, layer: usize, plus_one: bool) -> Option<Self> {
        let own = |item: &&Item<'_>| item.site.layer == Some(layer as u64);
        let first = job.items.iter().find(own)?;
        let at = first.name.find(&format!("layers.{layer}."))? + format!("layers.{layer}.").len();
        let prefix = first.name[..at].to_owned();
        let products = Products::with_kept(job, layer);
        Some(Self { job, products, prefix, offset: if plus_one { 1.0 } else { 0.0 } })
    }

    fn has(&self, tensor: &str) -> bool {
        self.products.has(tensor.strip_suffix(".weight").unwrap_or(tensor), None)
    }

    /// The matrices of a module, or of one expert of it.
    pub(super) fn pieces(&self, module: &str, expert: Option<usize>) -> impl Iterator<Item = &Piece> {
        self.products.of(module, expert)
    }

    /// Rows of a module's matrix, where they are written in their own order.
    fn rows(&self, module: &str) -> Option<usize> {
        let piece = self.pieces(module, None).next().filter(|piece| piece.origin.order == Order::SAME)?;
        Some(piece.origin.rows.len())
    }

    /// The grid of a matrix that is quantized to one.
    pub(super) fn grid(&self, piece: &Piece) -> Option<Box<dyn Grid>> {
        piece.code(self.job).filter(|code| code.lossy)?.coding.grid()
    }

    /// Whether any of the products there rounds its inputs, too.
    pub(super) fn rounds_inputs(&self, fold: &Fold<'_>) -> bool {
        let mut pieces = fold.readers.iter().flat_map(|reader| self.pieces(&reader.module, reader.expert));
        pieces.any(|piece| piece.code(self.job).is_some_and(rounds_inputs))
    }

    /// All numbers of a matrix, coded or not.
    pub(super) fn numbers(&self, piece: &Piece, threads: usize) -> Result<Option<Vec<f32>>> {
        match &piece.item(self.job).work {
            Work::Code(code) => read_all(&piece.rows(code) as &dyn Rows, threads).map(Some),
            Work::Copy { shard, entry, .. } => read_all(&Plain::new(shard, entry)? as &dyn Rows, threads).map(Some),
            Work::Literal { .. } => Ok(None),
        }
    }

    /// Every place for factors that there is, by what was seen. Those behind products only `beyond` the norms.
    pub(super) fn folds<'m>(&self, inputs: &'m BTreeMap<Input, Moments>, beyond: bool) -> Vec<Fold<'m>> {
        let mut folds = Vec::new();
        let norm = |name: &str| format!("{}{name}.weight", self.prefix);
        let feeding = [norm("pre_feedforward_layernorm"), norm("post_attention_layernorm")];
        let feeding = feeding.into_iter().find(|name| self.has(name));
        let of = |test: &dyn Fn(&str) -> bool| {
            let inputs =
                inputs.iter().filter(|((modules, _), _)| modules.iter().all(|module| test(self.within(module))));
            let each = inputs.flat_map(|((modules, expert), moments)| {
                let reader =
                    |module: &String| Reader { module: module.clone(), expert: *expert, moments: Some(moments) };
                modules.iter().map(reader).collect::<Vec<_>>()
            });
            each.collect::<Vec<_>>()
        };
        let last = |module: &str| module.rsplit('.').next().unwrap_or_default().to_owned();
        let attention = of(&|module| module.starts_with("self_attn.") && !matches!(&*last(module), "o_proj" | "dense"));
        let mut feed =
            of(&|module| matches!(&*last(module), "gate_proj" | "up_proj" | "gate_up_proj" | "w1" | "w3" | "fc1"));
        // A router reads what experts read.
        let routers = ["mlp.gate", "block_sparse_moe.gate", "mlp.router"].map(|name| format!("{}{name}", self.prefix));
        let routers = routers.into_iter().filter(|name| self.products.has(name, None));
        feed.extend(routers.map(|module| Reader { module, expert: None, moments: None }));
        if let Some(feeding) = &feeding {
            folds.extend(self.behind_norm(&norm("input_layernorm"), attention));
            folds.extend(self.behind_norm(feeding, feed));
        } else {
            // Without a norm of its own, the feed-forward block reads what attention reads: all of both takes part, although what
            // is read by nothing that is quantized was not looked at.
            let mut readers = [attention, feed].concat();
            let read = |piece: &&Piece| {
                let role = piece.item(self.job).site.role;
                matches!(role, Role::Query | Role::Key | Role::Value | Role::Gate | Role::Up)
            };
            for piece in self.products.all().iter().filter(read) {
                let (module, expert) = (piece.origin.module(), piece.origin.expert);
                if !readers.iter().any(|reader| reader.module == module) {
                    readers.push(Reader { module: module.to_owned(), expert, moments: None });
                }
            }
            folds.extend(self.behind_norm(&norm("input_layernorm"), readers));
        }
        if !beyond {
            return folds;
        }
        for ((modules, expert), moments) in inputs {
            let [module] = &modules[..] else { continue };
            let parent = &module[..module.len() - last(module).len()];
            let before = match &*last(module) {
                "o_proj" => format!("{parent}v_proj"),
                "down_proj" if self.has(&format!("{parent}gate_proj.weight")) => format!("{parent}up_proj"),
                "w2" => format!("{parent}w3"),
                _ => continue,
            };
            // A cache's scale is of values as they were.
            if self.job.items.iter().any(|item| item.name == format!("{parent}v_scale")) {
                continue;
            }
            // Heads that share their values have inputs of their own.
            if self.rows(&before) == Some(moments.columns) {
                let readers = vec![Reader { module: module.clone(), expert: *expert, moments: Some(moments) }];
                folds.push(Fold { readers, vectors: Vec::new(), before: Some(before) });
            }
        }
        folds
    }

    fn within<'n>(&self, module: &'n str) -> &'n str {
        module.strip_prefix(&self.prefix).unwrap_or(module)
    }

    /// What is behind a norm, if all of it can be multiplied.
    fn behind_norm<'m>(&self, norm: &str, mut readers: Vec<Reader<'m>>) -> Option<Fold<'m>> {
        const READING: [&str; 5] = ["gate_proj", "up_proj", "gate_up_proj", "w1", "w3"];
        let bias = norm.replace(".weight", ".bias");
        // An expert that was not seen reads the same inputs as the others.
        let experts = readers.iter().find_map(|reader| Some(reader.module.split_once(".experts.")?.0.to_owned()));
        if let Some(experts) = experts {
            let start = format!("{experts}.experts.");
            for piece in self.products.all() {
                let (module, expert) = (piece.origin.module(), piece.origin.expert);
                let last = module.rsplit('.').next().unwrap_or_default();
                // An expert with a module of its own is seen with its number all the same.
                let known =
                    |reader: &Reader<'_>| reader.module == module && (expert.is_none() || reader.expert == expert);
                if module.starts_with(&start) && READING.contains(&last) && !readers.iter().any(known) {
                    readers.push(Reader { module: module.to_owned(), expert, moments: None });
                }
            }
            readers.sort_by(|one, other| (&one.module, one.expert).cmp(&(&other.module, other.expert)));
        }
        let all = self.has(norm) && readers.iter().all(|reader| self.products.has(&reader.module, reader.expert));
        let seen = readers.iter().any(|reader| reader.moments.is_some());
        let vectors = [norm.to_owned(), bias].into_iter().filter(|name| self.has(name)).collect();
        (all && seen).then_some(Fold { readers, vectors, before: None })
    }

    /// Puts factors there: what reads is multiplied by them, what makes it divided.
    pub(super) fn put(&self, fold: &Fold<'_>, mut factors: Vec<f32>, made: &mut BTreeMap<String, Made>) -> Result<()> {
        let mut inverse: Vec<f32> = factors.iter().map(|factor| 1.0 / factor).collect();
        for vector in &fold.vectors {
            let offset = if vector.ends_with(".weight") { self.offset } else { 0.0 };
            if vector.ends_with(".weight") {
                self.settle(vector, offset, &mut factors, &mut inverse)?;
            }
            let own = own(made, vector);
            (own.columns, own.offset) = (Some(inverse.clone()), offset);
        }
        for Reader { module, expert, .. } in &fold.readers {
            for piece in self.pieces(module, *expert) {
                own(made, &piece.key).columns = Some(factors.clone());
            }
        }
        if let Some(before) = &fold.before {
            for piece in self.pieces(before, None) {
                own(made, &piece.key).rows = Some(inverse.clone());
            }
            let bias = format!("{before}.bias");
            if self.has(&bias) {
                own(made, &bias).columns = Some(inverse);
            }
        }
        Ok(())
    }

    /// Makes of factors what a norm's weights are divided by once they are rounded to the type that they are stored in, so that
    /// nothing of that rounding is left in what reads them. Of `1 + w` little is left of a channel that is divided by much: one of
    /// which nothing is left stays as it is.
    fn settle(&self, vector: &str, offset: f32, factors: &mut [f32], inverse: &mut [f32]) -> Result<()> {
        let module = vector.strip_suffix(".weight").unwrap_or(vector);
        let Some(piece) = self.pieces(module, None).next() else { return Ok(()) };
        let Some(numbers) = self.numbers(piece, 1)? else { return Ok(()) };
        let coding: Arc<dyn Coding> = match &piece.item(self.job).work {
            Work::Copy { entry, .. } => Arc::new(Numbers(entry.dtype)),
            Work::Code(code) => Arc::clone(&code.coding),
            Work::Literal { .. } => return Ok(()),
        };
        let divided = Factors { columns: Some(inverse.to_vec()), rows: None, offset };
        let matrix = Matrix { rows: 1, columns: numbers.len() };
        let divided = Scaled { inner: InMemory::new(matrix, numbers.clone()), factors: divided };
        let unfit = |reason| Error::Weight { name: vector.to_owned(), reason, hint: None };
        let stored = read_all(&divided as &dyn Rows, 1)?;
        let stored = roundtrip(&*coding, matrix.columns, &stored, None, 1).map_err(unfit)?;
        for (((was, is), factor), inverse) in numbers.iter().zip(stored).zip(factors).zip(inverse) {
            let (was, is) = (was + offset, is + offset);
            if was == 0.0 {
                continue;
            }
            (*factor, *inverse) = if is == 0.0 { (1.0, 1.0) } else { (was / is, *inverse) };
        }
        Ok(())
    }
}

/// The factors of a tensor, ones where there were none.
fn own<'m>(made: &'m mut BTreeMap<String, Made>, tensor: &str) -> &'m mut Factors {
    made.entry(tensor.to_owned()).or_default().factors.get_or_insert_default()
}
