//! The announcement of a member. A member is a process that takes part in the elections of a component.
//!
//! The announcement is stored in the annotations of the member's own Lease.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use reknit_apis::Bounds;
use serde_json::{Value, json};

use crate::selections::shorten;

/// The label with the component, for `kubectl get leases -l`, and the annotation, which members read.
const COMPONENT: &str = "leaderelection.reknit.dev/component";
/// The annotation with the number of buckets into which the keys of every controller are divided.
const BUCKETS: &str = "leaderelection.reknit.dev/buckets";
/// The annotation with the names of the controllers that run, separated by commas.
const CONTROLLERS: &str = "leaderelection.reknit.dev/controllers";
/// The annotation with what each of them selects, as a JSON object. Members of earlier versions have none.
const SELECTIONS: &str = "leaderelection.reknit.dev/selections";

/// The controllers that run in a process, each with a text of what it selects. `None` if a member does not say it.
pub(crate) type RunningControllers = BTreeMap<String, Option<String>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) component: String,
    pub(crate) buckets: u32,
    pub(crate) controllers: RunningControllers,
}

/// A controller that selects other objects in another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OtherSelection<'a> {
    pub(crate) controller: &'a str,
    pub(crate) own: &'a str,
    pub(crate) theirs: &'a str,
}

impl Announcement {
    /// Returns the announcement in this lease. `None` if it is not the lease of a member. A text that is longer than a
    /// member announces is cut as a member cuts it.
    pub(crate) fn of(lease: &Lease) -> Option<Self> {
        let annotation = |key| lease.annotations().get(key);
        let controllers = annotation(CONTROLLERS)?.split(',').filter(|name| !name.is_empty());
        let selections = annotation(SELECTIONS).and_then(|json| serde_json::from_str(json).ok());
        let mut selections: BTreeMap<String, String> = selections.unwrap_or_default();
        let selected = |name: &str| (name.to_owned(), selections.remove(name).map(|text| shorten(&text)));
        Some(Self {
            component: annotation(COMPONENT)?.clone(),
            buckets: annotation(BUCKETS)?.parse().ok()?,
            controllers: controllers.map(selected).collect(),
        })
    }

    /// Returns true if the member runs this controller of this component.
    pub(crate) fn runs(&self, component: &str, controller: &str) -> bool {
        self.component == component && self.controllers.contains_key(controller)
    }

    /// Returns a controller that both members run, and that selects other objects in the other one.
    pub(crate) fn find_other_selection<'a>(&'a self, other: &'a Self) -> Option<OtherSelection<'a>> {
        let both = self.controllers.iter().filter(|_| self.component == other.component);
        let mut both = both
            .filter_map(|(name, own)| Some((name, own.as_ref()?, other.controllers.get(name)?.as_ref()?)));
        let (controller, own, theirs) = both.find(|(_, own, theirs)| own != theirs)?;
        Some(OtherSelection { controller, own, theirs })
    }

    /// The metadata of the member's lease. A component whose name is not valid as a label has only the annotation.
    pub(crate) fn metadata(&self) -> Value {
        let controllers = self.controllers.keys().map(String::as_str).collect::<Vec<_>>().join(",");
        let selections =
            self.controllers.iter().filter_map(|(name, selects)| Some((name, selects.as_ref()?)));
        let selections = json!(selections.collect::<BTreeMap<_, _>>());
        let annotations = BTreeMap::from([
            (COMPONENT, self.component.clone()),
            (BUCKETS, self.buckets.to_string()),
            (CONTROLLERS, controllers),
            (SELECTIONS, selections.to_string()),
        ]);
        let label =
            Some(&self.component).filter(|component| Bounds::LABEL_VALUE.apply(component) == **component);
        json!({"annotations": annotations, "labels": label.map(|component| json!({COMPONENT: component}))})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcement(component: &str, controllers: &[(&str, Option<&str>)]) -> Announcement {
        Announcement {
            component: component.into(),
            buckets: 1,
            controllers: controllers
                .iter()
                .map(|(name, text)| ((*name).into(), text.map(Into::into)))
                .collect(),
        }
    }

    #[test]
    fn an_announcement_is_read_from_the_metadata_that_it_writes() {
        let announcement = Announcement {
            component: "controller".into(),
            buckets: 10,
            controllers: [("lamps.demo".into(), Some("namespace=a".into())), ("rooms.demo".into(), None)]
                .into(),
        };
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": announcement.metadata()});
        assert_eq!(Announcement::of(&serde_json::from_value(lease).unwrap()), Some(announcement));
    }

    #[test]
    fn a_selection_that_is_longer_than_a_member_announces_is_cut_and_one_that_was_cut_is_not() {
        let text_of = |text: &str| {
            let metadata = announcement("controller", &[("lamps", Some(text))]).metadata();
            let lease = serde_json::from_value(json!({"metadata": metadata})).unwrap();
            Announcement::of(&lease).unwrap().controllers["lamps"].clone().unwrap()
        };
        let (short, long) = ("ä".repeat(225), "ä".repeat(100_000));
        assert_eq!(text_of(&short), short);
        let cut = text_of(&long);
        assert_eq!(cut.chars().count(), 225);
        assert!(text_of(&cut) == cut && text_of(&(long + "a")) != cut);
    }

    #[test]
    fn selections_differ_if_both_members_say_what_they_select_by_the_same_name() {
        let own = announcement("controller", &[("lamps", Some("namespace=a")), ("rooms", Some(""))]);
        for (component, controllers, expected) in [
            (
                "controller",
                &[("lamps", Some("namespace=b"))][..],
                Some(("lamps", "namespace=a", "namespace=b")),
            ),
            (
                "controller",
                &[("lamps", Some("namespace=a")), ("rooms", Some("x=y"))],
                Some(("rooms", "", "x=y")),
            ),
            ("controller", &[("lamps", Some("namespace=a")), ("rooms", Some(""))], None),
            ("controller", &[("lamps", None), ("other", Some("x=y"))], None),
            ("other", &[("lamps", Some("namespace=b"))], None),
        ] {
            let other = announcement(component, controllers);
            let found = own.find_other_selection(&other);
            let found = found.map(|OtherSelection { controller, own, theirs }| (controller, own, theirs));
            assert_eq!(found, expected, "{other:?}");
        }
    }

    #[test]
    fn a_lease_without_annotations_is_of_no_member() {
        assert_eq!(Announcement::of(&Lease::default()), None);
    }
}
