//! Pictures as files.

use std::path::Path;

use super::Drawing;
use crate::{Context, Error, Result, context::files::replace};

/// Writes a picture as what its file is named for; an older one is replaced only where that is wanted.
pub fn write(context: &Context, drawing: &Drawing, path: &Path, scale: f64, force: bool) -> Result<()> {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    let bytes = match extension.as_deref() {
        Some("svg") => drawing.svg().into_bytes(),
        Some("png") => drawing.png(scale).map_err(|reason| Error::request(reason, "choose a smaller `⟨scale⟩`"))?,
        _ => return Err(Error::request(format!("{}: not a picture", path.display()), "write to a .svg or .png file")),
    };
    if path.exists() && !force {
        return Err(Error::Taken { path: path.to_owned(), hint: "say `⟨force⟩` to replace it" });
    }
    replace(path, &bytes)?;
    context.note(format!("wrote {}", path.display()));
    Ok(())
}
