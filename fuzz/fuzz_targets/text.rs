//! Everything that reads a word from the command line: refused, or shown in a form that reads back.

#![no_main]

use libfuzzer_sys::fuzz_target;
use roofline_core::{
    Format, Math, Registry,
    precision::PrecisionSpec,
    units::{ByteRate, Bytes, FlopRate, Seconds},
};

fuzz_target!(|text: &str| {
    if let Ok(format) = text.parse::<Format>() {
        assert_eq!(format.to_string().parse::<Format>().ok(), Some(format));
    }
    let _ = text.parse::<PrecisionSpec>();
    let _ = text.parse::<Math>();
    let _ = text.parse::<Bytes>();
    let _ = text.parse::<ByteRate>();
    let _ = text.parse::<FlopRate>();
    if let Ok(time) = text.parse::<Seconds>() {
        assert!(time.to_string().parse::<Seconds>().is_ok());
    }
    let _ = Registry::builtin().find(text);
});
