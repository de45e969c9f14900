//! The options of delivering events.

use jiff::{Span, fmt::temporal::SpanParser};
use reknit_apis::FieldError;
use serde::{Deserialize, Serialize};

use crate::{addressable::Addressable, destination::Destination, url::Url};

/// The options of delivering events: retries, backoff and the dead letter sink.
///
/// Durations are texts of ISO 8601, such as `PT5S`.
///
/// ```
/// use reknit_knative::DeliverySpec;
///
/// let delivery = r#"{"retry": 3, "backoffPolicy": "linear", "backoffDelay": "5s"}"#;
/// let delivery: DeliverySpec = serde_json::from_str(delivery)?;
/// let error = delivery.validate().via_field("spec.delivery");
/// assert_eq!(error.to_string(), "invalid value: 5s: spec.delivery.backoffDelay");
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "The options of delivering events.")]
pub struct DeliverySpec {
    /// The destination of events that could not be delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter_sink: Option<Destination>,
    /// The number of retries before an event goes to the dead letter sink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<i32>,
    /// The timeout of one request, as an ISO 8601 duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// The policy of the backoff between retries: linear or exponential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub backoff_policy: Option<BackoffPolicy>,
    /// The delay before the first retry, as an ISO 8601 duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_delay: Option<String>,
    /// The longest delay that a Retry-After header can ask for, as an ISO 8601 duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_max: Option<String>,
    /// The format of the events: json or binary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub format: Option<DeliveryFormat>,
}

impl DeliverySpec {
    /// Validates the options, as Knative Eventing does.
    ///
    /// One difference: Eventing refuses `retryAfterMax` unless the feature `delivery-retryafter` is enabled. Refuse it
    /// with [`FieldError::disallowed`] if your controller does not support it.
    pub fn validate(&self) -> FieldError {
        let sink = self.dead_letter_sink.as_ref().map(Destination::validate).unwrap_or_default();
        sink.via_field("deadLetterSink")
            .also(check(&self.retry, "retry", |&retry| retry >= 0))
            .also(check_duration(&self.timeout, "timeout", Span::is_positive))
            .also(check(&self.backoff_policy, "backoffPolicy", |policy| {
                !matches!(policy, BackoffPolicy::Other(_))
            }))
            .also(check_duration(&self.backoff_delay, "backoffDelay", |_| true))
            .also(check(&self.format, "format", |format| !matches!(format, DeliveryFormat::Other(_))))
            .also(check_duration(&self.retry_after_max, "retryAfterMax", |max| !max.is_negative()))
    }

    /// Sets the namespace of the dead letter sink if it has none. See [`Destination::set_defaults`].
    pub fn set_defaults(&mut self, namespace: &str) {
        if let Some(sink) = &mut self.dead_letter_sink {
            sink.set_defaults(namespace);
        }
    }
}

fn check<T: std::fmt::Display>(value: &Option<T>, field: &str, is_valid: fn(&T) -> bool) -> FieldError {
    match value {
        Some(value) if !is_valid(value) => FieldError::invalid_value(value, field),
        _ => FieldError::none(),
    }
}

fn check_duration(text: &Option<String>, field: &str, is_valid: fn(Span) -> bool) -> FieldError {
    let Some(text) = text else { return FieldError::none() };
    let is_upper_case = !text.bytes().any(|letter| letter.is_ascii_lowercase()); // as Eventing's parser requires
    match SpanParser::new().parse_span(text) {
        Ok(duration) if is_upper_case && is_valid(duration) => FieldError::none(),
        _ => FieldError::invalid_value(text, field),
    }
}

/// The policy of the backoff between retries.
///
/// A policy that this version does not know is kept as it was read, and refused by [`DeliverySpec::validate`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackoffPolicy {
    /// The delay grows by `backoffDelay` with each retry.
    Linear,
    /// The delay doubles with each retry.
    Exponential,
    /// Another policy.
    #[serde(untagged)]
    Other(String),
}

impl std::fmt::Display for BackoffPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

/// The format of delivered events.
///
/// A format that this version does not know is kept as it was read, and refused by [`DeliverySpec::validate`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryFormat {
    /// Structured mode: the event is one JSON object.
    Json,
    /// Binary mode: the attributes are headers.
    Binary,
    /// Another format.
    #[serde(untagged)]
    Other(String),
}

impl std::fmt::Display for DeliveryFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

/// The fields of a status that publish the address of the dead letter sink. Embed it with `#[serde(flatten)]`.
///
/// ```
/// use reknit_knative::{Addressable, DeliveryStatus};
///
/// let sink = Addressable { url: Some("http://letters/".parse()?), ..Addressable::default() };
/// let status = DeliveryStatus::from(sink);
/// assert_eq!(serde_json::to_string(&status).unwrap(), r#"{"deadLetterSinkUri":"http://letters/"}"#);
/// # Ok::<_, reknit_knative::UrlError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "The address of the dead letter sink.")]
pub struct DeliveryStatus {
    /// The URL of the dead letter sink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter_sink_uri: Option<Url>,
    /// The certificate authorities of the dead letter sink in PEM.
    #[serde(rename = "deadLetterSinkCACerts", default, skip_serializing_if = "Option::is_none")]
    pub dead_letter_sink_ca_certs: Option<String>,
    /// The OIDC audience of the dead letter sink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter_sink_audience: Option<String>,
}

impl From<Addressable> for DeliveryStatus {
    fn from(sink: Addressable) -> Self {
        Self {
            dead_letter_sink_uri: sink.url,
            dead_letter_sink_ca_certs: sink.ca_certs,
            dead_letter_sink_audience: sink.audience,
        }
    }
}

impl From<DeliveryStatus> for Destination {
    fn from(status: DeliveryStatus) -> Self {
        Self {
            uri: status.dead_letter_sink_uri,
            ca_certs: status.dead_letter_sink_ca_certs,
            audience: status.dead_letter_sink_audience,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json, to_value};

    use super::*;

    fn validation_error(delivery: Value) -> String {
        from_value::<DeliverySpec>(delivery).unwrap().validate().to_string()
    }

    #[test]
    fn valid_options_are_accepted() {
        for delivery in [
            json!({}),
            json!({"retry": 0, "backoffPolicy": "linear", "backoffDelay": "PT0.5S", "timeout": "PT1M"}),
            json!({"backoffPolicy": "exponential", "backoffDelay": "P1DT2H", "retryAfterMax": "PT0S"}),
            json!({"deadLetterSink": {"uri": "http://letters/"}, "format": "binary"}),
        ] {
            assert_eq!(validation_error(delivery.clone()), "", "{delivery}");
        }
    }

    #[test]
    fn invalid_options_are_refused_by_field() {
        for (delivery, error) in [
            (json!({"retry": -1}), "invalid value: -1: retry"),
            (json!({"timeout": "PT0S"}), "invalid value: PT0S: timeout"),
            (json!({"timeout": "pt30s"}), "invalid value: pt30s: timeout"),
            (json!({"timeout": "30s"}), "invalid value: 30s: timeout"),
            (json!({"backoffPolicy": "garbage"}), "invalid value: garbage: backoffPolicy"),
            (json!({"backoffDelay": "1 minute"}), "invalid value: 1 minute: backoffDelay"),
            (json!({"backoffDelay": ""}), "invalid value: : backoffDelay"),
            (json!({"retryAfterMax": "-PT1S"}), "invalid value: -PT1S: retryAfterMax"),
            (json!({"format": "xml"}), "invalid value: xml: format"),
            (
                json!({"deadLetterSink": {}}),
                "expected at least one, got none: deadLetterSink.ref, deadLetterSink.uri",
            ),
        ] {
            assert_eq!(validation_error(delivery), error);
        }
    }

    #[test]
    fn an_unknown_policy_is_kept() {
        let delivery = json!({"backoffPolicy": "fibonacci", "format": "json"});
        assert_eq!(to_value(from_value::<DeliverySpec>(delivery.clone()).unwrap()).unwrap(), delivery);
    }
}
