//! Controllers that rely on reading their own writes, and on changes of others during a write.

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::ResourceExt;
use reknit_injection::Context;
use reknit_reconciler::{Controller, Outcome, Owned, ReconcileKind, Result};
use reknit_simulation::{Cluster, Fault, simulation};
use serde_json::json;

use crate::widgets::{Widget, WidgetStatus, maps, secs, widget};

/// Creates one map for each unit of size, under generated names.
struct Counted {
    maps: Owned<ConfigMap>,
    /// True if a pass that has created a map is followed by another one at once, and not when the map is seen.
    is_quick: bool,
}

impl ReconcileKind for Counted {
    type Kind = Widget;

    async fn reconcile_kind(&self, widget: &Widget, status: &mut WidgetStatus) -> Result<Outcome> {
        let count = u32::try_from(self.maps.of(widget).count())?;
        if count < widget.spec.size {
            let generate_name = Some(format!("{}-", widget.name_any()));
            let metadata = ObjectMeta { generate_name, ..ObjectMeta::default() };
            self.maps.create(widget, ConfigMap { metadata, ..ConfigMap::default() }).await?;
            let next_millisecond = Outcome::after(std::time::Duration::from_millis(1));
            return Ok(if self.is_quick { next_millisecond } else { Outcome::done() });
        }
        status.passes = count;
        Ok(Outcome::done())
    }
}

fn counted(is_quick: bool) -> impl Fn(&Context) -> Result<Controller> {
    move |cx| {
        let mut build = Controller::of::<Widget>(cx);
        let maps = build.owns();
        Ok(build.reconciler(Counted { maps, is_quick }).build())
    }
}

/// Makes a widget one larger whenever its status shows the present size, up to five: often before the controller has
/// the answer to its status write.
fn grow(cluster: &mut Cluster) {
    for widget in cluster.list::<Widget>() {
        let size = widget.spec.size;
        if size < 5 && widget.status.is_some_and(|status| status.passes == size) {
            cluster.merge::<Widget>("shop/a", &json!({"spec": {"size": size + 1}}));
        }
    }
}

#[test]
fn a_child_with_a_generated_name_is_created_once_behind_lagging_watches() {
    simulation([counted(true)])
        .at(secs(1), |cluster| cluster.create(widget("a")))
        .at(secs(5), |cluster| cluster.merge::<Widget>("shop/a", &json!({"spec": {"size": 4}})))
        .always("no map too many", |cluster| maps(cluster).len() <= 4)
        .faults([Fault::LaggingWatches, Fault::BrokenWatches, Fault::ExpiredWatches])
        .seeds(0..20)
        .run();
}

#[test]
fn a_change_of_another_client_during_a_status_write_is_reconciled() {
    simulation([counted(false)])
        .at(secs(1), |cluster| cluster.create(widget("a")))
        .cluster(grow)
        .finally("the status shows the last size", |cluster| {
            let status = cluster.get::<Widget>("shop/a").and_then(|widget| widget.status);
            status.map(|status| status.passes) == Some(5)
        })
        .faults([Fault::SlowRequests, Fault::LaggingWatches])
        .seeds(0..20)
        .run();
}
