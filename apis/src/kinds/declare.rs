//! The macro that declares a Kind.

/// Declares a Kind that a controller can reconcile, for a type with kube's `CustomResource` derive.
///
/// ```
/// use reknit_apis::{DuckStatus, KRShaped, kind};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
/// #[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced, status = "LampStatus")]
/// struct LampSpec {
///     watts: Option<i32>,
/// }
///
/// #[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
/// #[serde(rename_all = "camelCase")]
/// struct LampStatus {
///     #[serde(flatten)]
///     duck: DuckStatus,
///     #[serde(default)]
///     switched_on: bool,
/// }
///
/// kind!(Lamp {
///     status: LampStatus,
///     conditions: knative(duck, ["Wired", "BulbPresent"]),
///     defaults: |lamp| lamp.spec.watts = lamp.spec.watts.or(Some(40)),
/// });
///
/// let mut status = LampStatus::default();
/// let mut conditions = Lamp::CONDITIONS.manage(&mut status);
/// conditions.mark_true("Wired");
/// conditions.mark_true("BulbPresent");
/// assert!(conditions.is_happy());
/// ```
///
/// | part | meaning |
/// | --- | --- |
/// | `status: S` | the type of the status; without it the controller writes none |
/// | `conditions: knative(field, ["A", "B"])` | Knative's conditions, in the [`DuckStatus`](crate::DuckStatus) in this field of the status; `Ready` is True when all the listed conditions are. The list is optional |
/// | `conditions: knative_batch(field, [..])` | the same with the top condition `Succeeded`, for Kinds that run to completion |
/// | `conditions: knative([..])` | the same if the status is a `DuckStatus` itself, or if `kind!` has already named the field for another Kind with this status |
/// | `conditions: metav1(field)` | Kubernetes' own conditions, in the `Vec` of `k8s_openapi`'s `Condition` in this field of the status. Mark them with [`StatusConditions`](crate::StatusConditions) |
/// | `defaults: \|object\| ..` | [`Kind::set_defaults`](crate::Kind::set_defaults) |
///
/// The parts are optional, in this order. `kind!(Note {});` declares a Kind without a status.
///
/// `defaults` run in the defaulting webhook and before each reconcile, so a reconciler never sees such a field absent.
/// See [`Kind::set_defaults`](crate::Kind::set_defaults), also about defaults of serde.
///
/// A field may be below other fields of the status, such as `metav1(network.conditions)`. The fields on the way must
/// not be `Option`s.
///
/// # Conditions of Kubernetes' own type
///
/// ```
/// use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
/// use reknit_apis::{StatusConditions, kind};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
/// #[kube(group = "demo.reknit.dev", version = "v1", kind = "Router", namespaced, status = "RouterStatus")]
/// struct RouterSpec {}
///
/// #[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
/// struct RouterStatus {
///     #[serde(default)]
///     network: NetworkStatus,
/// }
///
/// #[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
/// struct NetworkStatus {
///     #[serde(default)]
///     conditions: Vec<Condition>,
/// }
///
/// kind!(Router { status: RouterStatus, conditions: metav1(network.conditions) });
///
/// let mut status = RouterStatus::default();
/// status.network.conditions.mark_false("Connected", "NoCarrier", "the cable is unplugged");
/// assert!(status.network.conditions.is_false("Connected"));
/// ```
#[macro_export]
macro_rules! kind {
    (@duck $status:ty, $($field:ident).+) => {
        impl $crate::DuckShaped for $status {
            fn duck(&self) -> &$crate::DuckStatus {
                &self.$($field).+
            }

            fn duck_mut(&mut self) -> &mut $crate::DuckStatus {
                &mut self.$($field).+
            }
        }
    };
    (@knative $kind:ty, $set:ident [$($dependent:expr),*] $($defaults:expr)?) => {
        impl $crate::KRShaped for $kind {
            const CONDITIONS: $crate::ConditionSet = $crate::ConditionSet::$set(&[$($dependent),*]);

            $(fn set_knative_defaults(&mut self) {
                let defaults: fn(&mut Self) = $defaults;
                defaults(self)
            })?
        }
    };
    (@plain $kind:ty, $status:ty, $read:expr, [$($conditions:ident).*] $($defaults:expr)?) => {
        impl $crate::Kind for $kind {
            type Status = $status;

            fn read_status(&self) -> ::core::option::Option<&$status> {
                let read: fn(&Self) -> ::core::option::Option<&$status> = $read;
                read(self)
            }

            $crate::kind!(@metav1 $status, $($conditions).*);

            $(fn set_defaults(&mut self) {
                let defaults: fn(&mut Self) = $defaults;
                defaults(self)
            })?
        }
    };
    (@metav1 $status:ty,) => {};
    (@metav1 $status:ty, $($conditions:ident).+) => {
        fn keep_transition_times(status: &mut $status, before: &$status) {
            $crate::StatusConditions::keep_transition_times(
                &mut status.$($conditions).+,
                &before.$($conditions).+,
            );
        }

        fn observed_generation(
            status: ::core::option::Option<&$status>,
        ) -> ::core::option::Option<::core::option::Option<i64>> {
            let conditions = status.map_or(&[][..], |status| &status.$($conditions).+[..]);
            ::core::option::Option::Some(
                ::core::iter::Iterator::max(conditions.iter().filter_map(|condition| condition.observed_generation)),
            )
        }

        fn set_condition_generations(
            status: &mut $status,
            before: ::core::option::Option<&$status>,
            generation: ::core::option::Option<i64>,
        ) {
            let before = before.map_or(&[][..], |before| &before.$($conditions).+[..]);
            $crate::StatusConditions::observe_generation(&mut status.$($conditions).+, before, generation);
        }
    };
    ($kind:ty { status: $status:ty, conditions: metav1($($field:ident).+) $(, defaults: $defaults:expr)? $(,)? }) => {
        $crate::kind!(@plain $kind, $status, |object| object.status.as_ref(), [$($field).+] $($defaults)?);
    };
    ($kind:ty { status: $status:ty, conditions: knative($($field:ident).+ $(, [$($dependent:expr),* $(,)?])?) $(, defaults: $defaults:expr)? $(,)? }) => {
        $crate::kind!(@duck $status, $($field).+);
        $crate::kind!(@knative $kind, living [$($($dependent),*)?] $($defaults)?);
    };
    ($kind:ty { status: $status:ty, conditions: knative_batch($($field:ident).+ $(, [$($dependent:expr),* $(,)?])?) $(, defaults: $defaults:expr)? $(,)? }) => {
        $crate::kind!(@duck $status, $($field).+);
        $crate::kind!(@knative $kind, batch [$($($dependent),*)?] $($defaults)?);
    };
    ($kind:ty { status: $status:ty, conditions: knative($([$($dependent:expr),* $(,)?])?) $(, defaults: $defaults:expr)? $(,)? }) => {
        $crate::kind!(@knative $kind, living [$($($dependent),*)?] $($defaults)?);
    };
    ($kind:ty { status: $status:ty, conditions: knative_batch($([$($dependent:expr),* $(,)?])?) $(, defaults: $defaults:expr)? $(,)? }) => {
        $crate::kind!(@knative $kind, batch [$($($dependent),*)?] $($defaults)?);
    };
    ($kind:ty { status: $status:ty $(, defaults: $defaults:expr)? $(,)? }) => {
        $crate::kind!(@plain $kind, $status, |object| object.status.as_ref(), [] $($defaults)?);
    };
    ($kind:ty { $(defaults: $defaults:expr)? $(,)? }) => {
        $crate::kind!(@plain $kind, (), |_| ::core::option::Option::None, [] $($defaults)?);
    };
    ($kind:ty { $($other:tt)* }) => {
        ::core::compile_error!(
            "the parts of `kind!` are, in this order: `status: Type`; `conditions: knative(..)`, `knative_batch(..)` or \
             `metav1(field)`, which need a status; `defaults: function`"
        );
    };
}
