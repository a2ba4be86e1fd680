//! The seam between the protocol and whatever runs a kernel.

use std::sync::Arc;

use roofline_core::{
    Device,
    calibration::ThinRows,
    device::Kind,
    measurement::{Check, Kernel, Residency, Subject},
    units::{ByteRate, Bytes, Hertz, Seconds},
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{Error, Result, cpu, cuda, interference::Interference, protocol::Look, telemetry::Source};

/// Something that runs operators: the processor, a GPU, or the null backend.
pub trait Backend {
    /// Its name on the command line and in results.
    fn name(&self) -> &'static str;

    /// What it runs on.
    fn device(&self) -> &Device;

    /// What it is made of beyond the machine it is in: names and values.
    fn facts(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// What says how much power it draws.
    fn power(&self) -> Result<Arc<dyn Source>> {
        Err(Error::Unsupported { backend: self.name(), reason: "its power cannot be read".to_owned() })
    }

    /// What its memory does when nothing else is asked of it; none where that is kept elsewhere.
    fn ceilings(&mut self) -> Result<Vec<Ceiling>> {
        Ok(Vec::new())
    }

    /// The code that would run `subject`; [`crate::Error::Unsupported`] says why there is none.
    fn supports(&self, subject: &Subject) -> Result<Kernel>;

    /// Why nothing runs on it any more, where that is so. It is asked after a failure, which may have been the last of all.
    fn lost(&self) -> Option<Error> {
        None
    }

    /// Operands in memory, as many copies as `residency` asks for.
    fn prepare(&mut self, subject: &Subject, residency: Residency) -> Result<Box<dyn Case + '_>>;
}

/// Rows up to which the backend of `device` runs its kernels for thin products. It is asked by device, because a fit from
/// a file has no backend at hand.
pub fn thin_rows(device: &Device) -> ThinRows {
    if !matches!(device.kind, Kind::Gpu | Kind::Soc) {
        return ThinRows::all(cpu::kernels::linear::THIN_ROWS as u64);
    }
    let rows = ThinRows::all(cuda::THIN_ROWS as u64).rounding(cuda::ROUNDED_BYTES as u64);
    let sorting = |rows: ThinRows| rows.sorting(cuda::model::FEW_VISITS as u64);
    let capability = device.compute_capability.as_deref().and_then(|text| text.split_once('.')?.0.parse::<u32>().ok());
    match capability {
        Some(9) => sorting(rows.packing(cuda::PACKED_BYTES_ROWS as u64).contested(cuda::CONTESTED_ROWS as u64)),
        // Both operands in FP8 are the library's there.
        Some(8..) => sorting(rows.packing(0)),
        _ => rows,
    }
}

/// What a kernel that does one thing only reaches.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "BackendCeiling")]
pub enum Ceiling {
    /// Moving bytes.
    Stream {
        /// Which way.
        name: &'static str,
        /// Bytes of one pass.
        moved: Bytes,
        /// Bytes per second.
        rate: ByteRate,
    },
    /// Starting and ending.
    Launch {
        /// What started.
        name: &'static str,
        /// Of one start.
        time: Seconds,
    },
}

/// An operator with its operands, ready to run.
pub trait Case {
    /// The code that runs.
    fn kernel(&self) -> Kernel;

    /// Runs once and compares with a float64 reference.
    fn check(&mut self) -> Result<Check>;

    /// Runs once, on the next copy of the operands, and says how long that took.
    fn sample(&mut self) -> Result<Seconds>;

    /// Bytes that a call moves beyond those the operator needs: what it writes to memory only to read it again.
    fn detour(&self) -> Bytes {
        Bytes::ZERO
    }

    /// Calls that a sample stands for.
    fn calls(&self) -> u64 {
        1
    }

    /// What a sample of nothing takes: the instrument's own share.
    fn overhead(&mut self) -> Seconds {
        Seconds::ZERO
    }

    /// Bytes of all copies over the bytes of the caches; none where copies do not matter.
    fn times_cache(&self) -> Option<f64> {
        None
    }

    /// The clock now; none where it cannot be known.
    fn clock(&mut self) -> Option<Hertz> {
        None
    }

    /// The clock now, and whether the power limit alone holds it down.
    fn look(&mut self) -> Look {
        Look { clock: self.clock(), power_limited: false }
    }

    /// What the clock is known to reach when everything goes well, by the same reading; none where nobody has looked.
    fn known_clock(&self) -> Option<Hertz> {
        None
    }

    /// What others took of the machine since it started.
    fn interference(&mut self) -> Interference {
        Interference::default()
    }
}
