//! The constructors of a process, and the checks that their controllers can run together.
use std::{collections::BTreeMap, io};

use clap::ArgMatches;
use kube::{Client, client::Body};
use reknit_injection::{Context, Effects};
use reknit_reconciler::{Controller, Result};
use serde_json::Value;

use super::{failure::Failure, panics, task::Task};
use crate::{
    cli::{environment::WebhookSettings, flags::Part, namespace::NamespaceFlag},
    health::checks::WebhookChecks,
};

/// The name of the controller that renews the certificate of the webhook, and the component that only serves the webhook.
pub(crate) const WEBHOOK: &str = "webhook";

type Constructor<T> = Box<dyn FnOnce(&Context) -> Result<T>>;
type ConstructWebhook = Box<dyn FnOnce(WebhookContexts<'_>) -> Result<WebhookParts>>;
type ConstructController = Box<dyn Fn(&Context) -> Result<Controller>>;
type Provide = Box<dyn Fn(&Context)>;
type ProvideFlags = fn(&Context, &ArgMatches) -> clap::error::Result<()>;

/// The constructors of a program.
#[derive(Default)]
pub(crate) struct Constructors {
    pub(crate) flags: Vec<ProvideFlags>,
    /// The parsed command line, from which `flags` read their values.
    pub(crate) matches: ArgMatches,
    pub(crate) values: Vec<Provide>,
    pub(crate) controllers: Vec<ConstructController>,
    pub(crate) tasks: Vec<Constructor<Task>>,
    pub(crate) webhooks: Vec<ConstructWebhook>,
    /// The JSON pointers to values that are hidden wherever objects are shown.
    pub(crate) redacted: Vec<String>,
    /// True if the author has declared that a plan may run the controllers.
    pub(crate) is_plannable: bool,
}

/// The Contexts in which the parts of a program are constructed. A part without a Context does not run.
#[derive(Clone, Copy)]
pub(crate) struct PartContexts<'a> {
    any: &'a Context,
    /// The controllers, with that of the webhook's certificate, and the tasks.
    controllers: Option<&'a Context>,
    /// The server of the webhook.
    webhook: Option<&'a Context>,
}

impl<'a> PartContexts<'a> {
    /// All parts in one process, or only one of them.
    pub(crate) fn of(only: Option<Part>, cx: &'a Context) -> Self {
        Self {
            any: cx,
            controllers: (only != Some(Part::Webhook)).then_some(cx),
            webhook: (only != Some(Part::Controllers)).then_some(cx),
        }
    }

    /// All parts, each in a Context of its own.
    pub(crate) fn separate(controllers: &'a Context, webhook: &'a Context) -> Self {
        Self { any: controllers, controllers: Some(controllers), webhook: Some(webhook) }
    }
}

/// The Contexts in which a webhook is constructed.
#[cfg_attr(not(feature = "webhook"), allow(dead_code, reason = "only the webhook reads it"))]
pub(crate) struct WebhookContexts<'a> {
    /// That of the webhook's own code. Without the server it is a scratch Context, which opens no informers.
    pub(crate) code: &'a Context,
    /// That of the controller that renews the certificate, if it runs.
    pub(crate) controller: Option<&'a Context>,
    /// That of the server, if it runs.
    pub(crate) server: Option<&'a Context>,
}

/// The objects that the controller of a webhook's certificate writes.
#[derive(Default)]
pub(crate) struct WebhookWrites {
    /// The default name of the Secret.
    pub(crate) secret: String,
    /// The name, the path and other fields of each entry in webhook configurations.
    pub(crate) entries: Vec<(String, &'static str, Value)>,
}

/// The parts of a webhook: the controller that renews its certificate, and its server with its health checks.
pub(crate) struct WebhookParts {
    pub(crate) writes: WebhookWrites,
    pub(crate) controller: Option<Controller>,
    pub(crate) server: Option<(Task, WebhookChecks)>,
}

/// The results of the constructors. Nothing has started.
pub(crate) struct Constructed {
    pub(crate) controllers: Vec<Controller>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) webhook_checks: Vec<WebhookChecks>,
    /// `None` without a webhook.
    pub(crate) webhook_writes: Option<WebhookWrites>,
}

impl Constructors {
    /// Provides flags and values, which all constructors can use, and then constructs controllers, webhook and tasks,
    /// except the disabled ones.
    pub(crate) fn run(
        mut self,
        parts: PartContexts<'_>,
        disabled: &[String],
    ) -> Result<Constructed, Failure> {
        check_webhooks(&self.webhooks)?;
        for cx in [parts.controllers, parts.webhook].into_iter().flatten() {
            self.provide(cx)?;
        }
        self.remove_disabled(disabled, parts.any)?;
        if !self.webhooks.is_empty() && !is_webhook_enabled(parts.any) {
            self.webhooks.clear();
        }
        if parts.controllers.is_none() && self.webhooks.is_empty() {
            return Err(Failure::usage("--only=webhook: the program has no webhook, or it is disabled"));
        }
        let scratch = self.scratch(parts.any)?;
        let mut controllers = construct_in(parts.controllers, "controller", self.controllers)?;
        let (mut servers, mut webhook_checks, mut webhook_writes) = (Vec::new(), Vec::new(), None);
        let code = parts.webhook.unwrap_or(&scratch);
        let webhooks = self.webhooks.into_iter().map(|construct| {
            let (controller, server) = (parts.controllers, parts.webhook);
            move |code: &Context| construct(WebhookContexts { code, controller, server })
        });
        for WebhookParts { writes, controller, server } in construct_all("webhook", webhooks, code)? {
            controllers.extend(controller);
            let (server, checks): (Option<_>, Option<_>) = server.unzip();
            servers.extend(server);
            webhook_checks.extend(checks);
            webhook_writes = Some(writes);
        }
        check_names(&controllers)?;
        check_settings(&controllers)?;
        check_finalizers(&controllers)?;
        let mut tasks = construct_in(parts.controllers, "task", self.tasks)?;
        tasks.extend(servers);
        Ok(Constructed { controllers, tasks, webhook_checks, webhook_writes })
    }

    /// Returns the constructors of a plan, without tasks and the webhook.
    pub(crate) fn for_plan(mut self, effects: Effects) -> Self {
        self.tasks.clear();
        self.values.push(Box::new(move |cx| {
            cx.provide(effects.clone());
            cx.provide(WebhookSettings { enabled: false, ..WebhookSettings::default() });
        }));
        self
    }

    /// Provides flags and values.
    fn provide(&self, cx: &Context) -> Result<(), Failure> {
        for provide_flags in &self.flags {
            provide_flags(cx, &self.matches)
                .map_err(|e| Failure::usage(e.to_string().trim_start_matches("error: ")))?;
        }
        if let Ok(flag) = cx.provided::<NamespaceFlag>() {
            cx.provide(flag.selection());
        }
        self.values.iter().for_each(|provide| provide(cx));
        Ok(())
    }

    /// Removes the constructors of these controllers. Fails if one of the names is unknown.
    fn remove_disabled(&mut self, disabled: &[String], cx: &Context) -> Result<(), Failure> {
        if disabled.is_empty() {
            return Ok(());
        }
        let mut names = self.names(cx)?;
        let is_disabled = |name: &str| disabled.iter().any(|disabled| disabled == name);
        let mut constructed = names.iter();
        self.controllers.retain(|_| constructed.next().is_none_or(|name| !is_disabled(name)));
        if !self.webhooks.is_empty() {
            names.push(WEBHOOK.into());
        }
        if is_disabled(WEBHOOK) {
            self.webhooks.clear();
        }
        for name in disabled {
            if !names.contains(name) {
                return Err(Failure::usage(format!(
                    "--disable-controllers: there is no controller {name:?}, only: {}",
                    if names.is_empty() { "(none)".into() } else { names.join(", ") }
                )));
            }
            tracing::info!(name, "the controller is disabled");
        }
        Ok(())
    }

    /// Returns the names of the controllers. Constructs them in another Context, so that this process opens no informers
    /// and declares no permissions for them.
    fn names(&self, cx: &Context) -> Result<Vec<String>, Failure> {
        let controllers = construct_all("controller", self.controllers.iter(), &self.scratch(cx)?)?;
        Ok(controllers.iter().map(|controller| controller.name().to_owned()).collect())
    }

    /// Returns a Context with the same flags and values whose informers never start.
    fn scratch(&self, cx: &Context) -> Result<Context, Failure> {
        let scratch = Context::builder(cx.component(), unreachable_client())
            .system_namespace(cx.system_namespace().map(Into::into))
            .preloaded(Vec::new())
            .build();
        self.provide(&scratch)?;
        Ok(scratch)
    }
}

/// A client for constructors, which send no requests.
pub(crate) fn unreachable_client() -> Client {
    let unreachable = tower::service_fn(|_: http::Request<Body>| async {
        Err::<http::Response<Body>, _>(io::Error::from(io::ErrorKind::ConnectionRefused))
    });
    Client::new(unreachable, "default")
}

/// Returns false if `ENABLE_WEBHOOKS=false` disables the webhook.
fn is_webhook_enabled(cx: &Context) -> bool {
    let settings: WebhookSettings = cx.provided().unwrap_or_default();
    if !settings.enabled {
        tracing::info!("the webhook is disabled");
    }
    settings.enabled
}

/// Runs the constructors of a part, which has no Context if it does not run.
fn construct_in<T, C: FnOnce(&Context) -> Result<T>>(
    cx: Option<&Context>,
    what: &str,
    constructors: Vec<C>,
) -> Result<Vec<T>, Failure> {
    cx.map_or(Ok(Vec::new()), |cx| construct_all(what, constructors, cx))
}

/// Runs each constructor with its own Context, so that a controller only waits for the informers of its constructor.
fn construct_all<T, C: FnOnce(&Context) -> Result<T>>(
    what: &str,
    constructors: impl IntoIterator<Item = C, IntoIter: ExactSizeIterator>,
    cx: &Context,
) -> Result<Vec<T>, Failure> {
    let constructors = constructors.into_iter();
    let count = constructors.len();
    let construct = |(constructor, n): (C, usize)| {
        let result = panics::catch_panic(|| constructor(&cx.scoped()).map_err(|e| e.to_string())).flatten();
        result.map_err(|why| Failure::new(format!("failed to construct {what} {n} of {count}: {why}")))
    };
    constructors.zip(1..).map(construct).collect()
}

/// Refuses a second webhook: the environment variables set the name, port and Secret of one webhook only.
fn check_webhooks(webhooks: &[ConstructWebhook]) -> Result<(), Failure> {
    match webhooks.len() {
        0 | 1 => Ok(()),
        count => Err(Failure::new(format!(
            "{count} webhooks in one process: add all Kinds to a single webhook, which takes any number of them"
        ))),
    }
}

fn check_names(controllers: &[Controller]) -> Result<(), Failure> {
    match duplicate(controllers.iter().map(|controller| (controller.name(), controller.name()))) {
        Some((name, ..)) => Err(Failure::new(format!(
            "two controllers are named {name}: give one of them another name by .name(..)"
        ))),
        None => Ok(()),
    }
}

/// Refuses a controller whose settings would make every reconcile fail.
fn check_settings(controllers: &[Controller]) -> Result<(), Failure> {
    controllers.iter().try_for_each(|controller| {
        let failed = |e| Failure::new(format!("the controller {} cannot run: {e}", controller.name()));
        controller.check().map_err(failed)
    })
}

/// Refuses two controllers of a Kind that share a finalizer, or remove the other's as a former one of theirs: each
/// would remove it before the other has finalized the object.
fn check_finalizers(controllers: &[Controller]) -> Result<(), Failure> {
    let finalizers = controllers.iter().flat_map(|controller| {
        let former = controller.former_finalizers().iter().map(String::as_str);
        let names = controller.finalizer().into_iter().chain(former);
        names.map(|name| ((controller.kind(), name), controller.name()))
    });
    match duplicate(finalizers) {
        Some(((_, finalizer), one, other)) => Err(Failure::new(format!(
            "the controllers {one} and {other} share the finalizer {finalizer}: give one of them another by \
             .finalizer(..)"
        ))),
        None => Ok(()),
    }
}

/// Returns the first value that occurs twice, with both of its owners.
fn duplicate<'a, N: Copy + Ord>(values: impl Iterator<Item = (N, &'a str)>) -> Option<(N, &'a str, &'a str)> {
    let mut owners = BTreeMap::new();
    values
        .into_iter()
        .find_map(|(value, owner)| owners.insert(value, owner).map(|first| (value, first, owner)))
}

#[cfg(test)]
mod tests;
