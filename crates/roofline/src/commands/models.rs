//! `roofline models`.

use roofline_core::model::{AttentionLayer, FeedForward, Layer};
use roofline_verbs::{
    Context,
    models::{Answer, ModelFacts, Request, models},
};

use crate::{
    failure::Failure,
    report::{Align, Format, Report, Section, Shown, Table, billions, emit, number},
};

pub(crate) fn run(context: &Context, request: &Request, form: Format) -> Result<(), Failure> {
    let answer = models(context, request)?;
    emit(&Shown::of(&answer, !request.names.is_empty()), form)
}

impl Report for Shown<'_, Answer> {
    const ROWS: &'static str = "models";

    fn sections(&self) -> Vec<Section> {
        if self.all { self.models.iter().flat_map(detail).collect() } else { self.overview() }
    }
}

impl Shown<'_, Answer> {
    fn overview(&self) -> Vec<Section> {
        let mut table = Table::default()
            .column("model", Align::Left, 0)
            .column("name", Align::Left, 6)
            .column("parameters", Align::Right, 0)
            .column("active", Align::Right, 2)
            .column("layers", Align::Right, 3)
            .column("hidden", Align::Right, 4)
            .column("attention", Align::Left, 5)
            .column("kB/token", Align::Right, 1)
            .column("context", Align::Right, 3);
        for row in &self.models {
            let layers: u64 = row.model.layers.iter().map(|layer| layer.count).sum();
            let sparse = row.active_parameters < row.parameters;
            table.row([
                row.model.key.as_str().into(),
                row.model.name.as_str().into(),
                billions(row.parameters).into(),
                if sparse { billions(row.active_parameters) } else { String::new() }.into(),
                layers.to_string().into(),
                row.model.hidden.to_string().into(),
                kinds(&row.model.layers).join(", ").into(),
                number(row.kv_bytes_per_token / 1e3).into(),
                row.model.max_context.map_or_else(String::new, |max| max.to_string()).into(),
            ]);
        }
        vec![
            Section::Heading(format!("{} models", self.models.len())),
            Section::Table(table),
            Section::Paragraph(
                "kB/token: keys and values of a token at 16 bit, averaged over a context of 32768. A `config.json`, or the \
                 folder it is in, works wherever a name does."
                    .to_owned(),
            ),
        ]
    }
}

/// How the layers attend, in words.
fn kinds(layers: &[Layer]) -> Vec<String> {
    let mut kinds = Vec::new();
    for layer in layers {
        let kind = match layer.attention {
            AttentionLayer::Latent { .. } => "latent".to_owned(),
            AttentionLayer::Grouped { heads, kv_heads, window, .. } => {
                let groups =
                    if heads == kv_heads { "all heads".to_owned() } else { format!("{heads}/{kv_heads} heads") };
                window.map_or(groups.clone(), |window| format!("{groups} window {window}"))
            }
        };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

fn detail(row: &ModelFacts) -> Vec<Section> {
    let model = &row.model;
    let published = model
        .published
        .as_ref()
        .map_or_else(String::new, |published| format!("{} ({})", published.parameters, published.source));
    let layers =
        model.layers.iter().map(|layer| format!("{} x {}, {}", layer.count, attention(layer), feed_forward(layer)));
    let facts = [
        ("also called", model.aliases.join(", ")),
        ("family", model.family.clone()),
        ("parameters", format!("{:.0}, {:.0} of them for a token", row.parameters, row.active_parameters)),
        ("published", published),
        ("hidden size", model.hidden.to_string()),
        ("vocabulary", format!("{}{}", model.vocabulary, if model.tied { ", head tied to the embedding" } else { "" })),
        ("layers", layers.collect::<Vec<_>>().join("; ")),
        ("norms", format!("{} per layer{}", model.norms.per_layer, if model.norms.bias { ", with bias" } else { "" })),
        ("cache", format!("{} kB per token at 16 bit, averaged over 32768", number(row.kv_bytes_per_token / 1e3))),
        ("longest context", model.max_context.map_or_else(String::new, |max| max.to_string())),
        ("ships in", model.stored.as_ref().map_or_else(String::new, |stored| stored.0.clone())),
        ("source", model.source.clone().unwrap_or_default()),
    ];
    let facts = facts.into_iter().filter(|(_, value)| !value.is_empty());
    let facts = facts.map(|(name, value)| (name.to_owned(), value)).collect();
    vec![Section::Heading(format!("{} ({})", model.name, model.key)), Section::Facts(facts)]
}

fn attention(layer: &Layer) -> String {
    match layer.attention {
        AttentionLayer::Grouped { heads, kv_heads, head_dim, window, query_key_norm, .. } => {
            let window = window.map_or_else(String::new, |window| format!(", window {window}"));
            let norm = if query_key_norm { ", normed queries and keys" } else { "" };
            format!("attention of {heads} query and {kv_heads} KV heads of {head_dim}{window}{norm}")
        }
        AttentionLayer::Latent { heads, rank, rotary_dim, plain_dim, value_dim, .. } => format!(
            "latent attention of {heads} heads ({plain_dim} + {rotary_dim} rotated, values {value_dim}), rank {rank}"
        ),
    }
}

fn feed_forward(layer: &Layer) -> String {
    match layer.feed_forward {
        FeedForward::Dense { inner, gated, .. } => {
            format!("{} feed-forward {inner}", if gated { "gated" } else { "plain" })
        }
        FeedForward::Experts { experts, active, inner, shared, .. } => {
            let shared = shared.map_or_else(String::new, |shared| format!(" and {shared} shared"));
            format!("{active} of {experts} experts of {inner}{shared}")
        }
    }
}
