//! The permissions that a controller needs, from which its RBAC rules are generated.

use reknit_apis::{Kind, Scope};
use reknit_injection::{Cached, Informer, Permission, Verb, internal::selection};

use super::Builder;
use crate::{Kinds, OwnedOptions, events::event_permission};

impl<K> Builder<K> {
    /// Declares a permission for requests that the reconciler sends through the [client](Self::client), in the
    /// namespaces that the controller selects.
    ///
    /// The other calls of this builder, and the informers that the constructor requests, add the permissions that they
    /// need themselves. `Main::rbac` prints the rules. A table test of `reknit_testing` fails if a reconcile sends a
    /// request without a declared permission.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::{Pod, Secret};
    /// use reknit_injection::{Permission, Verb};
    /// use reknit_reconciler::Builder;
    ///
    /// fn declare(build: &mut Builder<Pod>) {
    ///     build.allows(Permission::of::<Secret>([Verb::Get]));
    ///     build.allows(Permission::of::<Pod>([Verb::Create]).subresource("eviction"));
    ///     // A Kind that is known only at run time.
    ///     build.allows(Permission::new("messaging.knative.dev", "channels", [Verb::Delete]));
    /// }
    /// ```
    pub fn allows(&mut self, permission: Permission) {
        self.cx.allows(permission.or_namespaces(self.namespaces.selected_namespaces()));
    }
}

impl<K: Kind> Builder<K> {
    /// Declares status writes. After a conflict the object is read again.
    pub(super) fn allow_status_writes(&mut self) {
        // The status of a Kind without one is `()`.
        if size_of::<K::Status>() > 0 {
            self.allows(Permission::of::<K>([Verb::Get]));
            self.allows(Permission::of::<K>([Verb::Patch]).subresource("status"));
        }
    }

    /// Declares finalizer writes. After a failure the object is read again, since it may be gone.
    pub(super) fn allow_finalizer_writes(&mut self) {
        self.allows(Permission::of::<K>([Verb::Get, Verb::Patch]));
    }

    /// Declares the events of passes.
    pub(super) fn allow_events(&mut self) {
        // The events of a cluster-scoped object are in the namespace `default`, which the controller does not select.
        let namespaced = if K::Scope::NAMESPACED { self.namespaces.selected_namespaces() } else { &[] };
        self.cx.allows(event_permission().or_namespaces(namespaced));
    }

    /// Declares the requests that create and change the children of this informer.
    pub(super) fn allow_children<T>(&mut self, children: &Informer<T>, options: &OwnedOptions)
    where
        T: Cached<DynamicType = (), Scope: Scope>,
    {
        self.allow_owner_references();
        let namespaces = selection(children).selected_namespaces();
        let writes = Permission::of::<T>(options.verbs_of_writes().iter().copied());
        self.cx.permissions().add_on_children(writes.or_namespaces(namespaces));
    }

    /// Declares the requests that create and change children of these Kinds.
    pub(super) fn allow_children_of(&mut self, kinds: &Kinds, options: &OwnedOptions) {
        self.allow_owner_references();
        self.allow_reads_of(kinds);
        for writes in kinds.permissions(options.verbs_of_writes()) {
            let namespaces = self.namespaces.selected_namespaces();
            self.cx.permissions().add_on_children(writes.or_namespaces(namespaces));
        }
    }

    /// Declares the informers of these Kinds.
    pub(super) fn allow_reads_of(&mut self, kinds: &Kinds) {
        kinds.permissions(&[Verb::List, Verb::Watch]).for_each(|reads| self.allows(reads));
        self.has_unnamed_kinds |= kinds.is_unnamed();
    }

    /// Declares that owner references are set. The admission plugin OwnerReferencesPermissionEnforcement requires the
    /// permission to update the finalizers of the owner, since children set `blockOwnerDeletion`.
    fn allow_owner_references(&mut self) {
        self.allows(Permission::of::<K>([Verb::Update]).subresource("finalizers"));
    }
}
