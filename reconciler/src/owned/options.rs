//! [`OwnedOptions`]: the permissions on children, and the field managers whose fields are taken over.

use std::collections::{BTreeMap, BTreeSet};

use reknit_injection::{Permission, Verb};

/// The options of [`Builder::owns_with`](crate::Builder::owns_with) and [`Builder::owns_any`](crate::Builder::owns_any).
#[derive(Clone, Debug)]
#[must_use = "options are the argument of a builder call"]
pub struct OwnedOptions {
    verbs: Vec<Verb>,
    pub(super) earlier_managers: BTreeSet<String>,
    /// The names of the roles that children bind, by their resource.
    bound: BTreeMap<&'static str, BTreeSet<String>>,
}

/// The permissions that [`Owned::apply`](crate::Owned::apply) needs, and no earlier field managers.
impl Default for OwnedOptions {
    fn default() -> Self {
        Self {
            verbs: vec![Verb::Get, Verb::Create, Verb::Patch],
            earlier_managers: BTreeSet::new(),
            bound: BTreeMap::new(),
        }
    }
}

impl OwnedOptions {
    /// Sets the RBAC verbs on the children that the generated rules grant besides `list` and `watch`. They replace the
    /// default `get`, `create` and `patch`, which [`apply`](crate::Owned::apply) needs: name those too if you call it.
    ///
    /// | method | verbs |
    /// | --- | --- |
    /// | [`apply`](crate::Owned::apply) | get, create, patch |
    /// | [`apply_or_replace`](crate::Owned::apply_or_replace) | get, create, patch, delete |
    /// | [`get`](crate::Owned::get), [`get_in`](crate::Owned::get_in) | get |
    /// | [`create`](crate::Owned::create) | create |
    /// | [`create_or_update`](crate::Owned::create_or_update) | get, create, update |
    /// | [`claim`](crate::Owned::claim) | patch, and `get` on the owner |
    /// | [`delete`](crate::Owned::delete), [`delete_with`](crate::Owned::delete_with) | delete |
    ///
    /// Before a child without an owner is adopted, the owner is read, if this process may `get` it.
    ///
    /// ```
    /// use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::Pod};
    /// use reknit_injection::Verb;
    /// use reknit_reconciler::{Builder, Owned, OwnedOptions};
    ///
    /// /// The reconciler creates and deletes Pods and never changes them.
    /// fn pods(build: &mut Builder<ReplicaSet>) -> Owned<Pod> {
    ///     build.owns_with(OwnedOptions::default().verbs([Verb::Create, Verb::Delete]))
    /// }
    /// ```
    pub fn verbs(self, verbs: impl IntoIterator<Item = Verb>) -> Self {
        Self { verbs: verbs.into_iter().collect(), ..self }
    }

    /// Takes over the fields that these field managers have set by create, update, patch or apply. Use it to replace
    /// another controller, or to rename the component of this one.
    ///
    /// Server-side apply removes a field only from the manager that applied it. So a field that the earlier controller
    /// has set, and [`apply`](crate::Owned::apply) does not, would stay for ever. Before a child is applied for the
    /// first time, the fields of these managers therefore become fields of the applying manager, as client-go's
    /// `csaupgrade` does. The first apply then removes the fields that it does not set. The child does not have to be
    /// deleted and created again for this. Fields of a subresource, such as the status, are not taken over.
    ///
    /// For a component of reknit, its name covers its managers of the children of all owners. Children that it
    /// applied and that were restored from a backup are adopted too.
    ///
    /// The default name of the field manager of a Go program is the name of its binary.
    /// `kubectl get --show-managed-fields` prints it. Stop the earlier controller before this one starts.
    ///
    /// ```
    /// use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
    /// use reknit_reconciler::{Builder, Owned, OwnedOptions};
    ///
    /// fn services(build: &mut Builder<Deployment>) -> Owned<Service> {
    ///     build.owns_with(OwnedOptions::default().upgrading_from(["controller", "manager"]))
    /// }
    /// ```
    pub fn upgrading_from<M: Into<String>>(mut self, managers: impl IntoIterator<Item = M>) -> Self {
        self.earlier_managers = managers.into_iter().map(Into::into).collect();
        self
    }

    /// Declares the ClusterRoles that children of the Kinds RoleBinding and ClusterRoleBinding refer to.
    ///
    /// The API server refuses a binding whose author neither holds all rights of the role, in the namespace of the
    /// binding, nor has the verb `bind` on it. The generated rules have `bind` for exactly these names: every name here
    /// lets the controller, and whoever controls its process, grant that role to anyone.
    ///
    /// ```
    /// use k8s_openapi::api::{core::v1::Namespace, rbac::v1::RoleBinding};
    /// use reknit_reconciler::{Builder, Owned, OwnedOptions};
    ///
    /// fn bindings(build: &mut Builder<Namespace>) -> Owned<RoleBinding> {
    ///     build.owns_with(OwnedOptions::default().bind_cluster_roles(["edit"]))
    /// }
    /// ```
    pub fn bind_cluster_roles<N: Into<String>>(self, names: impl IntoIterator<Item = N>) -> Self {
        self.bind("clusterroles", names)
    }

    /// Declares the Roles that children of the Kind RoleBinding refer to, as
    /// [`bind_cluster_roles`](Self::bind_cluster_roles) does.
    pub fn bind_roles<N: Into<String>>(self, names: impl IntoIterator<Item = N>) -> Self {
        self.bind("roles", names)
    }

    fn bind<N: Into<String>>(mut self, roles: &'static str, names: impl IntoIterator<Item = N>) -> Self {
        self.bound.entry(roles).or_default().extend(names.into_iter().map(Into::into));
        self
    }

    /// The permissions to bind roles. Without names there are none: a rule without names is for all roles.
    pub(crate) fn permissions_to_bind(&self) -> impl Iterator<Item = Permission> {
        let named = self.bound.iter().filter(|(_, names)| !names.is_empty());
        named.map(|(roles, names)| {
            Permission::new("rbac.authorization.k8s.io", roles, [Verb::Bind]).names(names.iter().cloned())
        })
    }

    pub(crate) fn verbs_of_writes(&self) -> &[Verb] {
        &self.verbs
    }
}
