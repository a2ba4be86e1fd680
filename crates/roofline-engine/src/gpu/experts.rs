//! Experts: who goes where, and what comes of it.

use roofline_core::{
    model::arithmetic::Routing,
    op::{self, ExpertSide},
    program::Step,
};
use roofline_run::cuda::model::{Activated, Choice, Matrix, Memory};

use super::{GpuHeld, GpuMatrix, pass::Steps, products::function};
use crate::{Error, Result};

/// The rows of a step's experts.
#[derive(Clone, Copy)]
struct Visits {
    tokens: usize,
    experts: usize,
    active: usize,
}

impl Visits {
    fn rows(self) -> usize {
        self.tokens * self.active
    }
}

impl Steps<'_, '_> {
    /// One side of the experts: each sees the rows of its tokens.
    pub(super) fn experts(&mut self, layer: Option<usize>, step: &Step, op: &op::Experts) -> Result<()> {
        let held = self.session.held;
        let GpuHeld::Experts { matrices, turns } = held.held(layer, step.weights)? else {
            return Err(Error::missing(step.site));
        };
        let tokens = self.pass.shape.rows();
        let visits = Visits { tokens, experts: op.experts.get() as usize, active: op.active.get() as usize };
        let down = op.side == ExpertSide::Down;
        if !down {
            self.route(visits)?;
        }
        let sorted = held.sorts(visits.rows());
        if sorted && !down {
            self.sort(visits)?;
        }
        let inner = if down { op.k } else { op.n }.get() as usize;
        if down {
            let (one, bias) = single(matrices, step)?;
            let room = &self.session.room;
            let (x, y) = (room.inner.address(), room.visited.address());
            self.product(step, 0, one, sorted, visits, (x, y), 1)?;
            let room = &self.session.room;
            let places = (room.choice.address(), room.weights.address(), bias);
            let place = sorted.then(|| room.place.address());
            let hidden = self.session.model.hidden.get() as usize;
            return Ok(self.session.kernels.combine(
                room.visited.address(),
                place,
                places,
                room.fed.address(),
                (tokens, hidden, visits.active),
            )?);
        }
        let gated = op.side == ExpertSide::GatedUp;
        let room = &self.session.room;
        let x = if sorted { room.gathered.address() } else { room.normed.address() };
        let (inner_at, wide) = (room.inner.address(), room.wide.address());
        if let [one] = &matrices[..]
            && gated
            && !sorted
            && self.session.products.gates(&one.matrix, 1)
        {
            let choice = self.choice(visits, visits.active);
            let peers = held.peers(step.weights, 0);
            return Ok(self.session.products.run_chosen(&one.matrix, &peers, choice, (x, inner_at), true)?);
        }
        let mut places = Vec::new();
        let mut to = wide;
        for (at, own) in matrices.iter().enumerate() {
            self.product(step, at, own, sorted, visits, (x, to), visits.active)?;
            places.push(to);
            to += (2 * visits.rows() * own.matrix.n) as u64;
        }
        let bias = |at: usize| matrices.get(at).and_then(|own| own.bias.as_ref()).map(Memory::address);
        let (gate, up, biases, pitch, stride) = match (gated, &places[..], *turns) {
            (true, [both], true) => (*both, Some(both + 2), [bias(0), bias(0).map(|own| own + 4)], 2 * inner, 2),
            (true, [both], false) => {
                let second = bias(0).map(|own| own + 4 * inner as u64);
                (*both, Some(both + 2 * inner as u64), [bias(0), second], 2 * inner, 1)
            }
            (true, [gate, up], _) => (*gate, Some(*up), [bias(0), bias(1)], inner, 1),
            (false, [one], _) => (*one, None, [bias(0), None], inner, 1),
            _ => return Err(Error::missing(step.site)),
        };
        let room = &self.session.room;
        let choice = Some(if sorted { room.owner.address() } else { room.choice.address() });
        let of = Activated {
            rows: visits.rows(),
            width: inner,
            gate,
            up,
            biases,
            bias_pitch: pitch,
            choice,
            pitch,
            stride,
            out: inner_at,
        };
        Ok(self.session.kernels.activated(function(self.session.model)?, &of)?)
    }

    fn route(&self, visits: Visits) -> Result<()> {
        let room = &self.session.room;
        let of_all = self.session.model.arithmetic.routing == Routing::OfAll;
        let places = (room.choice.address(), room.weights.address());
        let sizes = (visits.tokens, visits.experts, visits.active);
        Ok(self.session.kernels.route(room.scores.address(), places, sizes, of_all)?)
    }

    fn choice(&self, visits: Visits, active: usize) -> Choice {
        Choice { address: self.session.room.choice.address(), visits: visits.rows(), active }
    }

    /// A product of every expert with the rows that are its.
    #[allow(clippy::too_many_arguments, reason = "a matrix, its place in the step, and where rows are")]
    fn product(
        &mut self,
        step: &Step,
        at: usize,
        own: &GpuMatrix,
        sorted: bool,
        visits: Visits,
        (x, y): (u64, u64),
        active: usize,
    ) -> Result<()> {
        let matrix: &Matrix = &own.matrix;
        let (held, choice) = (self.session.held, self.choice(visits, active));
        let peers = held.peers(step.weights, at);
        let products = &mut self.session.products;
        if sorted {
            let starts = self.session.room.firsts.address();
            return Ok(products.run_sorted(matrix, &peers, starts, (visits.rows(), x, y))?);
        }
        Ok(products.run_chosen(matrix, &peers, choice, (x, y), false)?)
    }

    /// Sorts the visits of a pass by expert, and gathers their tokens.
    fn sort(&self, visits: Visits) -> Result<()> {
        let Visits { experts, active, .. } = visits;
        let (room, kernels) = (&self.session.room, &self.session.kernels);
        let places = [&room.choice, &room.order, &room.place, &room.owner, &room.firsts].map(Memory::address);
        kernels.sort(places, visits.rows(), (experts, active))?;
        let (normed, order, gathered) = (room.normed.address(), room.order.address(), room.gathered.address());
        let hidden = self.session.model.hidden.get() as usize;
        Ok(kernels.gather(normed, order, gathered, (visits.rows(), hidden))?)
    }
}

/// The one matrix of a step, and its bias.
fn single<'m>(matrices: &'m [GpuMatrix], step: &Step) -> Result<(&'m GpuMatrix, Option<u64>)> {
    let [one] = matrices else { return Err(Error::missing(step.site)) };
    Ok((one, one.bias.as_ref().map(Memory::address)))
}
