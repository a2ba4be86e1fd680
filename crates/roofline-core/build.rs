//! Lists the files of each folder of `data`, so that adding a device, a model, a calibration, a runtime or a published
//! accuracy is adding a file.

use std::{env, fs, path::Path};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for kind in ["devices", "models", "energy", "quality", "runtimes"] {
        list(kind, ".toml");
    }
    list("calibrations", ".toml");
}

fn list(kind: &str, extension: &str) {
    println!("cargo::rerun-if-changed=data/{kind}");
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let folder = Path::new(&root).join("data").join(kind);
    let mut keys: Vec<String> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.strip_suffix(extension).map(str::to_owned))
        .collect();
    keys.sort();
    let mut rows = String::new();
    for key in &keys {
        let path = folder.join(format!("{key}{extension}"));
        rows += &format!("    ({key:?}, include_str!({:?})),\n", path.display().to_string());
    }
    let out = Path::new(&env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join(format!("{kind}.rs"));
    fs::write(out, format!("&[\n{rows}]")).expect("OUT_DIR is writable");
}
