//! A request that was to change something.

use std::{collections::BTreeSet, fmt};

use reknit_apis::Key;
use serde_json::Value;

/// What a request asks for, as RBAC names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// One object.
    Get,
    /// Many objects.
    List,
    /// A new object.
    Create,
    /// An object in place of another.
    Update,
    /// Some fields of an object.
    Patch,
    /// An object gone.
    Delete,
    /// All objects gone that a selector selects.
    DeleteCollection,
}

impl Verb {
    pub(super) fn writes(self) -> bool {
        !matches!(self, Self::Get | Self::List)
    }

    /// Returns true if there is an object afterwards.
    pub(super) fn leaves_one(self) -> bool {
        matches!(self, Self::Create | Self::Update | Self::Patch)
    }
}

/// It shows as RBAC names it: `deletecollection`.
impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// A request that was to change something. It shows as `patch addressableservices/status default/x`, and what else is
/// asked of it behind that: `delete pods default/x propagationPolicy=Foreground`.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// What was to be done.
    pub verb: Verb,
    /// `pods`, `addressableservices/status`.
    pub resource: String,
    /// To which object; one that was to be created has the name or the `generateName` that it was sent with, and a
    /// collection has no name.
    pub key: Key,
    /// Which objects of a collection were to be deleted, by their labels; none for all.
    pub selector: Option<String>,
    /// The same by their fields.
    pub field_selector: Option<String>,
    /// What is to become of the dependents of what is deleted: `Foreground`; none where that was not said.
    pub propagation_policy: Option<String>,
    /// True if nothing was to be stored.
    pub dry_run: bool,
    /// True if it is server-side apply, which is a patch.
    pub applies: bool,
    /// What was sent.
    pub body: Value,
    /// The object as it was to be afterwards, also where the request was [made to fail](super::ApiServer::fail). None
    /// where it was to be gone, and where the server refused of itself.
    pub meant: Option<Value>,
}

impl Write {
    /// What else is asked, as texts in the order of the alphabet.
    pub(crate) fn options(&self) -> BTreeSet<String> {
        let fields = self.field_selector.as_ref().map(|fields| format!("fieldSelector={fields}"));
        let policy = self.propagation_policy.as_ref().map(|policy| format!("propagationPolicy={policy}"));
        let dry_run = self.dry_run.then(|| "dryRun=All".to_owned());
        [fields, policy, dry_run].into_iter().flatten().collect()
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.verb, self.resource, self.key)?;
        self.selector.iter().try_for_each(|selector| write!(f, "?{selector}"))?;
        self.options().iter().try_for_each(|option| write!(f, " {option}"))
    }
}
