//! An importance matrix of a text that runs through a model.

use super::{Entry, Imatrix};
use crate::{
    Error, Result,
    gguf::model::{Names, Target},
    observed::{Observed, Pass, Replaced, Seen},
    site::Site,
};

/// Sums the squares of what the samples bring to the products of every layer, as `llama-imatrix` does: in the order of the tokens, in
/// FP32, all of them. `layer` hears of every layer that is done.
pub fn collect(
    observed: &mut dyn Observed,
    names: &Names,
    dataset: &str,
    layer: &mut dyn FnMut(usize, usize),
) -> Result<Imatrix> {
    let samples = observed.samples();
    let mut all = Imatrix {
        datasets: vec![dataset.to_owned()],
        chunks: u32::try_from(samples.len()).unwrap_or(u32::MAX),
        chunk_size: samples.iter().max().and_then(|longest| u32::try_from(*longest).ok()).unwrap_or(0),
        ..Imatrix::default()
    };
    let layers = observed.layers();
    for at in 0..layers {
        let pass = Pass { layer: at, replaced: &Replaced::new(), moves_on: true };
        observed.run(pass, &mut |seen| all.add(names, seen))?;
        layer(at + 1, layers);
    }
    let unsound = all.entries.iter().find(|(_, entry)| entry.check().is_err());
    match unsound {
        None => Ok(all),
        Some((name, _)) => Err(Error::Model {
            reason: format!("`{name}` was given what is no finite number"),
            hint: Some("the checkpoint is damaged, or the text breaks it".to_owned()),
        }),
    }
}

impl Imatrix {
    fn add(&mut self, names: &Names, seen: Seen<'_>) -> Result<()> {
        for module in seen.modules {
            // Stacks of experts are parameters without a module each.
            let stack = Site::of(module, 3).is_stack();
            let name = if stack { module.clone() } else { format!("{module}.weight") };
            for target in names.tensor(&name)?.into_iter().filter(|target| target.name.ends_with(".weight")) {
                self.add_to(&target, names.experts, seen);
            }
        }
        Ok(())
    }

    fn add_to(&mut self, target: &Target, experts: usize, seen: Seen<'_>) {
        let expert = target.expert.or(seen.expert);
        let rows = if expert.is_some() { experts.max(1) } else { 1 };
        let entry = self.entries.entry(target.name.clone()).or_default();
        if entry.counts.is_empty() {
            *entry = Entry { sums: vec![0.0; rows * seen.columns], counts: vec![0.0; rows] };
        }
        let row = expert.unwrap_or(0);
        let Some(sums) = entry.sums.get_mut(row * seen.columns..(row + 1) * seen.columns) else { return };
        for values in seen.values.chunks_exact(seen.columns) {
            for (sum, x) in sums.iter_mut().zip(values) {
                *sum += x * x;
            }
        }
        if let Some(count) = entry.counts.get_mut(row) {
            *count += seen.tokens.len() as f32;
        }
    }
}
