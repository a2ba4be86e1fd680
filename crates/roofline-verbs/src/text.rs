//! Numbers and words for people.

/// Three significant digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        size if size >= 0.1 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

/// `text` without control characters: a device file's words must not drive the terminal. What breaks a line or jumps within
/// it becomes a space, since it says nothing but that.
pub fn printable(text: &str) -> String {
    let shown = |letter: char| match letter {
        '\n' | '\r' | '\t' => ' ',
        letter if letter.is_control() => char::REPLACEMENT_CHARACTER,
        letter => letter,
    };
    text.chars().map(shown).collect()
}

/// Parameters, as people say them.
pub fn billions(count: f64) -> String {
    if count < 1e9 { format!("{:.0} M", count / 1e6) } else { format!("{} B", number(count / 1e9)) }
}

/// A size in binary units, as caches and memory come.
pub fn binary(bytes: f64) -> String {
    let (value, unit) = match bytes {
        bytes if bytes >= 1024f64.powi(3) => (bytes / 1024f64.powi(3), "GiB"),
        bytes if bytes >= 1024f64.powi(2) => (bytes / 1024f64.powi(2), "MiB"),
        bytes => (bytes / 1024.0, "KiB"),
    };
    format!("{} {unit}", if value.fract() == 0.0 { format!("{value}") } else { number(value) })
}

/// Bytes of files, as people say them.
pub fn size(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes >= 1e9 => format!("{} GB", number(bytes / 1e9)),
        bytes if bytes >= 1e6 => format!("{} MB", number(bytes / 1e6)),
        bytes if bytes >= 1e3 => format!("{} kB", number(bytes / 1e3)),
        bytes => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits() {
        assert_eq!(
            [0.0, 1234.5, 12.34, 1.0, 0.9995, 0.000_123].map(number),
            ["0", "1234", "12.3", "1.00", "1.000", "1.23e-4"]
        );
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\u{1b}[31mb\u{7}\nc"), "a\u{fffd}[31mb\u{fffd} c");
    }
}
