//! The terms by name: units, sentences, and where a search may look.

use std::{collections::BTreeMap, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeMap};

use super::kernel::TimedOp;

/// A term: what it is called, what it is counted in, and what it means.
#[derive(Clone, Copy, Debug)]
pub struct TermSpec {
    /// Its name in files.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// A sentence.
    pub meaning: &'static str,
    /// How it is left out.
    pub(super) absent: Absent,
}

/// What a term is where it is left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Absent {
    /// It cannot be.
    Never,
    /// Nothing: it is a cost.
    Zero,
    /// One: it is a factor.
    One,
    /// Without bound: it is a rate or a size.
    Infinite,
}

impl TermSpec {
    /// Every term.
    pub fn all() -> &'static [Self] {
        &SPECS
    }
}

impl Absent {
    pub(super) fn value(self) -> f64 {
        match self {
            Self::Never | Self::Zero => 0.0,
            Self::One => 1.0,
            Self::Infinite => f64::INFINITY,
        }
    }
}

const fn term(name: &'static str, unit: &'static str, absent: Absent, meaning: &'static str) -> TermSpec {
    TermSpec { name, unit, meaning, absent }
}

/// How many names there are.
pub(super) const COUNT: usize = 28;

/// Every term. Products and attention share those that mean the same.
pub(super) static SPECS: [TermSpec; COUNT] = [
    term("launch", "s", Absent::Never, "per call: starting, filling and draining"),
    term("read", "B/s", Absent::Never, "what reading from memory reaches"),
    term("rate", "FLOP/s", Absent::Never, "what all multiprocessors together multiply at"),
    term("write", "B/s", Absent::Never, "what results are written at; they stay in the L2 as far as they fit"),
    term("wave", "", Absent::Zero, "share of the last wave that is waited for although it is not full"),
    term("stream", "B/s", Absent::Infinite, "what one multiprocessor takes from the L2"),
    term("block", "s", Absent::Zero, "per block, one after another on a multiprocessor"),
    term("split", "s", Absent::Zero, "where several blocks share a sum: adding the parts"),
    term("throttle", "", Absent::Zero, "how much slower work gets from 0.1 to 1 ms, at the power limit"),
    term("step", "s", Absent::Zero, "per 64 along a sum: what a block waits for though bytes and operations are few"),
    term("row", "s", Absent::Zero, "per row of the input: quantizing it, by a kernel of its own"),
    term("element", "s", Absent::Zero, "per element of the input: quantizing it"),
    term("warm_weights", "B", Absent::Zero, "weights of up to about this size were in the L2 when they were timed"),
    term("warm_input", "B", Absent::Zero, "an input of up to about this size is in the L2"),
    term("warm_output", "B", Absent::Infinite, "results beyond about this size are written to memory, not to the L2"),
    term("host", "s", Absent::Zero, "the least time of a call: what the host takes to make it"),
    term("host_thin", "s", Absent::Zero, "the same for fewer than 32 rows, where another kernel is called"),
    term("host_odd", "s", Absent::Zero, "the same for fewer than 64 outputs or 128 inputs, which need another kernel"),
    term("single", "s", Absent::Zero, "on top for a single row"),
    term("sequence", "s", Absent::Zero, "per sequence of the batch"),
    term(
        "warm_cache",
        "B",
        Absent::Zero,
        "keys and values of up to about this size were in the L2 when they were timed",
    ),
    term("pair", "s", Absent::Zero, "per query and key: the softmax"),
    term("vector", "FLOP/s", Absent::Never, "the rate of heads that share no block with others"),
    term("beyond", "", Absent::Zero, "share of the keys before a window that is passed over all the same"),
    term("width_64", "", Absent::One, "speed with heads of 64 or fewer, over that with 128"),
    term("width_192", "", Absent::One, "the same with heads of 192"),
    term("width_256", "", Absent::One, "the same with heads of 256"),
    term("width_512", "", Absent::One, "the same with heads of 512"),
];

/// Places of the terms.
pub(super) mod at {
    pub(in super::super) const LAUNCH: usize = 0;
    pub(in super::super) const READ: usize = 1;
    pub(in super::super) const RATE: usize = 2;
    pub(in super::super) const WRITE: usize = 3;
    pub(in super::super) const WAVE: usize = 4;
    pub(in super::super) const STREAM: usize = 5;
    pub(in super::super) const BLOCK: usize = 6;
    pub(in super::super) const SPLIT: usize = 7;
    pub(in super::super) const THROTTLE: usize = 8;
    pub(in super::super) const STEP: usize = 9;
    pub(in super::super) const ROW: usize = 10;
    pub(in super::super) const ELEMENT: usize = 11;
    pub(in super::super) const WARM_WEIGHTS: usize = 12;
    pub(in super::super) const WARM_INPUT: usize = 13;
    pub(in super::super) const WARM_OUTPUT: usize = 14;
    pub(in super::super) const HOST: usize = 15;
    pub(in super::super) const HOST_THIN: usize = 16;
    pub(in super::super) const HOST_ODD: usize = 17;
    pub(in super::super) const SINGLE: usize = 18;
    pub(in super::super) const SEQUENCE: usize = 19;
    pub(in super::super) const WARM_CACHE: usize = 20;
    pub(in super::super) const PAIR: usize = 21;
    pub(in super::super) const VECTOR: usize = 22;
    pub(in super::super) const BEYOND: usize = 23;
    pub(in super::super) const WIDTH_64: usize = 24;
    pub(in super::super) const WIDTH_192: usize = 25;
    pub(in super::super) const WIDTH_256: usize = 26;
    pub(in super::super) const WIDTH_512: usize = 27;
}

/// The terms that an operator has.
pub(super) fn terms_of(op: TimedOp) -> &'static [usize] {
    use at::{
        BEYOND, BLOCK, ELEMENT, HOST, HOST_ODD, HOST_THIN, LAUNCH, PAIR, RATE, READ, ROW, SEQUENCE, SINGLE, SPLIT,
        STEP, STREAM, THROTTLE, VECTOR, WARM_CACHE, WARM_INPUT, WARM_OUTPUT, WARM_WEIGHTS, WAVE, WIDTH_64, WIDTH_192,
        WIDTH_256, WIDTH_512, WRITE,
    };
    match op {
        TimedOp::Gemm => &[
            LAUNCH,
            READ,
            RATE,
            WRITE,
            WAVE,
            STREAM,
            BLOCK,
            SPLIT,
            THROTTLE,
            STEP,
            ROW,
            ELEMENT,
            WARM_WEIGHTS,
            WARM_INPUT,
            WARM_OUTPUT,
            HOST,
            HOST_THIN,
            HOST_ODD,
            SINGLE,
        ],
        TimedOp::GenerationAttention => &[
            LAUNCH, READ, RATE, WRITE, VECTOR, WAVE, STREAM, BLOCK, SPLIT, STEP, SEQUENCE, WARM_CACHE, PAIR, BEYOND,
            WIDTH_64, WIDTH_192, WIDTH_256, WIDTH_512,
        ],
        TimedOp::ContextAttention => &[
            LAUNCH, READ, RATE, WRITE, WAVE, STREAM, BLOCK, THROTTLE, STEP, SEQUENCE, WARM_CACHE, PAIR, BEYOND,
            WIDTH_64, WIDTH_192, WIDTH_256, WIDTH_512,
        ],
    }
}

/// A value for every term, those that are left out included.
#[derive(Clone, PartialEq)]
pub struct Values([f64; COUNT]);

impl Default for Values {
    fn default() -> Self {
        Self(std::array::from_fn(|at| SPECS[at].absent.value()))
    }
}

impl Values {
    pub(super) fn all(&self) -> &[f64; COUNT] {
        &self.0
    }

    pub(super) fn get(&self, at: usize) -> f64 {
        self.0[at]
    }

    pub(super) fn set(&mut self, at: usize, value: f64) {
        self.0[at] = value;
    }

    /// Those that are there, with what they are.
    pub fn present(&self) -> impl Iterator<Item = (&'static TermSpec, f64)> {
        SPECS.iter().zip(self.0).filter(|(spec, value)| *value != spec.absent.value())
    }

    /// The same without one: nothing where it is a cost, without bound where it is a rate.
    pub(super) fn without(&self, name: &str) -> Self {
        let mut values = self.clone();
        if let Some(at) = SPECS.iter().position(|spec| spec.name == name) {
            values.0[at] = match SPECS[at].absent {
                Absent::Never if SPECS[at].unit != "s" => f64::INFINITY,
                absent => absent.value(),
            };
        }
        values
    }

    /// Multiplies one that is there.
    pub(super) fn scale(&mut self, name: &str, factor: f64) {
        if let Some(at) = SPECS.iter().position(|spec| spec.name == name) {
            self.0[at] *= factor;
        }
    }

    /// To six digits, as files have it.
    pub(super) fn rounded(self) -> Self {
        Self(self.0.map(six_digits))
    }

    pub(super) fn sensible(&self, op: TimedOp) -> bool {
        let known = terms_of(op);
        let within = |(at, value): (usize, f64)| {
            let there = value != SPECS[at].absent.value();
            let range = match SPECS[at].unit {
                "s" => 0.0..1.0,
                "" => 0.0..100.0,
                _ => 0.0..1e20,
            };
            !there || (known.contains(&at) && value.is_finite() && range.contains(&value))
        };
        let needed = |at: &usize| SPECS[*at].absent != Absent::Never || self.0[*at] > 0.0;
        self.0.iter().copied().enumerate().all(within) && known.iter().all(needed)
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.present().map(|(spec, value)| (spec.name, value))).finish()
    }
}

impl Serialize for Values {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (spec, value) in self.present() {
            map.serialize_entry(spec.name, &value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let mut values = Self::default();
        for (name, value) in BTreeMap::<String, f64>::deserialize(deserializer)? {
            let at = SPECS.iter().position(|spec| spec.name == name);
            values.0[at.ok_or_else(|| D::Error::custom(format!("no term is called `{name}`")))?] = value;
        }
        Ok(values)
    }
}

impl JsonSchema for Values {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TimedTermsByName".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, f64>::json_schema(generator)
    }
}

/// Six significant digits: more says nothing, and two machines may differ in what follows.
pub(in crate::calibration) fn six_digits(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() { value } else { format!("{value:.5e}").parse().unwrap_or(value) }
}
