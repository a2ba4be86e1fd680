//! Kernels that are asked for once and start as a whole, many times.

use cudarc::driver::{
    CudaEvent, CudaGraph,
    sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode},
};
use roofline_core::units::Seconds;

use crate::{
    Error, Result,
    cuda::gpu::{Gpu, failed},
};

/// A sequence of kernels.
pub struct Recording(CudaGraph);

impl Recording {
    /// Keeps what `ask` asks for, instead of running it.
    pub fn new<E: From<Error>>(
        gpu: &Gpu,
        ask: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Self, E> {
        let stream = gpu.stream();
        let begun = stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        begun.map_err(|error| E::from(failed(error)))?;
        let asked = ask();
        let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        asked?;
        let empty = || Error::Gpu { reason: "a recording of nothing".to_owned(), hint: None };
        Ok(Self(graph.map_err(failed)?.ok_or_else(empty)?))
    }

    /// Starts it.
    pub fn start(&self) -> Result<()> {
        self.0.launch().map_err(failed)
    }
}

/// Two moments on the GPU's own clock.
pub struct Clock {
    start: CudaEvent,
    end: CudaEvent,
}

impl Clock {
    /// Neither of them has come.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        let event = || gpu.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(failed);
        Ok(Self { start: event()?, end: event()? })
    }

    /// From here.
    pub fn start(&self, gpu: &Gpu) -> Result<()> {
        self.start.record(gpu.stream()).map_err(failed)
    }

    /// To here.
    pub fn stop(&self, gpu: &Gpu) -> Result<()> {
        self.end.record(gpu.stream()).map_err(failed)
    }

    /// What lies between, when the second has come.
    pub fn elapsed(&self) -> Result<Seconds> {
        let elapsed = self.start.elapsed_ms(&self.end).map_err(failed)?;
        Ok(Seconds::new(f64::from(elapsed) * 1e-3))
    }
}
