//! The constructors of a process, and the checks that their controllers can run together.
use std::collections::BTreeMap;

use clap::ArgMatches;
use reknit_injection::Context;
use reknit_reconciler::{Controller, Result};
use reknit_webhook::{Health, Webhook};

use super::{Task, failure::Failure, panics};
use crate::{
    cli::NamespaceFlag,
    webhook::{self, WebhookSettings},
};

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
    pub(crate) controllers: Vec<Constructor<Controller>>,
    pub(crate) tasks: Vec<Constructor<Task>>,
    pub(crate) webhooks: Vec<Constructor<Webhook>>,
}

/// The results of the constructors. Nothing has started.
pub(crate) struct Constructed {
    pub(crate) controllers: Vec<Controller>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) webhook_health: Vec<Health>,
}

impl Constructors {
    /// Provides flags and values, which all constructors can use, and then constructs controllers, webhook and tasks. A
    /// disabled controller is constructed too, because its name is unknown before, and then dropped. Informers start
    /// after all constructors, so those of a dropped controller never do. A disabled webhook is not constructed,
    /// because its name is known.
    pub(crate) fn run(self, cx: &Context, disabled: &[String]) -> Result<Constructed, Failure> {
        check_webhooks(&self.webhooks)?;
        for provide_flags in self.flags {
            provide_flags(cx, &self.matches)
                .map_err(|e| Failure::usage(e.to_string().trim_start_matches("error: ")))?;
        }
        if let Ok(flag) = cx.provided::<NamespaceFlag>() {
            cx.provide(flag.selection());
        }
        self.values.into_iter().for_each(|provide| provide(cx));
        let mut controllers = construct_all("controller", self.controllers, cx)?;
        let (webhooks, disabled) = enabled_webhooks(self.webhooks, cx, disabled);
        let webhook_constructors = webhooks.into_iter().map(assemble_webhook).collect();
        let (mut servers, mut webhook_health) = (Vec::new(), Vec::new());
        for (controller, server, health) in construct_all("webhook", webhook_constructors, cx)? {
            controllers.push(controller);
            servers.push(server);
            webhook_health.push(health);
        }
        check_names(&controllers)?;
        check_settings(&controllers)?;
        check_finalizers(&controllers)?;
        check_disabled(&controllers, &disabled)?;
        controllers.retain(|controller| !disabled.iter().any(|name| *name == controller.name()));
        let mut tasks = construct_all("task", self.tasks, cx)?;
        tasks.extend(servers);
        Ok(Constructed { controllers, tasks, webhook_health })
    }
}

/// Returns the webhooks to construct, none if they are disabled, and the names of the disabled controllers other than
/// the webhook's. A program without a webhook may have a controller with that name.
fn enabled_webhooks<'a>(
    webhooks: Vec<Constructor<Webhook>>,
    cx: &Context,
    disabled: &'a [String],
) -> (Vec<Constructor<Webhook>>, Vec<&'a String>) {
    let settings: WebhookSettings = cx.provided().unwrap_or_default();
    let is_webhook = |name: &&String| !webhooks.is_empty() && *name == Webhook::CONTROLLER;
    let (named, others): (Vec<_>, Vec<_>) = disabled.iter().partition(is_webhook);
    if !webhooks.is_empty() && (!settings.enabled || !named.is_empty()) {
        tracing::info!("the webhook is disabled");
        return (vec![], others);
    }
    (webhooks, others)
}

fn assemble_webhook(constructor: Constructor<Webhook>) -> Constructor<(Controller, Task, Health)> {
    // The controller of the certificate has its own Context, so that it does not wait for the informers of the
    // webhook's code: their CustomResourceDefinitions may be missing.
    Box::new(move |cx| webhook::assemble(&cx.scoped(), constructor(cx)?))
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
fn check_webhooks(webhooks: &[Constructor<Webhook>]) -> Result<(), Failure> {
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

fn check_disabled(controllers: &[Controller], disabled: &[&String]) -> Result<(), Failure> {
    let known: Vec<_> = controllers.iter().map(Controller::name).collect();
    match disabled.iter().find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => Err(Failure::usage(format!(
            "--disable-controllers: controller {unknown:?} does not exist, only: {}",
            if known.is_empty() { "(none)".into() } else { known.join(", ") }
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

    /// Runs the constructors, and returns the names of the controllers.
    fn construct(
        controllers: Vec<Constructor<Controller>>,
        disabled: &[&str],
    ) -> Result<Vec<String>, String> {
        let constructors = Constructors { controllers, ..Constructors::default() };
        let disabled: Vec<_> = disabled.iter().map(ToString::to_string).collect();
        let constructed = constructors.run(&context(), &disabled).map_err(|failure| failure.to_string())?;
        Ok(constructed.controllers.iter().map(|controller| controller.name().to_owned()).collect())
    }

    #[tokio::test]
    async fn two_controllers_with_the_same_name_are_refused() {
        let failure = construct(vec![controller("a", None), controller("a", None)], &[]).unwrap_err();
        assert_eq!(failure, "two controllers are named a: give one of them another name by .name(..)");
    }

    #[tokio::test]
    async fn two_webhooks_are_refused() {
        let webhook = || -> Constructor<Webhook> { Box::new(|_| Ok(Webhook::new("demo.reknit.dev"))) };
        let constructors = Constructors { webhooks: vec![webhook(), webhook()], ..Constructors::default() };
        let failure = constructors.run(&context(), &[]).err().unwrap();
        assert!(failure.to_string().starts_with("2 webhooks in one process"), "{failure}");
    }

    #[tokio::test]
    async fn two_controllers_of_a_kind_that_share_a_finalizer_are_refused() {
        let sharing = vec![controller("a", Some("x.dev/f")), controller("b", Some("x.dev/f"))];
        let failure = construct(sharing, &[]).unwrap_err();
        assert!(failure.starts_with("the controllers a and b share the finalizer x.dev/f"), "{failure}");
        let of_another_kind = controller_of::<Secret>("c", Some("x.dev/f"));
        let separate = vec![controller("a", Some("x.dev/f")), controller("b", None), of_another_kind];
        assert_eq!(construct(separate, &[]), Ok(vec!["a".into(), "b".into(), "c".into()]));
    }

    #[tokio::test]
    async fn an_invalid_finalizer_is_refused() {
        let failure = construct(vec![controller("a", Some("unqualified"))], &[]).unwrap_err();
        let expected =
            "the controller a cannot run: \"unqualified\" is no name for a finalizer: Kubernetes wants";
        assert!(failure.starts_with(expected), "{failure}");
    }

    #[tokio::test]
    async fn disabled_controllers_are_left_out_and_unknown_ones_refused() {
        let three = || vec![controller("a", None), controller("b", None), controller("c", None)];
        assert_eq!(construct(three(), &["b", "c"]), Ok(vec!["a".into()]));
        let failure = construct(three(), &["b", "d"]).unwrap_err();
        assert_eq!(failure, "--disable-controllers: controller \"d\" does not exist, only: a, b, c");
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
        let failure = with_webhook().run(&context(), &[]).err().unwrap();
        assert!(failure.to_string().contains("constructed"), "{failure}");
        assert_eq!(names(with_webhook().run(&context(), &["webhook".into()]).unwrap()), ["a"]);
        let cx = context();
        cx.provide(WebhookSettings { enabled: false, ..WebhookSettings::default() });
        assert_eq!(names(with_webhook().run(&cx, &[]).unwrap()), ["a"]);
        assert_eq!(
            construct(vec![controller("a", None)], &["webhook"]).unwrap_err(),
            "--disable-controllers: controller \"webhook\" does not exist, only: a"
        );
    }

    #[tokio::test]
    async fn a_controller_only_waits_for_the_informers_of_its_constructor() {
        let reads_nodes: Constructor<Controller> = Box::new(|cx| {
            let _nodes: Informer<Node> = cx.get();
            Ok(Controller::of::<ConfigMap>(cx).reconciler(Idle(PhantomData)).name("reads-nodes").build())
        });
        let controllers = vec![reads_nodes, controller("other", None)];
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
