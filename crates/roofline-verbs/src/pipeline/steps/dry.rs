//! What would be done: every step with what it would do, how large that gets and how long it takes.

use roofline_core::Device;

use super::{
    super::{
        Answer,
        asked::target,
        predicting,
        recommending::Chosen,
        told::{Expected, PredictedPlace, StepName, StepState},
    },
    NO_TEXT, Work,
};
use crate::{
    Result,
    text::{number, size},
    this_machine::This,
};

/// Prompts that are timed, with the one before that is not.
const PROMPTS: f64 = 6.0;

impl Work<'_, '_> {
    /// Says it, and leaves nothing behind.
    pub(super) fn planned(mut self, chosen: &Chosen, seconds: f64) -> Result<Answer> {
        let told = &chosen.told;
        self.say(StepName::Recommend, StepState::Done, Some(seconds), told.precision.clone());
        if let Some(device) = self.known()? {
            self.here = Some((device.label(), device.name));
        }
        let here = self.here()?;
        match &chosen.preview {
            None if told.keeps_original => self.skip(StepName::Quantize),
            None => self.say(StepName::Quantize, StepState::Planned, None, format!("write {}", told.precision)),
            Some(preview) => {
                let target = target(&self.folder, &preview.plan);
                let free =
                    preview.room.free.map(|free| format!(" of {} that are free", size(free))).unwrap_or_default();
                let words = format!(
                    "write {} as {}: {} instead of {}, {} bits per quantized weight, into {}{free}",
                    preview.plan,
                    preview.layout,
                    size(preview.bytes_after),
                    size(preview.bytes_before),
                    number(preview.bits_per_weight),
                    target.display()
                );
                self.say(StepName::Quantize, StepState::Planned, Some(preview.time.estimated_seconds), words);
            }
        }
        let before = here.as_ref().map(|here| &here.before);
        self.measured(StepName::MeasureBefore, before);
        if told.keeps_original {
            self.skip(StepName::MeasureAfter);
        } else {
            self.measured(StepName::MeasureAfter, here.as_ref().and_then(|here| here.after.as_ref()));
        }
        self.evaluated();
        let report = format!("the verdict, and the page in {}", self.folder.display());
        self.say(StepName::Compare, StepState::Planned, None, report);
        self.state.found.predicted.here = here;
        Ok(self.answer())
    }

    /// What runs here: a GPU has a data sheet, a processor is known where it was ever measured. Nothing is measured for the
    /// sake of a plan.
    fn known(&self) -> Result<Option<Device>> {
        if self.asked.executor.is_gpu() {
            return self.asked.executor.device(self.context).map(Some);
        }
        This::kept(self.context).map(|this| this.device()).transpose()
    }

    /// What theory says of this machine, where it is known.
    fn here(&mut self) -> Result<Option<PredictedPlace>> {
        let Some(told) = self.state.found.recommendation.clone().filter(|_| self.here.is_some()) else {
            return Ok(None);
        };
        if self.asked.is_here() {
            return Ok(self.state.found.predicted.on.clone());
        }
        let here = match self.known()? {
            Some(device) if self.asked.executor.is_gpu() => device.key,
            _ => "this".to_owned(),
        };
        predicting::predict(self.context, &self.asked, &here, &told.precision, &mut self.notes).map(Some)
    }

    fn skip(&mut self, name: StepName) {
        self.say(name, StepState::Skipped, None, "the original stays as it is".to_owned());
    }

    fn measured(&mut self, name: StepName, expected: Option<&Expected>) {
        let what = format!("a prompt of {} tokens and {} more", self.asked.prompt, self.asked.generate);
        let words = match expected {
            None => what,
            Some(told) => {
                let token = told.tpot_us.map(|time| format!(", {} ms for each further token", number(time / 1e3)));
                let first = number(told.ttft_us / 1e3);
                let memory = size(told.memory_bytes);
                format!("{what}: {first} ms to the first{}, {memory} by theory", token.unwrap_or_default())
            }
        };
        let seconds = expected.map(|told| {
            let steps = told.tpot_us.unwrap_or_default() * self.asked.generate as f64;
            (PROMPTS * told.ttft_us + steps) / 1e6
        });
        self.say(name, StepState::Planned, seconds, words);
    }

    fn evaluated(&mut self) {
        match self.asked.text.clone() {
            None => self.say(StepName::Evaluate, StepState::Skipped, None, NO_TEXT.to_owned()),
            Some(text) => {
                let words = format!("perplexity, KL divergence and agreement on {}", text.path(&self.folder).display());
                self.say(StepName::Evaluate, StepState::Planned, None, words);
            }
        }
    }
}
