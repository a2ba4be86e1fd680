//! Checkpoints whose headers agree with their length and lie about everything else: codes are refused, or decoded
//! and put into the order of kernels without reading outside of them.

#![no_main]

use std::{fs, path::PathBuf, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use roofline_quant::{
    Checkpoint,
    rows::{Rows, Spare},
    stored::StoredTensor,
};

/// Decoding more numbers than this finds nothing that decoding these does not.
const MOST: usize = 1 << 20;

/// A folder of this process, since a checkpoint is opened by its path.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("roofline-fuzz-stored-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for temporary files");
    // MLX's words are read as the configuration says.
    let config = r#"{"quantization": {"group_size": 64, "bits": 4, "m": {"group_size": 32, "bits": 3}}}"#;
    fs::write(folder.join("config.json"), config).expect("a temporary file");
    folder
});

// The file as it is, so that any small checkpoint is a seed.
fuzz_target!(|file: &[u8]| {
    let path = FOLDER.join("model.safetensors");
    fs::write(&path, file).expect("a temporary file");
    let Ok(checkpoint) = Checkpoint::open(&path) else { return };
    let Ok((all, _)) = StoredTensor::survey(&checkpoint) else { return };
    for stored in all {
        if let Ok(turned) = stored.turned() {
            arrange(&*turned);
        }
        if !stored.is_coded() {
            continue;
        }
        let numbers = stored.elements() as usize;
        // The shortest codes are of two bits.
        assert!(numbers <= 4 * file.len());
        let rows = stored.into_rows().expect("codes that were believed");
        let matrix = rows.matrix();
        assert_eq!(matrix.rows.checked_mul(matrix.columns), Some(numbers));
        if numbers <= MOST {
            let mut out = vec![0.0; numbers];
            rows.read(0..matrix.rows, &mut Spare::default(), &mut out).expect("codes that were believed are there");
            arrange(&*rows);
        }
    }
});

/// Integers that are wider than they should be are refused; all else is there.
fn arrange(rows: &dyn Rows) {
    let Some(form) = rows.kernel_form() else { return };
    let mut room = form.room(form.matrix.rows);
    let _ = rows.read_codes(0..form.matrix.rows, room.all());
    assert_eq!(rows.tensor_part().expect("what there is once is there").len(), form.tensor);
}
