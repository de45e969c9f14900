//! Tests of conversion between two versions of a Kind.

use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::ByteString;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::{
    Api, CustomResourceExt, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::crd::merge_crds,
};
use reknit_apis::{FieldError, Level, Request, Validatable, definition_of};
use reknit_testing::{ControlPlane, eventually};
use reknit_webhook::Webhook;
use reknit_webhook::migrate_storage;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    beacon,
    bulb::{v1, v1alpha1},
    lantern,
    local_server::issue_certificate,
    process::{Process, kubectl},
};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
pub(crate) const BULBS: &str = "bulbs.tests.reknit.dev";

/// The CustomResourceDefinition of both versions, with this `clientConfig` and this storage version.
fn definition(client_config: &Value, storage: &str) -> CustomResourceDefinition {
    let mut definition = merge_crds(vec![v1::Bulb::crd(), v1alpha1::Bulb::crd()], storage).unwrap();
    definition.spec.conversion = serde_json::from_value(json!({
        "strategy": "Webhook",
        "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client_config},
    }))
    .unwrap();
    definition
}

/// Waits until the CustomResourceDefinition has this `clientConfig` with the CA bundle of the Secret.
async fn wait_until_trusted(
    process: &Process,
    definitions: &Api<CustomResourceDefinition>,
    client_config: &Value,
) {
    eventually(format!("{client_config} to be trusted"), TIMEOUT, async || {
        let definition = json!(definitions.get(BULBS).await.unwrap());
        let current = definition["spec"]["conversion"]["webhook"]["clientConfig"].clone();
        let secret = process.try_secret().await.map_err(|error| error.to_string())?;
        let mut expected = client_config.clone();
        expected["caBundle"] = json!(secret.data.unwrap_or_default().get("ca-cert.pem"));
        if current == expected { Ok(()) } else { Err(current.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_a_test_serves_converts_objects() {
    let plane = ControlPlane::start().await.unwrap();
    let mut crd = merge_crds(vec![v1::Bulb::crd(), v1alpha1::Bulb::crd()], "v1").unwrap();
    // A definition as it is deployed names the Service of the webhook.
    let service = json!({"clientConfig": {"service": {"name": "webhook", "namespace": "lamps"}},
        "conversionReviewVersions": ["v1"]});
    crd.spec.conversion = serde_json::from_value(json!({"strategy": "Webhook", "webhook": service})).unwrap();
    plane.install_crd(crd).await.unwrap();
    let webhook = Webhook::new("tests.reknit.dev").conversion::<v1alpha1::Bulb>();
    let _server = plane.serve_webhook("default", |_| Ok(webhook)).await.unwrap();
    let old: Api<v1alpha1::Bulb> = Api::namespaced(plane.client().unwrap(), "default");
    let spec = v1alpha1::BulbSpec { watts: 2.5, colour: None };
    eventually("the conversion of a bulb", TIMEOUT, async || {
        old.create(&PostParams::default(), &v1alpha1::Bulb::new("x", spec.clone())).await
    })
    .await;
    let new: Api<v1::Bulb> = Api::namespaced(plane.client().unwrap(), "default");
    assert_eq!(new.get("x").await.unwrap().spec.milliwatts, 2_500);
}

impl Validatable for v1::Bulb {
    fn validate(&self, _: &Request) -> FieldError {
        match self.spec.milliwatts {
            milliwatts @ 100_000.. => FieldError::out_of_bounds(milliwatts, 0, 99_999, "spec.milliwatts"),
            milliwatts @ 61_000.. => {
                FieldError::invalid_value(milliwatts, "spec.milliwatts").at(Level::Warning)
            }
            _ => FieldError::none(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_a_converted_object_names_the_version_of_its_fields() {
    let plane = ControlPlane::start().await.unwrap();
    plane.install_crd(merge_crds(vec![v1::Bulb::crd(), v1alpha1::Bulb::crd()], "v1").unwrap()).await.unwrap();
    let webhook = Webhook::new("tests.reknit.dev").conversion::<v1alpha1::Bulb>().validation::<v1::Bulb>();
    let _server = plane.serve_webhook("default", |_| Ok(webhook)).await.unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let create = |name: &str, version: &str, spec: Value| {
        let bulb = json!({"apiVersion": format!("tests.reknit.dev/{version}"), "kind": "Bulb",
            "metadata": {"name": name, "namespace": "default"}, "spec": spec});
        std::fs::write(file.path(), bulb.to_string()).unwrap();
        kubectl(&plane, &["create", "--filename", &file.path().to_string_lossy()]).1
    };
    eventually("the conversion of a bulb", TIMEOUT, async || {
        let printed = create("dim", "v1alpha1", json!({"watts": 1}));
        if printed.contains("created") { Ok(()) } else { Err(printed) }
    })
    .await;
    let note = "(in v1, to which the API server converts v1alpha1)";
    let refused = create("bright", "v1alpha1", json!({"watts": 200}));
    assert!(refused.contains("spec.milliwatts") && refused.contains(note), "{refused}");
    let warned = create("warm", "v1alpha1", json!({"watts": 80}));
    assert!(warned.contains("Warning:") && warned.contains(note), "{warned}");
    let refused = create("bright", "v1", json!({"milliwatts": 200_000}));
    assert!(refused.contains("spec.milliwatts") && !refused.contains("converts"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_of_a_wrong_type_is_refused_as_invalid_in_both_versions() {
    let plane = ControlPlane::start().await.unwrap();
    plane.install_crd(merge_crds(vec![v1::Bulb::crd(), v1alpha1::Bulb::crd()], "v1").unwrap()).await.unwrap();
    let webhook = Webhook::new("tests.reknit.dev").conversion::<v1alpha1::Bulb>().validation::<v1::Bulb>();
    let _server = plane.serve_webhook("default", |_| Ok(webhook)).await.unwrap();
    let create = async |version: &str, name: &str, spec: Value| {
        let mut resource = ApiResource::erase::<v1::Bulb>(&());
        resource.version = version.into();
        resource.api_version = format!("tests.reknit.dev/{version}");
        let bulbs: Api<DynamicObject> = Api::namespaced_with(plane.client().unwrap(), "default", &resource);
        let bulb = DynamicObject::new(name, &resource).data(json!({ "spec": spec }));
        bulbs.create(&PostParams::default(), &bulb).await
    };
    eventually("the conversion of a bulb", TIMEOUT, async || {
        create("v1alpha1", "dim", json!({"watts": 1})).await
    })
    .await;
    for (version, field) in [("v1alpha1", "watts"), ("v1", "milliwatts")] {
        let refused = create(version, "wrong", json!({ field: "many" })).await;
        let Err(kube::Error::Api(status)) = &refused else { panic!("{version}: {refused:?}") };
        assert_eq!((status.code, &*status.reason), (422, "Invalid"), "{status:?}");
        assert!(status.message.contains(&format!("spec.{field}: Invalid value")), "{status:?}");
    }
}

/// The managers of an object, with the version in which each applies and its fields.
pub(crate) fn managers(object: &DynamicObject) -> Vec<(String, String, Value)> {
    let fields = object.metadata.managed_fields.iter().flatten();
    let of = |entry: &ManagedFieldsEntry| {
        let (manager, version) = (entry.manager.clone(), entry.api_version.clone());
        (manager.unwrap_or_default(), version.unwrap_or_default(), json!(entry.fields_v1))
    };
    fields.map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_applies_in_one_version_after_another() {
    let plane = ControlPlane::start().await.unwrap();
    let crd = merge_crds(vec![v1::Bulb::crd(), v1alpha1::Bulb::crd()], "v1").unwrap();
    plane.install_crd(crd).await.unwrap();
    let webhook = Webhook::new("tests.reknit.dev").conversion::<v1alpha1::Bulb>();
    let _server = plane.serve_webhook("default", |_| Ok(webhook)).await.unwrap();
    let bulbs = |resource: ApiResource| -> Api<DynamicObject> {
        Api::namespaced_with(plane.client().unwrap(), "default", &resource)
    };
    let (old, new) =
        (bulbs(ApiResource::erase::<v1alpha1::Bulb>(&())), bulbs(ApiResource::erase::<v1::Bulb>(&())));
    let apply = async |api: &Api<DynamicObject>, version: &str, manager: &str, name: &str, fields: Value| {
        let mut object = json!({"apiVersion": format!("tests.reknit.dev/{version}"), "kind": "Bulb"});
        object["metadata"] = json!({"name": name});
        for (key, value) in fields.as_object().unwrap() {
            match value.as_object().filter(|_| key == "metadata") {
                Some(metadata) => object[key].as_object_mut().unwrap().extend(metadata.clone()),
                None => object[key] = value.clone(),
            }
        }
        api.patch(name, &PatchParams::apply(manager), &Patch::Apply(object)).await
    };
    let applied = eventually("the conversion of a bulb", TIMEOUT, async || {
        apply(&old, "v1alpha1", "t", "x", json!({"spec": {"watts": 60.0, "colour": "red"}})).await
    });
    assert_eq!(applied.await.data["spec"]["watts"], 60);
    let applied = apply(&new, "v1", "t", "x", json!({"spec": {"milliwatts": 60_000}})).await.unwrap();
    // The default of the conversion takes the place of the colour, which no manager applies any longer.
    assert_eq!(applied.data["spec"], json!({"milliwatts": 60_000, "colour": "warm"}));
    let owned = json!({"f:spec": {"f:milliwatts": {}}});
    assert_eq!(managers(&applied), [("t".into(), "tests.reknit.dev/v1".into(), owned)]);

    // A manager that owns nothing but a label, and one that moves back.
    let label = |value: &str| json!({"metadata": {"labels": {"a": value}}});
    apply(&old, "v1alpha1", "labeller", "x", label("b")).await.unwrap();
    let labelled = apply(&new, "v1", "labeller", "x", label("c")).await.unwrap();
    assert_eq!((&labelled.labels()["a"][..], &labelled.data["spec"]["milliwatts"]), ("c", &json!(60_000)));
    let back = apply(&old, "v1alpha1", "t", "x", json!({"spec": {"watts": 61.5}})).await.unwrap();
    assert_eq!(back.data["spec"]["watts"], 61.5);
    let mut owners = managers(&back);
    owners.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(owners[0].2, json!({"f:metadata": {"f:labels": {"f:a": {}}}}));
    assert_eq!(owners[1].2, json!({"f:spec": {"f:watts": {}}}));
    assert_eq!(new.get("x").await.unwrap().data["spec"]["milliwatts"], 61_500);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_applies_in_another_version_whatever_the_types_of_the_required_fields() {
    let plane = ControlPlane::start().await.unwrap();
    let versions = [definition_of::<beacon::v1alpha1::Beacon>(), definition_of::<beacon::v1::Beacon>()];
    let crd = merge_crds(versions.map(Result::unwrap).into(), "v1alpha1").unwrap();
    plane.install_crd(crd).await.unwrap();
    let webhook = Webhook::new("tests.reknit.dev").conversion::<beacon::v1::Beacon>();
    let _server = plane.serve_webhook("default", |_| Ok(webhook)).await.unwrap();
    let api = |resource: &ApiResource| -> Api<DynamicObject> {
        Api::namespaced_with(plane.client().unwrap(), "default", resource)
    };
    let (old, new) =
        (ApiResource::erase::<beacon::v1alpha1::Beacon>(&()), ApiResource::erase::<beacon::v1::Beacon>(&()));
    let site = json!({"address": "fd00::7", "power": {"type": "Mains", "volts": 230},
        "light": {"Blinking": {"hertz": 2}}, "release": "3.1.4"});
    let apply = async |resource: &ApiResource, watts: Value| {
        let mut beacon = json!({"apiVersion": resource.api_version, "kind": "Beacon",
            "metadata": {"name": "x"}, "spec": watts});
        beacon["spec"]["site"] = site.clone();
        api(resource).patch("x", &PatchParams::apply("t"), &Patch::Apply(beacon)).await
    };
    eventually("the conversion of a beacon", TIMEOUT, async || apply(&old, json!({"watts": 2})).await).await;
    let status = Patch::Merge(json!({"status": {"phase": "Shining"}}));
    api(&old).patch_status("x", &PatchParams::default(), &status).await.unwrap();
    for (resource, watts) in [(&new, json!({"milliwatts": 3_000})), (&old, json!({"watts": 4}))] {
        let applied = apply(resource, watts.clone()).await.unwrap();
        let mut expected = watts;
        expected["site"] = site.clone();
        assert_eq!((&applied.data["spec"], &applied.data["status"]["phase"]), (&expected, &json!("Shining")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_of_a_newer_release_hides_no_object_in_the_other_version() {
    let plane = ControlPlane::start().await.unwrap();
    let crds = vec![lantern::v1::Lantern::crd(), lantern::v1alpha1::Lantern::crd()];
    let mut crd = json!(merge_crds(crds, "v1").unwrap());
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        // The newer release knows more phases.
        version["schema"]["openAPIV3Schema"]["properties"]["status"] =
            json!({"type": "object", "properties": {"phase": {"type": "string"}}});
    }
    plane.install_crd(serde_json::from_value(crd).unwrap()).await.unwrap();
    let webhook = Webhook::new("tests.reknit.dev").conversion::<lantern::v1alpha1::Lantern>();
    let _server = plane.serve_webhook("default", |_| Ok(webhook)).await.unwrap();
    let new: Api<lantern::v1::Lantern> = Api::namespaced(plane.client().unwrap(), "default");
    let old: Api<lantern::v1alpha1::Lantern> = Api::namespaced(plane.client().unwrap(), "default");
    for name in ["plain", "migrating"] {
        let spec = lantern::v1::LanternSpec { milliwatts: 2_000 };
        new.create(&PostParams::default(), &lantern::v1::Lantern::new(name, spec)).await.unwrap();
    }
    let migrating = Patch::Merge(json!({"status": {"phase": "Migrating"}}));
    let dynamic: Api<DynamicObject> = Api::namespaced_with(
        plane.client().unwrap(),
        "default",
        &ApiResource::erase::<lantern::v1::Lantern>(&()),
    );
    dynamic.patch_status("migrating", &PatchParams::default(), &migrating).await.unwrap();

    let listed =
        eventually("a list in the older version", TIMEOUT, async || old.list(&ListParams::default()).await);
    let listed: Vec<_> =
        listed.await.items.into_iter().map(|object| (object.name_any(), object.spec.watts)).collect();
    assert_eq!(listed, [("migrating".into(), 2), ("plain".into(), 2)]);
    assert_eq!(dynamic.get("migrating").await.unwrap().data["status"]["phase"], "Migrating");
    let labelled = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    old.patch("migrating", &PatchParams::default(), &labelled).await.unwrap();
    let written = dynamic.get("migrating").await.unwrap().data;
    assert_eq!(
        written["status"],
        Value::Null,
        "a write in the version that cannot have this status drops it"
    );
    let brighter = Patch::Merge(json!({"spec": {"watts": 3}}));
    old.patch("migrating", &PatchParams::default(), &brighter).await.unwrap();
    assert_eq!(dynamic.get("migrating").await.unwrap().data["spec"], json!({"milliwatts": 3_000}));
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_read_written_listed_and_migrated_in_both_versions() {
    let process = Process::start("conversion", |webhook| webhook.conversion::<v1alpha1::Bulb>()).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(process.client.clone());
    let service = json!({"name": "webhook", "namespace": process.namespace, "port": 8443, "path": "/other"});
    let by_service = definition(&json!({"service": service}), "v1alpha1");
    definitions.create(&PostParams::default(), &by_service).await.unwrap();
    let mut expected = service;
    expected["path"] = json!("/resource-conversion");
    wait_until_trusted(&process, &definitions, &json!({"service": expected})).await;
    let url = json!({"url": process.url("/resource-conversion")});
    let by_url = Patch::Merge(
        json!({"spec": {"conversion": {"webhook": {"clientConfig": {"service": null, "url": url["url"]}}}}}),
    );
    definitions.patch(BULBS, &PatchParams::default(), &by_url).await.unwrap();
    wait_until_trusted(&process, &definitions, &url).await;
    // A bundle set by a user is replaced.
    let other = ByteString(issue_certificate().0.into_bytes());
    let edited =
        Patch::Merge(json!({"spec": {"conversion": {"webhook": {"clientConfig": {"caBundle": other}}}}}));
    definitions.patch(BULBS, &PatchParams::default(), &edited).await.unwrap();
    wait_until_trusted(&process, &definitions, &url).await;
    let older: Api<v1alpha1::Bulb> = Api::namespaced(process.client.clone(), &process.namespace);
    let newer: Api<v1::Bulb> = Api::namespaced(process.client.clone(), &process.namespace);

    // Nothing is lost in a round trip, and the hub has its defaults.
    let plain = v1alpha1::Bulb::new("plain", v1alpha1::BulbSpec { watts: 40.5, colour: None });
    eventually("the older version to be served", TIMEOUT, async || {
        older.create(&PostParams::default(), &plain).await
    })
    .await;
    let read = eventually("the newer version to be served", TIMEOUT, async || newer.get("plain").await).await;
    assert_eq!((read.spec.milliwatts, read.spec.colour.as_deref()), (40_500, Some("warm")));
    let spec = v1::BulbSpec { milliwatts: 9_000, socket: Some("E14".into()), colour: Some("cold".into()) };
    newer.create(&PostParams::default(), &v1::Bulb::new("rich", spec.clone())).await.unwrap();
    assert_eq!(older.get("rich").await.unwrap().spec.watts, 9.0);
    let dimmed = Patch::Merge(json!({"spec": {"watts": 8.0}}));
    older.patch("rich", &PatchParams::default(), &dimmed).await.unwrap();
    let rich = newer.get("rich").await.unwrap();
    assert_eq!(rich.spec, v1::BulbSpec { milliwatts: 8_000, ..spec });
    assert_eq!(rich.metadata.annotations, None);

    // kubectl reads both versions.
    let message = kubectl(
        process.plane,
        &[
            "-n",
            &process.namespace,
            "get",
            "bulbs.v1.tests.reknit.dev/rich",
            "-o",
            "jsonpath={.spec.milliwatts}",
        ],
    );
    assert_eq!(message, (true, "8000".into()));
    let message = kubectl(
        process.plane,
        &[
            "-n",
            &process.namespace,
            "get",
            "bulbs.v1alpha1.tests.reknit.dev/rich",
            "-o",
            "jsonpath={.spec.watts}",
        ],
    );
    assert_eq!(message, (true, "8".into()));

    // A failed conversion is reported.
    let negative = v1alpha1::Bulb::new("negative", v1alpha1::BulbSpec { watts: -1.0, colour: None });
    older.create(&PostParams::default(), &negative).await.unwrap();
    let error = newer.get("negative").await.unwrap_err().to_string();
    assert!(error.contains("/negative\": -1 W is less than nothing"), "{error}");
    older.delete("negative", &Default::default()).await.unwrap();

    // The list is longer than a page.
    let created = stream::iter(0..600).map(async |n| {
        let spec = v1alpha1::BulbSpec { watts: f64::from(n), colour: None };
        older.create(&PostParams::default(), &v1alpha1::Bulb::new(&format!("bulb-{n}"), spec)).await.unwrap();
    });
    created.buffer_unordered(20).collect::<()>().await;
    let (requests, seconds) = conversions(&process);
    let start = Instant::now();
    let list = newer.list(&ListParams::default()).await.unwrap();
    let elapsed = start.elapsed();
    let (requests, seconds) = (conversions(&process).0 - requests, conversions(&process).1 - seconds);
    println!(
        "{} converted in a list of {elapsed:?}: {requests} requests, {seconds:.3} s in the webhook",
        list.items.len()
    );
    assert_eq!(list.items.len(), 602);
    assert!(list.items.iter().all(|bulb| bulb.spec.colour.is_some()));
    assert!(requests >= 1);

    // All objects are stored in the newer version.
    let newer_as_storage = Patch::Merge(json!({"spec": {"versions": definition(&url, "v1").spec.versions}}));
    definitions.patch(BULBS, &PatchParams::default(), &newer_as_storage).await.unwrap();
    assert_eq!(migrate_storage(&process.client, BULBS).await.unwrap(), 602);
    let migrated = definitions.get(BULBS).await.unwrap();
    assert_eq!(migrated.status.unwrap().stored_versions, Some(vec!["v1".into()]));
    // No object is stored in the older version, so reading the newer version needs no conversion.
    let before = conversions(&process).0;
    assert_eq!(newer.list(&ListParams::default()).await.unwrap().items.len(), 602);
    assert_eq!(conversions(&process).0, before);
    let unknown = migrate_storage(&process.client, "nothing.tests.reknit.dev").await.unwrap_err().in_full();
    assert!(
        unknown.starts_with("failed to read or update CustomResourceDefinition nothing.tests.reknit.dev: "),
        "{unknown}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_goes_on_past_an_object_that_cannot_be_converted() {
    let plane = ControlPlane::start().await.unwrap();
    let crd = |storage| merge_crds(vec![v1::Bulb::crd(), v1alpha1::Bulb::crd()], storage).unwrap();
    plane.install_crd(crd("v1alpha1")).await.unwrap();
    let webhook = Webhook::new("tests.reknit.dev").conversion::<v1alpha1::Bulb>();
    let _server = plane.serve_webhook("default", |_| Ok(webhook)).await.unwrap();
    let client = plane.client().unwrap();
    let older: Api<v1alpha1::Bulb> = Api::namespaced(client.clone(), "default");
    for (name, watts) in [("a", 1.0), ("b", -1.0), ("c", 1.0)] {
        let bulb = v1alpha1::Bulb::new(name, v1alpha1::BulbSpec { watts, colour: None });
        older.create(&PostParams::default(), &bulb).await.unwrap();
    }
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let newer_as_storage = Patch::Merge(json!({"spec": {"versions": crd("v1").spec.versions}}));
    definitions.patch(BULBS, &PatchParams::default(), &newer_as_storage).await.unwrap();
    let newer: Api<v1::Bulb> = Api::namespaced(client.clone(), "default");
    eventually("the conversion of a bulb", TIMEOUT, async || newer.get("a").await).await;
    // Without a limit, the API server answers 429 for minutes: its watch cache lacks the bulb that cannot be converted.
    let page = newer.list(&ListParams::default().limit(10)).await;
    assert!(page.is_err(), "{page:?}");

    let message = migrate_storage(&client, BULBS).await.unwrap_err().in_full();
    assert!(message.starts_with("failed to update 1 objects: bulbs default/b: "), "{message}");
    assert!(message.contains("-1 W is less than nothing"), "{message}");
    assert!(message.contains("; 2 objects are migrated;"), "{message}");
}

/// Returns the number of conversion requests that were answered, and the seconds that they took.
fn conversions(process: &Process) -> (u64, f64) {
    let families = process.registry.gather();
    let family = families.iter().find(|family| family.name() == "controller_runtime_webhook_latency_seconds");
    let metrics = family.into_iter().flat_map(|family| family.get_metric());
    let mut histograms = metrics
        .filter(|metric| metric.get_label().iter().any(|label| label.value() == "/resource-conversion"));
    histograms.next().map_or((0, 0.0), |metric| {
        let histogram = metric.get_histogram();
        (histogram.get_sample_count(), histogram.get_sample_sum())
    })
}
