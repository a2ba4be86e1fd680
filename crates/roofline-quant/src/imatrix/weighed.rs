//! A job whose errors are weighed by an importance matrix.

use roofline_core::Role;

use super::Imatrix;
use crate::{
    Error, QuantizeJob, Result,
    coding::Matrix,
    gguf::model::Names,
    job::{Code, Item, Work},
};

/// A matrix that loses by being coded, and that data say something of: embeddings multiply nothing, and what makes the output is not
/// looked at.
fn weighable<'i, 'a>(item: &'i Item<'a>) -> Option<&'i Code<'a>> {
    match &item.work {
        Work::Code(code) if code.lossy && !matches!(item.site.role, Role::Embedding | Role::Head) => Some(code),
        _ => None,
    }
}

/// How much the inputs of a matrix of the checkpoint matter, by its name there.
pub(crate) fn importance_of(imatrix: &Imatrix, names: &Names, name: &str, matrix: Matrix) -> Result<Option<Vec<f32>>> {
    let targets = names.tensor(name)?;
    let Some(target) = targets.first() else { return Ok(None) };
    match target.expert {
        Some(expert) => imatrix.importance_of_expert(&target.name, matrix, expert, names.experts),
        None => imatrix.importance(&target.name, matrix),
    }
}

/// Weighs the matrices of a job that is written in the names of Hugging Face's.
pub(crate) fn weigh(job: &mut QuantizeJob<'_>, imatrix: &Imatrix, names: &Names) -> Result<()> {
    for item in &mut job.items {
        let Some(matrix) = weighable(item).map(Code::matrix) else { continue };
        let importance = importance_of(imatrix, names, &item.name, matrix)?;
        if let Work::Code(code) = &mut item.work {
            code.importance = importance;
        }
    }
    Ok(())
}

/// Refuses an importance matrix that speaks of nothing in the job; says what it does not speak of.
pub(crate) fn check(job: &mut QuantizeJob<'_>) -> Result<()> {
    let all: Vec<(&Item<'_>, &Code<'_>)> =
        job.items.iter().filter_map(|item| weighable(item).map(|code| (item, code))).collect();
    let silent: Vec<&Item<'_>> =
        all.iter().filter(|(_, code)| code.importance.is_none()).map(|(item, _)| *item).collect();
    let Some(first) = silent.first() else { return Ok(()) };
    if silent.len() == all.len() {
        return Err(Error::unsupported(
            format!("the importance matrix speaks of none of the {} matrices that are quantized", all.len()),
            "it is of another model: make one of this model with `⟨write_imatrix⟩`",
        ));
    }
    let note = format!(
        "the importance matrix says nothing of {} of {} matrices, `{}` the first: their errors count alike",
        silent.len(),
        all.len(),
        first.name
    );
    job.notes.push(note);
    Ok(())
}
