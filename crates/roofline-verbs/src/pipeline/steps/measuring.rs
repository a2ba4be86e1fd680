//! How fast each of the two runs here: the passes of `measure model`.

use roofline_core::{Dim, Format, Plan};

use super::{
    super::{
        predicting,
        told::{Side, Speed},
    },
    Work,
};
use crate::{
    Error, Result,
    measure::{Passes, run_passes},
    predict::ModelPass,
    request::{Measuring, ModelName, Range, Setting},
    running::{CacheFormat, Numbers},
    text::number,
    this_machine,
};

impl Work<'_, '_> {
    /// Measures the original, or what was written.
    pub(super) fn measure(&mut self, new: bool) -> Result<String> {
        let executor = &self.asked.executor;
        let machine = executor.machine(self.context)?;
        let here = (machine.device.label(), machine.device.name.clone());
        self.state.found.measured_on = Some(here.clone());
        let cache = this_machine::machine().last_level_cache().filter(|_| !executor.is_gpu());
        self.state.found.processor_cache_bytes = cache.map(|bytes| bytes.value() as u64);
        self.here = Some(here);
        let path = if new {
            let made = self.state.found.quantized.as_ref().map(|made| made.checkpoint.clone());
            made.ok_or_else(|| Error::request("nothing was written", ""))?
        } else {
            self.asked.path.clone()
        };
        let asked = ModelPass {
            model: ModelName::Name(path.to_string_lossy().into_owned()),
            generate: Some(Dim::new("generate", self.asked.generate)?),
            ..predicting::pass(&self.asked, Setting::default())?
        };
        // Elsewhere they are those of the quantizer.
        let threads = self.asked.request.threads.filter(|_| !executor.is_gpu());
        let passes = Passes {
            prompt: Some(Range(vec![self.asked.prompt])),
            numbers: Numbers { kv: self.cache(new), threads, ..Numbers::default() },
            ..Passes::default()
        };
        let run = Measuring { quick: self.asked.request.quick, ..Measuring::default() };
        let outcome = run_passes(self.context, &passes, &asked, &run, executor, &machine)?;
        // Half of a measurement is none: it is made again.
        let pass = outcome.passes.into_iter().next().filter(|_| !outcome.stopped).ok_or(Error::Cancelled)?;
        let speed = Speed::from(pass);
        let words = format!(
            "first token after {} ms, then {} tokens/s",
            number(speed.ttft_us / 1e3),
            speed.tokens_per_s.map_or_else(|| "no".to_owned(), number)
        );
        let side = Some(Side { checkpoint: path, speed, quality: None });
        if new {
            self.state.found.after = side;
        } else {
            self.state.found.before = side;
        }
        Ok(words)
    }

    /// The cache that the plan asks for, which is no part of a checkpoint.
    pub(super) fn cache(&self, new: bool) -> Option<CacheFormat> {
        let told = self.state.found.recommendation.as_ref().filter(|_| new)?;
        let kv = told.precision.parse::<Plan>().ok()?.kv()?;
        let known = [
            (Format::FP8, CacheFormat::Fp8),
            (Format::INT8, CacheFormat::Int8),
            (Format::BF16, CacheFormat::Bf16),
            (Format::FP16, CacheFormat::Fp16),
            (Format::FP32, CacheFormat::Fp32),
        ];
        let found = known.into_iter().find(|(format, _)| *format == kv).map(|(_, cache)| cache);
        if found.is_none() {
            self.context.warn(format!("a cache in {kv} cannot run here: it is measured with 16 bit"));
        }
        found
    }
}
