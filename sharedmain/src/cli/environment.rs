//! The environment variables that a process reads, checked once at its start.
use std::{collections::BTreeMap, fmt::Display, net::IpAddr, str::FromStr};

use tracing_subscriber::EnvFilter;

use crate::{client::kube_version::Version, process::failure::Failure, process::listen};

/// What Knative's processes read from their environment. A variable that is set but empty counts as unset.
#[derive(Debug, Clone)]
pub(crate) struct Environment {
    /// `SYSTEM_NAMESPACE`: where leases and ConfigMaps live.
    pub(crate) system_namespace: Option<String>,
    /// `POD_NAME`, else `HOSTNAME`.
    pub(crate) pod: Option<String>,
    /// `K_THREADS_PER_CONTROLLER`: overrides `.workers(n)` of every controller.
    pub(crate) workers: Option<usize>,
    /// `KNATIVE_HEALTH_PROBES_PORT`, else 8080.
    pub(crate) probes_port: u16,
    /// `METRICS_PROMETHEUS_PORT`: wins over the ConfigMap.
    pub(crate) metrics_port: Option<u16>,
    /// `METRICS_PROMETHEUS_HOST`: wins over the ConfigMap and `--bind-address`.
    pub(crate) metrics_host: Option<IpAddr>,
    /// `PROFILING_PORT`, else 8008.
    pub(crate) profiling_port: u16,
    /// `WEBHOOK_PORT`.
    pub(crate) webhook_port: Option<u16>,
    /// `WEBHOOK_NAME`: the Service of the webhook.
    pub(crate) webhook_name: Option<String>,
    /// `WEBHOOK_SECRET_NAME`.
    pub(crate) webhook_secret: Option<String>,
    /// `KUBERNETES_MIN_VERSION`, else what Knative asks for.
    pub(crate) min_version: Version,
    /// `RUST_LOG`, well-formed: wins over what config-logging says.
    pub(crate) rust_log: Option<String>,
    /// `CONFIG_LOGGING_NAME`, else `config-logging`.
    pub(crate) config_logging: String,
    /// `CONFIG_OBSERVABILITY_NAME`, else `config-observability`.
    pub(crate) config_observability: String,
    /// `CONFIG_LEADERELECTION_NAME`, else `config-leader-election`.
    pub(crate) config_leader_election: String,
}

impl Environment {
    /// Reads the process's own variables.
    pub(crate) fn read() -> Result<Self, Failure> {
        Self::from_vars(&std::env::vars_os().filter_map(utf8).collect())
    }

    fn from_vars(vars: &BTreeMap<String, String>) -> Result<Self, Failure> {
        let text = |name: &str| vars.get(name).filter(|value| !value.is_empty()).cloned();
        let port = |name| port(vars, name);
        let workers = parsed(vars, "K_THREADS_PER_CONTROLLER", "a whole number from 1")?;
        if workers == Some(0) {
            return Err(bad("K_THREADS_PER_CONTROLLER", "0", "a whole number from 1"));
        }
        let min_version = parsed(vars, "KUBERNETES_MIN_VERSION", "a version such as v1.33.0")?;
        Ok(Self {
            system_namespace: text("SYSTEM_NAMESPACE"),
            pod: text("POD_NAME").or_else(|| text("HOSTNAME")),
            workers,
            probes_port: port("KNATIVE_HEALTH_PROBES_PORT")?.unwrap_or(8080),
            metrics_port: port("METRICS_PROMETHEUS_PORT")?,
            metrics_host: host(text("METRICS_PROMETHEUS_HOST"))?,
            profiling_port: port("PROFILING_PORT")?.unwrap_or(8008),
            webhook_port: port("WEBHOOK_PORT")?,
            webhook_name: text("WEBHOOK_NAME"),
            webhook_secret: text("WEBHOOK_SECRET_NAME"),
            min_version: min_version.unwrap_or_else(Version::minimum),
            rust_log: directives(text("RUST_LOG"))?,
            config_logging: text("CONFIG_LOGGING_NAME").unwrap_or_else(|| "config-logging".into()),
            config_observability: text("CONFIG_OBSERVABILITY_NAME")
                .unwrap_or_else(|| "config-observability".into()),
            config_leader_election: text("CONFIG_LEADERELECTION_NAME")
                .unwrap_or_else(|| "config-leader-election".into()),
        })
    }

    /// The namespace that leader election needs.
    pub(crate) fn namespace_for_leases(&self) -> Result<&str, Failure> {
        self.system_namespace.as_deref().ok_or_else(|| {
            Failure::new(
                "SYSTEM_NAMESPACE is not set, and leader election keeps its leases there: set it to the \
                 namespace this process belongs to (in a pod, from the field metadata.namespace), or pass \
                 --disable-ha to run without leader election",
            )
        })
    }
}

fn host(text: Option<String>) -> Result<Option<IpAddr>, Failure> {
    let Some(text) = text else { return Ok(None) };
    match listen::resolve(&text) {
        Some(ip) => Ok(Some(ip)),
        None => Err(bad("METRICS_PROMETHEUS_HOST", &text, "an IP address or localhost")),
    }
}

fn directives(text: Option<String>) -> Result<Option<String>, Failure> {
    let Some(text) = text else { return Ok(None) };
    match EnvFilter::try_new(&text) {
        Ok(_) => Ok(Some(text)),
        Err(_) => Err(bad("RUST_LOG", &text, "a level or a list such as info,my_crate=debug")),
    }
}

/// The kubelet tells a pod of each Service of its namespace, unless `enableServiceLinks` is off: of one named `webhook` as
/// `WEBHOOK_PORT=tcp://10.96.0.7:443`. That says nothing of what to listen on.
fn port(vars: &BTreeMap<String, String>, name: &str) -> Result<Option<u16>, Failure> {
    let is_link =
        |value: &String| ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    if vars.get(name).is_some_and(is_link) {
        return Ok(None);
    }
    parsed(vars, name, "a port number, 0 to 65535, where 0 picks a free one")
}

/// A variable whose value is no UTF-8 cannot be one of ours.
fn utf8((name, value): (std::ffi::OsString, std::ffi::OsString)) -> Option<(String, String)> {
    Some((name.into_string().ok()?, value.into_string().ok()?))
}

fn parsed<T: FromStr>(
    vars: &BTreeMap<String, String>,
    name: &str,
    expected: &str,
) -> Result<Option<T>, Failure> {
    let Some(value) = vars.get(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    value.trim().parse().map(Some).map_err(|_| bad(name, value, expected))
}

fn bad(name: &str, value: &str, expected: impl Display) -> Failure {
    Failure::new(format!("{name}={value:?} in the environment is not {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> Result<Environment, Failure> {
        Environment::from_vars(&vars.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect())
    }

    #[test]
    fn an_empty_environment_holds_the_defaults() {
        let environment = read(&[("SYSTEM_NAMESPACE", "")]).unwrap();
        assert_eq!(environment.system_namespace, None);
        assert_eq!(environment.workers, None);
        assert_eq!((environment.probes_port, environment.metrics_port), (8080, None));
        assert_eq!(environment.profiling_port, 8008);
        assert_eq!(environment.config_leader_election, "config-leader-election");
    }

    #[test]
    fn the_pod_name_wins_over_the_host_name() {
        let both = read(&[("POD_NAME", "p"), ("HOSTNAME", "h")]).unwrap();
        assert_eq!(both.pod.as_deref(), Some("p"));
        assert_eq!(read(&[("HOSTNAME", "h")]).unwrap().pod.as_deref(), Some("h"));
    }

    #[test]
    fn a_bad_value_names_the_variable_the_value_and_what_is_expected() {
        for (name, value) in [
            ("K_THREADS_PER_CONTROLLER", "abc"),
            ("K_THREADS_PER_CONTROLLER", "0"),
            ("K_THREADS_PER_CONTROLLER", "-1"),
            ("KNATIVE_HEALTH_PROBES_PORT", "65536"),
            ("METRICS_PROMETHEUS_PORT", "http"),
            ("METRICS_PROMETHEUS_HOST", "metrics.example.com"),
            ("PROFILING_PORT", "80080"),
            ("WEBHOOK_PORT", "https"),
            ("KUBERNETES_MIN_VERSION", "new"),
            ("RUST_LOG", "my_crate=loud"),
        ] {
            let failure = read(&[(name, value)]).unwrap_err().to_string();
            assert!(
                failure.starts_with(&format!("{name}={value:?} in the environment is not ")),
                "{failure}"
            );
        }
    }

    #[test]
    fn what_the_kubelet_says_of_a_service_is_no_setting() {
        let environment = read(&[
            ("WEBHOOK_PORT", "tcp://10.96.0.7:443"),
            ("PROFILING_PORT", "tcp://[fd00::7]:80"),
            ("METRICS_PROMETHEUS_PORT", "udp://10.96.0.8:53"),
        ])
        .unwrap();
        assert_eq!((environment.webhook_port, environment.metrics_port), (None, None));
        assert_eq!(environment.profiling_port, 8008);
    }

    #[test]
    fn without_a_system_namespace_leader_election_says_how_to_go_on() {
        let failure = read(&[]).unwrap().namespace_for_leases().unwrap_err().to_string();
        assert!(failure.contains("SYSTEM_NAMESPACE") && failure.contains("--disable-ha"), "{failure}");
    }
}
