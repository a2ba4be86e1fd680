//! Any finite tensor in any format: the packed length is the stored size, and decoding gives finite values.

#![no_main]

use libfuzzer_sys::fuzz_target;
use roofline_core::{
    Dim, Format,
    format::{CATALOGUE, Sizes},
};

fuzz_target!(|input: (u8, u8, Vec<f32>)| {
    let (which, columns, values) = input;
    let Ok(columns) = Dim::new("columns", u64::from(columns)) else { return };
    let Ok(format) = CATALOGUE[usize::from(which) % CATALOGUE.len()].name.parse::<Format>() else { return };
    if let Ok(encoded) = format.encode(&values, columns) {
        assert_eq!(encoded.len() as f64, format.bytes(encoded.shape(), Sizes::Exact).value());
        let decoded = encoded.decode();
        assert_eq!(decoded.len(), values.len());
        assert!(decoded.iter().all(|value| value.is_finite()), "{format} {values:?} {decoded:?}");
    }
});
