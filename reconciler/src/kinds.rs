//! [`Kinds`]: the Kinds that a controller may use, although they are known only at run time.

use kube::api::ApiResource;
use reknit_injection::{Permission, Verb};

/// The Kinds that references or templates may name, for [`Builder::track_any`](crate::Builder::track_any) and
/// [`Builder::owns_any`](crate::Builder::owns_any). Any other Kind is a permanent error, and opens no informer.
///
/// A user who can write a reference or a template chooses the Kind, and the controller uses it with its own permissions.
/// So name only Kinds that each such user may see or create. The RBAC rules of the named Kinds are generated. No rules
/// are generated for Kinds that [`or_any_in`](Self::or_any_in) and [`or_any`](Self::or_any) add: a cluster that uses
/// them grants the permissions by a role of its own.
///
/// ```
/// use k8s_openapi::api::core::v1::Pod;
/// use reknit_reconciler::{Builder, Kinds, TrackedAny};
///
/// fn sinks(build: &mut Builder<Pod>) -> TrackedAny {
///     build.track_any(Kinds::of([("", "services"), ("serving.knative.dev", "services")]))
/// }
/// ```
#[derive(Clone, Debug)]
#[must_use = "Kinds are the argument of a builder call"]
pub struct Kinds {
    /// API groups and plural names.
    named: Vec<(String, String)>,
    /// The API groups of which any Kind may be used.
    groups: Vec<String>,
    is_any: bool,
}

impl Kinds {
    /// The Kinds of these resources, by API group and plural name. As in RBAC rules, `""` is the core group, and the
    /// plural `*` is every resource of the group.
    pub fn of<G: Into<String>, R: Into<String>>(resources: impl IntoIterator<Item = (G, R)>) -> Self {
        let named = resources.into_iter().map(|(group, resource)| (group.into(), resource.into())).collect();
        Self { named, groups: Vec::new(), is_any: false }
    }

    /// Every Kind. No RBAC rules can be generated, and `Main::rbac` fails.
    pub fn any() -> Self {
        Self { named: Vec::new(), groups: Vec::new(), is_any: true }
    }

    /// Adds every Kind of these API groups.
    ///
    /// ```
    /// use reknit_reconciler::Kinds;
    ///
    /// // The generated role permits InMemoryChannels. A cluster with other channels grants them by another role.
    /// let channels = Kinds::of([("messaging.knative.dev", "inmemorychannels")]).or_any_in(["messaging.knative.dev"]);
    /// # let _ = channels;
    /// ```
    pub fn or_any_in<G: Into<String>>(mut self, groups: impl IntoIterator<Item = G>) -> Self {
        self.groups.extend(groups.into_iter().map(Into::into));
        self
    }

    /// Adds every other Kind.
    pub fn or_any(self) -> Self {
        Self { is_any: true, ..self }
    }

    /// Returns the permissions for these verbs on the named resources, to declare further requests by
    /// [`Builder::allows`](crate::Builder::allows).
    pub fn permissions(&self, verbs: &[Verb]) -> impl Iterator<Item = Permission> {
        self.named.iter().map(|(group, resource)| Permission::new(group, resource, verbs.iter().copied()))
    }

    /// Returns true if no resource is named, so that no RBAC rules can be generated.
    pub(crate) fn is_unnamed(&self) -> bool {
        self.named.is_empty()
    }

    /// Returns true if this very resource is named, not only its group.
    pub(crate) fn names(&self, resource: &ApiResource) -> bool {
        self.named.iter().any(|(group, plural)| *group == resource.group && *plural == resource.plural)
    }

    /// Returns true if a Kind of this resource may be used. Before discovery has found the plural name (`None`), it is
    /// enough that some resource of the group may be used.
    pub(crate) fn admit(&self, group: &str, plural: Option<&str>) -> bool {
        let is_named = |(named, resource): &(String, String)| {
            named == group && (resource == "*" || plural.is_none_or(|plural| resource == plural))
        };
        self.is_any || self.groups.iter().any(|any| any == group) || self.named.iter().any(is_named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_resources_and_groups_are_admitted() {
        let kinds = Kinds::of([("", "services"), ("batch", "*")]).or_any_in(["apps"]);
        assert!(kinds.admit("", Some("services")) && !kinds.admit("", Some("secrets")));
        assert!(kinds.admit("batch", Some("jobs")) && kinds.admit("apps", Some("deployments")));
        assert!(kinds.admit("", None) && !kinds.admit("example.com", None), "the plural is not known yet");
        assert!(kinds.or_any().admit("example.com", Some("things")));
    }

    #[test]
    fn only_named_resources_have_permissions() {
        let kinds = Kinds::of([("batch", "jobs")]).or_any_in(["apps"]).or_any();
        let permissions: Vec<_> = kinds.permissions(&[Verb::List]).collect();
        assert_eq!(permissions, [Permission::new("batch", "jobs", [Verb::List])]);
        assert_eq!(Kinds::any().permissions(&[Verb::List]).count(), 0);
    }
}
