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
    /// The JSON pointers to values that are redacted in recorded passes.
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
mod tests {
    use std::marker::PhantomData;

    use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
    use reknit_apis::Kind;
    use reknit_injection::Informer;
    use reknit_reconciler::{FinalizeKind, Outcome, ReconcileKind};

    use super::*;
    use crate::health::probes::Check;

    /// A reconciler that does nothing.
    struct Idle<K>(PhantomData<fn() -> K>);
    impl<K: Kind<Status = ()>> ReconcileKind for Idle<K> {
        type Kind = K;
        async fn reconcile_kind(&self, _: &K, _: &mut ()) -> Result<Outcome> {
            Ok(Outcome::done())
        }
    }
    impl<K: Kind<Status = ()>> FinalizeKind for Idle<K> {
        async fn finalize_kind(&self, _: &K, _: &mut ()) -> Result<Outcome> {
            Ok(Outcome::done())
        }
    }

    fn context() -> Context {
        Context::preloaded("test", unreachable_client(), vec![])
    }

    fn controller(name: &'static str, finalizer: Option<&'static str>) -> ConstructController {
        controller_of::<ConfigMap>(name, finalizer)
    }

    fn controller_of<K: Kind<Status = ()>>(
        name: &'static str,
        finalizer: Option<&'static str>,
    ) -> ConstructController {
        Box::new(move |cx| {
            let build = Controller::of::<K>(cx).name(name);
            let reconciler = Idle(PhantomData);
            Ok(match finalizer {
                Some(finalizer) => build.finalizer(finalizer).reconciler(reconciler).finalizing().build(),
                None => build.reconciler(reconciler).build(),
            })
        })
    }

    /// Runs the constructors, and returns the names of the controllers.
    fn construct(controllers: Vec<ConstructController>) -> Result<Vec<String>, String> {
        construct_enabled(controllers, &[])
    }

    /// Runs the constructors that are not disabled, and returns the names of the controllers.
    fn construct_enabled(
        controllers: Vec<ConstructController>,
        disabled: &[&str],
    ) -> Result<Vec<String>, String> {
        let constructors = Constructors { controllers, ..Constructors::default() };
        let disabled: Vec<_> = disabled.iter().map(ToString::to_string).collect();
        let constructed = constructors
            .run(PartContexts::of(None, &context()), &disabled)
            .map_err(|failure| failure.to_string())?;
        Ok(constructed.controllers.iter().map(|controller| controller.name().to_owned()).collect())
    }

    #[tokio::test]
    async fn two_controllers_with_the_same_name_are_refused() {
        let failure = construct(vec![controller("a", None), controller("a", None)]).unwrap_err();
        assert_eq!(failure, "two controllers are named a: give one of them another name by .name(..)");
    }

    #[tokio::test]
    async fn two_webhooks_are_refused() {
        let webhook = || -> ConstructWebhook { Box::new(|_| Err("not called".into())) };
        let constructors = Constructors { webhooks: vec![webhook(), webhook()], ..Constructors::default() };
        let failure = constructors.run(PartContexts::of(None, &context()), &[]).err().unwrap();
        assert!(failure.to_string().starts_with("2 webhooks in one process"), "{failure}");
    }

    #[tokio::test]
    async fn two_controllers_of_a_kind_that_share_a_finalizer_are_refused() {
        let sharing = vec![controller("a", Some("x.dev/f")), controller("b", Some("x.dev/f"))];
        let failure = construct(sharing).unwrap_err();
        assert!(failure.starts_with("the controllers a and b share the finalizer x.dev/f"), "{failure}");
        let of_another_kind = controller_of::<Secret>("c", Some("x.dev/f"));
        let separate = vec![controller("a", Some("x.dev/f")), controller("b", None), of_another_kind];
        assert_eq!(construct(separate), Ok(vec!["a".into(), "b".into(), "c".into()]));
    }

    #[tokio::test]
    async fn an_invalid_finalizer_is_refused() {
        let failure = construct(vec![controller("a", Some("unqualified"))]).unwrap_err();
        let expected = "the controller a cannot run: invalid finalizer \"unqualified\": Kubernetes wants";
        assert!(failure.starts_with(expected), "{failure}");
    }

    #[tokio::test]
    async fn disabled_controllers_are_left_out_and_unknown_ones_refused() {
        let three = || vec![controller("a", None), controller("b", None), controller("c", None)];
        assert_eq!(construct_enabled(three(), &["b", "c"]), Ok(vec!["a".into()]));
        let failure = construct_enabled(three(), &["b", "d"]).unwrap_err();
        assert_eq!(failure, "--disable-controllers: there is no controller \"d\", only: a, b, c");
    }

    #[tokio::test]
    async fn a_disabled_controller_opens_no_informer_and_declares_no_permission() {
        let constructors = || Constructors {
            controllers: vec![controller("a", None), controller_of::<Node>("nodes", None)],
            ..Constructors::default()
        };
        for (disabled, expected) in [(vec![], 2), (vec!["nodes".to_owned()], 1)] {
            let cx = context();
            let _constructed = constructors().run(PartContexts::of(None, &cx), &disabled).unwrap();
            assert_eq!(cx.informers().states().len(), expected);
            let permissions = format!("{:?}", cx.permissions().declared());
            assert_eq!(permissions.contains("nodes"), expected == 2, "{permissions}");
        }
    }

    #[tokio::test]
    async fn a_disabled_webhook_is_not_constructed() {
        let with_webhook = || Constructors {
            controllers: vec![controller("a", None)],
            webhooks: vec![Box::new(|_| Err("constructed".into()))],
            ..Constructors::default()
        };
        let names = |constructed: Constructed| {
            constructed.controllers.iter().map(|controller| controller.name().to_owned()).collect::<Vec<_>>()
        };
        let failure = with_webhook().run(PartContexts::of(None, &context()), &[]).err().unwrap();
        assert!(failure.to_string().contains("constructed"), "{failure}");
        assert_eq!(
            names(with_webhook().run(PartContexts::of(None, &context()), &["webhook".into()]).unwrap()),
            ["a"]
        );
        let cx = context();
        cx.provide(WebhookSettings { enabled: false, ..WebhookSettings::default() });
        assert_eq!(names(with_webhook().run(PartContexts::of(None, &cx), &[]).unwrap()), ["a"]);
        assert_eq!(
            construct_enabled(vec![controller("a", None)], &["webhook"]).unwrap_err(),
            "--disable-controllers: there is no controller \"webhook\", only: a"
        );
    }

    #[tokio::test]
    async fn a_controller_only_waits_for_the_informers_of_its_constructor() {
        let reads_nodes: ConstructController = Box::new(|cx| {
            let _nodes: Informer<Node> = cx.get();
            Ok(Controller::of::<ConfigMap>(cx).name("reads-nodes").reconciler(Idle(PhantomData)).build())
        });
        let controllers = vec![reads_nodes, controller("other", None)];
        let constructed = Constructors { controllers, ..Constructors::default() }
            .run(PartContexts::of(None, &context()), &[])
            .unwrap();
        let informers = |controller: &Controller| {
            controller.informers().iter().map(|informer| informer.name().to_owned()).collect::<Vec<_>>()
        };
        let informers: Vec<_> = constructed.controllers.iter().map(informers).collect();
        assert_eq!(informers, [vec!["configmaps", "nodes"], vec!["configmaps"]]);
    }

    #[tokio::test]
    async fn values_are_provided_before_anything_is_constructed() {
        let mut constructors = Constructors::default();
        constructors.tasks.push(Box::new(|cx| Ok(Task::new(&cx.provided::<String>()?, async { Ok(()) }))));
        constructors.values.push(Box::new(|cx| cx.provide("named by a value".to_owned())));
        let constructed = constructors.run(PartContexts::of(None, &context()), &[]).unwrap();
        assert_eq!(constructed.tasks[0].name(), "named by a value");
    }

    /// A program with a controller, a task, and a webhook whose code reads Nodes.
    fn with_all_parts() -> Constructors {
        Constructors {
            controllers: vec![controller("a", None)],
            tasks: vec![Box::new(|_| Ok(Task::new("task", async { Ok(()) })))],
            webhooks: vec![Box::new(|cx| {
                let _nodes: Informer<Node> = cx.code.get();
                let controller = cx.controller.map(controller("certificates", None)).transpose()?;
                let checks = || Box::new(|| Check::new("webhook", vec![]));
                let server = cx.server.map(|_| {
                    let checks = WebhookChecks { readiness: checks(), health: checks() };
                    (Task::new("server", async { Ok(()) }), checks)
                });
                Ok(WebhookParts { writes: WebhookWrites::default(), controller, server })
            })],
            ..Constructors::default()
        }
    }

    #[tokio::test]
    async fn a_process_constructs_only_the_part_that_it_runs() {
        for (only, controllers, tasks, reads_nodes) in [
            (None, vec!["a", "certificates"], vec!["task", "server"], true),
            (Some(Part::Controllers), vec!["a", "certificates"], vec!["task"], false),
            (Some(Part::Webhook), vec![], vec!["server"], true),
        ] {
            let cx = context();
            let constructed = with_all_parts().run(PartContexts::of(only, &cx), &[]).unwrap();
            let names: Vec<_> = constructed.controllers.iter().map(Controller::name).collect();
            assert_eq!(names, controllers, "{only:?}");
            assert_eq!(constructed.tasks.iter().map(Task::name).collect::<Vec<_>>(), tasks, "{only:?}");
            let permissions = format!("{:?}", cx.permissions().declared());
            assert_eq!(permissions.contains("nodes"), reads_nodes, "{only:?}: {permissions}");
        }
    }

    #[tokio::test]
    async fn the_part_of_a_missing_or_disabled_webhook_is_refused() {
        let expected = "--only=webhook: the program has no webhook, or it is disabled";
        let none = Constructors { controllers: vec![controller("a", None)], ..Constructors::default() };
        for (constructors, disabled) in [(none, vec![]), (with_all_parts(), vec!["webhook".to_owned()])] {
            let failure =
                constructors.run(PartContexts::of(Some(Part::Webhook), &context()), &disabled).err().unwrap();
            assert_eq!(failure.to_string(), expected);
        }
    }
}
