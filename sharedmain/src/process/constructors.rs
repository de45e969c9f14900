//! Runs the constructors of a process, and refuses what cannot run together.
use std::collections::BTreeMap;

use reknit_injection::Context;
use reknit_reconciler::{Controller, Result};
use reknit_webhook::{Health, Webhook};

use crate::{process::Task, process::failure::Failure, process::panics, webhook};

type Make<T> = Box<dyn FnOnce(&Context) -> Result<T>>;
type Provide<T = ()> = Box<dyn FnOnce(&Context) -> T>;

/// Everything that is made before anything starts.
#[derive(Default)]
pub(crate) struct Constructors {
    pub(crate) flags: Vec<Provide<clap::error::Result<()>>>,
    pub(crate) values: Vec<Provide>,
    pub(crate) controllers: Vec<Make<Controller>>,
    pub(crate) tasks: Vec<Make<Task>>,
    pub(crate) webhooks: Vec<Make<Webhook>>,
}

/// What the constructors made, and nothing started.
pub(crate) struct Constructed {
    pub(crate) controllers: Vec<Controller>,
    pub(crate) tasks: Vec<Task>,
    /// How each webhook is doing.
    pub(crate) webhooks: Vec<Health>,
}

impl Constructors {
    /// Flags and values first, so that all constructors find them; then controllers, then tasks. Those disabled are
    /// made, because only then is their name known, and dropped: their informers never start.
    pub(crate) fn run(self, cx: &Context, disabled: &[String]) -> Result<Constructed, Failure> {
        check_webhooks(&self.webhooks)?;
        for flags in self.flags {
            flags(cx).map_err(|e| Failure::usage(e.to_string().trim_start_matches("error: ")))?;
        }
        self.values.into_iter().for_each(|provide| provide(cx));
        let mut controllers = all("controller", self.controllers, cx)?;
        let makers = self.webhooks.into_iter().map(webhook_maker).collect();
        let (mut servers, mut webhooks) = (Vec::new(), Vec::new());
        for (keeper, server, health) in all("webhook", makers, cx)? {
            controllers.push(keeper);
            servers.push(server);
            webhooks.push(health);
        }
        check_names(&controllers)?;
        check_each(&controllers)?;
        check_finalizers(&controllers)?;
        check_disabled(&controllers, disabled)?;
        controllers.retain(|controller| !disabled.iter().any(|name| name == controller.name()));
        let mut tasks = all("task", self.tasks, cx)?;
        tasks.extend(servers);
        Ok(Constructed { controllers, tasks, webhooks })
    }
}

fn webhook_maker(make: Make<Webhook>) -> Make<(Controller, Task, Health)> {
    // What its code reads, such as a CustomResource that is not installed, must not hold up its certificate.
    Box::new(move |cx| webhook::assemble(&cx.apart(), make(cx)?))
}

/// Each with a Context of its own: a controller waits for what its own constructor asked for.
fn all<T>(what: &str, makes: Vec<Make<T>>, cx: &Context) -> Result<Vec<T>, Failure> {
    let count = makes.len();
    let numbered = makes.into_iter().zip(1..);
    let failed = |n: usize, why: String| {
        Failure::new(format!("{what} {n} of {count} could not be constructed: {why}"))
    };
    numbered
        .map(|(make, n)| match panics::caught(|| make(&cx.apart())) {
            Ok(made) => made.map_err(|e| failed(n, e.to_string())),
            Err(panic) => Err(failed(n, panic)),
        })
        .collect()
}

/// There is one place in the environment for its name, port and Secret.
fn check_webhooks(webhooks: &[Make<Webhook>]) -> Result<(), Failure> {
    match webhooks.len() {
        0 | 1 => Ok(()),
        more => Err(Failure::new(format!(
            "{more} webhooks: a process serves one, which takes any number of Kinds: put them into one"
        ))),
    }
}

fn check_names(controllers: &[Controller]) -> Result<(), Failure> {
    match twice(controllers.iter().map(|controller| (controller.name(), controller.name()))) {
        Some((name, ..)) => Err(Failure::new(format!(
            "two controllers are named {name}: give one of them another by .name(..)"
        ))),
        None => Ok(()),
    }
}

/// What would fail in every pass fails here.
fn check_each(controllers: &[Controller]) -> Result<(), Failure> {
    let failed = |c: &Controller| c.check().err().map(|error| (c.name().to_owned(), error));
    match controllers.iter().find_map(failed) {
        Some((name, error)) => Err(Failure::new(format!("the controller {name} cannot run: {error}"))),
        None => Ok(()),
    }
}

/// On objects of one Kind each would take the other's finalizer for its own, and let the object go before the other is
/// done.
fn check_finalizers(controllers: &[Controller]) -> Result<(), Failure> {
    let finalizers = controllers.iter().filter_map(|c| Some(((c.kind(), c.finalizer()?), c.name())));
    match twice(finalizers) {
        Some(((_, finalizer), one, other)) => Err(Failure::new(format!(
            "the controllers {one} and {other} share the finalizer {finalizer}: give one of them another by \
             .finalizer(..)"
        ))),
        None => Ok(()),
    }
}

fn check_disabled(controllers: &[Controller], disabled: &[String]) -> Result<(), Failure> {
    let known: Vec<_> = controllers.iter().map(Controller::name).collect();
    match disabled.iter().find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => Err(Failure::usage(format!(
            "--disable-controllers: there is no controller {unknown:?}, only: {}",
            if known.is_empty() { "(there is none)".into() } else { known.join(", ") }
        ))),
        None => Ok(()),
    }
}

/// What is there twice, and whose it is.
fn twice<'a, N: Copy + Ord>(named: impl Iterator<Item = (N, &'a str)>) -> Option<(N, &'a str, &'a str)> {
    let mut owners = BTreeMap::new();
    named.into_iter().find_map(|(name, owner)| owners.insert(name, owner).map(|first| (name, first, owner)))
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
        let nobody = tower::service_fn(|_: http::Request<Body>| async {
            Err::<http::Response<Body>, _>(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
        });
        Context::preloaded("test", Client::new(nobody, "default"), vec![])
    }

    fn controller(name: &'static str, finalizer: Option<&'static str>) -> Make<Controller> {
        controller_of::<ConfigMap>(name, finalizer)
    }

    fn controller_of<K: Kind<Status = ()>>(
        name: &'static str,
        finalizer: Option<&'static str>,
    ) -> Make<Controller> {
        Box::new(move |cx| {
            let build = Controller::of::<K>(cx).reconciler(Idle(PhantomData)).name(name);
            Ok(match finalizer {
                Some(finalizer) => build.finalizing().finalizer(finalizer).build(),
                None => build.build(),
            })
        })
    }

    fn constructed(controllers: Vec<Make<Controller>>, disabled: &[&str]) -> Result<Vec<String>, String> {
        let constructors = Constructors { controllers, ..Constructors::default() };
        let disabled: Vec<_> = disabled.iter().map(ToString::to_string).collect();
        let made = constructors.run(&context(), &disabled).map_err(|failure| failure.to_string())?;
        Ok(made.controllers.iter().map(|controller| controller.name().to_owned()).collect())
    }

    #[tokio::test]
    async fn two_controllers_of_one_name_are_refused() {
        let failure = constructed(vec![controller("a", None), controller("a", None)], &[]).unwrap_err();
        assert_eq!(failure, "two controllers are named a: give one of them another by .name(..)");
    }

    #[tokio::test]
    async fn two_webhooks_are_refused() {
        let webhook = || -> Make<Webhook> { Box::new(|_| Ok(Webhook::new("demo.reknit.dev"))) };
        let constructors = Constructors { webhooks: vec![webhook(), webhook()], ..Constructors::default() };
        let failure = constructors.run(&context(), &[]).err().unwrap();
        assert!(failure.to_string().starts_with("2 webhooks: a process serves one"), "{failure}");
    }

    #[tokio::test]
    async fn two_controllers_of_a_kind_that_share_a_finalizer_are_refused() {
        let twins = vec![controller("a", Some("x.dev/f")), controller("b", Some("x.dev/f"))];
        let failure = constructed(twins, &[]).unwrap_err();
        assert!(failure.starts_with("the controllers a and b share the finalizer x.dev/f"), "{failure}");
        let of_another_kind = controller_of::<Secret>("c", Some("x.dev/f"));
        let apart = vec![controller("a", Some("x.dev/f")), controller("b", None), of_another_kind];
        assert_eq!(constructed(apart, &[]), Ok(vec!["a".into(), "b".into(), "c".into()]));
    }

    #[tokio::test]
    async fn a_finalizer_that_kubernetes_would_not_take_is_refused() {
        let failure = constructed(vec![controller("a", Some("unqualified"))], &[]).unwrap_err();
        let said =
            "the controller a cannot run: \"unqualified\" is no name for a finalizer: Kubernetes wants";
        assert!(failure.starts_with(said), "{failure}");
    }

    #[tokio::test]
    async fn disabled_controllers_are_left_out_and_unknown_ones_refused() {
        let three = || vec![controller("a", None), controller("b", None), controller("c", None)];
        assert_eq!(constructed(three(), &["b", "c"]), Ok(vec!["a".into()]));
        let failure = constructed(three(), &["b", "d"]).unwrap_err();
        assert_eq!(failure, "--disable-controllers: there is no controller \"d\", only: a, b, c");
    }

    #[tokio::test]
    async fn a_controller_waits_for_what_its_own_constructor_asked_for() {
        let reading: Make<Controller> = Box::new(|cx| {
            let _nodes: Informer<Node> = cx.get();
            Ok(Controller::of::<ConfigMap>(cx).reconciler(Idle(PhantomData)).name("reading").build())
        });
        let controllers = vec![reading, controller("other", None)];
        let made = Constructors { controllers, ..Constructors::default() }.run(&context(), &[]).unwrap();
        let feeds = |controller: &Controller| {
            controller.feeds().iter().map(|feed| feed.name().to_owned()).collect::<Vec<_>>()
        };
        let feeds: Vec<_> = made.controllers.iter().map(feeds).collect();
        assert_eq!(feeds, [vec!["configmaps", "nodes"], vec!["configmaps"]]);
    }

    #[tokio::test]
    async fn values_are_provided_before_anything_is_constructed() {
        let mut constructors = Constructors::default();
        constructors.tasks.push(Box::new(|cx| Ok(Task::new(&cx.provided::<String>()?, async { Ok(()) }))));
        constructors.values.push(Box::new(|cx| cx.provide("named by a value".to_owned())));
        let made = constructors.run(&context(), &[]).unwrap();
        assert_eq!(made.tasks[0].name(), "named by a value");
    }
}
