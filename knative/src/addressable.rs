//! Addresses of an object, published in its status.

use serde::{Deserialize, Serialize};

use crate::url::Url;

/// An address that others can send to.
///
/// ```
/// use reknit_knative::Addressable;
///
/// let address = Addressable { url: Some("http://web.default.svc.cluster.local".parse()?), ..Default::default() };
/// let json = serde_json::to_string(&address).unwrap();
/// assert_eq!(json, r#"{"url":"http://web.default.svc.cluster.local"}"#);
/// # Ok::<_, reknit_knative::UrlError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "An address that others can send to.")]
pub struct Addressable {
    /// The name of the address, among several of one object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The URL to send to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<Url>,
    /// The certificate authorities in PEM to trust for TLS, besides those of the system.
    #[serde(rename = "CACerts", default, skip_serializing_if = "Option::is_none")]
    pub ca_certs: Option<String>,
    /// The OIDC audience of tokens for this address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
}

/// The fields of a status that publish addresses. Embed it with `#[serde(flatten)]`.
///
/// ```
/// use reknit_knative::{AddressStatus, Addressable};
///
/// let address = Addressable { url: Some("http://web".parse()?), ..Default::default() };
/// let mut status = AddressStatus::one(address);
/// assert_eq!(serde_json::to_string(&status).unwrap(), r#"{"address":{"url":"http://web"}}"#);
/// # Ok::<_, reknit_knative::UrlError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "The addresses of the object.")]
pub struct AddressStatus {
    /// The address, or the preferred one of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Addressable>,
    /// All addresses, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Addressable>,
}

impl AddressStatus {
    /// Creates the status of an object with one address.
    pub fn one(address: Addressable) -> Self {
        Self { address: Some(address), addresses: Vec::new() }
    }

    /// Creates the status of an object with several addresses. The first one is also the `address`.
    pub fn several(addresses: Vec<Addressable>) -> Self {
        Self { address: addresses.first().cloned(), addresses }
    }
}
