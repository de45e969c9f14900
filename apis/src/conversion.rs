//! What a Kind says about its versions.

use std::error::Error;

use crate::Kind;

/// Why an object cannot be converted.
pub type ConversionError = Box<dyn Error + Send + Sync>;

/// A version of a Kind that can become another: by way of the hub, which is one version of the Kind that has room for all
/// that the others say. For each other version this is implemented once; the hub itself needs nothing.
///
/// What a version cannot say has to be kept for when the object comes back, in an annotation as a rule. Of the metadata
/// only labels and annotations can be changed.
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
    message = "`{Self}` does not say how it is converted",
    note = "`impl Convertible for {Self}`, naming the version that is the hub"
)]
pub trait Convertible: Kind {
    /// The version by way of which it becomes others.
    type Hub: Kind;

    /// The same object in the hub's version.
    ///
    /// # Errors
    ///
    /// Why the hub cannot say it. The API server then cannot read the object in other versions: avoid it.
    fn into_hub(self) -> Result<Self::Hub, ConversionError>;

    /// The same object in this version.
    ///
    /// # Errors
    ///
    /// Why this version cannot say it, as above.
    fn from_hub(hub: Self::Hub) -> Result<Self, ConversionError>;
}
