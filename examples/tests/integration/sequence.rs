//! Tests of sequence as a process.

use std::fs;

use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use reknit::{
    apis::service_host_name,
    prelude::select,
    testing::{ControlPlane, eventually, recorded},
};
use serde_json::{Value, json};

use crate::{
    environment::{Environment, bind_role, plane_with_nodes, restricted_kubeconfig},
    support::{
        file,
        process::example,
        sequence::{
            program::{InMemoryChannel, Sequence, Subscription, sequences},
            sequence,
        },
        wait::TIMEOUT,
    },
};

/// The definition of a second channel Kind. The test plays its controller.
const OTHER_CHANNELS: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: otherchannels.messaging.knative.dev}
spec:
  group: messaging.knative.dev
  names: {kind: OtherChannel, plural: otherchannels, singular: otherchannel}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: otherchannels}
rules:
  - apiGroups: [messaging.knative.dev]
    resources: [otherchannels]
    verbs: [get, list, watch, create, patch, delete]
"#;

impl Environment {
    async fn create_sequence(&self, name: &str, spec: Value) {
        self.api().create(&PostParams::default(), &sequence(name, spec)).await.expect("it is created");
    }

    async fn create_service(&self, name: &str) {
        let service = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
        let service: Service = serde_json::from_value(service).unwrap();
        self.api().create(&PostParams::default(), &service).await.expect("it is created");
    }

    /// Waits until the status of the Sequence meets the predicate, which `what` describes.
    async fn wait_for_sequence(&self, name: &str, what: &str, predicate: impl Fn(&Value) -> bool) -> Value {
        let sequences = self.api::<Sequence>();
        eventually(format!("the Sequence {name} {what}"), TIMEOUT, async || {
            let found = sequences.get(name).await.map_err(|error| error.to_string())?;
            let status = json!(found.status);
            let is_observed = status["observedGeneration"] == json!(found.metadata.generation);
            match is_observed && predicate(&status) {
                true => Ok(status),
                false => Err(format!("{status:#}; the log:\n{}", self.process.last_lines())),
            }
        })
        .await
    }

    /// Waits until the Sequence is ready, with this number of steps.
    async fn wait_until_ready(&self, name: &str, steps: usize) -> Value {
        self.wait_for_sequence(name, &format!("ready with {steps} steps"), |status| {
            let count = |field: &str| status[field].as_array().map(Vec::len);
            condition(status, "Ready")["status"] == "True"
                && count("channelStatuses") == Some(steps)
                && count("subscriptionStatuses") == Some(steps)
        })
        .await
    }

    /// Waits until the InMemoryChannels and Subscriptions of the namespace have these names. Channels of other Kinds
    /// are not counted.
    async fn wait_for_children(&self, expected_channels: &[&str], expected_subscriptions: &[&str]) {
        let (channels, subscriptions) = (self.api::<InMemoryChannel>(), self.api::<Subscription>());
        let what =
            format!("InMemoryChannels {expected_channels:?} and Subscriptions {expected_subscriptions:?}");
        eventually(what, TIMEOUT, async || {
            let all = ListParams::default();
            let channels = channels.list(&all).await.map_err(|error| error.to_string())?;
            let subscriptions = subscriptions.list(&all).await.map_err(|error| error.to_string())?;
            let channels: Vec<_> = channels.iter().map(ResourceExt::name_any).collect();
            let subscriptions: Vec<_> = subscriptions.iter().map(ResourceExt::name_any).collect();
            match channels == expected_channels && subscriptions == expected_subscriptions {
                true => Ok(()),
                false => Err(format!("{channels:?} and {subscriptions:?}")),
            }
        })
        .await;
    }

    async fn subscription(&self, name: &str) -> Subscription {
        self.api().get(name).await.expect("a Subscription")
    }

    /// Waits until the references of the Subscription are resolved to these addresses.
    async fn wait_for_addresses(&self, name: &str, expected: Value) {
        eventually(format!("the addresses {expected} of the Subscription {name}"), TIMEOUT, async || {
            let actual = json!(self.subscription(name).await.status)["physicalSubscription"].clone();
            if actual == expected { Ok(()) } else { Err(actual.to_string()) }
        })
        .await;
    }

    fn other_channels(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("messaging.knative.dev", "v1", "OtherChannel");
        let resource = ApiResource::from_gvk(&kind);
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    /// Does what the controller of the second channel Kind would do: gives the channel an address.
    async fn make_other_channel_ready(&self, name: &str) {
        let channels = self.other_channels();
        let channel = eventually(format!("the OtherChannel {name}"), TIMEOUT, async || {
            channels.get_opt(name).await.ok().flatten()
        })
        .await;
        assert_eq!(channel.data["spec"], json!({"partitions": {"count": 3}}));
        let status = json!({
            "conditions": [{"type": "Ready", "status": "True"}],
            "address": {"url": format!("http://{name}.other")},
        });
        let patch = Patch::Merge(json!({"status": status}));
        channels.patch_status(name, &PatchParams::default(), &patch).await.expect("it is patched");
    }

    fn channel_url(&self, name: &str) -> String {
        format!("http://{}", service_host_name(&format!("{name}-kn-channel"), &self.namespace))
    }
}

/// The condition of this type, or null.
fn condition(status: &Value, kind: &str) -> Value {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
}

fn url(number: usize) -> Value {
    json!({"uri": format!("http://example.com/{number}")})
}

#[tokio::test]
async fn a_sequence_becomes_ready_again_after_it_is_shortened_and_after_its_channel_kind_changes() {
    let env = Environment::start("sequence").await;
    env.create_sequence("s", json!({"steps": [url(0), url(1), url(2)], "reply": url(3)})).await;
    let status = env.wait_until_ready("s", 3).await;
    let children = ["s-kn-sequence-0", "s-kn-sequence-1", "s-kn-sequence-2"];
    env.wait_for_children(&children, &children).await;
    assert_eq!(status["address"]["url"], env.channel_url(children[0]));
    let steps = [
        json!({"subscriberUri": "http://example.com/0", "replyUri": env.channel_url(children[1])}),
        json!({"subscriberUri": "http://example.com/1", "replyUri": env.channel_url(children[2])}),
        json!({"subscriberUri": "http://example.com/2", "replyUri": "http://example.com/3"}),
    ];
    for (name, expected) in children.iter().zip(steps) {
        env.wait_for_addresses(name, expected).await;
    }

    let before = env.subscription(children[1]).await;
    env.merge_patch::<Sequence>("s", json!({"spec": {"steps": [url(0), url(1)], "reply": null}})).await;
    env.wait_until_ready("s", 2).await;
    env.wait_for_children(&children[..2], &children[..2]).await;
    let after = env.subscription(children[1]).await;
    assert_eq!((after.spec.reply.clone(), after.uid()), (None, before.uid()), "the Subscription is updated");
    env.wait_for_addresses(children[1], json!({"subscriberUri": "http://example.com/1"})).await;

    let plane = ControlPlane::shared().await.expect("a control plane");
    plane.apply_yaml(OTHER_CHANNELS).await.expect("the definition");
    bind_role(&env.client, "otherchannels", "sequence", &env.namespace).await;
    let template = json!({
        "apiVersion": "messaging.knative.dev/v1", "kind": "OtherChannel", "spec": {"partitions": {"count": 3}},
    });
    env.merge_patch::<Sequence>("s", json!({"spec": {"channelTemplate": template}})).await;
    for name in &children[..2] {
        env.make_other_channel_ready(name).await;
    }
    let status = env.wait_until_ready("s", 2).await;
    assert_eq!(status["address"]["url"], "http://s-kn-sequence-0.other");
    assert_eq!(status["channelStatuses"][1]["channel"]["kind"], "OtherChannel");
    env.wait_for_children(&[], &children[..2]).await;
    let moved = env.subscription(children[1]).await;
    assert_ne!(moved.uid(), after.uid(), "the Subscription is created again, since its channel is immutable");
    assert_eq!(moved.spec.channel.kind, "OtherChannel");
    env.process.stop().await;
}

#[tokio::test]
async fn a_subscriber_that_appears_later_makes_the_sequence_ready() {
    let env = Environment::start("sequence").await;
    env.create_sequence("s", json!({"steps": [url(0)]})).await;
    env.wait_until_ready("s", 1).await;

    let late = json!({"ref": {"apiVersion": "v1", "kind": "Service", "name": "late"}, "uri": "/path"});
    env.merge_patch::<Sequence>("s", json!({"spec": {"steps": [late]}})).await;
    let unresolved =
        |status: &Value| status["subscriptionStatuses"][0]["ready"]["reason"] == "SubscriberResolveFailed";
    let status = env.wait_for_sequence("s", "without its subscriber", unresolved).await;
    assert_eq!(condition(&status, "SubscriptionsReady")["reason"], "SubscriptionsNotReady");
    assert_eq!(condition(&status, "Ready")["status"], "Unknown");
    let (kind, message) = env.wait_for_event("s-kn-sequence-0", "SubscriberResolveFailed").await;
    assert_eq!(kind, "Warning");
    assert!(message.ends_with("services \"late\" not found"), "{message}");

    env.create_service("late").await;
    env.wait_until_ready("s", 1).await;
    let expected = format!("http://{}/path", service_host_name("late", &env.namespace));
    env.wait_for_addresses("s-kn-sequence-0", json!({"subscriberUri": expected})).await;
    env.process.stop().await;
}

#[tokio::test]
async fn the_objects_of_the_example_become_ready() {
    let env = Environment::start("sequence").await;
    for name in ["first", "second", "display"] {
        env.create_service(name).await;
    }
    let example = std::fs::read_to_string(file("sequence", "example.yaml")).unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&example).unwrap();
    let sequence = objects.into_iter().find(|object| object["kind"] == "Sequence").unwrap();
    let sequence: Sequence = serde_json::from_value(sequence).unwrap();
    env.api().create(&PostParams::default(), &sequence).await.unwrap();
    env.wait_until_ready("example", 3).await;
    env.process.stop().await;
}

#[tokio::test]
async fn a_failed_reconcile_is_recorded_and_fails_again_in_a_test_with_the_same_error() {
    let plane = plane_with_nodes().await;
    let namespace = plane.namespace("recorded").await.expect("a namespace");
    let kubeconfig = restricted_kubeconfig(plane, "sequence", &namespace).await;
    let folder = tempfile::tempdir().expect("a folder");
    let process = example("sequence", &kubeconfig)
        .without_leader_election()
        .in_namespace(&namespace)
        .env("ENABLE_WEBHOOKS", "false")
        .args(["--record-failures".as_ref(), folder.path()])
        .spawn();
    process.wait_until_ready().await;
    let environment = Environment { namespace, client: plane.client().expect("a client"), process };
    let step = json!({"uri": "http://one.example.com"});
    let template = |kind: &str, spec: Value| json!({"apiVersion": "messaging.knative.dev/v1", "kind": kind, "spec": spec});
    // The API server refuses the channel of the first one, and does not know the Kind of the second one.
    let refused = template("InMemoryChannel", json!({"subscribers": "none"}));
    environment.create_sequence("refused", json!({"steps": [step], "channelTemplate": refused})).await;
    let unknown = template("NoSuchChannel", json!({}));
    environment.create_sequence("unknown", json!({"steps": [step], "channelTemplate": unknown})).await;

    for (name, error) in [("refused", "spec.subscribers"), ("unknown", "NoSuchChannel")] {
        let file = eventually(format!("the recorded pass of {name}"), TIMEOUT, async || {
            let mut files = fs::read_dir(folder.path()).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
            files.find(|file| file.to_string_lossy().ends_with(&format!("_{name}.json")))
        })
        .await;
        let pass = recorded(&file).provide(select().namespace(&environment.namespace));
        let recorded_error = pass.error().to_owned();
        assert!(recorded_error.contains(error), "{recorded_error}");
        let effects = pass.reconcile(sequences).await;
        assert_eq!(effects.result.unwrap_err().in_full(), recorded_error, "{}", file.display());
        println!("{}\n{}", file.display(), fs::read_to_string(&file).expect("the file"));
    }
}
