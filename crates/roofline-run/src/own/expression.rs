//! Small sums of whole numbers, as a manifest writes how many blocks a kernel has: `ceil_div(n, 8) * m`.
//!
//! They come from a file, so nothing in them may overflow, divide by nothing, or nest without end.

/// Longest text.
const LONGEST: usize = 200;
/// Deepest nesting.
const DEEPEST: usize = 32;

/// Names and their values.
pub(super) type Names<'a> = &'a [(&'a str, u64)];

/// What `text` comes to; the text of the error says what is wrong with it.
pub(super) fn evaluate(text: &str, names: Names<'_>) -> Result<u64, String> {
    if text.len() > LONGEST {
        return Err(format!("is longer than {LONGEST} letters"));
    }
    let mut reader = Reader { rest: text, names, depth: 0 };
    let value = reader.sum()?;
    match reader.next() {
        None => Ok(value),
        Some(_) => Err(format!("has something behind its end: `{}`", reader.rest.trim_start())),
    }
}

struct Reader<'t> {
    rest: &'t str,
    names: Names<'t>,
    depth: usize,
}

impl Reader<'_> {
    /// The next letter that is no space; it stays.
    fn next(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    fn skip(&mut self, letter: char) {
        self.rest = &self.rest[letter.len_utf8()..];
    }

    /// Takes `letter`, which has to come.
    fn take(&mut self, letter: char) -> Result<(), String> {
        match self.next() {
            Some(found) if found == letter => {
                self.skip(found);
                Ok(())
            }
            Some(found) => Err(format!("has `{found}` where `{letter}` belongs")),
            None => Err(format!("ends where `{letter}` belongs")),
        }
    }

    fn sum(&mut self) -> Result<u64, String> {
        let mut value = self.product()?;
        while let Some(sign @ ('+' | '-')) = self.next() {
            self.skip(sign);
            let other = self.product()?;
            value = if sign == '+' { value.checked_add(other) } else { value.checked_sub(other) }
                .ok_or_else(|| format!("comes to {value} {sign} {other}, which is no number from 0 to 2^64 - 1"))?;
        }
        Ok(value)
    }

    fn product(&mut self) -> Result<u64, String> {
        let mut value = self.atom()?;
        while let Some(sign @ ('*' | '/' | '%')) = self.next() {
            self.skip(sign);
            let other = self.atom()?;
            value = match sign {
                '*' => {
                    value.checked_mul(other).ok_or_else(|| format!("comes to {value} * {other}, which is too much"))?
                }
                _ if other == 0 => return Err(format!("divides {value} by 0")),
                '/' => value / other,
                _ => value % other,
            };
        }
        Ok(value)
    }

    fn atom(&mut self) -> Result<u64, String> {
        match self.next() {
            Some('(') => {
                self.skip('(');
                let value = self.deeper()?;
                self.take(')')?;
                Ok(value)
            }
            Some(digit) if digit.is_ascii_digit() => {
                let digits = self.word(|letter| letter.is_ascii_digit() || letter == '_').replace('_', "");
                digits.parse().map_err(|_| format!("has the number {digits}, which is past 2^64"))
            }
            Some(letter) if letter.is_ascii_alphabetic() => {
                let name = self.word(|letter| letter.is_ascii_alphanumeric() || letter == '_').to_owned();
                if self.next() == Some('(') { self.call(&name) } else { self.named(&name) }
            }
            Some(letter) => Err(format!("has `{letter}` where a number or a name belongs")),
            None => Err("ends where a number or a name belongs".to_owned()),
        }
    }

    fn word(&mut self, part: impl Fn(char) -> bool) -> &str {
        let end = self.rest.find(|letter| !part(letter)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn named(&self, name: &str) -> Result<u64, String> {
        let found = self.names.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let known: Vec<&str> = self.names.iter().map(|(name, _)| *name).collect();
            format!("names `{name}`; it may name {}", known.join(", "))
        })
    }

    fn call(&mut self, name: &str) -> Result<u64, String> {
        let function: fn(u64, u64) -> Option<u64> = match name {
            "ceil_div" => |of, by| (by > 0).then(|| of.div_ceil(by)),
            "min" => |one, other| Some(one.min(other)),
            "max" => |one, other| Some(one.max(other)),
            _ => return Err(format!("calls `{name}`; there are ceil_div, min and max")),
        };
        self.take('(')?;
        let one = self.deeper()?;
        self.take(',')?;
        let other = self.deeper()?;
        self.take(')')?;
        function(one, other).ok_or_else(|| format!("divides {one} by 0"))
    }

    fn deeper(&mut self) -> Result<u64, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("is nested deeper than {DEEPEST}"));
        }
        let value = self.sum();
        self.depth -= 1;
        value
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMES: Names<'static> = &[("m", 1), ("n", 4097), ("k", 4096)];

    #[test]
    fn sums_products_and_three_functions() {
        let of = |text: &str| evaluate(text, NAMES).unwrap();
        assert_eq!(of("256"), 256);
        assert_eq!(of(" 1_024 "), 1024);
        assert_eq!(of("ceil_div(n, 8) * m"), 513);
        assert_eq!(of("n / 8 + n % 8"), 513);
        assert_eq!(of("2 + 3 * 4 - 1"), 13);
        assert_eq!(of("(2 + 3) * 4"), 20);
        assert_eq!(of("min(k, 1024) + max(m, 2)"), 1026);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let why = |text: &str| evaluate(text, NAMES).unwrap_err();
        assert_eq!(why("rows * 2"), "names `rows`; it may name m, n, k");
        assert_eq!(why("ceil(n, 8)"), "calls `ceil`; there are ceil_div, min and max");
        assert_eq!(why("n / 0"), "divides 4097 by 0");
        assert_eq!(why("ceil_div(n, 0)"), "divides 4097 by 0");
        assert!(why("m - n").contains("1 - 4097"));
        assert!(why("n * 18446744073709551615").contains("too much"));
        assert!(why("99999999999999999999").contains("past 2^64"));
        assert_eq!(why("n 8"), "has something behind its end: `8`");
        assert_eq!(why("(n"), "ends where `)` belongs");
        assert_eq!(why("min(n; 8)"), "has `;` where `,` belongs");
        assert_eq!(why(""), "ends where a number or a name belongs");
        assert_eq!(why("é"), "has `é` where a number or a name belongs");
        assert!(why(&"(".repeat(150)).contains("deeper"));
        assert!(why(&"1+".repeat(150)).contains("longer"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_number_or_an_error(text in ".{0,60}") {
            let _ = evaluate(&text, NAMES);
        }

        #[test]
        fn sums_are_those_of_numbers(a in 0u64..1 << 30, b in 1u64..1 << 30) {
            prop_assert_eq!(evaluate(&format!("{a} + {b} * 2"), &[]), Ok(a + b * 2));
            prop_assert_eq!(evaluate(&format!("ceil_div({a}, {b})"), &[]), Ok(a.div_ceil(b)));
        }
    }
}
