//! A Jetson's GPU with the board's own power meter: NVML says little of these GPUs, the INA3221 says all.

use std::sync::Arc;

use roofline_core::{
    Device,
    measurement::{Kernel, Residency, Subject},
    units::{ByteRate, Celsius, Hertz, Joules, Watts},
};

use super::{
    power::{Rail, total},
    root::Root,
    status::gpu_clocks,
};
use crate::{
    Backend, Case, Result,
    backend::Ceiling,
    telemetry::{ClockDomain, Holder, Memory, Reading, Source, Throttle, Unread, Utilization, Way},
};

/// A backend whose power is that of the board it is on.
pub struct OnBoard<B> {
    inner: B,
    sensors: Arc<Sensors>,
}

impl<B: Backend> OnBoard<B> {
    /// `inner`, watched by `sensors`.
    pub fn new(inner: B, sensors: Sensors) -> Self {
        Self { inner, sensors: Arc::new(sensors) }
    }
}

impl<B: Backend> Backend for OnBoard<B> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn device(&self) -> &Device {
        self.inner.device()
    }

    fn facts(&self) -> Vec<(String, String)> {
        self.inner.facts()
    }

    fn power(&self) -> Result<Arc<dyn Source>> {
        Ok(Arc::clone(&self.sensors) as Arc<dyn Source>)
    }

    fn ceilings(&mut self) -> Result<Vec<Ceiling>> {
        self.inner.ceilings()
    }

    fn supports(&self, subject: &Subject) -> Result<Kernel> {
        self.inner.supports(subject)
    }

    fn prepare(&mut self, subject: &Subject, residency: Residency) -> Result<Box<dyn Case + '_>> {
        self.inner.prepare(subject, residency)
    }
}

/// What a board's files say while something runs: power of the whole module, GPU clock, temperature.
#[derive(Clone, Debug)]
pub struct Sensors {
    root: Root,
    rails: Vec<Rail>,
    clocks: Option<String>,
    /// The zone of the GPU, else of the hottest part.
    zone: Option<String>,
}

impl Sensors {
    /// Those below `root`.
    pub fn new(root: Root) -> Self {
        let (rails, clocks) = (Rail::all(&root), gpu_clocks(&root).ok());
        let zones: Vec<String> = root.names("/sys/class/thermal");
        let zones = zones.iter().map(|name| format!("/sys/class/thermal/{name}"));
        let zones: Vec<(String, String)> =
            zones.filter_map(|zone| Some((root.text(&format!("{zone}/type")).ok()?, zone))).collect();
        let zone = ["gpu-thermal", "tj-thermal"].iter().find_map(|name| zones.iter().find(|zone| zone.0 == *name));
        let zone = zone.map(|(_, zone)| format!("{zone}/temp"));
        Self { root, rails, clocks, zone }
    }
}

fn unread<T>(what: &str) -> Reading<T> {
    Err(Unread(format!("a Jetson's files have no {what}")))
}

impl Source for Sensors {
    fn device_name(&self) -> Reading<String> {
        unread("name of the GPU")
    }

    fn compute_capability(&self) -> Reading<String> {
        unread("compute capability")
    }

    fn driver_version(&self) -> Reading<String> {
        unread("version of the driver")
    }

    fn clock(&self, domain: ClockDomain) -> Reading<Hertz> {
        match (domain, &self.clocks) {
            (ClockDomain::Memory, _) => unread("memory clock for everybody"),
            (_, Some(clocks)) => self.root.hertz(&format!("{clocks}/cur_freq")).map_err(Unread),
            (_, None) => unread("GPU clock"),
        }
    }

    fn max_clock(&self, domain: ClockDomain) -> Reading<Hertz> {
        match (domain, &self.clocks) {
            (ClockDomain::Memory, _) => unread("highest memory clock"),
            (_, Some(clocks)) => self.root.hertz(&format!("{clocks}/max_freq")).map_err(Unread),
            (_, None) => unread("highest GPU clock"),
        }
    }

    fn power_draw(&self) -> Reading<Watts> {
        self.instant_power()
    }

    fn instant_power(&self) -> Reading<Watts> {
        let read = self.rails.iter().filter_map(|rail| Some((rail.name.clone(), rail.read(&self.root).ok()?)));
        total(&read.collect::<Vec<_>>()).map_or_else(|| unread("power of the whole module"), Ok)
    }

    fn power_limit(&self) -> Reading<Watts> {
        unread("power limit")
    }

    fn temperature(&self) -> Reading<Celsius> {
        let Some(zone) = &self.zone else { return unread("temperature of the GPU") };
        self.root.number(zone).map(|thousandths| Celsius::new(thousandths as f64 / 1000.0)).map_err(Unread)
    }

    fn temperature_throttle(&self) -> Reading<Celsius> {
        unread("limit of the temperature")
    }

    fn memory(&self) -> Reading<Memory> {
        unread("memory of the GPU alone")
    }

    fn holders(&self) -> Reading<Vec<Holder>> {
        unread("processes with memory of the GPU")
    }

    fn utilization(&self) -> Reading<Utilization> {
        unread("utilization by NVML's measure")
    }

    fn pcie_generation(&self) -> Reading<u32> {
        unread("PCIe link")
    }

    fn pcie_width(&self) -> Reading<u32> {
        unread("PCIe link")
    }

    fn pcie_traffic(&self, _way: Way) -> Reading<ByteRate> {
        unread("PCIe link")
    }

    fn multiprocessors(&self) -> Reading<u32> {
        unread("number of multiprocessors")
    }

    fn throttle_reasons(&self) -> Reading<Vec<Throttle>> {
        unread("reasons of a low clock")
    }

    fn total_energy(&self) -> Reading<Joules> {
        unread("counter of energy")
    }
}
