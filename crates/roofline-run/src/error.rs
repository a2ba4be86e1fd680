//! What can go wrong between a subject and its measurement.

use std::{io, path::PathBuf};

/// A measurement that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The backend has no kernel for it. Nothing similar stands in.
    #[error("not supported by the {backend} backend: {reason}")]
    Unsupported {
        /// Which backend.
        backend: &'static str,
        /// Why, in words.
        reason: String,
    },
    /// The kernel's result is not what the reference says.
    #[error("{kernel} computes something else: {reason}")]
    Wrong {
        /// The kernel.
        kernel: String,
        /// How far off.
        reason: String,
    },
    /// The same of a kernel of somebody else's.
    #[error("{kernel} computes something else: {reason}")]
    WrongOwn {
        /// The kernel.
        kernel: String,
        /// What is wrong.
        reason: String,
    },
    /// A kernel of somebody else's broke the GPU's context.
    #[error("{kernel} stopped the GPU, and nothing runs on it any more in this process: {reason}")]
    BrokeGpu {
        /// The kernel.
        kernel: String,
        /// In the driver's words.
        reason: String,
    },
    /// Somebody's function failed when it was called; whoever called it knows how.
    #[error("{kernel} failed: {reason}")]
    Failed {
        /// The function.
        kernel: String,
        /// In its own words.
        reason: String,
    },
    /// Somebody's kernel does not compile.
    #[error("{kernel} does not compile for {target}:\n{log}")]
    Compile {
        /// The kernel.
        kernel: String,
        /// The architecture, and the compiler.
        target: String,
        /// What the compiler says.
        log: String,
    },
    /// The description of a kernel cannot be used.
    #[error("{}: {reason}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
        /// What to do about it.
        hint: String,
    },
    /// A GPU, its driver or one of its libraries is missing or refuses.
    #[error("{reason}")]
    Gpu {
        /// What is missing, or what was refused and in which words.
        reason: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// A kernel broke the GPU's context: nothing runs on it any more in this process.
    #[error("the GPU stopped: {reason}")]
    GpuLost {
        /// In the driver's words.
        reason: String,
    },
    /// The operands do not fit the machine.
    #[error("{needed} is needed and {available} is free")]
    Memory {
        /// Bytes of all operands.
        needed: roofline_core::units::Bytes,
        /// What the machine has left.
        available: roofline_core::units::Bytes,
    },
    /// The operands do not fit the GPU.
    #[error("{0}")]
    GpuMemory(crate::telemetry::Shortage),
    /// No sample was accepted.
    #[error("no sample could be accepted: {reason}")]
    NoSamples {
        /// Why.
        reason: String,
    },
    /// No NVIDIA driver that could be asked.
    #[error("no NVIDIA driver answers here: {reason}")]
    NoDriver {
        /// What was tried and what came of it.
        reason: String,
    },
    /// The driver knows fewer GPUs.
    #[error("there is no GPU {index}: the driver knows {count}")]
    NoGpu {
        /// The one asked for, from 0.
        index: u32,
        /// How many there are.
        count: u32,
    },
    /// A run file could not be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A run file that is not one.
    #[error("{}: {reason}", path.display())]
    NotARun {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The subject itself is wrong.
    #[error(transparent)]
    Core(#[from] roofline_core::Error),
}

impl Error {
    /// The same of what is done for a whole model.
    pub(crate) fn of_model(self) -> Self {
        match self {
            Self::GpuMemory(shortage) => Self::GpuMemory(shortage.of_model()),
            other => other,
        }
    }

    /// A word for machine output.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unsupported { .. } => "unsupported",
            Self::Wrong { .. } | Self::WrongOwn { .. } => "wrong_result",
            Self::Failed { .. } => "failed",
            Self::Compile { .. } => "compile",
            Self::Manifest { .. } => "manifest",
            Self::Gpu { .. } => "gpu",
            Self::GpuLost { .. } | Self::BrokeGpu { .. } => "gpu_lost",
            Self::Memory { .. } | Self::GpuMemory(_) => "memory",
            Self::NoSamples { .. } => "no_samples",
            Self::NoDriver { .. } => "no_driver",
            Self::NoGpu { .. } => "no_gpu",
            Self::File { .. } => "file",
            Self::NotARun { .. } => "not_a_run",
            Self::Core(error) => error.kind(),
        }
    }

    /// Whether whoever asked can ask otherwise: what they wrote is wrong, not the machine.
    pub fn is_input(&self) -> bool {
        matches!(
            self,
            Self::Core(_)
                | Self::WrongOwn { .. }
                | Self::BrokeGpu { .. }
                | Self::Compile { .. }
                | Self::Manifest { .. }
        )
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unsupported { .. } => {
                Some("`⟨roofline precisions⟩` lists the names; leave it out with `⟨precision⟩`".into())
            }
            Self::Wrong { .. } => {
                Some("this is a defect of the kernel: please report it with the whole answer in JSON".into())
            }
            Self::WrongOwn { .. } => Some(
                "nothing was timed: products are y = x W^T, attention is softmax(q k^T / sqrt(d)) v, and arrays lie as \
                 `docs/guide/measure.md` has them"
                    .into(),
            ),
            Self::BrokeGpu { .. } => Some(
                "it reads or writes where there is nothing, or does not end: `compute-sanitizer` before this command names the \
                 line of the kernel"
                    .into(),
            ),
            Self::Failed { .. } => Some("nothing was kept".into()),
            Self::Compile { .. } => {
                Some("the text is compiled by NVRTC as C++17, with what CUDA's own headers are found".into())
            }
            Self::Manifest { hint, .. } => Some(hint.clone()).filter(|hint| !hint.is_empty()),
            Self::Gpu { hint, .. } => hint.clone(),
            Self::GpuLost { .. } => Some(
                "this is a defect of the last kernel, or of the GPU, and `nvidia-smi` says whether that is still there; what \
                 was finished is kept, and `⟨resume⟩` goes on with a run of kernels"
                    .into(),
            ),
            Self::Memory { .. } => Some("take a smaller shape, or `⟨warm⟩`, which needs one copy only".into()),
            Self::GpuMemory(shortage) => Some(shortage.hint()),
            Self::NoSamples { .. } => Some("close other programs, or give it more time by `⟨seconds⟩`".into()),
            Self::NoDriver { .. } => Some(
                "it needs an NVIDIA GPU and its driver, which brings libnvidia-ml: `nvidia-smi` shows whether they work; a \
                 container gets them by `--gpus all`"
                    .into(),
            ),
            Self::NoGpu { count: 0, .. } => {
                Some("`nvidia-smi -L` lists what the driver sees; a container is given GPUs by `--gpus all`".into())
            }
            Self::NoGpu { count, .. } => Some(format!("name one from 0 to {} by `⟨gpu⟩`", count - 1)),
            Self::NotARun { .. } => Some("name a file that `⟨roofline measure⟩`, `⟨roofline compare⟩` or `⟨roofline sweep⟩` wrote".into()),
            Self::File { .. } => None,
            Self::Core(error) => error.hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library is asked by command lines, servers and other programs, each of which spells the words in brackets.
    #[test]
    fn hints_name_fields_and_no_flags() {
        let reason = || "a test".to_owned();
        let bytes = roofline_core::units::Bytes::new(1e9);
        let errors = [
            Error::Unsupported { backend: "cpu", reason: reason() },
            Error::Wrong { kernel: reason(), reason: reason() },
            Error::GpuLost { reason: reason() },
            Error::Memory { needed: bytes, available: bytes },
            Error::GpuMemory(crate::telemetry::Shortage::new(bytes, bytes, None)),
            Error::NoSamples { reason: reason() },
            Error::NoGpu { index: 3, count: 2 },
            Error::NotARun { path: "run.jsonl".into(), reason: reason() },
        ];
        for error in errors {
            let hint = error.hint().expect("what to do");
            assert!(!hint.contains("--"), "{hint}");
        }
        let hint = Error::NoGpu { index: 3, count: 2 }.hint().expect("what to do");
        assert_eq!(roofline_core::wording::flags(&hint), "name one from 0 to 1 by `--gpu`");
    }
}
