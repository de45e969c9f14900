//! Feature flags from a ConfigMap, as Knative Eventing's `config-features` has them.

use std::{collections::BTreeMap, error::Error, fmt};

use crate::FromConfigMap;

/// The value of a feature flag. The case of its text does not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeatureFlag {
    /// The feature is on.
    Enabled,
    /// The feature is off, unless an object requests it, for example by an annotation.
    Allowed,
    /// The feature is off.
    Disabled,
    /// Any other value, such as `Strict` of Eventing's `transport-encryption`.
    Other(String),
}

impl From<&str> for FeatureFlag {
    fn from(text: &str) -> Self {
        let text = text.trim();
        let known = [Self::Enabled, Self::Allowed, Self::Disabled];
        let flag = known.into_iter().find(|flag| flag.as_str().eq_ignore_ascii_case(text));
        flag.unwrap_or_else(|| Self::Other(text.to_owned()))
    }
}

impl FeatureFlag {
    /// Returns the text of the flag, such as `Enabled`.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Enabled => "Enabled",
            Self::Allowed => "Allowed",
            Self::Disabled => "Disabled",
            Self::Other(text) => text,
        }
    }
}

impl fmt::Display for FeatureFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The feature flags of the ConfigMap `config-features`, by name. A flag that the ConfigMap does not contain is off.
///
/// Unlike in Knative Eventing, a flag can have any text, and no flag has a built-in default.
///
/// ```
/// use reknit_injection::{Config, Features};
///
/// fn may_filter(features: &Config<Features>, is_requested: bool) -> bool {
///     let features = features.get();
///     features.is_enabled("new-filters") || is_requested && features.is_allowed("new-filters")
/// }
/// ```
///
/// To set defaults or to read another ConfigMap, define a type of your own:
///
/// ```
/// use std::{collections::BTreeMap, error::Error};
/// use reknit_injection::{FeatureFlag, Features, FromConfigMap};
///
/// struct ShopFeatures(Features);
///
/// impl Default for ShopFeatures {
///     fn default() -> Self {
///         Self(Features::from([("new-filters", FeatureFlag::Enabled)]))
///     }
/// }
///
/// impl FromConfigMap for ShopFeatures {
///     const NAME: &'static str = "config-shop-features";
///
///     fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>> {
///         Ok(Self(Self::default().0.overridden_by(data)))
///     }
/// }
///
/// let data = BTreeMap::from([("express".to_owned(), "allowed".to_owned())]);
/// let ShopFeatures(features) = ShopFeatures::from_config_map(&data).unwrap();
/// assert!(features.is_enabled("new-filters") && features.is_allowed("express"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features(BTreeMap<String, FeatureFlag>);

impl Features {
    /// Returns these flags, replaced and extended by the flags in the data of a ConfigMap. Keys that start with `_` are
    /// not flags.
    #[must_use]
    pub fn overridden_by(mut self, data: &BTreeMap<String, String>) -> Self {
        let flags = data.iter().filter(|(name, _)| !name.starts_with('_'));
        self.0.extend(flags.map(|(name, text)| (name.clone(), FeatureFlag::from(text.as_str()))));
        self
    }

    /// Returns the flag of this name, if it is set.
    pub fn get(&self, name: &str) -> Option<&FeatureFlag> {
        self.0.get(name)
    }

    /// Returns true if the flag is `Enabled`.
    pub fn is_enabled(&self, name: &str) -> bool {
        self.get(name) == Some(&FeatureFlag::Enabled)
    }

    /// Returns true if the flag is `Enabled` or `Allowed`.
    pub fn is_allowed(&self, name: &str) -> bool {
        matches!(self.get(name), Some(FeatureFlag::Enabled | FeatureFlag::Allowed))
    }

    /// Returns true if the flag is set to this value, without regard to case.
    ///
    /// ```
    /// use reknit_injection::Features;
    ///
    /// fn is_https_required(features: &Features) -> bool {
    ///     features.has_value("transport-encryption", "strict")
    /// }
    /// ```
    pub fn has_value(&self, name: &str, value: &str) -> bool {
        self.get(name).is_some_and(|flag| flag.as_str().eq_ignore_ascii_case(value))
    }
}

impl<const N: usize> From<[(&str, FeatureFlag); N]> for Features {
    fn from(flags: [(&str, FeatureFlag); N]) -> Self {
        Self(flags.into_iter().map(|(name, flag)| (name.to_owned(), flag)).collect())
    }
}

impl FromConfigMap for Features {
    const NAME: &'static str = "config-features";

    fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(Self::default().overridden_by(data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_without_regard_to_case_and_other_values_are_kept() {
        let data = [
            ("on", "enabled"),
            ("may", " ALLOWED "),
            ("off", "Disabled"),
            ("tls", "Strict"),
            ("_example", "x"),
        ];
        let data = data.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        let features = Features::from_config_map(&data).unwrap();
        let names = ["on", "may", "off", "tls", "absent"];
        assert_eq!(names.map(|name| features.is_enabled(name)), [true, false, false, false, false]);
        assert_eq!(names.map(|name| features.is_allowed(name)), [true, true, false, false, false]);
        assert!(
            features.has_value("tls", "strict")
                && !features.has_value("tls", "permissive")
                && features.has_value("off", "disabled")
        );
        assert_eq!(features.get("tls"), Some(&FeatureFlag::Other("Strict".into())));
        assert_eq!(features.get("_example"), None);
    }

    #[test]
    fn a_flag_that_the_config_map_does_not_contain_keeps_its_default() {
        let defaults = Features::from([("a", FeatureFlag::Enabled), ("b", FeatureFlag::Enabled)]);
        let features = defaults.overridden_by(&[("b".to_owned(), "disabled".to_owned())].into());
        assert!(features.is_enabled("a") && !features.is_allowed("b"));
    }
}
