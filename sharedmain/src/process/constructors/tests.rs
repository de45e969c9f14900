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
