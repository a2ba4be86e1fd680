//! What of a model gets a format of its own.

use roofline_core::Role;

use crate::{
    layout::{Experts, Together},
    site::Site,
};

/// Runs of layers at most. A plan has room for so many rules, and whoever measures for so many runs.
const BANDS: u64 = 8;

/// Roles that share a format: those that read the same input, and of which one is as sensitive as the other.
const APART: [&[Role]; 2] = [&[Role::Query, Role::Key], &[Role::Value]];
/// The same where a runtime multiplies all three at once.
const FUSED: [&[Role]; 1] = [&[Role::Query, Role::Key, Role::Value]];
const OUTPUT: &[Role] = &[Role::Output];
/// Feed-forward blocks, experts among them where these may be stored as the others are.
const ALL: [&[Role]; 2] = [&[Role::Gate, Role::ExpertGate, Role::Up, Role::ExpertUp], &[Role::Down, Role::ExpertDown]];
const DENSE: [&[Role]; 2] = [&[Role::Gate, Role::Up], &[Role::Down]];
const EXPERTS: &[Role] = &[Role::ExpertGate, Role::ExpertUp, Role::ExpertDown];
const ENDS: [&[Role]; 2] = [&[Role::Embedding], &[Role::Head]];

/// A part of a model: matrices of some roles, in some layers where they are in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portion {
    /// What its matrices are for.
    pub roles: Vec<Role>,
    /// The first and the last of its layers.
    pub layers: Option<(u64, u64)>,
    /// Whether it is all that experts have.
    experts: bool,
}

impl Portion {
    /// All portions of a model that has weights at these places, in the order of its layers.
    pub(crate) fn all(sites: &[Site], together: Together) -> Vec<Self> {
        let layers = sites.iter().filter_map(|site| site.layer).max().map_or(0, |last| last + 1);
        let band = layers.div_ceil(BANDS).max(1);
        let attention: &[&[Role]] = if together.attention { &FUSED } else { &APART };
        let blocks = if together.experts == Experts::Apart { ALL } else { DENSE };
        let mut all = Vec::new();
        let mut push = |roles: &[Role], layers| all.push(Self::new(roles, layers));
        for first in (0..layers).step_by(band as usize) {
            let run = Some((first, (first + band).min(layers) - 1));
            attention.iter().chain([&OUTPUT]).chain(&blocks).for_each(|roles| push(roles, run));
            if together.experts == Experts::InLayer {
                push(EXPERTS, run);
            }
        }
        if together.experts == Experts::InModel && layers > 0 {
            push(EXPERTS, Some((0, layers - 1)));
        }
        for roles in ENDS {
            push(roles, None);
        }
        // A rule for what is not there is taken for a slip of the pen.
        for portion in &mut all {
            let own: Vec<Role> = sites.iter().filter(|site| portion.has(site)).map(|site| site.role).collect();
            portion.roles.retain(|role| own.contains(role));
        }
        all.retain(|portion| !portion.roles.is_empty());
        all
    }

    pub(super) fn new(roles: &[Role], layers: Option<(u64, u64)>) -> Self {
        Self { roles: roles.to_vec(), layers, experts: roles == EXPERTS }
    }

    /// Whether a weight is part of it.
    pub fn has(&self, site: &Site) -> bool {
        let inside = match (self.layers, site.layer) {
            (Some((first, last)), Some(layer)) => site.is_layer_product() && (first..=last).contains(&layer),
            (None, _) => true,
            (Some(_), None) => false,
        };
        inside && self.roles.contains(&site.role)
    }

    /// The words of a plan for it.
    pub(super) fn words(&self) -> Vec<&'static str> {
        if self.experts {
            return vec!["experts"];
        }
        let mut words: Vec<&str> = Vec::new();
        for word in self.roles.iter().map(|role| role.name()) {
            if !words.contains(&word) {
                words.push(word);
            }
        }
        words
    }
}

impl std::fmt::Display for Portion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.layers {
            None => {}
            Some((first, last)) if first == last => write!(f, "layers.{first}.")?,
            Some((first, last)) => write!(f, "layers.{first}-{last}.")?,
        }
        f.write_str(&self.words().join("+"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Together = Together { attention: false, experts: Experts::Apart, one_scheme: false };

    /// A mixture of twenty layers, of which the first is dense and all have an expert that every token meets.
    fn sites() -> Vec<Site> {
        let names = (0..20)
            .flat_map(|layer| {
                let of = move |rest: &str| format!("model.layers.{layer}.{rest}.weight");
                let attention = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "input_layernorm"].map(of);
                let dense = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"].map(of);
                let names =
                    ["experts.0.gate_proj", "experts.1.up_proj", "experts.2.down_proj", "shared_expert.up_proj"];
                let experts = names.map(|name| of(&format!("mlp.{name}")));
                let block = if layer == 0 { dense.to_vec() } else { experts.to_vec() };
                attention.into_iter().chain(block)
            })
            .chain(["model.embed_tokens.weight".to_owned(), "lm_head.weight".to_owned()]);
        names.map(|name| Site::of(&name, if name.contains("norm") { 1 } else { 2 })).collect()
    }

    #[test]
    fn every_matrix_is_in_one_portion() {
        let sites = sites();
        for attention in [false, true] {
            for experts in [Experts::Apart, Experts::InLayer, Experts::InModel] {
                let portions = Portion::all(&sites, Together { attention, experts, ..NOTHING });
                for site in &sites {
                    let expected = usize::from(site.role != Role::Vector);
                    assert_eq!(portions.iter().filter(|portion| portion.has(site)).count(), expected, "{site:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_taken_as_one_is_one_portion() {
        let told = |together: Together| {
            let all = Portion::all(&sites(), together).iter().map(ToString::to_string).collect::<Vec<_>>();
            (all[..5].to_vec(), all.len(), all[all.len() - 3..].to_vec())
        };
        // Runs of three layers: queries, values, gates and ways up, ways down; and the two ends.
        let (first, count, last) = told(NOTHING);
        assert_eq!(first[..4], ["layers.0-2.query+key", "layers.0-2.value", "layers.0-2.gate+up", "layers.0-2.down"]);
        assert_eq!((count, &*last), (4 * 7 + 2, &["layers.18-19.down", "embedding", "head"].map(str::to_owned)[..]));
        // Only the first run has dense gates and ways down, and each an expert that is no choice.
        let (first, count, _) = told(Together { attention: true, experts: Experts::InLayer, ..NOTHING });
        let own = ["layers.0-2.query+key+value", "layers.0-2.gate+up", "layers.0-2.down", "layers.0-2.experts"];
        assert_eq!(
            (&first[..4], &*first[4], count),
            (&own.map(str::to_owned)[..], "layers.3-5.query+key+value", 3 * 7 + 1 + 2)
        );
        let (_, count, last) = told(Together { experts: Experts::InModel, ..NOTHING });
        assert_eq!(
            (count, &*last),
            (3 * 7 + 1 + 3, &["layers.0-19.experts", "embedding", "head"].map(str::to_owned)[..])
        );
    }
}
