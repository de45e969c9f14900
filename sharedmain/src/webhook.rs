//! The webhook of a process.
use std::{collections::BTreeMap, fmt::Display};

use reknit_injection::Context;
use reknit_reconciler::{Controller, Error, Result, leader::LeaderElectionConfig};
use reknit_webhook::{Health, Place, Webhook};

use crate::{
    cli::ListenAddress,
    config::{logging::LoggingConfig, maps::ConfigMapNames, observability::ObservabilityConfig},
    process::Task,
};

/// The settings of the environment. The default port is Knative's.
#[derive(Debug, Clone)]
pub(crate) struct WebhookSettings {
    pub(crate) place: Place,
    pub(crate) port: u16,
}

impl Default for WebhookSettings {
    fn default() -> Self {
        Self { place: Place::default(), port: 8443 }
    }
}

/// Assembles the controller that renews the certificate, the server, and the health of the server. The webhook also
/// refuses ConfigMaps that the process itself could not read.
pub(crate) fn assemble(cx: &Context, webhook: Webhook) -> Result<(Controller, Task, Health)> {
    let settings: WebhookSettings = cx.provided().unwrap_or_default();
    let names: ConfigMapNames = cx.provided().unwrap_or_default();
    let webhook = webhook
        .config_parser(&names.logging, |data| text(LoggingConfig::parse(data)))
        .config_parser(&names.observability, |data| text(ObservabilityConfig::parse(data)))
        .config_parser(&names.leader_election, leader_election);
    let listener = ListenAddress::any(settings.port).listen(cx, "the webhook");
    let listener = async {
        listener.await.map_err(|error| Error::from(format!("{error}; WEBHOOK_PORT chooses another port")))
    };
    let health = webhook.health();
    let (controller, server) = webhook.assemble(cx, &settings.place, listener)?;
    Ok((controller, Task::new("webhook", server), health))
}

/// Also checks the relations between the durations, as electors do when they start.
fn leader_election(data: &BTreeMap<String, String>) -> Result<(), String> {
    text(LeaderElectionConfig::from_data(data).and_then(|config| config.check_times()))
}

fn text<T>(parsed: Result<T, impl Display>) -> Result<(), String> {
    parsed.map(drop).map_err(|error| error.to_string())
}
