//! A trace of `torch.profiler`: the events that say what ran, kept small, the rest passed over as it streams by.

use std::{collections::HashMap, fmt};

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use super::{
    operator::{Lowered, Operands, is_known, lowered},
    source::{Allowance, Source},
};

/// Most events that are kept, each of them below a hundred bytes.
const MOST_EVENTS: usize = 8_000_000;
/// Latest time in microseconds: a thousand years. A sum of eight million of them is still a number.
const LATEST: f64 = 3.2e16;

/// Everything of a trace that is looked at.
#[derive(Default)]
pub(super) struct Events {
    /// Operators that the processor ran.
    pub(super) operators: Vec<Operator>,
    /// Calls that start something on a device.
    pub(super) launches: Vec<Launch>,
    /// What devices ran.
    pub(super) kernels: Vec<Kernel>,
    /// Names, each once; events have their places.
    pub(super) names: Names,
    /// Shapes, each once.
    pub(super) shapes: Vec<Lowered>,
    /// What the devices are called.
    pub(super) devices: Vec<String>,
    threads: HashMap<String, u32>,
    shape_places: HashMap<String, u32>,
}

/// Texts that recur, by place.
#[derive(Default)]
pub(super) struct Names {
    places: HashMap<String, u32>,
    texts: Vec<String>,
}

impl Names {
    fn place(&mut self, text: String) -> u32 {
        let texts = &mut self.texts;
        *self.places.entry(text).or_insert_with_key(|text| {
            texts.push(text.clone());
            texts.len() as u32 - 1
        })
    }

    pub(super) fn text(&self, place: u32) -> &str {
        self.texts.get(place as usize).map_or("", String::as_str)
    }
}

/// An operator on the processor's side.
#[derive(Clone, Copy)]
pub(super) struct Operator {
    pub(super) thread: u32,
    pub(super) name: u32,
    pub(super) start: f64,
    pub(super) end: f64,
    /// The place of its shape, where that is known.
    pub(super) shape: Option<u32>,
    /// Whether its name has a formula.
    pub(super) known: bool,
    pub(super) external: Option<u64>,
}

/// A call of CUDA.
#[derive(Clone, Copy)]
pub(super) struct Launch {
    pub(super) thread: u32,
    pub(super) start: f64,
    pub(super) correlation: u64,
    /// Whether it starts many kernels at once, recorded before.
    pub(super) graph: bool,
}

/// A kernel or a copy on a device.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    pub(super) name: u32,
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) device: u64,
    pub(super) correlation: Option<u64>,
    pub(super) external: Option<u64>,
}

/// An event as it is written; what is not needed is not kept.
#[derive(Deserialize)]
#[serde(expecting = "an event, which is an object")]
struct Event {
    ph: Option<String>,
    cat: Option<String>,
    name: Option<String>,
    ts: Option<f64>,
    dur: Option<f64>,
    pid: Option<Value>,
    tid: Option<Value>,
    args: Option<Arguments>,
}

#[derive(Deserialize)]
#[serde(expecting = "the `args` of an event, which are an object")]
struct Arguments {
    #[serde(rename = "External id", alias = "external id")]
    external: Option<Value>,
    correlation: Option<Value>,
    device: Option<Value>,
    #[serde(rename = "Input Dims", alias = "Input dims")]
    dims: Option<Value>,
    #[serde(rename = "Input type")]
    types: Option<Value>,
    #[serde(rename = "Concrete Inputs")]
    values: Option<Value>,
}

impl Events {
    /// Reads a trace to its end. What is wrong is said as a sentence that follows the name of the file.
    pub(super) fn read(source: Source) -> Result<Self, String> {
        let mut events = Self::default();
        let allowance = source.allowance();
        let mut json = serde_json::Deserializer::from_reader(source);
        let found = Whole { events: &mut events, allowance: &allowance }.deserialize(&mut json);
        let found = found.and_then(|found| json.end().map(|()| found));
        match found {
            Ok(true) => Ok(events),
            Ok(false) => Err("no list `traceEvents`".to_owned()),
            Err(error) if error.is_eof() => Err(format!(
                "it ends in the middle (line {}, column {}): whoever wrote it did not finish",
                error.line(),
                error.column()
            )),
            Err(error) => Err(error.to_string()),
        }
    }

    fn keep(&mut self, event: Event) -> Result<(), String> {
        let Event { ph, cat, name, ts, dur, pid, tid, args } = event;
        if ph.as_deref() != Some("X") {
            return Ok(());
        }
        let kind = cat.as_deref().unwrap_or_default();
        let device = matches!(kind, "kernel" | "gpu_memcpy" | "gpu_memset");
        let launch = matches!(kind, "cuda_runtime" | "cuda_driver");
        if !(device || launch || kind == "cpu_op") {
            return Ok(());
        }
        let name = name.ok_or_else(|| format!("an event of `{kind}` has no `name`"))?;
        let short: String = name.chars().take(80).collect();
        let time = |value: Option<f64>, field: &str| {
            let value = value.ok_or_else(|| format!("`{short}` has no `{field}`"))?;
            let sensible = value.abs() <= LATEST && (field == "ts" || value >= 0.0);
            sensible.then_some(value).ok_or_else(|| format!("`{short}` has a `{field}` of {value}"))
        };
        let (start, length) = (time(ts, "ts")?, time(dur, "dur")?);
        let end = start + length;
        if self.operators.len() + self.launches.len() + self.kernels.len() >= MOST_EVENTS {
            return Err(format!("it has more than {MOST_EVENTS} operators and kernels; profile fewer steps"));
        }
        let number = |value: &Option<Value>| value.as_ref().and_then(Value::as_u64);
        let correlation = args.as_ref().and_then(|args| number(&args.correlation));
        let external = args.as_ref().and_then(|args| number(&args.external)).filter(|id| *id > 0);
        if device {
            let device = args.as_ref().and_then(|args| number(&args.device)).unwrap_or_default();
            let name = self.names.place(name);
            self.kernels.push(Kernel { name, start, end, device, correlation, external });
            return Ok(());
        }
        let thread = self.thread(pid, tid);
        if launch {
            let graph = name.contains("GraphLaunch");
            self.launches.extend(correlation.map(|correlation| Launch { thread, start, correlation, graph }));
            return Ok(());
        }
        let known = is_known(&name);
        let operands = args
            .filter(|_| known)
            .and_then(|args| Operands::read(args.dims.as_ref(), args.types.as_ref(), args.values.as_ref()));
        let shape = operands.and_then(|operands| lowered(&name, &operands)).map(|shape| self.shape(shape));
        let name = self.names.place(name);
        self.operators.push(Operator { thread, name, start, end, shape, known, external });
        Ok(())
    }

    fn thread(&mut self, pid: Option<Value>, tid: Option<Value>) -> u32 {
        let next = self.threads.len() as u32;
        let key = format!("{} {}", pid.unwrap_or_default(), tid.unwrap_or_default());
        *self.threads.entry(key).or_insert(next)
    }

    /// Models repeat a handful of shapes.
    fn shape(&mut self, shape: Lowered) -> u32 {
        let shapes = &mut self.shapes;
        *self.shape_places.entry(format!("{shape:?}")).or_insert_with(|| {
            shapes.push(shape);
            shapes.len() as u32 - 1
        })
    }
}

/// The document: an object with `traceEvents`, or the list alone. Says whether there was one.
struct Whole<'a> {
    events: &'a mut Events,
    allowance: &'a Allowance,
}

impl<'de> DeserializeSeed<'de> for Whole<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Whole<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a trace: an object with a list `traceEvents`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<bool, A::Error> {
        EventList { events: self.events, allowance: self.allowance }.visit_seq(list).map(|()| true)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut found = false;
        loop {
            // A name of a field is an event's length at most.
            self.allowance.event();
            let Some(field) = map.next_key::<String>()? else { break };
            match field.as_str() {
                "traceEvents" => {
                    map.next_value_seed(EventList { events: self.events, allowance: self.allowance })?;
                    found = true;
                }
                "deviceProperties" => {
                    let devices: Value = map.next_value()?;
                    let names = devices.as_array().into_iter().flatten().filter_map(|device| device["name"].as_str());
                    self.events.devices.extend(names.map(str::to_owned));
                }
                _ => {
                    self.allowance.lift();
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        self.allowance.lift();
        Ok(found)
    }
}

struct EventList<'a> {
    events: &'a mut Events,
    allowance: &'a Allowance,
}

impl<'de> DeserializeSeed<'de> for EventList<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for EventList<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut at = 0u64;
        loop {
            self.allowance.event();
            let Some(event) = list.next_element::<Event>()? else { break };
            at += 1;
            self.events.keep(event).map_err(|why| A::Error::custom(format!("event {at}: {why}")))?;
        }
        self.allowance.lift();
        Ok(())
    }
}
