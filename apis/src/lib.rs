//! What a Kubernetes Kind looks like to a controller: conditions, addresses, references and their rules.
//!
//! Pure data: no client, no runtime. A Kind whose status has conditions is [`KRShaped`]; a Kind without them is
//! a plain [`Kind`]. JSON names, condition transitions and validation messages are those of Knative's Go library
//! `knative.dev/pkg`, so that objects and tools of either side understand each other.
//!
//! ```
//! use reknit_apis::{ConditionSet, DuckShaped, DuckStatus, KRShaped};
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
//! impl DuckShaped for LampStatus {
//!     fn duck(&self) -> &DuckStatus {
//!         &self.duck
//!     }
//!     fn duck_mut(&mut self) -> &mut DuckStatus {
//!         &mut self.duck
//!     }
//! }
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
mod condition;
mod core_kinds;
mod duck;
mod duration;
mod key;
mod kind;
mod reference;
mod url;

pub use addressable::{AddressStatus, Addressable};
pub use condition::{ClearError, Condition, ConditionSet, ConditionStatus, Conditions, Severity};
pub use duck::{DuckShaped, DuckStatus, KRShaped};
pub use duration::{DurationError, parse_duration};
pub use key::{Key, KeyError};
pub use kind::{Kind, Scope, Sees, StatusOf};
pub use reference::KReference;
pub use url::{Url, UrlError};
