//! The ConfigMap `config-observability`: the export of metrics and traces, and profiling.
use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, time::Duration};

use super::{
    endpoint::{Endpoint, Protocol},
    error::invalid,
};
use crate::process::listen;

/// The default of OpenTelemetry's metric readers.
const EXPORT_INTERVAL: Duration = Duration::from_secs(60);

/// The keys of the ConfigMap, and those that Knative's components read from it too, which have no meaning here.
pub(crate) const KEYS: &[&str] = &[
    "metrics-protocol",
    "metrics-endpoint",
    "metrics-export-interval",
    "metrics-temporality",
    "tracing-protocol",
    "tracing-endpoint",
    "tracing-sampling-rate",
    "runtime-profiling",
    "runtime-export-interval",
    "console",
    "record-failures",
    "request-metrics-*",
    "logging.*",
    "metrics.*",
    "profiling.*",
    "sink-event-error-reporting.*",
];

/// The contents of the ConfigMap.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ObservabilityConfig {
    pub(crate) metrics: Metrics,
    pub(crate) tracing: Tracing,
    /// The share of reconciles that are traced, from 0 to 1.
    pub(crate) sampling_rate: f64,
    pub(crate) profiling: bool,
    pub(crate) console: bool,
    /// The folder of recorded passes.
    pub(crate) record_failures: Option<PathBuf>,
}

/// The export of metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Metrics {
    None,
    /// Prometheus scrapes the metrics. `metrics-endpoint` may set the port, or address and port, to listen on.
    Prometheus {
        host: Option<IpAddr>,
        port: Option<u16>,
    },
    /// The process pushes the metrics to a collector at an interval.
    Push {
        endpoint: Endpoint,
        interval: Duration,
    },
}

impl Default for Metrics {
    fn default() -> Self {
        Self::Prometheus { host: None, port: None }
    }
}

/// The export of traces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Tracing {
    #[default]
    None,
    Stdout,
    Push(Endpoint),
}

impl ObservabilityConfig {
    /// Parses the data of the ConfigMap. An empty value counts as unset.
    pub(crate) fn parse(data: &BTreeMap<String, String>) -> Result<Self, String> {
        let values = Values(data);
        // Only Go processes have metrics of Go's runtime to export at this interval, but the value must be valid.
        values.duration("runtime-export-interval")?;
        if !matches!(values.get("metrics-temporality"), "" | "cumulative") {
            return Err(values.invalid("metrics-temporality", "not supported, only cumulative"));
        }
        Ok(Self {
            metrics: values.metrics()?,
            tracing: values.tracing()?,
            sampling_rate: values.rate("tracing-sampling-rate")?,
            profiling: values.is_enabled("runtime-profiling")?,
            console: values.is_enabled("console")?,
            record_failures: match values.get("record-failures") {
                "" => None,
                text if text.starts_with('/') => Some(text.into()),
                _ => {
                    return Err(
                        values.invalid("record-failures", "not an absolute path such as /var/lib/passes")
                    );
                }
            },
        })
    }

    /// Returns whether both configurations have the same exports of metrics and traces. Changes of exports take effect
    /// only at the next start.
    pub(crate) fn has_same_exports(&self, other: &Self) -> bool {
        (&self.metrics, &self.tracing, self.sampling_rate)
            == (&other.metrics, &other.tracing, other.sampling_rate)
    }
}

/// The values of the ConfigMap. The methods parse its settings.
struct Values<'a>(&'a BTreeMap<String, String>);

impl Values<'_> {
    /// Returns the trimmed value, which is empty if the key is missing.
    fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", |value| value.trim())
    }

    fn invalid(&self, key: &str, why: impl AsRef<str>) -> String {
        invalid(key, self.get(key), why.as_ref())
    }

    fn is_enabled(&self, key: &str) -> Result<bool, String> {
        match self.get(key) {
            "" | "disabled" => Ok(false),
            "enabled" => Ok(true),
            _ => Err(self.invalid(key, "not one of enabled, disabled")),
        }
    }

    fn metrics(&self) -> Result<Metrics, String> {
        let interval = self.duration("metrics-export-interval")?.unwrap_or(EXPORT_INTERVAL);
        let push = |protocol| {
            Ok(Metrics::Push { endpoint: self.endpoint("metrics", protocol, "/v1/metrics")?, interval })
        };
        match self.get("metrics-protocol") {
            "none" => self.without_endpoint("metrics", Metrics::None),
            "" | "prometheus" => self.prometheus("metrics-endpoint"),
            "grpc" => push(Protocol::Grpc),
            "http/protobuf" => push(Protocol::HttpProtobuf),
            _ => Err(self.invalid("metrics-protocol", "not one of none, prometheus, grpc, http/protobuf")),
        }
    }

    fn tracing(&self) -> Result<Tracing, String> {
        let push = |protocol| self.endpoint("tracing", protocol, "/v1/traces").map(Tracing::Push);
        match self.get("tracing-protocol") {
            "" | "none" => self.without_endpoint("tracing", Tracing::None),
            "stdout" => self.without_endpoint("tracing", Tracing::Stdout),
            "grpc" => push(Protocol::Grpc),
            "http/protobuf" => push(Protocol::HttpProtobuf),
            _ => Err(self.invalid("tracing-protocol", "not one of none, grpc, http/protobuf, stdout")),
        }
    }

    fn endpoint(&self, signal: &str, protocol: Protocol, path: &'static str) -> Result<Endpoint, String> {
        let key = format!("{signal}-endpoint");
        match self.get(&key) {
            "" => {
                let protocol = self.get(&format!("{signal}-protocol"));
                let why = format!("needed where {signal}-protocol is {protocol}: the URL of the collector");
                Err(self.invalid(&key, why))
            }
            // A password would appear in the log, and would not be sent to the collector.
            text if text.contains('@') => {
                Err(self
                    .invalid(&key, "not a URL without `@`: credentials are for OTEL_EXPORTER_OTLP_HEADERS"))
            }
            text => Endpoint::parse(protocol, text, path)
                .ok_or_else(|| self.invalid(&key, "not a URL such as http://collector.example.com:4317")),
        }
    }

    /// Returns `export`, whose protocol has no endpoint, or an error if an endpoint is set.
    fn without_endpoint<T>(&self, signal: &str, export: T) -> Result<T, String> {
        let (endpoint, protocol) = (format!("{signal}-endpoint"), format!("{signal}-protocol"));
        match (self.get(&endpoint), self.get(&protocol)) {
            ("", _) => Ok(export),
            (_, "") => Err(self.invalid(&endpoint, format!("set, though {protocol} is not"))),
            (_, set) => Err(self.invalid(&endpoint, format!("set, though {protocol} is {set}"))),
        }
    }

    /// Parses the address that Prometheus scrapes.
    fn prometheus(&self, key: &str) -> Result<Metrics, String> {
        let text = self.get(key);
        if text.is_empty() {
            return Ok(Metrics::default());
        }
        let address = listen::parse_address(text);
        address.map(|(host, port)| Metrics::Prometheus { host, port: Some(port) }).ok_or_else(|| {
            self.invalid(key, "not [IP]:PORT to listen on, as metrics-protocol is prometheus, such as :9090")
        })
    }

    /// Parses a duration. Returns `None` for an empty value or zero: then the default applies.
    fn duration(&self, key: &str) -> Result<Option<Duration>, String> {
        match self.get(key) {
            "" => Ok(None),
            text => reknit_apis::parse_duration(text)
                .map(|duration| Some(duration).filter(|duration| !duration.is_zero()))
                .map_err(|_| self.invalid(key, "not a duration such as 30s")),
        }
    }

    fn rate(&self, key: &str) -> Result<f64, String> {
        let rate = match self.get(key) {
            "" => Some(0.0),
            text => text.parse().ok(),
        };
        rate.filter(|rate| (0.0..=1.0).contains(rate))
            .ok_or_else(|| self.invalid(key, "not a number from 0 to 1"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(data: &[(&str, &str)]) -> Result<ObservabilityConfig, String> {
        let data = data.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        ObservabilityConfig::parse(&data)
    }

    #[test]
    fn an_empty_map_has_the_defaults() {
        assert_eq!(parse(&[]), Ok(ObservabilityConfig::default()));
        assert_eq!(parse(&[("metrics-protocol", "none")]).unwrap().metrics, Metrics::None);
        assert_eq!(parse(&[("tracing-protocol", "stdout")]).unwrap().tracing, Tracing::Stdout);
    }

    #[test]
    fn the_endpoint_for_prometheus_is_an_address_to_listen_on() {
        for (endpoint, host, port) in [
            (":9091", None, 9091),
            ("127.0.0.1:1", Some("127.0.0.1"), 1),
            ("[::1]:2", Some("::1"), 2),
            ("localhost:3", Some("127.0.0.1"), 3),
        ] {
            let config =
                parse(&[("metrics-protocol", "prometheus"), ("metrics-endpoint", endpoint)]).unwrap();
            assert_eq!(
                config.metrics,
                Metrics::Prometheus { host: host.map(|ip| ip.parse().unwrap()), port: Some(port) }
            );
        }
    }

    #[test]
    fn metrics_and_traces_are_pushed_to_their_endpoints() {
        let config = parse(&[
            ("metrics-protocol", "grpc"),
            ("metrics-endpoint", "collector:4317"),
            ("metrics-export-interval", "30s"),
            ("tracing-protocol", "http/protobuf"),
            ("tracing-endpoint", "http://collector:4318"),
            ("tracing-sampling-rate", "0.5"),
            ("runtime-profiling", "enabled"),
        ])
        .unwrap();
        let Metrics::Push { endpoint, interval } = &config.metrics else { panic!("{config:?}") };
        assert_eq!((endpoint.to_string(), interval.as_secs()), ("https://collector:4317".into(), 30));
        let Tracing::Push(endpoint) = &config.tracing else { panic!("{config:?}") };
        assert_eq!(endpoint.to_string(), "http://collector:4318/v1/traces");
        assert_eq!((config.sampling_rate, config.profiling), (0.5, true));
    }

    #[test]
    fn a_zero_interval_is_the_default() {
        for interval in ["", "0", "0s"] {
            let data = [
                ("metrics-protocol", "grpc"),
                ("metrics-endpoint", "http://a:1"),
                ("metrics-export-interval", interval),
            ];
            let Metrics::Push { interval: parsed, .. } = parse(&data).unwrap().metrics else { panic!() };
            assert_eq!(parsed, EXPORT_INTERVAL, "{interval:?}");
        }
    }

    #[test]
    fn an_error_has_the_key_the_value_and_the_allowed_values() {
        for (key, value, allowed) in [
            ("metrics-protocol", "carrier-pigeon", "none, prometheus, grpc, http/protobuf"),
            ("metrics-endpoint", "nowhere", ":9090"),
            ("metrics-endpoint", "collector.observability:4317", ":9090"),
            ("metrics-endpoint", "http://127.0.0.1:4317", ":9090"),
            ("metrics-export-interval", "soon", "30s"),
            ("metrics-export-interval", "-5s", "30s"),
            ("tracing-protocol", "zipkin", "none, grpc, http/protobuf, stdout"),
            ("tracing-sampling-rate", "2", "0 to 1"),
            ("tracing-sampling-rate", "NaN", "0 to 1"),
            ("tracing-sampling-rate", "half", "0 to 1"),
            ("runtime-profiling", "yes", "enabled, disabled"),
            ("record-failures", "passes", "/var/lib/passes"),
            ("metrics-temporality", "delta", "cumulative"),
        ] {
            let error = parse(&[(key, value)]).unwrap_err();
            assert!(error.starts_with(&format!("{key}: {value:?} is not ")), "{error}");
            assert!(error.ends_with(allowed), "{error}");
        }
    }

    #[test]
    fn a_url_with_a_password_is_refused_and_not_shown() {
        for (protocol, endpoint) in [
            ("grpc", "https://user:hunter2@collector:4317"),
            ("http/protobuf", "user:hunter2@collector"),
            ("http/protobuf", "https://user:hunter2@bad host"),
            ("none", "https://user:hunter2@collector:4317"),
            ("", "https://user:hunter2@collector:4317"),
        ] {
            for signal in ["metrics", "tracing"] {
                let (endpoint_key, protocol_key) =
                    (format!("{signal}-endpoint"), format!("{signal}-protocol"));
                let error = parse(&[(&protocol_key, protocol), (&endpoint_key, endpoint)]).unwrap_err();
                assert!(error.starts_with(&format!("{endpoint_key}: the value (not shown) is ")), "{error}");
                assert!(!error.contains("hunter2"), "{error}");
            }
        }
        let error =
            parse(&[("tracing-protocol", "grpc"), ("tracing-endpoint", "https://a@b:1")]).unwrap_err();
        assert!(error.ends_with("credentials are for OTEL_EXPORTER_OTLP_HEADERS"), "{error}");
    }

    #[test]
    fn the_protocol_decides_whether_an_endpoint_is_required_or_refused() {
        for (signal, protocol) in [
            ("metrics", "grpc"),
            ("metrics", "http/protobuf"),
            ("tracing", "grpc"),
            ("tracing", "http/protobuf"),
        ] {
            let key = format!("{signal}-protocol");
            let error = parse(&[(&key, protocol)]).unwrap_err();
            assert!(error.starts_with(&format!("{signal}-endpoint: \"\" is needed")), "{error}");
            let error = parse(&[(&key, protocol), (&format!("{signal}-endpoint"), "ftp://a")]).unwrap_err();
            assert!(error.starts_with(&format!("{signal}-endpoint: \"ftp://a\" is not a URL")), "{error}");
        }
        for (signal, protocol) in [("metrics", "none"), ("tracing", "none"), ("tracing", "stdout")] {
            let data =
                [(&*format!("{signal}-protocol"), protocol), (&*format!("{signal}-endpoint"), "http://a")];
            let error = parse(&data).unwrap_err();
            let expected =
                format!("{signal}-endpoint: \"http://a\" is set, though {signal}-protocol is {protocol}");
            assert_eq!(error, expected);
        }
    }
}
