//! The flags of a Kind that a command creates.

use anyhow::{Result, bail};

use crate::{
    names::{Group, Kind, Plural, Version},
    plan::Plan,
    template::{KIND_FILES, KIND_ROLES},
    template_names::Names,
};

/// The resource of the kustomization with the definitions.
pub(crate) const DEFINITIONS: &str = "- 300-crds.yaml";

#[derive(Debug, clap::Args)]
pub(crate) struct KindFlags {
    /// The version of the Kind
    #[arg(long, default_value = "v1alpha1")]
    version: Version,
    /// The plural of the Kind, for example greetings; the default is made from the Kind
    #[arg(long)]
    plural: Option<Plural>,
    /// Makes objects of the Kind cluster-scoped: they are in no namespace
    #[arg(long)]
    cluster_scoped: bool,
    /// Leaves the definition of the Kind out of config/, because another project installs it
    #[arg(long)]
    pub(crate) external: bool,
}

impl KindFlags {
    pub(crate) fn plural(&self, kind: &Kind) -> Plural {
        self.plural.clone().unwrap_or_else(|| kind.plural())
    }

    /// Fails if the project would define a Kind in a group that Kubernetes protects.
    pub(crate) fn check_group(&self, group: &Group) -> Result<()> {
        if group.is_protected() && !self.external {
            bail!(
                "Kubernetes protects the group {}: use a domain of yours, or --external if another project installs the Kind",
                group.as_str()
            );
        }
        Ok(())
    }

    /// Adds the names of the Kind.
    pub(crate) fn names(&self, names: Names, kind: &Kind) -> Names {
        names.version(&self.version).kind(kind).plural(&self.plural(kind))
    }

    /// Plans the files of the Kind.
    pub(crate) fn plan(&self, plan: &mut Plan, names: &Names) {
        plan.create_all(KIND_FILES, names);
        if !self.external {
            plan.create_all(KIND_ROLES, names);
            let roles = names.apply("- 200-warm_greeting-roles.yaml");
            plan.insert("config/Kustomization", "resources", roles);
        }
        if !self.cluster_scoped {
            return;
        }
        let (kind, test) = (names.apply("src/warm_greeting/kind.rs"), names.apply("tests/warm_greeting.rs"));
        let simulation = names.apply("tests/warm_greeting_simulation.rs");
        plan.replace(&kind, "    namespaced,\n", "");
        let new = names.apply("WarmGreeting::new(\"x\", WarmGreetingSpec { text: text.into() })");
        let namespaced = format!(
            "let mut object = {new};\n    object.metadata.namespace = Some(\"default\".into());\n    object\n"
        );
        plan.replace(&test, &namespaced, &format!("{new}\n"));
        plan.replace(&test, "\"default/x\"", "\"x\"");
        plan.replace(&simulation, "    object.metadata.namespace = Some(\"default\".into());\n", "");
        plan.replace(&simulation, "let mut object", "let object");
        plan.replace(&simulation, "default/hello", "hello");
        plan.replace("config/300-crds.yaml", "scope: Namespaced", "scope: Cluster");
    }
}
