//! Models that run, step by step beside theory.

use roofline_core::compare::compare as compared;

use super::{Answer, Request, calibration};
use crate::{
    Context, Result, machine,
    measure::run_passes,
    predict::ModelPass,
    request::{BackendName, Measuring},
    this_machine,
};

/// Runs whole passes of a model, then compares the steps of them.
pub(super) fn whole(context: &Context, request: &Request, asked: &ModelPass) -> Result<Answer> {
    // Models run on the processor, whatever else there is.
    let run = Measuring { backend: Some(BackendName::Cpu), ..request.run.clone() };
    let calibration = calibration(context, &Request { run, ..request.clone() }, None)?;
    let machine = machine::machine(context, this_machine::device(context)?, BackendName::Cpu.stack());
    let machine = machine.calibrated(calibration);
    let outcome = run_passes(context, &request.passes, asked, &request.run, &machine)?;
    let comparison = compared(&outcome.observations, &machine, request.tier())?;
    let mut answer = Answer::new(outcome.words, &machine, comparison);
    answer.backend = Some(BackendName::Cpu);
    answer.whole = outcome.passes;
    answer.stopped = outcome.stopped;
    answer.run.clone_from(&request.run.out);
    answer.report.clone_from(&request.report);
    answer.made_of = this_machine::facts(context)?;
    let environment = roofline_run::Environment::of(this_machine::machine().clone());
    answer.environment = serde_json::to_value(environment).unwrap_or_default();
    Ok(answer)
}
