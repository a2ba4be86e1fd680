//! Kernels that are asked for once and start as a whole, many times.

use cudarc::driver::{
    CudaEvent, CudaGraph,
    sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode, CUstreamCaptureStatus},
};
use roofline_core::units::Seconds;

use crate::{
    Error, Result,
    cuda::gpu::{Gpu, failed},
};

/// How often a recording is tried.
const TRIES: usize = 4;

/// What came of asking.
pub(in crate::cuda) enum Recorded<E> {
    Graph(CudaGraph),
    /// Somebody else's doing.
    Spoilt(E),
    Failed(E),
}

/// Keeps what `ask` asks for.
pub(in crate::cuda) fn record<E: From<Error>>(
    gpu: &Gpu,
    ask: &mut dyn FnMut() -> std::result::Result<(), E>,
) -> Recorded<E> {
    let stream = gpu.stream();
    let begun = stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    if let Err(error) = begun {
        return Recorded::Failed(failed(error).into());
    }
    let asked = ask();
    let status = stream.capture_status();
    let spoilt = status.is_ok_and(|status| status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    let empty = || Error::Gpu { reason: "a recording of nothing".to_owned(), hint: None };
    let graph = graph.map_err(failed).and_then(|graph| graph.ok_or_else(empty)).map_err(E::from);
    match asked.and(graph) {
        Ok(graph) => Recorded::Graph(graph),
        Err(error) if spoilt => Recorded::Spoilt(error),
        Err(error) => Recorded::Failed(error),
    }
}

/// A sequence of kernels.
pub struct Recording(CudaGraph);

impl Recording {
    /// Keeps what `ask` asks for, instead of running it. What others do on the GPU from the same process, such as loading
    /// kernels, may spoil a recording; it is made anew then, a few times.
    pub fn new<E: From<Error>>(
        gpu: &Gpu,
        mut ask: impl FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<Self, E> {
        let mut left = TRIES;
        loop {
            left -= 1;
            match record(gpu, &mut ask) {
                Recorded::Graph(graph) => return Ok(Self(graph)),
                Recorded::Spoilt(_) if left > 0 => {}
                Recorded::Spoilt(error) | Recorded::Failed(error) => return Err(error),
            }
        }
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
