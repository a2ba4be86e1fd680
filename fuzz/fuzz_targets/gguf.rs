//! GGUF files from anywhere: never a panic, never a tensor outside the file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use roofline_quant::gguf::Header;

fuzz_target!(|bytes: &[u8]| {
    let length = bytes.len() as u64;
    if let Ok(header) = Header::parse(bytes, length) {
        for tensor in &header.tensors {
            let size = tensor.bytes().expect("a tensor that was believed has a size");
            assert!(header.data_start + tensor.offset + size <= length);
        }
    }
});
