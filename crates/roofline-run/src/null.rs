//! A backend with exact times and no hardware: all commands, routes and pages are tested on it.
//!
//! Its kernels take `2 us + 1.1 times the ideal`, in a fixed pattern of one percent around that. The numbers mean nothing
//! and every output that shows them says `null`.

use roofline_core::{
    Device,
    format::Sizes,
    measurement::{Check, Kernel, Path, Residency, Subject},
    predict::Estimate,
    units::Seconds,
};

use crate::{Backend, Case, Error, Result};

/// Fixed cost of a null kernel.
const LAUNCH: Seconds = Seconds::new(2e-6);
/// What its memory and units fall short by.
const SLOWER: f64 = 1.1;

/// Exact fake times on any device of the registry.
pub struct Null {
    device: Device,
}

impl Null {
    /// On `device`.
    pub fn new(device: Device) -> Self {
        Self { device }
    }
}

impl Backend for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn supports(&self, subject: &Subject) -> Result<Kernel> {
        if matches!(subject.op, roofline_core::Op::AllReduce(_)) {
            let reason = "an exchange between devices needs several of them".to_owned();
            return Err(Error::Unsupported { backend: "null", reason });
        }
        let formats = &subject.formats;
        let path = match subject.cast {
            true => Path::CastEmulated,
            false if formats.weights == formats.activations => Path::Native,
            false => Path::FusedDequant,
        };
        let name = format!("{} {} null", subject.site, formats.weights);
        Ok(Kernel { name, path, math: subject.op.math(formats) })
    }

    fn prepare(&mut self, subject: &Subject, _: Residency) -> Result<Box<dyn Case + '_>> {
        let kernel = self.supports(subject)?;
        let ideal = Estimate::likely(&subject.op, &subject.formats, Sizes::Exact, &self.device)?.time();
        Ok(Box::new(NullCase { kernel, time: LAUNCH + ideal.seconds() * SLOWER, taken: 0 }))
    }
}

struct NullCase {
    kernel: Kernel,
    time: Seconds,
    taken: u32,
}

impl Case for NullCase {
    fn kernel(&self) -> Kernel {
        self.kernel.clone()
    }

    fn check(&mut self) -> Result<Check> {
        let wrong = |reason| Error::Wrong { kernel: self.kernel.name.clone(), reason };
        Check::of(&[1.0], &[1.0], 1e-6).map_err(wrong)
    }

    fn sample(&mut self) -> Result<Seconds> {
        self.taken += 1;
        Ok(self.time * (1.0 + (f64::from(self.taken * 7 % 21) - 10.0) / 1000.0))
    }
}

#[cfg(test)]
mod tests {
    use roofline_core::{Graph, Registry, precision::PrecisionSpec};

    use super::*;
    use crate::{Protocol, measure};

    #[test]
    fn times_are_exact() {
        let h200 = Registry::builtin().find("h200").unwrap().into_owned();
        let formats = "bf16".parse::<PrecisionSpec>().unwrap().on(&h200).unwrap();
        let node = Graph::gemv(4096, 4096).unwrap().nodes[0];
        let subject = Subject::new(&node, "bf16", formats);
        let ideal = Estimate::of(&node.op, &formats, Sizes::Exact, &h200).unwrap().time();
        let mut null = Null::new(h200);
        let measured = measure(&mut null, &subject, &Protocol::default()).unwrap();
        let off = measured.time() / (LAUNCH + ideal.seconds() * SLOWER) - 1.0;
        assert!(off.abs() < 0.01, "{off}");
        assert!(measured.warnings.is_empty(), "{:?}", measured.warnings);
        assert_eq!(measured, measure(&mut null, &subject, &Protocol::default()).unwrap());
    }
}
