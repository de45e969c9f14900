//! Passes that bind and unbind the subjects of a binding.

use k8s_openapi::{api::apps::v1::Deployment, apimachinery::pkg::apis::meta::v1::Time};
use reknit_apis::{DuckStatus, KRShaped};
use reknit_injection::Context;
use reknit_knative::Binder;
use reknit_reconciler::{Controller, Event, FinalizeKind, Kinds, Outcome, ReconcileKind, Result};
use reknit_testing::{Given, Verb, Want, given, table};
use serde_json::{Value, json};

use crate::paint::Paint;

const UID: &str = "uid-paint";
const LABEL: &str = "paints.tests.reknit.dev/blue";

struct Painter(Binder<Paint>);

impl ReconcileKind for Painter {
    type Kind = Paint;
    async fn reconcile_kind(&self, paint: &Paint, status: &mut DuckStatus) -> Result<Outcome> {
        self.0.bind(paint, status).await?;
        Ok(Outcome::done())
    }
}

impl FinalizeKind for Painter {
    async fn finalize_kind(&self, paint: &Paint, _: &mut DuckStatus) -> Result<Outcome> {
        self.0.unbind(paint).await?;
        Ok(Outcome::done())
    }
}

#[expect(clippy::unnecessary_wraps, reason = "it is the constructor of a controller")]
fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Paint>(cx);
    let binder = Binder::new(&mut build, Kinds::of([("apps", "deployments")]));
    Ok(build.reconciler(Painter(binder)).finalizing().build())
}

fn paint(subject: Value) -> Paint {
    let metadata = json!({
        "namespace": "default", "name": "blue", "uid": UID, "generation": 1,
        "finalizers": ["paints.tests.reknit.dev"],
    });
    serde_json::from_value(json!({
        "apiVersion": "tests.reknit.dev/v1", "kind": "Paint",
        "metadata": metadata, "spec": {"color": "blue", "subject": subject},
    }))
    .unwrap()
}

/// A paint with the status of a successful pass.
fn available(subject: Value) -> Paint {
    let mut paint = paint(subject);
    let mut status = DuckStatus { observed_generation: Some(1), ..DuckStatus::default() };
    Paint::CONDITIONS.manage(&mut status).mark_true("Available");
    paint.status = Some(status);
    paint
}

fn unavailable(subject: Value, reason: &str, message: &str) -> Paint {
    let mut paint = available(subject);
    let status = paint.status.get_or_insert_default();
    Paint::CONDITIONS.manage(status).mark_false("Available", reason, message);
    paint
}

/// The paint after a restore from a backup.
fn restored(mut paint: Paint) -> Paint {
    paint.metadata.uid = Some("uid-restored".into());
    paint
}

fn with_deletion_timestamp(mut paint: Paint) -> Paint {
    paint.metadata.deletion_timestamp = Some(Time("2026-01-01T00:00:00Z".parse().unwrap()));
    paint.metadata.deletion_grace_period_seconds = Some(0);
    paint
}

fn elsewhere() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop", "name": "web"})
}

fn web() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"})
}

fn shop_frontends() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "selector": {"matchLabels": {"tier": "front"}}})
}

fn deployment(name: &str, metadata: Value, env: Value) -> Deployment {
    let mut container = json!({"name": "main", "image": "i"});
    if !env.is_null() {
        container["env"] = env;
    }
    let template = json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}});
    let mut deployment = json!({"spec": {"selector": {"matchLabels": {"app": name}}, "template": template}});
    deployment["metadata"] = metadata;
    deployment["metadata"]["namespace"] = json!("default");
    deployment["metadata"]["name"] = json!(name);
    serde_json::from_value(deployment).unwrap()
}

fn plain(name: &str) -> Deployment {
    deployment(name, json!({"labels": {"tier": "front"}}), json!([{"name": "OWN", "value": "1"}]))
}

fn painted(name: &str, tier: &str) -> Deployment {
    let labels = json!({"tier": tier, LABEL: "bound"});
    let env = json!([{"name": "OWN", "value": "1"}, {"name": "COLOR", "value": "blue"}]);
    deployment(name, json!({ "labels": labels }), env)
}

fn template_with(env: Value) -> Value {
    json!({"template": {"spec": {"containers": [{"name": "main", "image": "i", "env": env}]}}})
}

/// The patch that binds a deployment at resourceVersion 1.
fn binding_patch() -> Value {
    let env = json!([{"name": "OWN", "value": "1"}, {"name": "COLOR", "value": "blue"}]);
    json!({"metadata": {"labels": {LABEL: "bound"}, "resourceVersion": "1"}, "spec": template_with(env)})
}

fn unbinding_patch() -> Value {
    let spec = template_with(json!([{"name": "OWN", "value": "1"}]));
    json!({"metadata": {"labels": {LABEL: null}, "resourceVersion": "1"}, "spec": spec})
}

fn without_finalizer() -> Value {
    json!({"metadata": {"finalizers": [], "resourceVersion": "1"}})
}

fn finalized() -> Event {
    Event::normal("FinalizerUpdate", "Updated \"blue\" finalizers")
}

fn failed(message: &str) -> Event {
    Event::warning("InternalError", message)
}

fn on(paint: Paint) -> Given {
    given(paint)
}

#[tokio::test]
async fn subjects_are_bound() {
    let key = "default/blue";
    let missing = "deployments.apps \"web\" not found";
    let refused =
        "failed binding subject default/web: inducing failure for patch deployments (403 Forbidden)";
    let bad_request =
        "failed binding subject default/web: inducing failure for patch deployments (400 BadRequest)";
    let invalid = "failed binding subject default/one: inducing failure for patch deployments (422 Invalid)";
    let other_namespace = "default/blue refers to a Deployment in the namespace shop: a subject has to be in the \
                           namespace of its binding";
    table(controller)
        .row(
            "a subject by name is bound",
            key,
            on(paint(web())).and(plain("web")),
            Want::done().patch::<Deployment>("default/web", binding_patch()).status(&available(web())),
        )
        .row(
            "a subject without labels and environment is bound",
            key,
            on(available(web())).and(deployment("web", json!({}), Value::Null)),
            Want::done().patch::<Deployment>(
                "default/web",
                json!({
                    "metadata": {"labels": {LABEL: "bound"}, "resourceVersion": "1"},
                    "spec": template_with(json!([{"name": "COLOR", "value": "blue"}])),
                }),
            ),
        )
        .row(
            "a bound subject is not patched",
            key,
            on(available(web())).and(painted("web", "front")),
            Want::done(),
        )
        .row(
            "subjects by selector are bound",
            key,
            on(paint(shop_frontends())).and(plain("one")).and(plain("two")).and(painted("three", "front")),
            Want::done()
                .patch::<Deployment>("default/one", binding_patch())
                .patch::<Deployment>("default/two", binding_patch())
                .status(&available(shop_frontends())),
        )
        .row(
            "a binding whose selector matches no object is available",
            key,
            on(paint(shop_frontends())),
            Want::done().status(&available(shop_frontends())),
        )
        .row(
            "a bound deployment whose labels no longer match the selector is unbound",
            key,
            on(available(shop_frontends())).and(painted("web", "back")),
            Want::done().patch::<Deployment>("default/web", unbinding_patch()),
        )
        .row(
            "a deployment that the binding no longer names is unbound, although the one that it names now is missing",
            key,
            on(available(web())).and(painted("old", "front")),
            Want::permanent_error(missing)
                .patch::<Deployment>("default/old", unbinding_patch())
                .status(&unavailable(web(), "SubjectMissing", missing))
                .event(failed(missing)),
        )
        .row(
            "a deployment that the binding named before both were restored from a backup is unbound",
            key,
            on(restored(available(web()))).and(painted("old", "front")).and(painted("web", "front")),
            Want::done().patch::<Deployment>("default/old", unbinding_patch()),
        )
        .row(
            "a missing subject makes the condition False",
            key,
            on(paint(web())),
            Want::permanent_error(missing)
                .status(&unavailable(web(), "SubjectMissing", missing))
                .event(failed(missing)),
        )
        .row(
            "a refused patch makes the condition False",
            key,
            on(paint(web())).and(plain("web")).failing(Verb::Patch, "deployments", 403),
            Want::error("failed binding subject default/web")
                .patch::<Deployment>("default/web", binding_patch())
                .status(&unavailable(web(), "BindingFailed", refused))
                .event(failed(refused)),
        )
        .row(
            "an invalid subject is not retried, and the other subject is bound",
            key,
            on(paint(shop_frontends())).and(plain("one")).and(plain("two")).failing_times(
                Verb::Patch,
                "deployments",
                422,
                1,
            ),
            Want::permanent_error("failed binding subject default/one")
                .patch::<Deployment>("default/one", binding_patch())
                .patch::<Deployment>("default/two", binding_patch())
                .status(&unavailable(shop_frontends(), "BindingFailed", invalid))
                .event(failed(invalid)),
        )
        .row(
            "a subject that a webhook refuses with 400 is tried again",
            key,
            on(paint(web())).and(plain("web")).failing(Verb::Patch, "deployments", 400),
            Want::error("failed binding subject default/web")
                .patch::<Deployment>("default/web", binding_patch())
                .status(&unavailable(web(), "BindingFailed", bad_request))
                .event(failed(bad_request)),
        )
        .row(
            "a conflict leaves the condition as it is",
            key,
            on(available(web())).and(plain("web")).failing(Verb::Patch, "deployments", 409),
            Want::error("failed binding subject default/web").patch::<Deployment>("default/web", binding_patch()),
        )
        .row(
            "a subject in another namespace is not bound",
            key,
            on(paint(elsewhere())),
            Want::permanent_error(other_namespace)
                .status(&unavailable(elsewhere(), "SubjectUnavailable", other_namespace))
                .event(failed(other_namespace)),
        )
        .row(
            "a bound subject is unbound if the binding was changed to one in another namespace",
            key,
            on(paint(elsewhere())).and(painted("web", "front")),
            Want::permanent_error(other_namespace)
                .patch::<Deployment>("default/web", unbinding_patch())
                .status(&unavailable(elsewhere(), "SubjectUnavailable", other_namespace))
                .event(failed(other_namespace)),
        )
        .run()
        .await;
}

#[tokio::test]
async fn subjects_are_unbound_before_the_finalizer_of_the_binding_is_removed() {
    let key = "default/blue";
    let malformed = json!({"apiVersion": "apps/v1", "kind": "Deployment"});
    let foreign = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "web"});
    let removed = || Want::done().patch::<Paint>(key, without_finalizer()).event(finalized());
    table(controller)
        .row(
            "bound subjects are unbound, including a former subject",
            key,
            on(with_deletion_timestamp(available(web())))
                .and(painted("old", "back"))
                .and(painted("web", "front")),
            Want::done()
                .patch::<Deployment>("default/old", unbinding_patch())
                .patch::<Deployment>("default/web", unbinding_patch())
                .patch::<Paint>(key, without_finalizer())
                .event(finalized()),
        )
        .row(
            "a bound subject is unbound although the binding was changed to one in another namespace",
            key,
            on(with_deletion_timestamp(available(elsewhere()))).and(painted("web", "front")),
            Want::done()
                .patch::<Deployment>("default/web", unbinding_patch())
                .patch::<Paint>(key, without_finalizer())
                .event(finalized()),
        )
        .row(
            "the finalizer is removed although the subject is missing",
            key,
            on(with_deletion_timestamp(available(web()))),
            removed(),
        )
        .row(
            "the finalizer is removed although the reference to the subject is malformed",
            key,
            on(with_deletion_timestamp(available(malformed))),
            removed(),
        )
        .row(
            "the finalizer is removed although the subject is in an API group that the controller does not bind",
            key,
            on(with_deletion_timestamp(available(foreign))),
            removed(),
        )
        .row(
            "the finalizer stays while a subject cannot be unbound",
            key,
            on(with_deletion_timestamp(available(web()))).and(painted("web", "front")).failing(
                Verb::Patch,
                "deployments",
                403,
            ),
            Want::error("failed binding subject default/web")
                .patch::<Deployment>("default/web", unbinding_patch())
                .event(failed(
                    "failed binding subject default/web: inducing failure for patch deployments (403 Forbidden)",
                )),
        )
        .run()
        .await;
}
