//! The Kinds of Kubernetes itself.

use std::str::FromStr;

use reknit_apis::internal::BuiltInKind;

use crate::{
    names::{Group, Kind, Plural},
    plan::Plan,
    template::{BUILT_IN_FILES, PROJECT},
    template_names::Names,
};

/// A built-in Kind, for example `apps/v1/Deployment`, or `v1/Namespace` of the core group.
#[derive(Clone, Debug)]
pub(crate) struct BuiltIn {
    known: BuiltInKind,
    pub(crate) kind: Kind,
    plural: Plural,
}

impl BuiltIn {
    /// The arguments that name a built-in Kind of this name, for example `apps/v1/Deployment`.
    pub(crate) fn named(kind: &str) -> Vec<String> {
        let all = BuiltInKind::all().into_iter();
        let of_kind = all.filter(|known| known.resource.kind == kind);
        of_kind.map(|known| format!("{}/{kind}", known.resource.api_version)).collect()
    }

    /// Plans the project with a controller of the Kind. The group is that of the project.
    pub(crate) fn plan(&self, plan: &mut Plan, names: Names, group: &Group) {
        let names = names.kind(&self.kind).plural(&self.plural).built_in(self.module());
        plan.create_all(PROJECT, &names);
        plan.create_all(BUILT_IN_FILES, &names);
        for path in ["config/200-rbac.yaml", "config/shadow/rbac.yaml"] {
            plan.edit(path, |manifests| self.roles(manifests, group));
        }
        // The status `()` shows no generation, so each object that exists at the start would wait for the brake.
        plan.edit("config/500-controller.yaml", |deployment| {
            let lines =
                deployment.split_inclusive('\n').filter(|line| !line.contains("# A new version changes"));
            lines.collect::<String>().replace(", \"--max-unprompted-changes=100\"", "")
        });
        plan.replace("README.md", "# table tests and simulations", "# table tests");
        if !self.known.namespaced {
            let test = names.apply("tests/warm_greeting.rs");
            plan.replace(&test, "    object.metadata.namespace = Some(\"default\".into());\n", "");
            plan.replace(&test, "\"default/x\"", "\"x\"");
        }
    }

    /// Returns true if the program or its shadow has further rules for this resource, so that only the code can generate the
    /// roles: a program writes events, and a shadow reads neither events nor admission policies.
    pub(crate) fn has_roles_of_the_code(&self) -> bool {
        self.plural.as_str() == "events" || self.plural.as_str().contains("admissionpolic")
    }

    /// The module of the type in k8s-openapi.
    fn module(&self) -> String {
        let resource = &self.known.resource;
        let group = match resource.group.split('.').next().unwrap_or_default() {
            "" => "api::core",
            "apiextensions" => "apiextensions_apiserver::pkg::apis::apiextensions",
            "apiregistration" => "kube_aggregator::pkg::apis::apiregistration",
            group => return format!("k8s_openapi::api::{group}::{}", resource.version),
        };
        format!("k8s_openapi::{group}::{}", resource.version)
    }

    /// Returns the manifests of the roles for this Kind instead of one of the project's group. As in those that the program
    /// generates, a Role lacks what the ClusterRole grants in every namespace.
    fn roles(&self, manifests: &str, group: &Group) -> String {
        let plural = self.plural.as_str();
        let objects =
            |group: &str, resource: &str| format!("apiGroups: [{group}]\n    resources: [{resource}]\n");
        let own = match &*self.known.resource.group {
            "" => objects("\"\"", plural),
            own => objects(own, plural),
        };
        // A program gets an object only before it writes the status.
        let old = objects(group.as_str(), plural) + "    verbs: [get, list, watch]\n";
        let status = objects(group.as_str(), &format!("{plural}/status")) + "    verbs: [patch]\n";
        let manifests = manifests.replace(&format!("  - {status}"), "");
        let documents = manifests.split("---\n").map(|document| match document.contains("\nkind: Role\n") {
            true => without_watches(document, &own),
            false => document.replace(&old, &format!("{own}    verbs: [list, watch]\n")),
        });
        documents.collect::<Vec<_>>().join("---\n")
    }
}

/// Returns a Role that permits neither lists nor watches of these objects.
fn without_watches(role: &str, objects: &str) -> String {
    let rules = role.split("  - ").map(|rule| match rule.starts_with(objects) {
        true => rule.replace(", list, watch", ""),
        false => rule.to_owned(),
    });
    rules.collect::<Vec<_>>().join("  - ")
}

impl FromStr for BuiltIn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (api_version, kind) = text.rsplit_once('/').unwrap_or(("", text));
        let is_meant = |known: &BuiltInKind| {
            (&*known.resource.api_version, &*known.resource.kind) == (api_version, kind)
        };
        let Some(known) = BuiltInKind::all().into_iter().find(is_meant) else {
            return Err(match &*Self::named(kind).join(" or ") {
                "" => "k8s-openapi has no such stable Kind that a controller can list; for a Kind that another project \
                       installs, pass its --group, --version and --kind, and --external"
                    .into(),
                named => format!("the built-in Kind of this name is {named}"),
            });
        };
        Ok(Self { kind: Kind::of_kubernetes(kind), plural: known.resource.plural.parse()?, known })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_a_built_in_kind_is_in_k8s_openapi() {
        for (text, module) in [
            ("v1/Namespace", "k8s_openapi::api::core::v1"),
            ("apps/v1/Deployment", "k8s_openapi::api::apps::v1"),
            ("autoscaling/v2/HorizontalPodAutoscaler", "k8s_openapi::api::autoscaling::v2"),
            ("rbac.authorization.k8s.io/v1/ClusterRole", "k8s_openapi::api::rbac::v1"),
            (
                "apiextensions.k8s.io/v1/CustomResourceDefinition",
                "k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1",
            ),
            (
                "apiregistration.k8s.io/v1/APIService",
                "k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1",
            ),
        ] {
            assert_eq!(
                text.parse::<BuiltIn>().map(|built_in| built_in.module()),
                Ok(module.into()),
                "{text}"
            );
        }
    }

    #[test]
    fn each_kind_that_a_controller_can_reconcile_can_be_named() {
        for known in BuiltInKind::all() {
            let name = format!("{}/{}", known.resource.api_version, known.resource.kind);
            assert_eq!(name.parse::<BuiltIn>().map(|_| ()), Ok(()), "{name}");
        }
    }

    #[test]
    fn a_kind_that_kubernetes_does_not_have_is_refused_with_the_one_of_its_name() {
        for (text, part) in [
            ("Deployment", "is apps/v1/Deployment"),
            ("extensions/v1beta1/Ingress", "is networking.k8s.io/v1/Ingress"),
            (
                "v1/HorizontalPodAutoscaler",
                "v1/HorizontalPodAutoscaler or autoscaling/v2/HorizontalPodAutoscaler",
            ),
            ("example.com/v1/Greeting", "--external"),
            ("v1/Binding", "no such stable Kind"),
        ] {
            let refusal = text.parse::<BuiltIn>().unwrap_err();
            assert!(refusal.contains(part), "{text}: {refusal}");
        }
    }
}
