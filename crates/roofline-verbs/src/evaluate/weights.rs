//! What each weight lost: both files decoded, number by number.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use roofline_quant::{
    Checkpoint, ErrorStats,
    rows::{Rows, Spare},
    site::Site,
    stored::StoredTensor,
};

use super::figures::WeightError;
use crate::{Context, Error, Result};

/// Numbers that are decoded at once.
const BLOCK: usize = 1 << 20;

/// The matrices that both checkpoints have in one shape, in the order of names; and how many of the model's the original
/// lacks.
pub(super) fn errors(
    context: &Context,
    model: &Checkpoint,
    original: &Checkpoint,
    threads: usize,
) -> Result<(Vec<WeightError>, usize)> {
    let mut originals: BTreeMap<String, StoredTensor<'_>> =
        StoredTensor::all(original)?.into_iter().map(|stored| (stored.name.clone(), stored)).collect();
    let matrices = StoredTensor::all(model)?.into_iter().filter(|stored| stored.shape.len() == 2);
    let (mut pairs, mut lacking) = (Vec::new(), 0);
    for stored in matrices {
        match originals.remove(&stored.name).filter(|other| other.shape == stored.shape) {
            Some(other) => {
                let site = Site::of(&stored.name, 2);
                let told = WeightError {
                    role: site.role.name(),
                    layer: site.layer,
                    format: stored.format().to_owned(),
                    bits_per_weight: stored.bytes() as f64 * 8.0 / stored.elements().max(1) as f64,
                    relative_error: 0.0,
                    snr_db: None,
                    name: stored.name.clone(),
                };
                pairs.push((told, stored.into_rows()?, other.into_rows()?));
            }
            None => lacking += 1,
        }
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(pairs.len()));
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some((told, own, other)) = pairs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let stats =
                        if context.watcher().cancelled() { Err(Error::Cancelled) } else { difference(own, other) };
                    let told = stats.map(|stats| WeightError {
                        relative_error: stats.relative_error(),
                        snr_db: stats.snr(),
                        ..told.clone()
                    });
                    done.lock().unwrap_or_else(PoisonError::into_inner).push(told);
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut all = done.into_iter().collect::<Result<Vec<_>>>()?;
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok((all, lacking))
}

fn difference(own: &dyn Rows, original: &dyn Rows) -> Result<ErrorStats> {
    let matrix = own.matrix();
    let unit = own.unit().max(original.unit()).max(1);
    let step = (BLOCK / matrix.columns.max(1)).max(1).next_multiple_of(unit);
    let (mut spare, mut decoded, mut values) = (Spare::default(), Vec::new(), Vec::new());
    let mut sum = ErrorStats::default();
    for start in (0..matrix.rows).step_by(step) {
        let rows = start..(start + step).min(matrix.rows);
        decoded.resize(rows.len() * matrix.columns, 0.0);
        values.resize(rows.len() * matrix.columns, 0.0);
        own.read(rows.clone(), &mut spare, &mut decoded)?;
        original.read(rows, &mut spare, &mut values)?;
        sum += ErrorStats::of(&values, &decoded, 0);
    }
    Ok(sum)
}
