//! A job whose errors are weighed by an importance matrix.

use roofline_core::Role;

use super::{Imatrix, OF_ANOTHER_MODEL};
use crate::{
    Error, QuantizeJob, Result,
    coding::Matrix,
    family::numbered,
    gguf::{
        family::Conversion,
        model::{Names, Target},
    },
    job::{Code, Item, Work},
    origin::Origin,
};

/// A matrix that loses by being coded, and that data say something of: embeddings multiply nothing, and what makes the output is not
/// looked at.
fn weighable<'i, 'a>(item: &'i Item<'a>) -> Option<&'i Code<'a>> {
    match &item.work {
        Work::Code(code) if code.lossy && !matches!(item.site.role, Role::Embedding | Role::Head) => Some(code),
        _ => None,
    }
}

/// How much the inputs of a matrix of the checkpoint matter, or of one expert of a stack, by its name there.
pub(crate) fn importance_of(
    imatrix: &Imatrix,
    names: &Names,
    name: &str,
    columns: usize,
    expert: Option<usize>,
) -> Result<Option<Vec<f32>>> {
    let Some(target) = target(names, name) else { return Ok(None) };
    match expert.or(target.expert) {
        Some(expert) => imatrix.importance_of_expert(&target.name, columns, expert, names.experts),
        None => imatrix.importance(&target.name, columns, 1),
    }
}

/// What llama.cpp calls a matrix of the checkpoint; nothing where it has no name for it, or takes it apart by head.
fn target(names: &Names, name: &str) -> Option<Target> {
    let whole = |target: &Target| !matches!(target.conversion, Conversion::LatentKey | Conversion::LatentValue);
    if let Ok(found) = names.tensor(name) {
        return found.into_iter().next().filter(whole);
    }
    // An expert that is written by itself, of a stack in the checkpoint.
    let (before, expert, part) = numbered(name)?;
    let stacks =
        ["gate_up_proj", "down_proj"].map(|stack| names.tensor(&format!("{before}.{stack}")).unwrap_or_default());
    let called = format!(".ffn_{}_exps.", part.strip_suffix("_proj")?);
    let stack = stacks.into_iter().flatten().find(|target| target.name.contains(&called))?;
    (expert < names.experts).then_some(Target { expert: Some(expert), ..stack })
}

/// Weighs the matrices of a job, by the matrices of the source that they are made of.
pub(crate) fn weigh(job: &mut QuantizeJob<'_>, imatrix: &Imatrix, names: &Names) -> Result<()> {
    for item in &mut job.items {
        let Some(Matrix { columns, .. }) = weighable(item).map(Code::matrix) else { continue };
        let origins = item.origins();
        let each = origins.iter().map(|origin| importance_of(imatrix, names, &origin.tensor, columns, origin.expert));
        let each = each.collect::<Result<Vec<_>>>()?;
        if let Work::Code(code) = &mut item.work {
            code.importance = together(&origins, each, columns);
        }
    }
    Ok(())
}

/// What is known of matrices that are written as one: once where all of them read the same, else one below the other. Nothing where
/// that would not tell whose it is, or none is known.
fn together(origins: &[Origin], each: Vec<Option<Vec<f32>>>, columns: usize) -> Option<Vec<f32>> {
    let first = each.iter().flatten().next()?;
    if each.iter().all(|own| own.as_ref() == Some(first)) {
        return Some(first.clone());
    }
    let alike = origins.iter().all(|origin| origin.rows.len() == origins[0].rows.len());
    let known = |own: Option<Vec<f32>>| own.unwrap_or_else(|| vec![1.0; columns]);
    alike.then(|| each.into_iter().flat_map(known).collect())
}

/// Refuses an importance matrix that speaks of nothing in the job; says what it does not speak of.
pub(crate) fn check(imatrix: &Imatrix, job: &mut QuantizeJob<'_>) -> Result<()> {
    job.notes.extend(imatrix.unreached());
    let all: Vec<(&Item<'_>, &Code<'_>)> =
        job.items.iter().filter_map(|item| weighable(item).map(|code| (item, code))).collect();
    let silent: Vec<&Item<'_>> =
        all.iter().filter(|(_, code)| code.importance.is_none()).map(|(item, _)| *item).collect();
    let Some(first) = silent.first() else { return Ok(()) };
    if silent.len() == all.len() {
        return Err(Error::unsupported(
            format!("the importance matrix speaks of none of the {} matrices that are quantized", all.len()),
            OF_ANOTHER_MODEL,
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
