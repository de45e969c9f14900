//! Controllers with a bug, each of which a rule finds.

use k8s_openapi::{
    api::{core::v1::ConfigMap, rbac::v1::ClusterRole},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, PostParams},
};
use reknit_injection::Context;
use reknit_reconciler::{Controller, FinalizeKind, ObserveKind, Outcome, Owned, ReconcileKind, Result};
use reknit_simulation::simulation;

use crate::widgets::{Widget, WidgetStatus, life_of_a_widget, maps, secs};

fn map(widget: &Widget) -> ConfigMap {
    let metadata = ObjectMeta { namespace: widget.namespace(), ..ObjectMeta::default() };
    let data = Some([("size".to_owned(), widget.spec.size.to_string())].into());
    ConfigMap { metadata, data, ..ConfigMap::default() }
}

/// Creates a map with a generated name if its cache has none: after a stale read or a lost response, there are two.
struct Generating {
    maps: Owned<ConfigMap>,
}

impl ReconcileKind for Generating {
    type Kind = Widget;

    async fn reconcile_kind(&self, widget: &Widget, _: &mut WidgetStatus) -> Result<Outcome> {
        if self.maps.of(widget).next().is_none() {
            let mut map = map(widget);
            map.metadata.generate_name = Some(format!("{}-", widget.name_any()));
            self.maps.create(widget, map).await?;
        }
        Ok(Outcome::done())
    }
}

fn generating(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Widget>(cx);
    let maps = build.owns();
    Ok(build.reconciler(Generating { maps }).build())
}

#[test]
#[should_panic(expected = "violated: one map each")]
fn a_child_with_a_generated_name_is_created_twice_after_a_lost_response() {
    life_of_a_widget(simulation([generating]))
        .always("one map each", |cluster| maps(cluster).len() <= 2)
        .seeds(0..0)
        .each_write()
        .run();
}

#[test]
#[should_panic(expected = "violated: the final state is that of a run without faults")]
fn a_child_too_many_is_a_difference_of_the_final_state() {
    life_of_a_widget(simulation([generating])).seeds(0..100).run();
}

/// Applies a map with the version of the widget, which depends on how many writes there were before.
struct Versioned {
    maps: Owned<ConfigMap>,
}

impl ReconcileKind for Versioned {
    type Kind = Widget;

    async fn reconcile_kind(&self, widget: &Widget, status: &mut WidgetStatus) -> Result<Outcome> {
        let mut map = map(widget);
        map.metadata.name = Some(widget.name_any());
        map.annotations_mut().insert("version".into(), widget.resource_version().unwrap_or_default());
        self.maps.apply(widget, map).await?;
        status.map = Some(widget.name_any());
        Ok(Outcome::done())
    }
}

fn versioned(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Widget>(cx);
    let maps = build.owns();
    Ok(build.reconciler(Versioned { maps }).build())
}

#[test]
#[should_panic(expected = "metadata.annotations.version is")]
fn the_difference_of_an_applied_child_names_the_field_instead_of_the_hash_of_all() {
    life_of_a_widget(simulation([versioned])).seeds(0..0).each_write().run();
}

/// Creates a map without an owner, and then notes its name in the status. At the end it deletes the noted map only.
struct Forgetful {
    maps: Api<ConfigMap>,
}

impl ReconcileKind for Forgetful {
    type Kind = Widget;

    async fn reconcile_kind(&self, widget: &Widget, status: &mut WidgetStatus) -> Result<Outcome> {
        if status.map.is_none() {
            let mut map = map(widget);
            map.metadata.generate_name = Some(format!("{}-", widget.name_any()));
            status.map = self.maps.create(&Default::default(), &map).await?.metadata.name;
        }
        Ok(Outcome::done())
    }
}

impl FinalizeKind for Forgetful {
    async fn finalize_kind(&self, _: &Widget, status: &mut WidgetStatus) -> Result<Outcome> {
        if let Some(map) = &status.map {
            match self.maps.delete(map, &DeleteParams::default()).await {
                Err(kube::Error::Api(refusal)) if refusal.is_not_found() => {}
                deleted => drop(deleted?),
            }
        }
        Ok(Outcome::done())
    }
}

fn forgetful(cx: &Context) -> Result<Controller> {
    let build = Controller::of::<Widget>(cx);
    let maps = Api::namespaced(build.client(), "shop");
    Ok(build.reconciler(Forgetful { maps }).finalizing().build())
}

#[test]
#[should_panic(expected = "violated: the final state is that of a run without faults")]
fn a_cleanup_that_a_crash_between_two_writes_makes_impossible_is_found() {
    life_of_a_widget(simulation([forgetful])).seeds(0..0).each_write().run();
}

/// Counts its passes in the status, which leads to the next pass.
struct Counting;

impl ReconcileKind for Counting {
    type Kind = Widget;

    async fn reconcile_kind(&self, _: &Widget, status: &mut WidgetStatus) -> Result<Outcome> {
        status.passes += 1;
        Ok(Outcome::after(secs(20)))
    }
}

#[test]
#[should_panic(expected = "violated: at rest nobody writes")]
fn a_status_that_changes_at_each_poll_never_rests() {
    let controller = |cx: &Context| Ok(Controller::of::<Widget>(cx).reconciler(Counting).build());
    life_of_a_widget(simulation([controller])).seeds(0..1).run();
}

/// Reconciles again at once.
struct Hot;

impl ReconcileKind for Hot {
    type Kind = Widget;

    async fn reconcile_kind(&self, _: &Widget, status: &mut WidgetStatus) -> Result<Outcome> {
        status.passes = status.passes.wrapping_add(1);
        Ok(Outcome::after(std::time::Duration::from_millis(1)))
    }
}

#[test]
#[should_panic(expected = "violated: it comes to rest")]
fn a_hot_loop_is_found() {
    let controller = |cx: &Context| Ok(Controller::of::<Widget>(cx).reconciler(Hot).build());
    life_of_a_widget(simulation([controller])).seeds(0..1).run();
}

/// Never finishes the deletion.
struct Stuck;

impl ReconcileKind for Stuck {
    type Kind = Widget;

    async fn reconcile_kind(&self, _: &Widget, _: &mut WidgetStatus) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

impl FinalizeKind for Stuck {
    async fn finalize_kind(&self, _: &Widget, _: &mut WidgetStatus) -> Result<Outcome> {
        Ok(Outcome::after(secs(3600)))
    }
}

#[test]
#[should_panic(expected = "violated: finalizers end")]
fn a_deletion_that_never_ends_is_found() {
    let controller = |cx: &Context| Ok(Controller::of::<Widget>(cx).reconciler(Stuck).finalizing().build());
    life_of_a_widget(simulation([controller])).seeds(0..1).run();
}

#[test]
#[should_panic(expected = "violated: each controller runs\n  1 of 1 controllers have completed no pass")]
fn a_controller_without_objects_is_not_simulated() {
    simulation([generating]).seeds(0..1).run();
}

/// Creates a map, also in a replica that does not lead the key.
struct Meddling {
    maps: Api<ConfigMap>,
}

impl ReconcileKind for Meddling {
    type Kind = Widget;

    async fn reconcile_kind(&self, _: &Widget, _: &mut WidgetStatus) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

impl ObserveKind for Meddling {
    async fn observe_kind(&self, widget: &Widget) -> Result<Outcome> {
        let mut map = map(widget);
        map.metadata.name = Some(widget.name_any());
        match self.maps.create(&PostParams::default(), &map).await {
            Err(kube::Error::Api(refusal)) if refusal.is_already_exists() => {}
            created => drop(created?),
        }
        Ok(Outcome::done())
    }
}

fn meddling(cx: &Context) -> Result<Controller> {
    let build = Controller::of::<Widget>(cx);
    let maps = Api::namespaced(build.client(), "shop");
    Ok(build.reconciler(Meddling { maps }).observing_as_follower().build())
}

#[test]
#[should_panic(expected = "violated: no write is sent after the term")]
fn the_only_write_of_a_replica_that_does_not_lead_is_found() {
    life_of_a_widget(simulation([meddling])).replicas(2).seeds(0..0).run();
}

struct Panicking;

impl ReconcileKind for Panicking {
    type Kind = Widget;

    #[expect(clippy::panic, reason = "the bug of this controller")]
    async fn reconcile_kind(&self, widget: &Widget, _: &mut WidgetStatus) -> Result<Outcome> {
        panic!("{} is too small", widget.name_any());
    }
}

#[test]
#[should_panic(expected = "violated: no pass panics")]
fn a_pass_that_panics_is_found() {
    let controller = |cx: &Context| Ok(Controller::of::<Widget>(cx).reconciler(Panicking).build());
    life_of_a_widget(simulation([controller])).seeds(0..0).run();
}

/// Wants its own color in the map of a widget.
struct Painting {
    color: &'static str,
    maps: Owned<ConfigMap>,
}

impl ReconcileKind for Painting {
    type Kind = Widget;

    async fn reconcile_kind(&self, widget: &Widget, _: &mut WidgetStatus) -> Result<Outcome> {
        let mut map = map(widget);
        map.metadata.name = Some(widget.name_any());
        map.data = Some([("color".to_owned(), self.color.to_owned())].into());
        self.maps.apply(widget, map).await?;
        Ok(Outcome::done())
    }
}

#[test]
#[should_panic(expected = "violated: no object is written back and forth")]
fn two_controllers_that_write_a_map_in_turn_are_found() {
    let painting = |color: &'static str| {
        move |cx: &Context| {
            let mut build = Controller::of::<Widget>(cx);
            let maps = build.owns();
            Ok(build.name(color).reconciler(Painting { color, maps }).build())
        }
    };
    life_of_a_widget(simulation([painting("red"), painting("blue")])).seeds(0..0).run();
}

/// Creates a ClusterRole whose owner is in a namespace, which the garbage collector ignores.
struct Leaking {
    roles: Api<ClusterRole>,
}

impl ReconcileKind for Leaking {
    type Kind = Widget;

    async fn reconcile_kind(&self, widget: &Widget, _: &mut WidgetStatus) -> Result<Outcome> {
        let owner_references = Some(widget.controller_owner_ref(&()).into_iter().collect());
        let name = Some(widget.name_any());
        let metadata = ObjectMeta { name, owner_references, ..ObjectMeta::default() };
        match self
            .roles
            .create(&PostParams::default(), &ClusterRole { metadata, ..ClusterRole::default() })
            .await
        {
            Err(kube::Error::Api(refusal)) if refusal.is_already_exists() => {}
            created => drop(created?),
        }
        Ok(Outcome::done())
    }
}

#[test]
#[should_panic(
    expected = "violated: nothing is orphaned\n  ClusterRole a has the owner \"Widget\" \"a\", which is gone"
)]
fn a_child_that_the_garbage_collector_leaves_is_found() {
    let controller = |cx: &Context| {
        let build = Controller::of::<Widget>(cx);
        let roles = Api::all(build.client());
        Ok(build.reconciler(Leaking { roles }).build())
    };
    life_of_a_widget(simulation([controller])).seeds(0..0).run();
}
