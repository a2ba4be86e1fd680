//! What requests have in common: where, in which formats, how a model is lowered.
//!
//! A request is one type for every face. `clap` reads it from a command line, `serde` from JSON, and its schema says to
//! everybody else what there is to say; names, defaults and help are written once, here and beside each verb.

mod form;
pub mod list;
mod model_name;

#[cfg(test)]
pub(crate) use form::answers_fit;
#[cfg(feature = "hardware")]
pub(crate) use form::with_subjects;
pub use form::{Caller, from_elsewhere, from_json, schema};
pub use model_name::ModelName;
pub use roofline_core::{Range, measurement::Phase};

use std::str::FromStr;

use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use roofline_core::{
    Dim, Math,
    format::Sizes,
    machine::Stack,
    predict::Tier,
    units::{ByteRate, FlopRate},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The context of a question that names none.
pub const CONTEXT: u64 = 4096;

/// Reads one of the names of a table of the core, so that help lists them.
pub fn one_of<T>(names: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = roofline_core::Error> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse())
}

/// The names of the phases.
pub const PHASES: &[&str] = &["prefill", "decode"];
/// The names of the tiers.
pub const TIERS: &[&str] = &["ideal", "expected"];
/// The ways to count sizes.
pub const SIZES: &[&str] = &["exact", "nominal"];
/// The names of the stacks.
pub const STACKS: &[&str] = &[
    "roofline",
    "llama.cpp",
    "mlx",
    "torch",
    "vllm",
    "trtllm",
    "sglang",
    "mlc",
    "exllamav2",
    "tinychat",
    "autoawq",
    "lmdeploy",
    "qserve",
    "ipex",
    "habana",
    "null",
];

/// The devices, the plans, and how sizes count.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Setting {
    /// Devices: keys, aliases, KEY@MODE for a power mode, or TOML files
    #[arg(long, value_name = "DEVICE", value_delimiter = ',', help_heading = "Device")]
    #[serde(deserialize_with = "list::split")]
    #[schemars(schema_with = "list::schema::<String>")]
    pub on: Vec<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub rates: Rates,
    /// Plans: names (w4a16, q4_k_m), weights/activations[/kv], rules by role after a name (w4a16,head=q8_0,kv=fp8); left
    /// out, the 16-bit baseline and the common quantized ones that the device multiplies
    #[arg(short, long, value_name = "PLAN", help_heading = "Precision")]
    #[serde(deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<String>")]
    pub precision: Vec<String>,
    /// Which of the two times is spoken of, the floor or the one to expect; left out, the latter, but of a chip that is only
    /// rates. Both are in every answer
    #[arg(long, value_parser = one_of::<Tier>(TIERS), help_heading = "Device")]
    pub tier: Option<Tier>,
    /// Whose kernels the expected tier speaks of; left out, ours where they run, else what is usual on the device
    #[arg(long, value_parser = one_of::<Stack>(STACKS), help_heading = "Device")]
    pub stack: Option<Stack>,
    /// Count scales and padding (exact), or element bits only as text books do (nominal)
    #[arg(long, value_parser = one_of::<Sizes>(SIZES), default_value = "exact", help_heading = "Precision")]
    pub sizes: Sizes,
}

impl Setting {
    /// The device, where one is as many as there can be.
    pub fn first(&self) -> Option<&str> {
        self.on.first().map(String::as_str)
    }
}

/// Rates of a device that is in no file, or that replace those of one that is.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Rates {
    /// Memory bandwidth, such as 60GB/s
    #[arg(long, value_name = "RATE", help_heading = "Device")]
    #[schemars(with = "Option<String>")]
    pub bandwidth: Option<ByteRate>,
    /// Dense peaks, such as fp16=2.7TFLOP/s,int8=5.5TFLOP/s
    #[arg(long, value_name = "UNIT=RATE", value_delimiter = ',', help_heading = "Device")]
    #[serde(deserialize_with = "list::pairs")]
    #[schemars(schema_with = "list::pairs_schema")]
    pub peak: Vec<Peak>,
}

impl Rates {
    /// Whether any is given.
    pub fn given(&self) -> bool {
        self.bandwidth.is_some() || !self.peak.is_empty()
    }
}

/// The dense peak of a unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// The unit.
    pub math: Math,
    /// What it multiplies.
    pub rate: FlopRate,
}

impl FromStr for Peak {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (unit, rate) = text.split_once('=').ok_or("write UNIT=RATE, for example fp16=2.7TFLOP/s")?;
        let math = unit.parse::<Math>().map_err(|error| error.to_string())?;
        let rate = rate.parse::<FlopRate>().map_err(|error| error.to_string())?;
        Ok(Self { math, rate })
    }
}

/// How a model becomes kernels.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Lower {
    /// Devices that share each layer (tensor parallel)
    #[arg(long, value_delimiter = ',', default_value = "1", allow_negative_numbers = true)]
    #[serde(deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<Dim>")]
    pub tp: Vec<Dim>,
    /// Every operator as a kernel of its own, with scores in memory
    #[arg(long)]
    pub unfused: bool,
    /// Logits for every prompt token, not only the last
    #[arg(long)]
    pub all_logits: bool,
    /// Every token sees every other, as in an encoder
    #[arg(long)]
    pub no_causal: bool,
}

impl Default for Lower {
    fn default() -> Self {
        Self { tp: vec![Dim::ONE], unfused: false, all_logits: false, no_causal: false }
    }
}

/// One, for counts that are left out.
pub(crate) fn one() -> Dim {
    Dim::ONE
}

/// The context of a question that names none.
pub(crate) fn context() -> Dim {
    Dim::new("context", CONTEXT).unwrap_or(Dim::ONE)
}

/// How long the power of a kernel is watched: long enough for the driver's counter, which ticks every 20 to 100 ms.
#[cfg(feature = "hardware")]
const WATCHED: roofline_core::units::Seconds = roofline_core::units::Seconds::new(1.0);

/// Who runs the kernels, for how long, and where the results go.
#[cfg(feature = "hardware")]
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct Measuring {
    /// Who runs the kernels: all cores of this machine (cpu), its NVIDIA GPU (cuda), or exact fake times on the device of
    /// --on (null); the GPU where there is one, else the processor, when left out
    #[arg(long, global = true, value_enum, help_heading = "Measuring")]
    pub backend: Option<BackendName>,
    /// Which GPU, as `nvidia-smi -L` counts them
    #[arg(long, global = true, value_name = "INDEX", default_value_t = 0, help_heading = "Measuring")]
    pub gpu: usize,
    /// Read the same operands every time, so that caches serve what they hold
    #[arg(long, global = true, help_heading = "Measuring")]
    pub warm: bool,
    /// Fewer shapes, and a quarter of a second for each
    #[arg(long, global = true, help_heading = "Measuring")]
    pub quick: bool,
    /// Longest time for each kernel; it ends earlier when the median is known
    #[arg(long, global = true, value_name = "SECONDS", value_parser = seconds, help_heading = "Measuring")]
    #[schemars(range(min = 0.001, max = 3600))]
    pub seconds: Option<f64>,
    /// Also watch the power of each kernel for a second: joules per call, and operations per joule
    #[arg(long, global = true, help_heading = "Measuring")]
    pub energy: bool,
    /// Where the run is kept, one line per finished measurement; a new file in the data folder when left out
    #[arg(long, global = true, value_name = "FILE", help_heading = "Measuring")]
    #[schemars(extend("x-local" = true))]
    pub out: Option<std::path::PathBuf>,
    /// Go on with the run in --out: what it holds is not measured again
    #[arg(long, global = true, requires = "out", help_heading = "Measuring")]
    #[schemars(extend("x-local" = true))]
    pub resume: bool,
}

#[cfg(feature = "hardware")]
impl Measuring {
    /// How a kernel is timed.
    pub fn protocol(&self) -> roofline_run::Protocol {
        use roofline_core::{measurement::Residency, units::Seconds};
        use roofline_run::Protocol;
        let mut protocol = if self.quick { Protocol::quick() } else { Protocol::default() };
        if let Some(seconds) = self.seconds {
            protocol.stop.budget = Seconds::new(seconds);
        }
        protocol.watch = self.energy.then_some(WATCHED);
        if self.warm {
            protocol.residency = Residency::Warm;
        }
        protocol
    }

    /// Who runs.
    pub fn backend(&self) -> BackendName {
        BackendName::or_usual(self.backend)
    }
}

#[cfg(feature = "hardware")]
fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.trim_end_matches('s').parse().map_err(|_| "seconds are a number such as 0.5".to_owned())?;
    if (0.001..=3600.0).contains(&value) { Ok(value) } else { Err("seconds are between 0.001 and 3600".to_owned()) }
}

/// Who runs kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BackendName {
    Cpu,
    Cuda,
    Null,
}

impl BackendName {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Null => "null",
        }
    }

    /// The one that was named, else the usual one: a GPU that is there is what people ask about.
    #[cfg(feature = "hardware")]
    pub fn or_usual(named: Option<Self>) -> Self {
        named.unwrap_or_else(|| if roofline_run::cuda::present() { Self::Cuda } else { Self::Cpu })
    }

    /// The one that a run names; a run of a backend that we do not know is of our own kernels.
    pub fn of_run(name: &str) -> Self {
        [Self::Cuda, Self::Null].into_iter().find(|backend| backend.name() == name).unwrap_or(Self::Cpu)
    }

    /// Who computes a model, in words: so many threads, or the GPU.
    #[cfg(feature = "hardware")]
    pub(crate) fn workers(self, threads: usize) -> String {
        if self == Self::Cuda { "the GPU".to_owned() } else { format!("{threads} threads") }
    }

    /// Whose kernels it runs.
    pub const fn stack(self) -> Stack {
        match self {
            Self::Null => Stack::Null,
            Self::Cpu | Self::Cuda => Stack::Roofline,
        }
    }
}
