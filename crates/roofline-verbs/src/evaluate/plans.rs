//! Plans that are tried: the model quantized into a folder that is removed again, and held against itself.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
};

use roofline_core::Plan;
use roofline_quant::{Layout, Method, Request as Order, quantize::quantize};

use super::{
    Evaluated, Request,
    models::{Models, Run, Subject},
};
use crate::{
    Context, Error, Result,
    quantize::Watched,
    running::{Executor, Opened},
};

/// What is tried: every plan with every method.
pub(super) fn asked(request: &Request) -> Result<Vec<(Plan, Method)>> {
    let mut plans = Vec::new();
    for text in &request.plan {
        plans.extend(Plan::list(text)?);
    }
    let methods = request.method.iter().map(|name| name.parse::<Method>()).collect::<Result<Vec<_>, _>>()?;
    let methods = if methods.is_empty() { vec![Method::Rtn] } else { methods };
    Ok(plans.iter().flat_map(|plan| methods.iter().map(|method| (plan.clone(), *method))).collect())
}

/// Each of them. A pair that cannot be is said and left out, unless nothing is left.
pub(super) fn run(
    context: &Context,
    request: &Request,
    executor: &Executor,
    models: &Models,
    subject: &Subject,
    pairs: &[(Plan, Method)],
) -> Result<Vec<Run>> {
    let (mut runs, mut refused) = (Vec::new(), None);
    for (at, (plan, method)) in pairs.iter().enumerate() {
        let scratch = Scratch::new(at)?;
        match one(context, request, executor, models, subject, (plan, *method), &scratch) {
            Ok(run) => runs.push(run),
            Err(Error::Cancelled) => return Err(Error::Cancelled),
            Err(error) if error.is_input() => {
                context.warn(format!("left out {} by {method}: {error}", plan.label()));
                refused = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    match refused {
        Some(error) if runs.is_empty() => Err(error),
        _ => Ok(runs),
    }
}

fn one(
    context: &Context,
    request: &Request,
    executor: &Executor,
    models: &Models,
    subject: &Subject,
    (plan, method): (&Plan, Method),
    scratch: &Scratch,
) -> Result<Run> {
    let original = &models.model;
    let layout = Layout::of_plan(plan);
    let target = scratch.0.join(if layout == Layout::Gguf { "model.gguf" } else { "model" });
    let order =
        Order { method, threads: request.numbers.threads()?, ..Order::new(plan.clone(), layout, target.clone()) };
    let watcher = context.watcher();
    let done = quantize(&original.checkpoint, &order, &Watched(watcher));
    watcher.ends();
    done?;
    let quantized = Opened::open(context, &target)?;
    let both = (&quantized, Some(original));
    let mut run = subject.run(context, request, executor, both, &models.tokenizer, Some((plan, method)))?;
    run.own = Evaluated {
        model: original.model.name.clone(),
        checkpoint: None,
        layout: Some(layout.name().to_owned()),
        stored: Some(true),
        ..run.own
    };
    Ok(run)
}

/// A folder for one checkpoint, removed with all that is in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(at: usize) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("roofline-evaluate-{}-{at}", process::id()));
        fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Path::new(&self.0));
    }
}
