//! The webhook of a process.
use std::{collections::BTreeMap, fmt::Display};

use reknit_injection::Context;
use reknit_reconciler::{Controller, Error, Result, leader::LeaderElectionConfig};
use reknit_webhook::{Health, ServiceNames, Webhook};

use crate::{
    cli::ListenAddress,
    config::{logging::LoggingConfig, maps::ConfigMapNames, observability::ObservabilityConfig},
    process::Task,
};

/// The settings of the webhook, read from the environment. The default port is Knative's. The variable that disables
/// the webhook is kubebuilder's.
#[derive(Debug, Clone)]
pub(crate) struct WebhookSettings {
    pub(crate) names: ServiceNames,
    pub(crate) port: u16,
    /// False if the process runs without its webhook.
    pub(crate) enabled: bool,
}

impl Default for WebhookSettings {
    fn default() -> Self {
        Self { names: ServiceNames::default(), port: 8443, enabled: true }
    }
}

/// Assembles the server, its health, and the controller that renews its certificate. The webhook also
/// refuses ConfigMaps that the process itself could not parse.
pub(crate) fn assemble(cx: &Context, webhook: Webhook) -> Result<(Controller, Task, Health)> {
    let settings: WebhookSettings = cx.provided().unwrap_or_default();
    let names: ConfigMapNames = cx.provided().unwrap_or_default();
    let webhook = webhook
        .config_parser(&names.logging, |data| error_text(LoggingConfig::parse(data)))
        .config_parser(&names.observability, |data| error_text(ObservabilityConfig::parse(data)))
        .config_parser(&names.leader_election, check_leader_election);
    let listener = ListenAddress::with_port(settings.port).listen(cx, "the webhook");
    let listener = async {
        listener.await.map_err(|error| Error::from(format!("{error}; WEBHOOK_PORT chooses another port")))
    };
    let health = webhook.health();
    let (controller, server) = webhook.assemble(cx, &settings.names, listener)?;
    Ok((controller, Task::new("webhook", server), health))
}

/// Parses the ConfigMap, and checks the relations between its durations, as electors do when they start.
fn check_leader_election(data: &BTreeMap<String, String>) -> Result<(), String> {
    error_text(LeaderElectionConfig::from_data(data).and_then(|config| config.check_times()))
}

fn error_text<T>(result: Result<T, impl Display>) -> Result<(), String> {
    result.map(drop).map_err(|error| error.to_string())
}
