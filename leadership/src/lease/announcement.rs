//! The announcement of a member. A member is a process that takes part in the elections of a component.
//!
//! The announcement is stored in the annotations of the member's own Lease.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use reknit_apis::Bounds;
use serde_json::{Value, json};

/// The label with the component, for `kubectl get leases -l`, and the annotation, which members read.
const COMPONENT: &str = "leaderelection.reknit.dev/component";
/// The annotation with the number of buckets into which the keys of every controller are divided.
const BUCKETS: &str = "leaderelection.reknit.dev/buckets";
/// The annotation with the names of the controllers that run, separated by commas.
const CONTROLLERS: &str = "leaderelection.reknit.dev/controllers";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) component: String,
    pub(crate) buckets: u32,
    pub(crate) controllers: BTreeSet<String>,
}

impl Announcement {
    /// Returns the announcement in this lease. `None` if it is not the lease of a member.
    pub(crate) fn of(lease: &Lease) -> Option<Self> {
        let annotation = |key| lease.annotations().get(key);
        let controllers = annotation(CONTROLLERS)?.split(',').filter(|name| !name.is_empty());
        Some(Self {
            component: annotation(COMPONENT)?.clone(),
            buckets: annotation(BUCKETS)?.parse().ok()?,
            controllers: controllers.map(str::to_owned).collect(),
        })
    }

    /// Returns true if the member runs this controller of this component.
    pub(crate) fn runs(&self, component: &str, controller: &str) -> bool {
        self.component == component && self.controllers.contains(controller)
    }

    /// The metadata of the member's lease. A component whose name is not valid as a label has only the annotation.
    pub(crate) fn metadata(&self) -> Value {
        let controllers = self.controllers.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        let annotations = BTreeMap::from([
            (COMPONENT, self.component.clone()),
            (BUCKETS, self.buckets.to_string()),
            (CONTROLLERS, controllers),
        ]);
        let label =
            Some(&self.component).filter(|component| Bounds::LABEL_VALUE.apply(component) == **component);
        json!({"annotations": annotations, "labels": label.map(|component| json!({COMPONENT: component}))})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_read_from_the_metadata_that_it_writes() {
        let announcement = Announcement {
            component: "controller".into(),
            buckets: 10,
            controllers: ["lamps.demo".into(), "rooms.demo".into()].into(),
        };
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": announcement.metadata()});
        assert_eq!(Announcement::of(&serde_json::from_value(lease).unwrap()), Some(announcement));
    }

    #[test]
    fn a_lease_without_annotations_is_of_no_member() {
        assert_eq!(Announcement::of(&Lease::default()), None);
    }
}
