//! A framework for Kubernetes controllers with the programming model of Knative's Go libraries.

pub use reknit_apis as apis;

/// What a reconciler needs.
pub mod prelude {
    pub use reknit_apis::{
        AddressStatus, Addressable, Condition, ConditionSet, Conditions, DuckShaped, DuckStatus, KRShaped,
        KReference, Key, Kind, Scope, StatusOf, Url,
    };
}
