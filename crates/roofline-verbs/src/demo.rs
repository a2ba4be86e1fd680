//! The demo model: a small Llama that comes with the program, so that everything a model is good for can be seen without a
//! download. Its card is `data/demo/README.md`.

use std::path::Path;
#[cfg(feature = "files")]
use std::{fs, path::PathBuf};

use roofline_core::Model;

use crate::Result;
#[cfg(feature = "hardware")]
use crate::quantize;
#[cfg(feature = "files")]
use crate::{Context, Error, context::files::replace};

/// What stands for it where a checkpoint is named.
pub const NAME: &str = "demo";
/// What it is called in answers.
pub const MODEL: &str = "roofline-demo";

const CONFIG: &str = include_str!("../data/demo/config.json");

#[cfg(feature = "files")]
macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!("../data/demo/", $name)).as_slice())),*]
    };
}

/// Its files, as they lie in a checkpoint's folder.
#[cfg(feature = "files")]
static FILES: [(&str, &[u8]); 6] = files![
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "README.md",
];

/// What it is evaluated on: the prose of this project's documentation on the day it was trained.
#[cfg(feature = "files")]
pub fn text() -> &'static str {
    include_str!("../data/demo/evaluation.txt")
}

/// Whether a path is the demo's name. A file or folder of that name comes first.
pub fn is_meant(path: &Path) -> bool {
    path == Path::new(NAME) && !path.exists()
}

/// Its dimensions, which need no files.
pub(crate) fn model() -> Result<Model> {
    Ok(Model::from_config(CONFIG, MODEL)?)
}

/// The checkpoint that a path means: `demo` is the one that comes with the program, unpacked where this program keeps
/// things; anything else is what it says.
#[cfg(feature = "files")]
pub fn checkpoint(context: &Context, path: &Path) -> Result<PathBuf> {
    if !is_meant(path) {
        return Ok(path.to_owned());
    }
    if !context.is_local() {
        return Err(Error::Path { what: "model", name: NAME.to_owned() });
    }
    let folder = context.home().required_folder(NAME)?.join(MODEL);
    for (name, bytes) in FILES {
        let file = folder.join(name);
        // What is there may be of another version, or somebody's changes.
        let same = fs::read(&file).is_ok_and(|found| found == bytes);
        if !same {
            replace(&file, bytes)?;
        }
    }
    Ok(folder)
}

/// The same in a plan's formats, made anew beside it.
#[cfg(feature = "hardware")]
pub(crate) fn quantized(context: &Context, plan: &str) -> Result<PathBuf> {
    let to = checkpoint(context, Path::new(NAME))?.with_file_name(format!("{MODEL}-{plan}"));
    let request = quantize::Request {
        model: Some(PathBuf::from(NAME)),
        plan: Some(plan.to_owned()),
        to: Some(to.clone()),
        force: true,
        ..quantize::Request::default()
    };
    quantize::quantize(context, &request)?;
    Ok(to)
}

#[cfg(all(test, feature = "files"))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{context::Home, note::Nobody};

    #[test]
    fn it_is_what_its_card_says() {
        let model = model().unwrap();
        let layers: u64 = model.layers.iter().map(|layer| layer.count).sum();
        assert_eq!((model.name.as_str(), model.vocabulary.get(), layers), (MODEL, 4096, 7));
        let parameters = model.parameters();
        assert!((5_000_000..=5_500_000).contains(&parameters), "{parameters}");
        let bytes: usize = FILES.iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(bytes + text().len() <= 12_000_000, "{bytes}");
    }

    #[test]
    fn only_the_word_means_it_and_only_here() {
        let context = Context::local(Arc::new(Home::none()), Arc::new(Nobody));
        assert_eq!(checkpoint(&context, Path::new("./demo")).unwrap(), Path::new("./demo"));
        assert!(matches!(checkpoint(&Context::pure(), Path::new(NAME)), Err(Error::Path { .. })));
        // There must be a place to unpack it in.
        assert!(checkpoint(&context, Path::new(NAME)).is_err());
    }
}
