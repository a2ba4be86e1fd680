//! GGUF files from anywhere: never a panic, never a tensor outside the file, whether it is looked at or a source.

#![no_main]

use std::{fs, path::PathBuf, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use roofline_quant::{
    Checkpoint,
    gguf::Header,
    rows::{Rows, Spare},
    stored::StoredTensor,
};

/// Decoding more numbers than this finds nothing that decoding these does not.
const MOST: usize = 1 << 20;

/// A file of this process, since a checkpoint is opened by its path.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("roofline-fuzz-gguf-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for temporary files");
    folder.join("model.gguf")
});

fuzz_target!(|bytes: &[u8]| {
    let length = bytes.len() as u64;
    let Ok(header) = Header::parse(bytes, length) else { return };
    for tensor in &header.tensors {
        let size = tensor.bytes().expect("a tensor that was believed has a size");
        assert!(header.data_start + tensor.offset + size <= length);
    }
    fs::write(&*FILE, bytes).expect("a temporary file");
    let Ok(checkpoint) = Checkpoint::open(&FILE) else { return };
    let Ok((all, _)) = StoredTensor::survey(&checkpoint) else { return };
    for stored in all {
        let Ok(rows) = stored.into_rows() else { continue };
        let matrix = rows.matrix();
        let numbers = matrix.rows.checked_mul(matrix.columns).expect("a matrix that was believed has a size");
        if numbers <= MOST {
            let mut out = vec![0.0; numbers];
            rows.read(0..matrix.rows, &mut Spare::default(), &mut out).expect("what was believed is there");
            if let Some(form) = rows.kernel_form() {
                let mut room = form.room(matrix.rows);
                rows.read_codes(0..matrix.rows, room.all()).expect("what was believed is there");
            }
        }
    }
});
