//! Reading and writing quantities: "4.8 TB/s", "62 TFLOP/s", "8 GB", "559.5 µs".

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::Error;

/// How a quantity is spelled: its symbol, the spellings it accepts, and which prefixes make sense for it.
pub(super) struct Unit {
    symbol: &'static str,
    spellings: &'static [&'static str],
    prefixes: Prefixes,
}

#[derive(Clone, Copy, PartialEq)]
enum Prefixes {
    /// kilo to exa.
    Large,
    /// kilo to exa, and KiB to TiB; a lower-case `b` would be a bit and is refused.
    Bytes,
    /// pico to kilo.
    Small,
    /// Shown as a bare number.
    None,
}

const LARGE: &[(&str, f64)] = &[("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15), ("E", 1e18)];
const SMALL: &[(&str, f64)] = &[("p", 1e-12), ("n", 1e-9), ("µ", 1e-6), ("m", 1e-3), ("", 1.0), ("k", 1e3)];
const BINARY: &[(&str, f64)] = &[
    ("Ki", 1024.0),
    ("Mi", 1024.0 * 1024.0),
    ("Gi", 1024.0 * 1024.0 * 1024.0),
    ("Ti", 1024.0 * 1024.0 * 1024.0 * 1024.0),
];
const PLAIN: &[(&str, f64)] = &[("", 1.0)];

impl Unit {
    pub(super) const fn large(symbol: &'static str, spellings: &'static [&'static str]) -> Self {
        Self { symbol, spellings, prefixes: Prefixes::Large }
    }

    pub(super) const fn bytes(symbol: &'static str, spellings: &'static [&'static str]) -> Self {
        Self { symbol, spellings, prefixes: Prefixes::Bytes }
    }

    pub(super) const fn small(symbol: &'static str, spellings: &'static [&'static str]) -> Self {
        Self { symbol, spellings, prefixes: Prefixes::Small }
    }

    pub(super) const fn plain(symbol: &'static str, spellings: &'static [&'static str]) -> Self {
        Self { symbol, spellings, prefixes: Prefixes::None }
    }

    fn scale(&self) -> &'static [(&'static str, f64)] {
        match self.prefixes {
            Prefixes::Large | Prefixes::Bytes => LARGE,
            Prefixes::Small => SMALL,
            Prefixes::None => PLAIN,
        }
    }

    /// A non-negative, finite number followed by this unit. The unit is mandatory: "60" could be MB/s or GB/s.
    pub(super) fn parse(&self, text: &str) -> Result<f64, Error> {
        let refuse = |reason: String| Error::Quantity {
            text: text.to_owned(),
            unit: self.symbol,
            reason,
            example: self.example(),
        };
        let trimmed = text.trim();
        let (number, unit) = trimmed.split_at(number_length(trimmed));
        let unit = unit.trim();
        let value: f64 =
            number.replace('_', "").parse().map_err(|_| refuse("does not start with a number".to_owned()))?;
        if unit.is_empty() {
            return Err(refuse("has no unit".to_owned()));
        }
        let factor = self.factor(unit).map_err(refuse)?;
        let value = value * factor;
        if !value.is_finite() {
            return Err(refuse("is not a finite number".to_owned()));
        }
        if value < 0.0 {
            return Err(refuse("is negative".to_owned()));
        }
        Ok(value)
    }

    fn factor(&self, unit: &str) -> Result<f64, String> {
        for spelling in self.spellings {
            let Some(prefix) = strip_suffix_ignoring_case(unit, spelling) else { continue };
            if self.prefixes == Prefixes::Bytes && unit[prefix.len()..].starts_with('b') {
                return Err("counts bits (lower-case b)".to_owned());
            }
            if let Some(factor) = self.prefix_factor(prefix) {
                return Ok(factor);
            }
        }
        Err(format!("is in `{unit}`, which is not a multiple of {}", self.symbol))
    }

    fn prefix_factor(&self, prefix: &str) -> Option<f64> {
        let prefix = match prefix {
            "u" | "μ" => "µ", // the letter mu and a plain u stand for the micro sign
            "K" => "k",
            // No quantity in FLOP or bytes is ever counted in milli-units, so a lower-case prefix can only be a slip.
            "g" | "t" | "e" | "m" | "p" if self.prefixes != Prefixes::Small => {
                return self.prefix_factor(&prefix.to_uppercase());
            }
            other => other,
        };
        let known = self.scale().iter().find(|(name, _)| *name == prefix);
        let binary = BINARY.iter().filter(|_| self.prefixes == Prefixes::Bytes).find(|(name, _)| *name == prefix);
        known.or(binary).map(|(_, factor)| *factor)
    }

    /// A number of base units where it is told, a text with its unit where it is asked for.
    pub(super) fn schema(&self, generator: &SchemaGenerator) -> Schema {
        if generator.contract().is_serialize() {
            json_schema!({ "type": "number", "x-unit": self.symbol })
        } else {
            json_schema!({ "type": "string", "examples": [self.example()] })
        }
    }

    fn example(&self) -> &'static str {
        match self.symbol {
            "FLOP" => "33.5 MFLOP",
            "B" => "8 GB",
            "s" => "12.4 ms",
            "FLOP/s" => "62 TFLOP/s",
            "B/s" => "4.8 TB/s",
            "FLOP/B" => "45 FLOP/B",
            "W" => "700 W",
            "J" => "1.5 J",
            "FLOP/J" => "1.4 TFLOP/J",
            "°C" => "85 °C",
            _ => "1830 MHz",
        }
    }

    /// Whether it is written so.
    pub(super) fn is(&self, symbol: &str) -> bool {
        self.symbol == symbol
    }

    /// The shortest spelling that reads back as the same quantity: with a prefix, memories by binary ones, else by its exponent.
    pub(super) fn exact(&self, value: f64) -> String {
        let sizes = BINARY.iter().rev().filter(|_| self.symbol == "B");
        let binary = sizes.map(|(prefix, factor)| (prefix, value / factor)).find(|(_, count)| *count >= 1.0);
        let binary = binary.map(|(prefix, count)| format!("{count} {prefix}{}", self.symbol));
        let mut short = binary.into_iter().filter(|text| text.len() <= 10).chain([self.show(value)]);
        let same = |text: &String| self.parse(text).is_ok_and(|again| again == value);
        short.find(same).unwrap_or_else(|| format!("{value:e} {}", self.symbol))
    }

    /// Four significant digits with the prefix that leaves one to three digits before the point.
    pub(super) fn show(&self, value: f64) -> String {
        let scale = self.scale();
        let magnitude = value.abs();
        if !value.is_finite() || magnitude == 0.0 {
            return format!("{value} {}", self.symbol);
        }
        let at = scale.iter().rposition(|(_, factor)| magnitude >= *factor).unwrap_or(0);
        let text = four_digits(value / scale[at].1);
        // 999.96 rounds to 1000: take the next prefix instead.
        let (text, prefix) = match scale.get(at + 1) {
            Some((next, factor)) if text.trim_start_matches('-') == "1000" => (four_digits(value / factor), next),
            _ => (text, &scale[at].0),
        };
        format!("{text} {prefix}{}", self.symbol)
    }
}

/// `value` with four significant digits and no trailing zeros; scientific where that would be long.
pub(super) fn four_digits(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-3..1e6).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    let before = if magnitude < 1.0 { 0 } else { magnitude.log10().floor() as usize + 1 };
    let text = format!("{value:.*}", 4_usize.saturating_sub(before.max(1)));
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// How many bytes at the start of `text` read as a number; the `E` of "1EB" is a prefix, that of "1e9 B" an exponent.
fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let exponent = matches!(byte, b'e' | b'E')
            && match bytes.get(at + 1) {
                Some(b'+' | b'-') => bytes.get(at + 2).is_some_and(u8::is_ascii_digit),
                Some(next) => next.is_ascii_digit(),
                None => false,
            };
        match byte {
            b'0'..=b'9' | b'.' | b'_' => at += 1,
            b'+' | b'-' if at == 0 => at += 1,
            _ if exponent => at += 2,
            _ => break,
        }
    }
    at
}

/// The part of `unit` before `suffix`, when `unit` ends with it in any case.
fn strip_suffix_ignoring_case<'a>(unit: &'a str, suffix: &str) -> Option<&'a str> {
    let at = unit.len().checked_sub(suffix.len())?;
    (unit.is_char_boundary(at) && unit[at..].eq_ignore_ascii_case(suffix)).then(|| &unit[..at])
}

#[cfg(test)]
mod tests {
    use crate::units::{ByteRate, Bytes, FlopRate, Hertz, Seconds, Watts};

    #[test]
    fn reads_what_people_write() {
        assert_eq!("4.8 TB/s".parse::<ByteRate>().unwrap(), ByteRate::new(4.8e12));
        assert_eq!("60GB/s".parse::<ByteRate>().unwrap(), ByteRate::new(60e9));
        assert_eq!("62 TFLOP/s".parse::<FlopRate>().unwrap(), FlopRate::new(62e12));
        for spelling in ["62TFLOPS", "62 tflops", "62 TOPS", "62 TOP/s", "6.2e1 TFLOP/s"] {
            assert_eq!(spelling.parse::<FlopRate>().unwrap(), FlopRate::new(62e12), "{spelling}");
        }
        assert_eq!("8 GB".parse::<Bytes>().unwrap(), Bytes::new(8e9));
        assert_eq!("8 GiB".parse::<Bytes>().unwrap(), Bytes::new(8_589_934_592.0));
        assert_eq!("1EB".parse::<Bytes>().unwrap(), Bytes::new(1e18));
        assert_eq!("1e9 B".parse::<Bytes>().unwrap(), Bytes::new(1e9));
        assert_eq!("1_000 kB".parse::<Bytes>().unwrap(), Bytes::new(1e6));
        for spelling in ["12 us", "12µs", "12 μs", "0.012 ms"] {
            let seconds = spelling.parse::<Seconds>().unwrap();
            assert!((seconds.value() - 12e-6).abs() < 1e-18, "{spelling}");
        }
        assert_eq!("1830 MHz".parse::<Hertz>().unwrap(), Hertz::new(1.83e9));
        assert_eq!("7 mW".parse::<Watts>().unwrap(), Watts::new(7e-3));
    }

    #[test]
    fn refuses_with_the_reason() {
        let why = |text: &str| text.parse::<ByteRate>().unwrap_err().to_string();
        assert_eq!(why("60"), "`60` has no unit: expected a quantity in B/s, for example `4.8 TB/s`");
        assert!(why("60 Gb/s").contains("counts bits"));
        assert!(why("60 TFLOP/s").contains("not a multiple of B/s"));
        assert!(why("-1 GB/s").contains("negative"));
        assert!(why("1e400 GB/s").contains("finite"));
        assert!(why("fast").contains("does not start with a number"));
        assert!(why("60 QB/s").contains("`QB/s`"));
        assert!(why("").contains("does not start with a number"));
        assert!(why("NaN GB/s").contains("does not start with a number"));
    }

    #[test]
    fn shows_four_digits_and_a_sensible_prefix() {
        assert_eq!(ByteRate::new(4.8e12).to_string(), "4.8 TB/s");
        assert_eq!(FlopRate::new(989.4e12).to_string(), "989.4 TFLOP/s");
        assert_eq!(FlopRate::new(1978.9e12).to_string(), "1.979 PFLOP/s");
        assert_eq!(Bytes::new(999_960.0).to_string(), "1 MB");
        assert_eq!(Bytes::new(512.0).to_string(), "512 B");
        assert_eq!(Bytes::new(0.5).to_string(), "0.5 B");
        assert_eq!(Seconds::new(6.994e-6).to_string(), "6.994 µs");
        assert_eq!(Seconds::new(0.0).to_string(), "0 s");
        assert_eq!(Seconds::new(1e-15).to_string(), "0.001 ps");
        assert_eq!(Seconds::new(1e9).to_string(), "1.000e6 ks");
    }
}
