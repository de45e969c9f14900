//! The oldest Kubernetes version that a process accepts.
use k8s_openapi::apimachinery::pkg::version::Info;
use semver::{Prerelease, Version};

/// Knative's minimum, which `KUBERNETES_MIN_VERSION` overrides.
pub(crate) const MINIMUM: Version = Version::new(1, 33, 0);

/// Parses a version such as `v1.36.3`, `1.36` or `v1.36.3+$Format:%h$`, as leniently as client-go's `ParseGeneric`: the
/// numbers count, and a pre-release if it is one. Returns `None` for a text without a major and a minor number.
pub(crate) fn parse(text: &str) -> Option<Version> {
    let text = text.trim();
    let text = text.strip_prefix('v').unwrap_or(text);
    let (numbers, rest) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let mut numbers = numbers.trim_end_matches('.').split('.').map(|number| number.parse().ok());
    let (major, minor) = (numbers.next()??, numbers.next()??);
    let pre = rest.split('+').next().and_then(|rest| Prerelease::new(rest.strip_prefix('-')?).ok());
    let patch = numbers.next().flatten().unwrap_or_default();
    Some(Version { pre: pre.unwrap_or_default(), ..Version::new(major, minor, patch) })
}

/// Returns the version of a server, if it tells one: a build outside of a release may call itself `v0.0.0-master`.
pub(crate) fn of_server(info: &Info) -> Option<Version> {
    let numbers = format!("{}.{}", info.major, info.minor); // the minor number may end with a plus
    [&info.git_version, &numbers].into_iter().filter_map(|text| parse(text)).find(|version| version.major > 0)
}

/// Returns whether a server of this version is new enough. Unless the minimum is a pre-release itself, every
/// pre-release of the minimum is accepted: releases of managed clusters, such as `v1.33.0-eks-15b7512`, look like
/// pre-releases.
pub(crate) fn is_compatible(server: &Version, minimum: &Version) -> bool {
    let mut server = server.clone();
    if minimum.pre.is_empty() {
        server.pre = Prerelease::EMPTY;
    }
    server.cmp_precedence(minimum).is_ge()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_and_equal_servers_are_compatible() {
        for (server, minimum, expected) in [
            ("v1.33.0", "v1.33.0", true),
            ("v1.36.3", "v1.33.0", true),
            ("v1.32.9", "v1.33.0", false),
            ("v2.0.0", "v1.33.0", true),
            ("v1.9.0", "v1.10.0", false),
            ("1.33.0-eks-15b7512", "v1.33.0", true),
            ("v1.33.0-alpha.1", "v1.33.0-beta.0", false),
            ("v1.33.0-beta.10", "v1.33.0-beta.9", true),
            ("v1.33.0", "v1.33.0-beta.9", true),
            ("v1.35.1+k3s1", "v1.35.1", true),
        ] {
            let compatible = is_compatible(&parse(server).unwrap(), &parse(minimum).unwrap());
            assert_eq!(compatible, expected, "{server} against {minimum}");
        }
    }

    #[test]
    fn versions_are_read_as_leniently_as_by_client_go() {
        for (text, version) in [
            ("v1.36.3+$Format:%h$", "1.36.3"),
            ("v1.36", "1.36.0"),
            ("v1.33.1-x.06", "1.33.1"),
            (" 1.2.3.4", "1.2.3"),
            ("v0.0.0-master+$Format:%H$", "0.0.0-master"),
            ("v1.36.3-gke.100", "1.36.3-gke.100"),
            ("1.33.x", "1.33.0"),
        ] {
            assert_eq!(parse(text).map(|version| version.to_string()).as_deref(), Some(version), "{text}");
        }
        for text in ["", "v", "new", "1", "v1.", ".1.33", "1..3", "99999999999999999999.1"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_server_without_a_usable_version_text_has_its_major_and_minor_number() {
        let version = |git: &str, major: &str, minor: &str| {
            let (major, minor) = (major.to_owned(), minor.to_owned());
            of_server(&Info { git_version: git.into(), major, minor, ..Info::default() })
        };
        assert_eq!(version("v0.0.0-master+$Format:%H$", "1", "36+"), Some(Version::new(1, 36, 0)));
        assert_eq!(version("v1.36.3", "", ""), Some(Version::new(1, 36, 3)));
        assert_eq!(version("v0.0.0-master+$Format:%H$", "0", ""), None);
        assert_eq!(version("$Format:%H$", "", ""), None);
    }
}
