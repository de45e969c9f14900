//! Where objects are, and what the API server does differently from one Kind to the other.

use kube::Resource;

/// The objects of one Kind in one namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// `api/v1`, `apis/apps/v1`.
    pub(super) api: String,
    pub(super) plural: String,
    pub(super) namespace: Option<String>,
}

/// The groups of Kubernetes itself, the first one aside, which has no name. Others are those of
/// CustomResourceDefinitions, also where they end in `.k8s.io`.
const BUILT_IN: [&str; 21] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
];

/// The groups of Kubernetes whose objects have no generation.
const WITHOUT_GENERATION: [&str; 5] = [
    "certificates.k8s.io",
    "coordination.k8s.io",
    "events.k8s.io",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
];

/// Kinds of the first group that have no status.
const WITHOUT_STATUS: [&str; 8] = [
    "configmaps",
    "endpoints",
    "events",
    "limitranges",
    "podtemplates",
    "secrets",
    "serviceaccounts",
    "bindings",
];

/// Kinds of the first group that are answered whole when they are deleted; of others, it is said that they were.
const ANSWERED_WHOLE: [&str; 7] = [
    "persistentvolumeclaims",
    "persistentvolumes",
    "pods",
    "podtemplates",
    "resourcequotas",
    "serviceaccounts",
    "services",
];

impl Place {
    pub(super) fn of_kind<K: Resource<DynamicType = ()>>(namespace: Option<&str>) -> Self {
        let (version, root) = (K::api_version(&()), if K::group(&()).is_empty() { "api" } else { "apis" });
        let namespace = namespace.map(Into::into);
        Self { api: format!("{root}/{version}"), plural: K::plural(&()).into_owned(), namespace }
    }

    /// Empty for the first one.
    pub(super) fn group(&self) -> &str {
        self.api.strip_prefix("apis/").and_then(|api| api.split('/').next()).unwrap_or_default()
    }

    /// `v1`, `apps/v1`.
    pub(super) fn api_version(&self) -> &str {
        self.api.split_once('/').map_or("v1", |(_, version)| version)
    }

    /// `pods`, `deployments.apps`.
    pub(super) fn full_resource(&self) -> String {
        match self.group() {
            "" => self.plural.clone(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// Where the object would be in etcd.
    pub(super) fn registry_key(&self, name: &str) -> String {
        let parts = [self.group(), &self.plural, self.namespace.as_deref().unwrap_or_default(), name];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        format!("/registry/{}", parts.join("/"))
    }

    /// Returns true if these are all of the others, or among them.
    pub(super) fn contains(&self, other: &Self) -> bool {
        self.api == other.api
            && self.plural == other.plural
            && (self.namespace.is_none() || self.namespace == other.namespace)
    }

    pub(super) fn is_built_in(&self) -> bool {
        self.is_first() || BUILT_IN.contains(&self.group())
    }

    pub(super) fn has_generation(&self) -> bool {
        match self.is_first() {
            true => ["pods", "replicationcontrollers"].contains(&self.plural.as_str()),
            false => !WITHOUT_GENERATION.contains(&self.group()),
        }
    }

    pub(super) fn has_status(&self) -> bool {
        !(self.is_first() && WITHOUT_STATUS.contains(&self.plural.as_str()))
            && self.group() != "rbac.authorization.k8s.io"
    }

    pub(super) fn is_answered_whole(&self) -> bool {
        self.is_first() && ANSWERED_WHOLE.contains(&self.plural.as_str())
    }

    fn is_first(&self) -> bool {
        self.group().is_empty()
    }
}
