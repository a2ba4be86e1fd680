//! Models: dimensions, parameters, cache.

use clap::Args;
use roofline_core::{Dim, Format, Model, format::Sizes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Context, Note, Result,
    request::{ModelName, list},
};

/// The models that are asked about.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[command(after_help = "\
Examples:
  roofline models
  roofline models deepseek-v3
  roofline models ~/checkpoints/my-model/config.json")]
#[serde(default)]
#[schemars(rename = "ModelsRequest")]
pub struct Request {
    /// Models to explain: names, `config.json` files or folders with one; a table of all when left out
    #[arg(value_name = "MODEL")]
    #[serde(deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<ModelName>")]
    pub names: Vec<ModelName>,
}

/// Models, each with what follows from its dimensions.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ModelsAnswer")]
pub struct Answer {
    pub models: Vec<ModelFacts>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// A model.
#[derive(Serialize, JsonSchema)]
pub struct ModelFacts {
    #[serde(flatten)]
    pub model: Model,
    pub parameters: f64,
    pub active_parameters: f64,
    /// At 16 bit, averaged over 32768 tokens: windows make it depend on the context.
    pub kv_bytes_per_token: f64,
}

/// The models that were named, or those of the registry.
pub fn models(context: &Context, request: &Request) -> Result<Answer> {
    let models = if request.names.is_empty() {
        Model::builtin().to_vec()
    } else {
        request.names.iter().map(|name| context.model(name)).collect::<Result<_>>()?
    };
    let models = models.into_iter().map(ModelFacts::new).collect::<Result<_>>()?;
    Ok(Answer { models, notes: context.notes() })
}

impl ModelFacts {
    fn new(model: Model) -> Result<Self> {
        let context = Dim::new("context", 32_768)?;
        let kv = model.kv_bytes(Dim::ONE, context, Dim::ONE, Format::BF16, Sizes::Exact);
        Ok(Self {
            parameters: model.parameters() as f64,
            active_parameters: model.active_parameters() as f64,
            kv_bytes_per_token: kv.value() / context.get() as f64,
            model,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::request::{answers_fit, from_json};

    /// Keys and values of 8 heads of 128 in 32 layers at 2 bytes are 128 KiB for each token.
    #[test]
    fn a_model_in_json() {
        let request = from_json(json!({ "names": ["meta-llama/Meta-Llama-3-8B", "mixtral-8x7b"] })).unwrap();
        let answer = models(&Context::pure(), &request).unwrap();
        answers_fit(&answer);
        assert_eq!((answer.models[0].kv_bytes_per_token, answer.notes.len()), (131_072.0, 1));
        assert!(answer.models[1].active_parameters < answer.models[1].parameters);
        answers_fit(&models(&Context::pure(), &Request::default()).unwrap());
    }
}
