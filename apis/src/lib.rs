//! The data types of Kubernetes Kinds in the style of Knative: conditions, references and validation.
//!
//! The crate has no client and no runtime. [`kind!`] declares a Kind, with Knative's conditions or without. It
//! implements [`KRShaped`], Knative's name for a Kind with conditions and an observed generation. JSON names, condition
//! transitions and validation messages are the same as in Knative's Go library `knative.dev/pkg`, so each side can read
//! the objects of the other.
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
//!     /// The conditions and the observed generation.
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

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod admission;
mod config_map;
mod conversion;
mod environment;
pub mod equality;
mod hash;
#[doc(hidden)]
pub mod internal;
mod json;
mod key;
mod kinds;
mod names;
mod reference;
mod schema;
mod status;
mod visible;

pub use self::{
    admission::*,
    config_map::*,
    conversion::{ConversionError, Convertible},
    json::to_json,
    key::{Key, KeyError},
    kinds::*,
    names::{
        Bounds, child_name, child_name_within, cluster_domain, dns_label, dns_subdomain, kind_to_resource,
        label_value, qualified_name, service_host_name,
    },
    reference::{InvalidReference, KReference, Reference},
    schema::{
        SchemaError, check_definition, definition_of, drop_descriptions, kubernetes_schema, structural,
    },
    status::*,
};
