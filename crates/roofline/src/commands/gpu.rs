//! The GPU of this machine.

use roofline_core::Device;
use roofline_run::cuda::{Cuda, Gpu};

use crate::{config, failure::Failure};

/// GPU `index`, ready to run kernels. Compiled ones are kept with the user's other caches.
pub(super) fn backend(index: usize) -> Result<Cuda, Failure> {
    let gpu = Gpu::open(index, config::cache("kernels"))?;
    // Nothing runs without it, so its absence is said before anything is prepared.
    gpu.compiler()?;
    let device = described(&gpu.name)?;
    Ok(Cuda::new(gpu, device))
}

/// The data-sheet of GPU `index`.
pub(super) fn device(index: usize) -> Result<Device, Failure> {
    described(&Gpu::open(index, None)?.name)
}

/// The device of the registry that reports this name, exactly.
fn described(name: &str) -> Result<Device, Failure> {
    let device = config::registry().reported(name).map(std::borrow::Cow::into_owned);
    device.ok_or_else(|| {
        let hint = format!(
            "describe it in a file with `reported_names = [\"{name}\"]` and its peaks, and `roofline devices add FILE`; \
             `--backend cpu` measures the processor"
        );
        Failure::usage(format!("no device of the registry reports itself as `{name}`"), hint)
    })
}
