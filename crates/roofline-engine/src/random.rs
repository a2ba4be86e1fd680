//! Models of random weights: a shape can be timed without a download. What a kernel does takes as long with any numbers,
//! but zeros, which memory and units may treat otherwise.

use crate::{
    Error, Result,
    arena::Arena,
    engine::{Backend, Engine, Loaded, Settings},
    gpu::Sizes,
    matrix::Matrix,
    weights::Held,
};
use roofline_core::{
    Dim, Format, Model, Op, Plan, Role,
    model::{AttentionLayer, FeedForward, Lowering, Workload},
    op::ExpertSide,
    plan::Stored,
    program::{Step, Weight},
};
use roofline_quant::Inputs;

/// Rows that differ; a matrix repeats them. A prime, so that no two neighbours of any power of two are alike.
const DISTINCT: usize = 61;

impl Engine<'static> {
    /// A model whose weights are random, stored as `plan` says.
    pub fn random(model: Model, plan: &Plan, settings: Settings) -> Result<Self> {
        let program = model.program(Workload::decode(1, 1)?, Lowering::default())?;
        let mut random = Random { model: &model, plan, settings: &settings, arena: Arena::new()?, state: 1 };
        let mut all = Vec::new();
        for (layer, step) in program.steps() {
            for step in step.before.iter().chain([step]).chain(&step.after) {
                let tied = model.tied && step.weights == [Weight::Head];
                if !step.weights.is_empty() && !tied {
                    all.push(((layer, step.weights), random.held(layer, step)?));
                }
            }
        }
        let weights = |architecture| {
            let sizes = Sizes { values: settings.values, architecture, tied: model.tied };
            sizes.of_made(&all)
        };
        let mut made = Loaded::open(&settings, weights)?;
        for (key, held) in all {
            made.take(&model, key, held)?;
        }
        Self::of(model, settings, made)
    }
}

struct Random<'r> {
    model: &'r Model,
    plan: &'r Plan,
    settings: &'r Settings,
    arena: Arena,
    state: u64,
}

impl Random<'_> {
    /// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), as a number between -1 and 1.
    fn number(&mut self) -> f32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ bits >> 31) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn held(&mut self, layer: Option<usize>, step: &Step) -> Result<Held<'static>> {
        let model = self.model;
        let hidden = model.hidden.get() as usize;
        let shape = layer.map(|layer| &model.layers[usize::from(model.anatomy.order[layer])]);
        if step.weights.iter().all(|weight| !weight.is_matrix()) {
            let of = |weight: &Weight| {
                let Some(AttentionLayer::Grouped { heads, head_dim, .. }) = shape.map(|shape| shape.attention) else {
                    return hidden;
                };
                match weight {
                    Weight::QueryNorm | Weight::KeyNorm => head_dim.get() as usize,
                    Weight::Sinks => heads.get() as usize,
                    _ => hidden,
                }
            };
            let bias = |length: usize| model.norms.bias.then(|| vec![0.0; length]);
            let vector = |weight: &Weight| (vec![1.0; of(weight)], bias(of(weight)));
            return Ok(Held::Vectors(step.weights.iter().map(vector).collect()));
        }
        match step.op {
            Op::Elementwise(_) => {
                let rows = model.vocabulary.get() as usize;
                Ok(Held::Products(vec![self.matrix(Role::Embedding, layer, rows, hidden)?]))
            }
            Op::Linear(linear) => {
                let (n, k) = (linear.n.get() as usize, linear.k.get() as usize);
                let rows = match step.part {
                    roofline_core::role::Part::Qkv { query, key } => {
                        vec![query.get() as usize, key.get() as usize, key.get() as usize]
                    }
                    _ => vec![n],
                };
                Ok(Held::Products(self.together(layer, step.weights, &rows, k)?))
            }
            Op::ActivatedLinear(linear) => {
                let (n, k) = (linear.linear.n.get() as usize, linear.linear.k.get() as usize);
                Ok(Held::Products(self.together(layer, step.weights, &vec![n; step.weights.len()], k)?))
            }
            Op::Experts(op) => {
                let (n, k) = (op.n.get() as usize, op.k.get() as usize);
                let rows = vec![n; if op.side == ExpertSide::GatedUp { 2 } else { 1 }];
                let one = |random: &mut Self| random.together(layer, step.weights, &rows, k);
                let experts = (0..op.experts.get()).map(|_| one(self)).collect::<Result<_>>()?;
                Ok(Held::Experts { experts, turns: model.family == "gpt_oss" })
            }
            op => Err(Error::unsupported(op.words(step.site), "it has no weights")),
        }
    }

    /// Matrices that are multiplied together, as one where they are stored alike.
    fn together(
        &mut self,
        layer: Option<usize>,
        weights: &[Weight],
        rows: &[usize],
        columns: usize,
    ) -> Result<Vec<Matrix<'static>>> {
        let biased = self.biased(layer, weights[0]);
        let bias = |rows: usize| biased.then(|| vec![0.0; rows]);
        if !self.torn(weights, columns) {
            let rows = rows.iter().sum();
            let mut matrix = self.matrix(weights[0].role(), layer, rows, columns)?;
            matrix.bias = bias(rows);
            return Ok(vec![matrix]);
        }
        let mut all = Vec::new();
        for (weight, rows) in weights.iter().zip(rows) {
            let mut matrix = self.matrix(weight.role(), layer, *rows, columns)?;
            matrix.bias = bias(*rows);
            all.push(matrix);
        }
        Ok(all)
    }

    /// Whether some layer stores these weights in different ways, so that they run apart in all.
    fn torn(&self, weights: &[Weight], columns: usize) -> bool {
        (0..self.model.anatomy.order.len()).any(|layer| {
            let format = |weight: &Weight| self.format(weight.role(), Some(layer), columns);
            let inputs = |weight: &Weight| self.inputs(weight.role(), Some(layer), columns);
            let differs = |one: &Weight| format(one) != format(&weights[0]) || inputs(one) != inputs(&weights[0]);
            weights.iter().any(differs)
        })
    }

    /// Whether a product has a bias.
    fn biased(&self, layer: Option<usize>, weight: Weight) -> bool {
        let Some(shape) = layer.map(|layer| &self.model.layers[usize::from(self.model.anatomy.order[layer])]) else {
            return weight == Weight::Head && self.model.head_bias;
        };
        let (input, output) = match shape.attention {
            AttentionLayer::Grouped { input_bias, output_bias, .. } => (input_bias, output_bias),
            AttentionLayer::Latent { .. } => (false, false),
        };
        let (fed, routed) = match shape.feed_forward {
            FeedForward::Dense { bias, .. } => (bias, false),
            FeedForward::Experts { bias, router_bias, .. } => (bias, router_bias),
        };
        match weight {
            Weight::Query => input,
            Weight::Output => output,
            Weight::Router => routed,
            _ => fed,
        }
    }

    /// How the plan stores a role in a layer.
    fn format(&self, role: Role, layer: Option<usize>, columns: usize) -> Format {
        let layers = self.model.anatomy.order.len() as u64;
        let wide = self.settings.values;
        match self.plan.at(role, layer.map(|layer| layer as u64), layers, None) {
            Stored::Wide => wide,
            Stored::As(spec) => spec.formats().weights.unwrap_or(wide),
            Stored::Mixed(mix) => mix.usual_type(role, layer, columns as u64, &self.model.anatomy),
        }
    }

    /// What the plan rounds the inputs of a role to.
    fn inputs(&self, role: Role, layer: Option<usize>, columns: usize) -> Option<Inputs> {
        let layers = self.model.anatomy.order.len() as u64;
        let stored = self.plan.at(role, layer.map(|layer| layer as u64), layers, None);
        let Stored::As(spec) = stored else { return None };
        let inputs = spec.formats().activations.and_then(Inputs::of);
        inputs.filter(|inputs| self.settings.round_inputs && role != Role::Embedding && inputs.fits(columns))
    }

    fn matrix(&mut self, role: Role, layer: Option<usize>, rows: usize, columns: usize) -> Result<Matrix<'static>> {
        let format = self.format(role, layer, columns);
        let spread = (3.0 / columns as f32).sqrt();
        let distinct = rows.min(DISTINCT);
        let numbers: Vec<f32> = (0..distinct * columns).map(|_| self.number() * spread).collect();
        let encoded = format.encode(&numbers, Dim::new("columns", columns as u64)?)?;
        // A GPU repeats them itself.
        let there = if self.settings.backend == Backend::Cpu { rows } else { distinct };
        let fill = |part: &[u8]| {
            let each = part.len() / distinct;
            let mut all = self.arena.take(there * each, "a weight")?;
            for chunk in all.chunks_mut((distinct * each).max(1)) {
                let length = chunk.len();
                chunk.copy_from_slice(&part[..length]);
            }
            Ok::<_, Error>(all)
        };
        let parts = [fill(&encoded.codes)?, fill(&encoded.scales)?, fill(&encoded.zeros)?];
        let inputs = self.inputs(role, layer, columns);
        let mut matrix = Matrix::of(format, (rows, there), columns, parts, encoded.tensor.clone());
        matrix.inputs = inputs;
        Ok(matrix)
    }
}
