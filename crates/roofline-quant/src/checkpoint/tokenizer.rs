//! What turns text into numbers and back, and says how a model is talked to.

use super::{Checkpoint, LONGEST_JSON, read_bounded};
use crate::Result;

/// The files, as Hugging Face calls them.
const FILES: [&str; 4] = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"];

impl Checkpoint {
    /// The files of its tokenizer by name, with the template of a chat and what generation starts from: those that lie
    /// beside the weights, or those made of the metadata of a GGUF file. A link that leads out of the model is left out,
    /// as among the [companions](Self::companions).
    pub fn tokenizer_files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        if let Some(gguf) = &self.gguf {
            return Ok(gguf.files.iter().filter(|(name, _)| FILES.contains(&name.as_str())).cloned().collect());
        }
        let own = FILES.iter().filter_map(|name| Some((*name, self.own(name)?)));
        own.map(|(name, path)| Ok((name.to_owned(), read_bounded(&path, LONGEST_JSON, "file of a tokenizer")?)))
            .collect()
    }
}
