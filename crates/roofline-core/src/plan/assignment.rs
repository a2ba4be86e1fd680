//! A plan on a device: every format known, and the unit of every product.

use super::{Base, Plan, Selector, Stored};
use crate::{
    Device, Error, Format, Graph, Op, Precision, Result,
    graph::Node,
    model::Anatomy,
    op::{ActivatedLinear, Elementwise, ElementwiseKind, ExpertSide, Experts, Linear},
    precision::PrecisionSpec,
    role::{Part, Role},
};

/// Roles that differ in what they store.
const ROLES: usize = Role::ALL.len();

/// What a plan means on a device, for one operator or for a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// The precision of each role; where layers differ, that of the first.
    table: [Precision; ROLES],
    /// Roles whose layers differ.
    shares: Vec<Shares>,
    /// Whether kernels that read several weights have to run apart.
    torn: bool,
}

/// How many of a group's layers store a role in which way.
#[derive(Clone, Debug, PartialEq)]
struct Shares {
    role: Role,
    group: u16,
    precisions: Vec<(Precision, u64)>,
}

/// A kernel with its formats: a node of a graph, or the part of one that is stored alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kernel<'a> {
    /// The kernel.
    pub node: Node,
    /// Its formats.
    pub precision: &'a Precision,
}

impl Assignment {
    /// One precision everywhere: that of an operator that stands alone.
    pub fn uniform(precision: Precision) -> Self {
        Self { table: [precision; ROLES], shares: Vec::new(), torn: false }
    }

    /// The precision of a role; where layers differ, that of the first.
    pub fn at(&self, role: Role) -> &Precision {
        &self.table[role as usize]
    }

    /// The format of the cache.
    pub fn kv(&self) -> Format {
        self.at(Role::Mix).kv
    }

    /// Whether every matrix has 16 bit or more, and the cache too.
    pub fn is_wide(&self) -> bool {
        let matrices = Role::ALL.into_iter().filter(|role| *role <= Role::Embedding);
        let wide = |precision: &Precision| precision.weights.nominal_bits() >= 16;
        matrices.into_iter().all(|role| wide(self.at(role))) && self.kv().nominal_bits() >= 16
    }

    /// Every kernel of a graph with its formats, in order. Kernels that read several weights run apart where those are stored
    /// in different ways, and layers that are stored in different ways are counted apart.
    pub fn kernels<'a>(&'a self, graph: &Graph, mut each: impl FnMut(Kernel<'a>)) {
        for node in &graph.nodes {
            if !self.torn {
                each(Kernel { node: *node, precision: self.at(node.part.role()) });
                continue;
            }
            for node in self.apart(node) {
                self.by_layer(&node, &mut each);
            }
        }
    }

    /// A kernel that reads several weights, one for each where they are stored in different ways.
    fn apart(&self, node: &Node) -> Vec<Node> {
        let kernel = |site, op, role| Node { site, op, part: Part::One(role), ..*node };
        match (node.part, node.op) {
            (Part::Qkv { query, key }, Op::Linear(linear)) if !self.same(&[Role::Query, Role::Key, Role::Value]) => {
                let of = |n| Op::Linear(Linear { n, ..linear });
                vec![
                    kernel("q_proj", of(query), Role::Query),
                    kernel("k_proj", of(key), Role::Key),
                    kernel("v_proj", of(key), Role::Value),
                ]
            }
            (Part::GateUp, Op::ActivatedLinear(ActivatedLinear { linear, .. }))
                if !self.same(&[Role::Gate, Role::Up]) =>
            {
                let product = Op::Linear(linear);
                let (kind, vectors) = (ElementwiseKind::GatedActivation, crate::Dim::ONE);
                let join = Elementwise { kind, tokens: linear.m.wide(), vectors, width: linear.n };
                vec![
                    kernel("gate_proj", product, Role::Gate),
                    kernel("up_proj", product, Role::Up),
                    kernel("silu_mul", Op::Elementwise(join), Role::Down),
                ]
            }
            (Part::ExpertGateUp, Op::Experts(experts)) if !self.same(&[Role::ExpertGate, Role::ExpertUp]) => {
                let product = Op::Experts(Experts { side: ExpertSide::Up, ..experts });
                let tokens = experts.tokens.wide() * experts.active.wide();
                let (kind, vectors) = (ElementwiseKind::GatedActivation, crate::Dim::ONE);
                let join = Elementwise { kind, tokens, vectors, width: experts.n };
                vec![
                    kernel("experts_gate", product, Role::ExpertGate),
                    kernel("experts_up", product, Role::ExpertUp),
                    kernel("experts_activation", Op::Elementwise(join), Role::ExpertDown),
                ]
            }
            _ => vec![*node],
        }
    }

    /// Whether several roles are stored alike in every layer.
    fn same(&self, roles: &[Role]) -> bool {
        let shares = |role: Role| self.shares.iter().filter(move |shares| shares.role == role);
        let first = roles[0];
        roles.iter().all(|role| {
            self.at(*role) == self.at(first)
                && shares(*role).count() == shares(first).count()
                && shares(*role).zip(shares(first)).all(|(one, other)| one.precisions == other.precisions)
        })
    }

    /// A kernel once for each way its layers are stored in.
    fn by_layer<'a>(&'a self, node: &Node, each: &mut impl FnMut(Kernel<'a>)) {
        let role = node.part.role();
        let own = |shares: &&Shares| shares.role == role && node.groups & shares.group != 0;
        let mut counted: Vec<(&'a Precision, u64)> = Vec::new();
        for (precision, count) in self.shares.iter().filter(own).flat_map(|shares| &shares.precisions) {
            match counted.iter_mut().find(|(known, _)| *known == precision) {
                Some((_, sum)) => *sum += count,
                None => counted.push((precision, *count)),
            }
        }
        if counted.is_empty() || node.op.weights().is_none() {
            return each(Kernel { node: *node, precision: self.at(role) });
        }
        for (precision, count) in counted {
            each(Kernel { node: Node { count, ..*node }, precision });
        }
    }
}

impl Plan {
    /// What it means for an operator that stands alone: the precision of the layers, whatever the rules say.
    fn alone(&self, device: &Device) -> Result<Assignment> {
        Ok(Assignment::uniform(self.layers(device)?))
    }

    /// The precision of the layers' products on `device`, and of one that stands alone, with the cache that the plan says.
    pub fn layers(&self, device: &Device) -> Result<Precision> {
        let precision = match &self.base {
            Base::Mix(mix) => PrecisionSpec::weights_only(mix.base()).on(device)?,
            Base::Precision(precision) => precision.on(device)?,
        };
        Ok(Precision { kv: self.kv.unwrap_or(precision.kv), ..precision })
    }

    /// What it means on `device` for a model of that anatomy; for an operator that stands alone, where there is none. A unit
    /// that the device lacks is an error, and so is a rule that speaks of modules, which only a checkpoint has.
    pub fn on(&self, device: &Device, anatomy: Option<&Anatomy>) -> Result<Assignment> {
        let Some(model) = anatomy else { return self.alone(device) };
        let layers = self.layers(device)?;
        // What no rule names: read and written as the queries are, and multiplied as attention does.
        let wide = Precision {
            weights: layers.query,
            activations: layers.query,
            math: layers.attention,
            output: layers.query,
            ..layers
        };
        if let Some(rule) = self.rules.iter().find(|rule| matches!(rule.selector, Selector::Modules(_))) {
            return Err(Error::Unknown {
                what: "role",
                name: rule.selector.to_string(),
                nearest: None,
                hint: "names of modules are for `quantize`, which has a checkpoint; rules by role are for every verb"
                    .to_owned(),
            });
        }
        let by_layer = self.rules.iter().any(|rule| rule.selector.is_by_layer());
        let count = model.order.len() as u64;
        let at = |role: Role, layer: Option<u64>, columns: u64| -> Result<Precision> {
            let stored = match self.at(role, layer, count, None) {
                Stored::Wide => return Ok(wide),
                Stored::As(spec) => spec.resolved(device, layers.query)?,
                Stored::Mixed(mix) => {
                    let format = mix.usual_type(role, layer.map(|layer| layer as usize), columns, model);
                    PrecisionSpec::weights_only(format).resolved(device, layers.query)?
                }
            };
            let Precision { kv, query, attention, .. } = layers;
            let output = if self.precision().is_some() { stored.output } else { query };
            Ok(Precision { kv, output, query, attention, ..stored })
        };
        Assignment::by_role(model, (layers, wide), by_layer || self.mix().is_some(), at)
    }
}

impl Assignment {
    /// What a checkpoint holds, on a device: `stored` says how the weights of a role are stored in a layer and what they are
    /// multiplied with, `values` what kernels hand to each other, and `kv` what the cache keeps. Logits and scores of experts are FP32: what chooses
    /// among them must not see them rounded.
    pub fn of_stored(
        device: &Device,
        anatomy: &Anatomy,
        (values, kv): (Format, Format),
        stored: impl Fn(Role, Option<u64>) -> Option<PrecisionSpec>,
    ) -> Result<Self> {
        let of = |spec: PrecisionSpec| -> Result<Precision> { Ok(Precision { kv, ..spec.resolved(device, values)? }) };
        let plain = || PrecisionSpec::weights_only(values);
        let wide = of(plain())?;
        Self::by_role(anatomy, (wide, wide), true, |role, layer, _| {
            let precision = of(stored(role, layer).unwrap_or_else(plain))?;
            let chosen = matches!(role, Role::Head | Role::Router);
            Ok(Precision { output: if chosen { Format::FP32 } else { precision.output }, ..precision })
        })
    }

    /// Asks for the precision of every role, of each layer where layers differ; `layers` is attention's, `wide` that of
    /// everything that has no matrix.
    fn by_role(
        model: &Anatomy,
        (layers, wide): (Precision, Precision),
        by_layer: bool,
        at: impl Fn(Role, Option<u64>, u64) -> Result<Precision>,
    ) -> Result<Self> {
        let mut table = [wide; ROLES];
        table[Role::Mix as usize] = layers;
        let mut shares = Vec::new();
        for role in Role::ALL.into_iter().filter(|role| *role <= Role::Embedding) {
            if matches!(role, Role::Head | Role::Embedding) {
                table[role as usize] = at(role, None, model.hidden)?;
                continue;
            }
            if !by_layer {
                table[role as usize] = at(role, Some(0), model.hidden)?;
                continue;
            }
            let mut first = true;
            for (group, columns) in model.columns.iter().enumerate() {
                let Some(columns) = columns[role as usize] else { continue };
                let mut precisions: Vec<(Precision, u64)> = Vec::new();
                let own = model.order.iter().enumerate().filter(|(_, of)| usize::from(**of) == group);
                for (layer, _) in own {
                    let precision = at(role, Some(layer as u64), columns)?;
                    match precisions.iter_mut().find(|(known, _)| *known == precision) {
                        Some((_, sum)) => *sum += 1,
                        None => precisions.push((precision, 1)),
                    }
                }
                if let (true, Some((precision, _))) = (first, precisions.first()) {
                    (table[role as usize], first) = (*precision, false);
                }
                shares.push(Shares { role, group: 1 << group, precisions });
            }
        }
        // Where every layer of a role is stored like the first, nothing is to be counted apart.
        let plain =
            |shares: &Shares| shares.precisions.len() == 1 && shares.precisions[0].0 == table[shares.role as usize];
        let uniform: Vec<Role> =
            Role::ALL.into_iter().filter(|role| shares.iter().filter(|one| one.role == *role).all(plain)).collect();
        shares.retain(|one| !uniform.contains(&one.role));
        let assignment = Assignment { table, shares, torn: false };
        let torn = !assignment.shares.is_empty()
            || !assignment.same(&[Role::Query, Role::Key, Role::Value])
            || !assignment.same(&[Role::Gate, Role::Up])
            || !assignment.same(&[Role::ExpertGate, Role::ExpertUp]);
        Ok(Assignment { torn, ..assignment })
    }
}
