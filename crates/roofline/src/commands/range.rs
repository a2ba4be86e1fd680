//! Ranges of a sweep: `1,2,8`, `1..512` (doubling), `512..4096+512` (steps), and lists of those.

use roofline_core::Dim;

use crate::failure::Failure;

/// More values than a range may have.
const MAX_VALUES: usize = 1_000_000;

pub(super) fn range(what: &str, text: &str) -> Result<Vec<u64>, Failure> {
    let mut values = Vec::new();
    for part in text.split(',') {
        expand(part, &mut values).map_err(|reason| {
            let hint = format!("write numbers from 1 to {}: 1,2,8 or 1..512 or 512..4096+512", Dim::MAX);
            Failure::usage(format!("--{what}: `{part}` {reason}"), hint)
        })?;
    }
    Ok(values)
}

fn expand(part: &str, values: &mut Vec<u64>) -> Result<(), &'static str> {
    let number = |text: &str| {
        let digits = text.trim().replace('_', "");
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let value = digits.parse::<u64>().ok().filter(|value| plain && (1..=Dim::MAX).contains(value));
        value.ok_or("is not a number or a range")
    };
    let Some((start, end)) = part.split_once("..") else {
        values.push(number(part)?);
        return Ok(());
    };
    let (end, step) = match end.split_once('+') {
        Some((end, step)) => (number(end)?, Some(number(step)?)),
        None => (number(end)?, None),
    };
    let mut value = number(start)?;
    if value > end {
        return Err("ends before it starts");
    }
    while value <= end {
        if values.len() >= MAX_VALUES {
            return Err("has more than a million values");
        }
        values.push(value);
        value = step.map_or(value * 2, |step| value + step);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_doublings_and_steps() {
        assert_eq!(range("batch", "1,2,8").unwrap(), [1, 2, 8]);
        assert_eq!(range("batch", "1..9").unwrap(), [1, 2, 4, 8]);
        assert_eq!(range("batch", "3..12").unwrap(), [3, 6, 12]);
        assert_eq!(range("context", "512..2048+512,4096").unwrap(), [512, 1024, 1536, 2048, 4096]);
        for bad in ["", "0", "-1", "8..1", "1..x", "1..9+0", "1..99999999999", "1.5", "1..2147483647+1", "..", "1.."] {
            assert!(range("batch", bad).is_err(), "{bad}");
        }
    }
}
