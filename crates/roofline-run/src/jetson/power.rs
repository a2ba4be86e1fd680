//! Power by rail, from the INA3221 that every module carries: `/sys/class/hwmon/hwmon*/` with `name` `ina3221`, and for
//! each of its three channels `inN_label`, `inN_input` in mV and `currN_input` in mA.

use roofline_core::units::Watts;

use super::root::{Root, shown};

/// Rails that are everything together, or that add up to it, by board: the first set that is there counts. Rails that feed
/// each other are not added: `VDDQ_VDD2_1V8AO` of an AGX Orin is part of `VIN_SYS_5V0`.
const WHOLE: &[&[&str]] = &[
    &["VDD_IN"],
    &["POM_5V_IN"],
    &["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"],
    &["VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0"],
];
/// A module draws no more through one rail; what says so is another unit.
const MOST: f64 = 1000.0;

/// Where the power of one rail is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rail {
    /// As the board labels it.
    pub name: String,
    voltage: String,
    current: String,
}

impl Rail {
    /// All rails of the board, by name.
    pub fn all(root: &Root) -> Vec<Self> {
        let chips = root.names("/sys/class/hwmon").into_iter().map(|name| format!("/sys/class/hwmon/{name}"));
        let chips = chips.filter(|chip| root.text(&format!("{chip}/name")).is_ok_and(|name| name == "ina3221"));
        let rail = |chip: &str, channel: u32| {
            let name = root.text(&format!("{chip}/in{channel}_label")).ok()?;
            // A channel that is not connected is labelled NC.
            let sound = !name.is_empty() && name.len() <= 64 && !name.contains(char::is_control) && name != "NC";
            let (voltage, current) = (format!("{chip}/in{channel}_input"), format!("{chip}/curr{channel}_input"));
            sound.then_some(Self { name, voltage, current })
        };
        let mut all: Vec<Self> =
            chips.flat_map(|chip| (1..=3).filter_map(|channel| rail(&chip, channel)).collect::<Vec<_>>()).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all.dedup_by(|one, other| one.name == other.name);
        all
    }

    /// What flows now. Slightly below nothing is an offset of the chip, and said as it is.
    pub fn read(&self, root: &Root) -> Result<Watts, String> {
        let (millivolts, milliamperes) = (root.number(&self.voltage)?, root.number(&self.current)?);
        let watts = millivolts as f64 * milliamperes as f64 / 1e6;
        if watts.abs() <= MOST {
            Ok(Watts::new(watts))
        } else {
            Err(format!("{}: {millivolts} mV and {milliamperes} mA are no power of a module", shown(&self.name)))
        }
    }
}

/// The power of the module, from that of its rails; none where the rails are not known to be all of it.
pub fn total(rails: &[(String, Watts)]) -> Option<Watts> {
    let of = |name: &str| rails.iter().find(|(rail, _)| rail == name).map(|(_, power)| *power);
    WHOLE.iter().find_map(|names| names.iter().map(|name| of(name)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals() {
        let rails = |all: &[(&str, f64)]| -> Vec<(String, Watts)> {
            all.iter().map(|(name, power)| ((*name).to_owned(), Watts::new(*power))).collect()
        };
        let nano = rails(&[("VDD_CPU_GPU_CV", 1.0), ("VDD_IN", 4.0), ("VDD_SOC", 1.5)]);
        assert_eq!(total(&nano), Some(Watts::new(4.0)));
        let agx = [("VDD_GPU_SOC", 5.0), ("VDD_CPU_CV", 2.0), ("VIN_SYS_5V0", 4.0), ("VDDQ_VDD2_1V8AO", 1.0)];
        assert_eq!(total(&rails(&agx)), Some(Watts::new(11.0)));
        assert_eq!(total(&rails(&agx[..2])), None, "part of a board is not the board");
    }
}
