//! Aggregated ClusterRoles, such as `edit`, whose rules a controller of Kubernetes fills in.
//!
//! Without their rules, the API server would let anyone grant these roles.

use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    core::{Selector, SelectorExt},
};
use serde_json::json;

use super::{ControlPlane, Error, apply::FIELD_MANAGER};

impl ControlPlane {
    /// Fills in the rules of aggregated ClusterRoles. With nodes, the controller of Kubernetes does it too.
    pub(super) async fn aggregate_cluster_roles(&self) -> Result<(), Error> {
        aggregate_cluster_roles(self.client()?).await.map_err(Error::cannot("aggregate ClusterRoles"))
    }
}

/// Fills in the rules of aggregated ClusterRoles, as they are now.
pub async fn aggregate_cluster_roles(client: Client) -> kube::Result<()> {
    let api: Api<ClusterRole> = Api::all(client);
    let stored = api.list(&ListParams::default()).await?.items;
    let mut roles = stored.clone();
    // A role may aggregate one that is aggregated itself, as `admin` does with `edit`.
    while add_aggregated_rules(&mut roles) {}
    for (role, _) in roles.iter().zip(&stored).filter(|(role, stored)| role.rules != stored.rules) {
        let patch = Patch::Merge(json!({ "rules": role.rules }));
        let manager = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        api.patch(&role.name_any(), &manager, &patch).await?;
    }
    Ok(())
}

/// Sets the rules of each aggregated role to those of the roles that it selects. Returns true if any have changed.
fn add_aggregated_rules(roles: &mut [ClusterRole]) -> bool {
    let mut has_changed = false;
    for i in 0..roles.len() {
        let Some(rule) = roles[i].aggregation_rule.clone() else { continue };
        let selectors = rule.cluster_role_selectors.unwrap_or_default().into_iter();
        let selectors: Vec<Selector> =
            selectors.filter_map(|selector| Selector::try_from(selector).ok()).collect();
        let is_selected =
            |role: &ClusterRole| selectors.iter().any(|selector| selector.matches(role.labels()));
        let mut rules = Vec::new();
        for (_, role) in roles.iter().enumerate().filter(|(j, role)| *j != i && is_selected(role)) {
            for rule in role.rules.iter().flatten() {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
        if roles[i].rules.as_deref().unwrap_or_default() != rules {
            roles[i].rules = Some(rules);
            has_changed = true;
        }
    }
    has_changed
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::rbac::v1::{AggregationRule, PolicyRule},
        apimachinery::pkg::apis::meta::v1::LabelSelector,
    };

    use super::*;

    fn role(name: &str, label: &str, verbs: &[&str], selects: Option<&str>) -> ClusterRole {
        let mut role = ClusterRole::default();
        role.metadata.name = Some(name.into());
        role.metadata.labels = Some([(label.to_owned(), "true".to_owned())].into());
        let verbs: Vec<String> = verbs.iter().copied().map(Into::into).collect();
        role.rules = (!verbs.is_empty()).then(|| vec![PolicyRule { verbs, ..PolicyRule::default() }]);
        role.aggregation_rule = selects.map(|label| AggregationRule {
            cluster_role_selectors: Some(vec![LabelSelector {
                match_labels: Some([(label.to_owned(), "true".to_owned())].into()),
                ..LabelSelector::default()
            }]),
        });
        role
    }

    #[test]
    fn a_role_has_the_rules_of_those_that_it_selects_also_through_others() {
        let mut roles = [
            role("admin", "x", &[], Some("to-admin")),
            role("edit", "to-admin", &[], Some("to-edit")),
            role("edit-pods", "to-edit", &["update"], None),
            role("admin-pods", "to-admin", &["delete"], None),
        ];
        while add_aggregated_rules(&mut roles) {}
        let verbs = |role: &ClusterRole| {
            role.rules.iter().flatten().flat_map(|rule| rule.verbs.clone()).collect::<Vec<_>>()
        };
        assert_eq!(verbs(&roles[1]), ["update"]);
        assert_eq!(verbs(&roles[0]), ["update", "delete"]);
    }
}
