//! Headers of safetensors from anywhere: never a panic, never an entry outside the file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use roofline_quant::safetensors::Header;

fuzz_target!(|bytes: &[u8]| {
    // How much data follows, then the header.
    let Some((data, json)) = bytes.split_first_chunk() else { return };
    let data = u64::from(u16::from_le_bytes(*data));
    if let Ok(header) = Header::parse(json, data) {
        let mut expected = 0;
        for entry in &header.tensors {
            assert_eq!(entry.begin, expected);
            assert!(entry.end >= entry.begin && entry.end <= data);
            assert_eq!(entry.shape.iter().product::<usize>() as u64, entry.elements());
            expected = entry.end;
        }
        // What was read can be written and read again.
        let bytes = Header::bytes(&header.metadata, &header.tensors);
        let again = Header::parse(&bytes[8..], data).expect("what was written is valid");
        assert_eq!(again.tensors, header.tensors);
    }
});
