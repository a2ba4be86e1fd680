//! Models by name: the registry, a `config.json`, the folder of a checkpoint, or the text of a `config.json` itself.

use std::path::Path;

use roofline_core::Model;

use super::{Context, files::read_text};
use crate::{Error, Result, demo, request::ModelName};

impl Context {
    /// What a request calls a model: a name of the registry, or that of a checkpoint as people paste it; else a path, when
    /// it looks like one or is one; or the model's own `config.json`.
    pub fn model(&self, asked: &ModelName) -> Result<Model> {
        match asked {
            ModelName::Name(text) => self.named_model(text),
            ModelName::Config(config) => Ok(Model::from_config(&config.to_string(), "config")?),
        }
    }

    fn named_model(&self, text: &str) -> Result<Model> {
        let path = Path::new(text);
        if text == demo::NAME && (!self.is_local() || demo::is_meant(path)) {
            return demo::model();
        }
        let named = Model::named(text);
        let slash = text.contains(['/', '\\']);
        let json = path.extension().is_some_and(|extension| extension == "json");
        if !self.is_local() {
            return match named {
                Ok((model, stored)) => Ok(self.noted(text, model, stored)),
                // `organisation/name` is a name that nobody knows; what only a path can be is refused as one.
                Err(_) if json || (slash && !is_checkpoint_name(text)) => {
                    Err(Error::Path { what: "model", name: text.chars().take(80).collect() })
                }
                Err(error) => Err(error.into()),
            };
        }
        let known = named.is_ok() && !(slash && path.exists());
        // `organisation/name` with no such folder here is a name that nobody knows, not a file that is missing.
        let pasted = slash && !json && !path.exists() && is_checkpoint_name(text) && no_folder(text);
        if known || pasted || !(json || path.exists() || slash) {
            let (model, stored) = named?;
            return Ok(self.noted(text, model, stored));
        }
        let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        let folder = file.parent().and_then(Path::file_name).filter(|_| file.ends_with("config.json"));
        let name = folder.or(file.file_stem());
        let name = name.map_or_else(|| text.to_owned(), |name| name.to_string_lossy().into_owned());
        Ok(Model::from_config(&read_text(&file)?, &name)?)
    }

    /// Says what a name was taken for, where that is not what was written.
    fn noted(&self, text: &str, model: Model, stored: Option<&str>) -> Model {
        if text.contains('/') {
            self.note(format!("`{text}` is no path here: taken as `{}` of the registry", model.key));
        }
        if let Some(ending) = stored {
            let ending = ending.trim_start_matches('-').to_uppercase();
            self.note(format!("{ending} in the name chooses no format: `⟨precision⟩` says how the weights are stored"));
        }
        model
    }
}

/// Whether a text has the form of `organisation/name`.
fn is_checkpoint_name(text: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && !part.starts_with(['.', '~']) && !part.contains(['/', '\\']);
    text.split_once('/').is_some_and(|(organisation, name)| plain(organisation) && plain(name))
}

/// Whether no folder here has the organisation's name.
fn no_folder(text: &str) -> bool {
    text.split_once('/').is_some_and(|(organisation, _)| !Path::new(organisation).exists())
}
