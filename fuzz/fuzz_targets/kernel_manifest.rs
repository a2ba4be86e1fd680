//! The description of a kernel from anywhere: refused, or one whose shapes and launches are within what CUDA allows.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use roofline_core::{Registry, measurement::Subject, precision::PrecisionSpec};
use roofline_run::own::{Manifest, Operands};

/// Operands of more numbers than this take longer to make than to read a manifest.
const LARGE: f64 = 1e6;

fuzz_target!(|text: &str| {
    let Ok(manifest) = Manifest::parse(text, Path::new("fuzz.toml")) else { return };
    let device = Registry::builtin().find("h200_sxm").expect("a built-in device").into_owned();
    let Ok(formats) = manifest.precision.parse::<PrecisionSpec>().and_then(|spec| spec.on(&device)) else { return };
    for shape in manifest.shapes() {
        let graph = manifest.graph(shape).expect("it was looked at when it was read");
        let subject = Subject::new(&graph.nodes[0], &manifest.precision, formats);
        let bytes = subject.op.work(&formats, roofline_core::format::Sizes::Exact).bytes();
        if bytes.value() > LARGE {
            continue;
        }
        let Ok(operands) = Operands::of(&subject) else { continue };
        if let Ok(kernel) = manifest.kernel(shape, &operands, String::new(), 132) {
            assert!(kernel.block.iter().product::<u32>() <= 1024 && kernel.grid.iter().all(|count| *count > 0));
            assert!(kernel.text().contains(&kernel.entry));
        }
    }
});
