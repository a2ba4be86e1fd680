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
        for role in portion.roles {
            let at = by_role.iter().position(|(known, _)| known == role).unwrap_or_else(|| {
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

    fn portion(roles: &'static [&'static str], layers: Option<(u64, u64)>) -> Portion {
        Portion { roles, layers }
    }

    #[test]
    fn plans_are_short_and_say_what_was_chosen() {
        let (up, down) = (&["gate", "up"][..], &["down"][..]);
        let portions = [
            portion(&["query", "key"], Some((0, 1))),
            portion(up, Some((0, 1))),
            portion(down, Some((0, 1))),
            portion(&["query", "key"], Some((2, 3))),
            portion(up, Some((2, 3))),
            portion(down, Some((2, 3))),
            portion(&["query", "key"], Some((4, 4))),
            portion(up, Some((4, 4))),
            portion(down, Some((4, 4))),
            portion(&["embedding"], None),
        ];
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
}
