//! The environment variables of a process, checked once at its start.
use std::{collections::BTreeMap, net::IpAddr, num::NonZero, path::PathBuf, str::FromStr};

use reknit_apis::{dns_label, dns_subdomain};
use semver::Version;
use tracing_subscriber::EnvFilter;

use crate::{
    client::kube_version,
    config::maps::ConfigMapNames,
    process::{failure::Failure, listen},
};

/// The variables that Knative's processes read. An empty variable counts as unset, and spaces around a value do not
/// count.
#[derive(Debug, Clone)]
pub(crate) struct Environment {
    /// `SYSTEM_NAMESPACE`, the namespace of leases and ConfigMaps.
    pub(crate) system_namespace: Option<String>,
    /// `POD_NAME`, or else `HOSTNAME`.
    pub(crate) pod: Option<String>,
    /// The uid of the Pod, which owns the lease by which this process announces itself.
    pub(crate) pod_uid: Option<String>,
    /// `TERMINATION_MESSAGE_PATH`, the `terminationMessagePath` of the container, `/dev/termination-log` by default.
    pub(crate) termination_message_path: PathBuf,
    /// `LEADERELECTION_COMPONENT`, the first part of the names of leases. The default is the name of the program.
    pub(crate) lease_component: Option<String>,
    /// `K_THREADS_PER_CONTROLLER`, which overrides `.workers(n)` of every controller.
    pub(crate) workers: Option<usize>,
    /// `KNATIVE_HEALTH_PROBES_PORT`, 8080 by default.
    pub(crate) probes_port: u16,
    /// `METRICS_PROMETHEUS_PORT`, which overrides the ConfigMap.
    pub(crate) metrics_port: Option<u16>,
    /// `METRICS_PROMETHEUS_HOST`, which overrides the ConfigMap and `--bind-address`.
    pub(crate) metrics_host: Option<IpAddr>,
    /// `PROFILING_PORT`, 8008 by default.
    pub(crate) profiling_port: u16,
    /// `WEBHOOK_PORT`, `WEBHOOK_NAME`, `WEBHOOK_SECRET_NAME`, `WEBHOOK_CONFIGURATION_<STEP>`,
    /// `WEBHOOK_OWNED_BY_NAMESPACE` and `ENABLE_WEBHOOKS`.
    pub(crate) webhook: WebhookSettings,
    /// `KUBERNETES_MIN_VERSION`, Knative's minimum by default.
    pub(crate) min_version: Version,
    /// `RUST_LOG`, a valid filter, which overrides config-logging.
    pub(crate) rust_log: Option<String>,
    /// `CONFIG_LOGGING_NAME`, `CONFIG_OBSERVABILITY_NAME` and `CONFIG_LEADERELECTION_NAME`.
    pub(crate) config_maps: ConfigMapNames,
}

/// The settings of the webhook. The default port is Knative's. The variable that disables the webhook is kubebuilder's.
#[derive(Debug, Clone)]
#[cfg_attr(not(feature = "webhook"), expect(dead_code, reason = "most fields are read by the webhook only"))]
pub(crate) struct WebhookSettings {
    /// The name of the Service, or the webhook's default.
    pub(crate) service: Option<String>,
    /// The name of the Secret of the certificate, or the webhook's default.
    pub(crate) secret: Option<String>,
    /// The names of webhook configurations, by the step that they call.
    pub(crate) configurations: BTreeMap<String, String>,
    /// True if the system namespace owns the webhook configurations.
    pub(crate) owned_by_namespace: bool,
    pub(crate) port: u16,
    /// The certificates of the authority that issues the client certificate of the API server, if clients need one.
    pub(crate) client_ca_file: Option<PathBuf>,
    /// The accepted common names of client certificates, or none if all are.
    pub(crate) client_names: Vec<String>,
    /// False if the process runs without its webhook.
    pub(crate) enabled: bool,
}

impl Default for WebhookSettings {
    fn default() -> Self {
        Self {
            service: None,
            secret: None,
            configurations: BTreeMap::new(),
            owned_by_namespace: true,
            port: 8443,
            client_ca_file: None,
            client_names: Vec::new(),
            enabled: true,
        }
    }
}

type Variables = BTreeMap<String, String>;

/// Reads the names of webhook configurations: `WEBHOOK_CONFIGURATION_DEFAULTING` has that of the step `defaulting`.
fn configuration_names(vars: &Variables) -> BTreeMap<String, String> {
    let names =
        vars.iter().map(|(variable, name)| (variable, name.trim())).filter(|(_, name)| !name.is_empty());
    let names =
        names.filter_map(|(variable, name)| Some((variable.strip_prefix("WEBHOOK_CONFIGURATION_")?, name)));
    names.map(|(step, name)| (step.to_lowercase().replace('_', "-"), name.to_owned())).collect()
}

impl Environment {
    /// Reads the variables of this process.
    pub(crate) fn read() -> Result<Self, Failure> {
        // Variables whose name or value is not UTF-8 are ignored.
        let vars = std::env::vars_os();
        Self::from_vars(
            &vars.filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect(),
        )
    }

    fn from_vars(vars: &Variables) -> Result<Self, Failure> {
        let get = |name: &str| value_of(vars, name).map(str::to_owned);
        let get_or = |name, default: String| get(name).unwrap_or(default);
        let object = |name| {
            let is_valid = |text: &str| dns_subdomain(text).is_empty();
            parse_with(vars, name, "the name of an object", |text| is_valid(text).then(|| text.to_owned()))
        };
        let object_or = |name, default: String| Ok::<_, Failure>(object(name)?.unwrap_or(default));
        let port = |name| parse_port(vars, name);
        let workers = parse(vars, "K_THREADS_PER_CONTROLLER", "a whole number from 1")?;
        let (default_names, default_webhook) = (ConfigMapNames::default(), WebhookSettings::default());
        Ok(Self {
            system_namespace: parse_with(vars, "SYSTEM_NAMESPACE", "the name of a namespace", |text| {
                dns_label(text).is_empty().then(|| text.to_owned())
            })?,
            pod: get("POD_NAME").or_else(|| get("HOSTNAME")),
            pod_uid: get("POD_UID"),
            termination_message_path: get_or("TERMINATION_MESSAGE_PATH", "/dev/termination-log".into())
                .into(),
            lease_component: get("LEADERELECTION_COMPONENT"),
            workers: workers.map(NonZero::get),
            probes_port: port("KNATIVE_HEALTH_PROBES_PORT")?.unwrap_or(8080),
            metrics_port: port("METRICS_PROMETHEUS_PORT")?,
            metrics_host: parse_with(
                vars,
                "METRICS_PROMETHEUS_HOST",
                "an IP address or localhost",
                listen::parse_host,
            )?,
            profiling_port: port("PROFILING_PORT")?.unwrap_or(8008),
            webhook: WebhookSettings {
                service: object("WEBHOOK_NAME")?,
                secret: object("WEBHOOK_SECRET_NAME")?,
                configurations: configuration_names(vars),
                owned_by_namespace: parse(vars, "WEBHOOK_OWNED_BY_NAMESPACE", "true or false")?
                    .unwrap_or(default_webhook.owned_by_namespace),
                port: port("WEBHOOK_PORT")?.unwrap_or(default_webhook.port),
                client_ca_file: get("WEBHOOK_CLIENT_CA_FILE").map(PathBuf::from),
                client_names: get("WEBHOOK_CLIENT_NAMES")
                    .map(|names| names.split(',').map(|name| name.trim().to_owned()).collect())
                    .unwrap_or_default(),
                enabled: parse(vars, "ENABLE_WEBHOOKS", "true or false")?.unwrap_or(default_webhook.enabled),
            },
            min_version: parse_with(
                vars,
                "KUBERNETES_MIN_VERSION",
                "a version such as v1.33.0",
                kube_version::parse,
            )?
            .unwrap_or(kube_version::MINIMUM),
            rust_log: parse_with(
                vars,
                "RUST_LOG",
                "a level or a list such as info,my_crate=debug",
                |text| EnvFilter::try_new(text).ok().map(|_| text.to_owned()),
            )?,
            config_maps: ConfigMapNames {
                logging: object_or("CONFIG_LOGGING_NAME", default_names.logging)?,
                observability: object_or("CONFIG_OBSERVABILITY_NAME", default_names.observability)?,
                leader_election: object_or("CONFIG_LEADERELECTION_NAME", default_names.leader_election)?,
            },
        })
    }

    /// Returns the namespace of the leases.
    pub(crate) fn lease_namespace(&self) -> Result<&str, Failure> {
        self.system_namespace.as_deref().ok_or_else(|| {
            Failure::new(
                "the environment variable \"SYSTEM_NAMESPACE\" is not set: leader election needs the namespace of its \
                 leases: set the variable in a pod from the field metadata.namespace, or pass --disable-ha to run \
                 without leader election",
            )
        })
    }
}

/// Parses the port in a variable. A link to a Service counts as unset: unless `enableServiceLinks` is off, the kubelet
/// sets `WEBHOOK_PORT=tcp://10.96.0.7:443` for a Service named `webhook`.
fn parse_port(vars: &Variables, name: &str) -> Result<Option<u16>, Failure> {
    let is_link =
        |value: &String| ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    if vars.get(name).is_some_and(is_link) {
        return Ok(None);
    }
    parse(vars, name, "a port number, 0 to 65535, where 0 picks a free one")
}

fn parse<T: FromStr>(vars: &Variables, name: &str, expected: &str) -> Result<Option<T>, Failure> {
    parse_with(vars, name, expected, |text| text.parse().ok())
}

/// Parses a variable. Returns `None` if it is unset. An error contains its name, its value, and what was `expected`.
fn parse_with<T>(
    vars: &Variables,
    name: &str,
    expected: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, Failure> {
    let Some(value) = value_of(vars, name) else { return Ok(None) };
    let invalid = || Failure::new(format!("{name}={value:?} in the environment is not {expected}"));
    parse(value).map(Some).ok_or_else(invalid)
}

/// The value of a variable without the spaces around it. `None` if it is unset or empty.
fn value_of<'a>(vars: &'a Variables, name: &str) -> Option<&'a str> {
    vars.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> Result<Environment, Failure> {
        Environment::from_vars(&vars.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect())
    }

    #[test]
    fn an_empty_environment_has_the_defaults() {
        let environment = read(&[("SYSTEM_NAMESPACE", "")]).unwrap();
        assert_eq!(environment.system_namespace, None);
        assert_eq!(environment.workers, None);
        assert_eq!((environment.probes_port, environment.metrics_port), (8080, None));
        assert_eq!(environment.profiling_port, 8008);
        assert!(environment.webhook.enabled);
        assert_eq!(environment.config_maps.leader_election, "config-leader-election");
    }

    #[test]
    fn the_pod_name_overrides_the_host_name() {
        let both = read(&[("POD_NAME", "p"), ("HOSTNAME", "h")]).unwrap();
        assert_eq!(both.pod.as_deref(), Some("p"));
        assert_eq!(read(&[("HOSTNAME", "h")]).unwrap().pod.as_deref(), Some("h"));
    }

    #[test]
    fn the_error_of_an_invalid_value_has_the_variable_and_the_value() {
        for (name, value) in [
            ("K_THREADS_PER_CONTROLLER", "abc"),
            ("K_THREADS_PER_CONTROLLER", "0"),
            ("K_THREADS_PER_CONTROLLER", "-1"),
            ("KNATIVE_HEALTH_PROBES_PORT", "65536"),
            ("METRICS_PROMETHEUS_PORT", "http"),
            ("METRICS_PROMETHEUS_HOST", "metrics.example.com"),
            ("PROFILING_PORT", "80080"),
            ("WEBHOOK_PORT", "https"),
            ("ENABLE_WEBHOOKS", "no"),
            ("KUBERNETES_MIN_VERSION", "new"),
            ("RUST_LOG", "my_crate=loud"),
            ("SYSTEM_NAMESPACE", "no such"),
            ("WEBHOOK_SECRET_NAME", "certs/x"),
            ("CONFIG_LOGGING_NAME", "Config"),
        ] {
            let failure = read(&[(name, value)]).unwrap_err().to_string();
            assert!(
                failure.starts_with(&format!("{name}={value:?} in the environment is not ")),
                "{failure}"
            );
        }
    }

    #[test]
    fn spaces_around_a_value_do_not_count() {
        let environment =
            read(&[("SYSTEM_NAMESPACE", "shop\n"), ("POD_NAME", " p "), ("CONFIG_LOGGING_NAME", " ")])
                .unwrap();
        assert_eq!(environment.system_namespace.as_deref(), Some("shop"));
        assert_eq!(environment.pod.as_deref(), Some("p"));
        assert_eq!(environment.config_maps.logging, "config-logging");
    }

    #[test]
    fn service_links_of_the_kubelet_are_ignored() {
        let environment = read(&[
            ("WEBHOOK_PORT", "tcp://10.96.0.7:443"),
            ("PROFILING_PORT", "tcp://[fd00::7]:80"),
            ("METRICS_PROMETHEUS_PORT", "udp://10.96.0.8:53"),
        ])
        .unwrap();
        assert_eq!((environment.webhook.port, environment.metrics_port), (8443, None));
        assert_eq!(environment.profiling_port, 8008);
    }

    #[test]
    fn the_error_of_a_missing_system_namespace_names_the_variable_and_the_flag() {
        let failure = read(&[]).unwrap().lease_namespace().unwrap_err().to_string();
        assert!(failure.contains("SYSTEM_NAMESPACE") && failure.contains("--disable-ha"), "{failure}");
    }
}
