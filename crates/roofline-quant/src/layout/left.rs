//! What a plan leaves as it is, and why: silence about a large matrix would pass for having quantized it.

use roofline_core::{Plan, Role};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::{
    Checkpoint, QuantizeJob,
    family::{Family, Products},
    job::{Item, Work},
    plan::{Asked, Wanted},
    site::{Site, pattern},
};

/// Tensors that stay as they are, of names that differ in nothing but numbers.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "LeftTensors")]
pub struct Left {
    /// Their name, with `*` for numbers.
    pub kind: String,
    /// What they are for.
    pub role: &'static str,
    /// How many there are.
    pub count: usize,
    /// Numbers in all of them.
    pub parameters: u64,
    /// Bytes that all of them take in the result.
    pub bytes: u64,
    /// Whether they are matrices that a format could store.
    pub large: bool,
    /// Why.
    pub why: Why,
}

/// Why a tensor stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "LeftReason")]
pub enum Why {
    /// A rule of the plan, or a name that the request keeps, says so.
    Rule,
    /// The plan asks for nothing else there.
    Plan,
    /// A plan's name speaks of the layers' products: ends and routers are no such.
    NoProduct,
    /// It is of a tower that sees or hears.
    Tower,
    /// It holds the experts of a layer in one tensor.
    Stack,
    /// The model's own code has it transposed.
    Transposed,
    /// It is a vector, or no module.
    Vector,
    /// Its name tells nothing.
    NoRole,
}

impl Why {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Rule => "a rule of the plan or ⟨keep⟩ says so",
            Self::Plan => "the plan asks for nothing else",
            Self::NoProduct => "a plan's name speaks of the layers' products alone",
            Self::Tower => "it sees or hears, and is a model of its own",
            Self::Stack => "experts in one tensor",
            Self::Transposed => "the model's code has it transposed (Conv1D)",
            Self::Vector => "a vector, or no module",
            Self::NoRole => "its name tells no role",
        }
    }
}

/// A matrix with fewer in either direction is none that counts.
const LARGE: usize = 32;
/// Kinds that a note names before it only counts.
const NAMED: usize = 8;

/// Whether the family of that configuration stores this module transposed.
pub(super) fn is_transposed(config: &Value, site: &Site) -> bool {
    site.is_of_gpt2() && Family::of(config).products() == Products::Conv1d
}

/// Everything that stays as it is, by kind, in the order of the job.
pub(crate) fn left(checkpoint: &Checkpoint, plan: &Plan, job: &QuantizeJob<'_>) -> Vec<Left> {
    let asked = Asked::new(plan, &checkpoint.config, job.items.iter().map(|item| &item.site));
    let mut all: Vec<Left> = Vec::new();
    for item in &job.items {
        let Some((bytes, large)) = wide(item) else { continue };
        let (kind, why) = (pattern(&item.site.module), why(&asked, &checkpoint.config, &item.site));
        let role = item.site.role.name();
        let known = all.iter_mut().find(|left| left.kind == kind && left.why == why && left.large == large);
        match known {
            Some(left) => {
                left.count += 1;
                left.parameters += item.weights();
                left.bytes += bytes;
            }
            None => all.push(Left { kind, role, count: 1, parameters: item.weights(), bytes, large, why }),
        }
    }
    all
}

/// The bytes of what is not quantized, and whether it is a matrix of some size.
fn wide(item: &Item<'_>) -> Option<(u64, bool)> {
    let large = |shape: &[usize]| shape.iter().filter(|dim| **dim >= LARGE).count() > 1 && !item.name.ends_with("bias");
    match &item.work {
        Work::Copy { entry, .. } => Some((entry.bytes(), large(&entry.shape))),
        Work::Code(code) if !code.lossy => {
            let shape = code.matrix();
            Some((code.bytes(), large(&[shape.rows, shape.columns])))
        }
        Work::Code(_) | Work::Literal { .. } => None,
    }
}

fn why(asked: &Asked<'_>, config: &Value, site: &Site) -> Why {
    match site.role {
        _ if asked.rule(site).is_some() => Why::Rule,
        _ if site.tower().is_some() => Why::Tower,
        _ if site.is_stack() => Why::Stack,
        _ if is_transposed(config, site) => Why::Transposed,
        Role::Vector => Why::Vector,
        _ if matches!(asked.at(site), Wanted::As(_) | Wanted::Mixed(_)) => Why::Plan,
        Role::Embedding | Role::Head | Role::Router => Why::NoProduct,
        _ if site.is_layer_product() => Why::Plan,
        _ => Why::NoRole,
    }
}

/// A word about every large matrix that is left alone although nobody asked for that.
pub(super) fn notes(checkpoint: &Checkpoint, plan: &Plan, job: &QuantizeJob<'_>) -> Vec<String> {
    // A plan of numbers leaves nothing alone.
    let quantizes = job.items.iter().any(|item| matches!(&item.work, Work::Code(code) if code.lossy));
    if !quantizes {
        return Vec::new();
    }
    let all: u64 = job.items.iter().map(Item::weights).sum();
    let share = |parameters: u64| format!("{:.1} %", 100.0 * parameters as f64 / all.max(1) as f64);
    let large: Vec<Left> = left(checkpoint, plan, job).into_iter().filter(|left| left.large).collect();
    let of = |why: Why| {
        let mut kinds: Vec<&Left> = large.iter().filter(|left| left.why == why).collect();
        kinds.sort_by_key(|left| std::cmp::Reverse(left.parameters));
        kinds
    };
    let named = |kinds: &[&Left]| {
        let mut texts: Vec<String> = kinds
            .iter()
            .take(NAMED)
            .map(|left| format!("`{}` ({} of them, {})", left.kind, left.count, share(left.parameters)))
            .collect();
        if kinds.len() > NAMED {
            texts.push(format!("and {} kinds more", kinds.len() - NAMED));
        }
        let sum = share(kinds.iter().map(|left| left.parameters).sum());
        format!("{}; {sum} of the parameters in all", texts.join(", "))
    };
    let mut notes = Vec::new();
    let roleless = of(Why::NoRole);
    if let Some(first) = roleless.first() {
        let word = first.kind.rsplit('.').find(|word| *word != "*").unwrap_or_default();
        let rule = plan
            .precision()
            .map(|precision| format!(": a rule by name takes them, such as `*.{word}={}`", precision.canonical()));
        notes.push(format!(
            "left as they are, because their names tell no role: {}{}",
            named(&roleless),
            rule.unwrap_or_default()
        ));
    }
    for (why, words) in [
        (Why::Vector, "left as they are, being tables or parameters without a module of their own"),
        (Why::Transposed, "left as they are, because this family's code has them transposed (Conv1D)"),
    ] {
        let kinds = of(why);
        if !kinds.is_empty() {
            notes.push(format!("{words}: {}", named(&kinds)));
        }
    }
    let towers = of(Why::Tower);
    if !towers.is_empty() {
        let count: usize = towers.iter().map(|left| left.count).sum();
        let sum = share(towers.iter().map(|left| left.parameters).sum());
        notes.push(format!("{count} matrices of what sees or hears are left as they are: {sum} of the parameters"));
    }
    notes
}
