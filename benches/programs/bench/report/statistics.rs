//! The median and the range of several runs.

use serde::Serialize;

/// The median, the minimum and the maximum of several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// Returns `None` if there was no run.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Some(Self { median: quantile(&values, 0.5), least: *values.first()?, most: *values.last()? })
    }
}

/// Returns a quantile of sorted values, interpolated between the two nearest ones. `share` is between 0 and 1.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let position = share * (sorted.len().max(1) - 1) as f64;
    let value = |index: f64| sorted.get(index as usize).copied().unwrap_or(f64::NAN);
    value(position.floor()) + (value(position.ceil()) - value(position.floor())) * position.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_does_not_depend_on_the_order_of_runs() {
        assert_eq!(Spread::of([3.0, 1.0, 8.0]), Some(Spread { median: 3.0, least: 1.0, most: 8.0 }));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn a_quantile_between_two_values_lies_between_them() {
        let sorted: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!((quantile(&sorted, 0.5), quantile(&sorted, 0.99)), (50.0, 99.0));
        assert_eq!(quantile(&[1.0, 2.0], 0.5), 1.5);
    }
}
