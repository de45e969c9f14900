//! A controller as it should be: children by name, a finalizer whose cleanup can be repeated, a status.

use k8s_openapi::{
    api::core::v1::{ConfigMap, ResourceQuota},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, ResourceExt, api::DeleteParams};
use reknit_injection::Context;
use reknit_reconciler::{Controller, FinalizeKind, Outcome, Owned, ReconcileKind, Result};
use reknit_simulation::{Cluster, Simulation, quotas_refuse, simulation};
use serde_json::json;

use crate::widgets::{Widget, WidgetStatus, life_of_a_widget, maps, secs, widget};

/// Applies three maps of a widget, and one map in another namespace, which has no owner and is deleted at the end.
struct Careful {
    maps: Owned<ConfigMap>,
    shared: Api<ConfigMap>,
}

const PARTS: [&str; 3] = ["one", "two", "three"];

fn map(widget: &Widget, name: &str) -> ConfigMap {
    let name = Some(format!("{}-{name}", widget.name_any()));
    let metadata = ObjectMeta { namespace: widget.namespace(), name, ..ObjectMeta::default() };
    let data = Some([("size".to_owned(), widget.spec.size.to_string())].into());
    ConfigMap { metadata, data, ..ConfigMap::default() }
}

impl ReconcileKind for Careful {
    type Kind = Widget;

    async fn reconcile_kind(&self, widget: &Widget, status: &mut WidgetStatus) -> Result<Outcome> {
        for part in PARTS {
            self.maps.apply(widget, map(widget, part)).await?;
        }
        let mut shared = map(widget, "shared");
        shared.metadata.namespace = Some("shared".into());
        shared.data = None; // it is only created
        match self.shared.create(&Default::default(), &shared).await {
            Err(kube::Error::Api(refusal)) if refusal.is_already_exists() => {}
            created => drop(created?),
        }
        status.map = shared.metadata.name;
        Ok(Outcome::done())
    }
}

impl FinalizeKind for Careful {
    async fn finalize_kind(&self, widget: &Widget, _: &mut WidgetStatus) -> Result<Outcome> {
        let name = map(widget, "shared").name_any();
        match self.shared.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(refusal)) if refusal.is_not_found() => {}
            deleted => drop(deleted?),
        }
        Ok(Outcome::done())
    }
}

fn careful(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Widget>(cx);
    let maps = build.owns();
    let shared = Api::namespaced(build.client(), "shared");
    Ok(build.reconciler(Careful { maps, shared }).finalizing().build())
}

/// Widgets that come, change and go.
pub(crate) fn widgets() -> Simulation {
    let mut simulation = life_of_a_widget(simulation([careful]));
    for second in (10..100).step_by(3) {
        let name = ["c", "d", "e"][second as usize % 3];
        simulation = simulation.at(secs(second), move |cluster| {
            let size = cluster.get::<Widget>(&format!("shop/{name}")).map(|widget| widget.spec.size + 1);
            match size {
                None => cluster.create(widget(name)),
                Some(size) => cluster
                    .merge::<Widget>(&format!("shop/{name}"), &serde_json::json!({"spec": {"size": size}})),
            }
        });
    }
    simulation.finally("four maps each", |cluster| {
        let (maps, widgets) = (maps(cluster).len(), cluster.list::<Widget>().len());
        if maps == 4 * widgets { Ok(()) } else { Err(format!("{maps} maps of {widgets} widgets")) }
    })
}

#[test]
fn widgets_survive_faults() {
    widgets().seeds(0..6).run();
}

#[test]
fn widgets_of_three_replicas_survive_faults() {
    widgets().replicas(3).seeds(0..20).run();
}

#[test]
fn a_quota_delays_children_until_it_is_gone() {
    let quota =
        json!({"metadata": {"namespace": "shop", "name": "q"}, "spec": {"hard": {"count/configmaps": "4"}}});
    let quota: ResourceQuota = serde_json::from_value(quota).unwrap();
    let in_shop = |cluster: &Cluster| {
        maps(cluster).iter().filter(|map| map.metadata.namespace.as_deref() == Some("shop")).count()
    };
    simulation([careful])
        .given(quota)
        .admission(quotas_refuse)
        .at(secs(1), |cluster| cluster.create(widget("a")))
        .at(secs(5), |cluster| cluster.create(widget("b")))
        .at(secs(60), move |cluster| {
            assert!(in_shop(cluster) <= 4);
            cluster.delete::<ResourceQuota>("shop/q");
        })
        .finally("three maps each", move |cluster| in_shop(cluster) == 6)
        .seeds(0..20)
        .run();
}
