//! Collections of objects, and the differences between Kinds.

use kube::{Resource, discovery::ApiResource};

/// The objects of one resource in one namespace, or in all namespaces: `/apis/apps/v1/namespaces/shop/deployments`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Collection {
    /// Empty for the core group.
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) namespace: Option<String>,
}

/// The groups of Kubernetes itself, except for the core group, whose name is empty. Every other group belongs to
/// CustomResourceDefinitions, even if it ends in `.k8s.io`.
const BUILT_IN: &str = "admissionregistration.k8s.io apiextensions.k8s.io apiregistration.k8s.io apps \
    authentication.k8s.io authorization.k8s.io autoscaling batch certificates.k8s.io coordination.k8s.io \
    discovery.k8s.io events.k8s.io flowcontrol.apiserver.k8s.io internal.apiserver.k8s.io \
    networking.k8s.io node.k8s.io policy rbac.authorization.k8s.io resource.k8s.io scheduling.k8s.io \
    storage.k8s.io";

/// The built-in groups whose objects have no generation.
const WITHOUT_GENERATION: &str = "certificates.k8s.io coordination.k8s.io events.k8s.io \
    rbac.authorization.k8s.io storage.k8s.io";

/// The core resources without a status.
const WITHOUT_STATUS: &str = "configmaps endpoints events limitranges podtemplates secrets serviceaccounts \
    bindings";

/// The core resources whose deletion returns the object. The deletion of other resources returns a `Status`.
const DELETION_RETURNS_OBJECT: &str = "persistentvolumeclaims persistentvolumes pods podtemplates resourcequotas \
    serviceaccounts services";

impl Collection {
    pub(crate) fn of_kind<K: Resource<DynamicType = ()>>(namespace: Option<&str>) -> Self {
        Self::of(&ApiResource::erase::<K>(&()), namespace)
    }

    pub(crate) fn of(resource: &ApiResource, namespace: Option<&str>) -> Self {
        Self::new(&resource.group, &resource.version, &resource.plural, namespace)
    }

    pub(crate) fn new(group: &str, version: &str, plural: &str, namespace: Option<&str>) -> Self {
        let namespace = namespace.map(Into::into);
        Self { group: group.into(), version: version.into(), plural: plural.into(), namespace }
    }

    /// `v1`, `apps/v1`.
    pub(crate) fn api_version(&self) -> String {
        if self.is_core() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `pods`, `deployments.apps`.
    pub(crate) fn full_resource(&self) -> String {
        qualified(&self.plural, &self.group)
    }

    /// The key of the object in etcd.
    pub(crate) fn registry_key(&self, name: &str) -> String {
        let parts = [&self.group, &self.plural, self.namespace.as_deref().unwrap_or_default(), name];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        format!("/registry/{}", parts.join("/"))
    }

    /// The prefix of the [keys](Self::key) of its objects.
    pub(crate) fn prefix(&self) -> String {
        let namespace = self.namespace.as_ref().map_or_else(String::new, |namespace| format!("{namespace}/"));
        format!("{}/{}/{}/{namespace}", self.group, self.version, self.plural)
    }

    /// The key of an object in the store: `apps/v1/deployments/shop/web`. As in etcd, `a-b/x` comes before `a/x`.
    pub(crate) fn key(&self, name: &str) -> String {
        let namespace = self.namespace.as_deref().unwrap_or_default();
        format!("{}/{}/{}/{namespace}/{name}", self.group, self.version, self.plural)
    }

    pub(crate) fn is_built_in(&self) -> bool {
        self.is_core() || is_among(&self.group, BUILT_IN)
    }

    pub(crate) fn has_generation(&self) -> bool {
        match self.is_core() {
            true => is_among(&self.plural, "pods replicationcontrollers"),
            false => !is_among(&self.group, WITHOUT_GENERATION),
        }
    }

    pub(crate) fn has_status(&self) -> bool {
        match self.group.as_str() {
            "" => !is_among(&self.plural, WITHOUT_STATUS),
            group => !matches!(group, "coordination.k8s.io" | "rbac.authorization.k8s.io"),
        }
    }

    pub(crate) fn deletion_returns_object(&self) -> bool {
        self.is_core() && is_among(&self.plural, DELETION_RETURNS_OBJECT)
    }

    /// The collection and the name of a [key](Self::key).
    pub(crate) fn of_key(key: &str) -> Option<(Self, String)> {
        let mut parts = key.splitn(5, '/');
        let mut next = || parts.next();
        let (group, version, plural, namespace) = (next()?, next()?, next()?, next()?);
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        Some((Self::new(group, version, plural, namespace), next()?.to_owned()))
    }

    /// Returns true if a deletion without a propagation policy orphans the dependents. All other Kinds delete them in
    /// the background.
    pub(crate) fn orphans_by_default(&self) -> bool {
        matches!(
            (self.group.as_str(), self.version.as_str(), self.plural.as_str()),
            ("batch", "v1", "jobs") | ("", "v1", "replicationcontrollers")
        )
    }

    fn is_core(&self) -> bool {
        self.group.is_empty()
    }
}

/// Returns true if the list of words contains this word.
pub(crate) fn is_among(word: &str, words: &str) -> bool {
    words.split(' ').any(|other| other == word)
}

/// Joins the name of a resource or a Kind with its group, if the group has a name.
pub(crate) fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() { name.into() } else { format!("{name}.{group}") }
}
