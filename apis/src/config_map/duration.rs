//! Durations in Go's format, which Knative's ConfigMaps use.

use std::time::Duration;

const HOUR: u64 = 60 * MINUTE;
const MINUTE: u64 = 60 * SECOND;
const SECOND: u64 = 1_000_000_000;

/// The error of parsing a malformed duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration {0:?}: want one or more numbers, each with its unit, as in 1h30m or 1.5s")]
pub struct DurationError(String);

/// Parses a duration like Go's `time.ParseDuration`, except that negative ones are refused.
///
/// A duration is a sequence of decimal numbers with units (`h`, `m`, `s`, `ms`, `us` or `µs`, `ns`), or `0`.
///
/// ```
/// use std::time::Duration;
/// use reknit_apis::parse_duration;
///
/// assert_eq!(parse_duration("1h2m3.5s")?, Duration::from_millis(3_723_500));
/// assert!(parse_duration("15").is_err());
/// # Ok::<_, reknit_apis::DurationError>(())
/// ```
///
/// # Errors
///
/// The text is malformed, contains spaces, or is a duration of more than 292 years.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    match text.strip_prefix('+').unwrap_or(text) {
        "0" => Some(Duration::ZERO),
        "" => None,
        terms => sum_nanos(terms).filter(|total| i64::try_from(*total).is_ok()).map(Duration::from_nanos),
    }
    .ok_or_else(|| DurationError(text.into()))
}

/// Adds up the terms: `1h` and `30m` in `1h30m`. Returns `None` if one is malformed or the sum overflows.
fn sum_nanos(mut terms: &str) -> Option<u64> {
    let mut total = 0_u64;
    while !terms.is_empty() {
        let (integer, rest) = split_digits(terms);
        let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), split_digits);
        if integer.is_empty() && fraction.is_empty() {
            return None;
        }
        let end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
        let (unit, rest) = rest.split_at(end);
        let unit = unit_nanos(unit)?;
        let integer = if integer.is_empty() { 0 } else { integer.parse::<u64>().ok()? };
        total = total.checked_add(integer.checked_mul(unit)?)?.checked_add(fraction_nanos(fraction, unit))?;
        terms = rest;
    }
    Some(total)
}

/// Splits the text after its leading digits.
fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// The nanoseconds of the digits after the decimal point. Fractions of a nanosecond are dropped.
fn fraction_nanos(digits: &str, unit: u64) -> u64 {
    let mut numerator = 0_u128;
    let mut denominator = 1_u128;
    // Even if the unit is an hour, the 18th digit counts far less than a nanosecond.
    for digit in digits.bytes().take(18) {
        numerator = numerator * 10 + u128::from(digit - b'0');
        denominator *= 10;
    }
    u64::try_from(numerator * u128::from(unit) / denominator).unwrap_or(unit)
}

fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "h" => HOUR,
        "m" => MINUTE,
        "s" => SECOND,
        "ms" => 1_000_000,
        // Both micro signs: U+00B5 and U+03BC.
        "us" | "µs" | "μs" => 1_000,
        "ns" => 1,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_as_in_go() {
        let text = "1h1m1s1ms1us1µs1μs1ns";
        assert_eq!(parse_duration(text), Ok(Duration::new(3661, 1_003_001)));
        assert_eq!(parse_duration("+.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.s"), Ok(Duration::from_secs(1)));
        assert_eq!(parse_duration("0.0000000019s"), Ok(Duration::from_nanos(1)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn the_error_of_a_malformed_duration_quotes_it() {
        for text in
            ["", "+", "15", "s", ".s", "1 s", " 1s", "1s ", "-1s", "1d", "1s2", "9999999999999h", "1e3s"]
        {
            let error = parse_duration(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("invalid duration {text:?}")), "{error}");
        }
    }
}
