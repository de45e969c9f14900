//! The oldest Kubernetes version that a process accepts.
use semver::{Prerelease, Version};

/// Knative's minimum, which `KUBERNETES_MIN_VERSION` overrides.
pub(crate) const MINIMUM: Version = Version::new(1, 33, 0);

/// Parses a version such as `v1.36.3` or `1.36.3-gke.100`.
pub(crate) fn parse(text: &str) -> Result<Version, semver::Error> {
    Version::parse(text.strip_prefix('v').unwrap_or(text))
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
    fn malformed_versions_are_refused() {
        for text in ["", "new", "1.33", "1.33.x", "1.2.3.4"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
