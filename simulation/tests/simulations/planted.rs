//! Controllers with a bug, each of which a rule finds.

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, ResourceExt, api::DeleteParams};
use reknit_injection::Context;
use reknit_reconciler::{Controller, FinalizeKind, Outcome, Owned, ReconcileKind, Result};
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
