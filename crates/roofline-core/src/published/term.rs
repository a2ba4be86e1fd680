//! The terms, and how far they may differ between runtimes, classes and devices.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many terms there are.
pub const TERMS: usize = Term::ALL.len();

/// A number that describes a runtime on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "PublishedTerm")]
pub enum Term {
    /// The share of the bandwidth that products of one row reach, with 16-bit weights.
    Bandwidth,
    /// What eight-bit weights reach of that.
    Eight,
    /// What weights of six bits and less reach of it.
    Four,
    /// What decode attention reaches of it.
    Cache,
    /// What the products of experts reach of it.
    Experts,
    /// The share of the peak that products of many rows reach.
    Peak,
    /// What units of eight bits and less reach of that share.
    Narrow,
    /// What products of llama.cpp's blocks reach of it, which are multiplied as integers.
    Blocks,
    /// What attention over a prompt reaches of it.
    Attention,
    /// Energy of an operation of 16 bits, which the device's rated power bounds the rate of.
    Energy,
    /// Products of fewer rows than this take as long as if they had about as many.
    Rows,
    /// How often weights that are widened for many rows cross the memory in 16 bits.
    Widening,
    /// What a layer takes beside its bytes and operations.
    Layer,
    /// What a pass takes beside its layers: scheduling, sampling.
    Step,
    /// What each sequence of a batch adds to that.
    Sequence,
    /// The share of the link that exchanges reach.
    Link,
    /// How much longer the steps of an exchange take than the link's latency.
    Exchange,
    /// How much longer than that they take through the host's bus.
    Host,
}

/// Which figures share a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// All.
    All,
    /// Those of a runtime.
    Stack,
    /// Those of a class of devices.
    Class,
    /// Those of a runtime on a class.
    StackClass,
    /// Those of a runtime on an architecture.
    Architecture,
    /// Those of a release.
    Release,
    /// Those of a device.
    Device,
}

impl Term {
    /// Every term.
    pub const ALL: &[Self] = &[
        Self::Bandwidth,
        Self::Eight,
        Self::Four,
        Self::Cache,
        Self::Experts,
        Self::Peak,
        Self::Narrow,
        Self::Blocks,
        Self::Attention,
        Self::Energy,
        Self::Rows,
        Self::Widening,
        Self::Layer,
        Self::Step,
        Self::Sequence,
        Self::Link,
        Self::Exchange,
        Self::Host,
    ];

    /// The word for it, as files spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "bandwidth",
            Self::Eight => "eight",
            Self::Four => "four",
            Self::Cache => "cache",
            Self::Experts => "experts",
            Self::Peak => "peak",
            Self::Narrow => "narrow",
            Self::Blocks => "blocks",
            Self::Attention => "attention",
            Self::Energy => "energy",
            Self::Rows => "rows",
            Self::Widening => "widening",
            Self::Layer => "layer",
            Self::Step => "step",
            Self::Sequence => "sequence",
            Self::Link => "link",
            Self::Exchange => "exchange",
            Self::Host => "host",
        }
    }

    /// What it is counted in.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth | Self::Peak | Self::Link => "share",
            Self::Eight | Self::Four | Self::Cache | Self::Experts | Self::Narrow | Self::Blocks | Self::Attention => {
                "factor"
            }
            Self::Energy => "pJ",
            Self::Rows => "rows",
            Self::Widening | Self::Exchange | Self::Host => "times",
            Self::Layer | Self::Step | Self::Sequence => "us",
        }
    }

    /// A sentence for people.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Bandwidth => "share of the bandwidth that products of one row reach with 16-bit weights",
            Self::Eight => "what eight-bit weights reach of that",
            Self::Four => "what weights of six bits and less reach of it",
            Self::Cache => "what decode attention reaches of it",
            Self::Experts => "what products of experts reach of it",
            Self::Peak => "share of the peak that products of many rows reach",
            Self::Narrow => "what units of eight bits and less reach of that share",
            Self::Blocks => "what products of llama.cpp's blocks reach of it, which are multiplied as integers",
            Self::Attention => "what attention over a prompt reaches of it",
            Self::Energy => {
                "energy of a 16-bit operation in products of many rows, by which the rated power bounds their rate"
            }
            Self::Rows => "products of fewer rows take as long as if they had about so many",
            Self::Widening => "how often weights that are widened for many rows cross the memory in 16 bits",
            Self::Layer => "what a layer takes beside its bytes and operations",
            Self::Step => "scheduling and sampling: what a pass takes beside its layers",
            Self::Sequence => "what each sequence of a batch adds to a pass",
            Self::Link => "share of the link between devices that exchanges reach",
            Self::Exchange => "how much longer the steps of an exchange take than the latency of the link",
            Self::Host => "how much longer than that they take through the host's bus",
        }
    }

    /// Within what it can be, for terms that come from a file or from few figures.
    pub(super) const fn bounds(self) -> (f64, f64) {
        match self {
            Self::Bandwidth => (0.05, 1.0),
            Self::Eight | Self::Four | Self::Cache | Self::Experts => (0.1, 1.6),
            Self::Peak => (0.01, 1.0),
            Self::Narrow | Self::Blocks | Self::Attention => (0.02, 2.0),
            Self::Energy => (0.01, 50.0),
            Self::Rows => (1.0, 512.0),
            Self::Widening => (0.01, 10.0),
            Self::Layer => (0.1, 5_000.0),
            Self::Step => (0.1, 50_000.0),
            Self::Sequence => (0.01, 1_000.0),
            Self::Link => (0.02, 1.0),
            Self::Exchange => (0.5, 100.0),
            Self::Host => (1.0, 30.0),
        }
    }

    /// What it is before any figure is seen.
    pub(super) const fn start(self) -> f64 {
        match self {
            Self::Bandwidth => 0.75,
            Self::Eight | Self::Four => 0.95,
            Self::Cache | Self::Narrow => 0.8,
            Self::Experts => 0.9,
            Self::Peak | Self::Link => 0.5,
            Self::Blocks | Self::Attention => 0.65,
            Self::Energy => 1.0,
            Self::Rows => 16.0,
            Self::Widening => 0.3,
            Self::Layer => 40.0,
            Self::Step => 100.0,
            Self::Sequence | Self::Exchange | Self::Host => 3.0,
        }
    }

    /// Which factors it has, and how far each is likely to be from one, in logarithms: what keeps few figures from saying
    /// much. A wide one is as good as free.
    pub(super) const fn spreads(self) -> &'static [(Level, f64)] {
        use Level::{All, Architecture, Class, Device, Release, Stack, StackClass};
        match self {
            Self::Bandwidth => &[
                (All, 1.0),
                (Stack, 0.15),
                (Class, 0.25),
                (StackClass, 0.2),
                (Architecture, 0.1),
                (Release, 0.18),
                (Device, 0.06),
            ],
            Self::Eight | Self::Four => &[(All, 0.2), (Stack, 0.06), (StackClass, 0.1), (Architecture, 0.1)],
            Self::Cache => &[(All, 0.7), (Stack, 0.3), (Class, 0.3), (Release, 0.45)],
            Self::Experts => &[(All, 0.5), (Stack, 0.24), (Class, 0.4)],
            Self::Peak => &[
                (All, 1.0),
                (Stack, 0.24),
                (Class, 0.4),
                (StackClass, 0.3),
                (Architecture, 0.3),
                (Release, 0.3),
                (Device, 0.12),
            ],
            Self::Narrow => &[(All, 0.4), (StackClass, 0.3), (Architecture, 0.2), (Release, 0.3)],
            Self::Blocks => &[(All, 0.8), (StackClass, 0.4), (Architecture, 0.3), (Release, 0.75)],
            Self::Attention => &[(All, 1.0), (Stack, 0.3), (Class, 0.5), (Release, 0.75)],
            Self::Energy => &[(All, 1.5), (Stack, 0.36), (Architecture, 0.3), (Release, 0.6)],
            Self::Rows => &[(All, 1.5), (Stack, 0.6), (StackClass, 0.7), (Architecture, 0.5)],
            Self::Widening => &[(All, 1.5), (Stack, 0.6)],
            Self::Layer => {
                &[(All, 2.0), (Stack, 0.48), (Class, 0.8), (StackClass, 0.4), (Architecture, 0.2), (Release, 0.9)]
            }
            Self::Step => &[(All, 2.0), (Stack, 0.6), (Release, 1.2)],
            Self::Sequence => &[(All, 2.0), (Stack, 0.6)],
            Self::Link => &[(All, 1.0), (Stack, 0.3), (Release, 1.05)],
            Self::Exchange => &[(All, 1.0), (Stack, 0.3), (Release, 1.5)],
            Self::Host => &[(All, 0.7)],
        }
    }
}
