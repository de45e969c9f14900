//! The constructors of a process, and the checks that their controllers can run together.
use std::collections::BTreeMap;

use clap::ArgMatches;
use reknit_injection::Context;
use reknit_reconciler::{Controller, Result};

use super::{failure::Failure, panics, task::Task};
use crate::{
    cli::{environment::WebhookSettings, namespace::NamespaceFlag},
    health::checks::LivenessCheck,
};

/// The name of the controller that renews the certificate of the webhook.
const WEBHOOK: &str = "webhook";

type Constructor<T> = Box<dyn FnOnce(&Context) -> Result<T>>;
type Provide = Box<dyn FnOnce(&Context)>;
type ProvideFlags = fn(&Context, &ArgMatches) -> clap::error::Result<()>;

/// The constructors of a program.
#[derive(Default)]
pub(crate) struct Constructors {
    pub(crate) flags: Vec<ProvideFlags>,
    /// The parsed command line, from which `flags` read their values.
    pub(crate) matches: ArgMatches,
    pub(crate) values: Vec<Provide>,
    pub(crate) controllers: Vec<ControllerEntry>,
    pub(crate) tasks: Vec<Constructor<Task>>,
    pub(crate) webhooks: Vec<Constructor<WebhookParts>>,
}

/// A constructor of a controller. A controller can be disabled only if its name is known before its construction.
pub(crate) struct ControllerEntry {
    pub(crate) name: Option<String>,
    pub(crate) constructor: Constructor<Controller>,
}

/// The parts of a webhook: the controller that renews its certificate, its server, and its health check.
pub(crate) struct WebhookParts {
    pub(crate) controller: Controller,
    pub(crate) server: Task,
    pub(crate) health: LivenessCheck,
}

/// The results of the constructors. Nothing has started.
pub(crate) struct Constructed {
    pub(crate) controllers: Vec<Controller>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) webhook_health: Vec<LivenessCheck>,
}

impl Constructors {
    /// Provides flags and values, which all constructors can use, and then constructs controllers, webhook and tasks.
    /// The constructors of disabled controllers, and of a disabled webhook, are not called.
    pub(crate) fn run(mut self, cx: &Context, disabled: &[String]) -> Result<Constructed, Failure> {
        check_webhooks(&self.webhooks)?;
        self.remove_disabled(disabled)?;
        for provide_flags in self.flags {
            provide_flags(cx, &self.matches)
                .map_err(|e| Failure::usage(e.to_string().trim_start_matches("error: ")))?;
        }
        if let Ok(flag) = cx.provided::<NamespaceFlag>() {
            cx.provide(flag.selection());
        }
        self.values.into_iter().for_each(|provide| provide(cx));
        let constructors = self.controllers.into_iter().map(ControllerEntry::into_constructor).collect();
        let mut controllers = construct_all("controller", constructors, cx)?;
        let webhooks = construct_all("webhook", enabled_webhooks(self.webhooks, cx), cx)?;
        let (mut servers, mut webhook_health) = (Vec::new(), Vec::new());
        for WebhookParts { controller, server, health } in webhooks {
            controllers.push(controller);
            servers.push(server);
            webhook_health.push(health);
        }
        check_names(&controllers)?;
        check_settings(&controllers)?;
        check_finalizers(&controllers)?;
        let mut tasks = construct_all("task", self.tasks, cx)?;
        tasks.extend(servers);
        Ok(Constructed { controllers, tasks, webhook_health })
    }

    /// Removes the constructors of these controllers. Fails if one of the names is unknown.
    fn remove_disabled(&mut self, disabled: &[String]) -> Result<(), Failure> {
        let mut known: Vec<_> = self.controllers.iter().filter_map(|entry| entry.name.as_deref()).collect();
        if !self.webhooks.is_empty() {
            known.push(WEBHOOK);
        }
        if let Some(unknown) = disabled.iter().find(|name| !known.contains(&name.as_str())) {
            return Err(Failure::usage(format!(
                "--disable-controllers: no controller named {unknown:?} can be disabled, only: {}",
                if known.is_empty() { "(none)".into() } else { known.join(", ") }
            )));
        }
        for name in disabled {
            tracing::info!(name, "the controller is disabled");
        }
        self.controllers.retain(|entry| entry.name.as_ref().is_none_or(|name| !disabled.contains(name)));
        if disabled.iter().any(|name| name == WEBHOOK) {
            self.webhooks.clear();
        }
        Ok(())
    }
}

impl ControllerEntry {
    /// Returns a constructor that fails if the controller does not have the name of the entry.
    fn into_constructor(self) -> Constructor<Controller> {
        let Self { name, constructor } = self;
        Box::new(move |cx| {
            let controller = constructor(cx)?;
            match name.filter(|name| name != controller.name()) {
                Some(name) => {
                    Err(format!("it is added as {name:?}, but its name is {:?}", controller.name()).into())
                }
                None => Ok(controller),
            }
        })
    }
}

/// Returns the webhooks to construct, none if `ENABLE_WEBHOOKS=false` disables them.
fn enabled_webhooks<T>(webhooks: Vec<Constructor<T>>, cx: &Context) -> Vec<Constructor<T>> {
    let settings: WebhookSettings = cx.provided().unwrap_or_default();
    if settings.enabled || webhooks.is_empty() {
        return webhooks;
    }
    tracing::info!("the webhook is disabled");
    vec![]
}

/// Runs each constructor with its own Context, so that a controller only waits for the informers of its constructor.
fn construct_all<T>(what: &str, constructors: Vec<Constructor<T>>, cx: &Context) -> Result<Vec<T>, Failure> {
    let count = constructors.len();
    let construct = |(constructor, n): (Constructor<T>, usize)| {
        let result = panics::catch_panic(|| constructor(&cx.scoped()).map_err(|e| e.to_string())).flatten();
        result.map_err(|why| Failure::new(format!("failed to construct {what} {n} of {count}: {why}")))
    };
    constructors.into_iter().zip(1..).map(construct).collect()
}

/// Refuses a second webhook: the environment variables set the name, port and Secret of one webhook only.
fn check_webhooks<T>(webhooks: &[Constructor<T>]) -> Result<(), Failure> {
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

/// Refuses two controllers of a Kind that share a finalizer: each would remove it before the other has finalized the
/// object.
fn check_finalizers(controllers: &[Controller]) -> Result<(), Failure> {
    let finalizers = controllers.iter().filter_map(|c| Some(((c.kind(), c.finalizer()?), c.name())));
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
    use kube::{Client, client::Body};
    use reknit_apis::Kind;
    use reknit_injection::Informer;
    use reknit_reconciler::{FinalizeKind, Outcome, ReconcileKind};

    use super::*;

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

    /// A Context whose API server is unreachable.
    fn context() -> Context {
        let unreachable = tower::service_fn(|_: http::Request<Body>| async {
            Err::<http::Response<Body>, _>(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
        });
        Context::preloaded("test", Client::new(unreachable, "default"), vec![])
    }

    fn controller(name: &'static str, finalizer: Option<&'static str>) -> Constructor<Controller> {
        controller_of::<ConfigMap>(name, finalizer)
    }

    fn controller_of<K: Kind<Status = ()>>(
        name: &'static str,
        finalizer: Option<&'static str>,
    ) -> Constructor<Controller> {
        Box::new(move |cx| {
            let build = Controller::of::<K>(cx).reconciler(Idle(PhantomData)).name(name);
            Ok(match finalizer {
                Some(finalizer) => build.finalizing().finalizer(finalizer).build(),
                None => build.build(),
            })
        })
    }

    fn unnamed(constructor: Constructor<Controller>) -> ControllerEntry {
        ControllerEntry { name: None, constructor }
    }

    fn named(name: &'static str) -> ControllerEntry {
        ControllerEntry { name: Some(name.into()), constructor: controller(name, None) }
    }

    /// Runs the constructors, and returns the names of the controllers.
    fn construct(controllers: Vec<Constructor<Controller>>) -> Result<Vec<String>, String> {
        construct_enabled(controllers.into_iter().map(unnamed).collect(), &[])
    }

    /// Runs the constructors that are not disabled, and returns the names of the controllers.
    fn construct_enabled(
        controllers: Vec<ControllerEntry>,
        disabled: &[&str],
    ) -> Result<Vec<String>, String> {
        let constructors = Constructors { controllers, ..Constructors::default() };
        let disabled: Vec<_> = disabled.iter().map(ToString::to_string).collect();
        let constructed = constructors.run(&context(), &disabled).map_err(|failure| failure.to_string())?;
        Ok(constructed.controllers.iter().map(|controller| controller.name().to_owned()).collect())
    }

    #[tokio::test]
    async fn two_controllers_with_the_same_name_are_refused() {
        let failure = construct(vec![controller("a", None), controller("a", None)]).unwrap_err();
        assert_eq!(failure, "two controllers are named a: give one of them another name by .name(..)");
    }

    #[tokio::test]
    async fn two_webhooks_are_refused() {
        let webhook = || -> Constructor<WebhookParts> { Box::new(|_| Err("not called".into())) };
        let constructors = Constructors { webhooks: vec![webhook(), webhook()], ..Constructors::default() };
        let failure = constructors.run(&context(), &[]).err().unwrap();
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
        let three = || vec![named("a"), named("b"), named("c"), unnamed(controller("d", None))];
        assert_eq!(construct_enabled(three(), &["b", "c"]), Ok(vec!["a".into(), "d".into()]));
        let failure = construct_enabled(three(), &["b", "d"]).unwrap_err();
        assert_eq!(
            failure,
            "--disable-controllers: no controller named \"d\" can be disabled, only: a, b, c"
        );
    }

    #[tokio::test]
    async fn the_constructor_of_a_disabled_controller_is_not_called() {
        let failing =
            || ControllerEntry { name: Some("b".into()), constructor: Box::new(|_| Err("called".into())) };
        let failure = construct_enabled(vec![named("a"), failing()], &["a"]).unwrap_err();
        assert_eq!(failure, "failed to construct controller 1 of 1: called");
        assert_eq!(construct_enabled(vec![named("a"), failing()], &["b"]), Ok(vec!["a".into()]));
    }

    #[tokio::test]
    async fn a_controller_that_is_added_with_another_name_than_its_own_is_refused() {
        let entry = ControllerEntry { name: Some("a".into()), constructor: controller("b", None) };
        let failure = construct_enabled(vec![entry], &[]).unwrap_err();
        assert_eq!(
            failure,
            "failed to construct controller 1 of 1: it is added as \"a\", but its name is \"b\""
        );
    }

    #[tokio::test]
    async fn a_disabled_webhook_is_not_constructed() {
        let with_webhook = || Constructors {
            controllers: vec![named("a")],
            webhooks: vec![Box::new(|_| Err("constructed".into()))],
            ..Constructors::default()
        };
        let names = |constructed: Constructed| {
            constructed.controllers.iter().map(|controller| controller.name().to_owned()).collect::<Vec<_>>()
        };
        let failure = with_webhook().run(&context(), &[]).err().unwrap();
        assert!(failure.to_string().contains("constructed"), "{failure}");
        assert_eq!(names(with_webhook().run(&context(), &["webhook".into()]).unwrap()), ["a"]);
        let cx = context();
        cx.provide(WebhookSettings { enabled: false, ..WebhookSettings::default() });
        assert_eq!(names(with_webhook().run(&cx, &[]).unwrap()), ["a"]);
        assert_eq!(
            construct_enabled(vec![named("a")], &["webhook"]).unwrap_err(),
            "--disable-controllers: no controller named \"webhook\" can be disabled, only: a"
        );
    }

    #[tokio::test]
    async fn a_controller_only_waits_for_the_informers_of_its_constructor() {
        let reads_nodes: Constructor<Controller> = Box::new(|cx| {
            let _nodes: Informer<Node> = cx.get();
            Ok(Controller::of::<ConfigMap>(cx).reconciler(Idle(PhantomData)).name("reads-nodes").build())
        });
        let controllers = vec![unnamed(reads_nodes), named("other")];
        let constructed =
            Constructors { controllers, ..Constructors::default() }.run(&context(), &[]).unwrap();
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
        let constructed = constructors.run(&context(), &[]).unwrap();
        assert_eq!(constructed.tasks[0].name(), "named by a value");
    }
}
