//! A plan of what was chosen: an ordinary text of rules.

use roofline_core::Plan;

use super::Portion;
use crate::Result;

/// Words that stand for several roles, where all of them agree.
const GROUPS: [(&str, &[&str]); 2] =
    [("attention", &["query", "key", "value", "output"]), ("ffn", &["gate", "up", "down"])];

/// Formats of a role: runs of layers, or no layers at all.
type Runs = Vec<(Option<(u64, u64)>, String)>;

/// The plan that gives every portion of a model its format: all have to be there, because what most layers of a role have is said
/// of the role. Rules for a role come first, those for some of its layers after them.
pub(super) fn plan(chosen: &[(&Portion, &str)]) -> Result<Plan> {
    let mut by_role: Vec<(&str, Runs)> = Vec::new();
    for (portion, format) in chosen {
        for role in portion.words() {
            let at = by_role.iter().position(|(known, _)| *known == role).unwrap_or_else(|| {
                by_role.push((role, Vec::new()));
                by_role.len() - 1
            });
            let runs = &mut by_role[at].1;
            match (runs.last_mut(), portion.layers) {
                (Some((Some((_, last)), known)), Some((first, end))) if known == format && *last + 1 == first => {
                    *last = end;
                }
                _ => runs.push((portion.layers, (*format).to_owned())),
            }
        }
    }
    for (group, members) in GROUPS {
        let own: Vec<&Runs> = by_role.iter().filter(|(role, _)| members.contains(role)).map(|(_, runs)| runs).collect();
        // A word says something of all its roles, so all of them have to be there.
        if own.len() == members.len() && own.windows(2).all(|pair| pair[0] == pair[1]) {
            let runs = own[0].clone();
            by_role.retain(|(role, _)| !members.contains(role));
            by_role.push((group, runs));
        }
    }
    // Gates are experts' gates, too, unless a later rule speaks of experts.
    by_role.sort_by_key(|(role, _)| *role == "experts");
    let mut rules = Vec::new();
    for (role, runs) in &by_role {
        // What most layers have is said of the role, and the others after it.
        let layers = |format: &str| -> u64 {
            let own = runs.iter().filter(|(_, known)| known == format);
            own.map(|(layers, _)| layers.map_or(1, |(first, last)| last - first + 1)).sum()
        };
        let Some((_, most)) = runs.iter().max_by_key(|(_, format)| layers(format)) else { continue };
        rules.push(format!("{role}={most}"));
        for (layers, format) in runs.iter().filter(|(_, format)| format != most) {
            rules.push(match layers {
                Some((first, last)) if first == last => format!("layers.{first}.{role}={format}"),
                Some((first, last)) => format!("layers.{first}-{last}.{role}={format}"),
                None => format!("{role}={format}"),
            });
        }
    }
    Ok(rules.join(",").parse()?)
}

#[cfg(test)]
mod tests {
    use roofline_core::{Role, plan::Stored};

    use super::*;

    const QUERY: &[Role] = &[Role::Query, Role::Key];
    const UP: &[Role] = &[Role::Gate, Role::Up];

    #[test]
    fn plans_are_short_and_say_what_was_chosen() {
        let runs = [(0, 1), (2, 3), (4, 4)];
        let layers =
            runs.iter().flat_map(|run| [QUERY, UP, &[Role::Down]].map(|roles| Portion::new(roles, Some(*run))));
        let portions: Vec<Portion> = layers.chain([Portion::new(&[Role::Embedding], None)]).collect();
        let formats = ["q4_k", "q3_k", "q3_k", "q4_k", "q3_k", "q3_k", "q8_0", "q3_k", "q3_k", "keep"];
        let chosen: Vec<(&Portion, &str)> = portions.iter().zip(formats).collect();
        let plan = plan(&chosen).unwrap();
        assert_eq!(plan.label(), "query=q4_k,layers.4.query=q8_0,key=q4_k,layers.4.key=q8_0,embedding=16bit,ffn=q3_k");
        let at = |role, layer| match plan.at(role, layer, 5, None) {
            Stored::As(precision) => precision.name().to_owned(),
            other => format!("{other:?}"),
        };
        assert_eq!((at(Role::Query, Some(3)), at(Role::Key, Some(4))), ("q4_k".to_owned(), "q8_0".to_owned()));
        assert_eq!((at(Role::Down, Some(4)), at(Role::Embedding, None)), ("q3_k".to_owned(), "16bit".to_owned()));
    }

    /// What is said of gates is not said of experts that have a format of their own, in whichever order they come.
    #[test]
    fn experts_have_the_last_word() {
        let experts = Portion::new(&[Role::ExpertGate, Role::ExpertUp, Role::ExpertDown], Some((0, 3)));
        let [up, down] = [UP, &[Role::Down]].map(|roles| Portion::new(roles, Some((0, 3))));
        let plan = plan(&[(&experts, "w4a16"), (&up, "w8a16"), (&down, "w8a16")]).unwrap();
        assert_eq!(plan.label(), "ffn=w8a16,experts=w4a16");
    }
}
