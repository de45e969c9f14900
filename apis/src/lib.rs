//! What a Kubernetes Kind looks like to a controller: conditions, addresses, references and their rules.
//!
//! Pure data: no client, no runtime. A Kind whose status has conditions is [`KRShaped`]; a Kind without them is
//! a plain [`Kind`]. JSON names, condition transitions and validation messages are those of Knative's Go library
//! `knative.dev/pkg`, so that objects and tools of either side understand each other.
//!
//! ```
//! use reknit_apis::{ConditionSet, DuckStatus, KRShaped, duck_shaped};
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
//! duck_shaped!(LampStatus.duck);
//!
//! impl KRShaped for Lamp {
//!     const CONDITIONS: ConditionSet = ConditionSet::living(&["Wired", "BulbPresent"]);
//! }
//!
//! let mut status = LampStatus::default();
//! let mut conditions = Lamp::CONDITIONS.manage(&mut status);
//! conditions.mark_true("Wired");
//! assert!(!conditions.is_happy());
//! conditions.mark_true("BulbPresent");
//! assert!(conditions.is_happy());
//! ```

mod addressable;
mod admission;
mod checksum;
mod condition;
mod condition_set;
mod conversion;
mod core_kinds;
mod destination;
mod duck;
mod duration;
mod field_error;
mod key;
mod kind;
mod names;
mod reference;
mod url;
mod validation;

pub use addressable::{AddressStatus, Addressable};
pub use admission::{Defaultable, Operation, Request, Validatable};
pub use checksum::{EXAMPLE_CHECKSUM_ANNOTATION, example_checksum};
pub use condition::{Condition, ConditionStatus, Severity};
pub use condition_set::{ClearError, ConditionSet, Conditions};
pub use conversion::{ConversionError, Convertible};
pub use destination::Destination;
pub use duck::{DuckShaped, DuckStatus, KRShaped};
pub use duration::{DurationError, parse_duration};
pub use field_error::{FieldError, Level};
pub use key::{Key, KeyError};
pub use kind::{Kind, OwnedBy, Scope, Sees, StatusOf};
pub use names::{child_name, cluster_domain, kind_to_resource, service_host_name};
pub use reference::{InvalidReference, KReference, Reference};
pub use url::{Url, UrlError};
pub use validation::{dns_label, dns_subdomain, qualified_name};
