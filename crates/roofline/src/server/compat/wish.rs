//! What a caller wants a precision for, in short: a product or a model, in the body or in the query.

use roofline_verbs::request::Phase;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    super::{extract::Params, refusal::Refusal},
    products::GEMMSpec,
};

/// A product or a model, where it runs, and what it may take. What says where may stand in the query as well.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(in crate::server) struct RecommendSpec {
    /// Rows; when left out 1 in decode, else 4096.
    #[serde(rename = "M")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    m: Option<u64>,
    #[serde(rename = "N")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    n: Option<u64>,
    #[serde(rename = "K")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    k: Option<u64>,
    /// What it is multiplied in now; the advice does not depend on it.
    precision: Option<String>,
    #[schemars(range(min = 1, max = 1_048_576))]
    tile_m: Option<u64>,
    #[schemars(range(min = 1, max = 1_048_576))]
    tile_n: Option<u64>,
    #[schemars(range(min = 1, max = 1_048_576))]
    tile_k: Option<u64>,
    pub(in crate::server) hardware_key: Option<String>,
    /// Memory that the weights, or all of a model, may take.
    pub(in crate::server) memory_limit_gb: Option<f64>,
    phase: Option<Phase>,
    /// A model instead of a product: the answer is that of `roofline recommend model`.
    pub(in crate::server) model: Option<String>,
}

impl RecommendSpec {
    /// What may stand in the query, too.
    pub(in crate::server) const QUERY: [&'static str; 4] = ["hardware_key", "memory_limit_gb", "phase", "model"];

    /// Body and query together; the body has the last word.
    pub(in crate::server) fn read(query: &Params, body: Map<String, Value>) -> Result<Self, Refusal> {
        query.only(&Self::QUERY)?;
        let mut fields = Map::new();
        for name in ["hardware_key", "phase", "model"] {
            fields.extend(query.get(name).map(|text| (name.to_owned(), text.into())));
        }
        fields.extend(query.number("memory_limit_gb")?.map(|limit| ("memory_limit_gb".to_owned(), limit.into())));
        fields.extend(body.into_iter().filter(|(_, value)| !value.is_null()));
        serde_json::from_value(Value::Object(fields)).map_err(|error| {
            let known = "fields: M, N, K, phase (decode or prefill), model, hardware_key, memory_limit_gb";
            Refusal::body(error.to_string(), known)
        })
    }

    /// The product.
    pub(in crate::server) fn product(&self) -> GEMMSpec {
        let mut product = GEMMSpec::default();
        if self.phase == Some(Phase::Decode) {
            product.m = 1;
        }
        for (side, given) in [(&mut product.m, self.m), (&mut product.n, self.n), (&mut product.k, self.k)] {
            *side = given.unwrap_or(*side);
        }
        product
    }

    /// The model as the command line takes it, on `device`.
    pub(in crate::server) fn question(&self, device: &str) -> Option<Map<String, Value>> {
        let mut question = Map::new();
        question.insert("subject".to_owned(), "model".into());
        question.insert("model".to_owned(), self.model.clone()?.into());
        question.insert("on".to_owned(), json!(self.hardware_key.as_deref().unwrap_or(device)));
        question.extend(self.phase.map(|phase| ("phase".to_owned(), phase.name().into())));
        let limit = self.memory_limit_gb.map(|limit| ("memory_limit".to_owned(), format!("{limit}GB").into()));
        question.extend(limit);
        Some(question)
    }
}
