//! The unique identity under which a process holds leases.

use std::fmt;

use reknit_injection::internal::{host_name, random_uuid};

/// The maximum length in bytes. The identity is also the field manager of lease writes, which the API server limits to
/// 128.
const MAX_LENGTH: usize = 128;
const UUID_LENGTH: usize = 36;

/// The identity of a process as a lease holder: the host name, an underscore and a random UUID.
///
/// ```
/// use reknit_leadership::internal::Identity;
///
/// let (one, other) = (Identity::on("controller-0"), Identity::on("controller-0"));
/// assert!(one.as_str().starts_with("controller-0_"));
/// assert_ne!(one, other);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity(String);

impl Identity {
    /// Creates an identity from the host name of this machine. Inside a pod, that is the pod's name.
    pub fn of_process() -> Self {
        Self::on(&host_name())
    }

    /// Creates an identity from this host name. A long name is truncated. Characters that are not valid in host names
    /// become dashes.
    pub fn on(host: &str) -> Self {
        let sanitize = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '-' };
        let host: String = host.chars().map(sanitize).take(MAX_LENGTH - UUID_LENGTH - 1).collect();
        let unique = random_uuid(format_args!("identity/{host}"));
        Self(format!("{host}_{unique}"))
    }

    /// The identity as the lease's `holderIdentity`, of at most 128 bytes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The Pod of a process with this identity, if it runs in one whose name is not too long: the host name is the Pod's name.
/// A wrong name does no harm, since the Pod of that name contains no message with the identity.
pub(crate) fn pod_of(identity: &str) -> &str {
    identity.rsplit_once('_').map_or(identity, |(host, _)| host)
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use reknit_injection::internal::{Seeded, within};

    use super::*;

    #[test]
    fn an_identity_of_the_longest_host_name_is_a_valid_field_manager() {
        assert_eq!(Identity::on(&"h".repeat(300)).as_str().len(), MAX_LENGTH);
        assert_eq!(Identity::on(&"ü\n".repeat(300)).as_str().len(), MAX_LENGTH);
    }

    #[test]
    fn an_identity_in_a_simulation_depends_on_its_host_and_seed() {
        let identity = |seed| within(&Seeded::environment(seed), Identity::of_process);
        assert!(identity(1).as_str().starts_with("localhost_"));
        assert_eq!(identity(1), identity(1));
        assert_ne!(identity(1), identity(2));
    }

    #[test]
    fn a_random_uuid_has_the_assumed_length() {
        assert_eq!(random_uuid("test").len(), UUID_LENGTH);
    }
}
