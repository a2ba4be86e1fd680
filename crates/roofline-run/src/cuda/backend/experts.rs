//! Products of experts, as a step of a model runs them: with what chooses experts or sorts rows in front, and the activation
//! function or the sum over the experts of a token behind.
//!
//! Tokens choose at random, every call other experts of other copies of the weights. What an engine does once for both sides is part
//! of the first: choosing and sorting. A gate is SiLU's, which the kernel of few rows knows.

mod reference;
mod visits;

use std::cell::RefCell;

use cudarc::driver::CudaSlice;
use roofline_core::{
    Format, Precision,
    format::Sizes,
    measurement::{Check, Kernel, Path, Residency, Subject},
    op::{ExpertSide, Experts},
    units::Bytes,
};

use super::{
    super::{
        compiler::Architecture,
        gemv_packed::Stored,
        gpu::Gpu,
        model::{Activated, Choice, FEW_VISITS, Function, Kernels, Matrix, Memory, Orders, Products},
        operand::{Copies, Part, address},
    },
    GpuCase, Work,
    linear::poison,
    unsupported,
};
use crate::{Case, Result, protocol::rotation::Rotation};
use reference::Expected;
use visits::Visits;

/// Rows that kernels count to.
const MOST_ROWS: u128 = 1 << 20;
/// Copies of all experts at most: each is packed expert by expert.
const MOST_COPIES: usize = 64;
/// Draws of the experts that tokens choose at least, where calls are not all to be the same.
const DRAWS: usize = 8;
/// Orders that weights are kept in.
const ORDERS: f64 = 2.0;

/// What runs for a shape.
#[derive(Clone, Copy, Debug)]
struct Plan {
    shape: Experts,
    formats: Precision,
    /// None where rows of 16-bit numbers are multiplied as they lie.
    stored: Option<Stored>,
    /// Whether rows are sorted by their experts.
    sorted: bool,
}

impl Plan {
    fn of(shape: Experts, subject: &Subject, architecture: Architecture) -> Result<Self> {
        let formats = subject.formats;
        let Precision { weights, activations, output, .. } = formats;
        let [experts, active, n, k] = [shape.experts, shape.active, shape.n, shape.k].map(|dim| dim.get() as usize);
        if n > 1 << 24 || k > 1 << 24 || shape.rows() > MOST_ROWS {
            return Err(unsupported(format!("{} rows of {n} x {k} are past what the kernels count to", shape.rows())));
        }
        if active > experts || experts < 2 {
            return Err(unsupported(format!("{active} of {experts} experts are no choice")));
        }
        if !matches!(activations, Format::BF16 | Format::FP16) || output != activations {
            let reason =
                format!("no kernel of experts takes {activations} and writes {output}: both are bf16, or fp16");
            return Err(unsupported(reason));
        }
        if subject.cast {
            return Err(unsupported("weights of experts are not cast".to_owned()));
        }
        let stored = Stored::of(weights, activations).filter(|_| Matrix::packs(weights, activations, k));
        if stored.is_none() && weights != activations {
            return Err(unsupported(format!("no kernel of experts reads {weights} rows of {k} numbers")));
        }
        let sorts = Matrix::sorts_on(architecture, (weights, activations), k, experts);
        Ok(Self { shape, formats, stored, sorted: sorts && shape.rows() > FEW_VISITS as u128 })
    }

    fn kernel(&self) -> Kernel {
        let way = if self.sorted { "grouped" } else { "chosen" };
        let stored = self.stored.map_or_else(|| "plain".to_owned(), |stored| format!("{stored:?}").to_lowercase());
        let native = self.formats.weights == self.formats.activations;
        let path = if native { Path::Native } else { Path::FusedDequant };
        Kernel { name: format!("{way} {stored}"), path, math: self.formats.math }
    }

    fn is_down(&self) -> bool {
        self.shape.side == ExpertSide::Down
    }

    fn is_gated(&self) -> bool {
        self.shape.side == ExpertSide::GatedUp
    }

    /// Rows of an expert's matrix: those of a gate stand before those that it multiplies.
    fn matrix_rows(&self) -> usize {
        self.shape.n.get() as usize * if self.is_gated() { 2 } else { 1 }
    }
}

/// The kernel for `shape`.
pub(super) fn kernel(shape: Experts, subject: &Subject, architecture: Architecture) -> Result<Kernel> {
    Plan::of(shape, subject, architecture).map(|plan| plan.kernel())
}

pub(super) fn prepare<'a>(
    gpu: &'a Gpu,
    shape: Experts,
    subject: &Subject,
    residency: Residency,
) -> Result<Box<dyn Case + 'a>> {
    let plan = Plan::of(shape, subject, gpu.architecture)?;
    let activations = plan.formats.activations;
    let [tokens, experts, active, n, k] =
        [shape.tokens, shape.experts, shape.active, shape.n, shape.k].map(|dim| dim.get() as usize);
    let (rows, matrix_rows) = (tokens * active, plan.matrix_rows());
    let kernels = Kernels::new(gpu, activations)
        .ok_or_else(|| unsupported(format!("numbers between kernels are of 16 bit, and not {activations}")))?;
    let rotation = rotation(gpu, &plan, residency)?;
    let expected = Expected::new(&plan, if plan.is_down() { rows } else { tokens })?;
    let sources: Vec<_> = (0..experts).map(|expert| expected.source(expert)).collect();
    let turns = plan.is_gated();
    let one = || Matrix::new(&kernels, (matrix_rows, k), &sources, None, (turns, Orders::Two));
    let matrices = (0..rotation.copies).map(|_| one()).collect::<Result<Vec<Matrix>>>()?;
    let draws = match residency {
        Residency::Warm => 1,
        Residency::Cold => DRAWS.div_ceil(rotation.copies) * rotation.copies,
    };
    let draw = |seed: usize| Draw::new(gpu, Visits::drawn((tokens, experts, active), seed as u64 + 1));
    let x = Part { pattern: expected.inputs.plain(k), bytes: expected.inputs.rows * k * 2 };
    let here = |wanted: bool, bytes: usize| gpu.memory(if wanted { bytes } else { 0 });
    let work = ExpertsWork {
        kernels,
        products: RefCell::new(Products::new(kernels, 0)?),
        matrices,
        draws: (0..draws).map(draw).collect::<Result<_>>()?,
        times_cache: rotation.times_cache,
        x: Copies::new(gpu, &[x], Residency::Warm)?,
        gathered: here(plan.sorted && !plan.is_down(), rows * k * 2)?,
        wide: gpu.memory(rows * matrix_rows * 2)?,
        out: gpu.memory(if plan.is_down() { tokens * n * 4 } else { rows * n * 2 })?,
        plan,
        expected,
    };
    // What one side finds done by the other; and the fastest ways, which no recording may look for.
    for draw in &work.draws {
        work.choose(draw)?;
        if plan.sorted {
            work.sort(draw)?;
        }
    }
    for copy in 0..work.draws.len() {
        work.enqueue(gpu, copy)?;
    }
    gpu.wait()?;
    Ok(GpuCase::boxed(gpu, work))
}

/// As many copies of all experts as it takes that those which are read lie past the cache.
fn rotation(gpu: &Gpu, plan: &Plan, residency: Residency) -> Result<Rotation> {
    let Plan { shape, formats, .. } = plan;
    let read = roofline_core::Op::Experts(*shape).weight_bytes(formats, Sizes::Exact);
    let matrix = Matrix::room(Some(formats.weights), formats.activations, (plan.matrix_rows(), shape.k.get() as usize));
    let held = Bytes::new(ORDERS * matrix as f64 * shape.experts.get() as f64);
    let free = gpu.free()?;
    match residency {
        Residency::Warm if held < free => Ok(Rotation::warm(read, gpu.l2)),
        Residency::Warm => Err(gpu.shortage(held, free)),
        Residency::Cold => {
            // Of what a copy takes only a part is read by a call.
            let rotation = Rotation::cold(read, gpu.l2, free * (read / held));
            let rotation = rotation.ok_or_else(|| gpu.shortage(Rotation::least(held), free))?;
            let copies = rotation.copies.min(MOST_COPIES);
            Ok(Rotation { copies, times_cache: read * copies as f64 / gpu.l2 })
        }
    }
}

/// Experts that tokens choose, and what says so to the kernels.
struct Draw {
    visits: Visits,
    scores: Memory,
    choice: Memory,
    weights: Memory,
    order: Memory,
    place: Memory,
    owner: Memory,
    firsts: Memory,
}

impl Draw {
    fn new(gpu: &Gpu, visits: Visits) -> Result<Self> {
        let numbers = |count: usize| Memory::new(gpu, 4 * count);
        let rows = visits.chosen.len();
        Ok(Self {
            scores: Memory::of_floats(gpu, &visits.scores())?,
            choice: numbers(rows)?,
            weights: numbers(rows)?,
            order: numbers(rows)?,
            place: numbers(rows)?,
            owner: numbers(rows)?,
            firsts: numbers(visits.experts + 1)?,
            visits,
        })
    }
}

struct ExpertsWork<'a> {
    plan: Plan,
    kernels: Kernels<'a>,
    /// Asked through a shared reference, as all work is, and with a memory of its own of what is fastest.
    products: RefCell<Products<'a>>,
    /// Copies of all experts, and calls with draws of their own, of which there are a multiple as many.
    matrices: Vec<Matrix>,
    draws: Vec<Draw>,
    times_cache: f64,
    x: Copies,
    /// Rows of tokens by their experts; what products write where something follows them; the result.
    gathered: CudaSlice<u8>,
    wide: CudaSlice<u8>,
    out: CudaSlice<u8>,
    expected: Expected,
}

impl ExpertsWork<'_> {
    fn choose(&self, draw: &Draw) -> Result<()> {
        let Visits { tokens, experts, active, .. } = draw.visits;
        let places = (draw.choice.address(), draw.weights.address());
        self.kernels.route(draw.scores.address(), places, (tokens, experts, active), false)
    }

    fn sort(&self, draw: &Draw) -> Result<()> {
        let Visits { experts, active, .. } = draw.visits;
        let places = [&draw.choice, &draw.order, &draw.place, &draw.owner, &draw.firsts].map(Memory::address);
        self.kernels.sort(places, draw.visits.chosen.len(), (experts, active))
    }

    /// The product of every expert with its rows, of which so many share a row of `x`.
    fn product(&self, matrix: &Matrix, draw: &Draw, (x, y): (u64, u64), (active, gated): (usize, bool)) -> Result<()> {
        let peers: Vec<&Matrix> = self.matrices.iter().collect();
        let mut products = self.products.borrow_mut();
        let rows = draw.visits.chosen.len();
        if self.plan.sorted {
            return products.run_sorted(matrix, &peers, draw.firsts.address(), (rows, x, y));
        }
        let choice = Choice { address: draw.choice.address(), visits: rows, active };
        products.run_chosen(matrix, &peers, choice, (x, y), gated)
    }

    /// Whether the gate is applied within the product.
    fn gates(&self, matrix: &Matrix) -> bool {
        self.plan.is_gated() && !self.plan.sorted && self.products.borrow().gates(matrix, 1)
    }

    fn up(&self, gpu: &Gpu, matrix: &Matrix, draw: &Draw) -> Result<()> {
        let Plan { shape, sorted, .. } = self.plan;
        let Visits { active, .. } = draw.visits;
        let (n, k, rows) = (shape.n.get() as usize, shape.k.get() as usize, draw.visits.chosen.len());
        self.choose(draw)?;
        let (mut x, wide, out) = (self.x.at(gpu, 0, 0), address(gpu, &self.wide), address(gpu, &self.out));
        if sorted {
            self.sort(draw)?;
            let gathered = address(gpu, &self.gathered);
            self.kernels.gather(x, draw.order.address(), gathered, (rows, k))?;
            x = gathered;
        }
        if self.gates(matrix) {
            return self.product(matrix, draw, (x, out), (active, true));
        }
        self.product(matrix, draw, (x, wide), (active, false))?;
        let gated = self.plan.is_gated();
        let function = Activated {
            rows,
            width: n,
            gate: wide,
            up: gated.then_some(wide + 2 * n as u64),
            biases: [None, None],
            bias_pitch: self.plan.matrix_rows(),
            choice: Some(if sorted { draw.owner.address() } else { draw.choice.address() }),
            pitch: self.plan.matrix_rows(),
            stride: 1,
            out,
        };
        self.kernels.activated(Function::Silu, &function)
    }

    fn down(&self, gpu: &Gpu, matrix: &Matrix, draw: &Draw) -> Result<()> {
        let Visits { tokens, active, .. } = draw.visits;
        let (visited, out) = (address(gpu, &self.wide), address(gpu, &self.out));
        self.product(matrix, draw, (self.x.at(gpu, 0, 0), visited), (1, false))?;
        let place = self.plan.sorted.then(|| draw.place.address());
        let weighed = (draw.choice.address(), draw.weights.address(), None);
        let n = self.plan.shape.n.get() as usize;
        self.kernels.combine(visited, place, weighed, out, (tokens, n, active))
    }
}

impl Work for ExpertsWork<'_> {
    fn kernel(&self) -> Kernel {
        self.plan.kernel()
    }

    fn copies(&self) -> usize {
        self.draws.len()
    }

    fn times_cache(&self) -> f64 {
        self.times_cache
    }

    /// Rows that are gathered, and what a product leaves to the kernel behind it.
    fn detour(&self) -> Bytes {
        let left = if self.matrices.iter().all(|matrix| self.gates(matrix)) { 0 } else { self.wide.len() };
        let gathered = if self.plan.sorted && !self.plan.is_down() { self.gathered.len() } else { 0 };
        Bytes::new(2.0 * (gathered + left) as f64)
    }

    fn enqueue(&self, gpu: &Gpu, copy: usize) -> Result<()> {
        let (matrix, draw) = (&self.matrices[copy % self.matrices.len()], &self.draws[copy]);
        if self.plan.is_down() { self.down(gpu, matrix, draw) } else { self.up(gpu, matrix, draw) }
    }

    fn poison(&mut self, gpu: &Gpu) -> Result<()> {
        poison(gpu, &mut self.wide)?;
        poison(gpu, &mut self.out)
    }

    fn check(&self, gpu: &Gpu) -> Result<std::result::Result<Check, String>> {
        let draw = &self.draws[0];
        let mut chosen = vec![0; 4 * draw.visits.chosen.len()];
        draw.choice.read(gpu, &mut chosen)?;
        let chosen = chosen.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes) as usize);
        if !chosen.eq(draw.visits.chosen.iter().copied()) {
            return Ok(Err("tokens chose other experts than those of the highest scores".to_owned()));
        }
        self.expected.compare(gpu, &self.plan, &draw.visits, &self.out)
    }
}
