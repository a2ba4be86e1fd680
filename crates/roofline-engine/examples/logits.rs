//! Logits of every token of a text, as FP32 numbers to standard output: `logits CHECKPOINT fp32|bf16|fp16 TOKEN...`.

use std::{error::Error, io::Write, path::Path};

use roofline_core::Format;
use roofline_engine::{Engine, Settings, Wanted};
use roofline_quant::Checkpoint;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, values, tokens @ ..] = &arguments[..] else {
        return Err("usage: logits CHECKPOINT fp32|bf16|fp16 TOKEN...".into());
    };
    let tokens = tokens.iter().map(|token| token.parse()).collect::<Result<Vec<u32>, _>>()?;
    let checkpoint = Checkpoint::open(Path::new(path))?;
    let settings = Settings { all_logits: true, ..Settings::with(values.parse::<Format>()?) };
    let engine = Engine::load(&checkpoint, settings, &mut |_, _| Ok(()))?;
    for (scheme, bytes) in engine.schemes() {
        eprintln!("{bytes} bytes as {scheme}");
    }
    let logits = engine.session(1, tokens.len())?.feed(0..1, &[tokens], Wanted::All)?;
    let bytes: Vec<u8> = logits.iter().flat_map(|one| one.to_le_bytes()).collect();
    Ok(std::io::stdout().write_all(&bytes)?)
}
