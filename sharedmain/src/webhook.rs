//! The webhook of a process.
use std::collections::BTreeMap;

use reknit_injection::Context;
use reknit_reconciler::{Controller, Error, Result, leader::LeaderElectionConfig};
use reknit_webhook::{Health, Place, Webhook};

use crate::{
    cli::environment::Environment, cli::listen_address::ListenAddress, config::logging::LoggingConfig,
    config::observability::ObservabilityConfig, process::Task,
};

/// As in Knative.
const PORT: u16 = 8443;

/// What the environment says of it.
#[derive(Clone)]
pub(crate) struct Settings {
    place: Place,
    port: u16,
    config_logging: String,
    config_observability: String,
    config_leader_election: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            place: Place::default(),
            port: PORT,
            config_logging: "config-logging".into(),
            config_observability: "config-observability".into(),
            config_leader_election: "config-leader-election".into(),
        }
    }
}

impl Settings {
    pub(crate) fn of(environment: &Environment) -> Self {
        let defaults = Place::default();
        let place = Place {
            service: environment.webhook_name.clone().unwrap_or(defaults.service),
            secret: environment.webhook_secret.clone().unwrap_or(defaults.secret),
        };
        Self {
            place,
            port: environment.webhook_port.unwrap_or(PORT),
            config_logging: environment.config_logging.clone(),
            config_observability: environment.config_observability.clone(),
            config_leader_election: environment.config_leader_election.clone(),
        }
    }
}

/// The controller that keeps its certificate, the server, and how that is doing. It also refuses what the process itself could not read.
pub(crate) fn assemble(cx: &Context, webhook: Webhook) -> Result<(Controller, Task, Health)> {
    let settings: Settings = cx.provided().unwrap_or_default();
    let webhook = webhook
        .config_parser(&settings.config_logging, |data| LoggingConfig::parse(data).map(drop).map_err(text))
        .config_parser(&settings.config_observability, |data| {
            ObservabilityConfig::parse(data).map(drop).map_err(text)
        })
        .config_parser(&settings.config_leader_election, leader_election);
    let listening = ListenAddress::any(settings.port).listen(cx, "the webhook");
    let listening = async {
        listening.await.map_err(|error| Error::from(format!("{error}; WEBHOOK_PORT chooses another port")))
    };
    let health = webhook.health();
    let (controller, server) = webhook.assemble(cx, &settings.place, listening)?;
    Ok((controller, Task::new("webhook", server), health))
}

/// With the question that electors ask where they start.
fn leader_election(data: &BTreeMap<String, String>) -> Result<(), String> {
    LeaderElectionConfig::from_data(data).and_then(|config| config.check_times()).map_err(text)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
