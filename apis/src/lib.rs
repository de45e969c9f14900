//! The shape of a Kubernetes Kind: conditions, addresses, references and their rules.
//!
//! Data only: no client, no runtime. [`kind!`] declares a Kind, with Knative's conditions or without conditions. JSON names, condition transitions and validation messages are those of Knative's Go library
//! `knative.dev/pkg`, so that objects and tools of either side understand each other.
//!
//! ```
//! use reknit_apis::{DuckStatus, KRShaped, kind};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
//! #[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced, status = "LampStatus")]
//! pub struct LampSpec {
//!     pub room: String,
//! }
//!
//! #[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
//! pub struct LampStatus {
//!     #[serde(flatten)]
//!     pub duck: DuckStatus,
//! }
//!
//! kind!(Lamp { status: LampStatus, conditions: knative(duck, ["Wired", "BulbPresent"]) });
//!
//! let mut status = LampStatus::default();
//! let mut conditions = Lamp::CONDITIONS.manage(&mut status);
//! conditions.mark_true("Wired");
//! assert!(!conditions.is_happy());
//! conditions.mark_true("BulbPresent");
//! assert!(conditions.is_happy());
//! ```

mod admission;
mod config_map;
mod conversion;
mod key;
mod kinds;
mod names;
mod references;
mod status;

pub use admission::{Defaultable, FieldError, Level, Operation, Request, Validatable};
pub use config_map::{DurationError, EXAMPLE_CHECKSUM_ANNOTATION, example_checksum, parse_duration};
pub use conversion::{ConversionError, Convertible};
pub use key::{Key, KeyError};
pub use kinds::{KRShaped, Kind, OwnedBy, Scope, Sees, StatusOf};
pub use names::{
    child_name, cluster_domain, dns_label, dns_subdomain, kind_to_resource, qualified_name, service_host_name,
};
pub use references::{Destination, InvalidReference, KReference, Reference, Url, UrlError};
pub use status::{
    AddressStatus, Addressable, ClearError, Condition, ConditionSet, ConditionStatus, Conditions, DuckShaped,
    DuckStatus, Severity,
};
