//! Admission of Sequences.

use std::collections::BTreeMap;

use reknit::{
    apis::{Operation, Request},
    prelude::*,
    testing::ApiServer,
    webhook::TestRequest,
};
use serde_json::{Value, json};

use crate::support::sequence::{
    program::{ChannelDefaults, Sequence, webhook},
    sequence,
};

fn channel_template() -> Value {
    json!({"apiVersion": "messaging.knative.dev/v1", "kind": "InMemoryChannel"})
}

fn service(name: &str) -> Value {
    json!({"ref": {"apiVersion": "v1", "kind": "Service", "name": name}})
}

/// The Sequence `shop/s`.
fn sequence_in_shop(spec: Value) -> Sequence {
    let mut object = sequence("s", spec);
    object.metadata.namespace = Some("shop".into());
    object
}

#[test]
fn a_sequence_without_steps_or_channel_template_or_with_a_wrong_destination_is_refused() {
    let no_version = json!({"ref": {"kind": "Service", "name": "web"}});
    let mut wrong_delivery = service("web");
    wrong_delivery["delivery"] = json!({"backoffDelay": "invalid delay"});
    let mut elsewhere = service("web");
    elsewhere["ref"]["namespace"] = json!("theirs");
    let cases = [
        (
            json!({"steps": [service("web")], "channelTemplate": channel_template(), "reply": service("r")}),
            "",
        ),
        (json!({"steps": [], "channelTemplate": channel_template()}), "missing field(s): spec.steps"),
        (json!({"steps": [service("web")]}), "missing field(s): spec.channelTemplate"),
        (
            json!({"steps": [service("web")], "channelTemplate": {"apiVersion": "", "kind": "x"}}),
            "missing field(s): spec.channelTemplate.apiVersion",
        ),
        (
            json!({"steps": [service("web")], "channelTemplate": {"apiVersion": "v1", "kind": ""}}),
            "missing field(s): spec.channelTemplate.kind",
        ),
        (
            json!({"steps": [service("web")], "channelTemplate": channel_template(), "reply": no_version}),
            "missing field(s): spec.reply.ref.apiVersion",
        ),
        (
            json!({"steps": [service("web")], "reply": no_version}),
            "missing field(s): spec.channelTemplate, spec.reply.ref.apiVersion",
        ),
        (
            json!({"steps": [service("web"), no_version], "channelTemplate": channel_template()}),
            "missing field(s): spec.steps[1].ref.apiVersion",
        ),
        (
            json!({"steps": [wrong_delivery], "channelTemplate": channel_template()}),
            "invalid value: invalid delay: spec.steps[0].delivery.backoffDelay",
        ),
        (
            json!({"steps": [elsewhere], "channelTemplate": channel_template()}),
            "mismatched namespaces: spec.steps[0].ref.namespace\n\
             parent namespace: \"shop\" does not match ref: \"theirs\"",
        ),
    ];
    for (spec, expected) in cases {
        let errors = sequence_in_shop(spec.clone()).validate(&Request::new(Operation::Create));
        assert_eq!(errors.to_string(), expected, "{spec}");
    }
}

fn channel_defaults() -> ChannelDefaults {
    let yaml = "
clusterDefault: {apiVersion: messaging.knative.dev/v1, kind: InMemoryChannel}
namespaceDefaults:
  shop: {apiVersion: messaging.knative.dev/v1beta1, kind: KafkaChannel, spec: {numPartitions: 10}}
";
    ChannelDefaults::from_config_map(&BTreeMap::from([("default-ch-config".into(), yaml.into())])).unwrap()
}

#[test]
fn the_config_map_of_default_channels_needs_its_key() {
    let error = ChannelDefaults::from_config_map(&BTreeMap::new()).unwrap_err();
    assert_eq!(error.to_string(), "the key default-ch-config is missing");
}

#[tokio::test]
async fn the_channel_template_and_the_namespaces_of_references_have_defaults() {
    let webhook = webhook(&Context::new("sequence", ApiServer::new().client())).unwrap();
    let admitted_in = async |namespace: &str, spec: Value| {
        let mut sequence = sequence("s", spec);
        sequence.metadata.namespace = Some(namespace.into());
        let request = TestRequest::create(&sequence).with(channel_defaults());
        webhook.admit(request).await.unwrap().object["spec"].clone()
    };
    let spec = json!({"steps": [service("first")], "reply": service("reply")});
    let admitted = admitted_in("shop", spec.clone()).await;
    assert_eq!(admitted["channelTemplate"]["kind"], "KafkaChannel");
    assert_eq!(admitted["channelTemplate"]["spec"], json!({"numPartitions": 10}));
    assert_eq!(admitted["steps"][0]["ref"]["namespace"], "shop");
    assert_eq!(admitted["reply"]["ref"]["namespace"], "shop");

    assert_eq!(admitted_in("bank", spec.clone()).await["channelTemplate"]["kind"], "InMemoryChannel");
    let mut with_template = spec.clone();
    with_template["channelTemplate"] = json!({"apiVersion": "v1", "kind": "OtherChannel", "spec": {}});
    let admitted = admitted_in("shop", with_template.clone()).await;
    assert_eq!(admitted["channelTemplate"], with_template["channelTemplate"]);

    let without_defaults = webhook.admit(TestRequest::create(sequence_in_shop(spec))).await.unwrap_err();
    assert!(
        without_defaults.to_string().contains("missing field(s): spec.channelTemplate"),
        "{without_defaults}"
    );
}
