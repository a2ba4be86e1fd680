//! Where a model comes from: the registry, a `config.json`, or the folder of a checkpoint.

use std::path::Path;

use roofline_core::Model;

use crate::{config, failure::Failure};

/// A name of the registry; else a path, when it looks like one or is one.
pub(super) fn model(text: &str) -> Result<Model, Failure> {
    let path = Path::new(text);
    let named = Model::find(text);
    let json = path.extension().is_some_and(|extension| extension == "json");
    if named.is_ok() || !(json || path.exists() || text.contains(['/', '\\'])) {
        return Ok(named?);
    }
    let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let folder = file.parent().and_then(Path::file_name).filter(|_| file.ends_with("config.json"));
    let name = folder.or(file.file_stem()).map_or_else(|| text.to_owned(), |name| name.to_string_lossy().into_owned());
    Ok(Model::from_config(&config::read_text(&file)?, &name)?)
}
