//! Memory that a GPU does not have left.
//!
//! "Out of memory" alone sends people to the wrong place: the shape may be too large for any GPU, or it would fit and a
//! forgotten notebook holds the rest. The driver knows which, so it is asked at the moment of the failure.

use std::fmt;

use roofline_core::units::Bytes;

use super::{Holder, Source};

/// What was asked for, what there was, and who had the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct Shortage {
    needed: Bytes,
    free: Bytes,
    /// All memory of the GPU, where the driver says so.
    total: Option<Bytes>,
    /// Other processes, those that hold most first.
    others: Vec<Holder>,
    /// Whether it was for a whole model, and not for the operands of a kernel.
    model: bool,
}

/// Most processes that are named.
const NAMED: usize = 3;

impl Shortage {
    /// Of a GPU that is asked now, where somebody answers for it.
    pub fn new(needed: Bytes, free: Bytes, source: Option<&dyn Source>) -> Self {
        let own = std::process::id();
        let mut others = source.and_then(|source| source.holders().ok()).unwrap_or_default();
        others.retain(|holder| holder.process != own);
        let held = |holder: &Holder| holder.memory.map_or(0.0, Bytes::value);
        others.sort_by(|one, other| held(other).total_cmp(&held(one)));
        let total = source.and_then(|source| source.memory().ok()).map(|memory| memory.total);
        Self { needed, free, total, others, model: false }
    }

    /// The same of memory for a whole model, which has other remedies.
    #[must_use]
    pub fn of_model(self) -> Self {
        Self { model: true, ..self }
    }

    /// What to do about it.
    pub fn hint(&self) -> String {
        let (smaller, elsewhere) = if self.model {
            (
                "use fewer bits per weight, a shorter context, a smaller batch or a narrower cache",
                "`⟨backend cpu⟩` runs the model on the processor",
            )
        } else {
            ("take a smaller shape, or `⟨warm⟩`, which needs one copy only", "`⟨backend cpu⟩` measures the processor")
        };
        // Closing others does not help where even the whole GPU is too small.
        if self.total.is_some_and(|total| self.needed >= total) {
            return format!("{smaller}; {elsewhere}");
        }
        let close = match self.others.first() {
            Some(largest) => format!("close {largest}"),
            None => "close what else runs on the GPU (`nvidia-smi` lists it)".to_owned(),
        };
        format!("{close}; or {smaller}; {elsewhere}")
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of GPU memory is needed and {}", self.needed, self.free)?;
        if let Some(total) = self.total {
            write!(f, " of {total}")?;
        }
        f.write_str(" is free")?;
        for (at, holder) in self.others.iter().take(NAMED).enumerate() {
            f.write_str(if at == 0 { ": " } else { ", " })?;
            match holder.memory {
                Some(memory) => write!(f, "{holder} holds {memory}")?,
                None => write!(f, "{holder} holds some")?,
            }
        }
        match self.others.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, ", and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Error,
        telemetry::fake::{Fake, QUERIES},
    };

    fn gigabytes(size: f64) -> Bytes {
        Bytes::new(size * 1e9)
    }

    #[test]
    fn whoever_holds_most_is_named_first() {
        let shortage = Shortage::new(gigabytes(20.0), gigabytes(2.0), Some(&Fake::default()));
        assert_eq!(
            shortage.to_string(),
            "20 GB of GPU memory is needed and 2 GB of 150.8 GB is free: python3 (process 4242) holds 120 GB, Xorg \
             (process 17) holds 500 MB, process 99 holds some"
        );
        let error = Error::GpuMemory(shortage);
        assert_eq!(error.kind(), "memory");
        let hint = error.hint().unwrap();
        assert!(hint.starts_with("close python3 (process 4242); or take a smaller shape"), "{hint}");
        assert!(hint.contains("⟨backend cpu⟩") && !hint.contains("precisions"), "{hint}");
    }

    #[test]
    fn this_process_is_no_other() {
        let shortage = Shortage::new(gigabytes(20.0), gigabytes(2.0), Some(&Fake::default()));
        // The fake says that this process holds some too.
        assert!(Fake::default().holders().unwrap().iter().any(|holder| holder.process == std::process::id()));
        assert!(shortage.others.iter().all(|holder| holder.process != std::process::id()));
    }

    #[test]
    fn what_no_gpu_of_its_kind_has_is_not_blamed_on_others() {
        let hint = Shortage::new(gigabytes(200.0), gigabytes(2.0), Some(&Fake::default())).hint();
        assert!(hint.starts_with("take a smaller shape") && !hint.contains("close"), "{hint}");
    }

    /// Models have no shapes that somebody could take smaller, and no copies.
    #[test]
    fn a_model_has_remedies_of_its_own() {
        let short = |needed| Shortage::new(gigabytes(needed), gigabytes(2.0), Some(&Fake::default())).of_model();
        let hint = short(20.0).hint();
        assert!(hint.starts_with("close python3 (process 4242); or use fewer bits per weight, a shorter"), "{hint}");
        assert!(hint.ends_with("`⟨backend cpu⟩` runs the model on the processor"), "{hint}");
        assert!(short(200.0).hint().starts_with("use fewer bits per weight"));
        let error = Error::GpuMemory(Shortage::new(gigabytes(20.0), gigabytes(2.0), None)).of_model();
        assert!(!error.hint().unwrap().contains("⟨warm⟩"));
    }

    #[test]
    fn a_driver_that_says_nothing_leaves_what_is_known() {
        let silent = Fake::failing(QUERIES);
        for source in [None, Some(&silent as &dyn Source)] {
            let shortage = Shortage::new(gigabytes(20.0), gigabytes(2.0), source);
            assert_eq!(shortage.to_string(), "20 GB of GPU memory is needed and 2 GB is free");
            assert!(shortage.hint().contains("nvidia-smi"), "{}", shortage.hint());
        }
    }
}
