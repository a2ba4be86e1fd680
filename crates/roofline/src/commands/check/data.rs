//! The data that the program carries.

use roofline_core::{
    Format,
    calibration::Calibration,
    format::{CATALOGUE, Entry},
    model, registry, soundness,
};

use super::Check;

pub(super) fn checks() -> Vec<Check> {
    let calibrations = Calibration::shipped().count();
    vec![
        Check::faults("data", "device files", registry::files().len(), &soundness::devices()),
        Check::faults("data", "model files", model::files().len(), &soundness::models()),
        Check::faults("data", "calibrations", calibrations, &soundness::calibrations()),
        Check::faults("data", "formats by their names", CATALOGUE.len(), &unread_formats()),
    ]
}

/// Formats that their name does not lead to, or that nobody specified.
fn unread_formats() -> Vec<String> {
    let leads = |entry: &&Entry| {
        let format = entry.name.parse::<Format>();
        format.is_ok_and(|format| format.to_string().parse() == Ok(format)) && entry.source.len() > 3
    };
    CATALOGUE.iter().filter(|entry| !leads(entry)).map(|entry| entry.name.to_owned()).collect()
}
