//! The names in the files of the template, and those of a user's project.
//!
//! The files belong to a project `hello-world` with a Kind `WarmGreeting` of the version `v9alpha1`. These names mean
//! nothing else in the files, so they are replaced as text.

use crate::{
    names::{Group, Kind, Plural, ProjectName, Version},
    project::Project,
};

/// The replacements of the names in a template.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(Vec<(&'static str, String)>);

impl Names {
    /// The names of a project that exists.
    pub(crate) fn of(project: &Project) -> Self {
        Self::default().project(&project.name).group(&project.group)
    }

    pub(crate) fn project(mut self, name: &ProjectName) -> Self {
        self.0.push(("hello-world", name.as_str().into()));
        self.0.push(("hello_world", name.krate()));
        self
    }

    pub(crate) fn group(mut self, group: &Group) -> Self {
        self.0.push(("hello.example.com", group.as_str().into()));
        self
    }

    pub(crate) fn kind(mut self, kind: &Kind) -> Self {
        self.0.push(("WarmGreeting", kind.as_str().into()));
        self.0.push(("warm_greeting", kind.module()));
        self.0.push(("warmgreeting", kind.singular()));
        self
    }

    pub(crate) fn plural(mut self, plural: &Plural) -> Self {
        // Before the singular, which is the beginning of the plural.
        self.0.insert(0, ("warmgreetings", plural.as_str().into()));
        self
    }

    /// The module of k8s-openapi with the type of a built-in Kind.
    pub(crate) fn built_in(mut self, module: String) -> Self {
        self.0.push(("k8s_openapi::api::hello::v9alpha1", module));
        self
    }

    pub(crate) fn version(mut self, version: &Version) -> Self {
        self.0.push(("v9alpha1", version.as_str().into()));
        self
    }

    /// The version that is added to a Kind beside [`Names::version`].
    pub(crate) fn new_version(mut self, version: &Version) -> Self {
        self.0.push(("v1beta1", version.as_str().into()));
        self
    }

    /// Replaces the names in a text. Names that were inserted are not replaced again.
    pub(crate) fn apply(&self, text: &str) -> String {
        let mut result = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            match self.0.iter().find(|(name, _)| rest.starts_with(name)) {
                Some((name, replacement)) => {
                    result += replacement;
                    rest = &rest[name.len()..];
                }
                None => {
                    result.push(next);
                    rest = &rest[next.len_utf8()..];
                }
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::{
        DEFAULTING_MANIFESTS, KIND_FILES, KIND_ROLES, PROJECT, VALIDATION_MANIFESTS, WEBHOOK_MANIFESTS,
    };

    #[test]
    fn names_are_replaced_once() {
        let kind: Kind = "Policy".parse().unwrap();
        let names = Names::default().kind(&kind).plural(&kind.plural()).version(&"v1beta1".parse().unwrap());
        let text = "WarmGreeting warm_greeting warmgreetings warmgreeting v9alpha1 apps/v1";
        assert_eq!(names.apply(text), "Policy policy policies policy v1beta1 apps/v1");
    }

    #[test]
    fn the_version_of_a_kind_replaces_no_version_of_kubernetes_or_kustomize() {
        let names = Names::default().version(&"v2".parse().unwrap());
        let files =
            [PROJECT, KIND_FILES, KIND_ROLES, WEBHOOK_MANIFESTS, DEFAULTING_MANIFESTS, VALIDATION_MANIFESTS];
        let lines =
            files.concat().into_iter().flat_map(|(path, text)| text.lines().map(move |line| (path, line)));
        for (path, line) in lines.filter(|(_, line)| line.contains(".k8s.io/")) {
            assert_eq!(names.apply(line), line, "{path}");
        }
    }
}
