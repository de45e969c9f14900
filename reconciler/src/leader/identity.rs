//! Who holds a lease: a name that no other process has, or ever had.

use std::fmt;

use crate::uuid::random_uuid;

/// The longest holder name. It is also the field manager of every write to the lease, and the API server refuses
/// longer ones.
const LONGEST: usize = 128;
const UUID: usize = 36;

/// The name under which this process holds leases: host name, underscore, a random UUID.
///
/// ```
/// use reknit_reconciler::leader::Identity;
///
/// let (one, other) = (Identity::on("controller-0"), Identity::on("controller-0"));
/// assert!(one.as_str().starts_with("controller-0_"));
/// assert_ne!(one, other);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity(String);

impl Identity {
    /// A new identity on the host that this process runs on; in a pod, the host name is the pod's.
    pub fn of_process() -> Self {
        Self::on(&gethostname::gethostname().to_string_lossy())
    }

    /// A new identity on a host of this name. A name too long is cut; characters that no host name has, and the
    /// API server might refuse, become dashes.
    pub fn on(host: &str) -> Self {
        let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '-' };
        let host: String = host.chars().map(allowed).take(LONGEST - UUID - 1).collect();
        Self(format!("{host}_{}", random_uuid()))
    }

    /// The identity as the lease's `holderIdentity` has it: at most 128 bytes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_of_the_longest_host_name_is_a_valid_field_manager() {
        assert_eq!(Identity::on(&"h".repeat(300)).as_str().len(), LONGEST);
        assert_eq!(Identity::on(&"ü\n".repeat(300)).as_str().len(), LONGEST);
    }

    #[test]
    fn a_random_uuid_says_that_it_is_one() {
        for _ in 0..100 {
            let uuid = random_uuid();
            assert_eq!(uuid.len(), UUID);
            assert_eq!(&uuid[14..15], "4", "{uuid}");
            assert!(["8", "9", "a", "b"].contains(&&uuid[19..20]), "{uuid}");
        }
    }
}
