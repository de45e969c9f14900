//! A framework for Kubernetes controllers with the programming model of Knative's Go libraries.

pub use reknit_apis as apis;
pub use reknit_injection as injection;
pub use reknit_reconciler as reconciler;
pub use reknit_sharedmain as sharedmain;
pub use reknit_testing as testing;

/// What a reconciler needs.
pub mod prelude {
    pub use reknit_apis::{
        AddressStatus, Addressable, Condition, ConditionSet, Conditions, DuckShaped, DuckStatus, KRShaped,
        KReference, Key, Kind, Scope, StatusOf, Url,
    };
    pub use reknit_injection::{
        Change, Config, Context, Filter, FromConfigMap, Index, Informer, Inject, Metadata, Missing,
        Selection, Shutdown, annotation, controlled_by, controller_name, label, named, namespace, select,
    };
    pub use reknit_reconciler::{
        Controller, ControllerConstructor, Error, Event, FinalizeKind, ObserveDeletion, ObserveKind, Outcome,
        Owned, Permanent, Queue, ReconcileKey, ReconcileKind, Recorder, Result, Tracked, TrackedAny,
    };
    pub use reknit_sharedmain::{self as sharedmain, Main, Task};
}
