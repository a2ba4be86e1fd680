//! Which format at which place: the one thing that varies.
//!
//! A plan is a text: a name for the layers' products, then rules for what differs, the last that fits winning.
//!
//! ```text
//! w4a16
//! w4a16,head=q8_0,kv=fp8
//! ffn=int4-g64,attention=fp8
//! *=bf16,experts=mxfp4
//! q4_k_m,layers.0-1=bf16
//! ```
//!
//! What nothing names stays at 16 bit. Names of llama.cpp's recipes ([`Mix`]) decide about head and embedding, too.

mod assignment;
mod file;
mod mix;
mod selector;
mod signature;

pub use assignment::{Assignment, Kernel};
pub use mix::Mix;
pub use selector::{Layers, Selector, matches};
pub use signature::{held, signature};

use std::{fmt, str::FromStr};

use crate::{
    Error, Format, Result,
    precision::{Output, PrecisionSpec},
    role::Role,
    text::textual,
};

/// Rules longer than any plan has, and texts longer than any rule takes.
const MOST_RULES: usize = 64;
const LONGEST: usize = 4096;

/// What is stored and multiplied how, on no device yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    base: Base,
    kv: Option<Format>,
    rules: Vec<Rule>,
}

/// What the products inside the layers are, before any rule.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Base {
    Precision(PrecisionSpec),
    Mix(Mix),
}

/// An exception.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Where.
    pub selector: Selector,
    /// What.
    pub precision: PrecisionSpec,
}

/// What a plan makes of one weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored<'a> {
    /// As it is: 16 bit.
    Wide,
    /// In this precision.
    As(&'a PrecisionSpec),
    /// As a recipe of llama.cpp says.
    Mixed(Mix),
}

impl Plan {
    /// One precision for the layers' products.
    pub fn of(precision: PrecisionSpec) -> Self {
        Self { base: Base::Precision(precision), kv: None, rules: Vec::new() }
    }

    /// A recipe of llama.cpp.
    pub fn mixed(mix: Mix) -> Self {
        Self { base: Base::Mix(mix), kv: None, rules: Vec::new() }
    }

    /// 16 bit throughout.
    pub fn sixteen() -> Self {
        Self::of(PrecisionSpec::sixteen())
    }

    /// The same with one more rule, which wins over those before.
    #[must_use]
    pub fn with(mut self, selector: Selector, precision: PrecisionSpec) -> Self {
        self.rules.push(Rule { selector, precision });
        self
    }

    /// The same with another format of the cache.
    #[must_use]
    pub fn with_kv(self, kv: Format) -> Self {
        Self { kv: Some(kv), ..self }
    }

    /// The same with other outputs of products.
    #[must_use]
    pub fn with_output(self, output: Output) -> Self {
        match self.base {
            Base::Precision(precision) => Self { base: Base::Precision(precision.with_output(output)), ..self },
            Base::Mix(_) => self,
        }
    }

    /// The name of what the layers are in: that of a precision, or of a recipe.
    pub fn base(&self) -> &str {
        match &self.base {
            Base::Precision(precision) => precision.name(),
            Base::Mix(mix) => mix.name(),
        }
    }

    /// The text as it was asked for, names and all.
    pub fn label(&self) -> String {
        self.written(PrecisionSpec::name)
    }

    fn written(&self, name: fn(&PrecisionSpec) -> &str) -> String {
        let base = match &self.base {
            Base::Precision(precision) => name(precision),
            Base::Mix(mix) => mix.name(),
        };
        // Rules alone say that the rest is 16 bit.
        let silent = base == "16bit" && !self.rules.is_empty();
        let mut items: Vec<String> = if silent { Vec::new() } else { vec![base.to_owned()] };
        items.extend(self.rules.iter().map(|rule| format!("{}={}", rule.selector, name(&rule.precision))));
        items.extend(self.kv.map(|kv| format!("kv={kv}")));
        items.join(",")
    }

    /// The recipe of llama.cpp it starts from.
    pub fn mix(&self) -> Option<Mix> {
        match self.base {
            Base::Mix(mix) => Some(mix),
            Base::Precision(_) => None,
        }
    }

    /// The precision of the layers, where there is no recipe.
    pub fn precision(&self) -> Option<&PrecisionSpec> {
        match &self.base {
            Base::Precision(precision) => Some(precision),
            Base::Mix(_) => None,
        }
    }

    /// What it says of the cache.
    pub fn kv(&self) -> Option<Format> {
        self.kv
    }

    /// What differs from the base.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether one name says it all.
    pub fn is_uniform(&self) -> bool {
        self.rules.is_empty() && self.kv.is_none()
    }

    /// The rule for a weight of that role, in that layer of `layers`: the last that fits. `module` is its name in a checkpoint.
    pub fn rule(&self, role: Role, layer: Option<u64>, layers: u64, module: Option<&str>) -> Option<&Rule> {
        self.rules.iter().rev().find(|rule| rule.selector.fits(role, layer, layers, module))
    }

    /// What becomes of a weight of that role, in that layer of `layers`; `module` is its name in a checkpoint.
    pub fn at(&self, role: Role, layer: Option<u64>, layers: u64, module: Option<&str>) -> Stored<'_> {
        match (self.rule(role, layer, layers, module), &self.base) {
            (Some(exception), _) => Stored::As(&exception.precision),
            (None, Base::Mix(mix)) => Stored::Mixed(*mix),
            (None, Base::Precision(precision)) if role.is_layer_product() => Stored::As(precision),
            (None, Base::Precision(_)) => Stored::Wide,
        }
    }

    /// Several plans in one text: an item without `=` starts the next one.
    pub fn list(text: &str) -> Result<Vec<Self>> {
        let mut texts: Vec<String> = Vec::new();
        for item in text.split(',').map(str::trim) {
            match texts.last_mut() {
                Some(last) if item.contains('=') => *last += &format!(",{item}"),
                _ => texts.push(item.to_owned()),
            }
        }
        texts.iter().map(|text| text.parse()).collect()
    }
}

impl FromStr for Plan {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let hint = "a plan is a name (`w4a16`), rules by role (`head=q8_0`), or both, with commas between";
        let refuse =
            |name: &str| Error::Unknown { what: "plan", name: name.to_owned(), nearest: None, hint: hint.to_owned() };
        let more = |count: usize, of: &str, most: usize| Error::Plan {
            reason: format!("it has {count} {of}, more than the {most} of any plan"),
            hint: "one rule by role or by pattern (`*.down_proj=w8a16`) says what many by name say".to_owned(),
        };
        if text.len() > LONGEST {
            return Err(more(text.len(), "letters", LONGEST));
        }
        // Quoted in one line, however it was broken.
        let text = &text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut plan: Option<Self> = None;
        for (at, item) in text.split(',').map(str::trim).enumerate() {
            let Some((selector, value)) = item.split_once('=') else {
                if at > 0 {
                    return Err(refuse(text));
                }
                plan = Some(match Mix::named(item) {
                    Some(mix) => Self::mixed(mix),
                    None => Self::of(item.parse()?),
                });
                continue;
            };
            let made = plan.take().unwrap_or_else(Self::sixteen);
            let (selector, value) = (selector.trim(), value.trim());
            plan = Some(if matches!(selector, "kv" | "kv_cache" | "cache") {
                made.with_kv(value.parse()?)
            } else {
                made.with(selector.parse()?, stored_as(value)?)
            });
        }
        let plan = plan.ok_or_else(|| refuse(text))?;
        if plan.rules.len() > MOST_RULES { Err(more(plan.rules.len(), "rules", MOST_RULES)) } else { Ok(plan) }
    }
}

/// What is right of the `=`: a precision, a format of weights, or that it is kept.
fn stored_as(value: &str) -> Result<PrecisionSpec> {
    match value {
        "keep" | "16bit" | "16" => Ok(PrecisionSpec::sixteen()),
        other => other.parse(),
    }
}

impl fmt::Display for Plan {
    /// The text that every verb takes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.written(PrecisionSpec::canonical))
    }
}

textual!(
    Plan,
    "Which format at which place: a name, rules by role or by place, or both, with commas between.",
    ["w4a16", "w4a16,head=q8_0,kv=fp8", "q4_k_m"]
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back() {
        for text in [
            "w4a16",
            "w4a16,head=q8_0,kv=fp8-e4m3",
            "ffn=int4-g64,attention=fp8",
            "*=bf16,experts=mxfp4",
            "q4_k_m,layers.0-1=bf16",
            "int4-g32/bf16,head=int8-g32,embedding=int8-g32",
            "fp16@fp16_fp16acc",
        ] {
            let plan: Plan = text.parse().unwrap();
            assert_eq!(plan.to_string(), text);
            assert_eq!(plan.to_string().parse::<Plan>().unwrap(), plan);
        }
        // Names as people write them become the one name.
        for (written, text) in
            [("FP8_E4M3", "fp8"), ("W8A8", "int8"), ("INT4", "w4a16"), ("Q4_K_M", "q4_k_m"), ("NVFP4", "nvfp4")]
        {
            assert_eq!(written.parse::<Plan>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_item_without_a_sign_starts_the_next() {
        let plans = Plan::list("bf16,fp8,w4a16,head=q8_0").unwrap();
        assert_eq!(plans.iter().map(ToString::to_string).collect::<Vec<_>>(), ["bf16", "fp8", "w4a16,head=q8_0"]);
        assert!("bf16,fp8".parse::<Plan>().is_err());
    }

    #[test]
    fn the_last_rule_that_fits_wins() {
        let plan: Plan = "w4a16,ffn=fp8,down=w8a16,layers.0=bf16".parse().unwrap();
        let at = |role, layer| match plan.at(role, Some(layer), 32, None) {
            Stored::As(precision) => precision.name().to_owned(),
            other => format!("{other:?}"),
        };
        assert_eq!(at(Role::Query, 1), "w4a16");
        assert_eq!(at(Role::Up, 1), "fp8");
        assert_eq!(
            (at(Role::Down, 1), at(Role::ExpertDown, 1), at(Role::Down, 0)),
            ("w8a16".into(), "w8a16".into(), "bf16".into())
        );
        assert_eq!(at(Role::Head, 1), "Wide");
    }

    #[test]
    fn slips_are_named() {
        let why = |text: &str| text.parse::<Plan>().unwrap_err().to_string();
        assert_eq!(why("w4a61"), "unknown precision `w4a61`; did you mean `w4a16`?");
        assert_eq!(why("w4a16,heads=q8_0"), "unknown role `heads`; did you mean `head`?");
        assert!(why("").contains("unknown precision ``"));
        assert!(why("w4a16,kv=q9").contains("unknown format `q9`"));
    }
}
