//! Configurations in a real API server, which get their rules, selectors and CA bundles from the webhook.

use std::{
    collections::BTreeMap,
    error::Error,
    sync::atomic::{AtomicU32, Ordering},
};

use http::{Request as HttpRequest, Response};
use k8s_openapi::api::{admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::ConfigMap};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, Patch, PatchParams, PostParams},
    client::Body,
};
use reknit_apis::{EXAMPLE_CHECKSUM_ANNOTATION, Request, example_checksum};
use reknit_injection::FromConfigMap;
use reknit_testing::{ControlPlane, eventually};
use reknit_webhook::{Mutator, Webhook, internal::ServiceNames};
use serde_json::{Value, json};
use tower::BoxError;

use crate::{
    bulb::v1alpha1,
    lamp::Lamp,
    local_server::serve,
    process::{Process, TIMEOUT},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_created_and_edited_configurations_are_restored() {
    let process = Process::start("certificate", |webhook| webhook.defaulting::<Lamp>()).await;
    process.configure_defaulting().await;
    let secret = process.secret().await.data.unwrap();
    for key in ["server-key.pem", "server-cert.pem", "ca-cert.pem"] {
        assert!(secret.contains_key(key), "{key} is missing");
    }
    let name = format!("defaulting.webhook.{}", process.domain);
    let before = process.mutating().get(&name).await.unwrap();
    let webhook_entry = before.webhooks.as_ref().unwrap()[0].clone();
    assert_eq!(webhook_entry.client_config.url, Some(process.url("/defaulting")));
    let rule = &webhook_entry.rules.as_ref().unwrap()[0];
    assert_eq!(
        (&rule.resources, &rule.operations),
        (&Some(vec!["lamps".into()]), &Some(vec!["CREATE".into(), "UPDATE".into()]))
    );
    let selector = webhook_entry.namespace_selector.clone().unwrap().match_expressions.unwrap();
    assert_eq!((&*selector[0].key, &*selector[0].operator), ("webhooks.knative.dev/exclude", "DoesNotExist"));

    let mut edited = before.clone();
    edited.webhooks.as_mut().unwrap()[0].rules = None;
    edited.webhooks.as_mut().unwrap()[0].client_config.ca_bundle = None;
    process.mutating().replace(&name, &PostParams::default(), &edited).await.unwrap();
    eventually("the configuration to be restored", TIMEOUT, async || {
        process.mutating().get(&name).await.unwrap().webhooks == before.webhooks
    })
    .await;
    process.wait_for_watts(Some(40)).await;

    process.mutating().delete(&name, &Default::default()).await.unwrap();
    process.wait_for_watts(None).await;
    process.configure_defaulting().await;
}

/// Returns a client that may not list CustomResourceDefinitions.
fn without_definitions(client: Client) -> Client {
    let service = tower::service_fn(move |request: HttpRequest<Body>| {
        let client = client.clone();
        async move {
            if !request.uri().path().ends_with("/customresourcedefinitions") {
                return client.send(request).await.map_err(BoxError::from);
            }
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden",
                "message": "customresourcedefinitions is forbidden", "code": 403});
            Ok(Response::builder().status(403).body(Body::from(status.to_string().into_bytes()))?)
        }
    });
    Client::new(service, "default")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_that_may_not_be_listed_does_not_hold_up_the_other_registrations() {
    let names_in = |_: &str| ServiceNames::default();
    let process = Process::start_through("unlisted", without_definitions, names_in, |webhook| {
        webhook.defaulting::<Lamp>().conversion::<v1alpha1::Bulb>()
    });
    process.await.configure_defaulting().await;
}

/// Gives all configurations the name of the domain.
fn one_name(domain: &str) -> ServiceNames {
    let configurations = ["defaulting", "validation", "config"].map(|step| (step.into(), domain.into()));
    ServiceNames { configurations: configurations.into(), ..ServiceNames::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn configurations_of_one_name_are_all_registered() {
    let configure =
        |webhook: Webhook| webhook.defaulting::<Lamp>().validation::<Lamp>().config_validation::<Features>();
    let process = Process::start_through("one-name", |client| client, one_name, configure).await;
    let with_entries = |entries: &[(&str, &str)]| {
        let entry = |(step, path): &(&str, &str)| process.configuration(step, path)["webhooks"][0].clone();
        let entries: Vec<_> = entries.iter().map(entry).collect();
        json!({"metadata": {"name": process.domain}, "webhooks": entries})
    };
    let mutating = serde_json::from_value(with_entries(&[("defaulting", "/defaulting")])).unwrap();
    process.mutating().create(&PostParams::default(), &mutating).await.unwrap();
    let steps = [("validation", "/resource-validation"), ("config", "/config-validation")];
    let validating: ValidatingWebhookConfiguration = serde_json::from_value(with_entries(&steps)).unwrap();
    let api: Api<ValidatingWebhookConfiguration> = Api::all(process.client.clone());
    api.create(&PostParams::default(), &validating).await.unwrap();
    process.wait_for_watts(Some(40)).await;
    eventually("both entries to have rules and a bundle", TIMEOUT, async || {
        let entries = api.get(&process.domain).await.unwrap().webhooks.unwrap();
        entries.iter().all(|entry| entry.rules.is_some() && entry.client_config.ca_bundle.is_some())
    })
    .await;
}

/// Selects Lamps with a label, and changes nothing.
struct Labelled([ApiResource; 1]);

impl Mutator for Labelled {
    fn path(&self) -> &'static str {
        "/labelled"
    }

    fn resources(&self) -> &[ApiResource] {
        &self.0
    }

    fn configure(&self, entry: &mut Value) {
        entry["objectSelector"]["matchLabels"] = json!({"labelled": "true"});
    }

    fn mutate(&self, _: &Request, _: Option<&Value>, _: &mut Value) -> Result<(), String> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_of_a_mutator_gets_its_rules_and_selectors() {
    let labelled = || Labelled([ApiResource::erase::<Lamp>(&())]);
    let process = Process::start("mutator", |webhook| webhook.mutator(labelled())).await;
    let configuration = serde_json::from_value(process.configuration("labelled", "/labelled")).unwrap();
    let name = process.mutating().create(&PostParams::default(), &configuration).await.unwrap().name_any();
    let webhook = eventually("the rules of the mutator", TIMEOUT, async || {
        let webhook = process.mutating().get(&name).await.ok()?.webhooks?.remove(0);
        webhook.rules.is_some().then_some(webhook)
    })
    .await;
    let resources = webhook.rules.into_iter().flatten().flat_map(|rule| rule.resources).flatten();
    assert_eq!(resources.collect::<Vec<_>>(), ["lamps"]);
    assert_eq!(json!(webhook.object_selector.unwrap()), json!({"matchLabels": {"labelled": "true"}}));
    let of_namespaces = webhook.namespace_selector.unwrap().match_expressions.unwrap();
    assert_eq!(of_namespaces[0].key, "webhooks.knative.dev/exclude");
}

#[derive(Default)]
struct Features;

impl FromConfigMap for Features {
    const NAME: &'static str = "config-features";

    fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let fast = data.get("fast").map(|text| text.parse::<bool>()).transpose();
        fast.map_err(|_| "fast: neither true nor false")?;
        Ok(Self)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unparsable_config_map_and_an_edited_example_are_refused() {
    let process = Process::start("config", |webhook| webhook.config_validation::<Features>()).await;
    let configuration: ValidatingWebhookConfiguration =
        serde_json::from_value(process.configuration("config", "/config-validation")).unwrap();
    Api::all(process.client.clone()).create(&PostParams::default(), &configuration).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(process.client.clone(), &process.namespace);
    let example = "fast: true";
    let mut map = ConfigMap::default();
    map.metadata.name = Some("config-features".into());
    map.annotations_mut().insert(EXAMPLE_CHECKSUM_ANNOTATION.into(), example_checksum(example));
    map.data = Some(BTreeMap::from([("_example".into(), example.into())]));
    eventually("the ConfigMap to be created", TIMEOUT, async || {
        maps.create(&PostParams::default(), &map).await
    })
    .await;
    let refusal = async |data: Value| {
        let patch = Patch::Merge(json!({"data": data}));
        match maps.patch("config-features", &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) => status.message,
            other => format!("{other:?}"),
        }
    };
    let denial = format!("admission webhook \"config.webhook.{}\" denied the request: ", process.domain);
    let attempts = AtomicU32::new(0);
    eventually("a refusal with the message of the parser", TIMEOUT, async || {
        // Another change each time: the first ones may be stored before the API server calls the webhook, and a change
        // that leaves stored data as it is would be admitted.
        let attempt = attempts.fetch_add(1, Ordering::Relaxed);
        let message = refusal(json!({"fast": format!("very {attempt}")})).await;
        let expected = format!("{denial}validation failed: fast: neither true nor false");
        if message == expected { Ok(()) } else { Err(message) }
    })
    .await;
    let message = refusal(json!({"_example": "fast: false"})).await;
    let expected =
        "validation failed: the update modifies a key in \"_example\" which is probably not what you want.";
    assert!(message.starts_with(&format!("{denial}{expected}")), "{message}");
    let other = Patch::Merge(json!({"data": {"fast": "true"}}));
    maps.patch("config-features", &PatchParams::default(), &other).await.unwrap();
}

/// The page on troubleshooting quotes the message.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_refused_because_of_a_configuration_of_another_release() {
    let plane = ControlPlane::start().await.unwrap();
    plane.install::<Lamp>().await.unwrap();
    let server = serve(Webhook::new("demo.reknit.dev").defaulting::<Lamp>()).await;
    let client_config = json!({
        "url": server.url("/bindings"), "caBundle": k8s_openapi::ByteString(server.ca.clone().into_bytes()),
    });
    let rules = json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]);
    let name = "bindings.webhook.demo.reknit.dev";
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [{"name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": client_config, "rules": rules}],
    });
    plane.apply_yaml(&configuration.to_string()).await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(plane.client().unwrap());
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let map = serde_json::from_value(json!({"metadata": {"name": "x"}})).unwrap();
    eventually("the refusal", TIMEOUT, async || {
        let refused = maps.create(&dry_run, &map).await.map(drop);
        let Err(kube::Error::Api(status)) = refused else { return Err("it is created".to_owned()) };
        let expected = format!(
            "failed calling webhook \"{name}\": failed to call webhook: the server rejected our request for an unknown reason"
        );
        if status.message.contains(&expected) { Ok(()) } else { Err(status.message) }
    })
    .await;
}
