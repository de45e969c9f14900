//! The bindings of one subject among many others.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use k8s_openapi::api::core::v1::EnvVar;
use reknit_apis::{DuckStatus, Reference, kind};
use reknit_injection::Context;
use reknit_knative::{Bindable, BindingMutator, BindingSpec, PodSpecable};
use reknit_testing::ApiServer;
use reknit_webhook::{TestRequest, Webhook};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The number of times that the subject of a [`Stamp`] was read.
static READ_SUBJECTS: AtomicUsize = AtomicUsize::new(0);

/// A binding that sets a variable of its own name.
#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "tests.reknit.dev", version = "v1", kind = "Stamp", namespaced, status = "DuckStatus")]
struct StampSpec {
    #[serde(flatten)]
    binding: BindingSpec,
}

kind!(Stamp { status: DuckStatus, conditions: knative(["Available"]) });

impl Bindable for Stamp {
    const CONDITION: &'static str = "Available";

    fn subject(&self) -> Reference {
        READ_SUBJECTS.fetch_add(1, Relaxed);
        self.spec.binding.subject.clone()
    }

    fn bind(&self, _: &DuckStatus, subject: &mut PodSpecable) {
        for container in subject.containers_mut() {
            let name = self.metadata.name.clone().unwrap_or_default();
            container.env.get_or_insert_default().push(EnvVar { name, value: None, value_from: None });
        }
    }

    fn unbind(&self, subject: &mut PodSpecable) {
        for container in subject.containers_mut() {
            let is_other = |variable: &EnvVar| Some(&variable.name) != self.metadata.name.as_ref();
            container.env.iter_mut().for_each(|env| env.retain(is_other));
        }
    }
}

fn stamp(name: &str, mut subject: Value) -> Value {
    (subject["apiVersion"], subject["kind"]) = (json!("apps/v1"), json!("Deployment"));
    let metadata = json!({"namespace": "shop", "name": name, "uid": name});
    json!({"apiVersion": "tests.reknit.dev/v1", "kind": "Stamp", "metadata": metadata, "spec": {"subject": subject}})
}

/// Admits a Deployment to which four bindings refer, beside this many pairs of others. Returns the names of those that were
/// injected, and how many subjects were read.
async fn admit_beside(others: usize) -> (Vec<String>, usize) {
    let requires = |key: &str, value: &str| json!([{"key": key, "operator": "In", "values": [value]}]);
    let mut stamps = vec![
        stamp("by-all-labels", json!({"selector": {"matchLabels": {"app": "web", "tier": "front"}}})),
        stamp("by-expression", json!({"selector": {"matchExpressions": requires("tier", "front")}})),
        stamp("by-name", json!({"name": "web"})),
        stamp("by-nothing", json!({"selector": {}})),
        stamp(
            "not-by-expression",
            json!({"selector": {
                "matchLabels": {"app": "web"}, "matchExpressions": requires("tier", "back"),
            }}),
        ),
        stamp("not-by-labels", json!({"selector": {"matchLabels": {"app": "web", "tier": "back"}}})),
    ];
    for n in 0..others {
        stamps.push(stamp(&format!("name-{n}"), json!({"name": format!("web-{n}")})));
        stamps.push(stamp(
            &format!("label-{n}"),
            json!({"selector": {"matchLabels": {"app": format!("web-{n}")}}}),
        ));
    }
    let cx = Context::preloaded("test", ApiServer::new().client(), stamps);
    let webhook = Webhook::new("tests.reknit.dev").mutator(BindingMutator::of::<Stamp>(&cx));
    let web = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"namespace": "shop", "name": "web", "labels": {"app": "web", "tier": "front"}},
        "spec": {"template": {"spec": {"containers": [{"name": "main"}]}}},
    });
    let before = READ_SUBJECTS.load(Relaxed);
    let admitted = webhook.admit(TestRequest::create(web)).await.unwrap().object;
    let read = READ_SUBJECTS.load(Relaxed) - before;
    let env = admitted["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap().clone();
    (env.iter().map(|variable| variable["name"].as_str().unwrap().to_owned()).collect(), read)
}

#[tokio::test]
async fn the_bindings_of_a_subject_are_found_without_a_look_at_those_of_other_names_and_labels() {
    let (few, many) = (admit_beside(5).await, admit_beside(500).await);
    assert_eq!(few.0, ["by-all-labels", "by-expression", "by-name", "by-nothing"]);
    assert_eq!(few, many);
}
