//! The parts of an effect that are compared, and those that are not.

use k8s_openapi::api::core::v1::Container;

use super::*;

#[tokio::test]
async fn an_expected_error_is_compared_with_the_whole_chain_of_sources() {
    #[derive(Debug, thiserror::Error)]
    #[error("failed to read the quota")]
    struct Unreadable(#[source] std::num::ParseIntError);
    struct Failing;
    impl ReconcileKind for Failing {
        type Kind = Namespace;
        async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
            Ok("x".parse::<u8>().map(|_| Outcome::done()).map_err(Unreadable)?)
        }
    }
    let controller = |cx: &Context| Ok(Controller::of::<Namespace>(cx).reconciler(Failing).build());
    let effects = given(shop()).reconcile(controller, "shop").await;
    let event = Event::warning("InternalError", "failed to read the quota: invalid digit found in string");
    for part in ["failed to read the quota", "invalid digit", &event.message] {
        effects.check(Want::error(part).event(event.clone()));
    }
    // The kind of the error is not a part of its message.
    for text in ["no such text", "error"] {
        assert!(effects.difference(Want::error(text).event(event.clone())).is_some(), "{text}");
    }
}

/// Sets a time in the status and in an annotation of a ConfigMap.
struct Timed {
    client: Client,
    time: &'static str,
}

impl ReconcileKind for Timed {
    type Kind = Lamp;

    async fn reconcile_kind(&self, _: &Lamp, status: &mut LampStatus) -> Result<Outcome> {
        let config_maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "shop");
        config_maps.create(&PostParams::default(), &serviced(self.time)).await?;
        status.last_lit = Some(self.time.into());
        Lamp::CONDITIONS.manage(status).mark_true("Ready");
        Ok(Outcome::done())
    }
}

fn serviced(time: &str) -> ConfigMap {
    let mut config_map = config_map("service", "v");
    config_map.annotations_mut().insert("lamps/serviced".into(), time.into());
    config_map
}

#[tokio::test]
async fn times_are_compared_except_those_that_the_server_sets_and_those_of_conditions() {
    let (today, then) = ("2026-11-25T00:00:00Z", "1999-12-31T23:59:59Z");
    let controller = |cx: &Context| {
        cx.allows(everything("", "configmaps"));
        let timed = Timed { client: cx.client(), time: today };
        Ok(Controller::of::<Lamp>(cx).reconciler(timed).build())
    };
    let effects = given(lamp()).reconcile(controller, "shop/hall").await;
    let want = |last_lit: &str, annotation| {
        let (mut config_map, mut lit) = (serviced(annotation), lamp());
        config_map.metadata.creation_timestamp = Some(Time(then.parse().unwrap()));
        let status =
            lit.status.insert(LampStatus { last_lit: Some(last_lit.into()), ..LampStatus::default() });
        Lamp::CONDITIONS.manage(status).mark_true("Ready");
        status.duck.observed_generation = Some(1);
        Want::done().create(&config_map).status(&lit)
    };
    effects.check(want(today, today));
    let difference = |want| effects.difference(want).unwrap_or_default();
    assert!(difference(want(then, today)).contains("1999"), "a field of the status differs");
    assert!(difference(want(today, then)).contains("1999"), "an annotation differs");
    effects.check(
        want(then, then).ignoring("/status/lastLit").ignoring("/metadata/annotations/lamps~1serviced"),
    );
}

#[tokio::test]
async fn a_write_that_breaks_the_schema_of_an_added_crd_is_refused() {
    struct LampMaker(Client);
    impl ReconcileKind for LampMaker {
        type Kind = Namespace;
        async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
            let lamps: Api<DynamicObject> =
                Api::namespaced_with(self.0.clone(), "shop", &ApiResource::erase::<Lamp>(&()));
            let bright = DynamicObject::new("hall", &ApiResource::erase::<Lamp>(&()));
            lamps.create(&PostParams::default(), &bright.data(json!({"spec": {"watts": "many"}}))).await?;
            Ok(Outcome::done())
        }
    }
    let controller = |cx: &Context| {
        cx.allows(everything("demo.reknit.dev", "lamps"));
        Ok(Controller::of::<Namespace>(cx).reconciler(LampMaker(cx.client())).build())
    };
    let error = given(shop()).crd::<Lamp>().reconcile(controller, "shop").await.result.unwrap_err().in_full();
    assert!(
        error.contains("spec.watts in body must be of type integer: \"string\" (422 Invalid)"),
        "{error}"
    );
    assert!(
        given(shop()).reconcile(controller, "shop").await.result.is_ok(),
        "without a schema nothing is validated"
    );
}

#[tokio::test]
async fn managers_apply_different_containers_to_an_object_of_an_added_crd() {
    #[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
    #[kube(group = "demo.reknit.dev", version = "v1", kind = "Pool", namespaced)]
    struct PoolSpec {
        containers: Vec<Container>,
    }
    struct Filler(Client);
    impl ReconcileKind for Filler {
        type Kind = Namespace;
        async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
            let resource = ApiResource::erase::<Pool>(&());
            let pools: Api<DynamicObject> = Api::namespaced_with(self.0.clone(), "shop", &resource);
            for (manager, container) in [("owner", "pump"), ("guest", "filter")] {
                let spec = json!({"containers": [{"name": container}]});
                let pool = DynamicObject::new("deep", &resource).data(json!({ "spec": spec }));
                pools.patch("deep", &PatchParams::apply(manager), &Patch::Apply(pool)).await?;
            }
            let pool = pools.get("deep").await?;
            let count = pool.data["spec"]["containers"].as_array().map_or(0, Vec::len);
            Ok(Outcome::skip().event(Event::normal("Filled", format!("{count} containers"))))
        }
    }
    let controller = |cx: &Context| {
        cx.allows(everything("demo.reknit.dev", "pools"));
        Ok(Controller::of::<Namespace>(cx).reconciler(Filler(cx.client())).build())
    };
    let effects = given(shop()).crd::<Pool>().reconcile(controller, "shop").await;
    assert!(effects.result.is_ok(), "{:?}", effects.result);
    assert_eq!(effects.events(), [Event::normal("Filled", "2 containers")]);
}
