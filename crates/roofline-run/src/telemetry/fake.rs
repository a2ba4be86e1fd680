//! A GPU for tests: every answer known, every query able to fail.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use roofline_core::units::{ByteRate, Bytes, Celsius, Hertz, Joules, Watts};

use super::{ClockDomain, Holder, Memory, Reading, Source, Throttle, Unread, Utilization, Way};

/// Every query by name.
pub(crate) const QUERIES: &[&str] = &[
    "device_name",
    "compute_capability",
    "driver_version",
    "gpu_clock_mhz",
    "sm_clock_mhz",
    "mem_clock_mhz",
    "gpu_clock_max_mhz",
    "sm_clock_max_mhz",
    "mem_clock_max_mhz",
    "power_draw_w",
    "instant_power_w",
    "power_limit_w",
    "temperature_c",
    "temperature_throttle_c",
    "memory",
    "holders",
    "utilization",
    "pcie_gen",
    "pcie_width",
    "pcie_tx_kb_s",
    "pcie_rx_kb_s",
    "sm_count",
    "throttle_reasons",
    "total_energy_j",
];

/// An H200 at work, or not.
#[derive(Default)]
pub(crate) struct Fake {
    failing: BTreeSet<&'static str>,
    /// What holds its clock down; the power limit where nobody says.
    reasons: Option<Vec<Throttle>>,
    /// How long the driver takes over the temperature.
    delay: Duration,
    energy: AtomicU64,
}

impl Fake {
    pub(crate) fn failing(queries: &[&'static str]) -> Self {
        Self { failing: queries.iter().copied().collect(), ..Self::default() }
    }

    pub(crate) fn held_by(reasons: &[Throttle]) -> Self {
        Self { reasons: Some(reasons.to_vec()), ..Self::default() }
    }

    pub(crate) fn slow(delay: Duration) -> Self {
        Self { delay, ..Self::default() }
    }

    fn answer<T>(&self, query: &'static str, value: T) -> Reading<T> {
        assert!(QUERIES.contains(&query), "{query}");
        if self.failing.contains(query) { Err(Unread(format!("no {query}"))) } else { Ok(value) }
    }
}

fn megahertz(clock: f64) -> Hertz {
    Hertz::new(clock * 1e6)
}

impl Source for Fake {
    fn device_name(&self) -> Reading<String> {
        self.answer("device_name", "NVIDIA H200".to_owned())
    }

    fn compute_capability(&self) -> Reading<String> {
        self.answer("compute_capability", "9.0".to_owned())
    }

    fn driver_version(&self) -> Reading<String> {
        self.answer("driver_version", "580.82.07".to_owned())
    }

    fn clock(&self, domain: ClockDomain) -> Reading<Hertz> {
        match domain {
            ClockDomain::Graphics => self.answer("gpu_clock_mhz", megahertz(1755.0)),
            ClockDomain::Sm => self.answer("sm_clock_mhz", megahertz(1756.0)),
            ClockDomain::Memory => self.answer("mem_clock_mhz", megahertz(3201.0)),
        }
    }

    fn max_clock(&self, domain: ClockDomain) -> Reading<Hertz> {
        match domain {
            ClockDomain::Graphics => self.answer("gpu_clock_max_mhz", megahertz(1980.0)),
            ClockDomain::Sm => self.answer("sm_clock_max_mhz", megahertz(1981.0)),
            ClockDomain::Memory => self.answer("mem_clock_max_mhz", megahertz(3202.0)),
        }
    }

    fn power_draw(&self) -> Reading<Watts> {
        self.answer("power_draw_w", Watts::new(350.0))
    }

    fn instant_power(&self) -> Reading<Watts> {
        self.answer("instant_power_w", Watts::new(400.0))
    }

    fn power_limit(&self) -> Reading<Watts> {
        self.answer("power_limit_w", Watts::new(700.0))
    }

    fn temperature(&self) -> Reading<Celsius> {
        std::thread::sleep(self.delay);
        self.answer("temperature_c", Celsius::new(51.0))
    }

    fn temperature_throttle(&self) -> Reading<Celsius> {
        self.answer("temperature_throttle_c", Celsius::new(87.0))
    }

    fn memory(&self) -> Reading<Memory> {
        let mebi = |size: f64| Bytes::new(size * 1024.0 * 1024.0);
        self.answer("memory", Memory { total: mebi(143_771.0), used: mebi(1024.0), free: mebi(142_154.0) })
    }

    fn holders(&self) -> Reading<Vec<Holder>> {
        let holder = |process: u32, name: Option<&str>, memory: Option<f64>| Holder {
            process,
            name: name.map(str::to_owned),
            memory: memory.map(Bytes::new),
        };
        let all = vec![
            holder(99, None, None),
            holder(17, Some("Xorg"), Some(5e8)),
            holder(std::process::id(), Some("roofline"), Some(1e9)),
            holder(4242, Some("python3"), Some(1.2e11)),
        ];
        self.answer("holders", all)
    }

    fn utilization(&self) -> Reading<Utilization> {
        self.answer("utilization", Utilization { gpu: 97, memory: 41 })
    }

    fn pcie_generation(&self) -> Reading<u32> {
        self.answer("pcie_gen", 5)
    }

    fn pcie_width(&self) -> Reading<u32> {
        self.answer("pcie_width", 16)
    }

    fn pcie_traffic(&self, way: Way) -> Reading<ByteRate> {
        match way {
            Way::Sent => self.answer("pcie_tx_kb_s", ByteRate::new(1.5e9)),
            Way::Received => self.answer("pcie_rx_kb_s", ByteRate::new(2.5e6)),
        }
    }

    fn multiprocessors(&self) -> Reading<u32> {
        self.answer("sm_count", 132)
    }

    fn throttle_reasons(&self) -> Reading<Vec<Throttle>> {
        self.answer("throttle_reasons", self.reasons.clone().unwrap_or_else(|| vec![Throttle::SwPowerCap]))
    }

    /// Four joules more with every question.
    fn total_energy(&self) -> Reading<Joules> {
        let before = self.energy.fetch_add(4, Ordering::Relaxed);
        self.answer("total_energy_j", Joules::new(1e6 + before as f64))
    }
}
