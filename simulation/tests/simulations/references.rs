//! A controller that reads a Kind which it learns at run time, also while it finalizes.

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::ResourceExt;
use reknit_apis::KReference;
use reknit_injection::Context;
use reknit_reconciler::{Controller, FinalizeKind, Kinds, Outcome, ReconcileKind, Result, TrackedAny};
use reknit_simulation::simulation;

use crate::widgets::{Widget, WidgetStatus, secs, widget};

/// Notes the map of its own name in the status. A widget goes after that map.
struct Waiting {
    anything: TrackedAny,
}

impl Waiting {
    async fn has_map(&self, widget: &Widget) -> Result<bool> {
        let map = KReference {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            name: widget.name_any(),
            ..KReference::default()
        };
        Ok(self.anything.get(widget, &map).await?.is_some())
    }
}

impl ReconcileKind for Waiting {
    type Kind = Widget;

    async fn reconcile_kind(&self, widget: &Widget, status: &mut WidgetStatus) -> Result<Outcome> {
        status.map = self.has_map(widget).await?.then(|| widget.name_any());
        Ok(Outcome::done())
    }
}

impl FinalizeKind for Waiting {
    async fn finalize_kind(&self, widget: &Widget, _: &mut WidgetStatus) -> Result<Outcome> {
        Ok(if self.has_map(widget).await? { Outcome::after(secs(3600)) } else { Outcome::done() })
    }
}

fn waiting(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Widget>(cx);
    let anything = build.track_any(Kinds::any());
    Ok(build.reconciler(Waiting { anything }).finalizing().build())
}

#[test]
fn an_object_goes_after_the_one_that_its_finalizer_reads() {
    let metadata =
        ObjectMeta { namespace: Some("shop".into()), name: Some("a".into()), ..ObjectMeta::default() };
    simulation([waiting])
        .given(ConfigMap { metadata, ..ConfigMap::default() })
        .at(secs(1), |cluster| cluster.create(widget("a")))
        .at(secs(10), |cluster| cluster.delete::<Widget>("shop/a"))
        .at(secs(40), |cluster| cluster.delete::<ConfigMap>("shop/a"))
        .seeds(0..20)
        .each_write()
        .run();
}
