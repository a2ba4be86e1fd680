//! Routes in the form that tools of this field exchange: products by `M`, `N` and `K`, devices by `hardware_key`, streams of
//! benchmarks, NVML.

pub(super) mod benchmark;
pub(super) mod hardware;
pub(super) mod imports;
pub(super) mod nvml;
pub(super) mod points;
pub(super) mod products;
pub(super) mod wish;
