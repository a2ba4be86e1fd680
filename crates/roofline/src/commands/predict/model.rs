//! A model's forecast for reading.

use roofline_core::{
    measurement::Phase,
    predict::Tier,
    units::{Bytes, Seconds},
};
use roofline_verbs::predict::{ModelPrediction, PassEstimate, Unavailable};

use crate::{
    commands::basis,
    report::{Align, Cell, Report, Section, Shown, Table, billions, number, style},
};

impl Report for Shown<'_, ModelPrediction> {
    const ROWS: &'static str = "estimates";

    fn sections(&self) -> Vec<Section> {
        let first = &self.estimates[0];
        let same_count = self.estimates.iter().all(|row| row.tensor_parallel == first.tensor_parallel);
        let many = first.tensor_parallel > 1 && same_count;
        let count = if many { format!("{} x ", first.tensor_parallel) } else { String::new() };
        let device =
            if self.several { String::new() } else { format!(" on {count}{} ({})", first.device_name, first.device) };
        let place = format!("batch {}, {} tokens", first.batch, first.context);
        let mut sections = vec![
            Section::Heading(format!(
                "{}{device}, {place}: {}",
                self.model_name,
                basis::words(self.estimates.iter().map(|row| (row.figures.tier, row.figures.basis, &row.weaker[..])))
            )),
            Section::Table(self.passes()),
        ];
        // Kernels of one precision at a time are read; a comparison would drown in them.
        if self.estimates.iter().all(|row| row.precision == first.precision && row.device == first.device) {
            sections.extend(self.estimates.iter().map(|row| Section::Table(kernels(row))));
        }
        sections.push(Section::Facts(self.facts()));
        for row in self.said() {
            let best: Vec<&str> = row.advice.iter().take(4).map(|step| step.text.as_str()).collect();
            if !best.is_empty() {
                let device = if self.several { format!("{} ", row.device) } else { String::new() };
                sections.push(Section::Paragraph(format!(
                    "{device}{} {}: {}",
                    row.precision,
                    row.phase,
                    best.join("; ")
                )));
            }
        }
        if let Some(max) = self.max_context.filter(|max| *max < first.context) {
            let text = format!("{} tokens are more than the {max} this model was made for", first.context);
            sections.push(Section::Paragraph(text));
        }
        sections.extend(self.does_not_fit().into_iter().map(Section::Paragraph));
        sections.extend(self.doubts().into_iter().map(Section::Paragraph));
        sections.extend(self.unavailable.iter().map(|row| Section::Paragraph(row.sentence())));
        sections
    }

    fn warnings(&self) -> Vec<String> {
        self.unavailable.iter().map(Unavailable::sentence).collect()
    }
}

impl Shown<'_, ModelPrediction> {
    /// The first row of each device and phase.
    fn said(&self) -> Vec<&PassEstimate> {
        let mut said: Vec<&PassEstimate> = Vec::new();
        for row in &self.estimates {
            if !said.iter().any(|other| other.device == row.device && other.phase == row.phase) {
                said.push(row);
            }
        }
        said
    }

    /// What stands on less than the rest, by phase, each once.
    fn doubts(&self) -> Vec<String> {
        let spoken = self.estimates.iter().filter(|row| row.figures.tier == Tier::Expected);
        let mut said: Vec<String> = Vec::new();
        for (row, sentence) in spoken.filter_map(|row| Some((row, basis::weaker_words(&row.weaker)?))) {
            let sentence = format!("{}: {sentence}", row.phase);
            if !said.contains(&sentence) {
                said.push(sentence);
            }
        }
        let added = |row: &PassEstimate| row.figures.tier == Tier::Expected && row.gap.is_some_and(|gap| !gap.measured);
        if self.estimates.iter().any(added) {
            said.push("what lies between kernels of a pass was not measured, so they are added up".to_owned());
        }
        said
    }

    fn passes(&self) -> Table {
        let several_counts = self.estimates.windows(2).any(|pair| pair[0].tensor_parallel != pair[1].tensor_parallel);
        let mut table = Table::default()
            .column("device", Align::Left, 0)
            .column("tp", Align::Right, 0)
            .column("precision", Align::Left, 0)
            .column("phase", Align::Left, 0)
            .column("time", Align::Right, 0)
            .column("range", Align::Right, 4)
            .column("ideal", Align::Right, 1)
            .column("tokens/s", Align::Right, 1)
            .column("bound", Align::Left, 0)
            .column("FLOP/B", Align::Right, 6)
            .column("weights", Align::Right, 3)
            .column("cache", Align::Right, 4)
            .column("memory", Align::Right, 5)
            .column("fits", Align::Left, 0)
            .column("speed-up", Align::Right, 2);
        for row in &self.estimates {
            let fits = match row.fits {
                Some(true) => "yes",
                Some(false) => "NO",
                None => "",
            };
            let likely = (row.figures.tier == Tier::Expected).then_some(row.total.expected);
            table.row([
                if self.several { row.device.clone() } else { String::new() }.into(),
                if several_counts { row.tensor_parallel.to_string() } else { String::new() }.into(),
                row.precision.as_str().into(),
                row.phase.name().into(),
                row.time().to_string().into(),
                likely.map_or_else(String::new, |expected| format!("{} - {}", expected.low, expected.high)).into(),
                likely.map_or_else(String::new, |_| row.total.ideal.time().to_string()).into(),
                number(row.tokens_per_s).into(),
                Cell::styled(row.figures.bottleneck.as_str(), style::of_bound(row.bound())),
                number(row.figures.ai).into(),
                row.weight_bytes.to_string().into(),
                row.kv_bytes.to_string().into(),
                row.memory_bytes.to_string().into(),
                fits.into(),
                row.ratios.speedup.map_or_else(String::new, |speedup| format!("{speedup:.2}x")).into(),
            ]);
        }
        table.without_empty_columns()
    }

    fn facts(&self) -> Vec<(String, String)> {
        let row = self.estimates.iter().find(|row| row.phase == Phase::Decode).unwrap_or(&self.estimates[0]);
        let active = if (self.active_parameters - self.parameters).abs() < 1.0 {
            String::new()
        } else {
            format!(", {} active per token", billions(self.active_parameters))
        };
        let shared = |row: &PassEstimate| {
            if row.tensor_parallel > 1 { format!("{} x ", row.tensor_parallel) } else { String::new() }
        };
        let place = format!("{} on {}{}", row.precision, shared(row), row.device);
        let mut facts = vec![("parameters".to_owned(), format!("{}{active}", billions(self.parameters)))];
        if let Some(context) = row.longest_context {
            let made = if self.max_context == Some(context) { ", all the model was made for," } else { "" };
            let text = format!("{context} tokens{made} fit at batch {} ({place})", row.batch);
            facts.push(("longest context".to_owned(), text));
        }
        if let Some(batch) = row.largest_batch {
            facts.push((
                "largest batch".to_owned(),
                format!("{batch} sequences of {} tokens fit ({place})", row.context),
            ));
        }
        let crossover = match row.kv_crossover_context {
            Some(context) => format!("reading the cache takes as long as reading the weights from {context} tokens on"),
            None => "sliding windows keep the cache smaller than the weights at any context".to_owned(),
        };
        facts.push(("cache".to_owned(), crossover));
        if let Some(room) = row.room {
            let system =
                if room.system > Bytes::ZERO { format!(", {} the system's", room.system) } else { String::new() };
            let text =
                format!("{} of {} for the model{system}, {} kept free", room.for_models(), room.capacity, room.reserve);
            facts.push(("room".to_owned(), text));
        }
        if self.estimates.iter().any(|row| row.tensor_parallel > 1) {
            facts.push(("sizes".to_owned(), "weights, cache and memory are those of each device".to_owned()));
        }
        if let Some(method) = &self.ships_in {
            facts.push(("ships in".to_owned(), format!("{method}, which the 16-bit rows do not use")));
        }
        facts.push((
            "feed-forward".to_owned(),
            format!("{:.0} % of the layers' operations", 100.0 * row.ffn_share_of_flops),
        ));
        for row in self.estimates.iter().filter(|row| row.phase == Phase::Prefill || self.one_phase()) {
            if let Some(request) = &row.request {
                let time = |micros: f64| Seconds::new(micros * 1e-6);
                let each = request
                    .time_per_output_token_us
                    .map_or_else(String::new, |each| format!(", then {} per token", time(each)));
                facts.push((
                    format!(
                        "request {}{}",
                        row.precision,
                        if self.one_place() { String::new() } else { format!(" {}{}", shared(row), row.device) }
                    ),
                    format!(
                        "{} to the first token{each}: {} for {} tokens, {} tokens/s ({})",
                        time(request.ttft_us),
                        time(request.total_us),
                        request.generate,
                        number(request.generated_tokens_per_s),
                        request.tier
                    ),
                ));
            }
        }
        facts
    }

    fn one_place(&self) -> bool {
        let place = |row: &PassEstimate| (row.device.clone(), row.tensor_parallel);
        self.estimates.windows(2).all(|pair| place(&pair[0]) == place(&pair[1]))
    }

    fn one_phase(&self) -> bool {
        self.estimates.windows(2).all(|pair| pair[0].phase == pair[1].phase)
    }

    fn does_not_fit(&self) -> Vec<String> {
        let mut sentences: Vec<String> = Vec::new();
        for row in &self.estimates {
            let Some(shortfall) = &row.shortfall else { continue };
            let mut ways = Vec::new();
            if let Some(precision) = shortfall.precision {
                ways.push(format!("{precision} would fit"));
            }
            if let Some(ranks) = shortfall.tensor_parallel {
                ways.push(format!("{ranks} devices would hold it (--tp {ranks})"));
            }
            let ways = if ways.is_empty() { "nothing we know makes it fit".to_owned() } else { ways.join(", ") };
            let sentence = format!(
                "{} on {} does not fit: {} too much; {ways}",
                row.precision, row.device, shortfall.missing_bytes
            );
            if !sentences.contains(&sentence) {
                sentences.push(sentence);
            }
        }
        sentences
    }
}

fn kernels(row: &PassEstimate) -> Table {
    let shared = if row.tensor_parallel > 1 { format!(" (1 of {})", row.tensor_parallel) } else { String::new() };
    let mut table = Table::default()
        .column(format!("{} kernel{shared}", row.phase), Align::Left, 0)
        .column("times", Align::Right, 3)
        .column("time", Align::Right, 0)
        .column("share", Align::Right, 1)
        .column("bound", Align::Left, 0)
        .column("FLOP/B", Align::Right, 2)
        .column("bytes", Align::Right, 4)
        .column("unit", Align::Left, 5);
    let mut operators: Vec<_> = row.operators.iter().collect();
    operators.sort_by(|a, b| b.figures.predicted_time_us.total_cmp(&a.figures.predicted_time_us));
    for operator in operators {
        table.row([
            operator.site.into(),
            operator.count.to_string().into(),
            operator.prediction.time(operator.figures.tier).to_string().into(),
            format!("{:.1} %", 100.0 * operator.share).into(),
            Cell::styled(
                operator.figures.bottleneck.as_str(),
                style::of_bound(operator.prediction.bound(operator.figures.tier)),
            ),
            number(operator.figures.ai).into(),
            operator.figures.bytes.to_string().into(),
            operator.prediction.ideal.math.label().into(),
        ]);
    }
    table
}
