//! The ConfigMap `config-observability`: where metrics go.
use std::{collections::BTreeMap, str::FromStr};

use crate::config_error::ConfigError;

/// What the map says. Metrics are served for Prometheus, or not at all; what would push them, or traces, is read
/// and checked, and [`unsupported`](Self::unsupported) names it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ObservabilityConfig {
    pub(crate) metrics: Metrics,
    tracing: String,
    profiling: bool,
}

/// Whom metrics are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Metrics {
    None,
    /// `metrics-endpoint` may name the port, or host and port, to listen on.
    Prometheus {
        host: Option<String>,
        port: Option<u16>,
    },
    /// A protocol that pushes.
    Push(String),
}

impl Default for ObservabilityConfig {
    fn default() -> Self {
        Self {
            metrics: Metrics::Prometheus { host: None, port: None },
            tracing: "none".into(),
            profiling: false,
        }
    }
}

impl ObservabilityConfig {
    pub(crate) fn parse(data: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        let get = |key: &str| data.get(key).map_or("", |value| value.trim());
        let profiling = match get("runtime-profiling") {
            "" | "disabled" => false,
            "enabled" => true,
            other => {
                return Err(ConfigError::new("runtime-profiling", other, "neither enabled nor disabled"));
            }
        };
        interval(data, "metrics-export-interval")?;
        interval(data, "runtime-export-interval")?;
        let rate = number::<f64>(data, "tracing-sampling-rate", "a number from 0 to 1")?;
        if rate.is_some_and(|rate| !(0.0..=1.0).contains(&rate)) {
            let key = "tracing-sampling-rate";
            return Err(ConfigError::new(key, get(key), "not a number from 0 to 1"));
        }
        Ok(Self {
            metrics: metrics(get("metrics-protocol"), get("metrics-endpoint"))?,
            tracing: tracing(get("tracing-protocol"), get("tracing-endpoint"))?,
            profiling,
        })
    }

    /// What is asked for and not there, in a word each.
    pub(crate) fn unsupported(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if let Metrics::Push(protocol) = &self.metrics {
            missing.push(format!("metrics-protocol {protocol}"));
        }
        if self.tracing != "none" {
            missing.push(format!("tracing-protocol {}", self.tracing));
        }
        if self.profiling {
            missing.push("runtime-profiling".into());
        }
        missing
    }
}

fn metrics(protocol: &str, endpoint: &str) -> Result<Metrics, ConfigError> {
    match (protocol, endpoint) {
        ("none", "") => Ok(Metrics::None),
        ("none", _) => {
            Err(ConfigError::new("metrics-endpoint", endpoint, "set, though metrics-protocol is none"))
        }
        ("" | "prometheus", _) => listen(endpoint),
        ("grpc" | "http/protobuf", "") => Err(ConfigError::new(
            "metrics-endpoint",
            "",
            format!("needed where metrics-protocol is {protocol}"),
        )),
        ("grpc" | "http/protobuf", _) => Ok(Metrics::Push(protocol.to_owned())),
        _ => Err(ConfigError::new(
            "metrics-protocol",
            protocol,
            "not one of none, prometheus, grpc, http/protobuf",
        )),
    }
}

fn listen(endpoint: &str) -> Result<Metrics, ConfigError> {
    let wrong = || ConfigError::new("metrics-endpoint", endpoint, "not a host and a port, such as :9090");
    if endpoint.is_empty() {
        return Ok(Metrics::Prometheus { host: None, port: None });
    }
    let (host, port) = endpoint.rsplit_once(':').ok_or_else(wrong)?;
    let host = host.trim_matches(['[', ']']);
    let port = port.parse().map_err(|_| wrong())?;
    Ok(Metrics::Prometheus { host: Some(host.to_owned()).filter(|host| !host.is_empty()), port: Some(port) })
}

fn tracing(protocol: &str, endpoint: &str) -> Result<String, ConfigError> {
    match (protocol, endpoint) {
        ("" | "none", "") => Ok("none".into()),
        ("stdout", "") => Ok("stdout".into()),
        ("" | "none" | "stdout", _) => {
            Err(ConfigError::new("tracing-endpoint", endpoint, "set, though tracing-protocol sends nothing"))
        }
        ("grpc" | "http/protobuf", "") => Err(ConfigError::new(
            "tracing-endpoint",
            "",
            format!("needed where tracing-protocol is {protocol}"),
        )),
        ("grpc" | "http/protobuf", _) => Ok(protocol.to_owned()),
        _ => Err(ConfigError::new(
            "tracing-protocol",
            protocol,
            "not one of none, stdout, grpc, http/protobuf",
        )),
    }
}

fn interval(data: &BTreeMap<String, String>, key: &str) -> Result<(), ConfigError> {
    match data.get(key).map(|value| value.trim()).filter(|value| !value.is_empty()) {
        Some(value) => reknit_apis::parse_duration(value)
            .map(drop)
            .map_err(|_| ConfigError::new(key, value, "not a duration such as 30s")),
        None => Ok(()),
    }
}

fn number<T: FromStr>(
    data: &BTreeMap<String, String>,
    key: &str,
    what: &str,
) -> Result<Option<T>, ConfigError> {
    match data.get(key).map(|value| value.trim()).filter(|value| !value.is_empty()) {
        Some(value) => {
            value.parse().map(Some).map_err(|_| ConfigError::new(key, value, format!("not {what}")))
        }
        None => Ok(None),
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
    }

    #[test]
    fn an_endpoint_says_where_prometheus_finds_the_metrics() {
        for (endpoint, host, port) in
            [(":9091", None, 9091), ("127.0.0.1:1", Some("127.0.0.1"), 1), ("[::1]:2", Some("::1"), 2)]
        {
            let config =
                parse(&[("metrics-protocol", "prometheus"), ("metrics-endpoint", endpoint)]).unwrap();
            assert_eq!(config.metrics, Metrics::Prometheus { host: host.map(Into::into), port: Some(port) });
        }
    }

    #[test]
    fn what_is_not_supported_is_accepted_and_named() {
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
        assert_eq!(
            config.unsupported(),
            ["metrics-protocol grpc", "tracing-protocol http/protobuf", "runtime-profiling"]
        );
        assert_eq!(ObservabilityConfig::default().unsupported(), [""; 0]);
    }

    #[test]
    fn a_bad_value_is_named_with_its_key() {
        for (key, value) in [
            ("metrics-protocol", "carrier-pigeon"),
            ("metrics-endpoint", "nowhere"),
            ("metrics-export-interval", "soon"),
            ("tracing-protocol", "zipkin"),
            ("tracing-sampling-rate", "2"),
            ("tracing-sampling-rate", "half"),
            ("runtime-profiling", "yes"),
        ] {
            let error = parse(&[(key, value)]).unwrap_err();
            assert!(error.starts_with(&format!("{key}: {value:?} is ")), "{error}");
        }
        assert!(
            parse(&[("metrics-protocol", "grpc")])
                .unwrap_err()
                .starts_with("metrics-endpoint: \"\" is needed")
        );
    }
}
