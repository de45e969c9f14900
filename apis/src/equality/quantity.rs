//! The value of a quantity of resources, such as `1.5Gi` or `100m`.
//!
//! The available crates define a quantity type of their own, tied to one release of k8s-openapi. Comparing two values
//! takes no more than this.

use std::cmp::Ordering;

use serde_json::Value;

/// The value of a quantity: a number that is not a multiple of ten, and the power of ten to multiply it with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quantity {
    is_negative: bool,
    mantissa: u128,
    exponent: i32,
}

impl Quantity {
    /// The quantity in a JSON text or number. `None` if it is malformed, or too large for exact arithmetic.
    pub(super) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Self::parse(text),
            Value::Number(number) => Self::parse(&number.to_string()),
            _ => None,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let number_end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(number_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let (multiplier, exponent) = unit(suffix)?;
        let digits: u128 = format!("{whole}{fraction}").parse().ok()?; // fails without a digit, or for a second point
        let mantissa = digits.checked_mul(multiplier)?;
        let exponent = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        Some(Self::normalized(text.starts_with('-'), mantissa, exponent))
    }

    fn compare_magnitude(self, other: Self) -> Ordering {
        let lowest = self.exponent.min(other.exponent);
        let aligned = |quantity: Self| {
            quantity.mantissa.checked_mul(10u128.checked_pow(quantity.exponent.abs_diff(lowest))?)
        };
        // Only one can be too large for exact arithmetic: the exponent of the other is the lowest.
        match (aligned(self), aligned(other)) {
            (Some(a), Some(b)) => a.cmp(&b),
            (a, b) => (a.is_none() && self.mantissa > 0).cmp(&(b.is_none() && other.mantissa > 0)),
        }
    }

    fn normalized(is_negative: bool, mut mantissa: u128, mut exponent: i32) -> Self {
        if mantissa == 0 {
            return Self { is_negative: false, mantissa, exponent: 0 };
        }
        while mantissa.is_multiple_of(10) {
            (mantissa, exponent) = (mantissa / 10, exponent.saturating_add(1));
        }
        Self { is_negative, mantissa, exponent }
    }
}

/// Compares two quantities of resources by value, as `Cmp` of Go's `resource.Quantity` does: `Quantity.0` of k8s-openapi is
/// such a text. `None` if one is malformed.
///
/// ```
/// use std::cmp::Ordering;
///
/// use reknit_apis::equality::compare_quantities;
///
/// assert_eq!(compare_quantities("500m", "1"), Some(Ordering::Less));
/// assert_eq!(compare_quantities("1Gi", "1024Mi"), Some(Ordering::Equal));
/// assert_eq!(compare_quantities("2", "-3"), Some(Ordering::Greater));
/// assert_eq!(compare_quantities("many", "1"), None);
/// ```
pub fn compare_quantities(a: &str, b: &str) -> Option<Ordering> {
    let (a, b) = (Quantity::parse(a)?, Quantity::parse(b)?);
    Some(match (a.is_negative, b.is_negative) {
        (false, false) => a.compare_magnitude(b),
        (true, true) => b.compare_magnitude(a),
        (a, b) => b.cmp(&a),
    })
}

/// The multiplier and the power of ten of a suffix.
fn unit(suffix: &str) -> Option<(u128, i32)> {
    let decimal = |exponent| Some((1, exponent));
    let binary = |bits: u32| Some((1 << bits, 0));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => decimal(suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_of_the_same_value_are_equal() {
        for equal in [
            &["1Gi", "1024Mi", "1048576Ki", "1073741824", "1073741824000m"][..],
            &["0.5", "500m", ".5", "500000u", "+0.50", "5e-1"],
            &["1.5Gi", "1536Mi"],
            &["1k", "1000", "1e3", "1E3", "0.001M"],
            &["12E", "12e18"],
            &["0", "-0", "0.0", "0Gi"],
            &["-1", "-1000m"],
        ] {
            let values: Vec<_> = equal.iter().map(|text| Quantity::parse(text).unwrap()).collect();
            assert!(values.iter().all(|value| *value == values[0]), "{equal:?}: {values:?}");
        }
        assert_ne!(Quantity::parse("1G"), Quantity::parse("1Gi"));
        assert_ne!(Quantity::parse("1m"), Quantity::parse("1M"));
        assert_ne!(Quantity::parse("1"), Quantity::parse("-1"));
    }

    #[test]
    fn malformed_and_huge_quantities_have_no_value() {
        let digits = "9".repeat(40);
        for text in
            ["", ".", "-", "Gi", "1.2.3", "1 Gi", "1gi", "1e", "1ee3", "++1", "0x1", "1e9999999999", &digits]
        {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
    }
}
