//! This machine as a device: what it is made of, and what it was measured to do.

use roofline_core::Device;
use roofline_run::Backend;

use crate::failure::Failure;

pub(super) fn device() -> Result<Device, Failure> {
    Err(Failure::usage("not yet", "soon"))
}
pub(super) fn backend() -> Result<roofline_run::Null, Failure> {
    Err(Failure::usage("not yet", "soon"))
}
pub(super) fn description() -> Result<Option<String>, Failure> {
    Ok(None)
}
pub(super) fn facts() -> Result<Vec<(String, String)>, Failure> {
    Ok(Vec::new())
}
