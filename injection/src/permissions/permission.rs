//! One permission, as a rule of RBAC grants it.

use std::{collections::BTreeSet, fmt};

use kube::{Resource, discovery::ApiResource};
use reknit_apis::Scope;

use super::Verb;
use crate::{Selection, client::resource_name};

/// Verbs on one resource, as one rule of RBAC grants them.
///
/// The builder calls of a controller, and the informers that its constructor requests, add the permissions that they
/// need. Declare a permission for requests that your own code sends through the client.
///
/// ```
/// use k8s_openapi::api::core::v1::{Pod, Secret};
/// use reknit_injection::{Permission, Verb};
///
/// let read_secrets = Permission::of::<Secret>([Verb::Get]);
/// assert_eq!(read_secrets.to_string(), "get secrets");
///
/// let evict = Permission::of::<Pod>([Verb::Create]).subresource("eviction");
/// assert_eq!(evict.to_string(), "create pods/eviction");
///
/// let channels = Permission::new("messaging.knative.dev", "channels", [Verb::List, Verb::Watch]);
/// assert_eq!(channels.to_string(), "list, watch channels.messaging.knative.dev");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a permission that is not declared by `allows` grants nothing"]
pub struct Permission {
    group: String,
    resource: String,
    verbs: BTreeSet<Verb>,
    names: BTreeSet<String>,
    /// The namespaces of the objects. Empty for all namespaces, and for cluster-scoped objects.
    namespaces: BTreeSet<String>,
    is_cluster_scoped: bool,
}

/// A request, as the API server authorizes it.
#[derive(Clone, Copy, Debug)]
pub struct RequestAttributes<'a> {
    /// The verb.
    pub verb: Verb,
    /// The API group, empty for the core group.
    pub group: &'a str,
    /// The plural name, with the subresource if there is one: `pods/status`.
    pub resource: &'a str,
    /// The namespace in the path.
    pub namespace: Option<&'a str>,
    /// The name in the path. A request that creates an object has none.
    pub name: Option<&'a str>,
}

impl Permission {
    /// Creates a permission on the objects of a Kind.
    pub fn of<K: Resource<DynamicType = (), Scope: Scope>>(verbs: impl IntoIterator<Item = Verb>) -> Self {
        let permission = Self::new(&K::group(&()), &K::plural(&()), verbs);
        if K::Scope::NAMESPACED { permission } else { permission.cluster_scoped() }
    }

    /// Creates a permission on the objects of an API group and a plural name. The core group is `""`.
    pub fn new(group: &str, resource: &str, verbs: impl IntoIterator<Item = Verb>) -> Self {
        Self {
            group: group.into(),
            resource: resource.into(),
            verbs: verbs.into_iter().collect(),
            names: BTreeSet::new(),
            namespaces: BTreeSet::new(),
            is_cluster_scoped: false,
        }
    }

    /// The permission that an informer needs to list and watch. A selection by `metadata.name` needs only that name.
    pub(crate) fn of_informer(kind: &ApiResource, selection: &Selection) -> Self {
        Self::new(&kind.group, &kind.plural, [Verb::List, Verb::Watch])
            .names(selection.selected_name().map(str::to_owned))
            .namespaces(selection.selected_namespaces().iter().cloned())
    }

    /// Restricts the permission to a subresource, such as `scale`.
    pub fn subresource(mut self, subresource: &str) -> Self {
        self.resource = format!("{}/{subresource}", self.resource);
        self
    }

    /// Restricts the permission to objects of these names. RBAC cannot restrict `create` to names.
    pub fn names<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.names.extend(names.into_iter().map(Into::into));
        self
    }

    /// Restricts the permission to these namespaces. Without this, [`Builder::allows`] restricts it to the namespaces
    /// of the controller.
    ///
    /// [`Builder::allows`]: https://docs.rs/reknit-reconciler/latest/reknit_reconciler/struct.Builder.html#method.allows
    pub fn namespaces<N: Into<String>>(mut self, namespaces: impl IntoIterator<Item = N>) -> Self {
        self.namespaces.extend(namespaces.into_iter().map(Into::into));
        self
    }

    /// Declares that the objects are in no namespace. [`of`](Self::of) knows this from the Kind.
    pub fn cluster_scoped(mut self) -> Self {
        self.is_cluster_scoped = true;
        self
    }

    /// Restricts the permission to these namespaces unless it names others or the objects are cluster-scoped.
    pub fn or_namespaces(self, namespaces: &[String]) -> Self {
        match self.is_cluster_scoped || !self.namespaces.is_empty() {
            true => self,
            false => self.namespaces(namespaces.iter().cloned()),
        }
    }

    /// The API group, empty for the core group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The plural name, with the subresource if there is one: `pods/status`.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// The verbs, in the order of [`Verb`].
    pub fn verbs(&self) -> impl Iterator<Item = Verb> {
        self.verbs.iter().copied()
    }

    /// The names of the objects, sorted. Empty if the names are not restricted.
    pub fn object_names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The namespaces of the objects, sorted. Empty for all namespaces, and for cluster-scoped objects.
    pub fn object_namespaces(&self) -> impl Iterator<Item = &str> {
        self.namespaces.iter().map(String::as_str)
    }

    /// Returns true if a rule with this permission allows the request.
    pub fn covers(&self, request: &RequestAttributes<'_>) -> bool {
        let is_in_namespace = |namespace: &str| self.namespaces.contains(namespace);
        self.verbs.contains(&request.verb)
            && self.is_on(request.group, request.resource)
            && (self.names.is_empty() || request.name.is_some_and(|name| self.names.contains(name)))
            && (self.namespaces.is_empty() || request.namespace.is_some_and(is_in_namespace))
    }

    /// Returns true if the permission is on this resource. The group `*` is every group, the resource `*` is every resource
    /// with its subresources, and `*/scale` is this subresource of every resource.
    pub fn is_on(&self, group: &str, resource: &str) -> bool {
        (self.group == group || self.group == "*") && covers_resource(&self.resource, resource)
    }
}

/// Returns true if a rule with the resource `allowed` is on this resource, as the RBAC authorizer decides.
pub fn covers_resource(allowed: &str, resource: &str) -> bool {
    let subresource = resource.split_once('/').map(|(_, subresource)| subresource);
    let is_of_each = allowed.strip_prefix("*/").is_some_and(|of_each| subresource == Some(of_each));
    allowed == resource || allowed == "*" || is_of_each
}

/// Formats the verbs and the resource: `list, watch deployments.apps`.
impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verbs: Vec<_> = self.verbs.iter().map(ToString::to_string).collect();
        write!(f, "{} {}", verbs.join(", "), qualified(&self.resource, &self.group))
    }
}

/// Formats the request: `get secrets in namespace shop`.
impl fmt::Display for RequestAttributes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, qualified(self.resource, self.group))?;
        self.namespace.iter().try_for_each(|namespace| write!(f, " in namespace {namespace}"))
    }
}

/// The resource with its group as kubectl writes it: `deployments.apps/status`.
fn qualified(resource: &str, group: &str) -> String {
    let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    resource_name(group, plural, subresource)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};

    use super::*;
    use crate::select;

    fn get_secret<'a>(namespace: &'a str, name: &'a str) -> RequestAttributes<'a> {
        let (namespace, name) = (Some(namespace), Some(name));
        RequestAttributes { verb: Verb::Get, group: "", resource: "secrets", namespace, name }
    }

    #[test]
    fn a_permission_covers_only_its_verbs_resource_namespaces_and_names() {
        let all = Permission::of::<Secret>([Verb::Get]);
        let request = get_secret("shop", "a");
        assert!(all.covers(&request));
        assert!(!all.covers(&RequestAttributes { verb: Verb::Delete, ..request }));
        assert!(!all.covers(&RequestAttributes { resource: "secrets/status", ..request }));
        assert!(!all.covers(&RequestAttributes { group: "apps", ..request }));
        let in_shop = all.clone().namespaces(["shop"]);
        assert!(in_shop.covers(&request) && !in_shop.covers(&get_secret("other", "a")));
        assert!(!in_shop.covers(&RequestAttributes { namespace: None, ..request }));
        let named = all.names(["a"]);
        assert!(named.covers(&request) && !named.covers(&get_secret("shop", "b")));
        assert!(!named.covers(&RequestAttributes { name: None, ..request }));
    }

    #[test]
    fn an_informer_of_one_name_needs_the_permission_on_that_name_only() {
        let kind = ApiResource::erase::<ConfigMap>(&());
        let permission = Permission::of_informer(&kind, &select().namespace("n").field("metadata.name", "a"));
        assert_eq!(
            permission,
            Permission::new("", "configmaps", [Verb::List, Verb::Watch]).names(["a"]).namespaces(["n"])
        );
        let by_label = Permission::of_informer(&kind, &select().label("a", "b"));
        assert_eq!(by_label, Permission::new("", "configmaps", [Verb::List, Verb::Watch]));
    }

    #[test]
    fn default_namespaces_restrict_only_namespaced_permissions_without_namespaces() {
        let teams = ["team".to_owned()];
        let namespaces = |permission: Permission| {
            permission.or_namespaces(&teams).object_namespaces().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(namespaces(Permission::of::<Secret>([Verb::Get])), ["team"]);
        assert_eq!(namespaces(Permission::of::<Secret>([Verb::Get]).namespaces(["x"])), ["x"]);
        assert_eq!(namespaces(Permission::of::<Node>([Verb::Get])), [""; 0]);
    }
}
