//! Names of modules by pattern, in the part of Python's regular expressions that configurations use: literal characters,
//! `.`, `\d`, `\w` and escaped characters, sets, groups with alternatives, `*`, `+`, `?`, `{n}` (of none, one or more), `^` and `$`.

/// What may stand at a place.
#[derive(Clone, Debug)]
enum Atom {
    Any,
    /// One of these, or none of these.
    Set(Vec<(char, char)>, bool),
    Group(Vec<Sequence>),
    End,
}

type Sequence = Vec<(Atom, usize, Option<usize>)>;

/// Whether a pattern matches a name from its beginning, as `re.match` does; none where the pattern has more than is
/// understood.
pub(super) fn matches(pattern: &str, name: &str) -> Option<bool> {
    let pattern: Vec<char> = pattern.trim_start_matches('^').chars().collect();
    let (alternatives, rest) = alternatives(&pattern)?;
    let name: Vec<char> = name.chars().collect();
    rest.is_empty().then(|| alternatives.iter().any(|one| ends(one, &name, 0).next().is_some()))
}

/// Sequences between bars, up to the end or a closing bracket.
fn alternatives(mut rest: &[char]) -> Option<(Vec<Sequence>, &[char])> {
    let mut all = vec![Sequence::new()];
    while let Some((first, after)) = rest.split_first() {
        let (atom, after) = match (first, after) {
            (')', _) => break,
            ('|', _) => {
                all.push(Sequence::new());
                rest = after;
                continue;
            }
            ('(', ['?', ':', after @ ..] | after) if !after.starts_with(&['?']) => {
                let (inner, after) = alternatives(after)?;
                (Atom::Group(inner), after.strip_prefix(&[')'])?)
            }
            ('[', ['^', after @ ..]) => set(after, true)?,
            ('[', after) => set(after, false)?,
            ('\\', [escaped, after @ ..]) => (Atom::Set(class(*escaped)?, false), after),
            ('.', after) => (Atom::Any, after),
            ('$', after) => (Atom::End, after),
            ('(' | '\\' | '*' | '+' | '?' | '{' | '^', _) => return None,
            (other, after) => (Atom::Set(vec![(*other, *other)], false), after),
        };
        let (least, most, after) = match after {
            ['*' | '+' | '?', '?' | '+', ..] => return None,
            ['*', after @ ..] => (0, None, after),
            ['+', after @ ..] => (1, None, after),
            ['?', after @ ..] => (0, Some(1), after),
            ['{', times, '}', after @ ..] => {
                let times = times.to_digit(10)? as usize;
                (times, Some(times), after)
            }
            ['{', ..] => return None,
            after => (1, Some(1), after),
        };
        all.last_mut()?.push((atom, least, most));
        rest = after;
    }
    Some((all, rest))
}

/// What an escaped character stands for.
fn class(escaped: char) -> Option<Vec<(char, char)>> {
    match escaped {
        'd' => Some(vec![('0', '9')]),
        'w' => Some(vec![('0', '9'), ('a', 'z'), ('A', 'Z'), ('_', '_')]),
        other if other.is_ascii_alphanumeric() => None,
        other => Some(vec![(other, other)]),
    }
}

/// A set up to its closing bracket.
fn set(mut rest: &[char], without: bool) -> Option<(Atom, &[char])> {
    let mut all = Vec::new();
    loop {
        match rest {
            [']', after @ ..] => return Some((Atom::Set(all, without), after)),
            ['\\', escaped, after @ ..] => {
                all.extend(class(*escaped)?);
                rest = after;
            }
            [low, '-', high, after @ ..] if *high != ']' => {
                all.push((*low, *high));
                rest = after;
            }
            [one, after @ ..] => {
                all.push((*one, *one));
                rest = after;
            }
            [] => return None,
        }
    }
}

/// Where matches of a sequence that begin at `from` can end.
fn ends(sequence: &[(Atom, usize, Option<usize>)], name: &[char], from: usize) -> std::vec::IntoIter<usize> {
    let mut at = vec![from];
    for (atom, least, most) in sequence {
        let (mut reached, mut front) = (if *least == 0 { at.clone() } else { Vec::new() }, at);
        let mut times = 0;
        while !front.is_empty() && most.is_none_or(|most| times < most) {
            times += 1;
            let mut next: Vec<usize> = front.iter().flat_map(|from| steps(atom, name, *from)).collect();
            next.sort_unstable();
            next.dedup();
            // What was reached before leads nowhere new.
            if times > *least {
                next.retain(|end| !reached.contains(end));
            }
            if times >= *least {
                reached.extend(&next);
            }
            front = next;
        }
        reached.sort_unstable();
        reached.dedup();
        at = reached;
    }
    at.into_iter()
}

/// Where one match of an atom can end.
fn steps(atom: &Atom, name: &[char], from: usize) -> Vec<usize> {
    match atom {
        Atom::Any => Vec::from_iter((from < name.len()).then_some(from + 1)),
        Atom::Set(all, without) => {
            let found = name.get(from).map(|one| all.iter().any(|(low, high)| (low..=high).contains(&one)));
            Vec::from_iter((found == Some(!without)).then_some(from + 1))
        }
        Atom::Group(all) => all.iter().flat_map(|one| ends(one, name, from)).collect(),
        Atom::End => Vec::from_iter((from == name.len()).then_some(from)),
    }
}
