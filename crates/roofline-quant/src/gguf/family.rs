//! The families of models that llama.cpp runs and this crate knows: what each tensor and each number of a configuration is called
//! on either side, and what happens to rows on the way.
//!
//! It is data, read in both directions: from Hugging Face's names to llama.cpp's when a GGUF file is written, and back when one
//! is a source. The names, the order of rows and the keys are those of llama.cpp's own converter.

mod table;

pub use table::FAMILIES;

/// A family of models.
#[derive(Debug)]
pub struct Family {
    /// llama.cpp's word for it, `general.architecture`.
    pub arch: &'static str,
    /// What `architectures` of a `config.json` may say. The first is what is said where a GGUF file is decoded.
    pub classes: &'static [&'static str],
    /// `model_type` of the first of them.
    pub model_type: &'static str,
    /// Tensors outside of the layers.
    pub whole: &'static [Line],
    /// What the names of all layers begin with.
    pub layers: &'static str,
    /// Tensors of a layer, in groups that families share.
    pub layer: &'static [&'static [Line]],
    /// Numbers of the configuration, in the order of the converter.
    pub keys: &'static [&'static [Key]],
    /// What transformers takes where a `config.json` is silent, as JSON.
    pub defaults: &'static str,
    /// What llama.cpp takes for granted, as JSON: a model that says otherwise would come out wrong.
    pub granted: &'static str,
    /// When the size of a head is written.
    pub lengths: Lengths,
    /// How its tokenizer is taken over.
    pub tokens: Tokens,
    /// The tensors, in llama.cpp's words, that may have a bias beside queries, keys and values: it refuses files with others.
    pub biases: &'static [&'static str],
    /// Whether llama.cpp multiplies by the scale that an NVFP4 tensor has beside its blocks in the feed-forward, as it does in
    /// the attention of every family.
    pub scales: bool,
}

/// A tensor on either side.
#[derive(Debug)]
pub struct Line {
    /// Hugging Face's name, without `.weight` or `.bias`, and `*` where the number of an expert stands.
    pub hf: &'static str,
    /// llama.cpp's, without `.weight` or `.bias`. With it, the tensor is called exactly so on both sides.
    pub gguf: &'static str,
    /// What happens to its numbers on the way to GGUF.
    pub conversion: Conversion,
}

/// What happens to the numbers of a tensor on the way to GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversion {
    /// Nothing.
    Same,
    /// One is added: the weights of Gemma's norms are stored without it.
    PlusOne,
    /// The rotary halves of each query head become neighbours.
    QueryPairs,
    /// The rotary halves of each key head become neighbours.
    KeyPairs,
    /// Groups of queries with their key and value become all queries, all keys, all values.
    Fused,
    /// Experts that lie apart become one stack.
    Expert,
    /// A stack of transposed experts, `[experts, in, out]`, is transposed back; of what it holds, a share.
    Stack(Share),
    /// The biases of a stack, of which a share.
    Biases(Share),
    /// Of the matrix that unfolds keys and values, the keys of each head, transposed.
    LatentKey,
    /// Of the matrix that unfolds keys and values, the values of each head.
    LatentValue,
}

/// Which outputs of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All.
    Whole,
    /// The first half.
    First,
    /// The second half.
    Second,
    /// Every other one, from the first on.
    Even,
    /// Every other one, from the second on.
    Odd,
}

/// A number of the configuration.
#[derive(Debug)]
pub struct Key {
    /// llama.cpp's name, without the architecture.
    pub gguf: &'static str,
    /// What it says.
    pub from: From,
}

/// Where a number of the metadata comes from. Several names are several dialects; the first is what is written back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum From {
    /// The number of layers.
    Layers,
    /// The number of heads of keys and values.
    KvHeads,
    /// How many numbers of a head are rotated.
    Rotary,
    /// How many tokens there are.
    Vocabulary,
    /// Whatever the configuration says of rotary positions.
    Rope,
    /// The base of rotary positions, where it is not the usual one.
    Base,
    /// Where the size of a head is written.
    Lengths,
    /// `general.file_type`.
    FileType,
    /// A whole number.
    Whole(&'static [&'static str]),
    /// A whole number, and what it is where none is given.
    WholeOr(&'static str, u32),
    /// The sum of two whole numbers.
    Sum(&'static str, &'static str),
    /// A real number.
    Real(&'static [&'static str]),
    /// A tenth of a real number that is said of rotary positions.
    RopeTenth(&'static str),
    /// Yes or no.
    Flag(&'static str),
    /// Yes, where the configuration says so.
    Yes(&'static str),
    /// How experts are scored.
    Scoring,
    /// Always this text.
    Text(&'static str),
    /// Always this number.
    Number(u32),
}

/// When the size of a head is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// Never.
    Never,
    /// Where the configuration gives it.
    Given,
    /// Always: transformers computes it where it is not given.
    Always,
}

/// How a tokenizer is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// SentencePiece or pairs, with a word on the space before a text.
    Llama,
    /// Pairs of bytes, or SentencePiece where its file is there.
    Usual,
    /// SentencePiece, with no space before a text.
    Gemma,
    /// SentencePiece, in which tokens added later have the last word.
    Phi,
    /// Pairs of bytes, in which `<|user|>` ends a turn.
    Glm,
}

impl Family {
    /// All the lines of a layer.
    pub fn lines(&self) -> impl Iterator<Item = &'static Line> {
        self.layer.iter().flat_map(|group| group.iter())
    }

    /// The family of a class of transformers.
    pub fn of_class(class: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.classes.contains(&class))
    }

    /// Names of all the classes that are known, each without what is the same in all.
    pub fn names() -> String {
        let classes = FAMILIES.iter().flat_map(|family| family.classes);
        let mut names: Vec<&str> = classes
            .map(|class| class.trim_end_matches("ForCausalLM").trim_end_matches("ForConditionalGeneration"))
            .collect();
        names.dedup();
        names.join(", ")
    }
}

/// A tensor's name in the language model alone: models that see keep it in a part of their own.
pub fn within(name: &str) -> String {
    for (outer, inner) in
        [("language_model.", ""), ("model.language_model.", "model."), ("model.text_model.", "model.")]
    {
        if let Some(rest) = name.strip_prefix(outer) {
            return format!("{inner}{rest}");
        }
    }
    name.to_owned()
}

/// Whether `name` is `pattern`, in which a `*` stands for a number; the number.
pub fn matches(pattern: &str, name: &str) -> Option<Option<usize>> {
    let Some((start, end)) = pattern.split_once('*') else { return (pattern == name).then_some(None) };
    let number = name.strip_prefix(start)?.strip_suffix(end)?;
    (number.bytes().all(|digit| digit.is_ascii_digit())).then(|| number.parse().ok().map(Some))?
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every line can be read from either side, and every default is JSON.
    #[test]
    fn the_table_is_unambiguous() {
        for family in FAMILIES {
            let all: Vec<&Line> = family.whole.iter().chain(family.lines()).collect();
            // Falcon has two ways to call its norms, of which a model has one.
            let names: BTreeSet<&str> = all.iter().map(|line| line.gguf).collect();
            assert_eq!(names.len() + usize::from(family.arch == "falcon"), all.len(), "{}", family.arch);
            let shared = |conversion: Conversion| {
                matches!(
                    conversion,
                    Conversion::Stack(_) | Conversion::Biases(_) | Conversion::LatentKey | Conversion::LatentValue
                )
            };
            let own: Vec<&str> = all.iter().filter(|line| !shared(line.conversion)).map(|line| line.hf).collect();
            assert_eq!(own.iter().collect::<BTreeSet<_>>().len(), own.len(), "{} reads a name twice", family.arch);
            let defaults: serde_json::Value = serde_json::from_str(family.defaults).unwrap();
            let granted: serde_json::Value = serde_json::from_str(family.granted).unwrap();
            assert!(defaults.is_object() && granted.is_object());
            assert!(all.iter().all(|line| (line.conversion == Conversion::Expert) == line.hf.contains('*')));
        }
        let classes: Vec<&str> = FAMILIES.iter().flat_map(|family| family.classes.iter().copied()).collect();
        assert_eq!(classes.iter().collect::<BTreeSet<_>>().len(), classes.len());
    }

    #[test]
    fn names_have_numbers_and_wrappings() {
        assert_eq!(matches("mlp.experts.*.up_proj", "mlp.experts.12.up_proj"), Some(Some(12)));
        assert_eq!(matches("mlp.experts.*.up_proj", "mlp.experts.+1.up_proj"), None);
        assert_eq!(matches("mlp.experts.*.up_proj", "mlp.experts..up_proj"), None);
        assert_eq!(matches("mlp.up_proj", "mlp.up_proj"), Some(None));
        assert_eq!(within("language_model.model.norm.weight"), "model.norm.weight");
        assert_eq!(within("model.language_model.norm.weight"), "model.norm.weight");
        assert_eq!(within("lm_head.weight"), "lm_head.weight");
    }
}
