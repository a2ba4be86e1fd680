//! Texts of the library name no flag of the command line: whoever shows one spells it (see `roofline_core::wording`).

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    fs,
    path::{Path, PathBuf},
};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// Whether a line of code, without the words in brackets, has something like ` --flag`, or tells to call the program.
fn names_a_flag(line: &str) -> bool {
    let mut code = line.split_once("//").map_or(line, |(code, _)| code).to_owned();
    while let Some((before, after)) = code.split_once('⟨') {
        code = format!("{before}{}", after.split_once('⟩').map_or("", |(_, after)| after));
    }
    let flag =
        code.match_indices("--").any(|(at, _)| code[at + 2..].starts_with(|next: char| next.is_ascii_lowercase()));
    flag || code.contains("`roofline ")
}

#[test]
fn no_text_names_a_flag() {
    assert!(names_a_flag("\"give `--peak fp8=...`\"") && names_a_flag("\"`roofline devices` lists them\""));
    assert!(!names_a_flag("\"`⟨roofline devices --measure⟩`\" // --on"));
    let all = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(all.len() > 100);
    // The spelling itself, and its tests.
    for path in all.iter().filter(|path| !path.ends_with("wording.rs")) {
        let text = fs::read_to_string(path).unwrap();
        let found: Vec<&str> = text.lines().filter(|line| names_a_flag(line)).collect();
        assert!(found.is_empty(), "{}: {found:#?}", path.display());
    }
}
