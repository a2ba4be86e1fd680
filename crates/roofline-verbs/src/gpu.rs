//! The GPU of this machine.

use roofline_core::Device;
use roofline_run::cuda::{Cuda, Gpu};

use crate::{Context, Error, Result};

/// GPU `index`, ready to run kernels. Compiled ones are kept with the user's other caches.
pub fn backend(context: &Context, index: usize) -> Result<Cuda> {
    let gpu = Gpu::open(index, context.home().folder("kernels"))?;
    // Nothing runs without it, so its absence is said before anything is prepared.
    gpu.compiler()?;
    let device = described(context, &gpu.name)?;
    Ok(Cuda::new(gpu, device))
}

/// The data-sheet of GPU `index`.
pub fn device(context: &Context, index: usize) -> Result<Device> {
    described(context, &Gpu::open(index, None)?.name)
}

/// The device of the registry that reports this name, exactly.
pub(crate) fn described(context: &Context, name: &str) -> Result<Device> {
    let device = context.registry().reported(name).map(std::borrow::Cow::into_owned);
    device.ok_or_else(|| {
        let hint = format!(
            "describe it in a file with `reported_names = [\"{name}\"]` and its peaks, and `⟨roofline devices add FILE⟩`; \
             `⟨backend cpu⟩` measures the processor"
        );
        Error::request(format!("no device of the registry reports itself as `{name}`"), hint)
    })
}
