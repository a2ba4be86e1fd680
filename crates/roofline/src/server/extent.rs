//! How much a request asks for.

use roofline_core::Dim;
use roofline_verbs::{
    analyze, compare, devices, formats, measure, models, plot, precisions, predict, recommend,
    request::{Range, Setting},
    sweep, tiling,
};

use super::{
    limits::{RESULTS, STEPS},
    refusal::Refusal,
};

/// Results that are made between two requests.
const FEW: usize = 32;

/// The size of an answer.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    /// Results at most, where lists multiply.
    results: usize,
    /// Decode steps that are summed one by one for each of them.
    steps: u64,
}

impl Extent {
    const ONE: Self = Self { results: 1, steps: 0 };

    fn of(setting: &Setting) -> Self {
        let plans = setting.precision.iter().map(|text| text.split(',').count()).sum::<usize>();
        Self { results: setting.on.len().max(1).saturating_mul(plans.max(1)), steps: 0 }
    }

    fn of_pass(asked: &predict::ModelPass) -> Self {
        let extent = Self::of(&asked.setting);
        extent.times(asked.lowering.tp.len()).generating(asked.generate.map_or(0, Dim::get))
    }

    fn names(count: usize) -> Self {
        Self { results: count, steps: 0 }
    }

    fn times(self, count: usize) -> Self {
        Self { results: self.results.saturating_mul(count), ..self }
    }

    fn over(self, ranges: [&Range; 2]) -> Self {
        ranges.iter().fold(self, |extent, range| extent.times(range.len()))
    }

    fn generating(self, steps: u64) -> Self {
        Self { steps, ..self }
    }

    /// Refuses what would take too long.
    pub(super) fn check(self) -> Result<(), Refusal> {
        let Self { results, steps } = self;
        if results > RESULTS {
            let hint = format!("{RESULTS} at most over HTTP; `roofline` on the command line has no limit");
            return Err(Refusal::body(format!("{results} results are asked for"), hint));
        }
        if steps.saturating_mul(results.max(1) as u64) > STEPS {
            let hint = format!("{STEPS} in all at most over HTTP");
            return Err(Refusal::body(format!("{steps} generated tokens for {results} results are asked for"), hint));
        }
        Ok(())
    }
}

/// A request whose answer has a size.
pub(super) trait Bounded {
    fn extent(&self) -> Extent;

    /// Whether an answer takes microseconds: one operator, few precisions and devices, nothing searched.
    fn quick(&self) -> bool {
        false
    }
}

impl Bounded for predict::Request {
    fn extent(&self) -> Extent {
        match self.subject() {
            predict::Subject::Operator(asked) => Extent::of(asked.setting()),
            predict::Subject::Model(asked) => Extent::of_pass(asked),
        }
    }

    fn quick(&self) -> bool {
        matches!(self.subject(), predict::Subject::Operator(_)) && self.extent().results <= FEW
    }
}

impl Bounded for recommend::Request {
    fn extent(&self) -> Extent {
        match self {
            Self::Gemv(_) | Self::Gemm(_) => Extent::ONE,
            Self::Model(asked) => Extent::ONE.generating(asked.generate.map_or(0, Dim::get)),
        }
    }

    fn quick(&self) -> bool {
        !matches!(self, Self::Model(_))
    }
}

impl Bounded for sweep::Request {
    fn extent(&self) -> Extent {
        let extent = Extent::of(&self.setting).times(self.lowering.tp.len());
        if self.models.is_empty() {
            return extent.times(self.shapes.len().max(1));
        }
        let scales = self.scale_bandwidth.len().saturating_mul(self.scale_compute.len());
        extent.times(self.models.len()).times(scales).over([&self.batch, &self.context])
    }
}

impl Bounded for plot::Request {
    fn extent(&self) -> Extent {
        let one = Range::one(1);
        let (batch, context) = (self.batch.as_ref().unwrap_or(&one), self.context.as_ref().unwrap_or(&one));
        Extent::of(&self.setting).times(self.models.len()).times(self.lowering.tp.len()).over([batch, context])
    }
}

impl Bounded for analyze::Request {
    fn extent(&self) -> Extent {
        Extent::of(&self.setting).times(self.lowering.tp.len()).generating(self.generate.get())
    }
}

impl Bounded for tiling::Request {
    fn extent(&self) -> Extent {
        Extent::ONE
    }

    fn quick(&self) -> bool {
        true
    }
}

impl Bounded for models::Request {
    fn extent(&self) -> Extent {
        Extent::names(self.names.len())
    }
}

impl Bounded for formats::Request {
    fn extent(&self) -> Extent {
        Extent::names(self.names.len())
    }
}

impl Bounded for devices::Request {
    fn extent(&self) -> Extent {
        Extent::names(self.names.len())
    }
}

impl Bounded for precisions::Request {
    fn extent(&self) -> Extent {
        Extent::ONE
    }
}

impl Bounded for measure::Request {
    fn extent(&self) -> Extent {
        let Some(subject) = &self.subject else { return Extent::names(self.precision.len()) };
        match subject {
            measure::Subject::Model(asked) => Extent::of_pass(asked),
            subject => subject.setting().map_or(Extent::ONE, Extent::of),
        }
    }
}

impl Bounded for compare::Request {
    fn extent(&self) -> Extent {
        self.setting().map_or(Extent::ONE, Extent::of)
    }
}
