use k8s_openapi::api::{apps::v1::Deployment, core::v1::Secret};
use kube::Resource;
use serde_json::{Value, json};
use tokio::time::advance;

use super::*;

/// An object and the writes of passes and of another client to it.
struct Fixture {
    fights: Fights,
    kind: Arc<ApiResource>,
    object: Value,
    version: u64,
    request: WriteRequest,
    /// The owners of fields in the responses.
    managed_fields: Value,
}

impl Fixture {
    fn of<K: Resource<DynamicType = ()>>(object: Value) -> Self {
        let kind = Arc::new(ApiResource::erase::<K>(&()));
        let request = request_of("PUT", "application/json", json!({}));
        let managed_fields = json!([{"manager": "web", "time": WEB_TIME, "fieldsV1": {}}]);
        Self { fights: Fights::default(), kind, object, version: 1, request, managed_fields }
    }

    fn deployment() -> Self {
        let spec = json!({"replicas": 2, "template": {"containers": [{"name": "a", "image": "one"}]}});
        let metadata = json!({"name": "shop-7", "namespace": "shop", "uid": "u"});
        Self::of::<Deployment>(json!({"metadata": metadata, "spec": spec}))
    }

    fn state(&self) -> Object {
        self.encode(&RawObject::scan_text(&self.object.to_string()).unwrap())
    }

    fn change(&mut self, pointer: &str, value: Value) {
        self.version += 1;
        self.object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        *self.object.pointer_mut(pointer).unwrap() = value;
    }

    /// A write of a pass of this controller.
    fn write_as(&mut self, controller: &str, pointer: &str, value: Value) -> Option<Restored> {
        let before = self.state();
        self.change(pointer, value);
        self.record_write(controller, &before)
    }

    /// The write of a pass for which this state was cached, and which has led to the present one.
    fn record_write(&self, controller: &str, before: &Object) -> Option<Restored> {
        self.record_response(controller, before, &self.state())
    }

    /// The response of a write that has led to this state.
    fn record_response(&self, controller: &str, before: &Object, after: &Object) -> Option<Restored> {
        let managed_fields = self.managed_fields.to_string();
        let write = Write { request: &self.request, before, after, managed_fields: Some(&managed_fields) };
        self.fights.record_write(&self.kind, &controller.into(), &write)
    }

    fn write(&mut self, pointer: &str, value: Value) -> Option<Restored> {
        self.write_as("web", pointer, value)
    }

    /// A write of another client, of these fields.
    fn disturb(&mut self, pointer: &str, value: Value, fields: Value) {
        self.change(pointer, value);
        self.report(self.object.clone(), fields);
    }

    /// The watch reports a state, in which another client owns these fields.
    fn report(&self, mut state: Value, fields: Value) {
        state["metadata"]["managedFields"] = json!([
            {"manager": "web", "time": WEB_TIME, "fieldsV1": {"f:spec": {"f:paused": {}}}},
            {"manager": "capacity-bot", "time": "2026-11-01T00:00:01Z", "fieldsV1": fields},
        ]);
        self.report_as(&state);
    }

    fn report_as(&self, state: &Value) {
        let text = state.to_string();
        let raw = RawObject::scan_text(&text).unwrap();
        self.fights.record_watched(&self.kind, &raw, || Some(self.encode(&raw)));
    }

    fn encode(&self, raw: &RawObject<'_>) -> Object {
        let keep_managed_fields = false;
        raw.encode::<kube::api::DynamicObject>(&self.kind, keep_managed_fields).unwrap()
    }
}

fn request_of(method: &str, content_type: &str, body: Value) -> WriteRequest {
    let request = http::Request::builder().method(method).header("content-type", content_type);
    let query = if method == "PATCH" { "?fieldManager=web" } else { "" };
    let request = request.uri(format!("/apis/apps/v1/namespaces/shop/deployments/shop-7{query}"));
    WriteRequest::of(&request.body(body.to_string().into_bytes().into()).unwrap())
}

const WEB_TIME: &str = "2026-11-01T00:00:00Z";
const REPLICAS: &str = "/spec/replicas";

#[tokio::test(start_paused = true)]
async fn a_field_that_is_written_back_again_and_again_is_a_fight_and_reported_with_growing_gaps() {
    let mut fixture = Fixture::deployment();
    let mut reports = Vec::new();
    for n in 0..1200 {
        if let Some(restored) = fixture.write(REPLICAS, json!(2)) {
            assert!(n >= 3);
            reports.extend(restored.is_to_report.then(|| (n, restored.to_string())));
        }
        fixture.disturb(REPLICAS, json!(5), json!({"f:spec": {"f:replicas": {}}}));
        advance(Duration::from_secs(1)).await;
    }
    let text = "Deployment shop/shop-7: capacity-bot set spec.replicas to 5, restored to 2";
    assert_eq!(
        reports,
        [(3, format!("{text}, 3 times in 2 seconds")), (603, format!("{text}, 603 times in 10 minutes"))]
    );
}

#[tokio::test(start_paused = true)]
async fn what_no_controller_writes_back_is_no_fight() {
    let mut fixture = Fixture::deployment();
    for n in 0..20 {
        // An autoscaler owns the replicas, and the status and the image change with each rollout.
        assert!(fixture.write("/spec/template", json!(n)).is_none());
        fixture.disturb(REPLICAS, json!(n), json!({}));
    }
    for n in 0..20 {
        assert!(fixture.write(REPLICAS, json!(n)).is_none(), "a field that counts up");
        fixture.disturb("/spec/template", json!(n), json!({}));
    }
    for _ in 0..20 {
        assert!(fixture.write(REPLICAS, json!(2)).is_none(), "a value that the controller itself changes");
        assert!(fixture.write(REPLICAS, json!(3)).is_none());
    }
    for _ in 0..3 {
        fixture.write(REPLICAS, json!(2));
        fixture.disturb(REPLICAS, json!(5), json!({}));
        advance(Duration::from_secs(5 * 60)).await;
    }
    assert!(fixture.write(REPLICAS, json!(2)).is_some(), "changes that are five minutes apart");
    for _ in 0..20 {
        advance(Duration::from_secs(60 * 60)).await;
        assert!(fixture.write(REPLICAS, json!(2)).is_none(), "changes that are an hour apart");
        fixture.disturb(REPLICAS, json!(5), json!({}));
    }
    for _ in 0..20 {
        for n in 0..60 {
            advance(Duration::from_secs(60)).await;
            assert!(
                fixture.write("/spec/template", json!(n)).is_none(),
                "writes of another field in between"
            );
        }
        fixture.disturb(REPLICAS, json!(5), json!({}));
        assert!(fixture.write(REPLICAS, json!(2)).is_none(), "changes that are an hour apart");
    }
}

#[tokio::test(start_paused = true)]
async fn what_another_client_restores_before_a_lagging_watch_reports_it_is_no_fight() {
    for restored_by_another in [false, true] {
        let mut fixture = Fixture::deployment();
        let mut fights = 0;
        for n in 0..20 {
            fixture.write(REPLICAS, json!(2));
            fixture.disturb(REPLICAS, json!(5), json!({}));
            let cached = fixture.state();
            fixture.change(REPLICAS, if restored_by_another { json!(2) } else { json!(5) });
            let unreported = fixture.object.clone();
            fixture.change("/spec/template", json!(n));
            fixture.change(REPLICAS, json!(2));
            fights += fixture.record_write("web", &cached).iter().count();
            fixture.report(unreported, json!({}));
        }
        assert_eq!(fights, if restored_by_another { 0 } else { 18 });
    }
}

#[tokio::test(start_paused = true)]
async fn what_another_client_restores_before_a_watch_reports_it_only_after_further_writes_is_no_fight() {
    let mut fixture = Fixture::deployment();
    for n in 0..20 {
        fixture.write(REPLICAS, json!(2));
        fixture.disturb(REPLICAS, json!(5), json!({}));
        let cached = fixture.state();
        fixture.change(REPLICAS, json!(2));
        let unreported = fixture.object.clone();
        fixture.change("/spec/template", json!(n));
        assert!(fixture.record_write("web", &cached).is_none(), "round {n}");
        for further in 0..3 {
            assert!(fixture.write("/spec/template", json!({ "n": further })).is_none());
        }
        fixture.report(unreported, json!({}));
    }
}

#[tokio::test(start_paused = true)]
async fn what_another_client_restores_long_before_the_response_of_a_write_arrives_is_no_fight() {
    let mut fixture = Fixture::deployment();
    for n in 0..20 {
        fixture.write(REPLICAS, json!(2));
        fixture.disturb(REPLICAS, json!(5), json!({}));
        let cached = fixture.state();
        fixture.disturb(REPLICAS, json!(2), json!({}));
        fixture.change("/spec/template", json!(n));
        let written = fixture.state();
        for later in 0..2 * MAX_STATES {
            fixture.disturb(REPLICAS, json!(10 + later), json!({}));
        }
        assert!(fixture.record_response("web", &cached, &written).is_none(), "round {n}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_field_that_its_owner_restores_before_a_lagging_watch_reports_it_is_no_fight() {
    let template = |n: u64| json!({"spec": {"template": n}});
    for (theirs, ours) in [(json!(2), json!(3)), (json!(2), Value::Null), (Value::Null, json!(3))] {
        let mut fixture = Fixture::deployment();
        let owner = json!({"f:status": {"f:replicas": {}}});
        fixture.object["status"] = json!({});
        let set = |fixture: &mut Fixture, value: &Value| match value {
            Value::Null => fixture.disturb("/status", json!({}), json!({})),
            value => fixture.disturb("/status", json!({ "replicas": value }), owner.clone()),
        };
        fixture.managed_fields = json!([
            {"manager": "web", "time": WEB_TIME, "fieldsV1": {"f:spec": {"f:template": {}}}},
            {"manager": "capacity-bot", "time": WEB_TIME, "fieldsV1": owner},
        ]);
        for n in 0..20 {
            set(&mut fixture, &ours);
            fixture.request = request_of("PATCH", "application/apply-patch+yaml", template(n));
            fixture.write("/spec/template", json!(n));
            set(&mut fixture, &theirs);
            let cached = fixture.state();
            // The watch reports it only after the response of the next write, or never.
            fixture.version += 1;
            fixture.object["status"] = if ours.is_null() { json!({}) } else { json!({ "replicas": ours }) };
            fixture.change("/spec/template", json!({ "n": n }));
            let restored = fixture.record_write("web", &cached);
            assert!(restored.is_none(), "round {n}: {restored:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_apply_sets_or_removes_and_another_client_writes_back_is_a_fight() {
    let owned = json!([{"manager": "web", "time": WEB_TIME, "fieldsV1": {"f:spec": {"f:replicas": {}}}}]);
    for (ours, managed_fields) in
        [(json!({"replicas": 2}), owned.clone()), (json!({}), json!([{"manager": "web"}]))]
    {
        let mut fixture = Fixture::deployment();
        fixture.request = request_of("PATCH", "application/apply-patch+yaml", json!({ "spec": ours }));
        fixture.managed_fields = managed_fields;
        let mut fights = 0;
        for _ in 0..10 {
            fights += fixture.write("/spec", ours.clone()).iter().count();
            // Another release of this program applies it with the same field manager.
            fixture.change("/spec", json!({"replicas": 5}));
            let mut theirs = fixture.object.clone();
            theirs["metadata"]["managedFields"] = owned.clone();
            fixture.report_as(&theirs);
        }
        assert_eq!(fights, 7, "{ours}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_field_that_an_apply_empties_and_another_client_fills_is_in_a_fight() {
    let mut fixture = Fixture::deployment();
    fixture.request = request_of("PATCH", "application/apply-patch+yaml", json!({"spec": {"paused": false}}));
    fixture.managed_fields =
        json!([{"manager": "web", "time": WEB_TIME, "fieldsV1": {"f:spec": {"f:paused": {}}}}]);
    let mut fights = Vec::new();
    for _ in 0..4 {
        fights.extend(fixture.write("/spec", json!({"replicas": 2}))); // the API server leaves `false` out
        fixture.disturb("/spec", json!({"replicas": 2, "paused": true}), json!({"f:spec": {"f:paused": {}}}));
    }
    let text = fights.first().map(ToString::to_string).unwrap_or_default();
    assert!(text.contains("capacity-bot set spec.paused to true, restored to false"), "{text:?}");
}

#[tokio::test(start_paused = true)]
async fn a_field_of_an_item_that_an_apply_empties_is_in_a_fight_wherever_the_item_stands() {
    let item = |fields: Value| json!({"f:spec": {"f:ports": fields}});
    let by_key = |fields: Value| item(json!({"k:{\"port\":80,\"protocol\":\"TCP\"}": fields}));
    let udp = json!({"port": 80, "protocol": "UDP", "hosts": ["a"]});
    for (ours, owned, n) in [
        // The body lacks the protocol, and the state has another item in front.
        (json!([{"port": 80, "hosts": []}, udp]), by_key(json!({"f:hosts": {}})), 1),
        (json!([udp, {"port": 80, "hosts": []}]), item(json!({})), 1),
    ] {
        let mut fixture = Fixture::deployment();
        let body = json!({"spec": {"ports": ours}});
        fixture.request = request_of("PATCH", "application/apply-patch+yaml", body);
        fixture.managed_fields = json!([{"manager": "web", "time": WEB_TIME, "fieldsV1": owned}]);
        let mut fights = Vec::new();
        for _ in 0..4 {
            fights.extend(fixture.write("/spec", json!({"ports": [udp, {"port": 80, "protocol": "TCP"}]})));
            let theirs = json!({"port": 80, "protocol": "TCP", "hosts": ["b"]});
            fixture.disturb("/spec", json!({"ports": [udp, theirs]}), by_key(json!({"f:hosts": {}})));
        }
        let text = fights.first().map(ToString::to_string).unwrap_or_default();
        let expected = format!("capacity-bot set spec.ports[{n}].hosts to [\"b\"], restored to []");
        assert!(text.contains(&expected), "{text:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_from_a_state_that_no_watch_has_reported_has_restored_nothing_that_is_known() {
    let mut fixture = Fixture::deployment();
    for n in 0..20 {
        fixture.write(REPLICAS, json!(2));
        fixture.disturb(REPLICAS, json!(5), json!({}));
        let cached = fixture.state();
        fixture.change(REPLICAS, json!(2));
        let version = fixture.version.to_string();
        fixture.request =
            request_of("PUT", "application/json", json!({"metadata": {"resourceVersion": version}}));
        fixture.change("/spec/template", json!(n));
        assert!(fixture.record_write("web", &cached).is_none(), "round {n}");
        fixture.request = request_of("PUT", "application/json", json!({}));
    }
}

#[tokio::test(start_paused = true)]
async fn two_controllers_of_one_process_fight_too() {
    let mut fixture = Fixture::deployment();
    let mut fights = 0;
    for _ in 0..5 {
        fights += fixture.write_as("a", REPLICAS, json!(2)).iter().count();
        fights += fixture.write_as("b", REPLICAS, json!(5)).iter().count();
    }
    assert_eq!(fights, 4);
}

#[tokio::test(start_paused = true)]
async fn an_item_of_a_list_and_a_removed_field_are_named_with_their_managers() {
    let mut fixture = Fixture::deployment();
    let (image, labels) = ("/spec/template/containers/0/image", "/spec/template");
    let container =
        json!({"f:spec": {"f:template": {"f:containers": {"k:{\"name\":\"a\"}": {"f:image": {}}}}}});
    let mut last = None;
    for _ in 0..4 {
        last = fixture.write(image, json!("one"));
        fixture.disturb(image, json!("two"), container.clone());
    }
    assert_eq!(
        last.take().unwrap().to_string(),
        "Deployment shop/shop-7: capacity-bot set spec.template.containers[0].image to \"two\", restored to \"one\", \
         3 times in 1 second"
    );
    let template = json!({"a": 1, "b": 2});
    for _ in 0..3 {
        last = fixture.write(labels, template.clone());
        fixture.disturb(labels, json!({"a": 1}), json!({}));
    }
    let text = last.unwrap().to_string();
    assert!(text.contains("capacity-bot set spec.template.b to nothing, restored to 2"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn the_values_of_a_secret_are_not_shown() {
    let metadata = json!({"name": "s", "namespace": "shop", "uid": "u"});
    let mut fixture = Fixture::of::<Secret>(json!({"metadata": metadata, "data": {"password": "b3du"}}));
    let mut last = None;
    for _ in 0..4 {
        last = fixture.write("/data/password", json!("b3du"));
        fixture.disturb("/data/password", json!("dGhlaXJz"), json!({"f:data": {"f:password": {}}}));
    }
    let text = last.unwrap().to_string();
    assert!(text.contains("set data.password to (hidden), restored to (hidden)"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_value_that_the_author_names_is_not_shown_nor_a_value_that_contains_it() {
    for (hidden, field, ours, theirs) in [
        ("/spec/replicas", REPLICAS, json!(2), json!(5)),
        ("/spec/template/password", "/spec/template", json!({}), json!({"password": "theirs"})),
        ("/spec/template/password", "/spec/template", json!([]), json!({"password": "theirs"})),
    ] {
        let mut fixture = Fixture::deployment();
        fixture.fights.redaction.set(&[hidden.into()]);
        let mut last = None;
        for _ in 0..4 {
            last = fixture.write(field, ours.clone());
            fixture.disturb(field, theirs.clone(), json!({}));
        }
        let text = last.unwrap().to_string();
        assert!(text.contains(" to (hidden), restored to ") && !text.contains("theirs"), "{text}");
        assert!(!text.contains("to 5, restored to 2"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_states_of_at_most_a_thousand_objects_are_kept() {
    let mut fixture = Fixture::deployment();
    for n in 0..5000 {
        fixture.object["metadata"]["name"] = json!(n.to_string());
        fixture.write(REPLICAS, json!(2));
    }
    assert_eq!(fixture.fights.objects.lock().written.values().count(), MAX_OBJECTS);
    advance(MIN_AGE + Duration::from_secs(1)).await;
    fixture.write(REPLICAS, json!(3));
    assert_eq!(fixture.fights.objects.lock().written.values().count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_with_many_objects_takes_no_room_from_the_fights_of_others() {
    let (mut fixture, mut other) = (Fixture::deployment(), Fixture::deployment());
    let name = |n: usize, fixture: &mut Fixture| fixture.object["metadata"]["name"] = json!(n.to_string());
    // Each object has a restored field, and so is kept for ten minutes.
    for n in 0..MAX_OBJECTS {
        name(n, &mut fixture);
        for _ in 0..2 {
            fixture.write(REPLICAS, json!(2));
            fixture.disturb(REPLICAS, json!(5), json!({}));
        }
    }
    name(MAX_OBJECTS, &mut fixture);
    fixture.write(REPLICAS, json!(2));
    assert!(
        fixture.fights.objects.lock().written.get_mut(&fixture.state().state().key()).is_none(),
        "its own objects"
    );
    other.object["metadata"]["namespace"] = json!("other");
    other.fights = std::mem::take(&mut fixture.fights);
    let mut fights = 0;
    for _ in 0..4 {
        fights += other.write(REPLICAS, json!(2)).iter().count();
        other.disturb(REPLICAS, json!(5), json!({}));
    }
    assert_eq!((fights, other.fights.objects.lock().written.values().count()), (1, MAX_OBJECTS));
}

/// The client that is found from these `managedFields`: after the own write, after the change, and after the field was
/// restored.
#[tokio::test(start_paused = true)]
async fn a_write_after_one_whose_response_is_lost_or_overtaken_restores_nothing() {
    let (mut fixture, key) = (Fixture::deployment(), Key::new("shop", "shop-7"));
    let begin = |fixture: &Fixture| fixture.fights.begin_write(&key, "web");
    for _ in 0..10 {
        begin(&fixture);
        assert!(fixture.write(REPLICAS, json!(2)).is_none());
        begin(&fixture); // it has written 5, but the response is lost, or arrives after a newer state
        fixture.disturb(REPLICAS, json!(5), json!({}));
    }
    let mut restored = None; // a response to each write arrives, also to those that change nothing
    for _ in 0..6 {
        begin(&fixture);
        restored = fixture.write(REPLICAS, json!(2));
        begin(&fixture);
        fixture.fights.end_unchanged(&key, "web");
        fixture.disturb(REPLICAS, json!(5), json!({"f:spec": {"f:replicas": {}}}));
    }
    assert!(restored.is_some());
}

fn rival_of(path: &[&str], states: [Value; 3]) -> Option<managers::Rival> {
    let path = path.iter().map(|name| field::Step::Name((*name).into())).collect();
    let field = field::Field { path, theirs: None, ours: None };
    let states = states.map(|state| state.to_string());
    managers::rival_of(states.each_ref().map(|state| Some(&**state)), &field)
}

#[test]
fn only_a_client_that_has_changed_the_field_is_named() {
    let of = |manager: &str, second: u32, fields: Value| {
        let time = format!("2026-11-01T00:00:{second:02}Z");
        json!({"manager": manager, "time": time, "fieldsV1": fields})
    };
    let team = || json!({"f:metadata": {"f:labels": {"f:team": {}}}});
    let other = || json!({"f:metadata": {"f:labels": {"f:other": {}}}});
    let path = ["metadata", "labels", "team"];
    let (web, bystander) = (of("web", 1, team()), of("bystander", 1, other()));
    let ours = json!([web, bystander]);
    let rival = |theirs: Value| rival_of(&path, [ours.clone(), theirs, ours.clone()]);
    let named = |manager: &str| Some(managers::Rival::Manager(manager.into()));
    assert_eq!(rival(json!([bystander, of("bot", 2, team())])), named("bot"));
    assert_eq!(rival(json!([bystander])), None, "it has removed the field, and owns nothing");
    let removed = [of("web", 1, json!({})), bystander.clone(), of("bot", 2, other())];
    assert_eq!(rival(json!(removed)), named("bot"), "it has removed the field, and set another one");
    assert_eq!(rival(json!([of("bystander", 2, other()), of("bot", 2, other())])), None, "two have written");
    let namesake = Some(managers::Rival::Namesake("web".into()));
    assert_eq!(rival(json!([of("web", 2, team()), bystander])), namesake);
    let items = json!({"f:metadata": {"f:finalizers": {".": {}, "v:\"a/b\"": {}}}});
    let ours = json!([of("web", 1, items.clone()), of("bystander", 1, items)]);
    let path = ["metadata", "finalizers"];
    assert_eq!(rival_of(&path, [ours.clone(), ours.clone(), ours]), None, "each owns an item of the list");
}

#[test]
fn the_path_and_the_values_of_a_field_are_cut() {
    let path = vec![field::Step::Name("spec".into()), field::Step::Name("ä".repeat(100_000))];
    let field = Field { path, theirs: Some(json!("x".repeat(1000))), ours: None };
    let text = RestoredText::new(None, &field, false, 0, 3, Duration::from_secs(2)).to_string();
    assert!(text.starts_with("another client set spec[ä") && text.len() < 500, "{text}");
}
