//! Where a model comes from: the registry, a `config.json`, or the folder of a checkpoint.

use std::path::Path;

use roofline_core::Model;

use crate::{config, failure::Failure, report::style};

/// A name of the registry, or that of a checkpoint as people paste it; else a path, when it looks like one or is one.
pub(super) fn model(text: &str) -> Result<Model, Failure> {
    let path = Path::new(text);
    let named = Model::named(text);
    let slash = text.contains(['/', '\\']);
    let json = path.extension().is_some_and(|extension| extension == "json");
    let known = named.is_ok() && !(slash && path.exists());
    // `organisation/name` with no such folder here is a name that nobody knows, not a file that is missing.
    let pasted = slash && !json && !path.exists() && is_checkpoint_name(text);
    if known || pasted || !(json || path.exists() || slash) {
        let (model, stored) = named?;
        note(text, &model, stored);
        return Ok(model);
    }
    let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let folder = file.parent().and_then(Path::file_name).filter(|_| file.ends_with("config.json"));
    let name = folder.or(file.file_stem()).map_or_else(|| text.to_owned(), |name| name.to_string_lossy().into_owned());
    Ok(Model::from_config(&config::read_text(&file)?, &name)?)
}

/// Whether a text has the form of `organisation/name`, and no folder here has the organisation's name.
fn is_checkpoint_name(text: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && !part.starts_with(['.', '~']) && !part.contains(['/', '\\']);
    text.split_once('/')
        .is_some_and(|(organisation, name)| plain(organisation) && plain(name) && !Path::new(organisation).exists())
}

/// What a name was taken for, where that is not what was typed.
fn note(text: &str, model: &Model, stored: Option<&str>) {
    if text.contains('/') {
        style::talk("note", &format!("`{text}` is no path here: taken as `{}` of the registry", model.key));
    }
    if let Some(ending) = stored {
        let ending = ending.trim_start_matches('-').to_uppercase();
        let message = format!("{ending} in the name chooses no format: `--precision` says how the weights are stored");
        style::talk("note", &message);
    }
}
