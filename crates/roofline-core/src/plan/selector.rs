//! Which weights a rule of a plan speaks of.

use std::{fmt, str::FromStr};

use crate::{
    Error, Result,
    role::{Role, Roles},
};

/// What is left of the `=` in a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// Matrices of these roles, in these layers where some are named.
    Roles {
        /// What they are for.
        roles: Roles,
        /// In which layers; all where none are named.
        layers: Option<Layers>,
    },
    /// Modules of a checkpoint by name, `*` standing for any run of letters and `?` for one.
    Modules(String),
}

/// Layers from one to another, both included; counted from the end where negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// The first.
    pub first: i64,
    /// The last.
    pub last: i64,
}

impl Layers {
    /// Whether layer `at` of `count` is among them.
    pub fn has(self, at: u64, count: u64) -> bool {
        let from_start = |layer: i64| if layer < 0 { layer + count as i64 } else { layer };
        (from_start(self.first)..=from_start(self.last)).contains(&(at as i64))
    }
}

impl Selector {
    /// Whether it speaks of the weight of that role, in that layer of `count`; `module` is its name in a checkpoint.
    pub fn fits(&self, role: Role, layer: Option<u64>, count: u64, module: Option<&str>) -> bool {
        match self {
            Self::Roles { roles, layers } => {
                roles.has(role) && layers.is_none_or(|layers| layer.is_some_and(|layer| layers.has(layer, count)))
            }
            Self::Modules(pattern) => module.is_some_and(|module| matches(pattern, module)),
        }
    }

    /// Whether it tells layers apart.
    pub(super) fn is_by_layer(&self) -> bool {
        matches!(self, Self::Roles { layers: Some(_), .. })
    }
}

impl FromStr for Selector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let Some(rest) = text.strip_prefix("layers.") else {
            // A name of a module has dots, or a star that is not all of it.
            let module = text.contains('.') || text.contains('?') || text.contains('*') && text != "*";
            return if module {
                Ok(Self::Modules(text.to_owned()))
            } else {
                Ok(Self::Roles { roles: text.parse()?, layers: None })
            };
        };
        let (range, roles) = rest.split_once('.').map_or((rest, None), |(range, role)| (range, Some(role)));
        let layers = layers(range).ok_or_else(|| {
            let hint =
                "write `layers.0-1`, `layers.5` or, from the end, `layers.-1`; a role may follow: `layers.0-1.down`";
            Error::Unknown { what: "range of layers", name: range.to_owned(), nearest: None, hint: hint.to_owned() }
        })?;
        // What a layer holds, routers aside, unless a role says otherwise.
        let inside = Roles::of(&Role::ALL.into_iter().filter(|role| role.is_layer_product()).collect::<Vec<_>>());
        Ok(Self::Roles { roles: roles.map_or(Ok(inside), str::parse)?, layers: Some(layers) })
    }
}

/// `3`, `-1`, `0-1`, `-4--1`.
fn layers(text: &str) -> Option<Layers> {
    let cut = text.char_indices().skip(1).find(|(_, letter)| *letter == '-').map(|(at, _)| at);
    let (first, last) = cut.map_or((text, text), |cut| (&text[..cut], &text[cut + 1..]));
    let number = |text: &str| text.parse::<i64>().ok().filter(|number| number.abs() <= 100_000);
    let (first, last) = (number(first)?, number(last)?);
    // An order that is wrong whatever the number of layers.
    ((first < 0) != (last < 0) || first <= last).then_some(Layers { first, last })
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Modules(pattern) => f.write_str(pattern),
            Self::Roles { roles, layers: None } => f.write_str(roles.word().unwrap_or("*")),
            Self::Roles { roles, layers: Some(Layers { first, last }) } => {
                if first == last {
                    write!(f, "layers.{first}")?;
                } else {
                    write!(f, "layers.{first}-{last}")?;
                }
                roles.word().map_or(Ok(()), |word| write!(f, ".{word}"))
            }
        }
    }
}

/// Whether `text` is what `pattern` describes. Linear in the text for every star, so a hostile pattern costs little.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut retry = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, t));
                p += 1;
            }
            Some(byte) if *byte == b'?' || *byte == text[t] => (p, t) = (p + 1, t + 1),
            _ => match retry {
                // The star takes one character more.
                Some((after, from)) => {
                    (p, t) = (after, from + 1);
                    retry = Some((after, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(text: &str, role: Role, layer: u64) -> bool {
        text.parse::<Selector>().unwrap().fits(role, Some(layer), 32, Some("model.layers.0.mlp.down_proj"))
    }

    #[test]
    fn layers_count_from_both_ends() {
        assert!(fits("layers.0-1", Role::Query, 1) && !fits("layers.0-1", Role::Query, 2));
        assert!(fits("layers.-1", Role::Down, 31) && !fits("layers.-1", Role::Down, 30));
        assert!(fits("layers.-4--1", Role::Up, 28) && fits("layers.30--1", Role::Up, 31));
        assert!(fits("layers.0-1.down", Role::Down, 0) && !fits("layers.0-1.down", Role::Up, 0));
        // A router stays wide unless it is named.
        assert!(!fits("layers.0-1", Role::Router, 0) && fits("layers.0-1.router", Role::Router, 0));
    }

    #[test]
    fn modules_are_told_from_roles() {
        assert!(fits("*.down_proj", Role::Other, 0) && !fits("*.up_proj", Role::Up, 0));
        assert!(fits("*", Role::Head, 0) && fits("ffn", Role::ExpertUp, 0));
        for text in ["layers.x", "layers.2-1", "layers.", "wheel"] {
            assert!(text.parse::<Selector>().is_err(), "{text}");
        }
    }

    #[test]
    fn texts_come_back() {
        for text in ["*", "ffn", "head", "layers.0-1", "layers.-1", "layers.-4--1.down", "*.mlp.*"] {
            assert_eq!(text.parse::<Selector>().unwrap().to_string(), text);
        }
    }
}
