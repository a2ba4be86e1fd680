//! What of a model gets a format of its own.

use roofline_core::Role;

use crate::site::Site;

/// Runs of layers at most. A plan has room for so many rules, and whoever measures for so many runs.
const BANDS: u64 = 8;

/// Roles that share a format: those that read the same input, and of which one is as sensitive as the other.
const TOGETHER: [&[&str]; 7] =
    [&["query", "key"], &["value"], &["output"], &["gate", "up"], &["down"], &["embedding"], &["head"]];

/// A part of a model: matrices of some roles, in some layers where they are in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portion {
    /// The words of a plan for their roles.
    pub roles: &'static [&'static str],
    /// The first and the last of its layers.
    pub layers: Option<(u64, u64)>,
}

impl Portion {
    /// All portions of a model that has weights at these places, in the order of its layers.
    pub(crate) fn all(sites: &[Site]) -> Vec<Self> {
        let layers = sites.iter().filter_map(|site| site.layer).max().map_or(0, |last| last + 1);
        let band = layers.div_ceil(BANDS).max(1);
        let mut all = Vec::new();
        for first in (0..layers).step_by(band as usize) {
            let last = (first + band).min(layers) - 1;
            all.extend(TOGETHER.map(|roles| Self { roles, layers: Some((first, last)) }));
        }
        all.extend(TOGETHER.map(|roles| Self { roles, layers: None }));
        all.retain(|portion| sites.iter().any(|site| portion.has(site)));
        all
    }

    /// Whether a weight is part of it.
    pub fn has(&self, site: &Site) -> bool {
        let ends = matches!(site.role, Role::Embedding | Role::Head);
        let inside = match (self.layers, site.layer) {
            (Some((first, last)), Some(layer)) => site.is_layer_product() && (first..=last).contains(&layer),
            (None, _) => ends,
            (Some(_), None) => false,
        };
        inside && self.roles.contains(&site.role.name())
    }
}

impl std::fmt::Display for Portion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.layers {
            None => {}
            Some((first, last)) if first == last => write!(f, "layers.{first}.")?,
            Some((first, last)) => write!(f, "layers.{first}-{last}.")?,
        }
        f.write_str(&self.roles.join("+"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_matrix_is_in_one_portion() {
        let names: Vec<String> = (0..20)
            .flat_map(|layer| {
                let of = move |rest: &str| format!("model.layers.{layer}.{rest}.weight");
                ["self_attn.q_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.down_proj", "input_layernorm"].map(of)
            })
            .chain(["model.embed_tokens.weight".to_owned(), "lm_head.weight".to_owned()])
            .collect();
        let dimensions = |name: &str| if name.contains("norm") { 1 } else { 2 };
        let sites: Vec<Site> = names.iter().map(|name| Site::of(name, dimensions(name))).collect();
        let portions = Portion::all(&sites);
        // Twenty layers in runs of three, four roles together in each, and the two ends.
        assert_eq!(portions.len(), 7 * 4 + 2);
        assert_eq!((portions[0].to_string(), portions[29].to_string()), ("layers.0-2.query+key".into(), "head".into()));
        for site in &sites {
            let expected = usize::from(site.role != Role::Vector);
            assert_eq!(portions.iter().filter(|portion| portion.has(site)).count(), expected, "{}", site.module);
        }
    }
}
