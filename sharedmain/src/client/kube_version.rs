//! Versions of Kubernetes, as far as comparing them needs.
use std::{cmp::Ordering, fmt, str::FromStr};

/// `v1.36.3` or `1.36.3-gke.100`; build metadata after a `+` is ignored, as semantic versions have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    numbers: [u64; 3],
    pre: Option<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no version of Kubernetes")]
pub(crate) struct NoVersion(String);

impl Version {
    /// What Knative asks for, which the environment variable overrides.
    pub(crate) fn minimum() -> Self {
        Self { numbers: [1, 33, 0], pre: None }
    }

    /// Whether a server of this version is new enough. Where the minimum names no pre-release, every pre-release
    /// of that same version will do: managed clusters call their patched releases so.
    pub(crate) fn satisfies(&self, minimum: &Self) -> bool {
        match self.numbers.cmp(&minimum.numbers) {
            Ordering::Equal => minimum.pre.as_ref().is_none_or(|least| self.is_after_pre(least)),
            order => order == Ordering::Greater,
        }
    }

    fn is_after_pre(&self, least: &str) -> bool {
        self.pre.as_ref().is_none_or(|pre| compare_pre(pre, least) != Ordering::Less)
    }
}

/// Semantic versions: numbers as numbers and before words, and fewer parts before more.
fn compare_pre(a: &str, b: &str) -> Ordering {
    let part = |text: &str| text.parse::<u64>().map_or((1, 0, text.to_owned()), |n| (0, n, String::new()));
    a.split('.').map(part).cmp(b.split('.').map(part))
}

impl FromStr for Version {
    type Err = NoVersion;

    fn from_str(text: &str) -> Result<Self, NoVersion> {
        let wrong = || NoVersion(text.to_owned());
        let bare = text.strip_prefix('v').unwrap_or(text);
        let bare = bare.split_once('+').map_or(bare, |(version, _)| version);
        let (numbers, pre) = match bare.split_once('-') {
            Some((numbers, pre)) => (numbers, Some(pre.to_owned())),
            None => (bare, None),
        };
        let numbers: Vec<u64> =
            numbers.split('.').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
        Ok(Self { numbers: numbers.try_into().map_err(|_| wrong())?, pre })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "v{major}.{minor}.{patch}")?;
        self.pre.iter().try_for_each(|pre| write!(f, "-{pre}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn a_newer_or_equal_server_satisfies() {
        for (server, minimum, enough) in [
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
            assert_eq!(version(server).satisfies(&version(minimum)), enough, "{server} against {minimum}");
        }
    }

    #[test]
    fn what_is_no_version_is_refused() {
        for text in ["", "new", "1.33", "1.33.x", "1.2.3.4"] {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
    }
}
