//! The version of Jetson Linux, from the first line of `/etc/nv_tegra_release`:
//! `# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: ...`.

use super::root::shown;

/// A release of Jetson Linux (L4T).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The branch: 36 of 36.4.3.
    pub major: u32,
    /// What follows it: `4.3`.
    pub revision: String,
}

impl Release {
    /// Reads the file's text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let line = text.lines().next().unwrap_or_default();
        let refuse = || format!("`{}` is no release of Jetson Linux", shown(line));
        let rest = line.trim_start_matches(['#', ' ']).strip_prefix('R').ok_or_else(refuse)?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        let major = digits.parse().map_err(|_| refuse())?;
        let revision = rest.split_once("REVISION:").ok_or_else(refuse)?.1;
        let revision = revision.split(',').next().unwrap_or_default().trim();
        let sound = |text: &str| text.len() <= 16 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if revision.is_empty() || !sound(revision) {
            return Err(refuse());
        }
        Ok(Self { major, revision: revision.to_owned() })
    }

    /// As people write it: `36.4.3`.
    pub fn version(&self) -> String {
        format!("{}.{}", self.major, self.revision)
    }

    /// The generation of JetPack that it belongs to. Which minor version is not in the file.
    pub fn jetpack(&self) -> Option<u32> {
        match self.major {
            32 => Some(4),
            34 | 35 => Some(5),
            36 => Some(6),
            38 | 39 => Some(7),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn releases() {
        let line =
            "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: Wed Jan  8 2025";
        let release = Release::parse(line).unwrap();
        assert_eq!((release.version().as_str(), release.jetpack()), ("36.4.3", Some(6)));
        let thor = Release::parse("# R38 (release), REVISION: 2.0, GCID: 41844464\n# KERNEL_VARIANT: oot").unwrap();
        assert_eq!((thor.version().as_str(), thor.jetpack()), ("38.2.0", Some(7)));
        for bad in ["", "#", "# R", "# R36", "# R36, REVISION: ", "# R36, REVISION: x", "# R99999999999, REVISION: 1"] {
            assert!(Release::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".*") {
            let _ = Release::parse(&text);
        }
    }
}
