//! [`Kind`], which every Kind of a controller implements.

use std::fmt::Debug;

use kube_core::{Resource, object::HasStatus};
use serde::{Serialize, de::DeserializeOwned};

use super::{kr_shaped::KRShaped, scope::Scope};
use crate::status::{Conditions, DuckShaped};

/// A Kind that a controller can reconcile. The built-in Kinds of Kubernetes implement it. [`kind!`](crate::kind)
/// implements it for your own in one line.
///
/// If the status is not in the field `status`, for example without kube's derive, implement the trait yourself:
///
/// ```
/// # use reknit_apis::Kind;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
/// # #[kube(group = "demo.reknit.dev", version = "v1", kind = "Foo", namespaced, status = "FooStatus")]
/// # struct FooSpec {}
/// # #[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
/// # struct FooStatus {}
/// impl Kind for Foo {
///     type Status = FooStatus;
///     fn read_status(&self) -> Option<&FooStatus> {
///         self.status.as_ref()
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a Kind that a controller can reconcile",
    note = "declare it: `kind!({Self} {{ status: YourStatus, conditions: knative(duck) }});`, or `kind!({Self} {{ status: YourStatus }});` without conditions"
)]
pub trait Kind:
    Resource<DynamicType = (), Scope: Scope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// The status that a reconcile writes; `()` if the controller writes none.
    type Status: Clone + Default + PartialEq + Serialize + DeserializeOwned + Send + Sync;

    /// Returns the status of the object, if it has one.
    ///
    /// Required for a Kind whose status has fields, since otherwise each reconcile would start with an empty status. If
    /// it is missing, `cargo build` fails; `cargo check` does not notice.
    ///
    /// ```compile_fail,E0080
    /// # use reknit_apis::Kind;
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
    /// # #[kube(group = "demo.reknit.dev", version = "v1", kind = "Foo", namespaced, status = "FooStatus")]
    /// # struct FooSpec {}
    /// #[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
    /// struct FooStatus {
    ///     replicas: i32,
    /// }
    ///
    /// impl Kind for Foo {
    ///     type Status = FooStatus;
    /// }
    /// # Foo::new("x", FooSpec {}).read_status();
    /// ```
    fn read_status(&self) -> Option<&Self::Status> {
        const {
            assert!(
                size_of::<Self::Status>() == 0,
                "a Kind with a status has to say where that is kept: write `fn read_status` in `impl Kind`"
            );
        }
        None
    }

    /// True for a built-in Kind. Most built-in Kinds reject a finalizer without a slash.
    #[doc(hidden)]
    const BUILT_IN: bool = false;

    /// Sets the defaults of fields that the spec leaves out. It runs in the defaulting webhook, and in memory before
    /// each reconcile, since an object may have been stored before a default existed. It must not change the metadata.
    ///
    /// So a reconciler never sees an absent field for which this sets a value. Set no default here for a field whose
    /// absence has a meaning, such as "unlimited". If only new objects should get a value, set it in
    /// [`Defaultable`](crate::Defaultable), which runs at admission only.
    ///
    /// The webhook stores what this method and [`Defaultable`](crate::Defaultable) change. A default of
    /// `#[serde(default)]` is not such a change: schemars writes it into the schema, so the API server itself sets it,
    /// even without a webhook.
    fn set_defaults(&mut self) {}

    /// The conditions of a status, if the Kind has any.
    #[doc(hidden)]
    fn conditions(_: &mut Self::Status) -> Option<Conditions<'_>> {
        None
    }

    /// Sets the observed generation, if the Kind has one.
    #[doc(hidden)]
    fn observe_generation(_: &mut Self::Status, _: Option<i64>) {}

    /// The generation that the status shows. The outer `None`: a status of this Kind shows none.
    #[doc(hidden)]
    fn observed_generation(_: Option<&Self::Status>) -> Option<Option<i64>> {
        None
    }

    /// Restores the transition time of each condition that is otherwise unchanged.
    #[doc(hidden)]
    fn keep_transition_times(_: &mut Self::Status, _before: &Self::Status) {}

    /// Sets the observed generation of each condition that was marked since `before`, if the Kind has `metav1`
    /// conditions.
    #[doc(hidden)]
    fn set_condition_generations(_: &mut Self::Status, _before: Option<&Self::Status>, _: Option<i64>) {}
}

/// The status of a Kind.
pub type StatusOf<K> = <K as Kind>::Status;

impl<K: KRShaped> Kind for K {
    type Status = <K as HasStatus>::Status;

    fn read_status(&self) -> Option<&Self::Status> {
        self.status()
    }

    fn set_defaults(&mut self) {
        self.set_knative_defaults();
    }

    fn conditions(status: &mut Self::Status) -> Option<Conditions<'_>> {
        Some(K::CONDITIONS.manage(status))
    }

    fn observe_generation(status: &mut Self::Status, generation: Option<i64>) {
        status.duck_mut().observed_generation = generation;
    }

    fn observed_generation(status: Option<&Self::Status>) -> Option<Option<i64>> {
        Some(status.and_then(|status| status.duck().observed_generation))
    }

    fn keep_transition_times(status: &mut Self::Status, before: &Self::Status) {
        status.duck_mut().keep_transition_times(before.duck());
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{core::v1::Pod, rbac::v1::ClusterRole};
    use serde::Deserialize;

    use super::*;
    use crate::{DuckStatus, kind};

    #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
    #[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced, status = "LampStatus")]
    struct LampSpec {}

    #[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
    struct LampStatus {
        #[serde(flatten)]
        duck: DuckStatus,
        #[serde(default)]
        lumens: u32,
    }

    kind!(Lamp { status: LampStatus, conditions: knative(duck, ["Wired"]) });

    fn conditions(status: &mut LampStatus) -> Conditions<'_> {
        Lamp::CONDITIONS.manage(status)
    }

    fn ready_status(generation: i64) -> LampStatus {
        let mut status = LampStatus::default();
        conditions(&mut status).mark_true("Wired");
        Lamp::observe_generation(&mut status, Some(generation));
        status
    }

    #[test]
    fn a_condition_that_changes_back_keeps_its_transition_time() {
        let before = ready_status(1);
        let mut status = before.clone();
        conditions(&mut status).mark_false("Wired", "Loose", "a wire is loose");
        conditions(&mut status).mark_true("Wired");
        assert_ne!(status, before);
        Lamp::keep_transition_times(&mut status, &before);
        assert_eq!(status, before);
    }

    #[test]
    fn a_changed_condition_keeps_its_new_transition_time() {
        let before = ready_status(1);
        let mut status = before.clone();
        conditions(&mut status).mark_false("Wired", "Loose", "a wire is loose");
        let changed = status.clone();
        Lamp::keep_transition_times(&mut status, &before);
        assert_eq!(status, changed);
        assert_ne!(
            status.duck.condition("Wired").unwrap().last_transition_time,
            before.duck.condition("Wired").unwrap().last_transition_time
        );
    }

    #[test]
    fn statuses_that_differ_in_transition_times_only_become_equal() {
        let differs = |mut after: LampStatus| {
            let before = ready_status(1);
            assert_ne!(before, after, "the transition times differ");
            Lamp::keep_transition_times(&mut after, &before);
            before != after
        };
        assert!(!differs(ready_status(1)));
        assert!(differs(LampStatus { lumens: 800, ..ready_status(1) }));
        assert!(differs(ready_status(2)));
        let mut loose = ready_status(1);
        conditions(&mut loose).mark_false("Wired", "Loose", "");
        assert!(differs(loose));
    }

    #[test]
    fn a_new_generation_makes_the_top_condition_unknown_until_it_is_marked() {
        let mut status = ready_status(1);
        conditions(&mut status).expect_generation(Some(1));
        assert!(conditions(&mut status).is_happy());
        conditions(&mut status).expect_generation(Some(2));
        let top = status.duck.condition("Ready").unwrap();
        assert_eq!(top.status, "Unknown");
        assert_eq!(top.reason.as_deref(), Some("NewObservedGenFailure"));
        assert_eq!(top.message.as_deref(), Some("unsuccessfully observed a new generation"));
        conditions(&mut status).mark_true("Wired");
        assert!(conditions(&mut status).is_happy());
    }

    #[test]
    fn a_status_can_hold_its_conditions_below_another_field() {
        #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
        #[kube(group = "demo.reknit.dev", version = "v1", kind = "Fuse", namespaced, status = "FuseStatus")]
        struct FuseSpec {}

        #[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
        struct FuseStatus {
            lamp: LampStatus,
        }

        kind!(Fuse { status: FuseStatus, conditions: knative(lamp.duck, ["Wired"]) });

        let mut status = FuseStatus::default();
        Fuse::CONDITIONS.manage(&mut status).mark_true("Wired");
        assert!(status.lamp.duck.condition("Ready").unwrap().is_true());
    }

    #[test]
    fn built_in_kinds_have_a_scope_and_no_writable_status() {
        fn is_namespaced<K: Kind<Status = ()>>() -> bool {
            K::Scope::NAMESPACED
        }
        assert!(is_namespaced::<Pod>());
        assert!(!is_namespaced::<ClusterRole>());
    }
}
