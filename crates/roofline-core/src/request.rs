//! A whole request: the prompt, then token after token, each at its own context.

use crate::{
    Device, Error, Model, Plan, Result,
    format::Sizes,
    model::{Lowering, Workload},
    predict::{Estimate, predict},
    units::Seconds,
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
    /// The prompt, which ends with the first token.
    pub prefill: Estimate,
    /// The other tokens; none where one was asked for.
    pub decode: Option<Estimate>,
}

impl Timeline {
    /// The whole request.
    pub fn total(&self) -> Seconds {
        self.prefill.time() + self.decode.map_or(Seconds::ZERO, |decode| decode.time())
    }
}

/// Sums the prompt's pass and every decode step: the first token comes with the prompt, and step `i` of the others sees
/// `prompt + i` keys.
pub fn timeline(
    model: &Model,
    request: Request,
    lowering: Lowering,
    plan: &Plan,
    sizes: Sizes,
    device: &Device,
) -> Result<Timeline> {
    request.check()?;
    let pass = |workload| Ok(predict(&model.graph(workload, lowering)?, plan, sizes, device)?.total);
    let prefill = pass(Workload::prefill(request.batch, request.prompt)?)?;
    let mut decode: Option<Estimate> = None;
    for step in 1..request.generate {
        let estimate = pass(Workload::decode(request.batch, request.prompt.saturating_add(step))?)?;
        decode = Some(decode.map_or(estimate, |sum| sum.then(estimate)));
    }
    Ok(Timeline { prefill, decode })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Registry, precision::PrecisionSpec};

    #[test]
    fn every_step_counts_at_its_own_context() {
        let h200 = Registry::builtin().find("h200").unwrap().into_owned();
        let model = Model::find("llama-3-8b").unwrap();
        let plan = Plan::model(&"bf16".parse::<PrecisionSpec>().unwrap(), &h200).unwrap();
        let run = |generate| {
            let request = Request { batch: 2, prompt: 512, generate };
            timeline(&model, request, Lowering::default(), &plan, Sizes::Exact, &h200).unwrap()
        };
        assert!(run(1).decode.is_none());
        // 99 steps read the weights 99 times, and the cache at 513 to 611 tokens: 131,072 bytes each, for two sequences.
        let decode = run(100).decode.unwrap();
        let step = run(2).decode.unwrap();
        let growth = 2.0 * 131_072.0 * (0..99).sum::<u64>() as f64;
        let expected = 99.0 * step.work.bytes().value() + growth;
        assert!((decode.work.bytes().value() / expected - 1.0).abs() < 1e-12);
        assert_eq!(run(100).total(), run(100).prefill.time() + decode.time());
    }
}
