//! Objects of Kinds that are known only at run time.

use kube::{core::GroupVersionKind, discovery::ApiResource};
use reknit_apis::KReference;
use reknit_reconciler::{Kinds, OwnedAny, OwnedOptions, TrackedAny};

use super::*;

fn channels() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("messaging.example.com", "v1", "Channel"))
}

fn channel(name: &str, color: &str) -> DynamicObject {
    DynamicObject::new(name, &channels()).within("shop").data(json!({ "spec": { "color": color } }))
}

/// Copies the channel `source` to `copy`, deletes `source`, and paints `old`.
struct ChannelCopier {
    client: Client,
    channels: TrackedAny,
}

impl ReconcileKind for ChannelCopier {
    type Kind = Namespace;

    async fn reconcile_kind(&self, shop: &Namespace, _: &mut ()) -> Result<Outcome> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), "shop", &channels());
        let reference = KReference {
            api_version: "messaging.example.com/v1".into(),
            kind: "Channel".into(),
            namespace: Some("shop".into()),
            name: "source".into(),
            ..KReference::default()
        };
        let source = self.channels.get(shop, &reference).await?.ok_or("there is no source")?;
        let color = source.data["spec"]["color"].as_str().unwrap_or_default();
        api.create(&PostParams::default(), &channel("copy", color)).await?;
        let patch = Patch::Merge(json!({ "spec": { "color": "red" } }));
        api.patch("old", &PatchParams::default(), &patch).await?;
        api.delete("source", &DeleteParams::default()).await?;
        Ok(Outcome::skip())
    }
}

#[tokio::test]
async fn dynamic_objects_can_be_part_of_the_state_and_of_the_expected_effects() {
    let controller = |cx: &Context| {
        let mut build = Controller::of::<Namespace>(cx);
        build.allows(everything("messaging.example.com", "channels"));
        let (client, channels) = (build.client(), build.track_any(Kinds::any()));
        Ok(build.reconciler(ChannelCopier { client, channels }).build())
    };
    let state = given(channel("source", "blue")).and(shop()).applied(channel("old", "grey"), "painter");
    let effects = state.reconcile(controller, "shop").await;
    assert_eq!(effects.object_of(&channels(), "shop/old").unwrap().data["spec"]["color"], "red");
    assert!(effects.object_of(&channels(), "shop/source").is_none());
    let want = |color| {
        Want::skip()
            .create(&channel("copy", color))
            .patch_of(&channels(), "shop/old", json!({ "spec": { "color": "red" } }))
            .delete_of(&channels(), "shop/source")
    };
    effects.check(want("blue"));
    assert!(effects.difference(want("green")).is_some_and(|difference| difference.contains("green")));
}

#[tokio::test]
async fn an_applied_child_of_a_kind_known_at_run_time_is_expected_like_any_other() {
    struct ChannelOwner(OwnedAny);
    impl ReconcileKind for ChannelOwner {
        type Kind = Namespace;
        async fn reconcile_kind(&self, shop: &Namespace, _: &mut ()) -> Result<Outcome> {
            let kind = channels();
            let children = self.0.kind(shop, &kind.api_version, &kind.kind).await?;
            children.apply(shop, DynamicObject { types: None, ..channel("events", "red") }).await?;
            Ok(Outcome::done())
        }
    }
    let controller = |cx: &Context| {
        let mut build = Controller::of::<Namespace>(cx);
        let channels =
            build.owns_any(Kinds::of([("messaging.example.com", "channels")]), OwnedOptions::default());
        Ok(build.reconciler(ChannelOwner(channels)).build())
    };
    let effects = given(shop()).reconcile(controller, "shop").await;
    effects.check(Want::done().child(&shop(), &channel("events", "red")));
    let applied = effects.object_of(&channels(), "shop/events").unwrap();
    given(shop()).and(applied).reconcile(controller, "shop").await.check(Want::done());
}
