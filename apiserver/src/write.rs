//! A recorded write request.

use std::{collections::BTreeSet, fmt, sync::Arc};

use kube::discovery::verbs;
use serde_json::Value;

/// Returns true if requests of this verb are writes.
pub(crate) fn is_write(verb: &str) -> bool {
    !matches!(verb, verbs::GET | verbs::LIST | verbs::WATCH)
}

/// Returns true if the object exists after a successful request of this verb.
pub(crate) fn stores_object(verb: &str) -> bool {
    matches!(verb, verbs::CREATE | verbs::UPDATE | verbs::PATCH)
}

/// A recorded write request. It is displayed as `patch lamps/status default/x`, or `create namespaces x`, followed by its
/// options: `delete pods default/x propagationPolicy=Foreground`. The propagation policy `Background` is not displayed.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// The verb of the request, as RBAC names it.
    pub verb: &'static str,
    /// The resource and subresource: `pods`, `lamps/status`.
    pub resource: String,
    /// The namespace in the path.
    pub namespace: Option<String>,
    /// The name of the object. The name of a created object is the name or the `generateName` that was sent, and the
    /// name of a collection is empty.
    pub name: String,
    /// The label selector of a deleted collection. `None` selects all objects.
    pub selector: Option<String>,
    /// The field selector of a deleted collection.
    pub field_selector: Option<String>,
    /// The propagation policy of a deletion, for example `Foreground`. If the request did not set it: `Orphan` for a
    /// Kind with this default, such as Job, and `None` for any other Kind.
    pub propagation_policy: Option<String>,
    /// True for a dry run.
    pub dry_run: bool,
    /// True for server-side apply, which is a patch.
    pub is_apply: bool,
    /// The body that was sent.
    pub body: Value,
    /// The object after a successful request, even if the request was [made to fail](crate::ApiServer::fail). `None`
    /// for a deletion, and if the server itself refused the request.
    pub result: Option<Arc<Value>>,
}

impl Write {
    /// Returns the options of the request, such as `dryRun=All`, in alphabetical order.
    pub fn options(&self) -> BTreeSet<String> {
        let fields = self.field_selector.as_ref().map(|fields| format!("fieldSelector={fields}"));
        // Not `Background`, which nearly every deletion wants and most Kinds have as default.
        let policy = self.propagation_policy.as_ref().filter(|policy| *policy != "Background");
        let policy = policy.map(|policy| format!("propagationPolicy={policy}"));
        let dry_run = self.dry_run.then(|| "dryRun=All".to_owned());
        [fields, policy, dry_run].into_iter().flatten().collect()
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        match self.namespace.as_deref() {
            Some(namespace) => write!(f, " {namespace}/{}", self.name)?,
            None if self.name.is_empty() => {} // a collection of all namespaces
            None => write!(f, " {}", self.name)?,
        }
        self.selector.iter().try_for_each(|selector| write!(f, "?{selector}"))?;
        self.options().iter().try_for_each(|option| write!(f, " {option}"))
    }
}
