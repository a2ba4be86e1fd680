//! What runtimes take as one, and therefore load only where all of it is stored alike.

use super::Layout;
use crate::{Checkpoint, Runtime, family::Family};

/// Which experts have to be stored alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Experts {
    /// Their gates and ways up; ways down may differ.
    Apart,
    /// All of a layer.
    InLayer,
    /// All of the model.
    InModel,
}

/// What has to be stored alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Together {
    /// Values are stored as queries and keys are, because a runtime multiplies all three at once.
    pub(crate) attention: bool,
    pub(crate) experts: Experts,
    /// There is one scheme for everything that is not kept.
    pub(crate) one_scheme: bool,
}

impl Layout {
    /// What has to be stored alike for all of these runtimes to load it: what [`torn_families`](super::torn_families) tells of,
    /// and [`experts`](super::experts) and [`packed`](super::packed) refuse.
    pub(crate) fn together(self, checkpoint: &Checkpoint, runtimes: &[Runtime]) -> Together {
        let vllm = runtimes.contains(&Runtime::Vllm);
        let stacked = Family::of(&checkpoint.config).stack().is_some();
        let experts = match self {
            Self::CompressedTensors if runtimes.contains(&Runtime::Transformers) && !stacked => Experts::InModel,
            Self::CompressedTensors if vllm => Experts::InLayer,
            Self::FineGrained => Experts::InLayer,
            _ => Experts::Apart,
        };
        let one_scheme = matches!(self, Self::Gptq | Self::Awq | Self::Bitsandbytes);
        Together { attention: vllm, experts, one_scheme }
    }
}
