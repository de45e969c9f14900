//! The permissions that a controller needs, from which its RBAC rules are generated.

use reknit_apis::{Kind, Scope};
use reknit_injection::{Permission, Verb};

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
    pub(super) fn declare_status_writes(&mut self) {
        // The status of a Kind without one is `()`.
        if size_of::<K::Status>() > 0 {
            self.allows(Permission::of::<K>([Verb::Get]));
            self.allows(Permission::of::<K>([Verb::Patch]).subresource("status"));
        }
    }

    /// Declares finalizer writes. After a failure the object is read again, since it may be gone.
    pub(super) fn declare_finalizer_writes(&mut self) {
        self.allows(Permission::of::<K>([Verb::Get, Verb::Patch]));
    }

    /// Declares the events of passes.
    pub(super) fn declare_events(&mut self) {
        // The events of a cluster-scoped object are in the namespace `default`, which the controller does not select.
        let namespaced = if K::Scope::NAMESPACED { self.namespaces.selected_namespaces() } else { &[] };
        self.cx.allows(event_permission().or_namespaces(namespaced));
    }

    /// Declares the requests that create and change children. The admission plugin OwnerReferencesPermissionEnforcement
    /// requires the permission to update the finalizers of the owner, since children set `blockOwnerDeletion`.
    pub(super) fn declare_children(&self, writes: impl IntoIterator<Item = Permission>) {
        let finalizers = Permission::of::<K>([Verb::Update]).subresource("finalizers");
        self.cx.allows(finalizers.or_namespaces(self.namespaces.selected_namespaces()));
        writes.into_iter().for_each(|writes| self.cx.permissions().add_on_children(writes));
    }

    /// Declares the roles that children in these namespaces bind. RBAC looks for `bind` in the namespace of the binding.
    pub(super) fn declare_bindings(&self, options: &OwnedOptions, namespaces: &[String]) {
        options.permissions_to_bind().for_each(|bind| self.cx.allows(bind.or_namespaces(namespaces)));
    }

    /// Declares the informers of these Kinds.
    pub(super) fn declare_reads_of(&mut self, kinds: &Kinds) {
        kinds.permissions(&[Verb::List, Verb::Watch]).for_each(|reads| self.allows(reads));
        self.has_unnamed_kinds |= kinds.is_unnamed();
    }
}
