//! The schemes of the layouts: which formats each can store, and by which names.

use std::borrow::Cow;

use roofline_core::{
    Dim, Format, Plan, Role,
    format::{Shape, Sizes},
    plan::Mix,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Layout, awq, bitsandbytes, compressed_tensors, fine_grained, gguf, gptq, mlx, plain, torchao};
use crate::{Dtype, Error, Result, ggml::Type, plan::narrow};

/// A way of storing weights that a layout has.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// What it is called: a plan, or the right side of a rule.
    pub name: &'static str,
    /// Other names, among them those of the libraries' own presets.
    pub aliases: &'static [&'static str],
    /// What it is, in a sentence.
    pub summary: &'static str,
    /// What weights are stored in.
    pub weights: Format,
    /// What activations are rounded to while the model runs, where the files say so; none where they stay as they are.
    pub activations: Option<Format>,
    /// How it is coded.
    pub(crate) target: Target,
}

impl Scheme {
    /// Whether it stores scales of activations, which only data can tell: it is written with ranges.
    pub fn needs_ranges(&self) -> bool {
        use compressed_tensors::Activations::{Fp8Static, Nvfp4};
        matches!(self.target, Target::Compressed(_, Fp8Static | Nvfp4))
    }
}

/// What a scheme's weights become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Numbers of this type.
    Plain(Dtype),
    /// One of GGUF's types.
    Gguf(Type),
    /// One of bitsandbytes' ways.
    Bitsandbytes(crate::coding::bitsandbytes::Scheme),
    /// One of MLX's ways.
    Mlx(crate::coding::mlx::Scheme),
    /// One of torchao's ways.
    Torchao(crate::coding::torchao::Scheme),
    /// One of GPTQ's ways.
    Gptq(crate::coding::gptq::Scheme),
    /// One of AWQ's ways.
    Awq(crate::coding::awq::Scheme),
    /// Hugging Face's fine-grained FP8.
    FineGrained,
    /// One of compressed-tensors' ways.
    Compressed(crate::coding::compressed_tensors::Scheme, compressed_tensors::Activations),
}

/// A plan of one name that a layout can store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ListedPlan")]
pub struct Listed {
    /// The layout's name.
    pub layout: &'static str,
    /// The name.
    pub name: &'static str,
    /// Others for the same.
    pub aliases: &'static [&'static str],
    /// What it is, in a sentence.
    pub summary: Cow<'static, str>,
}

impl Layout {
    /// The schemes it can store: one for each pair of formats.
    pub fn schemes(self) -> &'static [Scheme] {
        match self {
            Self::CompressedTensors => compressed_tensors::SCHEMES,
            Self::Gguf => gguf::SCHEMES,
            Self::Torchao => torchao::SCHEMES,
            Self::Gptq => gptq::SCHEMES,
            Self::Awq => awq::SCHEMES,
            Self::FineGrained => fine_grained::SCHEMES,
            Self::Plain => plain::SCHEMES,
            Self::Bitsandbytes => bitsandbytes::SCHEMES,
            Self::Mlx => mlx::SCHEMES,
        }
    }

    /// The names that a plan for it may begin with: its schemes, and for GGUF llama.cpp's recipes.
    pub fn listed(self) -> Vec<Listed> {
        let listed = |name, aliases, summary: &'static str| Listed {
            layout: self.name(),
            name,
            aliases,
            summary: summary.into(),
        };
        let recipe = |mix: Mix| listed(mix.name(), mix.aliases(), mix.summary());
        let recipes = Mix::ALL.into_iter().filter(|_| self == Self::Gguf).map(recipe);
        let schemes = self.schemes().iter().filter(|scheme| Mix::named(scheme.name).is_none());
        let schemes = schemes.map(|scheme| listed(scheme.name, scheme.aliases, scheme.summary));
        recipes.chain(schemes).collect()
    }

    /// Its scheme for weights and activations in exactly these formats; none stands for activations as the model has them.
    pub fn scheme_of(self, weights: Format, activations: Option<Format>) -> Result<&'static Scheme> {
        self.scheme_at(None, weights, activations)
    }

    /// The same, with an error that says at which weights.
    pub(super) fn scheme_at(
        self,
        role: Option<Role>,
        weights: Format,
        activations: Option<Format>,
    ) -> Result<&'static Scheme> {
        let narrow = activations.filter(|format| format.nominal_bits() < 16);
        self.storing(weights, narrow).ok_or_else(|| self.refuse(role, weights, narrow))
    }

    fn storing(self, weights: Format, activations: Option<Format>) -> Option<&'static Scheme> {
        self.schemes().iter().find(|scheme| (scheme.weights, scheme.activations) == (weights, activations))
    }

    /// That there is none, and what would do.
    fn refuse(self, role: Option<Role>, weights: Format, activations: Option<Format>) -> Error {
        let at = role.map_or_else(String::new, |role| format!("`{role}` as "));
        let reads = activations.map_or_else(String::new, |format| format!(" with {format} activations"));
        let what = format!("{self} cannot store {at}{weights}{reads}");
        let mut hints = Vec::new();
        match self.storing(weights, None).filter(|_| activations.is_some()) {
            Some(alone) => hints.push(format!("`{}` leaves the activations as they are", alone.name)),
            None => hints.extend(self.nearest(weights).map(|near| format!("`{}` takes about as many bits", near.name))),
        }
        if let ([only], true) = (self.schemes(), hints.is_empty()) {
            hints.push(format!("`{}` is what it has", only.name));
        }
        let others = Self::ALL.into_iter().filter(|other| *other != self);
        let others = others.filter_map(|other| Some((other, other.storing(weights, activations)?)));
        hints.extend(others.map(|(other, scheme)| format!("`⟨as {other}⟩` has `{}`", scheme.name)));
        if hints.is_empty() {
            let names: Vec<&str> = self.listed().iter().map(|listed| listed.name).collect();
            hints.push(format!("{self} has {}", names.join(", ")));
        }
        Error::unsupported(what, hints.join("; "))
    }

    /// The layout that stores all of these in one checkpoint, if there is one: not every layout has room for several.
    pub(super) fn of_mix(schemes: &[&Scheme]) -> Option<Self> {
        let stores = |layout: &Self| schemes.iter().all(|one| layout.storing(one.weights, one.activations).is_some());
        [Self::CompressedTensors, Self::Gguf].into_iter().find(stores)
    }

    /// That it has none of llama.cpp's recipes.
    pub(super) fn no_recipe(self, mix: Mix) -> Error {
        let what = format!("{self} cannot store the recipe `{}` of llama.cpp", mix.name());
        Error::unsupported(what, "use `⟨as gguf⟩`")
    }

    /// Of the schemes that store weights alone, the one of the nearest size, if it is within a bit.
    fn nearest(self, weights: Format) -> Option<&'static Scheme> {
        let side = Dim::new("columns", 4096).ok()?;
        let bits = |format: Format| format.bits_per_element(Shape::matrix(side, side), Sizes::Exact);
        let off = |scheme: &&Scheme| (bits(scheme.weights) - bits(weights)).abs();
        let alone =
            self.schemes().iter().filter(|scheme| scheme.activations.is_none() && scheme.weights.nominal_bits() < 16);
        alone.min_by(|one, other| off(one).total_cmp(&off(other))).filter(|near| off(near) <= 1.0)
    }

    /// The layout that a plan is most often written in: the first that stores all of it.
    pub fn of_plan(plan: &Plan) -> Self {
        if plan.mix().is_some() {
            return Self::Gguf;
        }
        let precisions = || plan.precision().into_iter().chain(plan.rules().iter().map(|rule| &rule.precision));
        let stores = |layout: &Self| {
            let mut asked = precisions().filter_map(narrow);
            asked.all(|(weights, activations)| layout.storing(weights, activations).is_some())
        };
        // Numbers alone are no codes.
        let numbers = precisions().filter_map(narrow).all(|(weights, _)| weights == Format::FP32);
        let first = if numbers { Self::Plain } else { Self::CompressedTensors };
        [first].into_iter().chain(Self::ALL).find(stores).unwrap_or(first)
    }
}
