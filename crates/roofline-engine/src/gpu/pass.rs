//! The steps of a pass, asked for one after the other.

use std::time::Duration;

use roofline_core::{
    Format, Math, Op, Program, Role,
    program::{Step, Value, Weight},
};
use roofline_run::cuda::model::{Clock, Memory, RopeWrite, Sum};

use super::{GpuHeld, session::GpuSession};
use crate::{
    Error, Result,
    session::{LayerOutput, Ran},
};

/// What a pass is over: passes of one shape are the same kernels on the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    /// The first sequence.
    pub(super) first: usize,
    pub(super) sequences: usize,
    /// New tokens of each.
    pub(super) new: usize,
    /// Whether every token has logits.
    pub(super) all: bool,
}

impl Shape {
    pub(super) fn rows(self) -> usize {
        self.sequences * self.new
    }

    /// Rows that have logits.
    pub(super) fn heads(self) -> usize {
        if self.all { self.rows() } else { self.sequences }
    }
}

/// A pass.
pub(super) struct Pass {
    pub(super) shape: Shape,
    /// Tokens that each sequence had before.
    pub(super) starts: Vec<usize>,
}

/// Who norms the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Norming {
    /// A kernel of its own.
    #[default]
    Itself,
    /// The product before it has added itself to the stream and done its part: the steps of both are still to come.
    Before,
    /// The product behind it is to divide by the root mean square.
    Behind,
}

/// Small steps that wait for the kernel they are a part of.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) embedding: bool,
    /// Addresses of what is added to the stream, and whether it is FP32.
    pub(super) added: Vec<(u64, bool)>,
    /// Weights of the norm of what is added first.
    pub(super) post: Option<u64>,
    /// Weights of the norms of queries and keys.
    pub(super) heads: Option<[u64; 2]>,
    pub(super) turned: bool,
    pub(super) norm: Norming,
    /// The way of queries, keys and values into the cache, for attention that goes it itself.
    pub(super) turn: Option<RopeWrite>,
}

/// The steps of a pass on their way.
pub(super) struct Steps<'s, 'e> {
    pub(super) session: &'s mut GpuSession<'e>,
    pub(super) pass: &'s Pass,
    pub(super) waiting: Waiting,
    /// Which of the two streams is the present one.
    pub(super) stream: usize,
    /// A clock for each step, where they are timed.
    clocks: Vec<(Ran, Clock)>,
}

impl<'s, 'e> Steps<'s, 'e> {
    pub(super) fn new(session: &'s mut GpuSession<'e>, pass: &'s Pass) -> Self {
        Self { session, pass, waiting: Waiting::default(), stream: 0, clocks: Vec::new() }
    }

    /// Asks for every step of `program`.
    pub(super) fn walk(&mut self, program: &Program) -> Result<()> {
        let gpu = self.session.held.gpu();
        let steps: Vec<(Option<usize>, &Step)> = program.steps().collect();
        for (at, &(layer, step)) in steps.iter().enumerate() {
            (self.session.settings.stop)()?;
            let clock = if self.session.timed { Some(Clock::new(gpu)?) } else { None };
            clock.iter().try_for_each(|clock| clock.start(gpu))?;
            let sum = self.sum(&steps[at..]);
            self.step(layer, step, sum)?;
            if let Some(clock) = clock {
                clock.stop(gpu)?;
                self.clocks.push((self.ran(layer, step), clock));
            }
            let ends = layer.filter(|own| steps.get(at + 1).is_none_or(|(next, _)| *next != Some(*own)));
            if let Some(layer) = ends.filter(|_| self.session.every > 0) {
                self.keep(layer)?;
            }
        }
        if !self.clocks.is_empty() {
            gpu.wait()?;
        }
        for (ran, clock) in self.clocks.drain(..) {
            let time = Duration::from_secs_f64(clock.elapsed()?.value());
            self.session.ran.push(Ran { time, ..ran });
        }
        Ok(())
    }

    fn step(&mut self, layer: Option<usize>, step: &Step, sum: Option<Sum>) -> Result<()> {
        for small in &step.before {
            self.small(layer, small)?;
        }
        match step.op {
            Op::Linear(_) | Op::ActivatedLinear(_) => self.linear(layer, step, sum)?,
            Op::Experts(experts) => self.experts(layer, step, &experts)?,
            Op::Attention(_) => self.attention(layer, step)?,
            Op::Elementwise(_) => self.small(layer, step)?,
            op => return Err(Error::unsupported(op.words(step.site), "there is no kernel for it")),
        }
        for small in &step.after {
            self.small(layer, small)?;
        }
        Ok(())
    }

    /// What a step computed, and with which formats.
    fn ran(&self, layer: Option<usize>, step: &Step) -> Ran {
        let role = step.part.role();
        let weights = match self.session.held.held(layer, step.weights) {
            Ok(GpuHeld::Products(matrices) | GpuHeld::Experts { matrices, .. }) => {
                matrices.first().map(|own| own.format)
            }
            Ok(GpuHeld::Embedding { head, .. }) => head.as_ref().map(|own| own.format),
            _ => None,
        };
        let numbers = self.session.numbers;
        let output = if matches!(role, Role::Head | Role::Router) { Format::FP32 } else { numbers.output };
        let mut precision = roofline_core::Precision { weights: weights.unwrap_or(numbers.weights), output, ..numbers };
        let narrow = match self.session.held.products(layer, step.weights) {
            Ok(matrices) => matrices.iter().all(|own| own.matrix.narrows()) && !step.weights.is_empty(),
            Err(_) => false,
        };
        if narrow {
            precision.activations = precision.weights;
            precision.math = if precision.weights == Format::INT8 { Math::Int8 } else { Math::Fp8 };
        }
        Ran { site: step.site, layer, op: step.op, role, precision, time: Duration::ZERO }
    }

    /// Keeps the stream as it is behind a layer.
    fn keep(&mut self, layer: usize) -> Result<()> {
        self.flush()?;
        let session = &mut *self.session;
        let width = session.model.hidden.get() as usize;
        let mut bytes = vec![0; self.pass.shape.rows() * width * 4];
        session.room.streams[self.stream].read(session.held.gpu(), &mut bytes)?;
        let at = session.kept.iter().position(|own| own.layer == layer).unwrap_or(session.kept.len());
        if at == session.kept.len() {
            session.kept.push(LayerOutput { layer, width, values: Vec::new() });
        }
        let new = self.pass.shape.new;
        let positions = self.pass.starts.iter().flat_map(|start| *start..start + new);
        for (position, row) in positions.zip(bytes.chunks_exact(width * 4)) {
            if position.is_multiple_of(session.every) {
                let numbers = row.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
                session.kept[at].values.extend(numbers);
            }
        }
        Ok(())
    }

    /// Where a value is.
    pub(super) fn place(&self, value: Value) -> Result<&Memory> {
        let room = &self.session.room;
        Ok(match value {
            Value::Normed => &room.normed,
            Value::Query => &room.projected,
            Value::Mixed => &room.mixed,
            Value::Attended => &room.attended,
            Value::Inner => &room.inner,
            Value::Fed => &room.fed,
            Value::Choice => &room.scores,
            Value::Logits => &room.logits,
            other => return Err(Error::unsupported("a step", format!("nothing runs with {other:?}"))),
        })
    }

    /// The address of a vector of weights.
    pub(super) fn vector(&self, layer: Option<usize>, weights: &'static [Weight], at: usize) -> Result<u64> {
        let found = self.session.held.vectors(layer, weights)?.get(at);
        found.map(|(own, _)| own.address()).ok_or_else(|| Error::missing(&format!("{weights:?}")))
    }
}
