//! Times from replaying a graph: kernels start one after the other without the host in between, and the GPU's own clock
//! says when the first began and the last ended.

use cudarc::driver::{CudaEvent, sys::CUevent_flags};
use roofline_core::units::Seconds;

use super::{
    gpu::{Gpu, failed},
    model::Recording,
};
use crate::{Error, Result, protocol::replay};

/// A graph of the same work on one copy of the operands after the other.
pub(super) struct Replay {
    graph: Recording,
    start: CudaEvent,
    end: CudaEvent,
    calls: usize,
}

impl Replay {
    /// `enqueue(copy)` asks for the work on a copy; all `copies` are used equally often.
    pub(super) fn new(gpu: &Gpu, copies: usize, enqueue: &mut dyn FnMut(usize) -> Result<()>) -> Result<Self> {
        let first = Self::rounds(gpu, copies, 1, enqueue)?;
        first.sample(gpu)?;
        let once = first.sample(gpu)? * first.calls as f64;
        let rounds = replay::rounds(once, copies);
        if rounds == 1 { Ok(first) } else { Self::rounds(gpu, copies, rounds, enqueue) }
    }

    fn rounds(gpu: &Gpu, copies: usize, rounds: usize, enqueue: &mut dyn FnMut(usize) -> Result<()>) -> Result<Self> {
        let mut ask = || (0..rounds * copies).try_for_each(|call| enqueue(call % copies));
        let graph = Recording::new::<Error>(gpu, &mut ask)?;
        let event = || gpu.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(failed);
        Ok(Self { graph, start: event()?, end: event()?, calls: rounds * copies })
    }

    /// Calls of a replay.
    pub(super) fn calls(&self) -> u64 {
        self.calls as u64
    }

    /// The time of one call, from one replay.
    pub(super) fn sample(&self, gpu: &Gpu) -> Result<Seconds> {
        self.start.record(gpu.stream()).map_err(failed)?;
        self.graph.start()?;
        self.end.record(gpu.stream()).map_err(failed)?;
        let elapsed = self.start.elapsed_ms(&self.end).map_err(failed)?;
        Ok(Seconds::new(f64::from(elapsed) * 1e-3 / self.calls as f64))
    }
}
