//! A whole request: the prompt, then token after token, each at its own context.

use crate::{
    Error, Machine, Model, Result,
    machine::Basis,
    model::{Lowering, Workload},
    plan::Assignment,
    predict::{Prediction, forecast},
};

/// What is asked of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Requests side by side.
    pub batch: u64,
    /// Tokens of each prompt.
    pub prompt: u64,
    /// Tokens to generate for each.
    pub generate: u64,
}

impl Request {
    /// Steps are summed one by one, a million in about a second; no model's context is longer.
    const MAX_GENERATE: u64 = 1_000_000;

    /// Refuses more tokens than anybody waits for.
    pub fn check(&self) -> Result<()> {
        if self.generate <= Self::MAX_GENERATE {
            return Ok(());
        }
        Err(Error::Shape(format!("{} generated tokens are more than {}", self.generate, Self::MAX_GENERATE)))
    }
}

/// How long it takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timeline {
    /// The prompts, all of them, which end with the first tokens.
    pub prefill: Prediction,
    /// One prompt of a batch alone: what its first token waits for.
    pub first: Prediction,
    /// The other tokens; none where one was asked for.
    pub decode: Option<Prediction>,
    /// The weakest basis of a kernel.
    pub basis: Basis,
}

impl Timeline {
    /// The whole request.
    pub fn total(&self) -> Prediction {
        self.decode.map_or(self.prefill, |decode| self.prefill.then(decode))
    }
}

/// Sums the prompt's pass and every decode step: the first token comes with the prompt, and step `i` of the others sees
/// `prompt + i` keys.
pub fn timeline(
    model: &Model,
    request: Request,
    lowering: Lowering,
    plan: &Assignment,
    machine: &Machine,
) -> Result<Timeline> {
    request.check()?;
    let mut basis = Basis::Calibrated;
    let mut pass = |workload| {
        let forecast = forecast(&model.graph(workload, lowering)?, plan, machine)?;
        basis = basis.max(forecast.basis);
        Ok::<_, Error>(forecast.total)
    };
    let prefill = pass(Workload::prefill(request.batch, request.prompt)?)?;
    let first = if request.batch == 1 { prefill } else { pass(Workload::prefill(1, request.prompt)?)? };
    let mut decode: Option<Prediction> = None;
    for step in 1..request.generate {
        let next = pass(Workload::decode(request.batch, request.prompt.saturating_add(step))?)?;
        decode = Some(decode.map_or(next, |sum| sum.then(next)));
    }
    Ok(Timeline { prefill, first, decode, basis })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Plan, Registry, machine::Stack};

    #[test]
    fn every_step_counts_at_its_own_context() {
        let machine = Machine::new(Registry::builtin().find("h200").unwrap().into_owned(), Stack::Roofline);
        let model = Model::find("llama-3-8b").unwrap();
        let plan = "bf16".parse::<Plan>().unwrap().on(&machine.device, Some(&model.anatomy)).unwrap();
        let run = |generate| {
            let request = Request { batch: 2, prompt: 512, generate };
            timeline(&model, request, Lowering::default(), &plan, &machine).unwrap()
        };
        assert!(run(1).decode.is_none());
        // 99 steps read the weights 99 times, and the cache at 513 to 611 tokens: 131,072 bytes each, for two sequences.
        let (decode, step) = (run(100).decode.unwrap().ideal, run(2).decode.unwrap().ideal);
        let growth = 2.0 * 131_072.0 * (0..99).sum::<u64>() as f64;
        let expected = 99.0 * step.work.bytes().value() + growth;
        assert!((decode.work.bytes().value() / expected - 1.0).abs() < 1e-12);
        let whole = run(100);
        assert_eq!(whole.total().expected.time, whole.prefill.expected.time + whole.decode.unwrap().expected.time);
        // Nobody waits for the other's prompt: of two side by side each could be read first.
        assert!(whole.first.expected.time.micros() < whole.prefill.expected.time.micros());
    }
}
