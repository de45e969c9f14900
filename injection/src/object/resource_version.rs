//! The order of resourceVersions.

/// A resourceVersion that can be ordered: decimal digits without a leading zero, of any length.
///
/// Kubernetes guarantees since 1.35 that the versions of one resource compare as numbers (KEP-5504). Versions that come
/// from etcd always have. Other texts do not parse, since only the watch shows their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceVersion<'a>(&'a str);

impl<'a> ResourceVersion<'a> {
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        (is_number && !text.starts_with('0')).then_some(Self(text))
    }

    pub(crate) fn as_str(self) -> &'a str {
        self.0
    }
}

impl Ord for ResourceVersion<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0.len(), self.0).cmp(&(other.0.len(), other.0))
    }
}

impl PartialOrd for ResourceVersion<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Sets `highest` to this version if it is higher. A text that is empty or not a number is below all versions.
pub(crate) fn raise(highest: &mut String, version: Option<ResourceVersion<'_>>) {
    if let Some(version) = version
        && ResourceVersion::parse(highest).is_none_or(|previous| previous < version)
    {
        highest.clear();
        highest.push_str(version.as_str());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> ResourceVersion<'_> {
        ResourceVersion::parse(text).unwrap()
    }

    #[test]
    fn versions_compare_as_numbers_of_any_size() {
        let huge = "9".repeat(60);
        assert!(version("9") < version("10"));
        assert!(version("10") < version("11"));
        assert!(version("18446744073709551616") > version("18446744073709551615"));
        assert!(version(&huge) > version("18446744073709551616"));
        assert_eq!(version("7").cmp(&version("7")), std::cmp::Ordering::Equal);
    }

    #[test]
    fn text_that_is_not_a_number_has_no_order() {
        for text in ["", "0", "01", "-1", "1a", "1.0", " 1", "٣"] {
            assert_eq!(ResourceVersion::parse(text), None, "{text:?}");
        }
    }
}
