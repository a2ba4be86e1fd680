//! Small system files below a root, read with a limit: a file that grows while it is read, or is no text, is a missing one.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

/// `/proc/cpuinfo` has about 1.5 kB per hardware thread; the largest machines have some two thousand.
const LIMIT: u64 = 8 << 20;

pub(super) struct Files {
    root: PathBuf,
}

impl Files {
    pub(super) fn below(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The trimmed text of a file; none when it is missing, empty, too long or no text.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let file = File::open(self.root.join(path.trim_start_matches('/'))).ok()?;
        let mut bytes = Vec::new();
        file.take(LIMIT + 1).read_to_end(&mut bytes).ok()?;
        if bytes.len() as u64 > LIMIT {
            return None;
        }
        let text = String::from_utf8(bytes).ok()?;
        let trimmed = text.trim();
        (!trimmed.is_empty()).then(|| trimmed.to_owned())
    }

    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }
}
