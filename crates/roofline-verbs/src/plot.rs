//! Predictions as pictures: kernels under the roofline, time against batch or context, shares of the time.

mod points;

use std::{iter, path::PathBuf};

use clap::{Args, ValueEnum};
use roofline_core::predict::{Forecast, Prediction, Tier};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Context, Error, Note, Result,
    passes::{Field, Line, ModelPoint, lines},
    picture::{Bar, Class, Lines, Memory, Picture, Point, Roofline, Series, Shares, Theme, ceilings},
    predict::tokens,
    request::{self, Lower, ModelName, Phase, Range, Setting, list},
};

/// What is drawn.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[command(after_help = HELP)]
#[schemars(rename = "PlotRequest")]
pub struct Request {
    /// What to draw
    #[arg(value_enum)]
    pub kind: Kind,
    /// Models: names, `config.json` files or folders; the roofline takes one
    #[arg(value_name = "MODEL", required = true)]
    #[serde(deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<ModelName>")]
    pub models: Vec<ModelName>,
    /// Which pass
    #[arg(long, value_parser = request::one_of::<Phase>(request::PHASES), default_value = "decode")]
    #[serde(default = "decode")]
    pub phase: Phase,
    /// Sequences side by side; a range on the batch plot (1..512 there when left out)
    #[arg(long, value_name = "RANGE")]
    pub batch: Option<Range>,
    /// Tokens; a range on the context plot (512..131072 there when left out, else 4096)
    #[arg(long, value_name = "RANGE")]
    pub context: Option<Range>,
    /// Measured points to lay over the roofline
    #[arg(long, value_name = "FILE")]
    #[schemars(extend("x-local" = true))]
    pub measured: Option<PathBuf>,
    /// Colours of the picture
    #[arg(long, value_enum, default_value_t)]
    #[serde(default)]
    pub theme: Theme,
    #[command(flatten)]
    #[serde(flatten)]
    pub lowering: Lower,
    #[command(flatten)]
    #[serde(flatten)]
    pub setting: Setting,
}

const HELP: &str = "\
Without --out the picture is drawn in the terminal. A CSV of measured points has the columns
label, ai (FLOP/B), tflops and perhaps precision, in any order.

Examples:
  roofline plot roofline llama-3-8b --on h200 --precision bf16,w4a16
  roofline plot roofline llama-3-8b --on h200 --phase prefill --out roofline.png --theme dark
  roofline plot batch llama-3-8b --on h200,a100 --precision bf16,w4a16 --out batch.svg
  roofline plot context gemma-3-27b --on h200 --precision bf16
  roofline plot shares llama-3-8b mixtral-8x7b --on h200 --precision bf16";

/// Kinds of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "PlotKind")]
pub enum Kind {
    /// Kernels under the ceilings of the device
    Roofline,
    /// Time per token against the batch
    Batch,
    /// Time per token against the context
    Context,
    /// Share of the time per kernel
    Shares,
}

/// What a picture shows, as numbers.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PlotAnswer")]
pub struct Answer {
    pub kind: Kind,
    pub points: Vec<ModelPoint>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

fn decode() -> Phase {
    Phase::Decode
}

/// Every point of a picture.
pub fn plot(context: &Context, request: &Request) -> Result<Answer> {
    let (lines, grid) = (request.lines(context)?, request.grid()?);
    let shows_kernels = matches!(request.kind, Kind::Roofline | Kind::Shares);
    let mut points = Vec::new();
    for line in &lines {
        for (batch, tokens) in grid.iter().copied() {
            let (mut point, forecast) = line.point(&lines, batch, tokens)?;
            if shows_kernels {
                point.operators = forecast.by_site(line.tier, &line.machine);
            }
            points.push(point);
        }
    }
    Ok(Answer { kind: request.kind, points, notes: context.notes() })
}

/// The picture itself.
pub fn picture(context: &Context, request: &Request) -> Result<Picture> {
    let lines = request.lines(context)?;
    Ok(match request.kind {
        Kind::Roofline => Picture::Roofline(request.roofline(context, &lines)?),
        Kind::Batch | Kind::Context => Picture::Lines(request.times(&lines)?),
        Kind::Shares => Picture::Shares(request.shares(&lines)?),
    })
}

impl Request {
    fn lines(&self, context: &Context) -> Result<Vec<Line>> {
        let Self { models, phase, lowering, setting, .. } = self;
        if models.is_empty() {
            return Err(Error::request("no model was named", "`⟨roofline models⟩` lists them"));
        }
        lines(context, &Field { models, phases: &[*phase], scales: &[(1.0, 1.0)], lowering, setting })
    }

    /// Batches and contexts of the picture, in order: one of both varies where it has lines.
    fn grid(&self) -> Result<Vec<(u64, u64)>> {
        let doubling = |from: u64, to: u64| {
            iter::successors(Some(from), |last| Some(last * 2)).take_while(move |next| *next <= to)
        };
        let range = |given: &Option<Range>, from: u64, to: u64| {
            given.as_ref().map_or_else(|| doubling(from, to).collect(), |range| range.0.clone())
        };
        Ok(match self.kind {
            Kind::Batch => {
                let fixed = single("context", self.context.as_ref(), request::CONTEXT)?;
                range(&self.batch, 1, 512).into_iter().map(|batch| (batch, fixed)).collect()
            }
            Kind::Context => {
                let fixed = single("batch", self.batch.as_ref(), 1)?;
                range(&self.context, 512, 131_072).into_iter().map(|context| (fixed, context)).collect()
            }
            Kind::Roofline | Kind::Shares => vec![self.place()?],
        })
    }

    /// The batch and the context of a picture that varies neither.
    fn place(&self) -> Result<(u64, u64)> {
        let batch = single("batch", self.batch.as_ref(), 1)?;
        Ok((batch, single("context", self.context.as_ref(), request::CONTEXT)?))
    }

    fn roofline(&self, context: &Context, lines: &[Line]) -> Result<Roofline> {
        let first = &lines[0];
        if lines.iter().any(|line| line.machine.device != first.machine.device || line.model != first.model) {
            let hint = "name one model and one device; precisions may be several";
            return Err(Error::request("a roofline belongs to one model on one device", hint));
        }
        let (batch, tokens) = self.place()?;
        let mut points = Vec::new();
        for line in lines {
            points.extend(self.kernels(line, &line.forecast(batch, tokens)?, lines.len() > 1));
        }
        if let Some(path) = &self.measured {
            points.extend(points::read(context, path)?);
        }
        let device = &first.machine.device;
        Ok(Roofline {
            title: format!("{} on {}", first.model.name, device.name),
            subtitle: format!("{}, batch {batch}, {tokens} tokens{}, {}", self.phase, self.manner(), tier_of(lines)),
            memories: vec![Memory { label: "memory".to_owned(), bandwidth: device.memory.bandwidth }],
            ceilings: ceilings(device),
            points,
            brief: false,
        })
    }

    /// The kernels of a pass that compute anything, and the pass as a whole.
    fn kernels(&self, line: &Line, forecast: &Forecast, several: bool) -> Vec<Point> {
        let (series, tier) = (self.label(line), line.tier);
        let computing = forecast.kernels.iter().filter(|kernel| kernel.prediction.ideal.work.flops.value() > 0.0);
        let kernels = computing.map(|kernel| {
            let site = kernel.node.site;
            let label = if several { format!("{site} {series}") } else { site.to_owned() };
            (label, Class::of(&kernel.node.op), kernel.prediction)
        });
        let all = kernels.chain([(format!("all {series}"), Class::Total, forecast.total)]);
        let point = |(label, class, prediction): (String, Class, Prediction)| Point {
            label,
            intensity: prediction.ideal.intensity(),
            rate: prediction.ideal.work.flops / prediction.time(tier),
            class,
            series: series.clone(),
            measured: false,
        };
        all.map(point).collect()
    }

    fn times(&self, lines: &[Line]) -> Result<Lines> {
        let over_batch = self.kind == Kind::Batch;
        let grid = self.grid()?;
        let mut series = Vec::new();
        for line in lines {
            let mut points = Vec::new();
            for (batch, context) in grid.iter().copied() {
                let value = if over_batch { batch } else { context };
                let time = line.forecast(batch, context)?.total.time(line.tier);
                points.push((value as f64, time.value() * 1e3 / tokens(self.phase, batch, context)));
            }
            series.push(Series { label: self.label(line), points });
        }
        let (batch, context) = grid.first().copied().unwrap_or((1, 1));
        let (axis, other, unit) = if over_batch {
            ("batch", format!("{context} tokens"), "sequences")
        } else {
            ("context", format!("batch {batch}"), "tokens of context")
        };
        Ok(Lines {
            title: format!("{} time per token against {axis}", title(lines)),
            subtitle: self.subtitle(&other, lines),
            x_label: unit.to_owned(),
            y_label: "ms per token of the batch (step time / tokens)".to_owned(),
            log_x: true,
            log_y: true,
            series,
        })
    }

    fn shares(&self, lines: &[Line]) -> Result<Shares> {
        let (batch, context) = self.place()?;
        let mut bars = Vec::new();
        for line in lines {
            let sites = line.forecast(batch, context)?.by_site(line.tier, &line.machine);
            let parts = sites.iter().map(|kernel| (kernel.site.to_owned(), kernel.share)).collect();
            bars.push(Bar { label: self.label(line), parts });
        }
        Ok(Shares {
            title: format!("{} share of the time", title(lines)),
            subtitle: self.subtitle(&format!("batch {batch}, {context} tokens"), lines),
            bars,
        })
    }

    /// What tells a line from the others.
    fn label(&self, line: &Line) -> String {
        let model = (self.models.len() > 1).then(|| line.model.key.clone());
        let device = (self.setting.on.len() > 1).then(|| line.device.clone());
        let count = (self.lowering.tp.len() > 1).then(|| format!("tp {}", line.lowering.ranks));
        [model, device, count, Some(line.plan.label())].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    fn subtitle(&self, place: &str, lines: &[Line]) -> String {
        let mut names: Vec<&str> = lines.iter().map(|line| line.machine.device.name.as_str()).collect();
        names.dedup();
        format!("{}, {place}, on {}{}, {}", self.phase, names.join(" and "), self.manner(), tier_of(lines))
    }

    /// How the model runs, where that is not the usual way.
    fn manner(&self) -> String {
        let shared = match self.lowering.tp[..] {
            [count] if count.get() > 1 => format!(", shared by {count}"),
            _ => String::new(),
        };
        format!("{shared}{}", if self.lowering.unfused { ", unfused" } else { "" })
    }
}

/// The one value of a range that a picture does not vary.
fn single(what: &str, range: Option<&Range>, usual: u64) -> Result<u64> {
    match range.map(|range| &range.0[..]) {
        None => Ok(usual),
        Some([value]) => Ok(*value),
        Some(_) => {
            Err(Error::request(format!("⟨{what}⟩: this picture takes one value"), "ranges are for the other axis"))
        }
    }
}

/// Which times are drawn.
fn tier_of(lines: &[Line]) -> &'static str {
    let first = lines[0].tier;
    match first {
        _ if lines.iter().any(|line| line.tier != first) => "expected, or ideal of chips that are only rates",
        Tier::Ideal => "ideal roofline",
        Tier::Expected => "expected",
    }
}

/// The model, or what several are.
fn title(lines: &[Line]) -> String {
    let first = &lines[0].model;
    if lines.iter().all(|line| line.model == *first) { format!("{}:", first.name) } else { "Models:".to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::request::{answers_fit, from_json};

    fn asked(body: serde_json::Value) -> Request {
        from_json(body).unwrap()
    }

    #[test]
    fn points_are_those_of_the_picture() {
        let request =
            asked(json!({ "kind": "batch", "models": "llama-3-8b", "on": "h200", "precision": ["bf16", "w4a16"] }));
        let answer = plot(&Context::pure(), &request).unwrap();
        answers_fit(&answer);
        let batches: Vec<u64> = answer.points[..10].iter().map(|point| point.batch).collect();
        assert_eq!(batches, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        let Picture::Lines(lines) = picture(&Context::pure(), &request).unwrap() else { panic!("no lines") };
        let point = &answer.points[13];
        assert_eq!((point.precision.as_str(), point.batch), ("w4a16", 8));
        assert!((lines.series[1].points[3].1 - point.figures.predicted_time_us / 8e3).abs() < 1e-12);
    }

    /// A chip without INT8 units has no baseline for what it can do, and nothing else takes its place.
    #[test]
    fn speed_ups_are_over_the_first_plan_or_nothing() {
        let body = json!({ "kind": "shares", "models": ["llama-3-8b"], "on": "jetson_nano", "precision": ["int8", "fp16", "fp32"] });
        let answer = plot(&Context::pure(), &asked(body)).unwrap();
        assert!(answer.points.iter().all(|point| point.ratios.speedup.is_none() && !point.operators.is_empty()));
        assert!(answer.notes.iter().any(|note| note.text.contains("int8 on jetson_nano")), "{:?}", answer.notes);
    }

    #[test]
    fn what_clap_would_refuse_is_refused() {
        let why = |body: serde_json::Value| plot(&Context::pure(), &asked(body)).err().unwrap().to_string();
        assert_eq!(why(json!({ "kind": "batch", "models": [], "on": "h200" })), "no model was named");
        let two = json!({ "kind": "roofline", "models": "llama-3-8b", "on": "h200", "batch": "1..8" });
        assert_eq!(why(two), "⟨batch⟩: this picture takes one value");
        let body = json!({ "kind": "roofline", "models": "llama-3-8b", "on": "h200", "measured": "points.csv" });
        assert_eq!(picture(&Context::pure(), &asked(body)).err().unwrap().to_string(), "`⟨measured⟩` names a file");
    }
}
