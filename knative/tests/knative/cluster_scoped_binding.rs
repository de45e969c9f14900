//! The subjects of a binding that is in no namespace.

use k8s_openapi::api::{apps::v1::Deployment, core::v1::EnvVar};
use kube::api::{ApiResource, DynamicObject};
use reknit_apis::{DuckStatus, KRShaped, Key, Reference, kind};
use reknit_injection::{Context, Informer, Selection, select};
use reknit_knative::{Bindable, Binder, BindingSpec, PodSpecable};
use reknit_reconciler::{Controller, Event, FinalizeKind, Kinds, Outcome, ReconcileKind, Result};
use reknit_testing::{ApiServer, ControllerExt, InformerExt, Want, given, table};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(
    group = "tests.reknit.dev",
    version = "v1",
    kind = "Varnish",
    plural = "varnishes",
    status = "DuckStatus"
)]
struct VarnishSpec {
    #[serde(flatten)]
    binding: BindingSpec,
}

kind!(Varnish { status: DuckStatus, conditions: knative(["Available"]) });

impl Bindable for Varnish {
    const CONDITION: &'static str = "Available";

    fn subject(&self) -> Reference {
        self.spec.binding.subject.clone()
    }

    fn bind(&self, _: &DuckStatus, subject: &mut PodSpecable) {
        for container in subject.containers_mut() {
            let varnish = EnvVar { name: "VARNISH".into(), value: Some("matt".into()), value_from: None };
            container.env.get_or_insert_default().push(varnish);
        }
    }

    fn unbind(&self, subject: &mut PodSpecable) {
        subject.containers_mut().for_each(|container| container.env = None);
    }
}

struct Varnisher(Binder<Varnish>);

impl ReconcileKind for Varnisher {
    type Kind = Varnish;
    async fn reconcile_kind(&self, varnish: &Varnish, status: &mut DuckStatus) -> Result<Outcome> {
        self.0.bind(varnish, status).await?;
        Ok(Outcome::done())
    }
}

#[expect(clippy::unnecessary_wraps, reason = "it is the constructor of a controller")]
fn controller(cx: &Context) -> Result<Controller> {
    cx.provide(namespaces());
    let mut build = Controller::of::<Varnish>(cx);
    let binder = Binder::new(&mut build, Kinds::of([("apps", "deployments")]));
    Ok(build.reconciler(Varnisher(binder)).finalizing().build())
}

/// The namespaces that the controller reads.
fn namespaces() -> Selection {
    select().namespaces(["former", "new"])
}

impl FinalizeKind for Varnisher {
    async fn finalize_kind(&self, varnish: &Varnish, _: &mut DuckStatus) -> Result<Outcome> {
        self.0.unbind(varnish).await?;
        Ok(Outcome::done())
    }
}

/// A Varnish of the Deployment `web` in this namespace, with the status of a successful pass.
fn varnish(namespace: &str) -> Varnish {
    let subject =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": namespace, "name": "web"});
    let mut varnish: Varnish = serde_json::from_value(json!({
        "apiVersion": "tests.reknit.dev/v1", "kind": "Varnish",
        "metadata": {
            "name": "matt", "uid": "uid-matt", "generation": 1, "resourceVersion": "1",
            "finalizers": ["varnishes.tests.reknit.dev"],
        },
        "spec": {"subject": subject},
    }))
    .unwrap();
    let mut status = DuckStatus { observed_generation: Some(1), ..DuckStatus::default() };
    Varnish::CONDITIONS.manage(&mut status).mark_true("Available");
    varnish.status = Some(status);
    varnish
}

fn containers(env: &Value) -> Value {
    match env {
        Value::Null => json!([{"name": "main", "image": "i"}]),
        env => json!([{"name": "main", "image": "i", "env": env}]),
    }
}

/// The Deployment `web` in this namespace.
fn web(namespace: &str, labels: &Value, env: &Value) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"namespace": namespace, "name": "web", "labels": labels},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers(env)}},
        },
    }))
    .unwrap()
}

const LABEL: &str = "varnishes.tests.reknit.dev/matt";

fn varnished() -> Value {
    json!([{"name": "VARNISH", "value": "matt"}])
}

/// The Deployment `web` in this namespace, with the injection.
fn bound(namespace: &str) -> Deployment {
    web(namespace, &json!({"app": "web", LABEL: "bound"}), &varnished())
}

fn patch(label: &Value, env: &Value) -> Value {
    json!({
        "metadata": {"labels": {LABEL: label}, "resourceVersion": "1"},
        "spec": {"template": {"spec": {"containers": containers(env)}}},
    })
}

fn unbinding_patch() -> Value {
    patch(&Value::Null, &Value::Null)
}

/// The status after a pass whose reference could not be followed.
fn unavailable(mut varnish: Varnish, message: &str) -> Varnish {
    let status = varnish.status.as_mut().unwrap();
    Varnish::CONDITIONS.manage(status).mark_false("Available", "SubjectUnavailable", message);
    varnish
}

fn with_version(mut varnish: Varnish, api_version: &str) -> Varnish {
    varnish.spec.binding.subject.api_version = api_version.into();
    varnish
}

fn deleted(mut varnish: Varnish) -> Varnish {
    varnish.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    varnish
}

#[tokio::test]
async fn a_subject_in_the_former_namespace_of_a_cluster_scoped_binding_is_unbound() {
    let nowhere = "the reference to a Deployment of apps/v1 names no namespace, and matt is cluster-scoped: name the \
                   namespace";
    let unread = "the reference to a Deployment of apps/v1 leads to the namespace unread, which this controller \
                  does not read";
    let leading_to = |namespace: &str, message: &str| {
        Want::permanent_error(message)
            .patch::<Deployment>("former/web", unbinding_patch())
            .status(&unavailable(varnish(namespace), message))
            .event(Event::warning("InternalError", message))
    };
    let refused = |varnish: Varnish| varnish.spec.binding.subject.check_trackable().unwrap_err().to_string();
    let (invalid, malformed) =
        (refused(varnish("no_name")), refused(with_version(varnish("former"), "apps/v1/x")));
    let unbound_and_finalized = || {
        Want::done()
            .patch::<Deployment>("former/web", unbinding_patch())
            .patch::<Varnish>("matt", json!({"metadata": {"finalizers": [], "resourceVersion": "1"}}))
            .event(Event::normal("FinalizerUpdate", "Updated \"matt\" finalizers"))
    };
    table(controller)
        .row(
            "the subject in the new namespace is bound, and the one of the same name in the former one unbound",
            "matt",
            given(varnish("new"))
                .and(bound("former"))
                .and(web("new", &json!({"app": "web"}), &Value::Null)),
            Want::done()
                .patch::<Deployment>("former/web", unbinding_patch())
                .patch::<Deployment>("new/web", patch(&json!("bound"), &varnished())),
        )
        .row(
            "the binding names no namespace any more",
            "matt",
            given(varnish("")).and(bound("former")),
            leading_to("", nowhere),
        )
        .row(
            "the binding names a namespace that the controller does not read",
            "matt",
            given(varnish("unread")).and(bound("former")),
            leading_to("unread", unread),
        )
        .row(
            "the binding names a namespace that cannot exist",
            "matt",
            given(varnish("no_name")).and(bound("former")),
            leading_to("no_name", &invalid),
        )
        .row(
            "the binding is deleted when it names a namespace that cannot exist",
            "matt",
            given(deleted(varnish("no_name"))).and(bound("former")),
            unbound_and_finalized(),
        )
        .row(
            "the binding names a version that cannot exist",
            "matt",
            given(with_version(varnish("former"), "apps/v1/x")).and(bound("former")),
            Want::permanent_error(&malformed)
                .patch::<Deployment>("former/web", unbinding_patch())
                .status(&unavailable(with_version(varnish("former"), "apps/v1/x"), &malformed))
                .event(Event::warning("InternalError", &malformed)),
        )
        .row(
            "the binding is deleted when it names a version that cannot exist",
            "matt",
            given(deleted(with_version(varnish("former"), "apps/V_1"))).and(bound("former")),
            unbound_and_finalized(),
        )
        .row(
            "the binding is deleted when it names no namespace any more",
            "matt",
            given(deleted(varnish(""))).and(bound("former")),
            unbound_and_finalized(),
        )
        .run()
        .await;
}

#[tokio::test]
async fn a_former_subject_that_appears_later_enqueues_its_cluster_scoped_binding() {
    let cached = serde_json::to_value(varnish("new")).unwrap();
    let cx = Context::preloaded("test", ApiServer::new().client(), vec![cached]);
    let (controller, key) = (controller(&cx).unwrap(), Key::from("matt"));
    controller.once(&key).await.unwrap_err();
    controller.take_queued();
    let deployments: Informer<DynamicObject> =
        cx.informer_of(&ApiResource::erase::<Deployment>(&()), namespaces());
    deployments.insert(serde_json::from_value(serde_json::to_value(bound("former")).unwrap()).unwrap());
    assert_eq!(controller.take_queued(), [key]);
}
