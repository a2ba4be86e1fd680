//! Puts the page into the program: every file of `web/dist`, where it was built. npm is never called here.

use std::{
    env, fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};

fn main() -> io::Result<()> {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/dist");
    // Cargo looks at everything in the folder. A README keeps it: what is not there would be looked for in every build.
    println!("cargo::rerun-if-changed={}", dist.display());
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let mut files = Vec::new();
    if dist.is_dir() {
        collect(&dist, &mut files)?;
    }
    let mut entries = Vec::new();
    for path in files {
        let name = path.strip_prefix(&dist).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        let bytes = fs::read(&path)?;
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&bytes)?;
        let packed = encoder.finish()?;
        let gzip = if packed.len() * 10 < bytes.len() * 9 {
            let place = out.join(format!("{}.gz", entries.len()));
            fs::write(&place, packed)?;
            format!("Some(include_bytes!({:?}))", place.display().to_string())
        } else {
            "None".to_owned()
        };
        let plain = path.canonicalize()?.display().to_string();
        let (kind, hashed) = (kind(&name), name.starts_with("assets/"));
        entries.push((name.clone(), format!(
            "File {{ path: {name:?}, kind: {kind:?}, plain: include_bytes!({plain:?}), gzip: {gzip}, hashed: {hashed} }},\n"
        )));
    }
    entries.sort();
    let list: String = entries.into_iter().map(|(_, entry)| entry).collect();
    fs::write(out.join("page.rs"), format!("&[\n{list}]"))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.file_name().is_some_and(|name| name != "README") {
            files.push(path);
        }
    }
    Ok(())
}

fn kind(name: &str) -> &'static str {
    match name.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "json" | "map" => "application/json",
        "webmanifest" => "application/manifest+json",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "wasm" => "application/wasm",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}
