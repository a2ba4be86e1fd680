//! The weights of a model in memory: for each step of its program, what the step names.

use std::collections::{HashMap, HashSet};

use roofline_core::{
    Model, Program,
    model::FeedForward,
    program::{Step, Weight},
};

use roofline_quant::observed::Replaced;

use crate::{
    Error, Result,
    matrix::{Loading, Matrix, Span, Tensors},
    names,
};

/// What a step reads: the weights it names, by its layer and its list.
pub(crate) type Key = (Option<usize>, &'static [Weight]);

/// All weights of a model.
#[derive(Default)]
pub(crate) struct Weights<'a> {
    held: HashMap<Key, Held<'a>>,
    /// What stands in the place of some of them for a while.
    over: HashMap<Key, Held<'a>>,
}

/// The weights of one step.
pub(crate) enum Held<'a> {
    /// Matrices of one product: one, or several that are stored in different ways.
    Products(Vec<Matrix<'a>>),
    /// The same for each expert.
    Experts {
        /// For each expert, the matrices of one product.
        experts: Vec<Vec<Matrix<'a>>>,
        /// Whether rows of gate and way up take turns.
        turns: bool,
    },
    /// Vectors, with their biases.
    Vectors(Vec<(Vec<f32>, Option<Vec<f32>>)>),
}

/// What is told of loading: bytes read so far, and of how many.
pub(crate) type Progress<'p> = &'p mut dyn FnMut(u64, u64) -> Result<()>;

impl<'a> Weights<'a> {
    /// Reads what the steps of `program` name in the layers that are `wanted`, and gives it to `take`.
    pub(crate) fn read(
        model: &Model,
        program: &Program,
        tensors: &Tensors<'a>,
        at: &Loading,
        wanted: &dyn Fn(Option<usize>, &[Weight]) -> bool,
        progress: Progress<'_>,
        take: &mut dyn FnMut(Key, Held<'a>) -> Result<()>,
    ) -> Result<()> {
        let prefix = prefix(tensors)?;
        let total = tensors.bytes();
        let mut reader = Reader { model, tensors, at, prefix, torn: Vec::new() };
        // Where one layer stores them in different ways, they run apart in all: that is what predictions count.
        for (layer, step) in program.steps().filter(|(_, step)| step.weights.len() > 1) {
            if !reader.torn.contains(&step.weights) && !reader.alike(layer, step.weights)? {
                reader.torn.push(step.weights);
            }
        }
        let (mut read, mut done) = (HashSet::new(), 0);
        for (layer, step) in program.steps().filter(|(layer, step)| wanted(*layer, step.weights)) {
            for step in step.before.iter().chain([step]).chain(&step.after) {
                let key = (layer, step.weights);
                // A tied head is the embedding.
                let tied = model.tied && step.weights == [Weight::Head] && !reader.tensors.has(&reader.head());
                if step.weights.is_empty() || tied || !read.insert(key) {
                    continue;
                }
                let own = reader.step(layer, step)?;
                done += own.bytes();
                take(key, own)?;
                progress(done.min(total), total)?;
            }
        }
        Ok(())
    }

    /// The modules that the products of one layer are of, by what their steps read: as many lists as a step has experts, or
    /// one.
    pub(crate) fn modules(
        model: &Model,
        program: &Program,
        tensors: &Tensors<'a>,
        at: &Loading,
        layer: usize,
    ) -> Result<HashMap<&'static [Weight], Vec<Vec<String>>>> {
        let reader = Reader { model, tensors, at, prefix: prefix(tensors)?, torn: Vec::new() };
        let of_layer = program.steps().filter(|(own, _)| *own == Some(layer));
        let products = of_layer.filter(|(_, step)| step.weights.first().is_some_and(|weight| weight.is_matrix()));
        products.map(|(own, step)| Ok((step.weights, reader.module_lists(own, step.weights)?))).collect()
    }

    /// What the steps read that have numbers of `replaced` in them, of `tensors` that have these in their places.
    pub(crate) fn replaced(
        model: &Model,
        program: &Program,
        tensors: &Tensors<'a>,
        at: &Loading,
        replaced: &Replaced,
    ) -> Result<HashMap<Key, Held<'a>>> {
        let reader = Reader { model, tensors, at, prefix: prefix(tensors)?, torn: Vec::new() };
        let mut over = HashMap::new();
        for (layer, step) in program.steps().filter(|(_, step)| step.weights.first().is_some_and(|one| one.is_matrix()))
        {
            let tied = model.tied && step.weights == [Weight::Head] && !tensors.has(&reader.head());
            let key = (layer, step.weights);
            if tied || over.contains_key(&key) {
                continue;
            }
            let modules = reader.module_lists(layer, step.weights)?;
            let known =
                |module: &String| replaced.contains_key(module) || replaced.contains_key(&format!("{module}.weight"));
            if modules.iter().flatten().any(known) {
                over.insert(key, reader.step(layer, step)?);
            }
        }
        Ok(over)
    }

    /// Puts other weights over those of some steps, in the place of what lay over them before.
    pub(crate) fn lay_over(&mut self, over: HashMap<Key, Held<'a>>) {
        self.over = over;
    }

    /// Weights of a step.
    pub(crate) fn take(&mut self, key: Key, held: Held<'a>) {
        self.held.insert(key, held);
    }

    /// What a step reads.
    pub(crate) fn held(&self, layer: Option<usize>, weights: &'static [Weight]) -> Result<&Held<'a>> {
        let find = |key: Key| self.over.get(&key).or_else(|| self.held.get(&key));
        // A tied head is the embedding.
        let tied = || find((None, &[Weight::Embedding])).filter(|_| weights == [Weight::Head]);
        find((layer, weights)).or_else(tied).ok_or_else(|| Error::missing(&format!("{weights:?}")))
    }

    /// Bytes of everything.
    pub(crate) fn bytes(&self) -> u64 {
        self.held.values().map(Held::bytes).sum()
    }

    /// Every matrix, with its layer and the weights that it holds.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = (Option<usize>, &'static [Weight], &Matrix<'a>)> {
        self.held
            .iter()
            .flat_map(|((layer, weights), held)| held.matrices(weights).map(|(own, matrix)| (*layer, own, matrix)))
    }
}

impl<'a> Held<'a> {
    fn bytes(&self) -> u64 {
        match self {
            Self::Products(matrices) => matrices.iter().map(Matrix::bytes).sum(),
            Self::Experts { experts, .. } => experts.iter().flatten().map(Matrix::bytes).sum(),
            Self::Vectors(vectors) => {
                let bytes = |(one, bias): &(Vec<f32>, Option<Vec<f32>>)| one.len() + bias.as_ref().map_or(0, Vec::len);
                4 * vectors.iter().map(bytes).sum::<usize>() as u64
            }
        }
    }

    pub(crate) fn matrices<'s>(
        &'s self,
        weights: &'static [Weight],
    ) -> impl Iterator<Item = (&'static [Weight], &'s Matrix<'a>)> + 's {
        let (one, several): (&[Matrix<'a>], &[Vec<Matrix<'a>>]) = match self {
            Self::Products(matrices) => (matrices, &[]),
            Self::Experts { experts, .. } => (&[], experts),
            Self::Vectors(_) => (&[], &[]),
        };
        // One matrix holds all of them, or each has its own.
        let of = move |parts: &'s [Matrix<'a>]| {
            let own = move |at: usize| if parts.len() == 1 { weights } else { &weights[at..=at] };
            parts.iter().enumerate().map(move |(at, matrix)| (own(at), matrix))
        };
        of(one).chain(several.iter().flat_map(move |parts| of(parts)))
    }
}

/// What stands before the names of a model's own modules: `model.` as a rule.
fn prefix(tensors: &Tensors<'_>) -> Result<String> {
    let mut found = tensors.names().filter_map(|name| name.strip_suffix("embed_tokens.weight"));
    found.next().map(str::to_owned).ok_or_else(|| Error::missing("model.embed_tokens.weight"))
}

struct Reader<'r, 'a> {
    model: &'r Model,
    tensors: &'r Tensors<'a>,
    at: &'r Loading,
    prefix: String,
    /// Weights of one step that are multiplied apart.
    torn: Vec<&'static [Weight]>,
}

impl<'a> Reader<'_, 'a> {
    /// The output head, which is outside of the model's own modules; in models that see it may be beside them.
    fn head(&self) -> String {
        let beside = format!("{}lm_head.weight", self.prefix.strip_suffix("model.").unwrap_or(""));
        if self.tensors.has(&beside) { beside } else { "lm_head.weight".to_owned() }
    }

    /// A module's full name.
    fn module(&self, layer: Option<usize>, module: &str) -> String {
        match layer {
            Some(layer) => format!("{}layers.{layer}.{module}", self.prefix),
            None if module == "lm_head" => self.head().trim_end_matches(".weight").to_owned(),
            None => format!("{}{module}", self.prefix),
        }
    }

    /// The module of a weight: of several names, the one that is there.
    fn find(&self, layer: Option<usize>, weight: Weight) -> Result<String> {
        let all: Vec<String> = names::modules(weight, self.model.norms.per_layer)
            .iter()
            .map(|module| self.module(layer, module))
            .collect();
        let there = |module: &&String| {
            let first = module.replace('*', "0");
            self.tensors.has(&format!("{first}.weight")) || self.tensors.has(&first)
        };
        match all.iter().find(there) {
            Some(found) => Ok(found.clone()),
            None => {
                Err(Error::missing(&all.first().map_or_else(|| format!("{weight:?}"), |one| format!("{one}.weight"))))
            }
        }
    }

    fn step(&self, layer: Option<usize>, step: &Step) -> Result<Held<'a>> {
        if step.weights.iter().all(|weight| !weight.is_matrix()) {
            let vectors = step.weights.iter().map(|weight| self.vector(layer, *weight)).collect::<Result<_>>()?;
            return Ok(Held::Vectors(vectors));
        }
        if step.weights[0].role().is_expert() {
            return self.experts(layer, step.weights);
        }
        Ok(Held::Products(self.products(&self.modules(layer, step.weights)?, step.weights)?))
    }

    /// The modules of a step's weights: one that holds them all, or one each.
    fn modules(&self, layer: Option<usize>, weights: &[Weight]) -> Result<Vec<String>> {
        let fused = names::fused(weights).map(|module| self.module(layer, module));
        match fused.filter(|module| self.tensors.has(&format!("{module}.weight"))) {
            Some(module) => Ok(vec![module]),
            None => weights.iter().map(|weight| self.find(layer, *weight)).collect(),
        }
    }

    /// The modules of a step's weights: for each expert those of its own, or the stack that holds them all.
    fn module_lists(&self, layer: Option<usize>, weights: &'static [Weight]) -> Result<Vec<Vec<String>>> {
        if !weights[0].role().is_expert() {
            return Ok(vec![self.modules(layer, weights)?]);
        }
        let count = self.expert_count()?;
        let stack = names::stacked(weights).map(|module| self.module(layer, module));
        if let Some(stack) = stack.filter(|stack| self.tensors.has(stack)) {
            return Ok(vec![vec![stack]; count]);
        }
        let modules = weights.iter().map(|weight| self.find(layer, *weight)).collect::<Result<Vec<_>>>()?;
        let expert = |expert: usize| modules.iter().map(|module| module.replace('*', &expert.to_string())).collect();
        Ok((0..count).map(expert).collect())
    }

    /// How many experts a layer has.
    fn expert_count(&self) -> Result<usize> {
        let count = self.model.layers.iter().find_map(|layer| match layer.feed_forward {
            FeedForward::Experts { experts, .. } => Some(experts.get() as usize),
            FeedForward::Dense { .. } => None,
        });
        count.ok_or_else(|| Error::missing("experts"))
    }

    /// Whether the weights of a step are stored alike; experts go by their first.
    fn alike(&self, layer: Option<usize>, weights: &'static [Weight]) -> Result<bool> {
        let stack = names::stacked(weights).map(|module| self.module(layer, module));
        if !weights[0].is_matrix() || stack.is_some_and(|stack| self.tensors.has(&stack)) {
            return Ok(true);
        }
        let modules = self.modules(layer, weights)?;
        let source = |module: &String| self.whole(&format!("{}.weight", module.replace('*', "0")));
        let sources = modules.iter().map(source).collect::<Result<Vec<_>>>()?;
        Ok(Matrix::alike(self.tensors, &sources, self.at))
    }

    /// The matrices of these modules as one, where they are stored alike, with their biases.
    fn products(&self, modules: &[String], weights: &[Weight]) -> Result<Vec<Matrix<'a>>> {
        let sources =
            modules.iter().map(|module| self.whole(&format!("{module}.weight"))).collect::<Result<Vec<_>>>()?;
        let mut biases = Vec::new();
        for (module, source) in modules.iter().zip(&sources) {
            let name = format!("{module}.bias");
            let bias = self.tensors.has(&name).then(|| self.checked(&name, source.rows.len()));
            biases.push(bias.transpose()?);
        }
        self.together(&sources, biases, self.torn.contains(&weights))
    }

    /// Matrices of these rows as one, where they are stored alike.
    fn together(&self, sources: &[Span], biases: Vec<Option<Vec<f32>>>, torn: bool) -> Result<Vec<Matrix<'a>>> {
        if !torn && Matrix::alike(self.tensors, sources, self.at) {
            let mut matrix = Matrix::read(self.tensors, sources, self.at)?;
            if biases.iter().any(Option::is_some) {
                let zeros = |source: &Span| vec![0.0; source.rows.len()];
                let all =
                    biases.into_iter().zip(sources).flat_map(|(bias, source)| bias.unwrap_or_else(|| zeros(source)));
                matrix.bias = Some(all.collect());
            }
            return Ok(vec![matrix]);
        }
        let mut apart = Vec::new();
        for (source, bias) in sources.iter().zip(biases) {
            let mut one = Matrix::read(self.tensors, std::slice::from_ref(source), self.at)?;
            one.bias = bias;
            apart.push(one);
        }
        Ok(apart)
    }

    /// All rows of a matrix.
    fn whole(&self, name: &str) -> Result<Span> {
        let shape = self.tensors.shape(name)?;
        let [rows, _] = shape[..] else { return Err(Error::shape(name, shape, "two dimensions")) };
        Ok(Span { name: name.to_owned(), rows: 0..rows })
    }

    /// The numbers of a vector that must have that many.
    fn checked(&self, name: &str, length: usize) -> Result<Vec<f32>> {
        let shape = self.tensors.shape(name)?;
        if shape.iter().product::<usize>() != length {
            return Err(Error::shape(name, shape, &format!("{length} numbers")));
        }
        self.tensors.vector(name)
    }

    fn vector(&self, layer: Option<usize>, weight: Weight) -> Result<(Vec<f32>, Option<Vec<f32>>)> {
        let module = self.find(layer, weight)?;
        let name = format!("{module}.weight");
        let name = if self.tensors.has(&name) { name } else { module.clone() };
        let mut numbers = self.tensors.vector(&name)?;
        if self.model.arithmetic.norm_plus_one && weight != Weight::Sinks {
            for number in &mut numbers {
                *number += 1.0;
            }
        }
        let bias = format!("{module}.bias");
        let bias = if self.tensors.has(&bias) { Some(self.checked(&bias, numbers.len())?) } else { None };
        Ok((numbers, bias))
    }

    fn experts(&self, layer: Option<usize>, weights: &'static [Weight]) -> Result<Held<'a>> {
        let count = self.expert_count()?;
        let stack = names::stacked(weights).map(|module| self.module(layer, module));
        if let Some(stack) = stack.filter(|stack| self.tensors.has(stack)) {
            return self.stack(&stack, count);
        }
        let names = self.module_lists(layer, weights)?;
        let experts = names.iter().map(|modules| self.products(modules, weights)).collect::<Result<_>>()?;
        Ok(Held::Experts { experts, turns: false })
    }

    /// gpt-oss: all experts of a layer in one tensor, gate and way up in turns.
    fn stack(&self, stack: &str, count: usize) -> Result<Held<'a>> {
        let shape = self.tensors.shape(stack)?;
        let [rows, _] = shape[..] else { return Err(Error::shape(stack, shape, "two dimensions")) };
        let each = rows / count;
        let name = format!("{stack}_bias");
        let biases = if self.tensors.has(&name) { Some(self.checked(&name, rows)?) } else { None };
        let mut experts = Vec::with_capacity(count);
        for expert in 0..count {
            let rows = expert * each..(expert + 1) * each;
            let bias = biases.as_ref().map(|all| all[rows.clone()].to_vec());
            experts.push(self.together(&[Span { name: stack.to_owned(), rows }], vec![bias], false)?);
        }
        Ok(Held::Experts { experts, turns: stack.ends_with("gate_up_proj") })
    }
}
