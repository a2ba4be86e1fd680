//! Where factors between a layer's tensors go that change nothing but how hard they are to round: products read their inputs
//! times a factor per channel, and what makes those inputs divides by it.
//!
//! Inputs come from a norm, whose weights can take any factor; from the values, which attention only averages; or from the
//! way up, which a gate only multiplies. Nothing else is linear enough.

use std::collections::{BTreeMap, HashMap};

use super::{layer::Made, moments::Moments, sequential::Input};
use crate::{
    QuantizeJob,
    job::{Item, Work},
    rows::Factors,
};

/// A place for factors.
pub(super) struct Fold<'m> {
    /// Products that read the inputs, by their modules, with what was seen of them. All of them take part, quantized or not.
    pub(super) readers: Vec<(String, Option<&'m Moments>)>,
    /// Tensors whose columns are divided: the vectors of a norm.
    vectors: Vec<String>,
    /// Modules whose rows are divided, with their biases.
    before: Option<String>,
}

/// The tensors of a layer.
pub(super) struct Tensors<'j> {
    job: &'j QuantizeJob<'j>,
    items: HashMap<&'j str, usize>,
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
        let named = job.items.iter().enumerate().filter(|(_, item)| own(item));
        let items = named.map(|(at, item)| (item.name.as_str(), at)).collect();
        Some(Self { job, items, prefix, offset: if plus_one { 1.0 } else { 0.0 } })
    }

    fn has(&self, tensor: &str) -> bool {
        self.items.contains_key(tensor)
    }

    /// The matrix of a module: what is coded of it.
    pub(super) fn item(&self, module: &str) -> Option<&'j Item<'j>> {
        self.items.get(format!("{module}.weight").as_str()).map(|at| &self.job.items[*at])
    }

    /// Rows and columns of a module's matrix.
    fn shape(&self, module: &str) -> Option<(usize, usize)> {
        match &self.item(module)?.work {
            Work::Code(code) => Some((code.matrix().rows, code.matrix().columns)),
            Work::Copy { entry, .. } => Some((*entry.shape.first()?, *entry.shape.get(1)?)),
            Work::Literal { .. } => None,
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
            let each = inputs
                .flat_map(|((modules, _), moments)| modules.iter().map(move |module| (module.clone(), Some(moments))));
            each.collect::<Vec<_>>()
        };
        let last = |module: &str| module.rsplit('.').next().unwrap_or_default().to_owned();
        let attention = of(&|module| module.starts_with("self_attn.") && !matches!(&*last(module), "o_proj" | "dense"));
        let mut feed =
            of(&|module| matches!(&*last(module), "gate_proj" | "up_proj" | "gate_up_proj" | "w1" | "w3" | "fc1"));
        // A router reads what experts read.
        let routers = ["mlp.gate", "block_sparse_moe.gate", "mlp.router"].map(|name| format!("{}{name}", self.prefix));
        feed.extend(routers.into_iter().filter(|name| self.item(name).is_some()).map(|name| (name, None)));
        // Without a norm of its own, the feed-forward block reads what attention reads.
        if let Some(feeding) = &feeding {
            folds.extend(self.behind_norm(&norm("input_layernorm"), attention));
            folds.extend(self.behind_norm(feeding, feed));
        }
        if !beyond {
            return folds;
        }
        for ((modules, _), moments) in inputs {
            let [module] = &modules[..] else { continue };
            let parent = &module[..module.len() - last(module).len()];
            let before = match &*last(module) {
                "o_proj" => format!("{parent}v_proj"),
                "down_proj" if self.has(&format!("{parent}gate_proj.weight")) => format!("{parent}up_proj"),
                "w2" => format!("{parent}w3"),
                _ => continue,
            };
            // Heads that share their values have inputs of their own.
            if self.shape(&before).is_some_and(|(rows, _)| rows == moments.columns) {
                let readers = vec![(module.clone(), Some(moments))];
                folds.push(Fold { readers, vectors: Vec::new(), before: Some(before) });
            }
        }
        folds
    }

    fn within<'n>(&self, module: &'n str) -> &'n str {
        module.strip_prefix(&self.prefix).unwrap_or(module)
    }

    /// What is behind a norm, if all of it can be multiplied.
    fn behind_norm<'m>(&self, norm: &str, readers: Vec<(String, Option<&'m Moments>)>) -> Option<Fold<'m>> {
        let bias = norm.replace(".weight", ".bias");
        // An expert that was not seen reads the same inputs as the others.
        let mut readers = readers;
        let experts = readers.iter().find_map(|(module, _)| Some(module.split_once(".experts.")?.0.to_owned()));
        if let Some(experts) = experts {
            let unseen = self.items.values().map(|at| &self.job.items[*at].site.module);
            let unseen = unseen.filter(|module| module.starts_with(&format!("{experts}.experts.")));
            let unseen =
                unseen.filter(|module| ["gate_proj", "up_proj", "w1", "w3"].iter().any(|end| module.ends_with(end)));
            let unseen = unseen.filter(|module| readers.iter().all(|(known, _)| known != *module));
            let unseen: Vec<String> = unseen.cloned().collect();
            readers.extend(unseen.into_iter().map(|module| (module, None)));
            readers.sort_by(|one, other| one.0.cmp(&other.0));
        }
        let all = self.has(norm) && readers.iter().all(|(module, _)| self.item(module).is_some());
        let seen = readers.iter().any(|(_, moments)| moments.is_some());
        let vectors = [norm.to_owned(), bias].into_iter().filter(|name| self.has(name)).collect();
        (all && seen).then_some(Fold { readers, vectors, before: None })
    }

    /// Puts factors there: what reads is multiplied by them, what makes it divided.
    pub(super) fn put(&self, fold: &Fold<'_>, factors: &[f32], made: &mut BTreeMap<String, Made>) {
        let inverse: Vec<f32> = factors.iter().map(|factor| 1.0 / factor).collect();
        for (module, _) in &fold.readers {
            own(made, &format!("{module}.weight")).columns = Some(factors.to_vec());
        }
        for vector in &fold.vectors {
            let own = own(made, vector);
            own.columns = Some(inverse.clone());
            own.offset = if vector.ends_with(".weight") { self.offset } else { 0.0 };
        }
        if let Some(before) = &fold.before {
            own(made, &format!("{before}.weight")).rows = Some(inverse.clone());
            let bias = format!("{before}.bias");
            if self.has(&bias) {
                own(made, &bias).columns = Some(inverse);
            }
        }
    }
}

/// The factors of a tensor, ones where there were none.
fn own<'m>(made: &'m mut BTreeMap<String, Made>, tensor: &str) -> &'m mut Factors {
    made.entry(tensor.to_owned()).or_default().factors.get_or_insert_default()
}
