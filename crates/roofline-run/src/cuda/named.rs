//! Choices that a kernel's source asks for by name.
//!
//! A source says `#if STORED == NVFP4`. Both are macros, and their numbers are made here from the one list of an enum: none
//! is written down twice. They start at 1, because the preprocessor takes a name that nobody defined for 0, which must not
//! be one of the choices.

/// An enum whose variants have names in a kernel's source.
macro_rules! named {
    ($(#[$about:meta])* $visible:vis enum $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visible enum $name {
            $($(#[$of])* $variant,)+
        }

        impl $name {
            /// Macros for a source: every name, and `question`, which is this choice.
            $visible fn defines(self, question: &'static str) -> Vec<(&'static str, i64)> {
                let number = |choice: Self| choice as i64 + 1;
                vec![(question, number(self)), $(($word, number(Self::$variant))),+]
            }
        }
    };
}

pub(super) use named;

#[cfg(test)]
mod tests {
    use crate::cuda::sources;

    /// A name that the list does not have would never be chosen, and its code never compiled.
    #[test]
    fn sources_know_the_names_of_their_choices_only() {
        let mut seen = 0;
        for question in ["STORED", "FUNCTION", "CACHE", "OUTPUT"] {
            for (name, recipe) in sources() {
                for (at, _) in recipe.source.match_indices(question) {
                    let rest = recipe.source[at + question.len()..].trim_start();
                    let Some(rest) = rest.strip_prefix("==").or_else(|| rest.strip_prefix("!=")) else { continue };
                    let word: String =
                        rest.trim_start().chars().take_while(|c| *c == '_' || c.is_alphanumeric()).collect();
                    assert!(
                        recipe.defines.iter().any(|(name, _)| *name == word),
                        "{name}: {question} is asked for {word}"
                    );
                    seen += 1;
                }
            }
        }
        assert!(seen > 100, "{seen}");
    }
}
