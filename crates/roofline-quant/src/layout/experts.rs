//! Which quantized experts a runtime loads.
//!
//! transformers stacks the experts of a layer as it loads them, and knows only some codes on the way; what it does not know
//! it passes over, and computes with random numbers. vLLM fuses them, and takes more kinds, but one in a layer. What a
//! runtime cannot take is refused before anything is written.

use std::collections::{BTreeMap, BTreeSet};

use super::{Decision, Scheme, Target};
use crate::{Error, Result, Runtime, coding::compressed_tensors::Scheme as Coded, family::Family};

/// How the experts of a model are stored: by layer, the scheme of each, none for what is kept.
struct Experts<'d> {
    layers: BTreeMap<u64, BTreeSet<Option<&'static str>>>,
    schemes: BTreeMap<&'static str, &'static Scheme>,
    /// What the rest of the model is stored in.
    rest: Vec<&'static Scheme>,
    first: Option<&'d str>,
}

impl<'d> Experts<'d> {
    fn of(decisions: &'d [Decision<'_>]) -> Self {
        let mut found = Self { layers: BTreeMap::new(), schemes: BTreeMap::new(), rest: Vec::new(), first: None };
        for decision in decisions {
            let scheme = decision.coded.as_ref().map(|(scheme, ..)| *scheme);
            if !decision.site.is_expert() {
                found.rest.extend(scheme);
                continue;
            }
            found.schemes.extend(scheme.map(|scheme| (scheme.name, scheme)));
            found.first = found.first.or(Some(&decision.stored.name));
            found.layers.entry(decision.site.layer.unwrap_or(0)).or_default().insert(scheme.map(|scheme| scheme.name));
        }
        found
    }

    /// What is stored in more than one way, in words.
    fn ways(&self) -> String {
        let all: BTreeSet<&str> = self.layers.values().flatten().map(|name| name.unwrap_or("16 bit")).collect();
        all.into_iter().collect::<Vec<_>>().join(" and ")
    }

    fn is_kept_in_part(&self) -> bool {
        self.layers.values().flatten().any(Option::is_none)
    }
}

fn coded(scheme: &Scheme) -> Option<Coded> {
    if let Target::Compressed(coded, _) = scheme.target { Some(coded) } else { None }
}

/// Whether plain experts are found beside codes of that scheme: transformers looks for `weight` there, and for packed words
/// elsewhere.
pub(super) fn leaves_room(scheme: &Scheme) -> bool {
    coded(scheme) == Some(Coded::Fp8Channel)
}

/// Refuses what one of `runtimes` would load wrongly from compressed-tensors.
pub(super) fn check(decisions: &[Decision<'_>], family: Family, runtimes: &[Runtime]) -> Result<()> {
    let experts = Experts::of(decisions);
    if experts.layers.is_empty() {
        return Ok(());
    }
    let why = |runtime: Runtime| match runtime {
        Runtime::Transformers => by_transformers(&experts, family),
        Runtime::Vllm => by_vllm(&experts),
        Runtime::LlamaCpp | Runtime::Mlx => None,
    };
    for runtime in runtimes {
        let Some((what, hint)) = why(*runtime) else { continue };
        let other = [Runtime::Transformers, Runtime::Vllm].into_iter().find(|other| other != runtime);
        let other = other.filter(|other| why(*other).is_none());
        let other = other.map_or_else(String::new, |other| {
            let name = other.name().to_lowercase();
            format!("; {other} loads it: `⟨runtime {name}⟩` writes it for that alone")
        });
        return Err(Error::unsupported(format!("{runtime} {what}"), format!("{hint}{other}")));
    }
    Ok(())
}

type Why = Option<(String, String)>;

fn by_transformers(experts: &Experts<'_>, family: Family) -> Why {
    // Modules like any other.
    if family.stack().is_some() {
        return None;
    }
    let kept = experts.is_kept_in_part();
    if experts.schemes.len() > 1 {
        let what = format!("loads experts of one scheme, and the plan stores them as {}", experts.ways());
        return Some((what, "give all experts the same, as in `w4a16,experts=fp8`".to_owned()));
    }
    let Some(scheme) = experts.schemes.values().next() else {
        // All are kept.
        let room = experts.rest.iter().any(|scheme| leaves_room(scheme));
        return (!room).then(|| {
            let what = "finds plain experts only where the rest is `fp8`: beside other codes it fills them with random numbers";
            (what.to_owned(), "store the rest as `fp8`, or quantize the experts, too".to_owned())
        });
    };
    if kept && !leaves_room(scheme) {
        let what = format!("does not find the experts that the plan leaves plain beside those in `{}`", scheme.name);
        return Some((what, "quantize the experts of all layers, or store them as `fp8`".to_owned()));
    }
    let name = scheme.name;
    let reason = match coded(scheme)? {
        Coded::Int { zero: false, .. } | Coded::Fp8Channel | Coded::Mxfp4 => return None,
        Coded::Int { zero: true, .. } => "does not find their zero points",
        Coded::Nvfp4 => "passes over their scales of whole tensors",
        Coded::Fp8Block => "does not apply their scales of blocks",
        Coded::Int8Channel | Coded::Int4Bytes { .. } | Coded::Mxfp8 => "looks for packed words",
        Coded::Fp8Tensor => "passes over the scales of their inputs",
    };
    let hint = "it loads experts as `w4a16`, `w8a16`, `fp8` and `mxfp4a16`, so `experts=fp8` would do".to_owned();
    Some((format!("cannot load experts stored as `{name}`: it {reason}"), hint))
}

fn by_vllm(experts: &Experts<'_>) -> Why {
    if let Some((layer, _)) = experts.layers.iter().find(|(_, schemes)| schemes.len() > 1) {
        let what = format!(
            "fuses the experts of a layer, and the plan stores those of layer {layer} in several ways: {}",
            experts.ways()
        );
        return Some((what, "give all experts of a layer the same".to_owned()));
    }
    let zero = experts.schemes.values().find(|scheme| matches!(coded(scheme), Some(Coded::Int { zero: true, .. })))?;
    let what = format!("cannot load experts stored as `{}`: it has no zero points for them", zero.name);
    Some((what, "it loads symmetric ones: `experts=w4a16` would do".to_owned()))
}

/// Refuses quantized experts where a loader knows only plain ones.
pub(super) fn all_plain(decisions: &[Decision<'_>], runtime: Runtime, layout: &str, plan: &str) -> Result<()> {
    let quantized = decisions.iter().find(|decision| decision.site.is_expert() && decision.coded.is_some());
    quantized.map_or(Ok(()), |decision| {
        let what = format!(
            "{runtime} loads experts of {layout} checkpoints only plain, and would fill `{}` with random numbers",
            decision.stored.name
        );
        let hint =
            format!("`{plan},experts=keep` quantizes the rest; `⟨as compressed-tensors⟩` takes the experts, too");
        Err(Error::unsupported(what, hint))
    })
}
