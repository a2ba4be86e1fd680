//! `roofline generate`.

use roofline_core::units::Bytes;
use roofline_verbs::{
    Context,
    generate::{Answer, End, Request, generate},
    request::BackendName,
};

use crate::{
    failure::Failure,
    report::{Format, Report, Section, Shown, csv, emit, number, print, style},
};

pub(crate) fn run(context: &Context, request: &Request, form: Format) -> Result<(), Failure> {
    let answer = generate(context, request)?;
    match form {
        // The text is there already; what is missing is the end of its last line.
        Format::Text => {
            print("\n")?;
            style::talk("note", &summary(&answer));
        }
        Format::Csv => {
            let (names, cells) = csv::row(&answer);
            print(&(names + &cells))?;
        }
        Format::Json | Format::Markdown => emit(&Shown::all(&answer), form)?,
    }
    if answer.end == End::Stopped { Err(Failure::Interrupted) } else { Ok(()) }
}

/// How fast, in a line.
fn summary(told: &Answer) -> String {
    let Answer { prompt_tokens, generated_tokens, format, .. } = told;
    let mut parts = vec![format!("{prompt_tokens} tokens in, {generated_tokens} out ({})", ending(told.end))];
    parts.extend(told.tokens_per_s.map(|rate| format!("{} tokens/s", number(rate))));
    parts.extend(told.ttft_us.map(|time| format!("the first after {} ms", number(time / 1e3))));
    parts.extend(told.prefill_tokens_per_s.map(|rate| format!("prompt at {} tokens/s", number(rate))));
    parts.push(format!("weights {format}, {}", told.weights_bytes));
    parts.extend(told.peak_memory_bytes.map(|peak| format!("{peak} at most in memory")));
    parts.join("; ")
}

fn ending(end: End) -> &'static str {
    match end {
        End::Length => "as many as asked for",
        End::EndOfText => "ended by the model",
        End::Stopped => "stopped",
    }
}

impl Report for Shown<'_, Answer> {
    const ROWS: &'static str = "tokens";

    fn sections(&self) -> Vec<Section> {
        let optional = |value: Option<f64>, unit: &str| value.map(|value| format!("{} {unit}", number(value)));
        let facts = [
            (
                "tokens",
                Some(format!("{} in, {} out ({})", self.prompt_tokens, self.generated_tokens, ending(self.end))),
            ),
            ("ran on", Some(if self.backend == BackendName::Cuda { "the GPU" } else { "the processor" }.to_owned())),
            ("time to first token", optional(self.ttft_us.map(|time| time / 1e3), "ms")),
            ("time per token", optional(self.tpot_us.map(|time| time / 1e3), "ms")),
            ("95 % of them below", optional(self.tpot_p95_us.map(|time| time / 1e3), "ms")),
            ("speed", optional(self.tokens_per_s, "tokens/s")),
            ("speed of the prompt", optional(self.prefill_tokens_per_s, "tokens/s")),
            ("weights", Some(format!("{}, {}", self.format, self.weights_bytes))),
            ("cache", Some(format!("{}, {}", self.kv, self.cache_bytes))),
            ("peak memory", self.peak_memory_bytes.map(|peak: Bytes| peak.to_string())),
            ("loaded in", optional(Some(self.load_s), "s")),
        ];
        let facts = facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        let text =
            self.text.clone().unwrap_or_else(|| self.tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
        vec![Section::Heading(self.model.clone()), Section::Paragraph(text), Section::Facts(facts)]
    }
}
