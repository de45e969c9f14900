//! The subjects of a binding that is in no namespace.

use k8s_openapi::api::{apps::v1::Deployment, core::v1::EnvVar};
use reknit_apis::{DuckStatus, KRShaped, Reference, kind};
use reknit_injection::Context;
use reknit_knative::{Bindable, Binder, BindingSpec, PodSpecable};
use reknit_reconciler::{Controller, Kinds, Outcome, ReconcileKind, Result};
use reknit_testing::{Want, given, table};
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
    let mut build = Controller::of::<Varnish>(cx);
    let binder = Binder::new(&mut build, Kinds::of([("apps", "deployments")]));
    Ok(build.reconciler(Varnisher(binder)).build())
}

/// A Varnish of the Deployment `web` in this namespace, with the status of a successful pass.
fn varnish(namespace: &str) -> Varnish {
    let subject =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": namespace, "name": "web"});
    let mut varnish: Varnish = serde_json::from_value(json!({
        "apiVersion": "tests.reknit.dev/v1", "kind": "Varnish",
        "metadata": {"name": "matt", "uid": "uid-matt", "generation": 1}, "spec": {"subject": subject},
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

#[tokio::test]
async fn a_subject_in_the_former_namespace_of_a_cluster_scoped_binding_is_unbound() {
    const LABEL: &str = "varnishes.tests.reknit.dev/matt";
    let env = json!([{"name": "VARNISH", "value": "matt"}]);
    let patch = |label: Value, env: &Value| {
        json!({
            "metadata": {"labels": {LABEL: label}, "resourceVersion": "1"},
            "spec": {"template": {"spec": {"containers": containers(env)}}},
        })
    };
    table(controller)
        .row(
            "the subject in the new namespace is bound, and the one of the same name in the former one unbound",
            "matt",
            given(varnish("new"))
                .and(web("former", &json!({"app": "web", LABEL: "bound"}), &env))
                .and(web("new", &json!({"app": "web"}), &Value::Null)),
            Want::done()
                .patch::<Deployment>("former/web", patch(Value::Null, &Value::Null))
                .patch::<Deployment>("new/web", patch(json!("bound"), &env)),
        )
        .run()
        .await;
}
