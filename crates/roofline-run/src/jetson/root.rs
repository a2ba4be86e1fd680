//! The folder that everything is read below.

use std::{
    fs,
    io::Read,
    path::{Component, Path, PathBuf},
};

use roofline_core::units::Hertz;

/// Longest file that is read; the longest that is looked for, a table of power modes, has 9 kB.
const LONGEST: u64 = 256 * 1024;
/// Most entries of a folder that are looked at.
const MOST_ENTRIES: usize = 1024;
/// Links in a row that are followed.
const MOST_LINKS: usize = 8;
/// Letters of a foreign text that are repeated.
const SHOWN: usize = 100;
/// What can be a clock in Hz. A file in kHz or MHz falls out below, and so does the marker for "no limit" above.
const CLOCKS: std::ops::RangeInclusive<u64> = 1_000_000..=100_000_000_000;

/// Where a board's files are: `/`, or a folder with a copy of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// The files below `folder`.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// Whether these are the files of the machine that this runs on, so that its commands may be asked, too.
    pub fn is_this_machine(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Whether there is a file at `path`.
    pub fn has(&self, path: &str) -> bool {
        self.place(path).is_ok_and(|place| place.is_file())
    }

    /// Whether there is a folder at `path`.
    pub(super) fn has_folder(&self, path: &str) -> bool {
        self.place(path).is_ok_and(|place| place.is_dir())
    }

    /// The text of a file, without what surrounds it; why not, in words with the path.
    pub(super) fn text(&self, path: &str) -> Result<String, String> {
        let refuse = |reason: &dyn std::fmt::Display| format!("{path}: {reason}");
        let place = self.place(path).map_err(|reason| refuse(&reason))?;
        let meta = fs::metadata(&place).map_err(|error| refuse(&error))?;
        // A pipe or a device would answer when it likes.
        if !meta.is_file() {
            return Err(refuse(&"not a file"));
        }
        let file = fs::File::open(&place).map_err(|error| refuse(&error))?;
        let mut bytes = Vec::new();
        file.take(LONGEST + 1).read_to_end(&mut bytes).map_err(|error| refuse(&error))?;
        if bytes.len() as u64 > LONGEST {
            return Err(refuse(&"too long"));
        }
        let text = String::from_utf8(bytes).map_err(|_| refuse(&"not text"))?;
        Ok(text.trim_matches(|letter: char| letter.is_whitespace() || letter == '\0').to_owned())
    }

    /// A whole number.
    pub(super) fn number(&self, path: &str) -> Result<i64, String> {
        let text = self.text(path)?;
        text.parse().map_err(|_| format!("{path}: `{}` is not a whole number", shown(&text)))
    }

    /// A clock in Hz, as the kernel's `devfreq` and `clk` files have them.
    pub(super) fn hertz(&self, path: &str) -> Result<Hertz, String> {
        self.clock(path, 1)
    }

    /// A clock in kHz, as `cpufreq` has them.
    pub(super) fn kilohertz(&self, path: &str) -> Result<Hertz, String> {
        self.clock(path, 1000)
    }

    fn clock(&self, path: &str, unit: u64) -> Result<Hertz, String> {
        let number = self.number(path)?;
        let clock = u64::try_from(number).ok().and_then(|number| number.checked_mul(unit));
        let clock = clock.filter(|clock| CLOCKS.contains(clock));
        clock.map(|clock| Hertz::new(clock as f64)).ok_or_else(|| format!("{path}: {number} is no clock"))
    }

    /// Names in a folder, sorted; empty where there is none.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let Some(entries) = self.place(path).ok().and_then(|place| fs::read_dir(place).ok()) else { return Vec::new() };
        let names = entries.take(MOST_ENTRIES).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Where `path` is. In a copied tree a link to `/etc/...` means the copy's, not this machine's.
    fn place(&self, path: &str) -> Result<PathBuf, &'static str> {
        let mut place = self.below(Path::new(path));
        if self.is_this_machine() {
            return Ok(place);
        }
        for _ in 0..MOST_LINKS {
            match fs::read_link(&place) {
                Ok(target) if target.is_absolute() => place = self.below(&target),
                Ok(target) => place = place.parent().unwrap_or(&self.0).join(target),
                Err(_) => return Ok(place),
            }
        }
        Err("too many links")
    }

    fn below(&self, path: &Path) -> PathBuf {
        let inside = path.components().filter(|part| matches!(part, Component::Normal(_)));
        inside.fold(self.0.clone(), |place, part| place.join(part))
    }
}

/// The beginning of a text that came from outside, without control characters.
pub(super) fn shown(text: &str) -> String {
    let plain: String = text.chars().take(SHOWN).map(|letter| if letter.is_control() { '?' } else { letter }).collect();
    if text.chars().nth(SHOWN).is_some() { format!("{plain}...") } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(name: &str) -> Root {
        let folder = std::env::temp_dir().join(format!("roofline-jetson-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("etc")).unwrap();
        Root::new(folder)
    }

    #[test]
    fn what_is_no_clock_is_said() {
        let root = tree("clocks");
        for (text, reason) in [
            ("408", "no clock"),
            ("-1", "no clock"),
            ("9223372036854775807", "no clock"),
            ("9223372036854775808", "not a whole number"),
            ("", "not a whole number"),
            ("fast\u{1b}[31m", "`fast?[31m` is not a whole number"),
        ] {
            fs::write(root.folder().join("etc/clock"), text).unwrap();
            let said = root.hertz("/etc/clock").unwrap_err();
            assert!(said.starts_with("/etc/clock: ") && said.contains(reason), "{said}");
        }
        fs::write(root.folder().join("etc/clock"), "408000000\n").unwrap();
        assert_eq!(root.hertz("/etc/clock"), Ok(Hertz::new(408e6)));
        fs::write(root.folder().join("etc/clock"), "729600\n").unwrap();
        assert_eq!(root.kilohertz("/etc/clock"), Ok(Hertz::new(729.6e6)));
        fs::remove_dir_all(root.folder()).unwrap();
    }

    #[test]
    fn long_files_folders_and_bytes_are_refused() {
        let root = tree("refused");
        fs::write(root.folder().join("etc/long"), vec![b'0'; 300_000]).unwrap();
        fs::write(root.folder().join("etc/bytes"), [0xff, 0xfe]).unwrap();
        assert_eq!(root.text("/etc/long").unwrap_err(), "/etc/long: too long");
        assert_eq!(root.text("/etc/bytes").unwrap_err(), "/etc/bytes: not text");
        assert_eq!(root.text("/etc").unwrap_err(), "/etc: not a file");
        assert!(root.text("/etc/none").is_err() && root.names("/none").is_empty());
        fs::remove_dir_all(root.folder()).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_inside() {
        use std::os::unix::fs::symlink;
        let root = tree("links");
        fs::write(root.folder().join("etc/real"), "inside\n").unwrap();
        symlink("/etc/real", root.folder().join("etc/absolute")).unwrap();
        symlink("real", root.folder().join("etc/relative")).unwrap();
        symlink("circle", root.folder().join("etc/circle")).unwrap();
        assert_eq!(root.text("/etc/absolute"), Ok("inside".to_owned()));
        assert_eq!(root.text("/etc/relative"), Ok("inside".to_owned()));
        assert_eq!(root.text("/../etc/real"), Ok("inside".to_owned()));
        assert_eq!(root.text("/etc/circle").unwrap_err(), "/etc/circle: too many links");
        fs::remove_dir_all(root.folder()).unwrap();
    }
}
