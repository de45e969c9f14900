//! The verbs of requests, as RBAC names them.

use std::fmt;

/// The verb of a request, as RBAC names it. Generated rules list their verbs in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Reads one object.
    Get,
    /// Lists objects.
    List,
    /// Watches objects.
    Watch,
    /// Creates an object.
    Create,
    /// Replaces an object.
    Update,
    /// Changes some fields of an object. Server-side apply is a patch, and also needs `create` if the object is new.
    Patch,
    /// Deletes an object.
    Delete,
    /// Deletes all objects that a selector selects.
    DeleteCollection,
    /// Refers to a role in a binding, although this process does not hold all rights of the role.
    /// `OwnedOptions::bind_cluster_roles` of `reknit_reconciler` declares it for children.
    Bind,
    /// Writes roles with rights that this process does not hold. It can then give itself any right.
    Escalate,
    /// Sends requests as another user, group or service account, with the rights of that user.
    Impersonate,
    /// A verb of one resource, such as `approve` of `signers`.
    Other(&'static str),
}

impl Verb {
    const NAMED: [Self; 11] = [
        Self::Get,
        Self::List,
        Self::Watch,
        Self::Create,
        Self::Update,
        Self::Patch,
        Self::Delete,
        Self::DeleteCollection,
        Self::Bind,
        Self::Escalate,
        Self::Impersonate,
    ];

    /// Returns the verb of this name in RBAC. `None` for the name of an [`Other`](Self::Other) verb.
    ///
    /// ```
    /// use reknit_injection::Verb;
    ///
    /// assert_eq!(Verb::parse("deletecollection"), Some(Verb::DeleteCollection));
    /// assert_eq!(Verb::parse("approve"), None);
    /// assert_eq!(Verb::Other("approve").to_string(), "approve");
    /// ```
    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMED.into_iter().find(|verb| verb.to_string() == name)
    }

    /// Returns true if a process with this verb can get rights that its roles do not list.
    pub fn is_escalation(self) -> bool {
        matches!(self, Self::Escalate | Self::Impersonate | Self::Other("*"))
    }
}

/// Formats the verb as RBAC names it: `deletecollection`.
impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(name) => f.write_str(name),
            named => f.write_str(&format!("{named:?}").to_lowercase()),
        }
    }
}
