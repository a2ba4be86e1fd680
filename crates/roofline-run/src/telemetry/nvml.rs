//! NVIDIA's management library, the one behind `nvidia-smi`. It comes with the driver and is loaded when it is first
//! asked for, so that the same program starts where there is none.

use std::{ffi::OsStr, sync::OnceLock};

use nvml_wrapper::{
    Device, Nvml,
    bitmasks::device::ThrottleReasons,
    enum_wrappers::device::{Clock, PcieUtilCounter, TemperatureSensor, TemperatureThreshold},
    enums::device::{SampleValue, UsedGpuMemory},
    error::NvmlError,
    struct_wrappers::device::ProcessInfo,
    structs::device::FieldId,
    sys_exports::field_id::NVML_FI_DEV_POWER_INSTANT,
};
use roofline_core::units::{ByteRate, Bytes, Celsius, Hertz, Joules, Watts};

use super::{Capability, ClockDomain, Holder, Memory, Reading, Source, Throttle, Unread, Utilization, Way};
use crate::{Error, Result};

/// Where the library may be: its name since it has versions, the name that only development packages install, and the
/// folder that Windows lends to its Linux subsystem.
#[cfg(not(windows))]
const LIBRARIES: &[&str] = &["libnvidia-ml.so.1", "libnvidia-ml.so", "/usr/lib/wsl/lib/libnvidia-ml.so.1"];
#[cfg(windows)]
const LIBRARIES: &[&str] = &["nvml.dll"];

/// Letters of a process's name that the driver is asked for.
const LONGEST_NAME: usize = 256;

/// A GPU that the driver knows.
#[derive(Debug)]
pub struct Gpu {
    nvml: &'static Nvml,
    device: Device<'static>,
}

impl Gpu {
    /// The GPU at `index` in the driver's order, which is by PCI address whatever `CUDA_VISIBLE_DEVICES` says.
    pub fn open(index: u32) -> Result<Self> {
        let nvml = library()?;
        let count = nvml.device_count().map_err(|error| no_driver(&error))?;
        if index >= count {
            return Err(Error::NoGpu { index, count });
        }
        let device = nvml.device_by_index(index).map_err(|error| no_driver(&error))?;
        Ok(Self { nvml, device })
    }

    /// The GPU at a PCI address such as `0000:65:00.0`: the name that it has in CUDA and in the driver alike.
    pub fn at(address: &str) -> Result<Self> {
        let nvml = library()?;
        let device = nvml.device_by_pci_bus_id(address).map_err(|error| no_driver(&error))?;
        Ok(Self { nvml, device })
    }
}

/// The library, loaded once for the process. A failure is not remembered: a driver may be loaded later.
fn library() -> Result<&'static Nvml> {
    static NVML: OnceLock<Nvml> = OnceLock::new();
    match NVML.get() {
        Some(nvml) => Ok(nvml),
        None => load(LIBRARIES).map(|nvml| NVML.get_or_init(|| nvml)),
    }
}

fn load(names: &[&str]) -> Result<Nvml> {
    let mut reason = None;
    for name in names {
        match Nvml::builder().lib_path(OsStr::new(name)).init() {
            Ok(nvml) => return Ok(nvml),
            // The first name is the one to report, unless a library was there and its driver refused.
            Err(error @ NvmlError::LibloadingError(_)) => _ = reason.get_or_insert(error),
            Err(error) => {
                reason = Some(error);
                break;
            }
        }
    }
    Err(reason.map_or_else(|| Error::NoDriver { reason: "no library to look for".into() }, |error| no_driver(&error)))
}

fn no_driver(error: &NvmlError) -> Error {
    let reason = match error {
        NvmlError::LibloadingError(error) => error.to_string(),
        error => error.to_string(),
    };
    Error::NoDriver { reason }
}

/// The driver's answer in our units, or its words.
fn read<T, U>(answer: std::result::Result<T, NvmlError>, convert: impl FnOnce(T) -> U) -> Reading<U> {
    answer.map(convert).map_err(|error| Unread(error.to_string()))
}

fn megahertz(clock: u32) -> Hertz {
    Hertz::new(f64::from(clock) * 1e6)
}

fn milliwatts(power: u32) -> Watts {
    Watts::new(f64::from(power) / 1e3)
}

fn degrees(temperature: u32) -> Celsius {
    Celsius::new(f64::from(temperature))
}

fn domain(domain: ClockDomain) -> Clock {
    match domain {
        ClockDomain::Graphics => Clock::Graphics,
        ClockDomain::Sm => Clock::SM,
        ClockDomain::Memory => Clock::Memory,
    }
}

impl Source for Gpu {
    fn device_name(&self) -> Reading<String> {
        read(self.device.name(), |name| name)
    }

    fn compute_capability(&self) -> Reading<String> {
        read(self.device.cuda_compute_capability(), |version| format!("{}.{}", version.major, version.minor))
    }

    fn driver_version(&self) -> Reading<String> {
        read(self.nvml.sys_driver_version(), |version| version)
    }

    fn clock(&self, which: ClockDomain) -> Reading<Hertz> {
        read(self.device.clock_info(domain(which)), megahertz)
    }

    fn max_clock(&self, which: ClockDomain) -> Reading<Hertz> {
        read(self.device.max_clock_info(domain(which)), megahertz)
    }

    fn power_draw(&self) -> Reading<Watts> {
        read(self.device.power_usage(), milliwatts)
    }

    fn instant_power(&self) -> Reading<Watts> {
        let answers = self.device.field_values_for(&[FieldId(NVML_FI_DEV_POWER_INSTANT)]);
        let value = answers.and_then(|answers| answers.into_iter().next().ok_or(NvmlError::NoData)?);
        match value.and_then(|sample| sample.value) {
            Ok(SampleValue::U32(power)) => Ok(milliwatts(power)),
            Ok(other) => Err(Unread(format!("an unexpected kind of number: {other:?}"))),
            Err(error) => Err(Unread(error.to_string())),
        }
    }

    fn power_limit(&self) -> Reading<Watts> {
        read(self.device.enforced_power_limit(), milliwatts)
    }

    fn temperature(&self) -> Reading<Celsius> {
        read(self.device.temperature(TemperatureSensor::Gpu), degrees)
    }

    fn temperature_throttle(&self) -> Reading<Celsius> {
        read(self.device.temperature_threshold(TemperatureThreshold::Slowdown), degrees)
    }

    fn memory(&self) -> Reading<Memory> {
        let bytes = |size: u64| Bytes::new(size as f64);
        read(self.device.memory_info(), |info| Memory {
            total: bytes(info.total),
            used: bytes(info.used),
            free: bytes(info.free),
        })
    }

    fn holders(&self) -> Reading<Vec<Holder>> {
        let computing = self.device.running_compute_processes();
        // One that draws and computes is in both lists.
        let drawing = self.device.running_graphics_processes().unwrap_or_default();
        read(computing, |computing| {
            let mut all: Vec<Holder> = Vec::new();
            for process in computing.iter().chain(&drawing) {
                if all.iter().all(|known| known.process != process.pid) {
                    all.push(holder(self.nvml, process));
                }
            }
            all
        })
    }

    fn utilization(&self) -> Reading<Utilization> {
        read(self.device.utilization_rates(), |rates| Utilization { gpu: rates.gpu, memory: rates.memory })
    }

    fn pcie_generation(&self) -> Reading<u32> {
        read(self.device.current_pcie_link_gen(), |generation| generation)
    }

    fn pcie_width(&self) -> Reading<u32> {
        read(self.device.current_pcie_link_width(), |width| width)
    }

    fn pcie_traffic(&self, way: Way) -> Reading<ByteRate> {
        let counter = match way {
            Way::Sent => PcieUtilCounter::Send,
            Way::Received => PcieUtilCounter::Receive,
        };
        // The driver counts in KB/s.
        read(self.device.pcie_throughput(counter), |kilo| ByteRate::new(f64::from(kilo) * 1e3))
    }

    /// The driver counts cores; how many a multiprocessor has is a matter of its generation.
    fn multiprocessors(&self) -> Reading<u32> {
        let capability = self.compute_capability()?;
        let cores = read(self.device.num_cores(), |cores| cores)?;
        let each = capability.parse::<Capability>().ok().and_then(Capability::cores_per_multiprocessor);
        each.map(|each| cores / each).ok_or_else(|| {
            Unread(format!("how many cores a multiprocessor of compute capability {capability} has is not known"))
        })
    }

    fn throttle_reasons(&self) -> Reading<Vec<Throttle>> {
        read(self.device.current_throttle_reasons(), reasons)
    }

    fn total_energy(&self) -> Reading<Joules> {
        read(self.device.total_energy_consumption(), |millijoules| Joules::new(millijoules as f64 / 1e3))
    }
}

/// A process with the name of its program, which the driver gives with folder and arguments.
fn holder(nvml: &Nvml, process: &ProcessInfo) -> Holder {
    let words = nvml.sys_process_name(process.pid, LONGEST_NAME).unwrap_or_default();
    let program = words.split_whitespace().next().and_then(|program| program.rsplit(['/', '\\']).next());
    let memory = match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(Bytes::new(bytes as f64)),
        UsedGpuMemory::Unavailable => None,
    };
    Holder { process: process.pid, name: program.filter(|name| !name.is_empty()).map(str::to_owned), memory }
}

fn reasons(bits: ThrottleReasons) -> Vec<Throttle> {
    let known = [
        (ThrottleReasons::GPU_IDLE, Throttle::GpuIdle),
        (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, Throttle::ApplicationsClocksSetting),
        (ThrottleReasons::SW_POWER_CAP, Throttle::SwPowerCap),
        (ThrottleReasons::HW_SLOWDOWN, Throttle::HwSlowdown),
        (ThrottleReasons::SYNC_BOOST, Throttle::SyncBoost),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, Throttle::SwThermalSlowdown),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, Throttle::HwThermalSlowdown),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, Throttle::HwPowerBrakeSlowdown),
        (ThrottleReasons::DISPLAY_CLOCK_SETTING, Throttle::DisplayClockSetting),
    ];
    known.into_iter().filter(|(bit, _)| bits.contains(*bit)).map(|(_, reason)| reason).collect()
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread, time::Duration};

    use super::*;
    use crate::telemetry::{PowerTracker, Status};

    #[test]
    fn a_missing_library_is_named() {
        let error = load(&["libnowhere.so.1", "libelsewhere.so"]).unwrap_err();
        assert!(error.to_string().contains("libnowhere.so.1"), "{error}");
        assert_eq!(error.kind(), "no_driver");
        assert!(error.hint().unwrap().contains("nvidia-smi"));
    }

    #[test]
    fn reasons_are_bits() {
        assert_eq!(reasons(ThrottleReasons::NONE), []);
        let bits = ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_THERMAL_SLOWDOWN;
        assert_eq!(reasons(bits), [Throttle::SwPowerCap, Throttle::HwThermalSlowdown]);
        assert!(!Throttle::GpuIdle.slows() && Throttle::SwPowerCap.slows());
    }

    /// On a machine with a GPU everything a measurement relies on must be there; elsewhere it is said that none was found.
    #[test]
    fn the_gpu_of_this_machine() {
        let gpu = match Gpu::open(0) {
            Ok(gpu) => gpu,
            Err(error) => return eprintln!("NOT TESTED, no GPU here: {error}"),
        };
        let status = Status::read(&gpu);
        eprintln!("{status:#?}\ninstant power: {:?}", gpu.instant_power());
        assert!(status.device_name.is_some() && status.driver_version.is_some() && status.mem_total.is_some());
        assert!(status.sm_clock.is_some() && status.mem_clock.is_some(), "{:?}", status.errors);
        eprintln!("{:?}", gpu.holders());
        assert!(matches!(Gpu::open(u32::MAX), Err(Error::NoGpu { .. })));
        let tracker = PowerTracker::start(Arc::new(gpu), PowerTracker::INTERVAL);
        thread::sleep(Duration::from_millis(500));
        let recording = tracker.stop();
        eprintln!("{:#?}", recording.summary());
        assert!(recording.samples.len() > 2 && !recording.cut_off);
    }
}
