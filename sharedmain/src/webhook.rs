//! The webhook of a process.

use std::{collections::BTreeMap, fmt::Display};

use reknit_injection::Context;
use reknit_leadership::LeaderElectionConfig;
use reknit_reconciler::{Error, Result};
use reknit_webhook::{
    Webhook,
    internal::{
        self, Health, Identity, ServiceNames, end_within, require_client_certificate, validate_config,
    },
};

use crate::{
    cli::{environment::WebhookSettings, listen_address::ListenAddress, main::Main},
    config::{logging::LoggingConfig, maps::ConfigMapNames, observability::ObservabilityConfig},
    health::{checks::WebhookChecks, probes::Check},
    process::{
        constructors::WebhookParts,
        task::{ShutdownTimeout, Task},
    },
};

impl Main {
    /// Adds the webhook: its server, and a controller named `webhook` that renews its certificate and registers it with
    /// the API server. It runs beside the controllers, or alone in its own process. A process has one webhook at most.
    /// For the objects that must exist, see [the configurations](reknit_webhook#configurations).
    ///
    /// The webhook refuses invalid values in `config-logging`, `config-observability`, `config-leader-election`, and
    /// the ConfigMaps of [`Webhook::config_validation`].
    ///
    /// `ENABLE_WEBHOOKS=false` or `--disable-controllers webhook` runs the process without its webhook, and does not
    /// call the constructor.
    ///
    /// ```no_run
    /// # use reknit_apis::{FieldError, Request, Validatable, kind};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
    /// # #[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced)]
    /// # struct LampSpec {}
    /// # kind!(Lamp {});
    /// # impl Validatable for Lamp { fn validate(&self, _: &Request) -> FieldError { FieldError::none() } }
    /// use std::process::ExitCode;
    ///
    /// use reknit_sharedmain::Main;
    /// use reknit_webhook::Webhook;
    ///
    /// fn main() -> ExitCode {
    ///     let lamps = |_: &_| Ok(Webhook::new("demo.reknit.dev").defaulting::<Lamp>().validation::<Lamp>());
    ///     Main::new("webhook").webhook(lamps).run()
    /// }
    /// ```
    pub fn webhook(mut self, constructor: impl FnOnce(&Context) -> Result<Webhook> + 'static) -> Self {
        // The controller of the certificate has its own Context, so that it does not wait for the informers of the
        // webhook's code: their CustomResourceDefinitions may be missing.
        let assemble = move |cx: &Context| {
            let webhook = internal::await_informers(constructor(cx)?, cx);
            assemble(&cx.scoped(), webhook)
        };
        self.constructors.webhooks.push(Box::new(assemble));
        self
    }
}

/// Assembles the parts of the webhook, which also refuses ConfigMaps that the process itself could not parse.
fn assemble(cx: &Context, webhook: Webhook) -> Result<WebhookParts> {
    let settings: WebhookSettings = cx.provided().unwrap_or_default();
    let default_names = ServiceNames::default();
    let service_names = ServiceNames {
        service: settings.service.unwrap_or(default_names.service),
        secret: settings.secret.unwrap_or(default_names.secret),
        configurations: settings.configurations,
        owned_by_namespace: settings.owned_by_namespace,
    };
    let names: ConfigMapNames = cx.provided().unwrap_or_default();
    let webhook = validate_config(webhook, &names.logging, |data| error_text(LoggingConfig::parse(data)));
    let webhook =
        validate_config(webhook, &names.observability, |data| error_text(ObservabilityConfig::parse(data)));
    let webhook = validate_config(webhook, &names.leader_election, check_leader_election);
    let webhook = match settings.client_ca_file {
        Some(file) => require_client_certificate(webhook, file, settings.client_names),
        None => webhook,
    };
    let webhook = match cx.provided() {
        Ok(ShutdownTimeout(timeout)) => end_within(webhook, timeout),
        Err(_) => webhook,
    };
    let listener = ListenAddress::with_port(settings.port).listen(cx, "the webhook");
    let listener = async {
        listener.await.map_err(|error| Error::from(format!("{error}; WEBHOOK_PORT chooses another port")))
    };
    let identity = Identity::default();
    let checks = checks(internal::health(&webhook), identity.clone());
    let (controller, server) = internal::assemble(webhook, cx, &service_names, identity, listener)?;
    let server = Task::new("webhook", server);
    Ok(WebhookParts { controller, server, checks })
}

/// Checks that the webhook has a certificate to serve, and for a function that has not returned for too long.
pub(crate) fn checks(health: Health, identity: Identity) -> WebhookChecks {
    let has_no_certificate = move || {
        let problem = (!identity.is_set()).then(|| "there is no certificate to serve yet".to_owned());
        Check::new("webhook", problem.into_iter().collect())
    };
    let is_stuck = move || {
        let stuck = health.stuck_for().map(|age| {
            format!("a defaulting or validation function has been running for {}s", age.as_secs())
        });
        Check::new("webhook", stuck.into_iter().collect())
    };
    WebhookChecks { readiness: Box::new(has_no_certificate), health: Box::new(is_stuck) }
}

/// Parses the ConfigMap, and checks the relations between its durations, as electors do when they start.
fn check_leader_election(data: &BTreeMap<String, String>) -> Result<(), String> {
    error_text(LeaderElectionConfig::from_data(data).and_then(|config| config.check_times()))
}

fn error_text<T>(result: Result<T, impl Display>) -> Result<(), String> {
    result.map(drop).map_err(|error| error.to_string())
}
