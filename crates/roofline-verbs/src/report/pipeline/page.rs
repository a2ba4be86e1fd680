//! The report as one HTML file that needs nothing else: the verdict in large, then what was won, what was lost and why.

mod bars;
mod lost;
mod style;

use self::bars::{Bar, Group};
use crate::{
    pipeline::{Answer, Side, Tone, Verdict},
    report::{
        Section,
        html::{STYLE, body, escape, prose},
    },
    text::{billions, number, size},
};

pub(super) fn page(told: &Answer) -> String {
    let title = told.heading();
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{0}</title>\n\
         <style>{STYLE}{1}</style>\n</head>\n<body class=\"pipeline\">\n{2}",
        escape(&title),
        style::STYLE,
        head(told)
    );
    page += &told.verdict.as_ref().map(|verdict| lead(verdict) + &tiles(told, verdict)).unwrap_or_default();
    page += &section("Before and after", &format!("Measured on {}.", here(told)), &before_and_after(told));
    page += &section("How right the prediction was", &basis(told), &against_theory(told));
    page += &lost::lost(told);
    page += &recommended(told);
    page += &section("How it was done", "", &done(told));
    page + "</body>\n</html>\n"
}

/// A part of the page; nothing where it has nothing to say.
fn section(title: &str, lead: &str, content: &str) -> String {
    if content.is_empty() {
        return String::new();
    }
    let lead = if lead.is_empty() { String::new() } else { format!("<p class=\"note\">{}</p>\n", prose(lead)) };
    format!("<section>\n<h2>{}</h2>\n{lead}{content}</section>\n", escape(title))
}

fn here(told: &Answer) -> String {
    let Some(before) = &told.found.before else { return "this machine".to_owned() };
    let name = told.here_name.as_deref().unwrap_or("this machine");
    format!(
        "{name}, {}, a prompt of {} tokens and {} more",
        told.backend.workers(before.speed.threads),
        told.prompt,
        before.speed.generated
    )
}

fn head(told: &Answer) -> String {
    let plan = told.found.recommendation.as_ref().map_or("", |recommended| recommended.precision.as_str());
    let place = if told.elsewhere {
        format!("chosen for {}, measured on {}", told.device_name, told.here_name.as_deref().unwrap_or("this machine"))
    } else {
        format!("chosen for and measured on {}", told.device_name)
    };
    format!(
        "<header>\n<p class=\"brand\">roofline pipeline</p>\n<h1>{} <span class=\"arrow\">→</span> {}</h1>\n\
         <p class=\"note\">{} parameters, {}</p>\n</header>\n",
        escape(&told.model),
        escape(plan),
        escape(&billions(told.parameters as f64)),
        escape(&place)
    )
}

fn lead(verdict: &Verdict) -> String {
    let class = match verdict.tone {
        Tone::Good => "good",
        Tone::Fair => "fair",
        Tone::Bad => "bad",
    };
    let mut points = verdict.points.iter().map(|point| format!("{}.", prose(point)));
    let first = points.next().unwrap_or_default();
    let rest = points.map(|point| format!("<p>{point}</p>\n")).collect::<Vec<_>>().concat();
    format!(
        "<div class=\"lead {class}\">\n<p class=\"word\">{}</p>\n<p class=\"first\">{first}</p>\n{rest}</div>\n",
        escape(&verdict.word)
    )
}

/// The four figures that people ask for.
fn tiles(told: &Answer, verdict: &Verdict) -> String {
    let tile = |value: Option<String>, name: &str, class: &str| {
        let value = value.unwrap_or_else(|| "–".to_owned());
        format!("<div class=\"tile {class}\"><b>{}</b><span>{}</span></div>\n", escape(&value), escape(name))
    };
    let slow = verdict.speedup.is_some_and(|speedup| speedup < 1.0);
    let loses = verdict.perplexity_change.is_some_and(|change| change.is_nan() || change > verdict.allowed_change);
    let quality = told.found.after.as_ref().and_then(|after| after.quality.as_ref());
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let phase = if told.phase == roofline_core::measurement::Phase::Decode { "each further token" } else { "a prompt" };
    let tiles = [
        tile(
            verdict.speedup.map(|speedup| format!("{speedup:.2}×")),
            &format!("as fast: {phase}"),
            if slow { "bad" } else { "" },
        ),
        tile(verdict.size_ratio.map(percent), "of the size of the weights", ""),
        tile(
            verdict.perplexity_change.map(|change| format!("{:+.1} %", 100.0 * change)),
            "perplexity",
            if loses { "bad" } else { "" },
        ),
        tile(
            quality.and_then(|told| told.top1_agreement).map(|share| format!("{:.1} %", 100.0 * share)),
            "same most probable token",
            "",
        ),
    ];
    format!("<div class=\"tiles\">\n{}</div>\n", tiles.concat())
}

fn millis(micros: f64) -> String {
    format!("{} ms", number(micros / 1e3))
}

/// Bars of both models for each figure.
fn before_and_after(told: &Answer) -> String {
    let Some(before) = &told.found.before else { return String::new() };
    let after = told.found.after.as_ref();
    let pair = |title: &str, better: &'static str, of: &dyn Fn(&Side) -> Option<(f64, String)>| {
        let bar = |name: &str, class: &'static str, side: &Side| {
            of(side).map(|(value, text)| Bar { name: format!("{name} ({})", side.speed.format), class, value, text })
        };
        let bars = [bar("before", "before", before), after.and_then(|after| bar("after", "after", after))];
        Group { title: title.to_owned(), note: better, bars: bars.into_iter().flatten().collect() }
    };
    let bytes = |value: u64| Some((value as f64, size(value)));
    let groups = [
        pair("Tokens per second", "more is better", &|side| side.speed.tokens_per_s.map(|rate| (rate, number(rate)))),
        pair("Time of each further token", "less is better", &|side| {
            side.speed.tpot_us.map(|time| (time, millis(time)))
        }),
        pair("Time to the first token", "less is better", &|side| {
            Some((side.speed.ttft_us, millis(side.speed.ttft_us)))
        }),
        pair("Size of the weights", "less is better", &|side| bytes(side.speed.weights_bytes)),
        pair("Most memory that was held", "less is better", &|side| side.speed.peak_memory_bytes.and_then(bytes)),
        pair("Perplexity", "less is better", &|side| {
            side.quality.as_ref().map(|told| {
                let range = told.perplexity_low.zip(told.perplexity_high);
                let range = range.map(|(low, high)| format!(" ({} to {})", number(low), number(high)));
                (told.perplexity, number(told.perplexity) + &range.unwrap_or_default())
            })
        }),
    ];
    bars::groups(&groups)
}

fn basis(told: &Answer) -> String {
    let Some(here) = &told.found.predicted.here else { return String::new() };
    let weak = if here.basis == "calibrated" {
        ""
    } else {
        " `roofline calibrate` measures this machine's kernels, and predictions get better."
    };
    format!(
        "By theory on {}, with {} terms; the passes that ran, with the weights as they are stored.{weak}",
        here.device_name, here.basis
    )
}

/// Predicted and measured times of both.
fn against_theory(told: &Answer) -> String {
    let (Some(before), Some(after)) = (&told.found.before, &told.found.after) else { return String::new() };
    let group = |title: &str, measured: Option<f64>, predicted: Option<f64>, error: Option<f64>| {
        let bar = |name: &str, class, time: f64| Bar { name: name.to_owned(), class, value: time, text: millis(time) };
        let bars = [
            predicted.map(|time| bar("predicted", "predicted", time)),
            measured.map(|time| bar("measured", "after", time)),
        ];
        let off = error.map(|error| format!(" – off by {} %", number(error))).unwrap_or_default();
        Group { title: format!("{title}{off}"), note: "", bars: bars.into_iter().flatten().collect() }
    };
    let mut groups = Vec::new();
    for (name, side) in [("before", before), ("after", after)] {
        let speed = &side.speed;
        if speed.predicted_ttft_us.is_none() {
            continue;
        }
        groups.push(group(
            &format!("Each further token, {name}"),
            speed.tpot_us,
            speed.predicted_tpot_us,
            speed.tpot_error_pct,
        ));
        groups.push(group(
            &format!("First token, {name}"),
            Some(speed.ttft_us),
            speed.predicted_ttft_us,
            speed.ttft_error_pct,
        ));
    }
    bars::groups(&groups)
}

/// What was recommended, and why; and what theory says of the device that it is for.
fn recommended(told: &Answer) -> String {
    let Some(recommended) = &told.found.recommendation else { return String::new() };
    let mut sections = vec![super::text::recommended(recommended)];
    if told.elsewhere {
        sections.extend(told.found.predicted.on.iter().map(|place| Section::Table(super::text::forecast(place))));
        sections.push(Section::Paragraph(format!("Nothing was measured on {}.", told.device_name)));
    }
    if !recommended.alternatives.is_empty() {
        sections.push(Section::Folded(
            "What else there was".to_owned(),
            vec![Section::Table(super::text::others(recommended))],
        ));
    }
    sections.extend(recommended.warnings.iter().map(|warning| Section::Paragraph(format!("Mind: {warning}."))));
    section("What was recommended, and why", "", &body(&sections))
}

/// The steps, what to type, and what was noted on the way.
fn done(told: &Answer) -> String {
    let mut sections = vec![Section::Table(super::text::steps(&told.steps))];
    if !told.commands.is_empty() {
        sections.push(Section::Paragraph("Each step alone:".to_owned()));
        sections.push(Section::Code(told.commands.clone()));
    }
    let site = |side: &Side| Section::Table(super::text::sites(side));
    let sides = [&told.found.before, &told.found.after].into_iter().flatten().map(site).collect();
    sections.push(Section::Folded("Where the time went, before and after".to_owned(), sides));
    let notes: Vec<Section> = told.notes.iter().map(|note| Section::Paragraph(note.text.clone())).collect();
    if !notes.is_empty() {
        sections.push(Section::Folded("Notes".to_owned(), notes));
    }
    roofline_core::wording::flags(&body(&sections)).into_owned()
}
