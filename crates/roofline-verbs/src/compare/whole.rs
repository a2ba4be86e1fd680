//! Models that run, step by step beside theory.

use roofline_core::compare::compare as compared;

use super::{Answer, Request, calibration};
use crate::{
    Context, Result, measure::run_passes, predict::ModelPass, request::Measuring, running::Executor, this_machine,
};

/// Runs whole passes of a model, then compares the steps of them.
pub(super) fn whole(context: &Context, request: &Request, asked: &ModelPass) -> Result<Answer> {
    let executor = Executor::open(context, request.run.backend(), request.run.gpu)?;
    // The power that is asked about is that of the passes.
    let run = Measuring { energy: false, ..request.run.clone() };
    let calibration = calibration(context, &Request { run, ..request.clone() }, None)?;
    let machine = executor.machine(context)?.calibrated(calibration);
    let outcome = run_passes(context, &request.passes, asked, &request.run, &executor, &machine)?;
    let comparison = compared(&outcome.observations, &machine, request.tier())?;
    let mut answer = Answer::new(outcome.words, &machine, comparison);
    answer.backend = Some(executor.name);
    answer.whole = outcome.passes;
    answer.stopped = outcome.stopped;
    answer.broken = outcome.broken;
    answer.run.clone_from(&request.run.out);
    answer.report.clone_from(&request.report);
    answer.made_of = executor.facts(context)?;
    let mut environment = roofline_run::Environment::of(this_machine::machine().clone());
    environment.accelerator = executor.accelerator();
    answer.environment = serde_json::to_value(environment).unwrap_or_default();
    Ok(answer)
}
