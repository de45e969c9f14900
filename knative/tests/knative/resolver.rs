//! Destinations, and the addresses to which they resolve.

use k8s_openapi::api::core::v1::ConfigMap;
use reknit_apis::{Key, cluster_domain};
use reknit_injection::{Context, select};
use reknit_knative::{AddressResolver, Addressable, Destination};
use reknit_reconciler::{Controller, Kinds, Outcome, ReconcileKind, Result};
use reknit_testing::{ApiServer, ControllerExt, InformerExt};
use serde_json::{Value, json};

/// The object whose destination is resolved.
fn observer() -> ConfigMap {
    let metadata = json!({"namespace": "default", "name": "x"});
    serde_json::from_value(json!({ "metadata": metadata })).unwrap()
}

const SINK: &str = "Kind = Sink, Namespace = default, Name = s, APIVersion = demo.reknit.dev/v1, Group = ";

/// A destination that names the sink `s`.
fn sink_ref() -> Value {
    json!({"ref": {"apiVersion": "demo.reknit.dev/v1", "kind": "Sink", "name": "s"}})
}

fn sink_ref_and(field: &str, value: &str) -> Value {
    let mut destination = sink_ref();
    destination[field] = json!(value);
    destination
}

fn service_ref() -> Value {
    json!({"ref": {"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web"}})
}

fn service_ref_and(field: &str, value: &str) -> Value {
    let mut destination = service_ref();
    destination[field] = json!(value);
    destination
}

/// A destination that names an address of the sink.
fn sink_ref_with_address(address: &str) -> Value {
    let mut destination = sink_ref();
    destination["ref"]["address"] = json!(address);
    destination
}

fn sink(status: Value) -> Value {
    let mut sink = json!({"apiVersion": "demo.reknit.dev/v1", "kind": "Sink"});
    sink["metadata"] = json!({"namespace": "default", "name": "s", "labels": {"app": "sinks"}});
    sink["status"] = status;
    sink
}

fn sink_at(url: &str) -> Value {
    sink(json!({"address": {"url": url}}))
}

fn sink_with_certificates() -> Value {
    sink(json!({"address": {"url": "http://sink", "CACerts": "its own", "audience": "sinks"}}))
}

fn sink_with_addresses() -> Value {
    let addresses = json!([{"name": "a", "url": "http://a"}, {"name": "b", "url": "http://b"}]);
    sink(json!({"address": {"name": "z", "url": "http://z"}, "addresses": addresses}))
}

fn service() -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web"}})
}

fn preloaded_resolver(objects: Vec<Value>, kinds: Kinds) -> (Context, AddressResolver) {
    let cx = Context::preloaded("test", ApiServer::new().client(), objects);
    let resolver =
        AddressResolver::new(Controller::of::<ConfigMap>(&cx).track_any(kinds).across_namespaces());
    (cx, resolver)
}

async fn resolve(object: Value, destination: Value) -> Result<Addressable> {
    let objects = if object.is_null() { vec![] } else { vec![object] };
    let (_cx, resolver) = preloaded_resolver(objects, Kinds::any());
    let destination: Destination = serde_json::from_value(destination).unwrap();
    resolver.resolve(&observer(), &destination).await
}

#[tokio::test]
async fn a_destination_resolves_to_the_address_that_knative_gives_it() {
    let service_host = format!("web.shop.svc.{}", cluster_domain());
    let cases = [
        (Value::Null, json!({"uri": "http://example.com/foo"}), json!({"url": "http://example.com/foo"})),
        (
            Value::Null,
            json!({"uri": "https://example.com", "CACerts": "ours", "audience": "me"}),
            json!({"url": "https://example.com", "CACerts": "ours", "audience": "me"}),
        ),
        (sink_at("http://sink"), sink_ref(), json!({"url": "http://sink"})),
        (service(), service_ref(), json!({"url": format!("http://{service_host}")})),
        (service(), service_ref_and("uri", "/foo"), json!({"url": format!("http://{service_host}/foo")})),
        (
            service(),
            service_ref_and("CACerts", "ours"),
            json!({"url": format!("https://{service_host}"), "CACerts": "ours"}),
        ),
        (sink_at("http://sink"), sink_ref_and("uri", "/foo"), json!({"url": "http://sink/foo"})),
        (sink_at("http://sink"), sink_ref_and("uri", "foo"), json!({"url": "http://sink/foo"})),
        (sink_at("http://sink/bar/"), sink_ref_and("uri", "foo"), json!({"url": "http://sink/bar/foo"})),
        (sink_at("http://sink/bar/"), sink_ref_and("uri", "/foo"), json!({"url": "http://sink/foo"})),
        (sink_at("http://sink/bar"), sink_ref_and("uri", "foo"), json!({"url": "http://sink/foo"})),
        (sink_at("http://sink/bar"), sink_ref_and("uri", "/foo"), json!({"url": "http://sink/foo"})),
        (sink_with_addresses(), sink_ref_with_address("b"), json!({"name": "b", "url": "http://b"})),
        (sink_with_addresses(), sink_ref(), json!({"name": "a", "url": "http://a"})),
        (
            sink(json!({"address": {"name": "z", "url": "http://z"}, "addresses": null})),
            sink_ref(),
            json!({"name": "z", "url": "http://z"}),
        ),
        (
            sink_with_certificates(),
            sink_ref(),
            json!({"url": "http://sink", "CACerts": "its own", "audience": "sinks"}),
        ),
        (
            sink_with_certificates(),
            sink_ref_and("CACerts", "ours"),
            json!({"url": "http://sink", "CACerts": "ours", "audience": "sinks"}),
        ),
        (
            sink_with_certificates(),
            sink_ref_and("audience", "me"),
            json!({"url": "http://sink", "CACerts": "its own", "audience": "me"}),
        ),
        (
            sink_at("http://sink"),
            sink_ref_and("CACerts", "ours"),
            json!({"url": "http://sink", "CACerts": "ours"}),
        ),
    ];
    for (object, destination, expected) in cases {
        let address = resolve(object.clone(), destination.clone()).await.unwrap();
        assert_eq!(json!(address), expected, "{destination} of {object}");
    }
}

#[tokio::test]
async fn a_destination_without_an_address_is_a_permanent_error_with_knatives_message() {
    let cases = [
        (Value::Null, json!({}), "destination missing Ref and URI, expected at least one".into()),
        (
            Value::Null,
            json!({"uri": "//example.com"}),
            r#"URI is not absolute (both scheme and host should be non-empty): "//example.com""#.into(),
        ),
        (
            Value::Null,
            json!({"uri": "http:"}),
            r#"URI is not absolute (both scheme and host should be non-empty): "http:""#.into(),
        ),
        (
            sink_at("http://sink"),
            sink_ref_and("uri", "http://example.com"),
            "absolute URI is not allowed when Ref or [apiVersion, kind, name] exists".into(),
        ),
        (
            sink_at("http://sink"),
            sink_ref_and("uri", "//evil/x"),
            r#"URI with a host is not allowed when Ref or [apiVersion, kind, name] exists: "//evil/x""#
                .into(),
        ),
        (
            sink(json!({"address": {"url": null}})),
            sink_ref(),
            format!("URL missing in address of {SINK}, Address = "),
        ),
        (sink(json!({"address": null})), sink_ref(), format!("address not set for {SINK}, Address = ")),
        (sink(json!({"addresses": []})), sink_ref(), format!("address not set for {SINK}, Address = ")),
        (sink(Value::Null), sink_ref(), format!("address not set for {SINK}, Address = ")),
        (sink_at("http://"), sink_ref(), format!("hostname missing in address of {SINK}, Address = ")),
        (
            sink_with_addresses(),
            sink_ref_with_address("c"),
            format!("address with name \"c\" not found for {SINK}, Address = c"),
        ),
        (
            sink(json!({"address": "http://sink"})),
            sink_ref(),
            format!("{SINK}, Address =  is not an AddressableType"),
        ),
        (
            Value::Null,
            sink_ref(),
            "failed to get object default/s: sinks.demo.reknit.dev \"s\" not found".into(),
        ),
        (Value::Null, service_ref(), "failed to get object shop/web: services \"web\" not found".into()),
    ];
    for (object, destination, expected) in cases {
        let error = resolve(object.clone(), destination.clone()).await.unwrap_err();
        assert_eq!(error.to_string(), expected, "{destination} of {object}");
        assert!(error.is_permanent(), "{error}");
    }
}

#[tokio::test]
async fn a_reference_to_a_kind_that_is_not_allowed_is_a_permanent_error() {
    let kinds = Kinds::of([("messaging.knative.dev", "*")]);
    let (_cx, resolver) = preloaded_resolver(vec![sink_at("http://sink")], kinds);
    let destination: Destination = serde_json::from_value(sink_ref()).unwrap();
    let error = resolver.resolve(&observer(), &destination).await.unwrap_err();
    assert!(error.is_permanent());
    assert!(
        error
            .to_string()
            .contains("Sink of demo.reknit.dev/v1 is not among the Kinds that this controller may use"),
        "{error}"
    );
}

/// Succeeds once the sink has an address.
struct SinkFollower(AddressResolver);

impl ReconcileKind for SinkFollower {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let destination = serde_json::from_value(sink_ref())?;
        self.0.resolve(map, &destination).await?;
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn an_address_that_appears_later_enqueues_the_observer() {
    let server = ApiServer::new();
    let cx = Context::preloaded("test", server.client(), vec![server.insert(&observer())]);
    let mut build = Controller::of::<ConfigMap>(&cx);
    let resolver = AddressResolver::new(build.track_any(Kinds::any()));
    let controller = build.reconciler(SinkFollower(resolver)).build();
    let key = Key::of(&observer());
    assert!(controller.once(&key).await.unwrap_err().is_permanent());
    controller.take_queued();
    let gvk = kube::core::GroupVersionKind::gvk("demo.reknit.dev", "v1", "Sink");
    let (kind, _) = cx.informers().resolve(&gvk).await.unwrap().unwrap();
    let sinks = cx.informer_of(&kind, select());
    for (version, object, has_address) in
        [("2", sink(Value::Null), false), ("3", sink_at("http://sink"), true)]
    {
        let mut object: kube::api::DynamicObject = serde_json::from_value(object).unwrap();
        object.metadata.resource_version = Some(version.into());
        sinks.insert(object);
        assert_eq!(controller.take_queued(), std::slice::from_ref(&key));
        assert_eq!(controller.once(&key).await.is_ok(), has_address);
        controller.take_queued();
    }
}
