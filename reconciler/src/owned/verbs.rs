//! The verbs of the requests that write children, for RBAC rules.

use reknit_injection::{Cached, Verb};

use super::{any::OwnedAny, lister::Owned};

/// The verbs that [`Owned::apply`] needs.
pub(crate) const APPLY_VERBS: [Verb; 3] = [Verb::Get, Verb::Create, Verb::Patch];

impl<T: Cached> Owned<T> {
    /// Sets the verbs of the children in the generated RBAC rules, besides `list` and `watch`. The default is `get`,
    /// `create` and `patch`, which [`apply`](Self::apply) needs.
    ///
    /// | method | verbs |
    /// | --- | --- |
    /// | [`apply`](Self::apply) | get, create, patch |
    /// | [`apply_or_replace`](Self::apply_or_replace) | get, create, patch, delete |
    /// | [`create`](Self::create) | create |
    /// | [`create_or_update`](Self::create_or_update) | get, create, update |
    /// | [`claim`](Self::claim) | patch, and `get` on the owner |
    /// | [`delete`](Self::delete), [`delete_with`](Self::delete_with) | delete |
    ///
    /// ```
    /// use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::Pod};
    /// use reknit_injection::Verb;
    /// use reknit_reconciler::{Builder, Owned};
    ///
    /// /// The reconciler creates and deletes Pods and never changes them.
    /// fn pods(build: &mut Builder<ReplicaSet>) -> Owned<Pod> {
    ///     build.owns().verbs([Verb::Create, Verb::Delete])
    /// }
    /// ```
    pub fn verbs(self, verbs: impl IntoIterator<Item = Verb>) -> Self {
        let verbs: Vec<_> = verbs.into_iter().collect();
        self.declared.iter().for_each(|declared| declared.set_verbs(&verbs));
        self
    }
}

impl OwnedAny {
    /// Sets the verbs of the children in the generated RBAC rules, as [`Owned::verbs`] does.
    pub fn verbs(mut self, verbs: impl IntoIterator<Item = Verb>) -> Self {
        self.declared.set_write_verbs(&verbs.into_iter().collect::<Vec<_>>());
        self
    }

    /// Declares the resources of the children, by API group and plural name, for the generated RBAC rules. As in RBAC
    /// rules, `""` is the core group, and the plural `*` is every resource of the group.
    ///
    /// This does not limit the Kinds that may be used: a cluster may grant further permissions by a role of its own.
    /// [`groups`](Self::groups) limits the Kinds.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use reknit_reconciler::{Builder, OwnedAny};
    ///
    /// fn channels(build: &mut Builder<ConfigMap>) -> OwnedAny {
    ///     build.owns_any().resources([("messaging.knative.dev", "inmemorychannels")])
    /// }
    /// ```
    pub fn resources<G: Into<String>, R: Into<String>>(
        mut self,
        resources: impl IntoIterator<Item = (G, R)>,
    ) -> Self {
        self.declared.set_resources(resources);
        self
    }
}
