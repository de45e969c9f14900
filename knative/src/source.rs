//! The spec and status of a source, which sends events to a sink.

use std::collections::BTreeMap;

use reknit_apis::{DuckShaped, DuckStatus};
use serde::{Deserialize, Serialize};

use crate::{addressable::Addressable, auth::AuthStatus, destination::Destination, url::Url};

/// The fields of the spec of a source. Embed it with `#[serde(flatten)]`.
///
/// ```
/// use reknit_knative::SourceSpec;
///
/// let spec = r#"{"sink": {"uri": "http://web/"}, "ceOverrides": {"extensions": {"tenant": "a"}}}"#;
/// let spec: SourceSpec = serde_json::from_str(spec)?;
/// assert!(spec.sink.validate().is_empty());
/// assert_eq!(spec.ce_overrides.unwrap().extensions["tenant"], "a");
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "The sink of a source, and changes to its events.")]
pub struct SourceSpec {
    /// The destination of the events.
    #[serde(default)]
    pub sink: Destination,
    /// Changes to each event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ce_overrides: Option<CloudEventOverrides>,
}

/// Changes to the CloudEvents that a source sends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(description = "Changes to each event.")]
pub struct CloudEventOverrides {
    /// The extension attributes to add or to replace.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extensions: BTreeMap<String, String>,
}

/// The fields of the status of a source, with Knative's conditions. Embed it with `#[serde(flatten)]`, or use it as the
/// status.
///
/// ```
/// use reknit_knative::{Addressable, SourceStatus};
///
/// let sink = Addressable { url: Some("http://web/".parse()?), ..Addressable::default() };
/// let mut status = SourceStatus::default();
/// status.set_sink(&sink);
/// assert_eq!(serde_json::to_string(&status).unwrap(), r#"{"sinkUri":"http://web/"}"#);
/// # Ok::<_, reknit_knative::UrlError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "The state of a source, as its controller last observed it.")]
pub struct SourceStatus {
    /// The conditions and the observed generation.
    #[serde(flatten)]
    pub duck: DuckStatus,
    /// The URL of the sink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sink_uri: Option<Url>,
    /// The certificate authorities of the sink in PEM.
    #[serde(rename = "sinkCACerts", default, skip_serializing_if = "Option::is_none")]
    pub sink_ca_certs: Option<String>,
    /// The OIDC audience of the sink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sink_audience: Option<String>,
    /// The ServiceAccount with which the source authenticates itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<AuthStatus>,
    /// The types and sources of the events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ce_attributes: Vec<CloudEventAttributes>,
}

impl SourceStatus {
    /// Sets the URL, the certificate authorities and the audience of the sink.
    pub fn set_sink(&mut self, sink: &Addressable) {
        self.sink_uri.clone_from(&sink.url);
        self.sink_ca_certs.clone_from(&sink.ca_certs);
        self.sink_audience.clone_from(&sink.audience);
    }

    /// Removes the URL, the certificate authorities and the audience of the sink.
    pub fn clear_sink(&mut self) {
        self.set_sink(&Addressable::default());
    }
}

impl DuckShaped for SourceStatus {
    fn duck(&self) -> &DuckStatus {
        &self.duck
    }

    fn duck_mut(&mut self) -> &mut DuckStatus {
        &mut self.duck
    }
}

/// The attributes of the CloudEvents of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(description = "The attributes of the events of a source.")]
pub struct CloudEventAttributes {
    /// The attribute `type`.
    #[serde(rename = "type", default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The attribute `source`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
}
