//! Conversion between the versions of a Kind.

use std::error::Error;

use crate::Kind;

/// The error of converting an object.
pub type ConversionError = Box<dyn Error + Send + Sync>;

/// A version of a Kind that converts to other versions by way of the hub, the version that can represent all the
/// others. Each version except the hub implements this trait.
///
/// A value that a version cannot represent has to be kept for the conversion back, usually in an annotation. Of the
/// metadata, only labels and annotations can be changed.
///
/// ```
/// use reknit_apis::{ConversionError, Convertible, Kind};
/// use serde::{Deserialize, Serialize};
///
/// mod v1 {
///     # use serde::{Deserialize, Serialize};
///     #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
///     #[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced)]
///     pub struct LampSpec {
///         pub milliwatts: u64,
///     }
///     impl reknit_apis::Kind for Lamp {
///         type Status = ();
///     }
/// }
///
/// mod v1alpha1 {
///     # use serde::{Deserialize, Serialize};
///     #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
///     #[kube(group = "demo.reknit.dev", version = "v1alpha1", kind = "Lamp", namespaced)]
///     pub struct LampSpec {
///         pub power: String,
///     }
///     impl reknit_apis::Kind for Lamp {
///         type Status = ();
///     }
/// }
///
/// impl Convertible for v1alpha1::Lamp {
///     type Hub = v1::Lamp;
///
///     fn into_hub(self) -> Result<v1::Lamp, ConversionError> {
///         let milliwatts = self.spec.power.trim_end_matches(" mW").parse()?;
///         Ok(v1::Lamp { metadata: self.metadata, spec: v1::LampSpec { milliwatts } })
///     }
///
///     fn from_hub(hub: v1::Lamp) -> Result<Self, ConversionError> {
///         let power = format!("{} mW", hub.spec.milliwatts);
///         Ok(Self { metadata: hub.metadata, spec: v1alpha1::LampSpec { power } })
///     }
/// }
///
/// let old = v1alpha1::Lamp::new("x", v1alpha1::LampSpec { power: "40000 mW".into() });
/// assert_eq!(old.into_hub()?.spec.milliwatts, 40_000);
/// # Ok::<_, ConversionError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `Convertible`",
    note = "`impl Convertible for {Self}`, naming the version that is the hub"
)]
pub trait Convertible: Kind {
    /// The hub version.
    type Hub: Kind;

    /// Converts the object to the hub version.
    ///
    /// # Errors
    ///
    /// Returns the reason if the hub cannot represent the object. Avoid this, since the API server then cannot serve
    /// the object in other versions.
    fn into_hub(self) -> Result<Self::Hub, ConversionError>;

    /// Converts the object from the hub version.
    ///
    /// # Errors
    ///
    /// Returns the reason if this version cannot represent the object. Avoid this, since the API server then cannot
    /// serve the object in this version.
    fn from_hub(hub: Self::Hub) -> Result<Self, ConversionError>;
}
