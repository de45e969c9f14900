//! A destination of messages: an addressable object, a URL, or a URL relative to an object's.

use reknit_apis::{FieldError, KReference};
use serde::{Deserialize, Serialize};
use x509_parser::pem::parse_x509_pem;

use crate::url::Url;

/// The destination of messages in a spec.
///
/// ```
/// use reknit_knative::Destination;
///
/// let sink: Destination = serde_json::from_str(r#"{"uri": "/relative"}"#).unwrap();
/// let error = sink.validate().via_field("sink").into_result().unwrap_err();
/// assert!(error.to_string().starts_with("invalid value: Relative URI is not allowed"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(from = "WireDestination", into = "WireDestination")]
#[schemars(description = "The destination of messages: an object, a URL, or a URL relative to an object's.")]
pub struct Destination {
    /// The object to send to (`ref`).
    pub reference: Option<KReference>,
    /// The API group of the object's Kind (`ref.group`). Reserved, and refused by [validation](Self::validate).
    pub group: Option<String>,
    /// The URL to send to, or a URL relative to the object's.
    pub uri: Option<Url>,
    /// The certificate authorities in PEM to trust besides those of the object.
    pub ca_certs: Option<String>,
    /// The OIDC audience of tokens, if it is not that of the object.
    pub audience: Option<String>,
}

impl Destination {
    /// Sets the namespace of the object if the reference has none. `namespace` is the namespace of the object that
    /// contains the destination. Call it in [`Kind::set_defaults`](reknit_apis::Kind::set_defaults).
    ///
    /// ```
    /// use reknit_knative::Destination;
    ///
    /// let mut sink: Destination =
    ///     serde_json::from_str(r#"{"ref": {"apiVersion": "v1", "kind": "Service", "name": "web"}}"#).unwrap();
    /// sink.set_defaults("default");
    /// assert_eq!(sink.reference.unwrap().to_string(), "Service default/web");
    /// ```
    pub fn set_defaults(&mut self, namespace: &str) {
        let has_no_namespace =
            |reference: &&mut KReference| reference.namespace.as_deref().unwrap_or_default().is_empty();
        if let Some(reference) =
            self.reference.as_mut().filter(has_no_namespace).filter(|_| !namespace.is_empty())
        {
            reference.namespace = Some(namespace.into());
        }
    }

    /// Validates that the destination is an absolute URL, an object, or an object with a relative URL.
    pub fn validate(&self) -> FieldError {
        let is_relative = |uri: &Url| !uri.is_absolute() || uri.host().is_empty();
        match (&self.reference, &self.uri) {
            (None, None) => FieldError::generic("expected at least one, got none", ["ref", "uri"]),
            (Some(_), Some(uri)) if uri.is_absolute() => FieldError::generic(
                "Absolute URI is not allowed when Ref or [apiVersion, kind, name] is present",
                ["[apiVersion, kind, name]", "ref", "uri"],
            ),
            (None, Some(uri)) if is_relative(uri) => FieldError::invalid_value(
                "Relative URI is not allowed when Ref and [apiVersion, kind, name] is absent",
                "uri",
            ),
            (Some(reference), None) => reference.validate().also(self.validate_group()).via_field("ref"),
            _ => self.validate_ca_certs(),
        }
    }

    /// Validates as [`validate`](Self::validate) does, and validates that the object, if any, is in this namespace. See
    /// [`KReference::validate_within`].
    ///
    /// ```
    /// use reknit_knative::Destination;
    ///
    /// let sink = r#"{"ref": {"apiVersion": "v1", "kind": "Service", "namespace": "theirs", "name": "web"}}"#;
    /// let sink: Destination = serde_json::from_str(sink).unwrap();
    /// assert!(sink.validate_within("theirs").is_empty());
    /// let error = sink.validate_within("mine").via_field("spec.sink");
    /// assert!(error.to_string().starts_with("mismatched namespaces: spec.sink.ref.namespace"));
    /// ```
    pub fn validate_within(&self, namespace: &str) -> FieldError {
        let namespace_error =
            self.reference.as_ref().map(|reference| reference.validate_namespace(namespace));
        self.validate().also(namespace_error.unwrap_or_default().via_field("ref"))
    }

    /// Validates the first certificate as Knative does, with its messages and its field name `caCert`.
    fn validate_ca_certs(&self) -> FieldError {
        let Some(certificates) = &self.ca_certs else { return FieldError::none() };
        let invalid = |message| FieldError::invalid_value(message, "caCert");
        match parse_x509_pem(certificates.as_bytes()) {
            Err(_) => invalid("CA Cert provided is invalid"),
            Ok((_, pem)) if pem.label != "CERTIFICATE" => invalid("CA Cert provided is not a certificate"),
            Ok((_, pem)) if pem.parse_x509().is_err() => invalid("CA Cert provided is invalid"),
            Ok(_) => FieldError::none(),
        }
    }

    fn validate_group(&self) -> FieldError {
        match self.group.as_deref() {
            None | Some("") => FieldError::none(),
            Some(_) => FieldError::disallowed(["group"]),
        }
    }
}

impl From<KReference> for Destination {
    /// Creates the destination for messages to the address of this object.
    ///
    /// ```
    /// use reknit_apis::KReference;
    /// use reknit_knative::Destination;
    ///
    /// let channel = KReference { kind: "InMemoryChannel".into(), name: "orders".into(), ..KReference::default() };
    /// let reply = Destination::from(channel.clone());
    /// assert_eq!((reply.reference, reply.uri), (Some(channel), None));
    /// ```
    fn from(reference: KReference) -> Self {
        Self { reference: Some(reference), ..Self::default() }
    }
}

/// The destination of messages: an object, a URL, or a URL relative to an object's.
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
struct WireDestination {
    /// The object to send to.
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    reference: Option<WireReference>,
    /// The URL to send to, or a URL relative to the object's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uri: Option<Url>,
    /// The certificate authorities in PEM to trust besides those of the object.
    #[serde(rename = "CACerts", default, skip_serializing_if = "Option::is_none")]
    ca_certs: Option<String>,
    /// The OIDC audience of tokens, if it is not that of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    audience: Option<String>,
}

#[derive(Serialize, Deserialize, schemars::JsonSchema)]
struct WireReference {
    #[serde(flatten)]
    reference: KReference,
    /// Reserved. Leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<String>,
}

impl From<WireDestination> for Destination {
    fn from(WireDestination { reference, uri, ca_certs, audience }: WireDestination) -> Self {
        let (reference, group) = reference.map(|wire| (wire.reference, wire.group)).unzip();
        Self { reference, group: group.flatten(), uri, ca_certs, audience }
    }
}

impl From<Destination> for WireDestination {
    fn from(Destination { reference, group, uri, ca_certs, audience }: Destination) -> Self {
        let reference = reference.map(|reference| WireReference { reference, group });
        Self { reference, uri, ca_certs, audience }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_in_another_namespace_is_refused_with_and_without_a_relative_url() {
        let reference = KReference {
            api_version: "v1".into(),
            kind: "Service".into(),
            namespace: Some("theirs".into()),
            name: "web".into(),
            ..KReference::default()
        };
        let with_object = Destination { reference: Some(reference), ..Destination::default() };
        let with_object_and_path = Destination { uri: "/path".parse().ok(), ..with_object.clone() };
        assert!(with_object_and_path.uri.is_some());
        for destination in [with_object, with_object_and_path] {
            let error = destination.validate_within("mine").to_string();
            assert!(error.starts_with("mismatched namespaces: ref.namespace\n"), "{error}");
            assert!(destination.validate_within("theirs").is_empty());
            assert!(destination.validate().is_empty());
        }
    }

    #[test]
    fn an_invalid_first_certificate_is_refused() {
        let truncated = "-----BEGIN CERTIFICATE-----\n\
            MIIBdDCCARmgAwIBAgIUAvC\n-----END CERTIFICATE-----\n";
        for (certificates, expected) in [
            ("certificate", "invalid value: CA Cert provided is invalid: caCert"),
            (truncated, "invalid value: CA Cert provided is invalid: caCert"),
            (
                "-----BEGIN CERTIFICATE REQUEST-----\nAA==\n-----END CERTIFICATE REQUEST-----\n",
                "invalid value: CA Cert provided is not a certificate: caCert",
            ),
            (include_str!("../tests/authority.pem"), ""),
        ] {
            let destination = Destination {
                uri: "https://host/".parse().ok(),
                ca_certs: Some(certificates.into()),
                ..Destination::default()
            };
            assert_eq!(destination.validate().to_string(), expected, "{certificates}");
        }
    }

    #[test]
    fn a_url_is_valid_in_any_namespace() {
        let url = Destination { uri: "http://host/".parse().ok(), ..Destination::default() };
        assert!(url.validate_within("mine").is_empty());
    }
}
