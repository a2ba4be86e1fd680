//! The roofline of a power mode: bandwidth follows the memory's clock, compute the GPU's clock times what stays powered.
//!
//! The two do not move together. An Orin Nano in its 7 W mode keeps its memory at 2133 MHz and loses half of its GPU and a
//! third of the clock: bandwidth x 1.00, compute x 0.33. One factor for both, by the budget, is right for neither.

use roofline_core::{
    Device, Error, Math, Result,
    device::PowerMode,
    units::{ByteRate, FlopRate, Hertz, Watts},
};

use super::nvpmodel::{Mode, Table, named};

/// Transfers per clock of every memory that these boards have.
const DOUBLE_DATA_RATE: f64 = 2.0;
/// Multiprocessors of a TPC, in every chip of the family.
const PER_TPC: u32 = 2;

/// A device as a mode of its board's table leaves it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModeDevice {
    /// The registry's device at the mode's rates.
    pub device: Device,
    /// The mode, resolved.
    pub mode: PowerMode,
    /// TPCs that stay on; none where the chip's mask is not understood.
    pub tpcs: Option<u32>,
    /// The registry's mode of the same name.
    pub registered: Option<PowerMode>,
    /// Bandwidth over the whole chip's.
    pub bandwidth_scale: f64,
    /// Compute over the whole chip's.
    pub compute_scale: f64,
}

impl ModeDevice {
    /// `device` in `mode`. Where the mask of a chip is not public (Thor) the registry's mode of that name says how many
    /// multiprocessors are left.
    pub fn new(device: &Device, mode: &Mode, table: &Table) -> Result<Self> {
        let refuse = |reason: &str| Error::Device { key: device.key.clone(), reason: reason.to_owned() };
        let (sm, boost) =
            device.units.sm.zip(device.clock.boost).ok_or_else(|| refuse("it has no `sm` and `boost`"))?;
        let bus = device.memory.bus_bits.ok_or_else(|| refuse("it has no `bus_bits`"))?;
        let registered = device.power_modes.iter().find(|known| named(&known.name, &mode.name)).cloned();
        let tpcs = mode.tpc_mask.zip(chip_tpcs(device)).map(|(mask, all)| all - (mask & ((1 << all) - 1)).count_ones());
        let left = tpcs.map(|tpcs| (tpcs * PER_TPC).min(sm)).or_else(|| registered.as_ref().map(|known| known.sm));
        let left = left.unwrap_or(sm);
        if left == 0 {
            return Err(refuse("the mode turns all of its GPU off"));
        }
        let per_clock = DOUBLE_DATA_RATE * f64::from(bus) / 8.0;
        let full = Hertz::new(device.memory.bandwidth.value() / per_clock);
        let (gpu_clock, memory_clock) = (mode.gpu.within(boost), mode.emc.within(full));
        let bandwidth = ByteRate::new(memory_clock.value() * per_clock);
        let compute_scale = f64::from(left) / f64::from(sm) * (gpu_clock / boost);
        let rate = |math| device.peaks.of(math).map(|peak| peak * compute_scale);
        let power = registered.as_ref().and_then(|known| known.power).or_else(|| mode.budget());
        let resolved = PowerMode {
            name: mode.name.clone(),
            id: mode.id,
            power,
            gpu_clock,
            sm: left,
            memory_clock,
            bandwidth,
            fp16: rate(Math::Fp16).unwrap_or(FlopRate::ZERO),
            int8: rate(Math::Int8),
            default: table.default == Some(mode.id),
            unverified: false,
        };
        let board = Device { power_modes: vec![resolved.clone()], ..device.clone() };
        Ok(Self {
            device: board.in_mode(&mode.name)?,
            tpcs,
            registered,
            bandwidth_scale: bandwidth / device.memory.bandwidth,
            compute_scale,
            mode: resolved,
        })
    }

    /// Whether the registry's mode of that name has the same clocks and parts, to a percent.
    pub fn agrees(&self) -> Option<bool> {
        let known = self.registered.as_ref()?;
        let close = |one: f64, other: f64| (one / other - 1.0).abs() < 0.01;
        Some(
            known.sm == self.mode.sm
                && close(known.gpu_clock.value(), self.mode.gpu_clock.value())
                && close(known.bandwidth.value(), self.mode.bandwidth.value()),
        )
    }
}

/// TPCs of a whole chip; the bits of its mask. None where the mask counts something else (Thor's has GPCs in it).
fn chip_tpcs(device: &Device) -> Option<u32> {
    let of = |name: &str| device.architecture.contains(name);
    if of("GA10B") {
        Some(8)
    } else if of("GV10B") || of("GV11B") {
        Some(4)
    } else {
        None
    }
}

/// The factor that circulates for a budget, on bandwidth and compute alike, where clocks are not looked at. Shown beside
/// the right ones because people have seen it, and used for nothing.
pub fn circulating_factor(budget: Option<Watts>) -> f64 {
    match budget.map(Watts::value) {
        Some(watts) if watts <= 7.0 => 0.65,
        Some(watts) if watts <= 10.0 => 0.85,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use roofline_core::Registry;

    use super::*;

    fn scaled(key: &str, line: &str) -> ModeDevice {
        let table = Table::parse(line);
        assert_eq!(table.problems, [""; 0]);
        let registry = Registry::builtin();
        ModeDevice::new(&registry.find(key).unwrap(), &table.modes[0], &table).unwrap()
    }

    #[test]
    fn seven_watts_of_an_orin_nano() {
        let nano = scaled(
            "jetson_orin_nano_8gb",
            "< POWER_MODEL ID=1 NAME=7W >\nTPC_POWER_GATING TPC_PG_MASK 252\nGPU MAX_FREQ 408000000\nEMC MAX_FREQ 2133000000",
        );
        // 4 of 8 multiprocessors at 408 of 625 MHz; the memory as it was.
        assert_eq!((nano.tpcs, nano.mode.sm), (Some(2), 4));
        assert!((nano.compute_scale - 0.5 * 408.0 / 625.0).abs() < 1e-9);
        assert!((nano.bandwidth_scale - 1.0).abs() < 1e-3);
        assert_eq!((nano.agrees(), nano.mode.power), (Some(true), Some(Watts::new(7.0))));
        assert_eq!(circulating_factor(nano.mode.power), 0.65);
    }

    #[test]
    fn the_agx_board_calls_it_mode_15w() {
        let agx = scaled(
            "jetson_agx_orin_64gb",
            "< POWER_MODEL ID=1 NAME=MODE_15W >\nTPC_POWER_GATING TPC_PG_MASK 248\nGPU MAX_FREQ 408000000\nEMC MAX_FREQ 2133000000",
        );
        assert_eq!((agx.tpcs, agx.mode.sm, agx.agrees()), (Some(3), 6, Some(true)));
        // 2133 MHz, twice per clock, 32 bytes wide.
        assert!((agx.mode.bandwidth.value() - 136.512e9).abs() < 1e3);
    }

    #[test]
    fn thor_is_counted_by_the_registry() {
        let thor =
            scaled("jetson_thor_t5000", "< POWER_MODEL ID=2 NAME=90W >\nGPU MAX_FREQ 1530000000\nEMC MAX_FREQ -1");
        assert_eq!((thor.tpcs, thor.mode.sm, thor.agrees()), (None, 12, Some(true)));
    }

    #[test]
    fn a_mode_without_a_gpu_is_refused() {
        let table = Table::parse("< POWER_MODEL ID=1 NAME=off >\nTPC_POWER_GATING TPC_PG_MASK 18446744073709551615");
        let registry = Registry::builtin();
        let device = registry.find("jetson_orin_nano_8gb").unwrap();
        assert!(ModeDevice::new(&device, &table.modes[0], &table).is_err());
    }
}
