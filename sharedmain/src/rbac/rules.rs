//! The rules of roles, merged from the permissions of all constructors.

use std::collections::{BTreeMap, BTreeSet};

use reknit_injection::{Permission, Verb, internal::covers_resource};
use serde::Serialize;
use serde_saphyr::FlowSeq;

/// The rules of a process by scope.
#[derive(Default)]
pub(super) struct Rules {
    /// The rules of the ClusterRole.
    pub(super) cluster: Vec<Rule>,
    /// The rules of the Role in each namespace.
    pub(super) namespaces: BTreeMap<String, Vec<Rule>>,
}

/// One rule: verbs on one resource.
#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Rule {
    api_groups: FlowSeq<Vec<String>>,
    resources: FlowSeq<Vec<String>>,
    #[serde(skip_serializing_if = "has_no_names")]
    resource_names: FlowSeq<Vec<String>>,
    #[serde(serialize_with = "in_words")]
    verbs: BTreeSet<Verb>,
}

impl Rules {
    /// Sorts the permissions by scope, and merges those on the same resource and names into one rule, at the position
    /// of the first.
    pub(super) fn of(permissions: &[Permission]) -> Self {
        let mut rules = Self::default();
        for permission in permissions {
            let mut namespaces = permission.object_namespaces().peekable();
            if namespaces.peek().is_none() {
                merge(&mut rules.cluster, Rule::of(permission));
            }
            for namespace in namespaces {
                merge(rules.namespaces.entry(namespace.into()).or_default(), Rule::of(permission));
            }
        }
        rules.remove_covered();
        rules
    }

    /// Leaves what a process needs that sends only dry runs. It records no events. A token or another user's name would
    /// lead around the policy of its account, and the API server does not ask a policy about policies. A wildcard includes
    /// these, so it is left out too.
    pub(super) fn without_real_writes(mut self) -> Self {
        let of_namespaces = self.namespaces.values_mut();
        for rules in of_namespaces.chain([&mut self.cluster]) {
            rules.retain(|rule| {
                !["events", "serviceaccounts/token"].iter().any(|resource| rule.is_on(resource))
                    && !rule.resources.0[0].contains("admissionpolic")
            });
            let is_dry = |verb: &Verb| ![Verb::Impersonate, Verb::Other("*")].contains(verb);
            rules.iter_mut().for_each(|rule| rule.verbs.retain(is_dry));
            rules.retain(|rule| !rule.verbs.is_empty());
        }
        self.namespaces.retain(|_, rules| !rules.is_empty());
        self
    }

    /// Removes from Roles what the ClusterRole grants in every namespace.
    fn remove_covered(&mut self) {
        for rules in self.namespaces.values_mut() {
            for rule in rules.iter_mut() {
                let covering = self.cluster.iter().filter(|cluster| cluster.covers_resource(rule));
                let granted: BTreeSet<_> = covering.flat_map(|cluster| cluster.verbs.clone()).collect();
                rule.verbs.retain(|verb| !granted.contains(verb));
            }
            rules.retain(|rule| !rule.verbs.is_empty());
        }
        self.namespaces.retain(|_, rules| !rules.is_empty());
    }
}

impl Rule {
    fn of(permission: &Permission) -> Self {
        Self {
            api_groups: FlowSeq(vec![permission.group().into()]),
            resources: FlowSeq(vec![permission.resource().into()]),
            resource_names: FlowSeq(permission.object_names().map(Into::into).collect()),
            verbs: permission.verbs().collect(),
        }
    }

    fn is_on(&self, resource: &str) -> bool {
        self.resources.0.iter().any(|allowed| covers_resource(allowed, resource))
    }

    fn is_on_same_objects(&self, other: &Self) -> bool {
        self.is_on_same_resource(other) && self.resource_names.0 == other.resource_names.0
    }

    fn is_on_same_resource(&self, other: &Self) -> bool {
        (&self.api_groups.0, &self.resources.0) == (&other.api_groups.0, &other.resources.0)
    }

    /// Returns true if this rule applies to all objects of the other rule's resource.
    fn covers_resource(&self, other: &Self) -> bool {
        self.is_on_same_resource(other) && has_no_names(&self.resource_names)
    }
}

fn merge(rules: &mut Vec<Rule>, rule: Rule) {
    match rules.iter_mut().find(|known| known.is_on_same_objects(&rule)) {
        Some(known) => known.verbs.extend(rule.verbs),
        None => rules.push(rule),
    }
}

fn has_no_names(names: &FlowSeq<Vec<String>>) -> bool {
    names.0.is_empty()
}

fn in_words<S: serde::Serializer>(verbs: &BTreeSet<Verb>, serializer: S) -> Result<S::Ok, S::Error> {
    FlowSeq(verbs.iter().map(ToString::to_string).collect::<Vec<_>>()).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};

    use super::*;

    fn rules(permissions: &[Permission]) -> (Vec<String>, Vec<(String, Vec<String>)>) {
        let Rules { cluster, namespaces } = Rules::of(permissions);
        let text = |rules: Vec<Rule>| rules.iter().map(|rule| serde_json::to_string(rule).unwrap()).collect();
        let namespaces = namespaces.into_iter().map(|(name, rules)| (name, text(rules)));
        (text(cluster), namespaces.collect())
    }

    fn rule(resource: &str, verbs: &str) -> String {
        format!(r#"{{"apiGroups":[""],"resources":["{resource}"],"verbs":[{verbs}]}}"#)
    }

    #[test]
    fn permissions_on_one_resource_become_one_rule_and_rules_keep_the_order_of_declaration() {
        let secrets = |verb| Permission::of::<Secret>([verb]);
        let nodes = Permission::of::<Node>([Verb::Get]);
        let (cluster, namespaces) = rules(&[secrets(Verb::Watch), nodes, secrets(Verb::Get)]);
        assert_eq!(cluster, [rule("secrets", r#""get","watch""#), rule("nodes", r#""get""#)]);
        assert!(namespaces.is_empty());
    }

    #[test]
    fn a_namespace_gets_a_role_with_what_the_cluster_role_lacks() {
        let everywhere = Permission::of::<ConfigMap>([Verb::List]);
        let in_shop = Permission::of::<ConfigMap>([Verb::Get, Verb::List]).namespaces(["shop"]);
        let (cluster, namespaces) = rules(&[in_shop, everywhere]);
        assert_eq!(cluster, [rule("configmaps", r#""list""#)]);
        assert_eq!(namespaces, [("shop".to_owned(), vec![rule("configmaps", r#""get""#)])]);
    }

    #[test]
    fn without_real_writes_no_rule_leads_around_the_policy_of_the_account() {
        let permissions = [
            Permission::of::<ConfigMap>([Verb::Patch, Verb::Other("*")]),
            Permission::new("", "*", [Verb::Create]),
            Permission::new("", "serviceaccounts/token", [Verb::Create]),
            Permission::new("", "users", [Verb::Impersonate]),
            Permission::new("admissionregistration.k8s.io", "validatingadmissionpolicies", [Verb::Patch]),
        ];
        let rules = Rules::of(&permissions).without_real_writes();
        let text: Vec<_> = rules.cluster.iter().map(|rule| serde_json::to_string(rule).unwrap()).collect();
        assert_eq!(text, [rule("configmaps", r#""patch""#)]);
    }

    #[test]
    fn rules_of_different_names_are_not_merged() {
        let named = |name: &str| Permission::of::<Secret>([Verb::Patch]).names([name]).namespaces(["n"]);
        let (_, namespaces) =
            rules(&[named("a"), named("b"), Permission::of::<Secret>([Verb::Create]).namespaces(["n"])]);
        assert_eq!(namespaces[0].1.len(), 3);
    }
}
