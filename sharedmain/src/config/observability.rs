//! The ConfigMap `config-observability`: where metrics and traces go, and whether profiles are served.
use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use crate::{
    config::error::ConfigError,
    observe::otlp::{Endpoint, Protocol},
    process::listen,
};

/// As OpenTelemetry's readers have it.
const EXPORT_INTERVAL: Duration = Duration::from_secs(60);

/// What the map says.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ObservabilityConfig {
    pub(crate) metrics: Metrics,
    pub(crate) tracing: Tracing,
    /// From 0 to 1: how many of all passes are traced.
    pub(crate) sampling_rate: f64,
    pub(crate) profiling: bool,
}

/// Whom metrics are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Metrics {
    None,
    /// `metrics-endpoint` may name the port, or address and port, to listen on.
    Prometheus {
        host: Option<IpAddr>,
        port: Option<u16>,
    },
    /// A collector that they are pushed to, so often.
    Push {
        endpoint: Endpoint,
        every: Duration,
    },
}

impl Default for Metrics {
    fn default() -> Self {
        Self::Prometheus { host: None, port: None }
    }
}

/// Whom traces are for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Tracing {
    #[default]
    None,
    Stdout,
    Push(Endpoint),
}

impl ObservabilityConfig {
    pub(crate) fn parse(data: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        let map = Values(data);
        // Read by Go's processes for figures of their runtime, which there are none of here.
        map.duration("runtime-export-interval")?;
        if !matches!(map.get("metrics-temporality"), "" | "cumulative") {
            return Err(map.bad("metrics-temporality", "not what there is, which is cumulative"));
        }
        Ok(Self {
            metrics: map.metrics()?,
            tracing: map.tracing()?,
            sampling_rate: map.rate("tracing-sampling-rate")?,
            profiling: match map.get("runtime-profiling") {
                "" | "disabled" => false,
                "enabled" => true,
                _ => return Err(map.bad("runtime-profiling", "not one of enabled, disabled")),
            },
        })
    }

    /// Whether both have metrics and traces go the same way, which is settled at the start.
    pub(crate) fn exports_as(&self, other: &Self) -> bool {
        (&self.metrics, &self.tracing, self.sampling_rate)
            == (&other.metrics, &other.tracing, other.sampling_rate)
    }
}

struct Values<'a>(&'a BTreeMap<String, String>);

impl Values<'_> {
    /// A value that is empty says nothing.
    fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", |value| value.trim())
    }

    /// What may stand before an `@` is a password.
    fn bad(&self, key: &str, why: impl Into<String>) -> ConfigError {
        match self.get(key) {
            value if value.contains('@') => ConfigError::unseen(key, why),
            value => ConfigError::new(key, value, why),
        }
    }

    fn metrics(&self) -> Result<Metrics, ConfigError> {
        let every = self.duration("metrics-export-interval")?.unwrap_or(EXPORT_INTERVAL);
        match self.get("metrics-protocol") {
            "none" => self.unset("metrics").map(|()| Metrics::None),
            "" | "prometheus" => self.listen("metrics-endpoint"),
            "grpc" => Ok(Metrics::Push {
                endpoint: self.endpoint("metrics", Protocol::Grpc, "/v1/metrics")?,
                every,
            }),
            "http/protobuf" => {
                let endpoint = self.endpoint("metrics", Protocol::HttpProtobuf, "/v1/metrics")?;
                Ok(Metrics::Push { endpoint, every })
            }
            _ => Err(self.bad("metrics-protocol", "not one of none, prometheus, grpc, http/protobuf")),
        }
    }

    fn tracing(&self) -> Result<Tracing, ConfigError> {
        let push = |protocol| self.endpoint("tracing", protocol, "/v1/traces").map(Tracing::Push);
        match self.get("tracing-protocol") {
            "" | "none" => self.unset("tracing").map(|()| Tracing::None),
            "stdout" => self.unset("tracing").map(|()| Tracing::Stdout),
            "grpc" => push(Protocol::Grpc),
            "http/protobuf" => push(Protocol::HttpProtobuf),
            _ => Err(self.bad("tracing-protocol", "not one of none, grpc, http/protobuf, stdout")),
        }
    }

    fn endpoint(&self, of: &str, protocol: Protocol, path: &'static str) -> Result<Endpoint, ConfigError> {
        let key = format!("{of}-endpoint");
        match self.get(&key) {
            "" => {
                let protocol = self.get(&format!("{of}-protocol"));
                Err(self
                    .bad(&key, format!("needed where {of}-protocol is {protocol}: the collector's address")))
            }
            // A password in it would stand in the log, and not even be sent.
            text if text.contains('@') => {
                Err(self
                    .bad(&key, "not an address without `@`: credentials are for OTEL_EXPORTER_OTLP_HEADERS"))
            }
            text => Endpoint::parse(protocol, text, path)
                .ok_or_else(|| self.bad(&key, "not an address such as http://collector.example.com:4317")),
        }
    }

    /// No endpoint is of use.
    fn unset(&self, of: &str) -> Result<(), ConfigError> {
        let (endpoint, protocol) = (format!("{of}-endpoint"), format!("{of}-protocol"));
        match (self.get(&endpoint), self.get(&protocol)) {
            ("", _) => Ok(()),
            (_, "") => Err(self.bad(&endpoint, format!("set, though {protocol} is not"))),
            (_, set) => Err(self.bad(&endpoint, format!("set, though {protocol} is {set}"))),
        }
    }

    fn listen(&self, key: &str) -> Result<Metrics, ConfigError> {
        let wrong =
            || self.bad(key, "not [IP]:PORT to listen on, as metrics-protocol is prometheus, such as :9090");
        let (host, port) = match self.get(key) {
            "" => return Ok(Metrics::default()),
            text => text.rsplit_once(':').ok_or_else(wrong)?,
        };
        let host = match host.trim_matches(['[', ']']) {
            "" => None,
            host => Some(listen::resolve(host).ok_or_else(wrong)?),
        };
        Ok(Metrics::Prometheus { host, port: Some(port.parse().map_err(|_| wrong())?) })
    }

    /// None where there is none, or nothing, which means the default.
    fn duration(&self, key: &str) -> Result<Option<Duration>, ConfigError> {
        match self.get(key) {
            "" => Ok(None),
            text => reknit_apis::parse_duration(text)
                .map(|duration| Some(duration).filter(|duration| !duration.is_zero()))
                .map_err(|_| self.bad(key, "not a duration such as 30s")),
        }
    }

    fn rate(&self, key: &str) -> Result<f64, ConfigError> {
        match self.get(key) {
            "" => Ok(0.0),
            text => text
                .parse()
                .ok()
                .filter(|rate| (0.0..=1.0).contains(rate))
                .ok_or_else(|| self.bad(key, "not a number from 0 to 1")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(data: &[(&str, &str)]) -> Result<ObservabilityConfig, String> {
        let data = data.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        ObservabilityConfig::parse(&data).map_err(|e| e.to_string())
    }

    #[test]
    fn an_empty_map_is_the_default() {
        assert_eq!(parse(&[]), Ok(ObservabilityConfig::default()));
        assert_eq!(parse(&[("metrics-protocol", "none")]).unwrap().metrics, Metrics::None);
        assert_eq!(parse(&[("tracing-protocol", "stdout")]).unwrap().tracing, Tracing::Stdout);
    }

    #[test]
    fn an_endpoint_says_where_prometheus_finds_the_metrics() {
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
    fn metrics_and_traces_are_pushed_where_the_endpoints_say() {
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
        let Metrics::Push { endpoint, every } = &config.metrics else { panic!("{config:?}") };
        assert_eq!((endpoint.to_string(), every.as_secs()), ("https://collector:4317".into(), 30));
        let Tracing::Push(endpoint) = &config.tracing else { panic!("{config:?}") };
        assert_eq!(endpoint.to_string(), "http://collector:4318/v1/traces");
        assert_eq!((config.sampling_rate, config.profiling), (0.5, true));
    }

    #[test]
    fn an_interval_of_nothing_is_the_default() {
        for interval in ["", "0", "0s"] {
            let data = [
                ("metrics-protocol", "grpc"),
                ("metrics-endpoint", "http://a:1"),
                ("metrics-export-interval", interval),
            ];
            let Metrics::Push { every, .. } = parse(&data).unwrap().metrics else { panic!() };
            assert_eq!(every, EXPORT_INTERVAL, "{interval:?}");
        }
    }

    #[test]
    fn a_bad_value_is_named_with_its_key_and_what_is_allowed() {
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
            ("metrics-temporality", "delta", "cumulative"),
        ] {
            let error = parse(&[(key, value)]).unwrap_err();
            assert!(error.starts_with(&format!("{key}: {value:?} is not ")), "{error}");
            assert!(error.ends_with(allowed), "{error}");
        }
    }

    #[test]
    fn a_password_is_refused_and_not_shown() {
        for (protocol, endpoint) in [
            ("grpc", "https://user:hunter2@collector:4317"),
            ("http/protobuf", "user:hunter2@collector"),
            ("http/protobuf", "https://user:hunter2@bad host"),
            ("none", "https://user:hunter2@collector:4317"),
            ("", "https://user:hunter2@collector:4317"),
        ] {
            for of in ["metrics", "tracing"] {
                let (to, by) = (format!("{of}-endpoint"), format!("{of}-protocol"));
                let error = parse(&[(&by, protocol), (&to, endpoint)]).unwrap_err();
                assert!(error.starts_with(&format!("{to}: the value (not shown) is ")), "{error}");
                assert!(!error.contains("hunter2"), "{error}");
            }
        }
        let error =
            parse(&[("tracing-protocol", "grpc"), ("tracing-endpoint", "https://a@b:1")]).unwrap_err();
        assert!(error.ends_with("credentials are for OTEL_EXPORTER_OTLP_HEADERS"), "{error}");
    }

    #[test]
    fn an_endpoint_is_there_exactly_where_a_protocol_needs_it() {
        for (of, protocol) in [
            ("metrics", "grpc"),
            ("metrics", "http/protobuf"),
            ("tracing", "grpc"),
            ("tracing", "http/protobuf"),
        ] {
            let key = format!("{of}-protocol");
            let error = parse(&[(&key, protocol)]).unwrap_err();
            assert!(error.starts_with(&format!("{of}-endpoint: \"\" is needed")), "{error}");
            let error = parse(&[(&key, protocol), (&format!("{of}-endpoint"), "ftp://a")]).unwrap_err();
            assert!(error.starts_with(&format!("{of}-endpoint: \"ftp://a\" is not an address")), "{error}");
        }
        for (of, protocol) in [("metrics", "none"), ("tracing", "none"), ("tracing", "stdout")] {
            let data = [(&*format!("{of}-protocol"), protocol), (&*format!("{of}-endpoint"), "http://a")];
            let error = parse(&data).unwrap_err();
            let said = format!("{of}-endpoint: \"http://a\" is set, though {of}-protocol is {protocol}");
            assert_eq!(error, said);
        }
    }
}
