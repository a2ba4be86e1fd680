//! "did you mean": the known name a typing error was probably meant to be.

/// The closest of `known`, when it differs from `name` in at most a third of its letters.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let name = name.to_lowercase();
    if name.len() > 64 {
        return None; // nothing we know is that long, and the distance is quadratic
    }
    known
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&name, candidate), candidate))
        .min_by_key(|(distance, candidate)| (*distance, candidate.len().abs_diff(name.len())))
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count() / 3).max(1))
        .map(|(_, candidate)| candidate.to_owned())
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn suggests_only_what_is_close() {
        let known = ["h200_sxm", "h100_sxm", "t4", "int4-g128"];
        assert_eq!(nearest("h20O_sxm", known).as_deref(), Some("h200_sxm"));
        assert_eq!(nearest("T5", known).as_deref(), Some("t4"));
        assert_eq!(nearest("int4-g12", known).as_deref(), Some("int4-g128"));
        assert_eq!(nearest("cerebras", known), None);
        assert_eq!(nearest(&"h200_sxm".repeat(1000), known), None);
    }
}
