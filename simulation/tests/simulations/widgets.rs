//! The Kind of the simulated controllers.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::CustomResource;
use reknit_apis::kind;
use reknit_simulation::{Cluster, Simulation};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "demo.reknit.dev", version = "v1", kind = "Widget", namespaced, status = "WidgetStatus")]
pub(crate) struct WidgetSpec {
    pub(crate) size: u32,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
pub(crate) struct WidgetStatus {
    /// The name of the ConfigMap.
    pub(crate) map: Option<String>,
    pub(crate) passes: u32,
}

kind!(Widget { status: WidgetStatus });

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn widget(name: &str) -> Widget {
    let mut widget = Widget::new(name, WidgetSpec { size: 1 });
    widget.metadata.namespace = Some("shop".into());
    widget
}

/// Creates, changes and deletes a widget, and creates another one that stays.
pub(crate) fn life_of_a_widget(simulation: Simulation) -> Simulation {
    simulation
        .at(secs(1), |cluster| cluster.create(widget("a")))
        .at(secs(5), |cluster| cluster.create(widget("b")))
        .at(secs(30), |cluster| {
            cluster.merge::<Widget>("shop/a", &serde_json::json!({"spec": {"size": 2}}));
        })
        .at(secs(60), |cluster| cluster.delete::<Widget>("shop/a"))
}

pub(crate) fn maps(cluster: &Cluster) -> Vec<ConfigMap> {
    cluster.list()
}
