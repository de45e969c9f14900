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
        constructors::{WebhookContexts, WebhookParts, WebhookWrites},
        task::{ShutdownTimeout, Task},
    },
};

impl Main {
    /// Adds the webhook, which has two parts: its server, and a controller named `webhook` that renews its certificate and
    /// registers it with the API server. They run beside the other controllers. A program has one webhook at most. For the
    /// objects that must exist, see [the configurations](reknit_webhook#configurations).
    ///
    /// In a cluster, run the server as a service account of its own, since it parses what anybody sends and needs no right
    /// to write: `--only=webhook` runs the server, as the component `webhook`, and `--only=controllers` all the rest. The two
    /// processes have only the Secret of the certificate in common, which the controller writes and the server watches.
    /// [`rbac`](Self::rbac) generates the rights of both accounts.
    ///
    /// The constructor has the flags and values of the program, but no values that constructors of controllers provide.
    /// With `--only=controllers` it is called for what it declares, and its informers do not start.
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
    ///     Main::new("lamps").webhook(lamps).run()
    /// }
    /// ```
    pub fn webhook(mut self, constructor: impl FnOnce(&Context) -> Result<Webhook> + 'static) -> Self {
        let construct = move |cx: WebhookContexts<'_>| {
            let webhook = constructor(cx.code)?;
            assemble(&cx, internal::await_informers(webhook, cx.code))
        };
        self.constructors.webhooks.push(Box::new(construct));
        self
    }
}

/// Constructs the parts that run. The controller of the certificate and the server have Contexts of their own, so that
/// they do not wait for the informers of the webhook's code: their CustomResourceDefinitions may be missing.
fn assemble(cx: &WebhookContexts<'_>, webhook: Webhook) -> Result<WebhookParts> {
    let settings = |cx: &Context| cx.provided::<WebhookSettings>().unwrap_or_default();
    let webhook = validate_own_config_maps(cx.server.unwrap_or(cx.code), webhook);
    let controller =
        |cx: &Context| internal::certificate_controller(&webhook, &cx.scoped(), &service_names(settings(cx)));
    let controller = cx.controller.map(controller).transpose()?;
    let writes =
        WebhookWrites { secret: ServiceNames::default().secret, entries: internal::entries(&webhook) };
    let server = cx.server.map(|cx| server(&cx.scoped(), webhook, settings(cx))).transpose()?;
    Ok(WebhookParts { writes, controller, server })
}

fn service_names(settings: WebhookSettings) -> ServiceNames {
    let default_names = ServiceNames::default();
    ServiceNames {
        service: settings.service.unwrap_or(default_names.service),
        secret: settings.secret.unwrap_or(default_names.secret),
        configurations: settings.configurations,
        owned_by_namespace: settings.owned_by_namespace,
    }
}

/// Refuses changes of the ConfigMaps of the process that it could not parse.
fn validate_own_config_maps(cx: &Context, webhook: Webhook) -> Webhook {
    let names: ConfigMapNames = cx.provided().unwrap_or_default();
    let webhook = validate_config(webhook, &names.logging, |data| error_text(LoggingConfig::parse(data)));
    let webhook =
        validate_config(webhook, &names.observability, |data| error_text(ObservabilityConfig::parse(data)));
    validate_config(webhook, &names.leader_election, check_leader_election)
}

/// Constructs the server with its health checks.
fn server(cx: &Context, webhook: Webhook, settings: WebhookSettings) -> Result<(Task, WebhookChecks)> {
    let webhook = match &settings.client_ca_file {
        Some(file) => require_client_certificate(webhook, file.clone(), settings.client_names.clone()),
        None => webhook,
    };
    let webhook = match cx.provided() {
        Ok(ShutdownTimeout(timeout)) => end_within(webhook, timeout),
        Err(_) => webhook,
    };
    let listener = ListenAddress::with_port(settings.port).listen(cx, "the webhook");
    let listener = async {
        listener.await.map_err(|error| {
            Error::from(format!("{error}; --webhook-port or WEBHOOK_PORT chooses another port"))
        })
    };
    let identity = Identity::default();
    let checks = checks(internal::health(&webhook), identity.clone());
    let server = internal::server(webhook, cx, &service_names(settings), identity, listener)?;
    Ok((Task::new("webhook", server), checks))
}

/// Checks that the webhook has a certificate to serve, and for a function that has not returned for too long.
pub(crate) fn checks(health: Health, identity: Identity) -> WebhookChecks {
    let has_no_certificate = move || {
        let problem = (!identity.is_set()).then(|| {
            "there is no certificate to serve yet: the controllers write it, and their log says why if they cannot".into()
        });
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
